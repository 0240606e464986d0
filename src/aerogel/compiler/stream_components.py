"""A short last axis (the three coordinates of a point) taken apart: each component is computed by itself.

XLA's CPU backend fills a vector register along the last axis, so that an axis of 3 leaves most of it empty; and it does
not fuse a reduction over it well. Where everything maps over that axis, or reduces it, each component is computed by
itself, without the axis: one of length one would still be the last (a reduction beside it: 80 times slower).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from .axes import Axis, Mapped, Reduced
from .axes.elementwise import NAMES as ELEMENTWISE
from .axes.rebind import bind
from .level import Edit, Level, apply_edits
from .program import Builder
from .stream_growth import grow
from .streams import Group, Stream, groups, scope_of

LONGEST = 8
# Elements of a value, from which on taking it apart pays for the more kernels.
SMALLEST = 1 << 14
# Values so many times smaller than the largest may be put together again.
FEWER = 8


def by_component(jaxpr: Jaxpr) -> Jaxpr:
    """One level with its short last axes taken apart where nothing needs them whole; the same object if none is."""
    level = Level(jaxpr)
    edits = []
    for values, _ in groups(level, _is_short):
        seed = max(values, key=lambda v: (v.aval.size, -level.made_by[v]))
        values, touching = _group(level, seed, seed.aval.size // FEWER + 1)
        axis = Axis(len(seed.aval.shape) - 1)
        stream = grow(level, values, scope_of(level, touching), seed, axis, None)
        if (
            not stream.crossing
            and stream.large <= stream.where.keys()
            and all(map(partial(_has_form, stream), stream.answers))
        ):
            edits.append(_Apart(stream).run())
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _group(level: Level, seed: Var, least: int) -> Group:
    """The group of a value, of those with a short last axis and at least so many elements."""
    found = groups(level, lambda v: _is_short(v) and v.aval.size >= least)
    return next(one for one in found if seed in one[0])


def _is_short(v: Var) -> bool:
    shape = getattr(v.aval, "shape", ())
    return len(shape) > 1 and 1 < shape[-1] <= LONGEST and v.aval.size >= SMALLEST


def _has_form(stream: Stream, place: int) -> bool:
    """Whether an equation is computed for each component as well as for all: reductions, elementwise work, views."""
    eqn, answer = stream.level.eqns[place], stream.answers[place]
    if isinstance(answer, Reduced) or without_axis(eqn, answer) is not None:
        return True
    return not any(v in stream.large for v in (*eqn.outvars, *eqn.invars))


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
        """What an equation makes of component `k`, without its axis."""
        reads = [self._component(x, axis, k) for x, axis in self.stream.reads(place)]
        one = without_axis(self.stream.level.eqns[place], answer)
        if one is not None:
            return self.builder.call(lambda *values: list(one(*values)), *reads)

        def block(*values: Any) -> list[Any]:
            ins = zip(values, answer.ins, strict=True)
            outs = answer.block(
                np.int32(k), 1, *(v if axis is None else lax.expand_dims(v, [axis.dim]) for v, axis in ins)
            )
            if isinstance(answer, Reduced):
                return list(outs)
            return [
                v if axis is None else lax.squeeze(v, [axis.dim]) for v, axis in zip(outs, answer.outs, strict=True)
            ]

        return self.builder.call(block, *reads)

    def _component(self, x: Atom, axis: Axis | None, k: int) -> Atom:
        if isinstance(x, Literal):
            return x
        if axis is None:
            return self.results.get(x, x)
        if (x, axis) not in self.blocks:
            seen, dim = self.results.get(x, x), axis.dim
            self.blocks[x, axis] = [
                self.builder.call(lambda v, i=i: lax.index_in_dim(v, i, dim, keepdims=False), seen)[0]
                for i in range(self.stream.length)
            ]
        return self.blocks[x, axis][k]

    def _reduce(self, eqn: JaxprEqn, answer: Reduced, parts: list[list[Atom]]) -> None:
        n, totals = len(parts[0]), parts[0]
        for part in parts[1:]:
            totals = self.builder.call(
                lambda *values: list(answer.monoid.combine(tuple(values[:n]), tuple(values[n:]))), *totals, *part
            )
        for var, out in zip(eqn.outvars, self.builder.call(answer.finish, *totals), strict=True):
            self.results[var] = self.builder.as_weak_as(var, out)

    def _keep(self, eqn: JaxprEqn, answer: Mapped, outs: list[list[Atom]]) -> None:
        for n, (var, axis) in enumerate(zip(eqn.outvars, answer.outs, strict=True)):
            if axis is None:
                self.results[var] = self.builder.as_weak_as(var, outs[0][n])
                continue
            parts = self.blocks[var, axis] = [out[n] for out in outs]
            if any(not self.stream.reads_blocks(k, var) for k in self.stream.level.readers(var)):
                (whole,) = self.builder.call(partial(_stacked, axis.dim), *parts)
                self.results[var] = self.builder.as_weak_as(var, whole)


def _stacked(dim: int, *parts: Any) -> Any:
    return lax.concatenate([lax.expand_dims(x, [dim]) for x in parts], dim)


def without_axis(eqn: JaxprEqn, answer: Mapped | Reduced) -> Callable[..., Sequence[Any]] | None:
    """The equation for one index of a plain axis, on operands and to results without it; None if it has no such form.

    Elementwise work, broadcasts and reductions over other dimensions have one.
    """
    if isinstance(answer, Reduced) or not all(axis is None or axis.is_plain for axis in (*answer.ins, *answer.outs)):
        return None
    name, params = eqn.primitive.name, eqn.params
    whole = {k for k, axis in enumerate(answer.ins) if axis is None}
    if name in ELEMENTWISE:
        gone = answer.outs[0].dim if answer.outs[0] is not None else 0
        return lambda *values: bind(eqn, [_without(v, gone) if k in whole else v for k, v in enumerate(values)], params)
    if name == "broadcast_in_dim":
        return _narrower_broadcast(eqn, answer)
    if name in REDUCTIONS and answer.ins[0] is not None:
        gone = answer.ins[0].dim
        axes = tuple(d - (d > gone) for d in params["axes"])
        return lambda *values: bind(eqn, values, params | {"axes": axes})
    return None


def _without(x: Any, dim: int) -> Any:
    """An operand that does not vary along `dim`: it has rank 0 or the length one there."""
    return lax.squeeze(x, [dim]) if x.ndim else x


REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")


def _narrower_broadcast(eqn: JaxprEqn, answer: Mapped) -> Callable[..., Sequence[Any]] | None:
    (out,), source = answer.outs, answer.ins[0] if answer.ins else None
    if out is None:
        return None
    shape, into = list(eqn.params["shape"]), list(eqn.params["broadcast_dimensions"])
    if source is not None and into[source.dim] != out.dim:
        return None
    # of an operand that does not vary along the axis, a dimension of length one
    ones = [] if source is not None else [k for k, d in enumerate(into) if d == out.dim]
    del shape[out.dim]
    dims = tuple(d - (d > out.dim) for d in into if d != out.dim)
    return lambda x: [lax.broadcast_in_dim(lax.squeeze(x, ones), tuple(shape), dims)]
