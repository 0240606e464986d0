"""Sums over time around a value that is known only when the loop has ended.

`sum((y - c) ** 2)` and `sum(exp(y - c))` cannot be summed up in the loop as they stand when `c` is the mean or the
maximum of all `y`: the variance and the logsumexp are two passes over the data. Both have one-pass forms that hold for
*any* `c` that does not vary along the summed dimensions:

    sum((y - c)^2)  = M2 + n * (mean - c)^2        (mean, M2) merged as in Chan, Golub, LeVeque 1983
    sum(exp(y - c)) = S * exp(m - c)               m the maximum so far, S = sum(exp(y - m))   (online softmax)

The gradient of a maximum counts its ties, `sum(y == max(y))`: the count so far starts anew at each larger value.
That of a variance sums up `a * (y - c)` with an `a` that does not vary along the sum either: `a * n * (mean - c)`, from
the moments that the variance itself has accumulated.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Monoid, Reduced
from ..axes.monoid import highest, lowest
from ..level import After
from ..program import Readers, is_var
from ..record import record
from .moments import MOMENTS, merged


@record
class Centered:
    """A value that is `value - center` (`form` "difference"), its square or its exponential; or `value == center`.

    `center` does not vary along time; `chain` are the places of the equations so far, `difference` the variable
    that the form was taken of. Ties (`form` "max ties" or "min ties") are counted over the dimensions `axes`.
    A difference may be multiplied by `factors`, or have its dimensions in another `order`.
    """

    value: Var
    center: Atom
    form: str
    chain: tuple[int, ...]
    var: Var
    difference: Var | None = None
    axes: tuple[int, ...] = ()
    factors: tuple["Factor", ...] = ()
    order: tuple[int, ...] | None = None


@record
class Factor:
    """A factor of a difference: `atom`, whose dimension `k` is dimension `dims[k]` of the product; or a sign."""

    atom: Atom | None
    dims: tuple[int, ...] = ()


def next_centered(
    eqn: JaxprEqn, index: int, centered: dict[Var, Centered], stacked: dict[Var, Any], late: After
) -> Centered | None:
    """What `eqn` makes of a stacked value and a late one, or of such a difference; None if neither."""
    name, out = eqn.primitive.name, eqn.outvars[0]
    if name == "eq":
        return _tie(eqn, index, stacked, late)
    if name == "sub":
        a, b = eqn.invars
        if not (is_var(a) and a in stacked and is_var(b) and b in late and b not in stacked and b not in centered):
            return None
        if not np.issubdtype(a.aval.dtype, np.floating):
            return None
        return Centered(a, b, "difference", (index,), out)
    link = centered.get(eqn.invars[0]) if is_var(eqn.invars[0]) else None
    if link is not None and link.form in TIES and name == "convert_element_type":
        return replace(link, chain=(*link.chain, index), var=out, difference=link.var)
    if name in ("mul", "neg"):
        scaled = _scaled(eqn, index, centered, late)
        if scaled is not None:
            return scaled
    if link is None or link.form != "difference" or link.factors or link.order:
        return None
    if name == "transpose":
        order = tuple(eqn.params["permutation"])
        return replace(link, chain=(*link.chain, index), var=out, difference=link.var, order=order)
    is_square = (
        name == "square"
        or (name == "integer_pow" and eqn.params["y"] == 2)
        or (name == "mul" and eqn.invars[0] is eqn.invars[1])
    )
    form = "square" if is_square else "exp" if name == "exp" else None
    return None if form is None else replace(link, form=form, chain=(*link.chain, index), var=out, difference=link.var)


def _scaled(eqn: JaxprEqn, index: int, centered: dict[Var, Centered], late: After) -> Centered | None:
    """The link of a difference with one more factor."""
    for a, b in (eqn.invars[:2], eqn.invars[::-1][:2]) if len(eqn.invars) == 2 else ((eqn.invars[0], None),):
        link = centered.get(a) if is_var(a) else None
        if link is None or link.form != "difference" or link.order or (b is not None and is_var(b) and b in centered):
            continue
        factor = Factor(None) if b is None else _factor(b, late)
        if factor is not None:
            return replace(link, chain=(*link.chain, index), var=eqn.outvars[0], factors=(*link.factors, factor))
    return None


def _factor(atom: Atom, late: After) -> Factor | None:
    """What is broadcast to a factor; None for one that may hold something else in each step."""
    if not atom.aval.shape:
        return Factor(atom)
    place = late.level.made_by.get(atom) if is_var(atom) else None
    maker = None if place is None else late.level.eqns[place]
    if maker is None or maker.primitive.name != "broadcast_in_dim":
        return None
    dims = tuple(int(d) for d in maker.params["broadcast_dimensions"])
    operand = maker.invars[0]
    full = all(n == atom.aval.shape[d] for n, d in zip(operand.aval.shape, dims, strict=True))
    return Factor(operand, dims) if full else None


TIES = {"max ties": ("reduce_max", lax.reduce_max, lax.max), "min ties": ("reduce_min", lax.reduce_min, lax.min)}
RESHAPES = ("reshape", "broadcast_in_dim", "squeeze", "expand_dims")


def _tie(eqn: JaxprEqn, index: int, stacked: dict[Var, Any], late: After) -> Centered | None:
    """The link of `y == c`, where `c` is the maximum or the minimum of `y`, reshaped."""
    for a, b in (eqn.invars, eqn.invars[::-1]):
        if not (is_var(a) and a in stacked and is_var(b) and b in late and b not in stacked):
            continue
        source = b
        while (place := late.level.made_by.get(source)) is not None:
            maker = late.level.eqns[place]
            for form, (name, _, _) in TIES.items():
                if maker.primitive.name == name and maker.invars[0] is a and stacked[a].axis.is_plain:
                    return Centered(a, b, form, (index,), eqn.outvars[0], None, tuple(maker.params["axes"]))
            if maker.primitive.name not in RESHAPES or not is_var(maker.invars[0]):
                break
            source = maker.invars[0]
    return None


def centered_sum(
    eqn: JaxprEqn, centered: dict[Var, Centered], stacked: dict[Var, Any], readers: Readers
) -> tuple[Reduced, Centered] | None:
    """How the sum `eqn` of squares or exponentials around a late center accumulates; None if it is no such sum."""
    if eqn.primitive.name != "reduce_sum" or not is_var(eqn.invars[0]):
        return None
    link = centered.get(eqn.invars[0])
    if link is None or link.order:
        return None
    axes = tuple(eqn.params["axes"])
    if stacked[link.value].axis.dim not in axes:
        return None
    if link.form in TIES:
        return _ties(eqn, link, readers) if link.difference is not None and axes == link.axes else None
    center_shape = link.center.aval.shape
    if not all(d >= len(center_shape) or center_shape[d] == 1 for d in axes):
        return None
    if link.form == "difference":
        varies = any(d in axes for factor in link.factors for d in factor.dims)
        return None if varies else (_differences(eqn, axes, link.factors), replace(link, chain=()))
    make = _squares if link.form == "square" else _exponentials
    if len(readers.get(link.var, ())) != 1:
        return make(eqn, axes), replace(link, chain=())
    difference = centered[link.difference] if link.difference is not None else link
    private = len(readers.get(difference.var, ())) == 1
    return make(eqn, axes), link if private else replace(link, chain=link.chain[1:])


def _ties(eqn: JaxprEqn, link: Centered, readers: Readers) -> tuple[Reduced, Centered]:
    """How the number of ties with the maximum accumulates, as a number of `eqn`'s type."""
    assert link.difference is not None
    _, reduce, better = TIES[link.form]
    dtype, axes = eqn.outvars[0].aval.dtype, link.axes
    wide = wide_of(dtype) if np.issubdtype(dtype, np.floating) else dtype
    private = len(readers.get(link.var, ())) == 1
    alone = private and len(readers.get(link.difference, ())) == 1

    def block(start: Any, size: int, y: Any) -> list[Any]:
        best = reduce(y, axes)
        kept = tuple(d for d in range(y.ndim) if d not in axes)
        ties = lax.eq(y, lax.broadcast_in_dim(best, y.shape, kept))
        return [best, lax.reduce_sum(lax.convert_element_type(ties, wide), axes)]

    def combine(a: Any, b: Any) -> Any:
        (m, n), (k, o) = a, b
        best = better(m, k)
        none = lax.full_like(n, 0)
        return best, lax.select(lax.eq(m, best), n, none) + lax.select(lax.eq(k, best), o, none)

    def finish(m: Any, n: Any, center: Any) -> list[Any]:
        return [lax.convert_element_type(n, dtype)]

    def identity(avals: Sequence[Any]) -> tuple[Any, ...]:
        m, n = avals
        worst = lowest(m.dtype) if link.form == "max ties" else highest(m.dtype)
        return lax.full(m.shape, worst, m.dtype), lax.full(n.shape, 0, n.dtype)

    chain = link.chain if alone else link.chain[1:] if private else ()
    return Reduced((None,), Monoid(link.form, combine, identity, False), block, finish), replace(link, chain=chain)


