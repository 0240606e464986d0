"""What each primitive's result is known to be, given what is known of its operands: one entry per primitive."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Var

from .program import is_var
from .records import (
    NOTHING,
    Below,
    Constant,
    Counted,
    Diagonal,
    Facts,
    Finite,
    Identity,
    Known,
    Kronecker,
    NonNegative,
    OneHot,
    Positive,
    Record,
    Repeated,
    Said,
    Separable,
    Shifted,
    Sorted,
    Spread,
    Symmetric,
    moved,
    the,
)
from .words import records_of

FLOAT = "fV"  # bfloat16 and the small floats are of kind V

Found = Iterable[Record]
Learn = Callable[[JaxprEqn, Facts], Found]


def _shape(x: Atom) -> tuple[int, ...]:
    return tuple(x.aval.shape)


def _kind(x: Atom) -> str:
    return getattr(x.aval.dtype, "kind", "?")  # of keys


def _operands(eqn: JaxprEqn, facts: Facts) -> list[Known]:
    """Records of the operands as the result's shape sees them: scalars and dimensions of size 1 are stretched."""
    shape, found = _shape(eqn.outvars[0]), []
    for x in eqn.invars:
        mine, known = _shape(x), facts.of(x)
        to = range(len(mine)) if len(mine) == len(shape) else ()
        found.append(known if mine == shape else frozenset(moved(known, to, mine, shape)))
    return found


def unit_moves(old: tuple[int, ...], new: tuple[int, ...]) -> list[int] | None:
    """Where each dimension goes when a reshape only adds and drops dimensions of size 1; None if it does more."""
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return None
    places = iter([d for d, n in enumerate(new) if n != 1])
    return [-1 if n == 1 else next(places) for n in old]


def _iota(eqn: JaxprEqn, facts: Facts) -> Found:
    if _kind(eqn.outvars[0]) in "iu":
        yield Counted(eqn.params["dimension"], 1, 0)


def _broadcast(eqn: JaxprEqn, facts: Facts) -> Found:
    return _spread(eqn, facts, [int(d) for d in eqn.params["broadcast_dimensions"]])


def _spread(eqn: JaxprEqn, facts: Facts, to: list[int]) -> Found:
    """The operand, its dimensions moved; and that it is the operand."""
    x = eqn.invars[0]
    known = facts.of(x)
    if is_var(x) and the(Spread, known) is None:
        known |= {Spread(x, tuple(range(len(_shape(x)))))}
    return moved(known, to, _shape(x), _shape(eqn.outvars[0]))


def _reshape(eqn: JaxprEqn, facts: Facts) -> Found:
    x = eqn.invars[0]
    old, new = _shape(x), _shape(eqn.outvars[0])
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
    old, new = _kind(x), _kind(out)
    match r:
        case Constant(value):
            fits = not isinstance(value, complex) and np.isfinite(value) and (new in FLOAT or _fits(value, value, out))
            return Constant(_rounded(value, out)) if fits else None
        case Counted(dim, scale, offset):
            last = offset + scale * max(_shape(x)[dim] - 1, 0)
            return r if new in "iu" and _fits(min(offset, last), max(offset, last), out) else None
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


def _fits(low: float, high: float, out: Atom) -> bool:
    if _kind(out) == "b":
        return low >= 0 and high <= 1
    if _kind(out) not in "iu":
        return False
    info = np.iinfo(out.aval.dtype)
    return bool(info.min <= low and high <= info.max)


def _rounded(value: Any, out: Atom) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(out.aval.dtype)[()].item()


def _eq(eqn: JaxprEqn, facts: Facts) -> Found:
    shape = _shape(eqn.outvars[0])
    (one, other), (x, y) = _operands(eqn, facts), eqn.invars
    a, b = the(Counted, one), the(Counted, other)
    if a and b and a.dim != b.dim:
        if (a.scale, a.offset) == (b.scale, b.offset) and a.scale and shape[a.dim] == shape[b.dim]:
            yield Identity(*sorted((a.dim, b.dim)))
        return
    for counter, index, known in ((a, y, other), (b, x, one)):
        if counter is not None and (counter.scale, counter.offset) == (1, 0) and _kind(x) in "iu" and is_var(index):
            yield from _one_hot(counter.dim, index, known, shape)
    yield from _repeated([one, other])


