"""Entries that indices pick of what is computed entry by entry: they are picked first, and computed alone.

`log_softmax(z)[arange(n), t]` is `z[arange(n), t]` less a number for each row. XLA computes so as well where nobody
else reads what is picked from; but the exponentials of the softmax do, and the shifted logits, as large as `z`, are
stored for both (jaxlib 0.10.2).
"""

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.elementwise import NAMES
from ..axes.rebind import bind, shape_of
from ..known.picks import batched_pick
from ..level import Edit, Level
from ..program import Builder, is_var, rename, substitute
from ..record import record

ELEMENTWISE = frozenset(NAMES) - {"threefry2x32"}
LONGEST_CHAIN = 12
FEW = 8  # times as many entries there are as are picked


def picked_early(level: Level, place: int) -> Edit | None:
    """The edit that computes what the gather at `place` picks from its operands' entries; None if that cannot be."""
    eqn = level.eqns[place]
    x = eqn.invars[0]
    maker = level.maker(x)
    if maker is None or not _is_entrywise(maker) or FEW * eqn.outvars[0].aval.size > x.aval.size:
        return None
    if any(_jax.explicit_mesh(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return None
    (out,), builder = eqn.outvars, Builder(eqn)
    gather, after, end = RowsGather.of(eqn), list[JaxprEqn](), eqn.outvars[0]
    if gather is None:  # `x[arange(n), t]` counts its rows: as a gather along one dimension it has none
        edit = batched_pick(level, place)
        if edit is None:
            return None
        k = next(k for k, one in enumerate(edit.eqns) if one.primitive.name == "gather")
        gather, after, end = RowsGather.of(edit.eqns[k]), list(edit.eqns[k + 1 :]), edit.results[out]
        builder.eqns += edit.eqns[:k]
        if gather is None:
            return None
    picking = Picking(level, gather, builder)
    result = picking.entry(x, 0)
    if picking.gathers != 1:
        return None
    env = {gather.eqn.outvars[0]: gather.filled(builder, result)}
    builder.eqns += [rename(one, env) for one in after]
    result = builder.as_weak_as(out, substitute(end, env))
    here = frozenset({place})
    return Edit(place, here, builder.eqns, {out: result}, here) if result.aval == out.aval else None


def _is_entrywise(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ELEMENTWISE and len(eqn.outvars) == 1 and not eqn.effects


@record
class RowsGather:
    """A gather of single entries along dimension `dim`, all other dimensions of its operand being rows.

    Attributes:
        at: for each of the rows' dimensions, that of the result.
    """

    eqn: JaxprEqn
    dim: int
    at: tuple[int, ...]

    @classmethod
    def of(cls, eqn: JaxprEqn) -> "RowsGather | None":
        """What a gather is, if it is such a one."""
        p, (x, index) = eqn.params["dimension_numbers"], eqn.invars
        rank = len(x.aval.shape)
        if len(p.start_index_map) != 1 or any(n != 1 for n in eqn.params["slice_sizes"]):
            return None
        (dim,) = map(int, p.start_index_map)
        if [*map(int, p.operand_batching_dims)] != [d for d in range(rank) if d != dim]:
            return None
        if np.dtype(index.aval.dtype).itemsize < 4 or eqn.params["mode"] == lax.GatherScatterMode.ONE_HOT:
            return None
        free = [d for d in range(len(eqn.outvars[0].aval.shape)) if d not in p.offset_dims]
        return cls(eqn, dim, tuple(free[int(k)] for k in p.start_indices_batching_dims))

    @property
    def fills(self) -> bool:
        """Whether something stands for entries out of bounds."""
        return self.eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP

    def picked(self, builder: Builder, x: Atom) -> Atom:
        """The entries of another operand of the same shape; of an index out of bounds, the nearest one."""
        mode = lax.GatherScatterMode.CLIP if self.fills else self.eqn.params["mode"]
        params = dict(self.eqn.params, mode=mode, fill_value=None)
        return builder.call(lambda *xs: bind(self.eqn, xs, params), x, self.eqn.invars[1])[0]

    def row(self, builder: Builder, x: Atom, to: tuple[int, ...]) -> Atom:
        """A value that does not vary along our dimension, its own lying along those `to`, in the result's shape."""
        shape, at = self.eqn.outvars[0].aval.shape, iter(self.at)
        where = {d: next(at) for d in range(len(self.eqn.invars[0].aval.shape)) if d != self.dim}
        kept = [k for k, d in enumerate(to) if d != self.dim]

        def spread(v: Any) -> Any:
            v = lax.reshape(v, [v.shape[k] for k in kept])
            places = [where[to[k]] for k in kept]
            order = sorted(range(len(kept)), key=lambda k: places[k])
            v = lax.transpose(v, order) if order != list(range(len(order))) else v
            return lax.broadcast_in_dim(v, shape, sorted(places))

        return builder.call(spread, x)[0]

    def filled(self, builder: Builder, result: Atom) -> Atom:
        """The result, with the gather's filling where an index is out of bounds."""
        if not self.fills:
            return result
        p, n = self.eqn.params["dimension_numbers"], self.eqn.invars[0].aval.shape[self.dim]
        fill, shape = self.eqn.params["fill_value"], self.eqn.outvars[0].aval.shape
        free = [d for d in range(len(shape)) if d not in p.offset_dims]

        def fill_in(v: Any, i: Any) -> Any:
            i = lax.squeeze(i, [i.ndim - 1])
            inside = lax.lt(i, np.asarray(n, i.dtype))
            if jnp.issubdtype(i.dtype, jnp.signedinteger):
                inside = lax.bitwise_and(inside, lax.ge(i, np.asarray(0, i.dtype)))
            return lax.select(lax.broadcast_in_dim(inside, shape, free), v, lax.full_like(v, _filling(fill, v.dtype)))

        return builder.call(fill_in, result, self.eqn.invars[1])[0]


def _filling(fill: Any, dtype: Any) -> Any:
    """What stands where an index is out of bounds, as `lax.gather` has it."""
    if fill is not None:
        return fill
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    return np.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.signedinteger) else np.iinfo(dtype).max


@dataclass
class Picking:
    """Writes entries of values, from the gather up.

    Attributes:
        gathers: how many whole values are picked from.
        varying: the values of which another entry may be another number, but for literals.
    """

    level: Level
    gather: RowsGather
    builder: Builder
    made: dict[Atom, Atom] = field(default_factory=dict)
    gathers: int = 0
    varying: set[Var] = field(default_factory=set)

    def varies(self, x: Atom) -> bool:
        """Whether another entry of a row would be another number, of what an entry was asked for."""
        return x in self.varying if is_var(x) else bool(shape_of(x))

    def entry(self, x: Atom, depth: int) -> Atom:
        """What is picked of a value that goes into an entrywise equation of the operand's shape."""
        if not shape_of(x):
            return x
        if not is_var(x):  # a literal that is an array
            return self._entry(x, depth)
        if x not in self.made:
            self.made[x] = self._entry(x, depth)
        return self.made[x]

    def _entry(self, x: Atom, depth: int) -> Atom:
        shape, dim = self.gather.eqn.invars[0].aval.shape, self.gather.dim
        maker = self.level.maker(x)
        if shape_of(x)[dim] != shape[dim]:
            return self.gather.row(self.builder, x, tuple(range(len(shape))))
        if maker is not None and maker.primitive.name == "broadcast_in_dim" and len(maker.invars) == 1:
            source, to = maker.invars[0], tuple(map(int, maker.params["broadcast_dimensions"]))
            if not is_var(source):
                return self.gather.row(self.builder, source, to)
            if all(d != dim or n == 1 for d, n in zip(to, shape_of(source), strict=True)):
                return self.gather.row(self.builder, source, to)
        if maker is not None and _is_entrywise(maker) and depth < LONGEST_CHAIN:
            operands = [self.entry(y, depth + 1) for y in maker.invars]
            if is_var(x) and any(map(self.varies, maker.invars)):
                self.varying.add(x)
            return self.builder.call(lambda *xs: bind(maker, xs, maker.params), *operands)[0]
        self.gathers += 1
        full = x
        if is_var(x):
            self.varying.add(x)
        if shape_of(x) != tuple(shape):  # of one row, say
            (full,) = self.builder.call(lambda v: lax.broadcast_in_dim(v, shape, tuple(range(len(shape)))), x)
        return self.gather.picked(self.builder, full)
