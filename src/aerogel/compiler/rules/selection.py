"""The smallest or largest few of a sorted array, without the sort."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .anywhere import anywhere
from .extrema import cannot_block, in_blocks
from .on import on
from .operand import Operand
from .places import part, selected, sort_key, taken
from .ranks import highest_rank, lowest_rank
from .rule import Rule, rule
from .site import Site
from .sorting import sort_by_places

# Measured border: docs/reference/catalogue-order.md.
FEWEST = 160  # elements: below, the branch takes longer to start than the sort takes
# Of `top_k(x, 1)`: 8 x 1,000 take 2.4 times as long, 1 x 100,000 0.8 to 1, 500 x 500 0.4 to 0.7.
FEWEST_OF_ONE = 1 << 17
MOST = 16  # the part of an axis that is selected by `top_k`: one in so many
_REASON = "a selection passes over the array once or twice, a sort log(n) times"


def _rule_of(name: str) -> Callable[[Callable[..., Any]], Rule]:
    return rule(exactness="bitwise", reason=_REASON, name=name, stage="final", platforms=("cpu",))


@_rule_of("first-of-sorted")
def first_of_sorted(x: Any, *, axis: int = 0, k: int = 1) -> Any:
    """The `k` smallest in their order."""
    return part(jnp.sort(x, axis), axis, 0, k)


@first_of_sorted.to
def _(x: Any, *, axis: int, k: int) -> Any:
    sort = partial(first_of_sorted.before, axis=axis, k=k)
    if k == 1:
        return _or_unusual(x, jnp.min(x, axis, keepdims=True), axis, sort)
    found = lax.neg(_largest(lax.neg(x), axis, k)[0])
    return selected(x, found, found, sort)


@first_of_sorted.when
def _(x: Operand, *, axis: int, k: int, site: Site) -> bool | str:
    return _cannot_select(x, axis, k, site) or True


@_rule_of("last-of-sorted")
def last_of_sorted(x: Any, *, axis: int = 0, start: int = 3) -> Any:
    """The largest in their order: those from `start` on."""
    return part(jnp.sort(x, axis), axis, start, x.shape[axis])


@last_of_sorted.to
def _(x: Any, *, axis: int, start: int) -> Any:
    n = x.shape[axis]
    sort = partial(last_of_sorted.before, axis=axis, start=start)
    if start == n - 1:
        return _or_unusual(x, jnp.max(x, axis, keepdims=True), axis, sort)
    found = lax.rev(_largest(x, axis, n - start)[0], (axis,))
    return selected(x, found, found, sort)


@last_of_sorted.when
def _(x: Operand, *, axis: int, start: int, site: Site) -> bool | str:
    return _cannot_select(x, axis, x.shape[axis] - start, site) or True


@_rule_of("one-of-sorted")
def one_of_sorted(x: Any, *, axis: int = 0, place: int = 1) -> Any:
    """One alone that few are smaller than, or few larger: `sort(x)[-10]`, from which on the ten largest are."""
    return part(jnp.sort(x, axis), axis, place, place + 1)


@one_of_sorted.to
def _(x: Any, *, axis: int, place: int) -> Any:
    n = x.shape[axis]
    sort = partial(one_of_sorted.before, axis=axis, place=place)

    if place < n - place:
        found = part(lax.neg(_largest(lax.neg(x), axis, place + 1)[0]), axis, place, place + 1)
    else:
        found = part(_largest(x, axis, n - place)[0], axis, n - place - 1, n - place)
    return selected(x, found, found, sort)


@one_of_sorted.when
def _(x: Operand, *, axis: int, place: int, site: Site) -> bool | str:
    return _cannot_select(x, axis, min(place + 1, x.shape[axis] - place), site) or True


@_rule_of("first-of-argsorted")
def first_of_argsorted(x: Any, *, axis: int = 0, k: int = 1) -> Any:
    """The places of the `k` smallest in their order."""
    return part(jnp.argsort(x, axis), axis, 0, k)


@first_of_argsorted.to
def _(x: Any, *, axis: int, k: int) -> Any:
    sort = partial(first_of_argsorted.before, axis=axis, k=k)
    values, places = _largest(lax.neg(x), axis, k)
    return selected(x, values, _as_places(places), sort)


@first_of_argsorted.when
def _(x: Operand, *, axis: int, k: int, site: Site) -> bool | str:
    return _cannot_select(x, axis, k, site) or True


@_rule_of("last-of-argsorted")
def last_of_argsorted(x: Any, *, axis: int = 0, start: int = 3) -> Any:
    """The places of the largest in their order: of equal ones, those behind."""
    return part(jnp.argsort(x, axis), axis, start, x.shape[axis])


@last_of_argsorted.to
def _(x: Any, *, axis: int, start: int) -> Any:
    n = x.shape[axis]
    sort = partial(last_of_argsorted.before, axis=axis, start=start)
    values, places = _last_places(x, axis, n - start)
    return selected(x, values, _as_places(places), sort)


@last_of_argsorted.when
def _(x: Operand, *, axis: int, start: int, site: Site) -> bool | str:
    return _cannot_select(x, axis, x.shape[axis] - start, site) or True


@_rule_of("first-of-argsorted-down")
def first_of_argsorted_down(x: Any, *, axis: int = 0, start: int = 3) -> Any:
    """The places of the largest, the largest first: of equal ones, those in front. All but `start` of them.

    What is sorted is `x` from its end, of which the last are taken: only `start` stands in such a program.
    """
    return part(jnp.argsort(x, axis, descending=True), axis, 0, x.shape[axis] - start)


@first_of_argsorted_down.to
def _(x: Any, *, axis: int, start: int) -> Any:
    sort = partial(first_of_argsorted_down.before, axis=axis, start=start)
    values, places = _largest(x, axis, x.shape[axis] - start)
    return selected(x, values, _as_places(places), sort)


@first_of_argsorted_down.when
def _(x: Operand, *, axis: int, start: int, site: Site) -> bool | str:
    return _cannot_select(x, axis, x.shape[axis] - start, site) or True


for _one in (first_of_sorted, last_of_sorted, one_of_sorted, first_of_argsorted, last_of_argsorted):
    _one.begins = {"sort": None}
first_of_argsorted_down.begins = {"rev": None}


@on(
    lax.top_k_p,
    stage="final",
    platforms=("cpu",),
    exactness="bitwise",
    reason="the largest element alone is found by blocks",
    name="top-one-by-blocks",
)
def top_one(x: jax.Array, *, k: int, axis: int, site: Site, **others: Any) -> list[jax.Array] | str:
    """The largest element and its place."""
    if k != 1:
        return f"{k} elements, not one"
    refused = cannot_block(x, axis, site)
    if refused is not None:
        return refused
    if x.size < FEWEST_OF_ONE:
        return f"fewer than {FEWEST_OF_ONE} elements"
    largest = jnp.max(x, axis, keepdims=True)
    return list(
        lax.cond(
            _is_unusual(x, largest, axis),
            lambda x: tuple(lax.top_k_p.bind(x, k=k, axis=axis, **others)),
            lambda x: (largest, lax.expand_dims(in_blocks(x, axis, np.int32, True), (axis,))),
            x,
        )
    )


def extremum(x: jax.Array, axis: int, is_highest: bool) -> jax.Array:
    """The first or the last entry of a sort of floats, bit for bit: by the integers that order them where it must."""
    found = (jnp.max if is_highest else jnp.min)(x, axis, keepdims=True)
    ranked = highest_rank if is_highest else lowest_rank
    return _or_unusual(x, found, axis, lambda x: taken(x, ranked(sort_key(x), axis).place, axis))


def few_places(x: jax.Array, axis: int, start: int, stop: int) -> jax.Array:
    """Where the entries of some ranks stand: of the lowest ones, or of the highest.

    Args:
        x: float32.
        axis: of length n.
        start: 0, unless `stop` is n.
        stop: behind the last rank.
    """
    n = x.shape[axis]
    values, places = _last_places(x, axis, n - start) if stop == n else _largest(lax.neg(x), axis, stop)
    return selected(x, values, places, partial(_sorted_places, axis, start, stop))


def _sorted_places(axis: int, start: int, stop: int, x: jax.Array) -> jax.Array:
    places = lax.broadcasted_iota(np.int32, x.shape, axis)
    return part(sort_by_places([x, places], axis)[1], axis, start, stop)


def _last_places(x: jax.Array, axis: int, k: int) -> tuple[jax.Array, jax.Array]:
    # `top_k` takes those in front: it looks from the end.
    values, from_end = (lax.rev(found, (axis,)) for found in _largest(lax.rev(x, (axis,)), axis, k))
    return values, lax.sub(lax.full_like(from_end, x.shape[axis] - 1), from_end)


def _is_unusual(x: jax.Array, extremum: jax.Array, axis: int) -> jax.Array:
    """Whether there may be a nan, which `max` drops, or the extremum is a zero, of which there are two kinds.

    Zeros are looked at where one is an extremum: those that `relu` leaves are of one kind.
    """
    total = jnp.sum(x, axis)  # nan as well where both infinities are
    zeros = lax.cond(
        anywhere(extremum == 0),
        lambda x: jnp.any((extremum == 0) & (x == 0) & jnp.signbit(x)),
        lambda x: jnp.zeros((), bool),
        x,
    )
    return anywhere(jnp.any(total != total) | zeros)


def _or_unusual(x: jax.Array, extremum: jax.Array, axis: int, sort: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The extremum along an axis; or what `sort` gives, where its bits may be others."""
    return lax.cond(_is_unusual(x, extremum, axis), sort, lambda x: extremum, x)


def _cannot_select(x: Operand, axis: int, k: int, site: Site) -> str | None:
    n = x.shape[axis]
    if x.dtype != np.float32:
        return f"XLA selects from float32 alone, not from {x.dtype}"
    if x.size < FEWEST:
        return f"fewer than {FEWEST} elements"
    if k * MOST > n or k < 1:
        return f"{k} of {n} elements, more than one in {MOST}"
    return "its values may be spread over devices" if site.over_devices else None


def _largest(x: jax.Array, axis: int, k: int) -> tuple[jax.Array, jax.Array]:
    values, places = lax.top_k(x, k, axis=axis)
    return values, places


def _as_places(places: jax.Array) -> jax.Array:
    """Of the type that `argsort` gives places."""
    return lax.convert_element_type(places, jax.dtypes.canonicalize_dtype(np.int64))