def _one_hot(dim: int, index: Var, known: Known, shape: tuple[int, ...]) -> Found:
    """The counter along `dim` compared with `index`, of which `known` is known where it is compared."""
    mine = _shape(index)
    direct = Spread(index, tuple(d if n == shape[d] else -1 for d, n in enumerate(mine)))
    for spread in (direct, the(Spread, known)):
        if spread is not None and dim not in spread.along and len(spread.along) <= len(shape):
            yield OneHot(dim, spread.source, spread.along)
            return


def _repeated(operands: list[Known]) -> set[Record]:
    """What is repeated in all operands is in what is made of them entry by entry."""
    return {r for r in frozenset.intersection(*operands) if isinstance(r, Repeated)}


COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def _compare(eqn: JaxprEqn, facts: Facts) -> Found:
    operands = _operands(eqn, facts)
    ends = [_ends(known, _shape(eqn.outvars[0])) for known in operands]
    if all(ends):
        test = COMPARE[eqn.primitive.name]
        answers = {test(a, b) for a in ends[0] for b in ends[1]}
        if len(answers) == 1:
            return {Constant(answers.pop())}
    return _repeated(operands) | _below(eqn.primitive.name, *(the(Counted, known) for known in operands))


def _below(name: str, one: Counted | None, other: Counted | None) -> set[Record]:
    """What the comparison of two counters along different dimensions makes."""
    if one is None or other is None or one.dim == other.dim or (one.scale, other.scale) != (1, 1):
        return set()
    if name in ("lt", "le"):
        one, other = other, one
    return {Below(one.dim, other.dim, other.offset - one.offset + (name in ("lt", "gt")))}


def _ends(known: Known, shape: tuple[int, ...]) -> list[int]:
    """The smallest and the largest entry of integers; none if they are not known."""
    counted, constant = the(Counted, known), the(Constant, known)
    if constant is not None and isinstance(constant.value, int):
        return [constant.value]
    if counted is None or not shape[counted.dim]:
        return []
    return [counted.offset, counted.offset + counted.scale * (shape[counted.dim] - 1)]


_OF_ALL_ENTRIES = (Repeated, Symmetric, Separable, Kronecker, Said)  # together: a mixture of two such is none


def _select(eqn: JaxprEqn, facts: Facts) -> Found:
    which, *cases = _operands(eqn, facts)
    chosen = the(Constant, which)
    if chosen is not None:
        return cases[int(chosen.value)]
    found: set[Record] = set(frozenset.intersection(*cases)) - {r for k in cases for r in k if isinstance(r, Sorted)}
    found = {r for r in found if not isinstance(r, _OF_ALL_ENTRIES)} | _repeated([which, *cases])
    zero, one = (the(Constant, case) for case in (cases[0], cases[-1]))
    if len(cases) == 2 and zero is not None and zero.value == 0:
        for r in which:
            is_mask = isinstance(r, (Identity, OneHot)) and one is not None and one.value == 1
            found |= {r} if is_mask or isinstance(r, Diagonal) else set()
        found |= {r for r in cases[1] if isinstance(r, Diagonal)}
    return found | _masked(which, zero, one)


def _masked(which: Known, zero: Constant | None, one: Constant | None) -> set[Record]:
    """`where(triangle, 1, 0)`, and `where(triangle, 0, 1)`, the triangle on the other side."""
    below, values = the(Below, which), [None if k is None else k.value for k in (zero, one)]
    if below is None or values not in ([0, 1], [1, 0]):
        return set()
    return {below if values == [0, 1] else Below(below.b, below.a, 1 - below.by)}


def _sum(eqn: JaxprEqn, facts: Facts) -> Found:
    operands = _operands(eqn, facts)
    sign = -1 if eqn.primitive.name == "sub" else 1
    found = _repeated(operands)
    diagonal = [{r for r in known if isinstance(r, (Diagonal, Symmetric))} for known in operands]
    found |= diagonal[0] & diagonal[1]
    if sign == 1 and all(NonNegative() in known for known in operands) and _kind(eqn.outvars[0]) in FLOAT:
        found.add(NonNegative())
    a, b = (_affine(known) for known in operands)
    if a and b and _kind(eqn.outvars[0]) in "iu":
        found |= set(_counted(eqn, a[1] + sign * b[1], a[2] + sign * b[2], a[0], b[0]))
    one, other = (_shifted(known) for known in operands)
    if one and other and (one[0] is None or other[0] in (None, one[0])):
        dims = other[0] if one[0] is None else one[0]
        found |= _as_shifted(eqn, dims, one[1] + sign * other[1], one[2] + sign * other[2])
    return found


