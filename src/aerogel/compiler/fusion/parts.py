"""Values that are put together from parts along time: `jnp.concatenate([x0[None], ys])` and what is made of it.

A trajectory with its initial state in front is one array more, and the loop's steps no longer are its entries. But what
works entry by entry works on each part, a reduction is that of the parts combined, and a slice cuts the parts: the
whole is never needed.
"""

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var, convert_element_type

from ..axes import Axis, Mapped, No, Reduced, along, take_block
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..level import Edit, Level
from ..loop import Loop, as_loop
from ..program import Builder, is_var
from ..record import record

MOST_PARTS = 4
MOST_EQUATIONS = 200


@record
class Part:
    """Entries `start .. start + length` of `whole` (all there are, where `start` is 0 and the lengths agree)."""

    whole: Atom
    start: int
    length: int


@record
class Joint:
    """A value that is `parts`, one after the other, along the plain dimension `dim`."""

    dim: int
    parts: tuple[Part, ...]

    @property
    def length(self) -> int:
        """Entries along the dimension."""
        return sum(part.length for part in self.parts)

    def cut(self, start: int, length: int) -> "Joint":
        """The parts of a slice."""
        found, at = [], 0
        for part in self.parts:
            first, last = max(start - at, 0), min(start + length - at, part.length)
            if first < last:
                found.append(Part(part.whole, part.start + first, last - first))
            at += part.length
        return Joint(self.dim, tuple(found))


def take_apart(level: Level, place: int) -> Edit | No:
    """The edit that takes the concatenation at `place`, and all made of it, part by part; or why there is none."""
    return _Parts(level, place).run()


