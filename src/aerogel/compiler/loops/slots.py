"""What a loop reads or writes at an index of its own in every step; `tracks.py` finds buffers that it walks along."""

from typing import Any, ClassVar

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..known.facts import Affine, fact_of
from ..loop import Loop
from ..program import Makers, Readers, is_var
from ..record import record


@record
class Slot:
    """One constant of a loop that the steps read at `place` along dimension `dim`.

    Attributes:
        eqn: the equation in the body that reads it.
        source: the constant outside of the loop.
        place: the index as a function of the step.
        dim: the dimension of the index.
    """

    eqn: JaxprEqn
    source: Var
    place: Affine
    dim: int

    what: ClassVar = "what every step reads at its own index is an input of the step"


def find_slots(loop: Loop, facts: dict[Var, Affine], readers: Readers) -> list[Slot]:
    """All slots of a loop; `readers` are those in its body."""
    found: list[Slot] = []
    for const, var in zip(loop.consts, loop.body_consts, strict=True):
        for index in readers.get(var, ()):
            if index >= 0 and is_var(const):
                eqn = loop.body.eqns[index]
                touched = read_of(eqn, var, facts, loop.length)
                if touched is not None:
                    found.append(Slot(eqn, const, *touched))
    return found


Written = tuple[Affine, int, Atom, bool]


def write_of(eqn: JaxprEqn, buffer: Var, facts: dict[Var, Affine], length: int) -> Written | None:
    """Place, dimension and value of a write of one whole slot, and whether it adds; None for anything else."""
    adds = eqn.primitive.name == "scatter-add"
    is_scatter = adds or (eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is None)
    if is_scatter and eqn.invars[0] is buffer:
        _, index, update = eqn.invars
        p = eqn.params["dimension_numbers"]
        dims = (p.inserted_window_dims, p.scatter_dims_to_operand_dims)
        shape = buffer.aval.shape
        if p.operand_batching_dims or len(dims[0]) != 1 or dims[0] != dims[1] or update.aval.ndim != len(shape) - 1:
            return None
        dim = dims[0][0]
        if update.aval.shape != (*shape[:dim], *shape[dim + 1 :]) or index.aval.shape != (1,):
            return None
        place = _own_place(index, facts, length, shape[dim])
        return None if place is None else (place, dim, update, adds)
    if eqn.primitive.name == "dynamic_update_slice" and eqn.invars[0] is buffer:
        _, update, *starts = eqn.invars
        found = _one_slice(buffer.aval.shape, update.aval.shape, starts, facts, length)
        return None if found is None else (*found, update, False)
    return None


def read_of(eqn: JaxprEqn, buffer: Var, facts: dict[Var, Affine], length: int) -> tuple[Affine, int] | None:
    """Place and dimension of a read of one whole slot; None for anything else."""
    shape = buffer.aval.shape
    if eqn.primitive.name == "dynamic_slice" and eqn.invars[0] is buffer:
        return _one_slice(shape, eqn.params["slice_sizes"], eqn.invars[1:], facts, length)
    if eqn.primitive.name == "gather" and eqn.invars[0] is buffer:
        index = eqn.invars[1]
        p, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
        if p.operand_batching_dims or len(p.start_index_map) != 1 or p.collapsed_slice_dims != p.start_index_map:
            return None
        dim = p.start_index_map[0]
        whole = all(n == m for d, (n, m) in enumerate(zip(sizes, shape, strict=True)) if d != dim)
        if not whole or index.aval.shape != (1,) or eqn.outvars[0].aval.ndim != len(shape) - 1:
            return None
        place = _own_place(index, facts, length, shape[dim])
        return None if place is None else (place, dim)
    return None


def _one_slice(shape: Any, sizes: Any, starts: Any, facts: dict[Var, Affine], length: int) -> tuple[Affine, int] | None:
    """A slice of size 1 along one dimension, at its own place in every step, and whole along the others."""
    thin = [d for d in range(len(shape)) if sizes[d] == 1 and fact_is_moving(starts[d], facts)]
    if len(thin) != 1:
        return None
    (dim,) = thin
    if any(n != m for d, (n, m) in enumerate(zip(sizes, shape, strict=True)) if d != dim):
        return None
    place = _own_place(starts[dim], facts, length, shape[dim])
    return None if place is None else (place, dim)


def fact_is_moving(x: Atom, facts: dict[Var, Affine]) -> bool:
    """Whether an index is another one in every step."""
    fact = fact_of(x, facts)
    return fact is not None and fact.scale != 0


def _own_place(x: Atom, facts: dict[Var, Affine], length: int, size: int) -> Affine | None:
    """The place as a function of the step: one step, one index, neighbours side by side, all within the buffer."""
    fact = fact_of(x, facts)
    if fact is None or fact.scale not in (1, -1):
        return None
    lowest, highest = fact.bounds(length)
    return fact if lowest >= 0 and highest < size else None


def added_to(
    loop: Loop, eqn: JaxprEqn, buffer: Var, facts: dict[Var, Affine], readers: Readers, makers: Makers
) -> Written | None:
    """`buffer + (zeros with one slot written)`: the gradient of a read."""
    if eqn.primitive.name not in ("add", "add_any") or not any(x is buffer for x in eqn.invars):
        return None
    a, b = eqn.invars
    other, eqns = b if a is buffer else a, loop.body.eqns
    if not is_var(other) or other is buffer or len(readers.get(other, ())) != 1 or other not in makers:
        return None
    maker = eqns[makers[other]]
    if maker.primitive.name not in ("dynamic_update_slice", "scatter"):
        return None
    zeros = maker.invars[0]
    if not is_var(zeros) or zeros not in makers or not _is_zeros(eqns[makers[zeros]]):
        return None
    found = write_of(maker, zeros, facts, loop.length)
    return None if found is None else (found[0], found[1], found[2], True)


def _is_zeros(eqn: JaxprEqn) -> bool:
    (x, *_) = eqn.invars or (None,)
    return eqn.primitive.name == "broadcast_in_dim" and isinstance(x, Literal) and not np.any(x.val)