Dims = tuple[int, int]


def _shifted(known: Known) -> tuple[Dims | None, float, float] | None:
    """Dimensions, scale and rest of a constant (which has no dimensions), an identity, or what is made of these."""
    constant, identity, shifted = the(Constant, known), the(Identity, known), the(Shifted, known)
    if shifted is not None:
        return (shifted.a, shifted.b), shifted.scale, shifted.rest
    if identity is not None:
        return (identity.a, identity.b), 1.0, 0.0
    if constant is None or isinstance(constant.value, complex) or Finite() not in known:
        return None
    return None, 0.0, float(constant.value)


def _as_shifted(eqn: JaxprEqn, dims: Dims | None, scale: float, rest: float) -> set[Record]:
    """The record of a float, where it is no number that rounding to the result's type may lose."""
    (out,) = eqn.outvars
    is_rounded_once = str(out.aval.dtype) in ("float32", "float64")  # shorter ones are computed in 32 bits
    if not is_rounded_once or not all(x == 0 or 1e-30 < abs(x) < 1e30 for x in (scale, rest)):
        return set()
    if dims is None:
        return {Constant(_rounded(rest, out))}
    return {Shifted(*dims, scale, rest)} if scale else set()


def _quotient(eqn: JaxprEqn, facts: Facts) -> Found:
    operands = _operands(eqn, facts)
    found = _repeated(operands)
    one, other = (_shifted(known) for known in operands)
    if one and other and other[0] is None and other[2]:
        found |= _as_shifted(eqn, one[0], one[1] / other[2], one[2] / other[2])
    return found


def _affine(known: Known) -> tuple[int | None, int, int] | None:
    """Dimension (None if constant), scale and offset of integers."""
    constant, counted = the(Constant, known), the(Counted, known)
    if constant is not None and isinstance(constant.value, int):
        return None, 0, int(constant.value)
    return None if counted is None else (counted.dim, counted.scale, counted.offset)


def _counted(eqn: JaxprEqn, scale: int, offset: int, *dims: int | None) -> Found:
    out = eqn.outvars[0]
    named = {d for d in dims if d is not None}
    if len(named) > 1:
        return NOTHING
    if not named:
        return {Constant(offset)} if _fits(offset, offset, out) else NOTHING
    dim = named.pop()
    last = offset + scale * max(_shape(out)[dim] - 1, 0)
    return {Counted(dim, scale, offset)} if _fits(min(offset, last), max(offset, last), out) else NOTHING


def _product(eqn: JaxprEqn, facts: Facts) -> Found:
    operands = _operands(eqn, facts)
    found = _repeated(operands) | {r for known in operands for r in known if isinstance(r, Diagonal)}
    if _kind(eqn.outvars[0]) in FLOAT and eqn.invars[0] is eqn.invars[1] and Finite() in operands[0]:
        found.add(NonNegative())
    for r in operands[0] & operands[1]:
        if isinstance(r, (Identity, Symmetric)) or (isinstance(r, NonNegative) and _kind(eqn.outvars[0]) in FLOAT):
            found.add(r)
    for known, other in (operands, operands[::-1]):
        one = the(Constant, other)
        if one is not None:
            found |= {r for r in known if isinstance(r, Symmetric)}
            scaled, by = _shifted(known), _shifted(other)
            if one.value == 1:
                found |= {r for r in known if isinstance(r, (Identity, Below, OneHot, Constant))}
            elif scaled is not None and by is not None:
                found |= _as_shifted(eqn, scaled[0], scaled[1] * by[2], scaled[2] * by[2])
    one, other = ({r.dim for r in known if isinstance(r, Repeated)} for known in operands)
    if one - other and other - one:
        found.add(Separable(frozenset(other - one), frozenset(one - other)))
    a, b = (_affine(known) for known in operands)
    if a and b and _kind(eqn.outvars[0]) in "iu" and (a[0] is None or b[0] is None):
        found |= set(_counted(eqn, a[1] * b[2] + b[1] * a[2], a[2] * b[2], a[0], b[0]))
    return {r for r in found if not (isinstance(r, NonNegative) and not _no_nan(operands))}


