"""`loop`: a step over batches, several of them in one call of a compiled program."""

import types
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.module._display import show_array
from aerogel.module._paths import show_path
from aerogel.transform import jit, scan
from aerogel.transform._static import is_static
from aerogel.transform.loops import check_carry

from ._source import Positioned, positioned

_jax.exclude_from_tracebacks(__file__)

S = TypeVar("S")
_SLOT = "__aerogel_loop__"


def loop(
    step: Callable[[S, Any], tuple[S, Any]],
    state: S,
    batches: Iterable[Any],
    *,
    steps_per_call: int = 1,
    first_step: int = 0,
    donate: bool = True,
    numerics: str = "fast",
) -> "Loop[S]":
    """An iterator that does `state, out = step(state, batch)` for each of the batches, and gives what comes out.

    The step is compiled by `ag.jit`. Of `steps_per_call` batches with the same shapes it does all steps in one call of
    one program, which saves the time between the calls of short steps; what is left at the end, or stands before a
    batch of another shape, is done step by step. Each call's results come out stacked, `[steps, ...]`, for one step
    too, so that nothing else changes with `steps_per_call`. Calls return before they are computed: batches are read
    meanwhile.

    Args:
        step: a function of a state (any tree: a model, its optimiser, a key) and a batch, that returns the next state,
            of the same structure and types, and anything at all.
        state: the first state.
        batches: an iterable of trees; also a generator, which may be endless, or a `grain` dataset.
        steps_per_call: how many steps a call does.
        first_step: how many steps were done before, where a run is taken up again.
        donate: whether the next state takes the memory of the last one. Then neither `state` nor a `loop.state` of
            an earlier call can be used again: copy what is to be kept, `jax.tree.map(jnp.copy, loop.state)`.
        numerics: as for `ag.jit`.

    Errors in the step get a note that names the step and its batch. What was compiled is kept with a step that is a
    plain function: the loop of the next epoch uses it again.

    Raises:
        UsageError: `steps_per_call` is less than one, or `numerics` is another word; at a call, the step returns no
            pair.
        CarryError: at a call, the step returns a state of another structure.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> running = ag.loop(lambda total, x: (total + x, total), jnp.array(0.0), iter([1.0, 2.0, 3.0]), steps_per_call=2)
    >>> [out.tolist() for out in running]
    [[0.0, 1.0], [3.0]]
    >>> float(running.state), running.step
    (6.0, 3)
    """
    if not isinstance(steps_per_call, int) or steps_per_call < 1:
        raise UsageError(argument="steps_per_call", got=steps_per_call, wanted="one or more", function="loop")
    programs = {count: _program(step, count, donate, numerics) for count in {1, steps_per_call}}
    return Loop(programs, state, batches, first_step)


class Loop(Generic[S]):
    """The steps that `ag.loop` does, call by call.

    Attributes:
        state: the state after the last call.
        step: the number of steps that led to it.
        position: where the batches stand after these: what `get_state` of their iterator returned, for those of
            `grain`; None for iterators without such a method.
    """

    def __init__(self, programs: dict[int, Any], state: S, batches: Iterable[Any], first_step: int) -> None:
        self.state: S = state
        self.step = first_step
        self.position: Any = None
        self._programs = programs
        self._batches = positioned(batches)
        self._waiting: list[Positioned] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._fetch(max(self._programs))
        if not self._waiting:
            raise StopIteration
        count = len(self._waiting) if len(self._waiting) in self._programs and self._is_even() else 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        batches = [each.batch for each in taken]
        with _noting(self.step, batches):
            self.state, out = self._programs[count](self.state, batches)
        self.step += count
        self.position = taken[-1].position
        return out

    def _fetch(self, count: int) -> None:
        """Reads batches until there are so many, or one with other shapes."""
        while len(self._waiting) < count and self._is_even():
            found = next(self._batches, None)
            if found is None:
                return
            self._waiting.append(found)

    def _is_even(self) -> bool:
        """Whether the last batch that waits has the shapes of the first, and so of all of them."""
        return len(self._waiting) < 2 or _form(self._waiting[0].batch) == _form(self._waiting[-1].batch)


def _program(step: Callable[[Any, Any], Any], count: int, donate: bool, numerics: str) -> Any:
    """`count` steps, compiled. It is kept where it is dropped with the step, and cannot drop it: in the step."""
    kept = step.__dict__.setdefault(_SLOT, {}) if isinstance(step, types.FunctionType) else {}
    key = step, count, donate, numerics  # with itself: `functools.wraps` copies attributes to other functions
    if key not in kept:
        kept[key] = jit(_calling(step, count), donate_argnums=0 if donate else None, numerics=numerics)
    return kept[key]


def _calling(step: Callable[[Any, Any], Any], count: int) -> Callable[[Any, list[Any]], Any]:
    """`count` steps as one function; its results are stacked."""

    def one(state: Any, batch: Any) -> tuple[Any, Any]:
        found = step(state, batch)
        if not (isinstance(found, tuple | list) and len(found) == 2):
            wanted = "a function that returns the next state and a result: return (model, optimizer), loss"
            raise UsageError(argument="step", got=found, wanted=wanted, function="loop")
        check_carry("loop", state, found[0])
        return found[0], found[1]

    @_jax.like(step)
    def call(state: Any, batches: list[Any]) -> Any:
        if count == 1:
            state, out = one(state, batches[0])
            return state, jax.tree.map(lambda x: x if is_static(x) else jnp.asarray(x)[None], out)
        stacked = jax.tree.map(lambda *xs: xs[0] if is_static(xs[0]) else jnp.stack(xs), *batches)
        return scan(one, state, stacked, count)

    return call


def _form(batch: Any) -> Any:
    """What must be the same of batches that one call takes: structure, types, values that are no arrays."""
    leaves, structure = jax.tree.flatten(batch)
    return structure, [x if is_static(x) else (jnp.shape(x), jnp.result_type(x)) for x in leaves]


@contextmanager
def _noting(step: int, batches: list[Any]) -> Generator[None]:
    try:
        yield
    except BaseException as error:
        last = step + len(batches) - 1
        which = f"step {step}" if last == step else f"steps {step} to {last}"
        error.add_note(f"in {which} of `ag.loop`, with the batch {_shown(batches[0])}")
        raise


def _shown(batch: Any) -> str:
    """`batch['x']: f32[8,4], batch['y']: i32[8]`."""
    found = jax.tree_util.tree_leaves_with_path(batch)[:8]
    return ", ".join(f"{show_path(path, 'batch')}: {_type(x)}" for path, x in found) or "batch: nothing"


def _type(x: Any) -> str:
    return show_array(x) if hasattr(x, "dtype") and hasattr(x, "shape") else type(x).__name__
