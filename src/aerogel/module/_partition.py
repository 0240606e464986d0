"""Trees by halves and leaf by leaf: partition and combine, map, cast."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from ._frozen import is_inexact
from ._paths import show_path
from ._select import Where, leaf_mask
from ._steps import leaf_paths

T = TypeVar("T")


def partition(tree: T, where: Where | None) -> tuple[T, T]:
    """Two trees of the same structure: the leaves that `where` means, and the others; None where the other has one.

    JAX sees no leaf in a None, so gradients and optimiser states of one half are of that half only.

    Args:
        tree: any pytree.
        where: which leaves. `ag.trainable` means what is to be trained, `jax.Array` all of JAX's arrays.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> params, rest = ag.partition({"weight": jnp.ones(2), "name": "a"}, ag.trainable)
    >>> print(params, rest)
    {'name': None, 'weight': Array([1., 1.], dtype=float32)} {'name': 'a', 'weight': None}
    >>> ag.combine(params, rest)["name"]
    'a'
    """
    leaves, structure = jax.tree.flatten(tree)
    mask = leaf_mask(tree, where)
    meant = [leaf if is_meant else None for leaf, is_meant in zip(leaves, mask, strict=True)]
    others = [None if is_meant else leaf for leaf, is_meant in zip(leaves, mask, strict=True)]
    return jax.tree.unflatten(structure, meant), jax.tree.unflatten(structure, others)


def combine(*trees: T) -> T:
    """The tree whose leaves are those of the first tree that has one at their place: what `partition` took apart.

    So `ag.combine(new_params, model)` is the model with new parameters.

    Args:
        trees: trees of one structure, with None where they have no leaf. A None may also stand for a whole part.
    """
    result: Any = jax.tree.map(_first, *trees, is_leaf=_is_none) if trees else None
    return result


@overload
def map_leaves(function: Callable[[Any], Any], tree: T, *, where: Where | None = None) -> T: ...
@overload
def map_leaves(
    function: Callable[[str, Any], Any], tree: T, *, where: Where | None = None, with_path: Literal[True]
) -> T: ...
@overload
def map_leaves(
    function: Callable[..., Any], tree: T, *rest: Any, where: Where | None = None, with_path: bool = False
) -> T: ...
def map_leaves(
    function: Callable[..., Any],
    tree: T,
    *rest: Any,
    where: Where | None = None,
    with_path: bool = False,
) -> T:
    """The tree with `function` of each leaf that `where` means, and the others as they are.

    Args:
        function: is called with a leaf, and the leaves at the same place in `rest`.
        tree: any pytree.
        rest: trees of the same structure, or of a longer one.
        where: which leaves; all by default.
        with_path: whether `function` gets the path first, as text: "layers[0].weight".

    >>> import aerogel as ag
    >>> ag.map_leaves(lambda path, x: f"{path}={x}", {"a": [1, 2]}, where="a[1]", with_path=True)
    {'a': [1, "['a'][1]=2"]}
    """
    leaves, structure = jax.tree.flatten(tree)
    columns = [leaves, *(structure.flatten_up_to(each) for each in rest)]
    if with_path:
        columns.insert(0, [show_path(path) for path in leaf_paths(tree)])
    rows = zip(leaves, leaf_mask(tree, where), zip(*columns, strict=True), strict=True)
    return jax.tree.unflatten(structure, [function(*row) if is_meant else leaf for leaf, is_meant, row in rows])


def cast(tree: T, dtype: Any, where: Where | None = None) -> T:
    """The tree with floating-point leaves in another dtype. Integers, bools and keys stay, tied leaves stay tied.

    Complex leaves are cast to complex dtypes only: a real one would drop half of them.

    Args:
        tree: a tree of arrays, or of shapes.
        dtype: a floating-point or complex dtype.
        where: which leaves; all by default.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.cast({"x": jnp.ones(2), "n": jnp.arange(2)}, jnp.bfloat16)
    {'n': Array([0, 1], dtype=int32), 'x': Array([1, 1], dtype=bfloat16)}
    """
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    return map_leaves(lambda leaf: _cast(leaf, np.dtype(dtype), is_complex), tree, where=where)


def _cast(leaf: Any, dtype: Any, is_complex: bool) -> Any:
    if not is_inexact(leaf) or leaf.dtype == dtype:
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating) and not is_complex:
        return leaf
    return leaf.update(dtype=dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf.astype(dtype)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _is_none(value: Any) -> bool:
    return value is None
