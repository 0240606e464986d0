"""A short last axis (the three coordinates of a point) taken apart: each component is computed by itself.

XLA's CPU backend fills a vector register along the last axis, so that an axis of 3 leaves most of it empty; and it does
not fuse a reduction over it well. Where everything maps over that axis, or reduces it, each component is computed with
the axis of length one, which the backend does not see.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from .axes import Axis, Mapped, Reduced, take_block
from .level import Edit, Level, apply_edits
from .program import Builder, is_var
from .streams import Stream, grow, groups, scope_of

LONGEST = 8
# Elements of a value, from which on taking it apart pays for the more kernels.
SMALLEST = 1 << 14


def by_component(jaxpr: Jaxpr) -> Jaxpr:
    """One level with its short last axes taken apart where nothing needs them whole; the same object if none is."""
    level = Level(jaxpr)
    edits = []
    for values, touching in groups(level, _is_short):
        seed = max(values, key=lambda v: (v.aval.size, -level.made_by[v]))
        axis = Axis(len(seed.aval.shape) - 1)
        stream = grow(level, values, scope_of(level, touching), seed, axis, None)
        if not stream.crossing and stream.large <= stream.where.keys():
            edits.append(_Apart(stream).run())
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _is_short(v: Var) -> bool:
    shape = getattr(v.aval, "shape", ())
    return len(shape) > 1 and 1 < shape[-1] <= LONGEST and v.aval.size >= SMALLEST


@dataclass
class _Apart:
    stream: Stream
    builder: Builder = field(init=False)
    blocks: dict[tuple[Atom, Axis], list[Atom]] = field(default_factory=dict)  # a value -> its components
    results: dict[Var, Atom] = field(default_factory=dict)

    def run(self) -> Edit:
        stream = self.stream
        places = sorted(stream.answers)
        self.builder = Builder(stream.level.eqns[places[0]])
        for place in places:
            eqn, answer = stream.level.eqns[place], stream.answers[place]
            self.builder.like = eqn
            outs = [self._run(place, answer, k) for k in range(stream.length)]
            if isinstance(answer, Reduced):
                self._reduce(eqn, answer, outs)
            else:
                self._keep(eqn, answer, outs)
        gone = frozenset(places)
        return Edit(min(gone), gone, self.builder.eqns, self.results, gone)

    def _run(self, place: int, answer: Mapped | Reduced, k: int) -> list[Atom]:
        reads = [self._component(x, axis, k) for x, axis in self.stream.reads(place)]
        return self.builder.call(lambda *values: list(answer.block(np.int32(k), 1, *values)), *reads)

    def _component(self, x: Atom, axis: Axis | None, k: int) -> Atom:
        if isinstance(x, Literal):
            return x
        if axis is None:
            return self.results.get(x, x)
        if (x, axis) not in self.blocks:
            seen, length = self.results.get(x, x), self.stream.length
            self.blocks[x, axis] = [
                self.builder.call(lambda v, i=i: take_block(v, axis, length, i, 1), seen)[0] for i in range(length)
            ]
        return self.blocks[x, axis][k]

    def _reduce(self, eqn: JaxprEqn, answer: Reduced, parts: list[list[Atom]]) -> None:
        n, totals = len(parts[0]), parts[0]
        for part in parts[1:]:
            totals = self.builder.call(
                lambda *values: list(answer.monoid.combine(tuple(values[:n]), tuple(values[n:]))), *totals, *part
            )
        for var, out in zip(eqn.outvars, self.builder.call(answer.finish, *totals), strict=True):
            self._stand_for(var, out)

    def _keep(self, eqn: JaxprEqn, answer: Mapped, outs: list[list[Atom]]) -> None:
        for n, (var, axis) in enumerate(zip(eqn.outvars, answer.outs, strict=True)):
            if axis is None:
                self._stand_for(var, outs[0][n])
                continue
            parts = self.blocks[var, axis] = [out[n] for out in outs]
            if any(not self.stream.reads_blocks(k, var) for k in self.stream.level.readers(var)):
                self._stand_for(var, self.builder.call(lambda *xs: lax.concatenate(xs, axis.dim), *parts)[0])

    def _stand_for(self, var: Var, atom: Atom) -> None:
        weak = getattr(var.aval, "weak_type", False)
        if weak != getattr(atom.aval, "weak_type", False):
            (atom,) = self.builder.call(lambda v: _jax.convert_element_type(v, var.aval.dtype, weak), atom)
        self.results[var] = atom
