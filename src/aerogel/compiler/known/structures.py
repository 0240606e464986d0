"""What each primitive's result is known to be, given what is known of its operands: one entry per primitive.

Functions of entries are in `entrywise_facts.py`; here is what moves entries, adds them up, or multiplies matrices.
"""

import numpy as np

from aerogel._jax import Atom, JaxprEqn

from ..program import is_var
from .entrywise_facts import ENTRYWISE, FLOAT, Found, Learn, fits, kind_of, rounded, shape_of
from .records import (
    NOTHING,
    Constant,
    Counted,
    Facts,
    Finite,
    Known,
    Kronecker,
    NonNegative,
    Positive,
    Record,
    Repeated,
    Said,
    Separable,
    Sorted,
    Spread,
    Symmetric,
    moved,
    the,
)
from .words import records_of


def unit_moves(old: tuple[int, ...], new: tuple[int, ...]) -> list[int] | None:
    """Where each dimension goes when a reshape only adds and drops dimensions of size 1; None if it does more."""
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return None
    places = iter([d for d, n in enumerate(new) if n != 1])
    return [-1 if n == 1 else next(places) for n in old]


def _iota(eqn: JaxprEqn, facts: Facts) -> Found:
    if kind_of(eqn.outvars[0]) in "iu":
        yield Counted(eqn.params["dimension"], 1, 0)


def _broadcast(eqn: JaxprEqn, facts: Facts) -> Found:
    return _spread(eqn, facts, [int(d) for d in eqn.params["broadcast_dimensions"]])


def _spread(eqn: JaxprEqn, facts: Facts, to: list[int]) -> Found:
    """The operand, its dimensions moved; and that it is the operand."""
    x = eqn.invars[0]
    known = facts.of(x)
    if is_var(x) and the(Spread, known) is None:
        known |= {Spread(x, tuple(range(len(shape_of(x)))))}
    return moved(known, to, shape_of(x), shape_of(eqn.outvars[0]))


def _reshape(eqn: JaxprEqn, facts: Facts) -> Found:
    x = eqn.invars[0]
    old, new = shape_of(x), shape_of(eqn.outvars[0])
    to = unit_moves(old, new) if eqn.params.get("dimensions") is None else None
    if to is not None:
        return _spread(eqn, facts, to)
    kept = {r for r in facts.of(x) if isinstance(r, (Constant, NonNegative, Positive, Finite))}
    return kept | set(_kronecker(old, new, facts.of(x)))


def _kronecker(old: tuple[int, ...], new: tuple[int, ...], known: Known) -> Found:
    """The two dimensions that a reshape makes of four, each of one that one factor varies along and one of the other's.

    In front of them stay the dimensions of a batch.
    """
    first = len(new) - 2
    if len(old) != len(new) + 2 or first < 0 or old[:first] != new[:first]:
        return
    m, p, n, q = old[first:]
    if new[first:] == (m * p, n * q):
        outer, inner = {first, first + 2}, {first + 1, first + 3}
        for r in known:
            if isinstance(r, Separable) and _are_in(outer, inner, r, old):
                yield Kronecker(first, first + 1)


def _are_in(outer: set[int], inner: set[int], r: Separable, shape: tuple[int, ...]) -> bool:
    """Whether one factor varies along `outer` only and the other along `inner`; what has size 1 is in both."""
    long = [{d for d in dims if shape[d] > 1} for dims in (outer, inner)]
    return any(long[0] <= a and long[1] <= b for a, b in ((r.one, r.other), (r.other, r.one)))


def _transpose(eqn: JaxprEqn, facts: Facts) -> Found:
    order = list(eqn.params["permutation"])
    return _spread(eqn, facts, [order.index(d) for d in range(len(order))])


def _convert(eqn: JaxprEqn, facts: Facts) -> Found:
    (x,), out = eqn.invars, eqn.outvars[0]
    return {new for r in facts.of(x) if (new := _converted(r, x, out)) is not None}


def _converted(r: Record, x: Atom, out: Atom) -> Record | None:
    """A record of `x`, of `x` converted to the type of `out`."""
    old, new = kind_of(x), kind_of(out)
    match r:
        case Constant(value):
            if isinstance(value, complex) or not np.isfinite(value):
                return None
            return Constant(rounded(value, out)) if new in FLOAT or fits(value, value, out) else None
        case Counted(dim, scale, offset):
            last = offset + scale * max(shape_of(x)[dim] - 1, 0)
            return r if new in "iu" and fits(min(offset, last), max(offset, last), out) else None
        case NonNegative() | Sorted():
            return r if new in FLOAT and old != "c" else None
        case Positive() | Said():  # which rounding may end
            return r if x.aval.dtype == out.aval.dtype else None
        case Finite():
            return r if x.aval.dtype == out.aval.dtype else None
        case Spread():
            return None
        case _:
            return r


