"""Trees by halves, by masks: a mask is a bool, a predicate on leaves, or a tree of these that begins like the tree."""

from collections.abc import Callable
from typing import Any

import jax

from aerogel._errors import clip
from aerogel.module._methods import with_methods

from ._errors import CompatError

IsLeaf = Callable[[Any], bool] | None


def filter(pytree: Any, filter_spec: Any, inverse: bool = False, replace: Any = None, is_leaf: IsLeaf = None) -> Any:
    """The tree with `replace` for each leaf that the mask does not mean; with `inverse`, that it does mean.

    Raises:
        CompatError: the mask holds something else than bools and predicates.
    """
    pytree = with_methods(pytree)
    mask = _mask(pytree, filter_spec, is_leaf)
    return jax.tree.map(lambda meant, x: x if bool(meant) != bool(inverse) else replace, mask, pytree)


def partition(pytree: Any, filter_spec: Any, replace: Any = None, is_leaf: IsLeaf = None) -> tuple[Any, Any]:
    """The leaves that the mask means, and the others: two trees with `replace` where the other has the leaf.

    Raises:
        CompatError: the mask holds something else than bools and predicates.
    """
    pytree = with_methods(pytree)
    mask = _mask(pytree, filter_spec, is_leaf)
    meant = jax.tree.map(lambda is_meant, x: x if is_meant else replace, mask, pytree)
    return meant, jax.tree.map(lambda is_meant, x: replace if is_meant else x, mask, pytree)


def combine(*pytrees: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree with, at each place, the first leaf that is not None."""

    def stops(x: Any) -> bool:
        return x is None or (is_leaf is not None and is_leaf(x))

    return jax.tree.map(lambda *xs: next((x for x in xs if x is not None), None), *pytrees, is_leaf=stops)


def _mask(pytree: Any, filter_spec: Any, is_leaf: IsLeaf) -> Any:
    def below(spec: Any, part: Any) -> Any:
        if isinstance(spec, bool):
            return jax.tree.map(lambda _: spec, part, is_leaf=is_leaf)
        if callable(spec):
            return jax.tree.map(spec, part, is_leaf=is_leaf)
        raise CompatError(
            what="a mask consists of bools and of functions from leaves to bools.",
            place="argument `filter_spec`",
            got=clip(spec),
            to_fix="pass a predicate such as eqx.is_array, or a tree of bools that begins like the tree",
        )

    return jax.tree.map(below, filter_spec, pytree)
