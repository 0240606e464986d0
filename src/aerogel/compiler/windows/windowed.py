"""The values of a level that are windows of arrays, and those that are made of such windows entry by entry.

The square of each window of an array holds windows of the squared array, which is smaller.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.elementwise import NAMES
from ..axes.rebind import bind, shape_of
from ..cost.primitives import DEAR
from ..known.even_indices import Even, EvenIndices
from ..level import Level
from ..program import Builder, is_var
from ..rules.once import once
from .windows import Windows, windows_of

ELEMENTWISE = frozenset(NAMES) - {"threefry2x32"}
SUMS = frozenset("reduce_sum reduce_prod reduce_max reduce_min dot_general scatter-add".split())
TURNS: dict[str, Callable[[Windows, JaxprEqn], Windows]] = {
    "transpose": lambda windows, eqn: windows.turned(eqn.params["permutation"]),
    "rev": lambda windows, eqn: windows.reversed(eqn.params["dimensions"]),
}
MANY = 8  # entries that read a value which is cheap to compute, from which on it is stored for them


@dataclass
class Windowed:
    """What each of these values reads."""

    level: Level
    arrays: Mapping[Var, Even]  # constants of the program
    finite: bool  # whether what they are multiplied by may be zeros
    _bases: dict[tuple[Builder, Var], Atom] = field(init=False, default_factory=dict)

    @cached_property
    def indices(self) -> EvenIndices:
        """What arrays of integers count."""
        return EvenIndices(self.level, self.arrays)

    @cached_property
    def shapes(self) -> dict[Var, Windows]:
        """How each of the values lies in an array."""
        found: dict[Var, Windows] = {}
        for eqn in self.level.eqns:
            if eqn.primitive.name == "gather":
                seen = self._gathered(eqn)
            elif eqn.primitive.name in TURNS:
                seen = TURNS[eqn.primitive.name](found[eqn.invars[0]], eqn) if eqn.invars[0] in found else None
            else:
                seen = self._made_of(eqn, found)
            if seen is not None:
                found[eqn.outvars[0]] = seen
        return found

    def _gathered(self, eqn: JaxprEqn) -> Windows | None:
        windows = windows_of(eqn, self.indices)
        return windows if windows is not None and windows.overlap else None

    def _made_of(self, eqn: JaxprEqn, found: dict[Var, Windows]) -> Windows | None:
        """The windows that an entrywise equation reads, if all that it reads besides are numbers."""
        if eqn.primitive.name not in ELEMENTWISE or len(eqn.outvars) != 1 or eqn.effects or not found:
            return None
        read = [found[x] for x in eqn.invars if is_var(x) and x in found]
        if any(one != read[0] for one in read) or not read or read[0].shape != shape_of(eqn.outvars[0]):
            return None
        if math.prod(read[0].array) > math.prod(read[0].shape):
            return None  # most of the array is in no window
        others = [x for x in eqn.invars if not (is_var(x) and x in found)]
        return read[0] if all(self._number(x) is not None for x in others) else None

    def _number(self, x: Atom) -> Atom | None:
        """The number that an array repeats, if it does."""
        if not shape_of(x):
            return x
        maker = self.level.maker(x)
        if maker is None or maker.primitive.name != "broadcast_in_dim" or shape_of(maker.invars[0]):
            return None
        return maker.invars[0]

    def is_cut_by(self, x: Var, axis: int) -> bool:
        """Whether entries along an axis of a value are slices of an array."""
        windows = self.shapes.get(x)
        return windows is not None and windows.at(axis, 0).is_slice

    def is_summed(self, x: Var) -> bool:
        """Whether all that is computed from a value ends in sums, which may be taken place by place."""
        waiting, seen = [x], {x}
        while waiting:
            for place in self.level.readers(waiting.pop()):
                eqn = self.level.eqns[place] if place >= 0 else None
                if eqn is None or eqn.primitive.name not in (*ELEMENTWISE, *SUMS, "broadcast_in_dim", *TURNS):
                    return False
                if eqn.primitive.name not in SUMS:
                    waiting += [v for v in eqn.outvars if v not in seen]
                    seen.update(eqn.outvars)
        return True

    def entry(self, builder: Builder, x: Var, axis: int, index: int) -> Atom:
        """A value at one index of an axis, without it."""
        base = self.base(builder, x, self.shapes[x].shape[axis])
        return builder.call(self.shapes[x].at(axis, index).cut, base)[0]

    def base(self, builder: Builder, x: Var, readers: int) -> Atom:
        """The array that a value is windows of, for so many entries that read it."""
        key = builder, x
        if key not in self._bases:
            eqn = self.level.eqns[self.level.made_by[x]]
            name, source = eqn.primitive.name, eqn.invars[0]
            if name in TURNS:
                assert is_var(source), "windows are made"
                self._bases[key] = self.base(builder, source, readers)
            else:
                self._bases[key] = source if name == "gather" else self._computed(builder, eqn, readers)
        return self._bases[key]

    def _computed(self, builder: Builder, eqn: JaxprEqn, readers: int) -> Atom:
        array = self.shapes[eqn.outvars[0]].array
        operands: list[Atom] = []
        for x in eqn.invars:
            number = self._number(x) if not (is_var(x) and x in self.shapes) else None
            if number is None:
                assert is_var(x), "a literal is a number"
                operands.append(self.base(builder, x, 0))
            elif shape_of(x):
                operands += builder.call(lambda v: lax.broadcast_in_dim(v, array, ()), number)
            else:
                operands.append(number)
        (out,) = builder.call(lambda *xs: bind(eqn, xs, eqn.params), *operands)
        shared = readers >= MANY or (readers > 1 and eqn.primitive.name in DEAR)
        return builder.call(once, out)[0] if shared and out.aval.dtype in (np.float32, np.float64) else out
