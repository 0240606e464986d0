"""Checkpoints of Orbax's: for states that are spread over devices and processes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel.module._paths import show_path
from aerogel.module.files._spec import implementation, is_key
from aerogel.transform._static import is_static

from ._errors import imported


class OrbaxStore:
    """A `CheckpointManager` of Orbax's over the arrays of a state, by their paths."""

    def __init__(self, folder: str, keep: int) -> None:
        self._orbax = imported("orbax.checkpoint", "ag.Checkpoints(..., backend='orbax')")
        options = self._orbax.CheckpointManagerOptions(max_to_keep=keep)
        self._manager = self._orbax.CheckpointManager(folder, options=options)

    def steps(self) -> tuple[int, ...]:
        """The steps that are there, or being written."""
        return tuple(sorted(self._manager.all_steps()))

    def write(self, step: int, state: Any, position: str) -> None:
        """Copies the arrays to the host, and writes them while the program goes on."""
        args = self._orbax.args
        arrays = {path: _data(leaf) for path, leaf in _leaves(state).items()}
        parts = args.Composite(state=args.StandardSave(arrays), position=args.JsonSave({"position": position}))
        self._manager.save(step, args=parts)

    def read(self, step: int, like: Any) -> tuple[Any, str]:
        """A state and its position."""
        args = self._orbax.args
        self._manager.wait_until_finished()
        shapes = {path: _shape(_data(leaf)) for path, leaf in _leaves(like).items()}
        parts = args.Composite(state=args.StandardRestore(shapes), position=args.JsonRestore())
        found = self._manager.restore(step, args=parts)
        state = jax.tree_util.tree_map_with_path(lambda path, leaf: _like(leaf, found.state.get(show_path(path))), like)
        return state, found.position["position"]

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()


def _leaves(tree: Any) -> dict[str, Any]:
    return {show_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if not is_static(leaf)}


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and is_key(leaf)


def _data(leaf: Any) -> Any:
    """What stands for a leaf in a checkpoint: the data of keys, arrays for numbers."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _key_shape(leaf) if _is_key(leaf) else leaf
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _key_shape(keys: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """That of the keys' data, whose own axes come last, where no sharding divides them."""
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(keys.shape, keys.dtype))
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=keys.sharding)


def _shape(data: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=getattr(data, "sharding", None))


def _like(leaf: Any, found: Any) -> Any:
    """What was found, as what `leaf` is."""
    if is_static(leaf):
        return leaf
    if _is_key(leaf):
        return jax.random.wrap_key_data(found, impl=implementation(leaf))
    if isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(found)
    return jnp.asarray(found) if hasattr(leaf, "dtype") else type(leaf)(found)
