"""What stands where along a dimension of a value that is cut, joined, padded and written at known places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes.rebind import shape_of
from ..program import is_var
from ..record import record

Maker = Callable[[Atom], JaxprEqn | None]
Constant = Callable[[Atom], int | None]


@record
class Stretch:
    """`size` places along a dimension: of `source` from `start` on, or zeros where that is None.

    A source may lack the dimension where the stretch is one place long.
    """

    source: Atom | None
    start: int
    size: int


@dataclass
class LaidOut:
    """Values of a level as stretches along one dimension.

    Attributes:
        dim: the dimension.
        maker: the equation that makes a value; None where it is from outside.
        constant: the one number that a value of integers repeats, if that is known.
        zeros: whether a value is known to be zeros.
    """

    dim: int
    maker: Maker
    constant: Constant
    zeros: Callable[[Atom], bool]
    _known: dict[Var, tuple[Stretch, ...]] = field(init=False, default_factory=dict)

    def of(self, x: Atom) -> tuple[Stretch, ...]:
        """The stretches of a value, as few as are known."""
        if not is_var(x):
            return self._whole(x)
        if x not in self._known:
            eqn = self.maker(x)
            found = None if eqn is None or eqn.effects or len(eqn.outvars) != 1 else self._made(eqn)
            self._known[x] = self._whole(x) if found is None else _merged(found)
        return self._known[x]

    def _whole(self, x: Atom) -> tuple[Stretch, ...]:
        n = shape_of(x)[self.dim]
        return (Stretch(None if self.zeros(x) else x, 0, n),)

    def _made(self, eqn: JaxprEqn) -> Sequence[Stretch] | None:
        makes = {
            "concatenate": self._concatenated,
            "slice": self._sliced,
            "pad": self._padded,
            "add": self._added,
            "add_any": self._added,
            "scatter": self._written,
            "dynamic_update_slice": self._updated,
        }.get(eqn.primitive.name)
        return None if makes is None else makes(eqn)

    def _concatenated(self, eqn: JaxprEqn) -> Sequence[Stretch] | None:
        return [one for x in eqn.invars for one in self.of(x)] if eqn.params["dimension"] == self.dim else None

    def _sliced(self, eqn: JaxprEqn) -> Sequence[Stretch] | None:
        p, shape = eqn.params, shape_of(eqn.invars[0])
        starts, stops = p["start_indices"], p["limit_indices"]
        others = [d for d in range(len(shape)) if d != self.dim]
        if any(n != 1 for n in p["strides"] or ()) or any((starts[d], stops[d]) != (0, shape[d]) for d in others):
            return None
        return _cut(self.of(eqn.invars[0]), starts[self.dim], stops[self.dim])

    def _padded(self, eqn: JaxprEqn) -> Sequence[Stretch] | None:
        around = [tuple(map(int, one)) for one in eqn.params["padding_config"]]
        low, high, inner = around[self.dim]
        if any(any(one) for d, one in enumerate(around) if d != self.dim) or inner or low < 0 or high < 0:
            return None
        if not is_zero_number(eqn.invars[1]):
            return None
        return [Stretch(None, 0, low), *self.of(eqn.invars[0]), Stretch(None, 0, high)]

    def _added(self, eqn: JaxprEqn) -> Sequence[Stretch] | None:
        """A sum of values that overlap nowhere."""
        if any(shape_of(x) != shape_of(eqn.outvars[0]) for x in eqn.invars):
            return None
        a, b = (self.of(x) for x in eqn.invars)
        edges = sorted({*_edges(a), *_edges(b)})
        found: list[Stretch] = []
        for low, high in pairwise(edges):
            one, other = _cut(a, low, high)[0], _cut(b, low, high)[0]
            if one.source is not None and other.source is not None:
                return None
            found.append(other if one.source is None else one)
        return found

    def _written(self, eqn: JaxprEqn) -> Sequence[Stretch] | None:
        into, index, update = eqn.invars
        p = eqn.params["dimension_numbers"]
        shape, at = shape_of(into), self.constant(index)
        alone = tuple(p.inserted_window_dims) == tuple(p.scatter_dims_to_operand_dims) == (self.dim,)
        rest = (*shape[: self.dim], *shape[self.dim + 1 :])
        if not alone or p.operand_batching_dims or shape_of(update) != rest or shape_of(index) != (1,):
            return None
        if eqn.params["update_jaxpr"] is not None or at is None or not 0 <= at < shape[self.dim]:
            return None
        return self._with(into, at, Stretch(None if self.zeros(update) else update, 0, 1))

    def _updated(self, eqn: JaxprEqn) -> Sequence[Stretch] | None:
        into, update, *starts = eqn.invars
        places, size, shape = [self.constant(x) for x in starts], shape_of(update), shape_of(into)
        if any(n != shape[d] for d, n in enumerate(size) if d != self.dim):
            return None
        at = places[self.dim]
        if at is None or not 0 <= at <= shape[self.dim] - size[self.dim]:
            return None
        return self._with(into, at, Stretch(None if self.zeros(update) else update, 0, size[self.dim]))

    def _with(self, into: Atom, at: int, one: Stretch) -> Sequence[Stretch]:
        n = shape_of(into)[self.dim]
        return [*_cut(self.of(into), 0, at), one, *_cut(self.of(into), at + one.size, n)]


def is_zero_number(x: Atom) -> bool:
    """Whether an atom is a literal zero, and no negative one."""
    return isinstance(x, Literal) and np.ndim(x.val) == 0 and x.val == 0 and not np.signbit(np.real(x.val))


def _edges(parts: Sequence[Stretch]) -> list[int]:
    return np.cumsum([0, *(one.size for one in parts)]).tolist()


def _cut(parts: Sequence[Stretch], start: int, stop: int) -> list[Stretch]:
    found, at = list[Stretch](), 0
    for one in parts:
        low, high = max(at, start), min(at + one.size, stop)
        if low < high:
            found.append(replace(one, start=one.start + low - at, size=high - low))
        at += one.size
    return found


def _merged(parts: Sequence[Stretch]) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    for one in parts:
        last: Any = found[-1] if found else None
        if not one.size:
            continue
        if (
            last is not None
            and last.source is one.source
            and (one.source is None or last.start + last.size == one.start)
        ):
            found[-1] = replace(last, size=last.size + one.size)
        else:
            found.append(one)
    return tuple(found)
