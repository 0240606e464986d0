"""What functions of entries make is known to be, given what is known of their operands: one entry per primitive."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Var

from ..program import is_var
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

FLOAT = "fV"  # bfloat16 and the small floats are of kind V

Found = Iterable[Record]
Learn = Callable[[JaxprEqn, Facts], Found]


def shape_of(x: Atom) -> tuple[int, ...]:
    """The shape of a value."""
    return tuple(x.aval.shape)


def kind_of(x: Atom) -> str:
    """The kind of NumPy's that a value's dtype is of; "?" of keys."""
    return getattr(x.aval.dtype, "kind", "?")


def _operands(eqn: JaxprEqn, facts: Facts) -> list[Known]:
    """Records of the operands as the result's shape sees them: scalars and dimensions of size 1 are stretched."""
    shape, found = shape_of(eqn.outvars[0]), []
    for x in eqn.invars:
        mine, known = shape_of(x), facts.of(x)
        to = range(len(mine)) if len(mine) == len(shape) else ()
        found.append(known if mine == shape else frozenset(moved(known, to, mine, shape)))
    return found


def fits(low: float, high: float, out: Atom) -> bool:
    """Whether integers from `low` to `high` are numbers of the type of `out`, which is one of integers or booleans."""
    if kind_of(out) == "b":
        return low >= 0 and high <= 1
    if kind_of(out) not in "iu":
        return False
    info = np.iinfo(out.aval.dtype)
    return bool(info.min <= low and high <= info.max)


def rounded(value: Any, out: Atom) -> Any:
    """A number as the type of `out` has it."""
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(out.aval.dtype)[()].item()


def _eq(eqn: JaxprEqn, facts: Facts) -> Found:
    shape = shape_of(eqn.outvars[0])
    (one, other), (x, y) = _operands(eqn, facts), eqn.invars
    a, b = the(Counted, one), the(Counted, other)
    if a and b and a.dim != b.dim:
        if (a.scale, a.offset) == (b.scale, b.offset) and a.scale and shape[a.dim] == shape[b.dim]:
            yield Identity(*sorted((a.dim, b.dim)))
        return
    for counter, index, known in ((a, y, other), (b, x, one)):
        if counter is not None and (counter.scale, counter.offset) == (1, 0) and kind_of(x) in "iu" and is_var(index):
            yield from _one_hot(counter.dim, index, known, shape)
    yield from _repeated([one, other])


def _one_hot(dim: int, index: Var, known: Known, shape: tuple[int, ...]) -> Found:
    """The counter along `dim` compared with `index`, of which `known` is known where it is compared."""
    mine = shape_of(index)
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
    ends = [_ends(known, shape_of(eqn.outvars[0])) for known in operands]
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
    identity = the(Identity, which)
    rest, there = (_shifted(case) for case in (cases[0], cases[-1]))
    if identity is not None and rest and there and rest[0] is there[0] is None:
        found |= _as_shifted(eqn, (identity.a, identity.b), there[2] - rest[2], rest[2])
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
    if sign == 1 and all(NonNegative() in known for known in operands) and kind_of(eqn.outvars[0]) in FLOAT:
        found.add(NonNegative())
    a, b = (_affine(known) for known in operands)
    if a and b and kind_of(eqn.outvars[0]) in "iu":
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
        return {Constant(rounded(rest, out))}
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
        return {Constant(offset)} if fits(offset, offset, out) else NOTHING
    dim = named.pop()
    last = offset + scale * max(shape_of(out)[dim] - 1, 0)
    return {Counted(dim, scale, offset)} if fits(min(offset, last), max(offset, last), out) else NOTHING


def _product(eqn: JaxprEqn, facts: Facts) -> Found:
    operands = _operands(eqn, facts)
    found = _repeated(operands) | {r for known in operands for r in known if isinstance(r, Diagonal)}
    if kind_of(eqn.outvars[0]) in FLOAT and eqn.invars[0] is eqn.invars[1] and Finite() in operands[0]:
        found.add(NonNegative())
    for r in operands[0] & operands[1]:
        if isinstance(r, (Identity, Symmetric)) or (isinstance(r, NonNegative) and kind_of(eqn.outvars[0]) in FLOAT):
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
    if a and b and kind_of(eqn.outvars[0]) in "iu" and (a[0] is None or b[0] is None):
        found |= set(_counted(eqn, a[1] * b[2] + b[1] * a[2], a[2] * b[2], a[0], b[0]))
    return {r for r in found if not (isinstance(r, NonNegative) and not _no_nan(operands))}


def _no_nan(operands: list[Known]) -> bool:
    """Whether a product of the operands is no `0 * inf`."""
    return all(Finite() in known for known in operands)


def _neg(eqn: JaxprEqn, facts: Facts) -> Found:
    known = facts.of(eqn.invars[0])
    found: set[Record] = {r for r in known if isinstance(r, (Repeated, Diagonal, Symmetric, Finite))}
    affine = _affine(known)
    if affine and kind_of(eqn.outvars[0]) in "iu":
        found |= set(_counted(eqn, -affine[1], -affine[2], affine[0]))
    constant, shifted = the(Constant, known), _shifted(known)
    if constant is not None and kind_of(eqn.outvars[0]) in "fcV":
        found.add(Constant(-constant.value))
    elif shifted is not None:
        found |= _as_shifted(eqn, shifted[0], -shifted[1], -shifted[2])
    return found


def _entrywise(*found: Record, needs: tuple[type[Record], ...] = ()) -> Learn:
    """Of a function of each entry: what is always so of its result, given that of its operand."""

    def learn(eqn: JaxprEqn, facts: Facts) -> Found:
        known = facts.of(eqn.invars[0])
        ok = all(the(kind, known) for kind in needs)
        return {r for r in known if isinstance(r, (Repeated, Symmetric))} | (set(found) if ok else set())

    return learn


def _even_power(eqn: JaxprEqn, facts: Facts) -> Found:
    even = eqn.params.get("y", 2) % 2 == 0 and Finite() in facts.of(eqn.invars[0]) and kind_of(eqn.outvars[0]) in FLOAT
    return _entrywise(*([NonNegative()] if even else []))(eqn, facts)


ENTRYWISE: dict[str, Learn] = {
    "eq": _eq,
    **dict.fromkeys(COMPARE, _compare),
    "select_n": _select,
    "add": _sum,
    "add_any": _sum,
    "sub": _sum,
    "mul": _product,
    "div": _quotient,
    "neg": _neg,
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
