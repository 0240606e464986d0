"""What a value is outside of the columns that a mask leaves: the same number everywhere, or so low that it is none.

A score of -1e9 or less is taken to be no score: no other is so low, and beside the largest one its exponential is 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes import Mapped, Reduced
from ..known.counters import ENTRYWISE, evaluated
from ..program import is_var
from ..record import record
from .through import Through, Whole
from .visible import Known

LOWEST = -1e9
VIEWS = frozenset(
    "broadcast_in_dim reshape squeeze expand_dims transpose slice copy stop_gradient reduce_precision "
    "convert_element_type optimization_barrier".split()
)
KEEPS_ZERO = frozenset("neg abs sin tan asin atan sinh tanh asinh atanh sqrt cbrt square expm1 log1p sign".split())


class Outside:
    """What is known of a value where the mask leaves nothing: this class itself says nothing."""

    def adds_nothing(self, monoid: str) -> bool:
        """Whether a reduction is the same without it."""
        return False


UNKNOWN = Outside()


@record
class Number(Outside):
    """Everywhere the same number."""

    value: float

    def adds_nothing(self, monoid: str) -> bool:
        """Whether it is the identity of the reduction; of `max`, whether it is no score."""
        if monoid == "max":
            return self.value <= LOWEST
        return {"add": 0.0, "min": np.inf, "or": 0.0, "and": 1.0, "mul": 1.0}.get(monoid) == self.value


@record
class Low(Outside):
    """No score: another number in each row, so low that its exponential is 0."""

    def adds_nothing(self, monoid: str) -> bool:
        """Whether it is never the largest."""
        return monoid == "max"


@record
class Own(Outside):
    """What a carry is there."""

    carry: Var


def _leaves(number: np.ndarray) -> Any:
    """Where what a mask adds leaves something: as float64, which float16 has no such numbers of."""
    return number.astype(np.float64) > LOWEST


def leaves_out(known: Known, x: Atom) -> bool:
    """Whether a value is known, and leaves out some entries of what it is added to."""
    number = _real(known, x)
    return number is not None and number.size > 1 and not _leaves(number).all()


def _real(known: Known, x: Atom) -> np.ndarray | None:
    """A value that is known, of real numbers."""
    number = known.counters.of(x)
    return None if number is None or number.dtype.kind == "c" else number


def seen_columns(eqn: JaxprEqn, dim: int, known: Known) -> Any:
    """By index of a dimension, whether a mask leaves something of it; None where an equation is no mask."""
    if eqn.primitive.name == "add":
        for x in eqn.invars:
            number = _real(known, x)
            if number is not None and number.ndim > dim and number.shape[dim] > 1:
                return _leaves(number).any(tuple(d for d in range(number.ndim) if d != dim))
        return None
    which, *cases = eqn.invars
    if len(cases) != 2 or which.aval.shape != eqn.outvars[0].aval.shape:
        return None
    for k, case in enumerate(cases):
        number = _real(known, case)
        if number is not None and number.size == 1 and (number.item() == 0 or number.item() <= LOWEST):
            seen = known.seen(which, dim)
            return seen.anywhere if k == 0 else seen.rest.anywhere
    return None


def check_outside(columns: Through, known: Known, left: np.ndarray, carries: Mapping[Var, Atom]) -> None:
    """Nothing, if what a mask leaves out counts nowhere.

    Args:
        columns: an axis through the equations that `known` is about.
        known: what is known of their values.
        left: by index of the axis, whether it is left out.
        carries: what may stay as it is there, by what it is at the end.

    Raises:
        Whole: it might; says where.
    """
    values: dict[Var, Outside] = {v: Own(v) for v in carries if v in columns.where}
    for place, eqn in enumerate(columns.jaxpr.eqns):
        answer = columns.answers.get(place)
        if answer is None:
            continue
        found = _outside(eqn, answer, values, known, left)
        if isinstance(answer, Mapped):
            values.update((v, found) for v, axis in zip(eqn.outvars, answer.outs, strict=True) if axis is not None)
        elif not found.adds_nothing(answer.monoid.name):
            raise Whole(f"`{eqn.primitive.name}` of what the mask leaves out is not known to add nothing")
    ends = {after: v for v, after in carries.items() if is_var(after)}
    for v in columns.jaxpr.outvars:
        if is_var(v) and v in columns.where and values.get(v) != (Own(ends[v]) if v in ends else Number(0.0)):
            raise Whole("what the mask leaves out is in a result")


def _outside(
    eqn: JaxprEqn, answer: Mapped | Reduced, values: Mapping[Var, Outside], known: Known, left: np.ndarray
) -> Outside:
    """What an equation makes outside, or, if it reduces the columns, what it reduces there.

    Args:
        eqn: the equation.
        answer: what it is along the columns.
        values: what is known of values that have the columns.
        known: what is known in the step.
        left: by column, whether the mask leaves nothing of it.
    """
    rule = _Reader(eqn, answer, values, known, left)
    name = eqn.primitive.name
    if name == "dot_general":
        return rule.product()
    if name in VIEWS or (name.startswith("reduce_") and isinstance(answer, Reduced)):
        return rule.read(0)
    if name == "select_n" and len(eqn.invars) == 3:
        return rule.choice()
    if name in ("reduce_max", "reduce_min") or (name == "reduce_sum" and rule.read(0) == Number(0.0)):
        return rule.read(0) if isinstance(rule.read(0), Number) else UNKNOWN
    return rule.entrywise() if eqn.invars else UNKNOWN


@dataclass
class _Reader:
    eqn: JaxprEqn
    answer: Mapped | Reduced
    values: Mapping[Var, Outside]
    known: Known
    left: np.ndarray

    def read(self, k: int) -> Outside:
        """What an operand is outside."""
        return self.of(self.eqn.invars[k], self.answer.ins[k] is not None)

    def of(self, x: Atom, has_columns: bool) -> Outside:
        """What a value is outside."""
        if is_var(x) and has_columns and x in self.values and self.values[x] is not UNKNOWN:
            return self.values[x]
        number = self.known.counters.of(x) if np.dtype(_dtype(x)).kind in "biuf" else None
        if number is None:
            return UNKNOWN
        if number.size == 1:
            return Number(float(number.reshape(())))
        return self._in_columns(x, number)

    def _in_columns(self, x: Atom, number: np.ndarray) -> Outside:
        """What a known value that varies is in the columns that are left out, if it is one number there."""
        places = zip(self.eqn.invars, self.answer.ins, strict=True)
        axis = next((axis for y, axis in places if y is x), None)
        if axis is None or not axis.is_plain or number.shape[axis.dim] != len(self.left):
            return UNKNOWN
        values = np.compress(self.left, number, axis.dim)
        first = values.reshape(-1)[:1]
        if not values.size or not bool((values == first).all()):
            return UNKNOWN
        score = bool(_leaves(number.max(axis.dim)).all())
        return Number(float(first[0])) if score or not _is_finite_low(float(first[0])) else UNKNOWN

    def product(self) -> Outside:
        """A product with 0 is 0, but of an infinity; of two operands with columns one is enough."""
        operands = [self.read(k) for k in (0, 1) if self.answer.ins[k] is not None]
        return Number(0.0) if Number(0.0) in operands and not any(map(_is_infinite, operands)) else UNKNOWN

    def choice(self) -> Outside:
        """What a mask chooses where it leaves nothing."""
        which, axis = self.eqn.invars[0], self.answer.ins[0]
        cases = [self.read(k) for k in (1, 2)]
        if cases[0] == cases[1]:
            return cases[0]
        if axis is None or not axis.is_plain:
            return UNKNOWN
        seen = self.known.seen(which, axis.dim)
        no = not np.any(seen.anywhere & self.left)
        yes = bool(np.all(seen.everywhere | ~self.left))
        chosen = cases[0] if no else cases[1] if yes else UNKNOWN
        low = isinstance(chosen, Number) and _is_finite_low(chosen.value)
        return UNKNOWN if low and not self.known.is_seen_by_all(which, axis.dim, no) else chosen

    def entrywise(self) -> Outside:
        """What arithmetic makes of what its operands are."""
        name = self.eqn.primitive.name
        a, *rest = operands = [self.read(k) for k in range(len(self.eqn.invars))]
        if name in ("mul", "div") and Number(0.0) in (operands if name == "mul" else operands[:1]):
            return UNKNOWN if any(map(_is_infinite, operands)) else Number(0.0)
        if name in KEEPS_ZERO and a == Number(0.0):
            return a
        if name in ("exp", "exp2") and _is_low(a):
            return Number(0.0)
        if name in ("add", "add_any", "sub") and (found := self._sum(name, operands)) is not None:
            return found
        if name in ("mul", "div") and rest and (found := self._scaled(name, operands)) is not None:
            return found
        if name in ENTRYWISE and all(isinstance(x, Number) for x in operands):
            return self._evaluated(operands)
        return UNKNOWN

    def _sum(self, name: str, operands: Sequence[Outside]) -> Outside | None:
        a, b = operands
        if b == Number(0.0):
            return a
        if name != "sub" and a == Number(0.0):
            return b
        if isinstance(a, Number) and isinstance(b, Number):
            return None
        if _is_low(a) or (name != "sub" and _is_low(b)):
            low = a if _is_low(a) else b
            return low if low == Number(-np.inf) else Low()
        return None

    def _scaled(self, name: str, operands: Sequence[Outside]) -> Outside | None:
        a, b = operands
        for low, by in ((a, b), (b, a)) if name == "mul" else ((a, b),):
            if isinstance(low, Low) and isinstance(by, Number) and by.value >= (1 if name == "mul" else 0):
                return low if name == "mul" or by.value <= 1 else None
        return None

    def _evaluated(self, operands: Sequence[Outside]) -> Outside:
        numbers = [
            np.asarray(x.value, _dtype(v))
            for x, v in zip(operands, self.eqn.invars, strict=True)
            if isinstance(x, Number)
        ]
        made = evaluated(self.eqn, numbers)
        return UNKNOWN if made is None else Number(float(made.reshape(())))


def _is_low(x: Outside) -> bool:
    return isinstance(x, Low) or (isinstance(x, Number) and x.value <= LOWEST)


def _is_infinite(x: Outside) -> bool:
    return isinstance(x, Number) and not np.isfinite(x.value)


def _is_finite_low(number: float) -> bool:
    """Whether what has nothing but this takes the mean of all columns, also of those left out."""
    return -np.inf < number <= LOWEST


def _dtype(x: Atom) -> Any:
    return x.aval.dtype if not isinstance(x, Literal) else np.asarray(x.val).dtype
