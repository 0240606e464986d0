"""Sums of products under a mask, `sum(where(m, x * y, 0))`: the mask is where no product of matrices takes it.

A mask that does not vary along what is summed over goes behind the sum. One that varies along dimensions of both
factors alone goes to each of them: in one of them only, an infinity of the other would meet a zero.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..known.records import Constant, Facts, Repeated, Spread, the
from ..level import Level
from ..program import Builder, is_var
from ..record import record


@record
class Masked:
    """A value, or zeros where a mask of the same shape says so.

    Attributes:
        source: what the mask repeats.
        along: for each of the source's dimensions the one of the mask along which it lies, -1 if of size 1.
        case: the value.
        kept: what the mask is where the value is left as it is.
        varies: the dimensions along which the mask varies.
    """

    source: Var
    along: tuple[int, ...]
    case: Atom
    kept: bool
    varies: frozenset[int]


def with_mask_behind(level: Level, facts: Facts, eqn: JaxprEqn, builder: Builder) -> tuple[Atom, set[Var]] | None:
    """What stands for a sum whose masks are behind it or in its factors, and the sum in it; None if it has none."""
    (x,), axes = eqn.invars, [int(d) for d in eqn.params["axes"]]
    made = _alone(level, x)
    masked = None if made is None else _masked(facts, made)
    if masked is not None and masked.varies.isdisjoint(axes):
        return _behind(builder, eqn, masked, masked.case, axes)
    if masked is not None:
        product = _alone(level, masked.case)
        return None if product is None else _in_factors(facts, builder, eqn, masked, product)
    if made is None or made.primitive.name != "mul":
        return None
    for factor, other in (made.invars, made.invars[::-1]):
        inner = level.maker(factor)  # the derivative of a product under a mask reads it twice
        masked = None if inner is None else _masked(facts, inner)
        if masked is None or masked.case.aval.shape != x.aval.shape:
            continue
        if masked.varies.isdisjoint(axes):
            (bare,) = builder.call(lax.mul, masked.case, other)
            return _behind(builder, eqn, masked, bare, axes)
        if masked.varies.issubset(_varies(facts, masked.case)):
            return _multiplied(builder, eqn, _on(facts, builder, masked, masked.case, x.aval.shape), other)
    return None


def _alone(level: Level, x: Atom) -> JaxprEqn | None:
    """The equation that makes a value for one reader."""
    return level.maker(x) if is_var(x) and len(level.readers(x)) == 1 else None


def _masked(facts: Facts, eqn: JaxprEqn) -> Masked | None:
    """What an equation leaves of a value; None if it is no choice between that and zeros."""
    if eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
        return None
    which, *cases = eqn.invars
    zeros = [k for k, x in enumerate(cases) if (c := the(Constant, facts.of(x))) and c.value == 0]
    if len(zeros) != 1 or not is_var(which) or which.aval.dtype != np.bool_:
        return None
    if which.aval.shape != eqn.outvars[0].aval.shape:
        return None
    spread = the(Spread, facts.of(which)) or Spread(which, tuple(range(len(which.aval.shape))))
    return Masked(spread.source, spread.along, cases[1 - zeros[0]], not zeros[0], frozenset(_varies(facts, which)))


def _varies(facts: Facts, x: Atom) -> list[int]:
    known = facts.of(x)
    return [d for d, n in enumerate(x.aval.shape) if n > 1 and Repeated(d) not in known]


def _behind(
    builder: Builder, eqn: JaxprEqn, masked: Masked, bare: Atom, axes: Sequence[int]
) -> tuple[Atom, set[Var]] | None:
    """The sum of what a mask is on, and then the mask."""
    (total,) = builder.call(lambda v: lax.reduce_sum(v, axes), bare)

    kept = [d for d in range(len(eqn.invars[0].aval.shape)) if d not in axes]
    places = [kept.index(d) if d in kept else -1 for d in masked.along]
    (result,) = builder.call(lambda which, total: _chosen(masked, which, places, total), masked.source, total)
    return (result, {total}) if is_var(total) else None


def _chosen(masked: Masked, which: Any, places: Sequence[int], value: Any) -> Any:
    """A value where a mask, whose dimensions lie along `places` of it, leaves it, and zeros elsewhere."""
    which = _laid(which, places, value.shape)
    zeros = lax.full_like(value, 0)
    return lax.select(which, value, zeros) if masked.kept else lax.select(which, zeros, value)


def _in_factors(
    facts: Facts, builder: Builder, eqn: JaxprEqn, masked: Masked, product: JaxprEqn
) -> tuple[Atom, set[Var]] | None:
    """The sum of the product of two factors that are masked each."""
    shape = eqn.invars[0].aval.shape
    if product.primitive.name != "mul" or any(len(x.aval.shape) != len(shape) for x in product.invars):
        return None
    if not all(masked.varies.issubset(_varies(facts, x)) for x in product.invars):
        return None
    one, other = (_on(facts, builder, masked, x, shape) for x in product.invars)
    return _multiplied(builder, eqn, one, other)


def _on(facts: Facts, builder: Builder, masked: Masked, x: Atom, shape: Sequence[int]) -> Atom:
    """A value under a mask that varies along dimensions of its own, before it is repeated to `shape`."""
    own = x.aval.shape
    once = [d for d, n in enumerate(own) if n == 1 or Repeated(d) in facts.of(x)]
    spread = the(Spread, facts.of(x))
    source, along = (x, range(len(own))) if spread is None else (spread.source, spread.along)

    def chosen(which: Any, v: Any) -> Any:
        v = _laid(v, along, [1 if d in once else n for d, n in enumerate(own)])
        return lax.broadcast_in_dim(_chosen(masked, which, masked.along, v), shape, range(len(shape)))

    return builder.call(chosen, masked.source, source)[0]


def _laid(v: Any, places: Sequence[int], shape: Sequence[int]) -> Any:
    """A value whose dimensions lie along `places` of a shape, -1 if of size 1; where that has size 1, cut to it."""
    for k, place in enumerate(places):
        v = lax.slice_in_dim(v, 0, 1, axis=k) if place < 0 or shape[place] == 1 else v
    v = lax.squeeze(v, [k for k, place in enumerate(places) if place < 0])
    kept = [place for place in places if place >= 0]
    v = lax.transpose(v, sorted(range(len(kept)), key=lambda k: kept[k]))
    return lax.broadcast_in_dim(v, shape, sorted(kept))


def _multiplied(builder: Builder, eqn: JaxprEqn, *factors: Atom) -> tuple[Atom, set[Var]] | None:
    (total,) = builder.call(lambda *xs: lax.reduce_sum(lax.mul(*xs), eqn.params["axes"]), *factors)
    return (total, {total}) if is_var(total) else None
