"""Surgery and comparison of trees, by Equinox's names."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel._errors import clip
from aerogel.module import Module
from aerogel.module._display import show
from aerogel.module._edit import edited
from aerogel.module._form import MISSING
from aerogel.module._inference import with_inference
from aerogel.module._paths import Path
from aerogel.module._steps import home, is_node, part, parts_below, static_keys, value_at

from ._errors import CompatError
from ._leaves import is_array

_NOTHING: Any = object()
IsLeaf = Callable[[Any], bool] | None


class _Leaf:
    """Stands in a copy of a tree for one leaf, so that each leaf is an object of its own."""


def tree_at(
    where: Callable[[Any], Any],
    pytree: Any,
    replace: Any = _NOTHING,
    replace_fn: Callable[[Any], Any] = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:
    """The tree with other parts in the places that `where` returns: `ag.at` with a function of the tree.

    `where` is given a copy in which nothing has a value, and returns one part of it or a sequence of parts. Parts that
    are structure of an Aerogel module (a number, a function, an option) can be replaced as well.

    Args:
        where: from the tree to a part of it, or several.
        pytree: any tree.
        replace: the new part, or as many as `where` returns.
        replace_fn: from an old part to the new one.
        is_leaf: which other nodes `where` sees as leaves; `lambda x: x is None` to replace a None.

    Raises:
        CompatError: not one of `replace` and `replace_fn` is given, or `where` returns something that is no part of
            the tree, or not as many parts as `replace` has.
    """
    if (replace is _NOTHING) == (replace_fn is _NOTHING):
        raise CompatError(
            what="`tree_at` takes one of `replace` and `replace_fn`.",
            place="tree_at",
            got="neither" if replace is _NOTHING else "both",
            to_fix="replace=value, or replace_fn=function of the old part",
        )
    copy = _with_leaves(pytree, is_leaf)
    places = _places(copy)
    found = where(copy)
    is_one = id(found) in places
    parts = [found] if is_one else jax.tree.leaves(found, is_leaf=lambda x: x is None or id(x) in places)
    if not all(id(each) in places for each in parts):
        stray = next(each for each in parts if id(each) not in places)
        raise CompatError(
            what="`where` must return parts of the tree, and nothing that depends on the values of its leaves.",
            place="tree_at, argument `where`",
            got=clip(stray),
            to_fix="return parts as they stand; to replace a None: is_leaf=lambda x: x is None",
        )
    paths = [places[id(each)] for each in parts]
    if replace_fn is not _NOTHING:
        values = [replace_fn(value_at(pytree, path)) for path in paths]
    else:
        values = [replace] if is_one else list(replace)
    if len(values) != len(paths):
        raise CompatError(
            what="`replace` must have as many parts as `where` returns.",
            place="tree_at, argument `replace`",
            got=f"{len(values)} parts",
            wanted=str(len(paths)),
            to_fix="pass a sequence with a part for each; `where` gives a sequence for one part too if it returns one",
        )
    changes = {home(pytree, path)[0]: value for path, value in zip(paths, values, strict=True)}
    return changes[()] if () in changes else edited(pytree, changes)


def _with_leaves(tree: Any, is_leaf: IsLeaf) -> Any:
    """A copy with a `_Leaf` for each leaf, and for what Equinox would take for one: structure of modules of ours."""
    copy = jax.tree.map(lambda _: _Leaf(), tree, is_leaf=is_leaf)
    structure = {
        path: jax.tree.map(lambda _: _Leaf(), value, is_leaf=is_leaf)
        for path, value in _structure(copy, ())
        if value is not None or (is_leaf is not None and is_leaf(None))
    }
    return edited(copy, structure) if structure else copy


def _structure(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The structure in modules, outside of fields that are declared static: their value may decide what to return."""
    if isinstance(node, Module):
        declared = {f.name for f in dataclasses.fields(node) if _is_declared_static(f)}
        yield from (((*path, k), part(node, k)) for k in static_keys(node) if getattr(k, "name", None) not in declared)
    for key, value in parts_below(node):
        if value is not MISSING:
            yield from _structure(value, (*path, key))


def _is_declared_static(declared: Any) -> bool:
    return getattr(declared.metadata.get("aerogel"), "static", False)


def _places(copy: Any) -> dict[int, Path]:
    found: dict[int, Path] = {}

    def walk(node: Any, path: Path) -> None:
        if node is None or node == () or id(node) in found:  # Python has one of each
            return
        found[id(node)] = path
        for key, value in parts_below(node):
            if value is not MISSING:
                walk(value, (*path, key))
        for key in static_keys(node) if isinstance(node, Module) else ():
            value = part(node, key)
            if is_node(value) or isinstance(value, _Leaf):
                walk(value, (*path, key))

    walk(copy, ())
    return found


def tree_inference(pytree: Any, value: bool = True) -> Any:
    """The tree with another value in every attribute that is called `inference`."""
    return with_inference(pytree, value)


def tree_equal(*pytrees: Any, typematch: bool = False, rtol: Any = 0.0, atol: Any = 0.0) -> Any:
    """Whether all trees have one structure and equal leaves: a bool, or an array where arrays are compared.

    Args:
        pytrees: any trees.
        typematch: whether the types of leaves must be the same; else arrays of JAX and of NumPy may be equal.
        rtol: for inexact arrays, as for `jax.numpy.allclose`.
        atol: the same.
    """
    leaves, structure = jax.tree.flatten(pytrees[0])
    result: Any = True
    for other in pytrees[1:]:
        others, other_structure = jax.tree.flatten(other)
        if structure != other_structure:
            return False
        for one, two in zip(leaves, others, strict=True):
            same = _is_equal(one, two, typematch, rtol, atol)
            if same is False:
                return False
            result = same if result is True else result & same
    return result


def _is_equal(one: Any, two: Any, typematch: bool, rtol: Any, atol: Any) -> Any:
    if (typematch and type(one) is not type(two)) or is_array(one) != is_array(two):
        return False
    if not is_array(one):
        return bool(one == two)
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    on_host = not (isinstance(one, jax.Array) or isinstance(two, jax.Array))
    xp: Any = np if on_host else jnp
    exact = (type(rtol) in (int, float) and rtol == 0 and type(atol) in (int, float) and atol == 0) or (
        not jnp.issubdtype(one.dtype, jnp.inexact)
    )
    found = xp.all(one == two) if exact else xp.allclose(one, two, rtol=rtol, atol=atol)
    return bool(found) if on_host else found


def tree_flatten_one_level(pytree: Any) -> tuple[list[Any], Any]:
    """The children of a node, and its structure; a leaf is its own child."""
    return jax.tree.flatten(pytree, is_leaf=lambda node: node is not pytree)


class _Whole:
    """An array that is shown with its entries."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __repr__(self) -> str:
        return repr(self.array)


def tree_pformat(pytree: Any, *, short_arrays: bool = True, **options: Any) -> str:
    """The tree as text, as Aerogel shows modules: arrays by dtype and shape, or with their entries.

    Other options of Equinox have no effect.
    """
    return show(pytree if short_arrays else jax.tree.map(_Whole, pytree))


def tree_pprint(pytree: Any, **options: Any) -> None:
    """Prints `tree_pformat` of the tree."""
    print(tree_pformat(pytree, **options))  # noqa: T201


def apply_updates(model: Any, updates: Any) -> Any:
    """The model with the updates added, where they are not None."""
    return jax.tree.map(lambda u, p: p if u is None else p + u, updates, model, is_leaf=lambda u: u is None)
