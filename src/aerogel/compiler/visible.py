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

from .counters import Counters, evaluated
from .level import Level
from .loop import Loop, as_loop

VIEWS = frozenset("broadcast_in_dim reshape squeeze transpose convert_element_type copy".split())
# A comparison of one thing that varies along the axis with another that does not is decided by the extremes of that.
_ORDERS: Mapping[str, Any] = MappingProxyType(
    {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
)


@dataclass(frozen=True)
class Seen:
    """Where a mask is true along one of its dimensions, all others taken together.

    Attributes:
        anywhere: by index, whether it may be true for any of the others. Size 1 where all indices are alike.
        everywhere: by index, whether it is surely true for all of them.
    """

    anywhere: np.ndarray
    everywhere: np.ndarray

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
    """What is known of the values of one jaxpr in a nest of loops.

    Attributes:
        level: its equations.
        loop: the loop whose body it is; None of a whole program.
        around: where that loop stands.
        at: the index of the loop's step; None: of any.
    """

    level: Level
    loop: Loop | None = None
    around: "Known | None" = None
    at: int | None = None
    _inside: dict[Jaxpr, Level] = field(default_factory=dict)

    def step(self, loop: Loop, at: int | None) -> "Known":
        """What is known in a step of a loop that stands here."""
        if loop.body not in self._inside:
            self._inside[loop.body] = Level(loop.body)
        return Known(self._inside[loop.body], loop, self, at)

    @cached_property
    def counters(self) -> Counters:
        """The numbers that do not depend on data."""
        return Counters(self.level, self._input)

    @cached_property
    def _places(self) -> dict[Var, tuple[str, int]]:
        loop = self.loop
        if loop is None:
            return {}
        kinds = {"const": loop.body_consts, "carry": loop.body_carry, "x": loop.body_xs}
        return {v: (kind, k) for kind, variables in kinds.items() for k, v in enumerate(variables)}

    def _input(self, v: Var) -> np.ndarray | None:
        """The number of an input of the step."""
        loop, around = self.loop, self.around
        if loop is None or around is None or v not in self._places:
            return None
        kind, k = self._places[v]
        if kind == "const":
            return around.counters.of(loop.consts[k])
        if self.at is None:
            return None
        if kind == "x":
            whole = around.counters.of(loop.xs[k])
            return None if whole is None else whole[self.at if len(whole) > 1 else 0]
        return self._counter(around.counters.of(loop.init[k]), v, loop.next_carry[k])

    def _counter(self, first: np.ndarray | None, v: Var, after: Atom) -> np.ndarray | None:
        """A carry to which every step adds a number."""
        eqn, loop = self.level.maker(after), self.loop
        assert loop is not None
        assert self.at is not None
        if first is None or eqn is None or eqn.primitive.name != "add" or v not in eqn.invars:
            return None
        (by,) = [x for x in eqn.invars if x is not v] or [v]
        number = None if by is v else self.counters.of(by)
        steps = loop.length - 1 - self.at if loop.reverse else self.at
        return None if number is None else np.asarray(first + steps * number, first.dtype)

    def seen(self, mask: Atom, dim: int) -> Seen:
        """Where a mask is true along a dimension."""
        number = self.counters.of(mask) if self._is_small(mask) else None
        if number is not None:
            others = tuple(d for d in range(number.ndim) if d != dim)
            number = number.reshape(number.shape or (1,))
            return Seen(number.any(others), number.all(others))
        eqn = self.level.maker(mask)
        found = self._of_input(mask, dim) if eqn is None else self._of_equation(eqn, dim)
        return found or UNKNOWN

    def is_seen_by_all(self, mask: Atom, dim: int, value: bool) -> bool:
        """Whether a mask surely has a value somewhere along a dimension, for each of the other indices."""
        seen = self.seen(mask, dim)
        if (seen if value else seen.rest).everywhere.any():
            return True
        number = self.counters.of(mask)
        return number is not None and bool((number == value).any(dim).all())

    def _is_small(self, mask: Atom) -> bool:
        """Whether a mask is better looked at as a whole."""
        return mask.aval.size <= 1 << 12

    def _of_input(self, mask: Atom, dim: int) -> Seen | None:
        loop, around = self.loop, self.around
        if loop is None or around is None or mask not in self._places:
            return None
        kind, k = self._places[mask]
        if kind == "const":
            return around.seen(loop.consts[k], dim)
        if kind != "x" or self.at is None:
            return None
        maker = around.level.maker(loop.xs[k])
        before = None if maker is None else as_loop(maker)
        if before is not None and loop.xs[k] in before.ys:
            made = before.body_ys[before.ys.index(loop.xs[k])]
            return around.step(before, self.at).seen(made, dim)
        return None

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
        if made is None:
            return None
        others = tuple(d for d in range(made.ndim) if d != dim)
        return Seen(made.any(others), made.all(others))


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
