"""Which indices of an axis a mask lets through, in each step of a loop.

Masks are followed through whatever spells them (`tril`, comparisons of counters, several joined, one that a loop before
stacked). What a mask reads from data may be true anywhere: then what is said to be visible may not be, and nothing that
is visible is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..known.counters import Counters, evaluated
from ..level import Level
from ..loop import Loop, as_loop
from ..program import is_var
from ..record import record

# A mask of so few entries is looked at as it is.
FEW = 1 << 12
JOINED = frozenset(("and", "or", "not", "select_n", "ne", "eq"))
VIEWS = frozenset("broadcast_in_dim reshape squeeze transpose convert_element_type copy".split())
# A comparison of one thing that varies along the axis with another that does not is decided by the extremes of that.
_ORDERS: Mapping[str, Any] = MappingProxyType(
    {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
)


@record
class Seen:
    """Where a mask is true along one of its dimensions, all others taken together.

    Attributes:
        anywhere: by index, whether it may be true for any of the others. Size 1 where all indices are alike.
        everywhere: by index, whether it is surely true for all of them.
    """

    anywhere: Any
    everywhere: Any

    @property
    def rest(self) -> "Seen":
        """What is true elsewhere."""
        return Seen(~self.everywhere, ~self.anywhere)

    def both(self, other: "Seen") -> "Seen":
        """Where two masks are true; what may be true for each of them need not be for the same others."""
        return Seen(self.anywhere & other.anywhere, self.everywhere & other.everywhere)


UNKNOWN = Seen(np.ones(1, bool), np.zeros(1, bool))


@dataclass
class Known:
    """What is known of the values of a jaxpr without data: of its inputs, nothing.

    Attributes:
        level: its equations.
    """

    level: Level
    _inside: dict[Jaxpr, Level] = field(default_factory=dict)
    _seen: dict[tuple[Var, int], Seen] = field(default_factory=dict)

    def inside(self, jaxpr: Jaxpr) -> Level:
        """A jaxpr that one of the equations holds."""
        if jaxpr not in self._inside:
            self._inside[jaxpr] = Level(jaxpr)
        return self._inside[jaxpr]

    @cached_property
    def counters(self) -> Counters:
        """The numbers that do not depend on data."""
        return Counters(self.level, self.of_input)

    def of_input(self, v: Var) -> np.ndarray | None:
        """The number of an input."""
        return None

    def seen_of_input(self, mask: Var, dim: int) -> Seen | None:
        """Where an input is true along a dimension."""
        return None

    def seen(self, mask: Atom, dim: int) -> Seen:
        """Where a mask is true along a dimension."""
        if not is_var(mask):
            return self._seen_now(mask, dim)
        if (mask, dim) not in self._seen:
            self._seen[mask, dim] = self._seen_now(mask, dim)
        return self._seen[mask, dim]

    def _seen_now(self, mask: Atom, dim: int) -> Seen:
        number = self.counters.of(mask) if mask.aval.size <= FEW else None
        if number is not None:
            return _along(number, dim)
        eqn = self.level.maker(mask)
        if eqn is not None:
            return self._of_equation(eqn, dim) or self._of_all(mask, dim)
        found = self.seen_of_input(mask, dim) if is_var(mask) else self._of_all(mask, dim)
        return found or UNKNOWN

    def _of_all(self, mask: Atom, dim: int) -> Seen:
        """A mask of which nothing but its entries is known."""
        number = self.counters.of(mask)
        return UNKNOWN if number is None else _along(number, dim)

    def is_seen_by_all(self, mask: Atom, dim: int, value: bool) -> bool:
        """Whether a mask surely has a value somewhere along a dimension, for each of the other indices."""
        seen = self.seen(mask, dim)
        if (seen if value else seen.rest).everywhere.any():
            return True
        number = self.counters.of(mask)
        return number is not None and bool((number == value).any(dim).all())

    def _of_equation(self, eqn: JaxprEqn, dim: int) -> Seen | None:
        name, operands = eqn.primitive.name, eqn.invars
        if len(eqn.outvars) != 1 or eqn.outvars[0].aval.dtype != np.bool_:
            return None
        if name in VIEWS:
            return self._viewed(eqn, dim)
        if name == "not":
            return self._operand(operands[0], dim).rest
        if name in ("and", "or"):
            one, other = (self._operand(x, dim) for x in operands)
            return one.both(other) if name == "and" else one.rest.both(other.rest).rest
        if name == "select_n" and len(operands) == 3:
            which, no, yes = (self._operand(x, dim) for x in operands)
            chosen, left = which.both(yes), which.rest.both(no)
            return chosen.rest.both(left.rest).rest
        return self._compared(eqn, dim)

    def _operand(self, x: Atom, dim: int) -> Seen:
        return self.seen(x, dim if x.aval.ndim else 0)

    def _viewed(self, eqn: JaxprEqn, dim: int) -> Seen | None:
        (x,), p = eqn.invars, eqn.params
        if x.aval.dtype != np.bool_:
            return self._compared(eqn, dim)
        name, old, new = eqn.primitive.name, x.aval.shape, eqn.outvars[0].aval.shape
        if name in ("copy", "convert_element_type"):
            return self.seen(x, dim)
        if name == "transpose":
            return self.seen(x, p["permutation"][dim])
        if name == "broadcast_in_dim":
            dims = list(p["broadcast_dimensions"])
            if dim in dims and old[dims.index(dim)] == new[dim]:
                return self.seen(x, dims.index(dim))
        else:
            before = _place(old, new, dim)
            return None if before is None else self.seen(x, before)
        if not x.aval.ndim:
            return self.seen(x, 0)
        own = self.seen(x, 0)
        return Seen(own.anywhere.any(keepdims=True), own.everywhere.all(keepdims=True))

    def _compared(self, eqn: JaxprEqn, dim: int) -> Seen | None:
        """A comparison of numbers, or whatever else common arithmetic makes true."""
        numbers = [self.counters.of(x) for x in eqn.invars]
        a, b = (numbers[0], numbers[1]) if len(numbers) == 2 else (None, None)
        if a is None or b is None:
            return None
        name = eqn.primitive.name
        if name in _ORDERS and _is_apart(a, b, dim):
            compare, low, high = _ORDERS[name], _extremes(a, dim), _extremes(b, dim)
            less = name in ("lt", "le")
            anywhere = compare(low[0], high[1]) if less else compare(low[1], high[0])
            everywhere = compare(low[1], high[0]) if less else compare(low[0], high[1])
            return Seen(anywhere, everywhere)
        made = evaluated(eqn, [a, b])
        return None if made is None else _along(made, dim)


@dataclass
class Step(Known):
    """What is known in a step of a loop.

    Attributes:
        loop: the loop; the level is its body.
        around: what is known where it stands.
        at: the index of the step; None: of any.
    """

    loop: Loop = field(kw_only=True)
    around: Known = field(kw_only=True)
    at: int | None = field(kw_only=True)

    @cached_property
    def _places(self) -> dict[Var, tuple[str, int]]:
        loop = self.loop
        kinds = {"const": loop.body_consts, "carry": loop.body_carry, "x": loop.body_xs}
        return {v: (kind, k) for kind, variables in kinds.items() for k, v in enumerate(variables)}

    def of_input(self, v: Var) -> np.ndarray | None:
        """The number of an input of the step."""
        loop, known = self.loop, self.around.counters
        kind, k = self._places.get(v, ("", 0))
        if kind == "const":
            return known.of(loop.consts[k])
        if self.at is None or not kind:
            return None
        if kind == "carry":
            return self._counter(known.of(loop.init[k]), v, loop.next_carry[k], self.at)
        whole = known.of(loop.xs[k])
        return None if whole is None else whole[self.at if len(whole) > 1 else 0]

    def _counter(self, first: np.ndarray | None, v: Var, after: Atom, at: int) -> np.ndarray | None:
        """A carry to which every step adds a number."""
        eqn = self.level.maker(after)
        if first is None or eqn is None or eqn.primitive.name != "add" or v not in eqn.invars:
            return None
        by = next((x for x in eqn.invars if x is not v), None)
        number = None if by is None else self.counters.of(by)
        steps = self.loop.length - 1 - at if self.loop.reverse else at
        return None if number is None else np.asarray(first + steps * number, first.dtype)

    def seen_of_input(self, mask: Var, dim: int) -> Seen | None:
        """Where an input of the step is true along a dimension; it may be what a loop before this one stacked."""
        loop, around = self.loop, self.around
        kind, k = self._places.get(mask, ("", 0))
        if kind == "const":
            return around.seen(loop.consts[k], dim)
        if kind != "x" or self.at is None:
            return None
        maker = around.level.maker(loop.xs[k])
        before = None if maker is None else as_loop(maker)
        if before is not None and loop.xs[k] in before.ys:
            made = before.body_ys[list[Any](before.ys).index(loop.xs[k])]
            return step_of(around, before, self.at).seen(made, dim)
        return None


def step_of(known: Known, loop: Loop, at: int | None) -> Step:
    """What is known in a step of a loop that stands where `known` is about."""
    return Step(known.inside(loop.body), loop=loop, around=known, at=at)


@dataclass
class Part(Known):
    """What is known of equations that read values of a level.

    Attributes:
        around: what is known of that level.
        reads: which of its values each input is.
    """

    around: Known = field(kw_only=True)
    reads: Mapping[Var, Var] = field(kw_only=True)

    def of_input(self, v: Var) -> np.ndarray | None:
        """The number of an input, as it is outside."""
        return self.around.counters.of(self.reads[v]) if v in self.reads else None

    def seen_of_input(self, mask: Var, dim: int) -> Seen | None:
        """Where an input is true, as it is outside."""
        return self.around.seen(self.reads[mask], dim) if mask in self.reads else None


def _along(mask: np.ndarray, dim: int) -> Seen:
    """Where entries are true along a dimension."""
    others = tuple(d for d in range(mask.ndim) if d != dim)
    mask = mask.reshape(mask.shape or (1,))
    return Seen(mask.any(others), mask.all(others))


def _is_apart(a: np.ndarray, b: np.ndarray, dim: int) -> bool:
    """Whether only one of two numbers varies along a dimension, and the other one along none of its others."""

    def along(x: np.ndarray) -> bool:
        return x.ndim > dim and x.shape[dim] > 1

    def across(x: np.ndarray) -> bool:
        return any(n > 1 for d, n in enumerate(x.shape) if d != dim)

    return not (along(a) and across(a)) and not (along(b) and across(b)) and not (across(a) and across(b))


def _extremes(x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest by index of a dimension."""
    if not x.ndim:
        return x.reshape(1), x.reshape(1)
    others = tuple(d for d in range(x.ndim) if d != dim)
    return x.min(others), x.max(others)


def _place(old: tuple[int, ...], new: tuple[int, ...], dim: int) -> int | None:
    """Which dimension a dimension was before a reshape that only adds or drops unit dimensions; None of another."""
    if [n for n in old if n != 1] != [n for n in new if n != 1] or new[dim] == 1:
        return None
    before = sum(n != 1 for n in new[:dim])
    return [d for d, n in enumerate(old) if n != 1][before]


def compares_counters(known: Known, mask: Atom) -> bool:
    """Whether places are compared with places on the way to a mask."""
    waiting, looked_at = [mask], set[Atom]()
    while waiting:
        x = waiting.pop()
        eqn = known.level.maker(x)
        if not is_var(x) or x in looked_at:
            continue
        looked_at.add(x)
        read = [x] if eqn is None else eqn.invars if eqn.primitive.name in _ORDERS else []
        numbers = [known.counters.of(y) for y in read]
        if numbers and all(n is not None for n in numbers) and any(n is not None and n.size > 1 for n in numbers):
            return True
        if eqn is not None and (eqn.primitive.name in VIEWS or eqn.primitive.name in JOINED):
            waiting += eqn.invars
    return False
