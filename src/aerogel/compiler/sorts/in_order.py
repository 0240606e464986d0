"""Values that stand in the order of a sort, and which of what reads them does not care for it.

What a sort returns are its operands, all moved by one permutation for each row. Whatever is the same computation once
per entry (`axes`) can be done before the entries are moved; a gather by the sorted places moves its operand likewise.
What sums up over the axis, or puts the entries back where they came from, as a gradient does, needs no order at all.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis, Mapped, Reduced, along
from ..axes.elementwise import NAMES
from ..axes.rebind import shape_of
from ..known.picks import counts_along
from ..level import Level
from ..program import inner_jaxprs, is_var
from ..record import record

LONGEST_CHAIN = 8
# Views of the places at which entries stood.
_VIEWS = frozenset("broadcast_in_dim reshape squeeze expand_dims transpose convert_element_type copy".split())


@record
class Ordered:
    """A value that holds entries in the order of a sort.

    Attributes:
        dims: for each of its dimensions, the dimension of the sort that it is; None for others.
        start: the rank of its first entry.
        stop: the rank behind its last one.
        counts: whether the entries are the places at which they stood before.
        back: whether the order is the other way round.
    """

    dims: tuple[int | None, ...]
    start: int
    stop: int
    counts: bool = False
    back: bool = False

    @property
    def part(self) -> tuple[int, int, bool]:
        """Which entries it holds, in which order."""
        return self.start, self.stop, self.back

    def ranks(self, start: int, stop: int) -> tuple[int, int]:
        """The ranks of a slice of its entries."""
        return (self.stop - stop, self.stop - start) if self.back else (self.start + start, self.start + stop)


@dataclass
class InOrder:
    """One sort, and all that stands in its order.

    Attributes:
        level: where it is.
        place: of the sort.
        is_few: whether the entries of some ranks are few enough to be picked in their order; what reads them may care.
        values: what stands in its order, by variable; its results first.
        moved: the places of the equations that can be done before the sort, and what they are along the axis.
        exits: the places of the equations that read such values and are something else, each with those that it reads.
    """

    level: Level
    place: int
    is_few: Callable[[int, int], bool]
    values: dict[Var, Ordered] = field(default_factory=dict)
    moved: dict[int, Mapped | None] = field(default_factory=dict)
    exits: dict[int, list[Var]] = field(default_factory=dict)

    @property
    def sort(self) -> JaxprEqn:
        """The sort."""
        return self.level.eqns[self.place]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all that it sorts."""
        return shape_of(self.sort.invars[0])

    @property
    def axis(self) -> int:
        """The dimension that it sorts along."""
        return int(self.sort.params["dimension"])

    @property
    def length(self) -> int:
        """How many entries a row has."""
        return self.shape[self.axis]

    @classmethod
    def of(cls, level: Level, place: int, is_few: Callable[[int, int], bool]) -> "InOrder":
        """What stands in the order of a sort. Bound: each equation behind it is looked at once."""
        found = cls(level, place, is_few)
        whole = tuple(range(len(found.shape)))
        for x, v in zip(found.sort.invars, found.sort.outvars, strict=True):
            counts = is_var(x) and counts_along(level, x) == found.axis
            found.values[v] = Ordered(whole, 0, found.length, counts)
        waiting = [k for v in found.sort.outvars for k in level.readers(v)]
        heapq.heapify(waiting)
        seen = set[int]()
        while waiting:
            k = heapq.heappop(waiting)
            if k in seen:
                continue
            seen.add(k)
            read = [v for v in dict.fromkeys(found._reads(k)) if v in found.values]
            out = None if k < 0 else found._moved(k)
            if out is None:
                found.exits[k] = read
                continue
            (v,) = level.eqns[k].outvars
            found.values[v] = out
            for reader in level.readers(v):
                heapq.heappush(waiting, reader)
        return found

    def _reads(self, k: int) -> Iterator[Var]:
        atoms = self.level.jaxpr.outvars if k < 0 else self.level.eqns[k].invars
        return (x for x in atoms if is_var(x))

    def known(self, x: Atom) -> Ordered | None:
        """What is known of the order of a value; None if it has none."""
        return self.values.get(x) if is_var(x) else None

    def _moved(self, k: int) -> Ordered | None:
        """What is known of the result of an equation that can be done before the sort; None of others."""
        eqn = self.level.eqns[k]
        if len(eqn.outvars) != 1 or eqn.effects or inner_jaxprs(eqn):
            return None
        if eqn.primitive.name == "slice":
            return self._part(k, eqn)
        if eqn.primitive.name == "pad":
            found = self.padded(eqn)
            if found is not None:
                self.moved[k] = None
            return found
        if eqn.primitive.name == "rev" and self._reversed(eqn):
            self.moved[k] = None
            return replace(self._first(eqn), back=not self._first(eqn).back)
        if eqn.primitive.name == "gather":
            found = self.gathered(eqn)
            if found is not None:
                self.moved[k] = None
            return found
        answer = self.along(eqn)
        if not isinstance(answer, Mapped) or answer.uses_start or answer.outs[0] is None:
            return None
        dims = self._dims(eqn, answer.outs[0])
        if dims is None:
            return None
        first = self._first(eqn)
        self.moved[k] = answer
        return replace(first, dims=dims, counts=self._counts(eqn))

    def _first(self, eqn: JaxprEqn) -> Ordered:
        return next(known for x in eqn.invars if (known := self.known(x)) is not None)

    def along(self, eqn: JaxprEqn) -> Mapped | Reduced | None:
        """What an equation is along the sorted axis, as long as all its operands have it in one order, or in none.

        An operand of which all entries along the axis are equal has it in any order.
        """
        ins, parts = dict[int, Axis](), set[tuple[int, int, bool]]()
        for k, x in enumerate(eqn.invars):
            known = self.known(x)
            if known is not None:
                ins[k] = Axis(known.dims.index(self.axis))
                parts.add(known.part)
        if len(parts) != 1:
            return None
        ((start, stop, _),) = parts
        answer = along(eqn, ins, stop - start)
        if not isinstance(answer, Mapped | Reduced):
            return None
        for x, axis in zip(eqn.invars, answer.ins, strict=True):
            if axis is None or self.known(x) is not None:
                continue
            if not axis.is_plain or not is_even(self.level, x, axis.dim):
                return None
        return answer

    def _dims(self, eqn: JaxprEqn, axis: Axis) -> tuple[int | None, ...] | None:
        """The dimensions of the result: each row of the sort, which has an order of its own, has to stay one."""
        if not axis.is_plain:
            return None
        dims: list[int | None] = [None] * len(shape_of(eqn.outvars[0]))
        dims[axis.dim] = self.axis
        for row in range(len(self.shape)):
            if row == self.axis or self.shape[row] == 1:
                continue
            place = self.row(eqn, row)
            if place is None or dims[place] is not None:
                return None
            dims[place] = row
        for row in range(len(self.shape)):  # rows of length one may stand anywhere
            if row not in dims:
                free = [d for d, known in enumerate(dims) if known is None and shape_of(eqn.outvars[0])[d] == 1]
                if not free:
                    return None
                dims[free[0]] = row
        return tuple(dims)

    def row(self, eqn: JaxprEqn, row: int) -> int | None:
        """The dimension of the result that another dimension of the sort is; None if it is none of them."""
        operands = ((k, self.known(x)) for k, x in enumerate(eqn.invars))
        ins = {k: Axis(known.dims.index(row)) for k, known in operands if known is not None}
        answer = along(eqn, ins, self.shape[row])
        if not isinstance(answer, Mapped) or answer.outs[0] is None or not answer.outs[0].is_plain:
            return None
        return answer.outs[0].dim

    def _counts(self, eqn: JaxprEqn) -> bool:
        """Whether places stay places: views do so, and `where(i < 0, i + n, i)`, since none is below zero."""
        if np.dtype(eqn.outvars[0].aval.dtype).kind not in "iu" or np.dtype(eqn.outvars[0].aval.dtype).itemsize < 4:
            return False
        name = eqn.primitive.name
        if name in _VIEWS:
            return self._first(eqn).counts
        if name != "select_n" or len(eqn.invars) != 3:
            return False
        kept, below = self.known(eqn.invars[1]), self.level.maker(eqn.invars[0])
        if kept is None or not kept.counts or below is None or below.primitive.name != "lt":
            return False
        read, zero = self.known(below.invars[0]), below.invars[1]
        return read is not None and read.counts and not is_var(zero) and not np.any(zero.val)

    def _part(self, k: int, eqn: JaxprEqn) -> Ordered | None:
        """A part of the order: a slice along the axis, and along no other dimension that is one of the sort."""
        known = self._first(eqn)
        starts, stops, shape = eqn.params["start_indices"], eqn.params["limit_indices"], shape_of(eqn.invars[0])
        if any(n != 1 for n in eqn.params["strides"] or ()):
            return None
        for d, (start, stop, n) in enumerate(zip(starts, stops, shape, strict=True)):
            if (start, stop) != (0, n) and known.dims[d] != self.axis:
                return None
        at = known.dims.index(self.axis)
        start, stop = known.ranks(int(starts[at]), int(stops[at]))
        if start == stop or self.is_few(start, stop):
            return None
        self.moved[k] = None
        return replace(known, start=start, stop=stop)

    def padded(self, eqn: JaxprEqn) -> Ordered | None:
        """What is known of a part of the order that is padded with zeros to all of it."""
        known, filling = self.known(eqn.invars[0]), eqn.invars[1]
        if known is None or is_var(filling) or np.any(filling.val) or known.back:
            return None
        at = known.dims.index(self.axis)
        edges = [tuple(map(int, one)) for one in eqn.params["padding_config"]]
        whole = edges[at] == (known.start, self.length - known.stop, 0)
        others = all(not any(one) for d, one in enumerate(edges) if d != at)
        return replace(known, start=0, stop=self.length, counts=False) if whole and others else None

    def _reversed(self, eqn: JaxprEqn) -> bool:
        return tuple(eqn.params["dimensions"]) == (self._first(eqn).dims.index(self.axis),)

    def gathered(self, eqn: JaxprEqn) -> Ordered | None:
        """What is known of a gather by the places at which entries stood, from what has the rows of the sort."""
        known, p = self.known(eqn.invars[1]), eqn.params["dimension_numbers"]
        x, shape = eqn.invars[0], shape_of(eqn.invars[0])
        if known is None or not known.counts or self.known(x) is not None or known.dims[-1] is not None:
            return None
        if len(p.start_index_map) != 1 or tuple(p.collapsed_slice_dims) != tuple(p.start_index_map):
            return None
        (dim,), rank = map(int, p.start_index_map), len(self.shape)
        if shape[dim] != self.length or shape_of(eqn.invars[1])[-1] != 1:
            return None
        sizes = [n for d, n in enumerate(eqn.params["slice_sizes"]) if d not in p.operand_batching_dims and d != dim]
        others = [n for d, n in enumerate(shape) if d not in p.operand_batching_dims and d != dim]
        if sizes != others:
            return None
        if rank == 1 and known.dims == (0, None) and not p.operand_batching_dims:
            out = len(shape_of(eqn.outvars[0]))
            (at,) = (d for d in range(out) if d not in p.offset_dims)
            return replace(known, dims=tuple(0 if d == at else None for d in range(out)), counts=False)
        rows = [d for d in range(rank) if d != self.axis]
        if known.dims != (*range(rank), None) or dim != self.axis or shape != self.shape:
            return None
        if [*p.operand_batching_dims] != rows or [*p.start_indices_batching_dims] != rows:
            return None
        return replace(known, dims=tuple(range(rank)), counts=False)


def is_even(level: Level, x: Atom, dim: int, depth: int = 0) -> bool:
    """Whether all entries of a value along a dimension are known to be equal."""
    if not is_var(x) or not shape_of(x):
        return True
    maker = level.maker(x)
    if maker is None or depth == LONGEST_CHAIN:
        return False
    name, operands = maker.primitive.name, maker.invars
    if name == "broadcast_in_dim":
        to, source = [int(d) for d in maker.params["broadcast_dimensions"]], operands[0]
        if dim not in to or shape_of(source)[to.index(dim)] != shape_of(x)[dim]:
            return True
        return is_even(level, source, to.index(dim), depth + 1)
    if name == "iota":
        return maker.params["dimension"] != dim
    if name not in NAMES or maker.effects or len(maker.outvars) != 1:
        return False
    return all(shape_of(y)[dim : dim + 1] in ((), (1,)) or is_even(level, y, dim, depth + 1) for y in operands)
