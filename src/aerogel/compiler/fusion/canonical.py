"""What JAX's derivatives write in a roundabout way, in the form that loops take in best. Nothing here reads more.

* Picking one entry of each row by counted indices (`logp[jnp.arange(n), labels]`) is picking along an axis; the
  diagonal of a transpose is that of the matrix.
* The gradient of picking one entry of each row (`take_along_axis`, the label's logit under a cross-entropy) is a
  scatter into zeros. As a comparison with a counter it fuses into what reads it, and its sum over the row is known. So
  does a scatter into what is made entry by entry for it.
* The gradient of a weight is the transpose of a product. The product with its operands exchanged needs none, and can be
  summed up in a loop as it is wanted.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..known.picks import batched_pick, is_zeros, untransposed_diagonal
from ..level import Edit, Level, apply_edits
from ..products import may_swap
from ..program import Builder, is_var
from ..record import record


def canonical(jaxpr: Jaxpr) -> Jaxpr:
    """One level in that form; the same object when it is already."""
    if not any(eqn.primitive.name in ("gather", "scatter-add", "transpose") for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(jaxpr)
    picks = (
        batched_pick(level, i) for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name in ("gather", "scatter-add")
    )
    edits = [edit for edit in picks if edit is not None]
    if edits:
        jaxpr = apply_edits(jaxpr, edits)[0]
        level, edits = Level(jaxpr), []
    for place, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "scatter-add":
            one = one_entry(level, eqn)
            edit = _added(level, place) if one is None else _compared(level, place, one)
        elif eqn.primitive.name == "gather":
            edit = untransposed_diagonal(level, place)
        else:
            edit = _exchanged(level, place) if eqn.primitive.name == "transpose" else None
        if edit is not None:
            edits.append(edit)
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


@record
class OneEntry:
    """A scatter of one entry into each row of zeros; rows lie along dimension `dim`."""

    eqn: JaxprEqn
    dim: int

    def index(self, index: Any) -> Any:
        """The place of the entry in each row, shaped like the entries; those out of bounds are in no row."""
        index = lax.reshape(index, self.eqn.invars[2].aval.shape)
        if self.eqn.params["mode"] == lax.GatherScatterMode.CLIP:
            last = np.asarray(self.eqn.outvars[0].aval.shape[self.dim] - 1, index.dtype)
            index = lax.clamp(np.zeros_like(last), index, last)
        return index

    def whole(self, index: Any, entry: Any) -> Any:
        """The result of the scatter into zeros."""
        hit, entry = self._everywhere(index, entry)
        return lax.select(hit, entry, lax.full(entry.shape, 0, entry.dtype))

    def added(self, into: Any, index: Any, entry: Any) -> Any:
        """Its result if it adds to something."""
        hit, entry = self._everywhere(index, entry)
        return lax.select(hit, lax.add(into, entry), into)

    def _everywhere(self, index: Any, entry: Any) -> tuple[Any, Any]:
        """Where the entry stands, and the entry in all of its row."""
        shape, every = self.eqn.outvars[0].aval.shape, tuple(range(entry.ndim))
        count = lax.broadcast_in_dim(lax.iota(index.dtype, shape[self.dim]), shape, (self.dim,))
        hit = lax.eq(count, lax.broadcast_in_dim(self.index(index), shape, every))
        return hit, lax.broadcast_in_dim(entry, shape, every)

    def summed(self, index: Any, entry: Any) -> Any:
        """The sum of each row of the result."""
        index = self.index(index)
        size = np.asarray(self.eqn.outvars[0].aval.shape[self.dim], index.dtype)
        there = lax.bitwise_and(lax.ge(index, np.zeros_like(size)), lax.lt(index, size))
        return lax.squeeze(lax.select(there, entry, lax.full_like(entry, 0)), [self.dim])


def one_entry(level: Level, eqn: JaxprEqn) -> OneEntry | None:
    """What a scatter is, if it puts one entry into each row of zeros."""
    return _one_of_rows(eqn) if is_zeros(level, eqn.invars[0]) else None


def _one_of_rows(eqn: JaxprEqn) -> OneEntry | None:
    """The same of anything in the place of zeros."""
    into, index, entry = eqn.invars
    numbers, shape = eqn.params["dimension_numbers"], into.aval.shape
    if len(numbers.scatter_dims_to_operand_dims) != 1:
        return None
    dim = int(numbers.scatter_dims_to_operand_dims[0])
    rows = tuple(d for d in range(len(shape)) if d != dim)
    if tuple(numbers.inserted_window_dims) == (dim,) and not numbers.update_window_dims:
        counted = rows
    elif not numbers.inserted_window_dims and tuple(numbers.update_window_dims) == (dim,):
        counted = tuple(range(len(rows)))  # windows of one entry, as `vmap` makes them of `x[i]`
    else:
        return None
    if (
        tuple(numbers.operand_batching_dims) != rows
        or tuple(numbers.scatter_indices_batching_dims) != counted
        or entry.aval.shape != tuple(1 if d == dim else n for d, n in enumerate(shape))
        or np.dtype(index.aval.dtype).itemsize < 4
        or 0 in shape
    ):
        return None
    return OneEntry(eqn, dim)


def _added(level: Level, place: int) -> Edit | None:
    """The scatter into what is made for it, entry by entry, as a choice that is made with that."""
    eqn = level.eqns[place]
    (into, *reads), maker, one = eqn.invars, level.maker(eqn.invars[0]), _one_of_rows(eqn)
    fuses = maker is not None and maker.primitive.name in (*ELEMENTWISE, "transpose")
    if one is None or not fuses or not is_var(into) or level.readers(into) != [place]:
        return None
    builder = Builder(eqn)
    (out,) = builder.call(one.added, into, *reads)
    return Edit(place, frozenset((place,)), builder.eqns, {eqn.outvars[0]: out}, frozenset((place,)))


def _compared(level: Level, place: int, one: OneEntry) -> Edit:
    """The scatter as a comparison, and the sums over its rows."""
    eqn = one.eqn
    builder, (_, *reads) = Builder(eqn), eqn.invars
    whole = eqn.outvars[0]
    results: dict[Var, Atom] = {whole: builder.call(one.whole, *reads)[0]}
    gone = {place}
    for value, total_of in linear_in(level, whole, one.dim):
        for k in level.readers(value):
            if k >= 0 and sums_rows(level.eqns[k], one.dim):
                (total,) = builder.call(one.summed, *reads)
                results[level.eqns[k].outvars[0]] = total_of(builder, total)
                gone.add(k)
    return Edit(place, frozenset(gone), builder.eqns, results, frozenset(gone))


RowSum = Callable[[Builder, Atom], Atom]


def linear_in(level: Level, whole: Var, dim: int) -> list[tuple[Var, RowSum]]:
    """Values that are `whole` up to a sign and what is added to each row, and how their rows' sums follow from its."""
    found: list[tuple[Var, RowSum]] = [(whole, lambda builder, total: total)]
    for value, total_of in found:
        for k in level.readers(value):
            eqn = level.eqns[k] if k >= 0 else None
            if eqn is not None and eqn.primitive.name == "neg":
                found.append((eqn.outvars[0], partial(_minus, total_of)))
            elif eqn is not None and eqn.primitive.name in ("add", "add_any"):
                (other,) = (x for x in eqn.invars if x is not value) if eqn.invars[0] is not eqn.invars[1] else (value,)
                row = _same_in_rows(level, other, dim)
                if row is not None and level.made_by[row.outvars[0]] < level.made_by[whole]:  # needs nothing of it
                    found.append((eqn.outvars[0], partial(_plus, total_of, row, dim, value.aval.shape[dim])))
    return found