def _no_nan(operands: list[Known]) -> bool:
    """Whether a product of the operands is no `0 * inf`."""
    return all(Finite() in known for known in operands)


def _neg(eqn: JaxprEqn, facts: Facts) -> Found:
    known = facts.of(eqn.invars[0])
    found: set[Record] = {r for r in known if isinstance(r, (Repeated, Diagonal, Symmetric, Finite))}
    affine = _affine(known)
    if affine and _kind(eqn.outvars[0]) in "iu":
        found |= set(_counted(eqn, -affine[1], -affine[2], affine[0]))
    constant, shifted = the(Constant, known), _shifted(known)
    if constant is not None and _kind(eqn.outvars[0]) in "fcV":
        found.add(Constant(-constant.value))
    elif shifted is not None:
        found |= _as_shifted(eqn, shifted[0], -shifted[1], -shifted[2])
    return found


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


def _entrywise(*found: Record, needs: tuple[type[Record], ...] = ()) -> Learn:
    """Of a function of each entry: what is always so of its result, given that of its operand."""

    def learn(eqn: JaxprEqn, facts: Facts) -> Found:
        known = facts.of(eqn.invars[0])
        ok = all(the(kind, known) for kind in needs)
        return {r for r in known if isinstance(r, (Repeated, Symmetric))} | (set(found) if ok else set())

    return learn


def _even_power(eqn: JaxprEqn, facts: Facts) -> Found:
    even = eqn.params.get("y", 2) % 2 == 0 and Finite() in facts.of(eqn.invars[0]) and _kind(eqn.outvars[0]) in FLOAT
    return _entrywise(*([NonNegative()] if even else []))(eqn, facts)


def _reduced(eqn: JaxprEqn, facts: Facts) -> Found:
    x, axes = eqn.invars[0], set(eqn.params["axes"])
    left = [d for d in range(len(_shape(x))) if d not in axes]
    for r in facts.of(x):
        if isinstance(r, Repeated) and r.dim in left:
            yield Repeated(left.index(r.dim))


def _dot(eqn: JaxprEqn, facts: Facts) -> Found:
    contract, batch = eqn.params["dimension_numbers"]
    place = len(batch[0])
    free = []
    for x, c, b in zip(eqn.invars, contract, batch, strict=True):
        mine = [d for d in range(len(_shape(x))) if d not in c and d not in b]
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
    if spread is None or sorted(spread.along) != list(range(len(_shape(x)))):
        return x, (tuple(contract), tuple(batch))
    return spread.source, tuple(tuple(spread.along.index(d) for d in dims) for dims in (contract, batch))


def _tile(eqn: JaxprEqn, facts: Facts) -> Found:
    if not repeats_whole(eqn):
        return NOTHING
    return _spread(eqn, facts, list(range(len(_shape(eqn.invars[0])))))


def repeats_whole(eqn: JaxprEqn) -> bool:
    """Whether a `tile` stretches dimensions of size 1 only."""
    return all(rep == 1 or n == 1 for rep, n in zip(eqn.params["reps"], _shape(eqn.invars[0]), strict=True))


def _sort(eqn: JaxprEqn, facts: Facts) -> Found:
    if _kind(eqn.outvars[0]) in "iu":  # NaN is last, and neither smaller nor larger
        yield Sorted(eqn.params["dimension"])


LEARN: dict[str, Learn] = {
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
    "eq": _eq,
    **dict.fromkeys(COMPARE, _compare),
    "select_n": _select,
    "add": _sum,
    "add_any": _sum,
    "sub": _sum,
    "mul": _product,
    "div": _quotient,
    "neg": _neg,
    "concatenate": _concatenate,
    "reduce_sum": _reduced,
    "dot_general": _dot,
    "sort": _sort,
    "integer_pow": _even_power,
    "square": _even_power,
    "exp": _entrywise(NonNegative(), needs=(Finite,)),
    "abs": _entrywise(NonNegative(), Finite(), needs=(Finite,)),
    "sqrt": _entrywise(NonNegative(), needs=(NonNegative,)),
    "tanh": _entrywise(Finite(), needs=(Finite,)),
    "logistic": _entrywise(Finite(), NonNegative(), needs=(Finite,)),
    "sin": _entrywise(Finite(), needs=(Finite,)),
    "cos": _entrywise(Finite(), needs=(Finite,)),
}