class _Parts:
    def __init__(self, level: Level, place: int):
        self.level, self.place = level, place
        self.builder = Builder(level.eqns[place])
        self.joints: dict[Var, Joint] = {}
        self.results: dict[Var, Atom] = {}  # what stands for values that are no joints any more

    def run(self) -> Edit | No:
        eqn = self.level.eqns[self.place]
        dim, (whole,) = eqn.params["dimension"], eqn.outvars
        if len(eqn.invars) > MOST_PARTS:
            return No("it has many parts")
        self.joints[whole] = Joint(dim, tuple(Part(x, 0, x.aval.shape[dim]) for x in eqn.invars if x.aval.shape[dim]))
        gone = {self.place}
        waiting = list(self.level.readers(whole))
        heapify(waiting)
        while waiting:
            k = heappop(waiting)
            if k in gone:
                continue
            if k == -1 or len(gone) > MOST_EQUATIONS:
                return No("it is needed as a whole")
            gone.add(k)
            eqn = self.level.eqns[k]
            refusal = self._equation(eqn)
            if refusal is not None:
                return refusal
            for reader in {r for v in eqn.outvars if v in self.joints for r in self.level.readers(v)}:
                heappush(waiting, reader)
        return Edit(max(gone), frozenset(gone), self.builder.eqns, self.results, frozenset(gone))

    def _equation(self, eqn: JaxprEqn) -> No | None:
        """Takes one equation part by part; or why not."""
        given = {k: self.joints[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in self.joints}
        sliced = self._view(eqn, given[0]) if 0 in given else None
        if sliced is not None:
            self._set(eqn.outvars[0], sliced)
            return None
        length = next(iter(given.values())).length
        if eqn.primitive.name in ("argmax", "argmin"):
            return No("the index in a part is found by a kernel of its own")
        if any(joint.length != length for joint in given.values()):
            return No("it joins values of different lengths")
        answer = along(eqn, {k: Axis(joint.dim) for k, joint in given.items()}, length)
        if isinstance(answer, No):
            return answer
        cuts = sorted({0, length, *(c for joint in given.values() for c in _borders(joint))})
        if len(cuts) > 2 * MOST_PARTS:
            return No("it has many parts")
        self.builder.like = eqn
        made = [self._block(eqn, answer, given, length, a, b - a) for a, b in pairwise(cuts)]
        if isinstance(answer, Reduced):
            self._combine(eqn, answer, made)
            return None
        for j, (var, axis) in enumerate(zip(eqn.outvars, answer.outs, strict=True)):
            if axis is None or not axis.is_plain:
                return No("a result mixes its entries with others")
            parts = tuple(Part(group[j], 0, b - a) for group, (a, b) in zip(made, pairwise(cuts), strict=True))
            self.joints[var] = Joint(axis.dim, parts)
        return None

    def _combine(self, eqn: JaxprEqn, answer: Reduced, made: list[list[Atom]]) -> None:
        """The results of a reduction from those of its parts."""
        width = len(made[0])

        def combined(*values: Any) -> list[Any]:
            groups = [values[k : k + width] for k in range(0, len(values), width)]
            total = groups[0]
            for group in groups[1:]:
                total = answer.monoid.combine(tuple(total), tuple(group))
            outs = zip(answer.finish(*total), eqn.outvars, strict=True)
            return [convert_element_type(x, v.aval.dtype, getattr(v.aval, "weak_type", False)) for x, v in outs]

        outs = self.builder.call(combined, *(x for group in made for x in group))
        self.results.update(zip(eqn.outvars, outs, strict=True))

    def _block(
        self,
        eqn: JaxprEqn,
        answer: Mapped | Reduced,
        given: dict[int, Joint],
        length: int,
        start: int,
        size: int,
    ) -> list[Atom]:
        """What `eqn` makes of the entries `start .. start + size`."""
        ins: list[Atom] = []
        for k, (x, axis) in enumerate(zip(eqn.invars, answer.ins, strict=True)):
            if k in given:
                ins.append(self._whole(given[k].cut(start, size)))
            elif axis is None:
                ins.append(x)
            else:
                ins += self.builder.call(lambda x, axis=axis: take_block(x, axis, length, start, size), x)
        return self.builder.call(lambda *blocks: list(answer.block(start, size, *blocks)), *ins)

    def _whole(self, joint: Joint) -> Atom:
        """A joint of one part as a value."""
        (part,) = joint.parts
        x, dim = part.whole, joint.dim
        if part.length == x.aval.shape[dim]:
            return x
        (out,) = self.builder.call(lambda x: lax.slice_in_dim(x, part.start, part.start + part.length, axis=dim), x)
        return out

    def _view(self, eqn: JaxprEqn, joint: Joint) -> Joint | None:
        """The parts of a reversal, or of a slice with stride 1; None for another equation."""
        if eqn.primitive.name == "rev" and tuple(eqn.params["dimensions"]) == (joint.dim,):
            return self._turned(joint)
        if eqn.primitive.name != "slice":
            return None
        p, dim, shape = eqn.params, joint.dim, eqn.invars[0].aval.shape
        strides = p["strides"] or (1,) * len(shape)
        others = (d for d in range(len(shape)) if d != dim)
        whole = all((p["start_indices"][d], p["limit_indices"][d], strides[d]) == (0, shape[d], 1) for d in others)
        if not whole or strides[dim] != 1:
            return None
        return joint.cut(p["start_indices"][dim], p["limit_indices"][dim] - p["start_indices"][dim])

    def _turned(self, joint: Joint) -> Joint:
        parts = []
        for part in reversed(joint.parts):
            (x,) = self.builder.call(lambda x: lax.rev(x, [joint.dim]), self._whole(Joint(joint.dim, (part,))))
            parts.append(Part(x, 0, part.length))
        return Joint(joint.dim, tuple(parts))

    def _set(self, var: Var, joint: Joint) -> None:
        """Notes what `var` is: a value of its own again where one part is left."""
        if len(joint.parts) == 1:
            self.results[var] = self._whole(joint)
        else:
            self.joints[var] = joint


def _borders(joint: Joint) -> list[int]:
    return [int(n) for n in np.cumsum([part.length for part in joint.parts])]


def joins_a_loop(level: Level, eqn: JaxprEqn) -> bool:
    """Whether one part of a concatenation along the leading dimension is what a loop stacks, or made of that."""
    if eqn.primitive.name != "concatenate" or eqn.params["dimension"] != 0:
        return False
    return any(loop_behind(level, x) is not None for x in eqn.invars)


# What a stacked value may go through and is one still.
THROUGH = frozenset((*ELEMENTWISE, "slice", "rev", "broadcast_in_dim"))


def loop_behind(level: Level, x: Atom, depth: int = 4) -> Loop | None:
    """The loop that stacks a value, or what the value is made of entry by entry in a few equations."""
    if not is_var(x) or x not in level.made_by or depth == 0:
        return None
    maker = level.eqns[level.made_by[x]]
    loop = as_loop(maker)
    if loop is not None:
        return loop if x in loop.ys else None
    if maker.primitive.name not in THROUGH:
        return None
    found = (loop_behind(level, v, depth - 1) for v in maker.invars)
    return next((loop for loop in found if loop is not None), None)