def _minus(total_of: RowSum, builder: Builder, total: Atom) -> Atom:
    return builder.call(lax.neg, total_of(builder, total))[0]


def _plus(total_of: RowSum, row: JaxprEqn, dim: int, size: int, builder: Builder, total: Atom) -> Atom:
    """With `size` times what the broadcast `row` adds to each entry."""
    shape, dims = list(row.outvars[0].aval.shape), tuple(row.params["broadcast_dimensions"])
    kept = shape[:dim] + shape[dim + 1 :]
    into = tuple(d - (d > dim) for d in dims)
    (more,) = builder.call(lambda x: lax.broadcast_in_dim(x * np.asarray(size, x.dtype), kept, into), row.invars[0])
    return builder.call(lax.add, total_of(builder, total), more)[0]


def _same_in_rows(level: Level, x: Atom, dim: int) -> JaxprEqn | None:
    """The broadcast that makes a value whose entries do not differ along `dim`."""
    maker = level.maker(x)
    if maker is None or maker.primitive.name != "broadcast_in_dim" or dim in maker.params["broadcast_dimensions"]:
        return None
    return maker


def sums_rows(eqn: JaxprEqn, dim: int) -> bool:
    """Whether an equation sums up its operand along `dim` alone."""
    return eqn.primitive.name == "reduce_sum" and tuple(eqn.params["axes"]) == (dim,)


def _exchanged(level: Level, place: int) -> Edit | None:
    """A product whose transpose alone is read, with its operands exchanged, when that is what the transpose does."""
    eqn = level.eqns[place]
    x = eqn.invars[0]
    maker = level.made_by.get(x) if is_var(x) else None
    if maker is None or not is_var(x) or level.readers(x) != [place]:
        return None
    product = level.eqns[maker]
    if (
        product.primitive.name != "dot_general"
        or product.params["out_sharding"] is not None
        or not may_swap(product.params["precision"])
    ):
        return None
    (left, right), (batch_left, batch_right) = product.params["dimension_numbers"]
    ranks = [len(a.aval.shape) for a in product.invars]
    batch = len(batch_left)
    free = ranks[0] - batch - len(left)
    order = (*range(batch), *range(batch + free, len(x.aval.shape)), *range(batch, batch + free))
    if tuple(eqn.params["permutation"]) != order:
        return None
    precision = product.params["precision"]
    params = dict(
        product.params,
        dimension_numbers=((right, left), (batch_right, batch_left)),
        precision=precision[::-1] if type(precision) is tuple else precision,
    )
    new = product.replace(invars=product.invars[::-1], outvars=eqn.outvars, params=params)
    gone = frozenset((place, maker))
    return Edit(maker, gone, [new], {}, gone)
