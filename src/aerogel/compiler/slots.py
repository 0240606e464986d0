"""Finding what a loop reads or writes at an index of its own in every step."""

from dataclasses import dataclass
from typing import Any

from aerogel._jax import Atom, DropVar, JaxprEqn, Literal, Var

from .facts import Affine, fact_of
from .loop import Loop
from .program import Readers, is_var, users


@dataclass(frozen=True)
class Slot:
    """One buffer that the steps touch at `place` along dimension `dim`.

    Attributes:
        what: for the report.
        eqn: the equation that touches it.
        source: the buffer outside the loop that reads come from.
        buffer: the buffer in the body.
        place: the index as a function of the step.
        dim: the dimension of the index.
        carry: which carry holds the buffer; None for a constant of the loop.
        read: the equation in the body that reads the slot.
        write: the equation in the body that writes it.
        update: what is written.
        adds: whether it is added to what stands there.
        earlier: equations that read what steps before this one wrote, each with how many steps before.
        rows: for 1, 2, ... steps before the first one, where in the buffer they would have written.
    """

    what: str
    eqn: JaxprEqn
    source: Atom
    buffer: Var
    place: Affine
    dim: int
    carry: int | None = None
    read: JaxprEqn | None = None
    write: JaxprEqn | None = None
    update: Atom | None = None
    adds: bool = False
    earlier: tuple[tuple[JaxprEqn, int], ...] = ()
    rows: tuple[int, ...] = ()


# Carries of earlier rows in place of a buffer of all.
MOST_EARLIER = 4


def find_slots(loop: Loop, facts: dict[Var, Affine], level_users: Readers) -> list[Slot]:
    """All slots of a loop; none overlaps another."""
    readers = users(loop.body)
    eqns = loop.body.eqns
    found: list[Slot] = []
    for k, (init, var) in enumerate(zip(loop.init, loop.body_carry, strict=True)):
        slot = _carried(loop, k, init, var, facts, readers, level_users)
        if slot is not None:
            found.append(slot)
    for const, var in zip(loop.consts, loop.body_consts, strict=True):
        for index in readers.get(var, ()):
            if index >= 0 and is_var(const):
                touched = read_of(eqns[index], var, facts, loop.length)
                if touched is not None:
                    place, dim = touched
                    what = "what every step reads at its own index is an input of the step"
                    found.append(Slot(what, eqns[index], const, var, place, dim, read=eqns[index]))
    return found


def _carried(
    loop: Loop,
    k: int,
    init: Atom,
    var: Var,
    facts: dict[Var, Affine],
    readers: Readers,
    level_users: Readers,
) -> Slot | None:
    """A carry that each step writes at its own index, and reads there at most before it does."""
    eqns, nxt = loop.body.eqns, loop.next_carry[k]
    reads = readers.get(var, [])
    if not reads or -1 in reads or not is_var(nxt) or readers.get(nxt) != [-1]:
        return None
    if sum(x is nxt for x in loop.body.outvars) != 1:
        return None
    makers = [eqn for eqn in eqns if nxt in eqn.outvars]
    if len(makers) != 1:
        return None
    write = makers[0]
    written = write_of(write, var, facts, loop.length) or _added(write, var, eqns, readers, facts, loop.length)
    if written is None or not any(eqns[i] is write for i in reads):
        return None
    place, dim, update, adds = written
    others = [eqns[i] for i in reads if eqns[i] is not write]
    final = loop.finals[k]
    if not others:
        what = "what every step adds at its own index" if adds else "what every step writes at its own index"
        return Slot(
            what + " is an output of the step", write, init, var, place, dim, k, write=write, update=update, adds=adds
        )
    if len(others) == 1 and not adds and is_var(init):
        touched = read_of(others[0], var, facts, loop.length)
        unused = isinstance(final, DropVar) or final not in level_users
        if touched == (place, dim) and unused:
            what = "what every step takes from its own index is an input of the step"
            return Slot(what, others[0], init, var, place, dim, k, read=others[0], write=write)
    return None if adds else _written_before(loop, k, init, var, (place, dim, update, False), write, others, facts)


def _written_before(
    loop: Loop,
    k: int,
    init: Atom,
    var: Var,
    written: "Written",
    write: JaxprEqn,
    others: list[JaxprEqn],
    facts: dict[Var, Affine],
) -> Slot | None:
    """A buffer in which each step reads what one of the last few steps wrote: `b.at[i].set(f(b[i - 1]))`."""
    place, dim, update, _ = written
    ahead = -place.scale if loop.reverse else place.scale  # from the place of one step to that of the next
    earlier = []
    for eqn in others:
        touched = read_of(eqn, var, facts, loop.length)
        if touched is None or touched[1] != dim or touched[0].scale != place.scale:
            return None
        back = (place.offset - touched[0].offset) * ahead  # ahead is 1 or -1
        if not 1 <= back <= MOST_EARLIER:
            return None
        earlier.append((eqn, back))
    first = place.offset + place.scale * (loop.length - 1 if loop.reverse else 0)
    rows = tuple(first - ahead * back for back in range(1, max(back for _, back in earlier) + 1))
    what = "what the last steps wrote is carried, not read from all that was written"
    return Slot(what, write, init, var, place, dim, k, write=write, update=update, earlier=tuple(earlier), rows=rows)


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


def _added(
    eqn: JaxprEqn, buffer: Var, eqns: list[JaxprEqn], readers: Readers, facts: Any, length: int
) -> Written | None:
    """`buffer + (zeros with one slot written)`: the gradient of a read."""
    if eqn.primitive.name not in ("add", "add_any") or not any(x is buffer for x in eqn.invars):
        return None
    a, b = eqn.invars
    other = b if a is buffer else a
    if not is_var(other) or other is buffer or len(readers.get(other, ())) != 1:
        return None
    maker = next((e for e in eqns if other in e.outvars), None)
    if maker is None or maker.primitive.name not in ("dynamic_update_slice", "scatter", "scatter-add"):
        return None
    zeros = maker.invars[0]
    if not is_var(zeros) or not _is_zeros(zeros, eqns):
        return None
    renamed = maker if maker.primitive.name != "scatter-add" else None
    found = None if renamed is None else write_of(renamed, zeros, facts, length)
    return None if found is None else (found[0], found[1], found[2], True)


def _is_zeros(var: Var, eqns: list[JaxprEqn]) -> bool:
    maker = next((e for e in eqns if var in e.outvars), None)
    if maker is None or maker.primitive.name != "broadcast_in_dim" or not isinstance(maker.invars[0], Literal):
        return False
    return not maker.invars[0].val