def _same(eqn: JaxprEqn, facts: Facts) -> Found:
    return facts.of(eqn.invars[0])


def _assume(eqn: JaxprEqn, facts: Facts) -> Found:
    said = records_of(frozenset(eqn.params["facts"]), eqn.invars[0].aval)
    x = eqn.invars[0]
    if is_var(x):
        facts.learn(x, facts.of(x) | said)  # whoever reads it by its other name may know, too
    return facts.of(x) | said


def _pad(eqn: JaxprEqn, facts: Facts) -> Found:
    return facts.of(eqn.invars[0]) if is_no_pad(eqn) else NOTHING


def is_no_pad(eqn: JaxprEqn) -> bool:
    """Whether a `pad` adds nothing."""
    return all(not any(one) for one in eqn.params["padding_config"])


def _concatenate(eqn: JaxprEqn, facts: Facts) -> Found:
    dim = eqn.params["dimension"]
    shared = frozenset.intersection(*(facts.of(x) for x in eqn.invars))
    for r in shared:
        match r:
            case Constant() | Finite() | NonNegative():
                yield r
            case Repeated(d) | Counted(d) | Sorted(d) if d != dim:
                yield r
            case _:
                pass


def _reduced(eqn: JaxprEqn, facts: Facts) -> Found:
    x, axes = eqn.invars[0], set(eqn.params["axes"])
    left = [d for d in range(len(shape_of(x))) if d not in axes]
    for r in facts.of(x):
        if isinstance(r, Repeated) and r.dim in left:
            yield Repeated(left.index(r.dim))


def _dot(eqn: JaxprEqn, facts: Facts) -> Found:
    contract, batch = eqn.params["dimension_numbers"]
    place = len(batch[0])
    free = []
    for x, c, b in zip(eqn.invars, contract, batch, strict=True):
        mine = [d for d in range(len(shape_of(x))) if d not in c and d not in b]
        free.append(mine)
        for d in mine:
            if Repeated(d) in facts.of(x):
                yield Repeated(place)
            place += 1
    if not contract[0] and all(free):
        first, middle = len(batch[0]), place - len(free[1])
        yield Separable(frozenset(range(first, middle)), frozenset(range(middle, place)))
    (x, of_x), (y, of_y) = (_source(x, c, b, facts) for x, c, b in zip(eqn.invars, contract, batch, strict=True))
    if x is y and of_x == of_y and len(free[0]) == 1 and not isinstance(eqn.params.get("precision"), tuple):
        yield Symmetric(place - 2, place - 1)


def _source(x: Atom, contract: tuple[int, ...], batch: tuple[int, ...], facts: Facts) -> tuple[Atom, object]:
    """The variable that an operand is a transpose of, and its contracted and batch dimensions."""
    spread = the(Spread, facts.of(x))
    if spread is None or sorted(spread.along) != list(range(len(shape_of(x)))):
        return x, (tuple(contract), tuple(batch))
    return spread.source, tuple(tuple(spread.along.index(d) for d in dims) for dims in (contract, batch))


def _tile(eqn: JaxprEqn, facts: Facts) -> Found:
    if not repeats_whole(eqn):
        return NOTHING
    return _spread(eqn, facts, list(range(len(shape_of(eqn.invars[0])))))


def repeats_whole(eqn: JaxprEqn) -> bool:
    """Whether a `tile` stretches dimensions of size 1 only."""
    return all(rep == 1 or n == 1 for rep, n in zip(eqn.params["reps"], shape_of(eqn.invars[0]), strict=True))


def _sort(eqn: JaxprEqn, facts: Facts) -> Found:
    if kind_of(eqn.outvars[0]) in "iu":  # NaN is last, and neither smaller nor larger
        yield Sorted(eqn.params["dimension"])


LEARN: dict[str, Learn] = {
    **ENTRYWISE,
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "convert_element_type": _convert,
    "copy": _same,
    "assume": _assume,
    "pad": _pad,
    "tile": _tile,
    "concatenate": _concatenate,
    "reduce_sum": _reduced,
    "dot_general": _dot,
    "sort": _sort,
}
