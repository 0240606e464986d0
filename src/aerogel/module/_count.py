"""How many parameters a tree has."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, overload

import jax

from ._frozen import is_inexact, state_mask
from ._paths import show_path
from ._select import Where, leaf_mask

By = Literal["part", "dtype"] | Callable[[str, Any], Any]


@overload
def count_params(tree: Any, where: Where | None = None, by: None = None) -> int: ...
@overload
def count_params(tree: Any, where: Where | None = None, *, by: Literal["part", "dtype"]) -> dict[str, int]: ...
@overload
def count_params(tree: Any, where: Where | None = None, *, by: Callable[[str, Any], Any]) -> dict[Any, int]: ...
def count_params(tree: Any, where: Where | None = None, by: By | None = None) -> int | dict[Any, int]:
    """The number of floating-point numbers in a tree. What is tied counts once.

    Integers and keys are no parameters, and neither are the values of variables: nothing is trained that a forward
    pass sets. What is frozen is counted; for what is not, `where` is `ag.trainable`.

    Args:
        tree: a tree of arrays, or of shapes.
        where: which leaves count: `ag.trainable`, "encoder", ...
        by: "part" for a count for each first step of the paths, "dtype" for one for each dtype, or a function of path
            and leaf whose results are counted for.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> model = {"a": [jnp.ones((2, 3)), jnp.ones(4)], "b": jnp.ones(5), "step": jnp.array(1)}
    >>> ag.count_params(model), ag.count_params(model, "a"), ag.count_params(model, by="part")
    (15, 10, {"['a']": 10, "['b']": 5})
    """
    counts: Counter[Any] = Counter()
    masks = leaf_mask(tree, where), state_mask(tree)
    for (path, leaf), is_meant, is_state in zip(jax.tree.leaves_with_path(tree), *masks, strict=True):
        if is_meant and is_inexact(leaf) and not is_state:
            counts[_group(path, leaf, by)] += math.prod(leaf.shape)
    return counts.total() if by is None else dict(counts)


def _group(path: Any, leaf: Any, by: By | None) -> Any:
    if by == "part":
        return show_path(path[:1])
    if by == "dtype":
        return str(leaf.dtype)
    return by(show_path(path), leaf) if callable(by) else None
