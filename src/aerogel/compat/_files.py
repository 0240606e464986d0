"""Leaves one after the other in a file, each in NumPy's format: Equinox's files, in and out.

`ag.save` and `ag.load` are better at this: they know paths, check before they read, and never leave half a file.
"""

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel.module._display import show_type
from aerogel.module._paths import show_path

from ._errors import CompatError
from ._leaves import is_array, is_array_like

Spec = Callable[[Any, Any], Any]
IsLeaf = Callable[[Any], bool] | None


def default_serialise_filter_spec(f: Any, x: Any) -> None:
    """Writes an array or a number to a file, and nothing for other leaves."""
    if isinstance(x, np.ndarray):
        np.save(f, x)
    elif is_array_like(x):
        jnp.save(f, x)


def default_deserialise_filter_spec(f: Any, x: Any) -> Any:
    """Reads an array or a number like `x` from a file; other leaves are `x`."""
    if isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        return jnp.load(f)
    if isinstance(x, np.ndarray):
        return np.load(f)
    if isinstance(x, jnp.bfloat16):
        return np.load(f).view(jnp.bfloat16)[()]
    return type(x)(np.load(f).item()) if is_array_like(x) else x


def tree_serialise_leaves(
    path_or_file: Any, pytree: Any, filter_spec: Any = default_serialise_filter_spec, is_leaf: IsLeaf = None
) -> None:
    """Writes the leaves of a tree to a file.

    The structure of Aerogel modules is not in it: where Equinox has a leaf for a number or an option of a module, this
    has none. Files that Equinox wrote of `eqx.filter(model, eqx.is_array)` can be read; those of a whole model can if
    these fields are declared static.

    Args:
        path_or_file: a path, ".eqx" is added to one without a suffix; or a binary file.
        pytree: any tree.
        filter_spec: writes a leaf to a file: a function, or a tree of these that begins like the tree.
        is_leaf: which other nodes are leaves.
    """
    with _opened(path_or_file, "wb") as file:

        def write(spec: Spec, part: Any) -> None:
            for leaf in jax.tree.leaves(part, is_leaf=is_leaf):
                spec(file, leaf)

        jax.tree.map(write, filter_spec, pytree)


def tree_deserialise_leaves(
    path_or_file: Any, like: Any, filter_spec: Any = default_deserialise_filter_spec, is_leaf: IsLeaf = None
) -> Any:
    """The tree whose leaves stand in a file. Nothing in the file is executed.

    Args:
        path_or_file: a path, or a binary file.
        like: a tree of the structure, shapes and dtypes that were written; shapes stand for arrays.
        filter_spec: from a file and a leaf to what is read in its place: a function, or a tree of these.
        is_leaf: which other nodes are leaves.

    Raises:
        CompatError: a leaf has another type, shape or dtype than in `like`.
        ValueError, EOFError: what is in the file is no array of NumPy's format, or it ends early.
    """
    with _opened(path_or_file, "rb") as file:

        def read(spec: Spec, part: Any) -> Any:
            leaves, structure = jax.tree.flatten(part, is_leaf=is_leaf)
            return structure.unflatten([spec(file, leaf) for leaf in leaves])

        found = jax.tree.map(read, filter_spec, like)
    jax.tree_util.tree_map_with_path(_check, found, like, is_leaf=is_leaf)
    return found


def _check(path: Any, new: Any, old: Any) -> None:
    def type_of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            return jax.Array, leaf.shape, leaf.dtype
        return (type(leaf), leaf.shape, leaf.dtype) if is_array(leaf) else type(leaf)

    if type_of(new) != type_of(old):
        got, wanted = type_of(new), type_of(old)
        raise CompatError(
            what="a leaf has another type, shape or dtype in the file than in `like`.",
            place=f"tree_deserialise_leaves, {show_path(path, 'tree')}",
            got=_told(got),
            wanted=_told(wanted),
            to_fix="pass a `like` of the structure and types that were written",
        )


def _told(kind: Any) -> str:
    if isinstance(kind, type):
        return kind.__name__
    cls, shape, dtype = kind
    return show_type(str(dtype), shape) + ("" if cls is jax.Array else f" of {cls.__module__}")


@contextlib.contextmanager
def _opened(path_or_file: Any, mode: str) -> Generator[Any]:
    if not isinstance(path_or_file, str | Path):
        yield path_or_file
        return
    path = Path(path_or_file)
    with (path if path.suffix else path.with_suffix(".eqx")).open(mode) as file:
        yield file
