"""`prefetch`: batches that are read, and brought to the device, before they are asked for."""

import threading
import weakref
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aerogel._errors import UsageError
from aerogel.transform._static import is_static

from ._source import Positioned, positioned


def prefetch(batches: Iterable[Any], size: int = 2, *, sharding: Any = None) -> "Prefetched":
    """An iterator over the same batches, of which a thread reads up to `size` ahead and puts them on the device.

    An error of the source is raised where its batch would have come. Whoever stops early need not clean up: the thread
    ends with the iterator, or with `close`, and never keeps Python from exiting.

    Args:
        batches: any iterable: a generator, a loader of PyTorch's, a `grain` dataset.
        size: how many batches may wait.
        sharding: a device or sharding for their arrays; by default JAX's own choice, and arrays that are spread over
            several processes stay where they are. Of a sharding over several processes, each puts the parts of its
            own devices there: all of them have the same batch, of which they need to know no more than these.

    Raises:
        UsageError: `size` is less than one.

    >>> import numpy as np, aerogel as ag
    >>> [float(batch["x"].sum()) for batch in ag.prefetch({"x": np.ones(n)} for n in range(3))]
    [0.0, 1.0, 2.0]
    """
    if size < 1:
        raise UsageError(argument="size", got=size, wanted="one or more", function="prefetch")
    return Prefetched(batches, size, sharding)


class _End(NamedTuple):
    """The end of a source: of itself, or by an error."""

    error: BaseException | None


class _Channel:
    """What the thread and the iterator share. The thread does not know the iterator, which may so be dropped."""

    def __init__(self, size: int) -> None:
        self.ready: SimpleQueue[Positioned | _End] = SimpleQueue()
        self.free = threading.Semaphore(size)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        self.free.release()

    def may_read(self) -> bool:
        """Waits for a free place. False when the channel is closed."""
        self.free.acquire()
        return not self.is_closed


class Prefetched(Iterator[Any]):
    """The batches that `ag.prefetch` reads ahead."""

    def __init__(self, batches: Iterable[Any], size: int, sharding: Any) -> None:
        self._position: Any = None
        self._channel = _Channel(size)
        self.close = weakref.finalize(self, self._channel.close)
        threading.Thread(target=_fill, args=(self._channel, batches, sharding), daemon=True, name="prefetch").start()

    def __next__(self) -> Any:
        if not self.close.alive:
            raise StopIteration
        found = self._channel.ready.get()
        if isinstance(found, _End):
            self.close()
            raise StopIteration if found.error is None else found.error
        self._channel.free.release()
        self._position = found.position
        return found.batch

    def get_state(self) -> Any:
        """The position of the source behind the last batch that came out, not behind what was read ahead."""
        return self._position


def _fill(channel: _Channel, batches: Iterable[Any], sharding: Any) -> None:
    try:
        source = positioned(batches)
        while channel.may_read():
            found = next(source, None)
            if found is None:
                break
            channel.ready.put(Positioned(_placed(found.batch, sharding), found.position))
        end = _End(None)
    except BaseException as error:  # noqa: BLE001 - it is raised where the batch is asked for
        end = _End(error)
    channel.ready.put(end)


def _placed(batch: Any, sharding: Any) -> Any:
    leaves, structure = jax.tree.flatten(batch)
    put = iter(jax.device_put([x for x in leaves if _is_for_here(x, sharding)], sharding))
    return structure.unflatten([next(put) if _is_for_here(x, sharding) else _spread(x, sharding) for x in leaves])


def _is_for_here(x: Any, sharding: Any) -> bool:
    """Whether an array is and will be on devices of this process alone."""
    return not is_static(x) and all(getattr(each, "is_fully_addressable", True) for each in (x, sharding))


def _spread(x: Any, sharding: Any) -> Any:
    """A leaf that is no array, or one of several processes.

    `device_put` would first compare what they have: a word between processes, here in a thread beside the steps, whose
    own words to each other it would meet in another order in each of them.
    """
    if is_static(x) or sharding is None or isinstance(x, jax.Array):
        return x if is_static(x) or sharding is None else jax.device_put(x, sharding)
    x = np.asarray(x, jnp.result_type(x))
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
