"""Running statistics: how one more step joins the accumulators of a loop, in updates that need no copy of them.

A merge of two partial results (`Monoid.combine`) computes each accumulator from all old ones. In a loop that costs more
than its arithmetic: XLA updates a carry in place, and where two updates read the same old carry it copies that carry
in every step first (jaxlib 0.10.2, CPU: up to half the time of a running variance, and a buffer). Here an update reads,
of what the others change, what they have written already:

    n' = n + k;  mean' = mean + (y - mean) * k / n'      for k new values with mean y and squares m2 around it
    M2' = M2 + m2 + (y - mean')^2 * k * n' / (n' - k)    Welford's form, of distances from the first y
    at' = t where y beats best, else at;                 best' = y where at' = t, else best
    s' = s * exp(m - max(m, y)) + ...;                   m' = max(m, y), made to wait for s'

Steps come in order: the first of equal values is known without comparing indices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from ..axes import Monoid
from ..axes.monoid import highest
from ..record import record
from .centered import SOFTMAX, TIES
from .moments import COVARIANCES, MOMENTS, Times, outer

Values = Sequence[Any]
Join = Callable[[Values, Values], Values]


@record
class Running:
    """Accumulators that steps join one after the other.

    Laws: any number of joins gives what `Monoid.combine` gives of all partial results, up to rounding; one result of
    `join` at most reads an old accumulator that another result replaces.

    Attributes:
        join: `join(accumulators, a step's partial results, origins) -> accumulators`.
        origins: the accumulators that keep the first step's partial result, by position; `join` takes and gives the
            others only.
    """

    join: Callable[[Values, Values, Values], Values]
    origins: tuple[int, ...] = ()


def running(monoid: Monoid, backwards: bool) -> Running:
    """How the steps of a loop join accumulators, which start as the identity.

    Args:
        monoid: the meaning.
        backwards: whether a step's indices are smaller than those of all steps before it; else they are larger.
    """
    if monoid.name == MOMENTS:
        return Running(_around_the_first(lax.mul), (1,))
    for count, name in COVARIANCES.items():
        if monoid.name == name:
            return Running(_around_the_first(outer), tuple(range(1, 2 * count, 2)))
    if monoid.name in BESTS:
        better, at_least = BESTS[monoid.name]
        join = _best(at_least if backwards else better, backwards)
    elif monoid.name in TIES:
        join = _ties(TIES[monoid.name][2])
    else:
        join = _softmax if monoid.name == SOFTMAX else lambda old, fresh: monoid.combine(tuple(old), tuple(fresh))
    return Running(lambda old, fresh, _: join(old, fresh))


BESTS = {"argmax": (lax.gt, lax.ge), "argmin": (lax.lt, lax.le)}


def _around_the_first(times: Times) -> Callable[[Values, Values, Values], Values]:
    """Joins `(n, mean - first, products)` of one value or two, where `first` is the base of the first step's mean.

    A running mean is rounded in each step, to the digits of the mean and not of the spread: the squares would lose
    `mean / deviation` times as much as those of two passes. The first step's mean is one of the data: the distance
    from it is at most `sqrt(n)` deviations.
    """

    def join(old: Values, fresh: Values, firsts: Values) -> Values:
        (n, *means, products), (k, *parts, more) = old, fresh
        total = n + k
        before = total - k
        # 0 / 0 when both are empty; the share is then of nothing
        share = k / lax.max(total, lax.full_like(total, 1))
        moved, off = [], []
        for mean, base, rest, first in zip(means, parts[::2], parts[1::2], firsts, strict=True):
            moved.append(mean + (((base - first) + rest) - mean) * share)
            # The other sign: XLA would write one difference to memory for its two readers.
            off.append(((first - base) - rest) + moved[-1])
        # The first step is not off: it is the mean.
        weight = lax.select(lax.gt(before, lax.full_like(before, 0)), k * total / before, lax.full_like(before, 0))
        return total, *moved, products + more + times(off[0], off[-1]) * weight

    return join


def _softmax(old: Values, fresh: Values) -> Values:
    (m, s), (k, t) = old, fresh
    # One of the two sums is scaled, by exp(smaller - larger maximum); equal infinities are no distance apart.
    far = lax.select(lax.eq(m, k), lax.full_like(m, 0), lax.abs(m - k))
    shrink = lax.exp(-far)
    s = lax.select(lax.ge(m, k), s + t * shrink, s * shrink + t)
    return lax.max(m, _after(lax.gt(s, lax.full_like(s, np.inf)), k, m)), s


def _ties(better: Callable[[Any, Any], Any]) -> Join:
    def join(old: Values, fresh: Values) -> Values:
        (m, n), (k, o) = old, fresh
        best = better(m, k)
        none = lax.full_like(n, 0)
        n = lax.select(lax.eq(m, best), n, none) + lax.select(lax.eq(k, best), o, none)
        return better(m, _after(lax.lt(n, none), k, m)), n

    return join


def _best(beats: Callable[[Any, Any], Any], takes_ties: bool) -> Join:
    def join(old: Values, fresh: Values) -> Values:
        (best, at), (value, index) = old, fresh
        takes = beats(value, best)
        # the identity may be equal to the first value; nan beats every number
        takes = lax.bitwise_or(takes, lax.eq(at, lax.full_like(at, highest(at.dtype))))
        undefined = lax.ne(value, value)
        takes = lax.bitwise_or(takes, undefined if takes_ties else lax.bitwise_and(undefined, lax.eq(best, best)))
        at = lax.select(takes, index, at)
        return lax.select(lax.eq(at, index), value, best), at

    return join


def _after(never: Any, value: Any, other: Any) -> Any:
    """`value`, once `never` is known: it is false everywhere, but XLA cannot tell, nor reorder what reads the result.

    (An `optimization_barrier` does not order what reads a carry: XLA's CPU backend removes it before it copies.)
    """
    return lax.select(never, other, value)