def center_of(center: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    """The center at the shape of the sum: the summed dimensions of it have size 1 or do not exist."""
    if center.ndim == 0:
        return lax.broadcast(center, shape)
    return lax.broadcast_in_dim(lax.squeeze(center, axes), shape, tuple(range(len(shape))))


SOFTMAX = "online softmax"


def _squares(eqn: JaxprEqn, axes: tuple[int, ...]) -> Reduced:
    """`sum((y - c)^2)`."""
    dtype = eqn.outvars[0].aval.dtype
    wide = wide_of(dtype)

    def finish(n: Any, base: Any, mean: Any, squares: Any, center: Any) -> list[Any]:
        off = (base - center_of(lax.convert_element_type(center, wide), axes, mean.shape)) + mean
        return [lax.convert_element_type(squares + n * off * off, dtype)]

    return _moments(axes, wide, finish)


def _differences(eqn: JaxprEqn, axes: tuple[int, ...], factors: Sequence[Factor]) -> Reduced:
    """`sum(a * b * ... * (y - c))`."""
    dtype = eqn.outvars[0].aval.dtype
    wide = wide_of(dtype)

    def finish(n: Any, base: Any, mean: Any, squares: Any, center: Any, *values: Any) -> list[Any]:
        # What is summed up here is the rounding of the center, mostly: `base + mean`, rounded, would be no better.
        total = n * ((base - center_of(lax.convert_element_type(center, wide), axes, mean.shape)) + mean)
        left = list(values)
        for factor in factors:
            if factor.atom is None:
                total = lax.neg(total)
                continue
            kept = [d - sum(axis < d for axis in axes) for d in factor.dims]
            value = lax.convert_element_type(left.pop(0), wide)
            total = total * lax.broadcast_in_dim(value, total.shape, kept)
        return [lax.convert_element_type(total, dtype)]

    return _moments(axes, wide, finish)


def _moments(axes: tuple[int, ...], wide: Any, finish: Callable[..., list[Any]]) -> Reduced:
    """Accumulates `(n, base, mean - base, squares around the mean)`."""

    def block(start: Any, size: int, y: Any) -> list[Any]:
        y = lax.convert_element_type(y, wide)
        n = int(np.prod([y.shape[d] for d in axes]))
        if n == 1:
            mean = lax.squeeze(y, axes)
            return [lax.full((), 1, wide), mean, lax.full_like(mean, 0), lax.full_like(mean, 0)]
        mean = lax.reduce_sum(y, axes) / np.asarray(n, wide)
        kept = tuple(d for d in range(y.ndim) if d not in axes)
        rest = y - lax.broadcast_in_dim(mean, y.shape, kept)
        return [lax.full((), n, wide), mean, lax.full_like(mean, 0), lax.reduce_sum(rest * rest, axes)]

    return Reduced((None,), merged(MOMENTS, lax.mul), block, finish)


def _exponentials(eqn: JaxprEqn, axes: tuple[int, ...]) -> Reduced:
    dtype = eqn.outvars[0].aval.dtype
    wide = wide_of(dtype)
    lowest = -np.inf

    def finite(m: Any) -> Any:
        # as in jax.nn.logsumexp: an infinite maximum is no center
        return lax.select(lax.is_finite(m), m, lax.full_like(m, 0))

    def block(start: Any, size: int, y: Any) -> list[Any]:
        y = lax.convert_element_type(y, wide)
        m = lax.reduce_max(y, axes)
        if np.prod([y.shape[d] for d in axes]) == 1:
            # exp(y - y), without the exponential; an infinite or undefined y gives exp(y)
            other = lax.select(lax.eq(m, lax.full_like(m, lowest)), lax.full_like(m, 0), m)
            return [m, lax.select(lax.is_finite(m), lax.full_like(m, 1), other)]
        kept = tuple(d for d in range(y.ndim) if d not in axes)
        return [m, lax.reduce_sum(lax.exp(y - lax.broadcast_in_dim(finite(m), y.shape, kept)), axes)]

    def combine(a: Any, b: Any) -> Any:
        (m, s), (k, t) = a, b
        # One of the two sums is scaled, by exp(smaller - larger maximum); equal infinities are no distance apart.
        far = lax.select(lax.eq(m, k), lax.full_like(m, 0), lax.abs(m - k))
        shrink = lax.exp(-far)
        first = lax.ge(m, k)
        return lax.max(m, k), lax.select(first, s + t * shrink, s * shrink + t)

    def finish(m: Any, s: Any, center: Any) -> list[Any]:
        base = center_of(lax.convert_element_type(center, wide), axes, m.shape)
        return [lax.convert_element_type(s * lax.exp(finite(m) - base), dtype)]

    def identity(avals: Sequence[Any]) -> tuple[Any, ...]:
        m, s = avals
        return lax.full(m.shape, lowest, m.dtype), lax.full(s.shape, 0, s.dtype)

    return Reduced((None,), Monoid(SOFTMAX, combine, identity), block, finish)


def wide_of(dtype: Any) -> Any:
    """The type that sums of a type are accumulated in."""
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)
