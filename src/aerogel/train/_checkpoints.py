"""`Checkpoints`: the last states of a training run, from which it goes on as if it had never stopped."""

import json
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import jax

from aerogel._errors import UsageError

from ._file_store import FileStore
from ._orbax_store import OrbaxStore

S = TypeVar("S")
BACKENDS = {"files": FileStore, "orbax": OrbaxStore}


@dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """What `Checkpoints.restore` finds.

    Attributes:
        step: the number of steps that led to it.
        state: the state.
        position: where the batches stood, as it was given to `save`.
    """

    step: int
    state: S
    position: Any


class Checkpoints:
    """A folder with the last checkpoints of a run, each whole or not there, whenever the process is killed.

    A checkpoint is a state, any tree of arrays (model, optimiser, keys, metrics), with its step and the position of
    the batches. A run that is taken up from it computes the same numbers, bit for bit, as one that was never stopped.

    Args:
        folder: where they are; made if it is not there. It belongs to one run.
        keep: how many are kept.
        every: how many steps are between two, for `is_due`.
        backend: "files" writes one file each, by `ag.save`, before it returns. "orbax" writes folders, in the
            background, each process its own parts of arrays that are spread over several: for large runs.

    Raises:
        UsageError: `keep` or `every` is less than one, or `backend` another word.
        MissingExtraError: Orbax is not installed.

    >>> import tempfile
    >>> import jax.numpy as jnp, aerogel as ag
    >>> folder = tempfile.mkdtemp()
    >>> with ag.Checkpoints(folder, keep=2, every=10) as checkpoints:
    ...     for step in range(1, 41):
    ...         if checkpoints.is_due(step):
    ...             checkpoints.save(step, {"total": jnp.float32(step)})
    ...     checkpoints.steps
    (30, 40)
    >>> found = ag.Checkpoints(folder).restore({"total": jnp.zeros(())})
    >>> found.step, float(found.state["total"])
    (40, 40.0)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        every: int = 1,
        backend: Literal["files", "orbax"] = "files",
    ) -> None:
        for name, value in (("keep", keep), ("every", every)):
            if value < 1:
                raise UsageError(argument=name, got=value, wanted="one or more", function="Checkpoints")
        if backend not in BACKENDS:
            raise UsageError(argument="backend", got=backend, wanted=list(BACKENDS), function="Checkpoints")
        path = os.path.abspath(os.fsdecode(folder))
        os.makedirs(path, exist_ok=True)
        self._every = every
        self._store = BACKENDS[backend](path, keep)
        self._last = (self.steps or (None,))[-1]

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the checkpoints that are there, in their order."""
        return self._store.steps()

    def is_due(self, step: int) -> bool:
        """Whether `every` steps have passed since the last checkpoint. Processes that save together agree on it."""
        return step - (self._last or 0) >= self._every

    def save(self, step: int, state: Any, position: Any = None) -> None:
        """Keeps a state; of the older ones, the first go when it is there.

        Args:
            step: the number of steps that led to it, more than that of any checkpoint in the folder.
            state: a tree of arrays. What is no array in it is not kept: `restore` takes it from `like`.
            position: what is needed to find the next batch, as JSON or bytes: `loop.position`, say.

        Raises:
            UsageError: there is a checkpoint of this step or a later one.
            SaveError: a leaf cannot be written.
            TypeError: the position is neither bytes nor JSON.
        """
        # Where a process is behind the one that writes, what it sees in the folder may be the very checkpoint.
        there = self.steps[-1:] if jax.process_count() == 1 else ()
        last = there[0] if there else self._last
        if last is not None and step <= last:
            raise UsageError(
                argument="step",
                got=step,
                wanted=f"a step after {last}, that of the last checkpoint in the folder",
                function="Checkpoints.save",
                to_fix="go on from the last checkpoint, `restore`, or give a new run a folder of its own",
            )
        self._store.write(step, state, _encoded(position))
        self._last = step

    def restore(self, like: S, step: int | None = None) -> Checkpoint[S] | None:
        """The last checkpoint, or that of a step; None if there is none at all.

        Args:
            like: a state of that structure, with arrays or shapes, as for `ag.load`: arrays go to their shardings.
            step: which checkpoint; the last one by default.

        Raises:
            UsageError: there is none of this step.
            MismatchError: a file does not fit `like`. (Orbax tells this by a ValueError.)
        """
        steps = self.steps
        if step is None and not steps:
            return None
        if step is not None and step not in steps:
            raise UsageError(argument="step", got=step, wanted=steps, function="Checkpoints.restore")
        found = steps[-1] if step is None else step
        state, position = self._store.read(found, like)
        return Checkpoint(found, state, _decoded(position))

    def close(self) -> None:
        """Waits until all is written."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _encoded(position: Any) -> str:
    return json.dumps({"bytes": position.hex()} if isinstance(position, bytes) else {"json": position})


def _decoded(text: str) -> Any:
    found = json.loads(text)
    return bytes.fromhex(found["bytes"]) if "bytes" in found else found["json"]
