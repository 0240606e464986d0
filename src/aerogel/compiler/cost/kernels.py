"""A jaxpr as the kernels that XLA makes of it: which equations run as one, what they read and write.

The fusion rule, in full:

1. Views (reshape, squeeze, bitcasts, barriers) are other names of their operand. Calls are looked through, as XLA
   inlines them, up to `INLINE_LIMIT` equations; a larger body is one box with its own cost.
2. A result of a *cheap* equation (arithmetic, comparisons, converts, broadcasts, slices, pads, transposes) is never
   written, but computed inside each kernel that reads it, unless it is a result of the program, is read by an
   equation that does not fuse (dot, convolution, sort, scan, LAPACK, scatter, ...), or has more than
   `RECOMPUTE_LIMIT` readers.
3. A *dear* one (division, transcendentals, gathers) is not computed twice: it is written also when two kernels read
   it, or one through a widening broadcast. Gathers read whole operands from memory, and only as much as they yield.
4. A reduction computes what feeds it alone, be that another reduction (both are one kernel of a library), and is dear
   itself. What another kernel reads, too, is written, be it cheap; and so is what is read by no reduction.
5. All else reads and writes whole values. A `dot_general` reads through a transpose of its operand. (Of two operands
   that have no dimension of their own it is a sum of entrywise products, and a reduction. Where nothing is summed up
   it is a multiplication, which is cheap.)
6. An elementwise kernel writes over an operand of its size that nobody needs afterwards, and an update of a part
   (`dynamic_update_slice`, scatter, ref writes) is in place when nobody reads the old value afterwards; either only
   if that is the program's own (a loop's carry is, an argument is not).
7. What nobody reads and has no effect does not run.

Two passes over the equations, each linear; the number of readers that are told apart is bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aerogel._jax import JaxprEqn, Literal

from .flat import Flat
from .primitives import ENDS_KERNEL, MOVES_ELEMENTS, SLICES, Kind
from .sizes import nbytes
from .work import update_operand

RECOMPUTE_LIMIT = 4
_NOBODY: frozenset[int] = frozenset()


@dataclass(slots=True)
class Kernel:
    """Equations that run as one; the last one, `root`, does not fuse into anything.

    `reads` and `writes` pair bytes with the size of the buffer that they lie in (a slice of a large array is
    fetched from where the large array is). `allocates` and `frees` are bytes of values that begin before and end
    after this kernel.
    """

    root: JaxprEqn
    kind: Kind
    fused: list[JaxprEqn] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    allocates: int = 0
    frees: int = 0


def kernels(
    eqns: Sequence[JaxprEqn],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    owned: Sequence[Any] = (),
    homes: dict[Any, int] | None = None,
) -> list[Kernel]:
    """The kernels of a straight-line program, in its order.

    Args:
        eqns: equations in an order that can be run.
        inputs: variables that hold arguments and constants; those in `owned` may be written over.
        outputs: atoms that must exist at the end.
        homes: for inputs and outputs that are parts of something larger, how large that is in bytes.
    """
    flat = Flat(inputs, owned)
    flat.append(eqns, flat.ids)
    outs = [flat.ids[v] for v in outputs if not isinstance(v, Literal) and v in flat.ids]
    fusion = _Fusion(flat, outs)
    for var, size in (homes or {}).items():
        if var in flat.ids:
            value = flat.ids[var]
            fusion.home[value] = max(fusion.home[value], size)
    return fusion.kernels()


class _Fusion:
    """Who reads each value (`readers`: numbers of the equations that root the kernels), and what must be stored."""

    def __init__(self, flat: Flat, outs: list[int]):
        self.flat = flat
        count = len(flat.size)
        self.readers: list[frozenset[int]] = [_NOBODY] * count
        self.stored = [False] * count
        self.widened = [False] * count
        self.last_use = [-1] * count
        self.alias = list(range(count))
        self.home = list(flat.size)
        # Of each operation, the kernels that it runs in: itself, its readers, or none.
        self.runs_in: list[frozenset[int]] = [_NOBODY] * len(flat.eqns)
        self.outs = outs
        for value in outs:
            self.stored[value] = True
        self._demand()

    def _demand(self) -> None:
        flat, last_use, nothing = self.flat, self.last_use, _NOBODY
        for number in range(len(flat.eqns) - 1, -1, -1):
            eqn, kind, ins = flat.eqns[number], flat.kinds[number], flat.ins[number]
            users, store = nothing, False
            for value in flat.outs[number]:
                users = users | self.readers[value] if users else self.readers[value]
                store = store or self.stored[value]
            if not (users or store or eqn.effects):
                continue
            for value in ins:
                last_use[value] = max(last_use[value], number)
            if kind is Kind.VIEW and ins:
                self._view(ins, flat.outs[number])
            elif kind <= Kind.REDUCE and eqn.primitive.name not in ENDS_KERNEL:
                self._fusible(number, eqn, users, store)
            else:
                self._unfusible(number, eqn)

    def _fusible(self, number: int, eqn: JaxprEqn, users: frozenset[int], store: bool) -> None:
        flat, size, readers = self.flat, self.flat.size, self.readers
        ins, outs = flat.ins[number], flat.outs[number]
        wide = any([self.widened[v] for v in outs])
        kind, shared = flat.kinds[number], len(users) > 1
        summed = any([flat.kinds[user] is Kind.REDUCE for user in users])
        dear = kind is not Kind.CHEAP and (wide or shared)
        apart = shared if summed else kind is Kind.REDUCE
        if store or apart or dear or len(users) > RECOMPUTE_LIMIT or self._is_written_once(number):
            for value in outs:
                self.stored[value] = True
            users, wide = frozenset((number,)), False
        if eqn.primitive.name == "gather" and ins:
            self.stored[ins[0]] = True
        for value in ins:
            readers[value] = readers[value] | users if readers[value] else users
            if wide or 0 < 4 * size[value] < size[outs[0]]:
                self.widened[value] = True
        self.runs_in[number] = users

    def _is_written_once(self, number: int) -> bool:
        """Whether it divides by the bits of a number, as `rules/once.py` does for XLA to store the quotient."""
        eqn, ins = self.flat.eqns[number], self.flat.ins[number]
        producer = self.flat.producer[ins[1]] if eqn.primitive.name == "div" and len(ins) == 2 else -1
        return producer >= 0 and self.flat.eqns[producer].primitive.name == "bitcast_convert_type"

    def _unfusible(self, number: int, eqn: JaxprEqn) -> None:
        flat, readers, name = self.flat, self.readers, eqn.primitive.name
        here = self.runs_in[number] = frozenset((number,))
        for value in flat.outs[number]:
            self.stored[value] = True
        if name == "dot_general":
            flat.ins[number] = tuple(self._through_transpose(v, number) for v in flat.ins[number])
        ins = flat.ins[number]
        for value in ins:
            readers[value] = readers[value] | here if readers[value] else here
            # Variadic reductions, and the new part of an update, are computed on the way.
            if flat.kinds[number] is not Kind.REDUCE and (name != "dynamic_update_slice" or value == ins[0]):
                self.stored[value] = True

    def _view(self, ins: tuple[int, ...], outs: tuple[int, ...]) -> None:
        pairs = zip(ins, outs, strict=True) if len(ins) == len(outs) else ((ins[0], o) for o in outs)
        for value, out in pairs:
            self.alias[out] = value
            self.readers[value] = self.readers[value] | self.readers[out]
            self.stored[value] = self.stored[value] or self.stored[out]
            self.widened[value] = self.widened[value] or self.widened[out]
            self.last_use[value] = max(self.last_use[value], self.last_use[out])

    def _through_transpose(self, value: int, number: int) -> int:
        flat = self.flat
        producer = flat.producer[value]
        while producer >= 0 and flat.eqns[producer].primitive.name == "transpose" and flat.ins[producer]:
            value = flat.ins[producer][0]
            self.last_use[value] = max(self.last_use[value], number)
            producer = flat.producer[value]
        return value

    def kernels(self) -> list[Kernel]:
        flat, stored, size = self.flat, self.stored, self.flat.size
        # Views come after what they view, so one pass forwards resolves chains of them.
        alias = self.alias
        for value in range(len(alias)):
            alias[value] = alias[alias[value]]
        found: dict[int, Kernel] = {}
        reads: dict[int, dict[int, int]] = {}
        runs_in = self.runs_in
        for number, users in enumerate(runs_in):
            if number in users:
                found[number] = Kernel(flat.eqns[number], flat.kinds[number])
                reads[number] = {}
        for number, users in enumerate(runs_in):
            if not users:
                continue
            eqn = flat.eqns[number]
            if number not in found:
                found[min(users)].fused.append(eqn)
            part = size[flat.outs[number][0]] if eqn.primitive.name in SLICES else None
            for value in flat.ins[number]:
                leaf = alias[value]
                if not stored[leaf] and flat.producer[leaf] >= 0:
                    continue
                amount = size[leaf] if part is None else min(part, size[leaf])
                for user in users:
                    row = reads[user]
                    row[leaf] = min(size[leaf], row.get(leaf, 0) + amount)
        self._fill(found, reads)
        return list(found.values())

    def _fill(self, found: dict[int, Kernel], reads: dict[int, dict[int, int]]) -> None:
        """Traffic of each kernel, and where values begin and end."""
        flat, size, home = self.flat, self.flat.size, self.home
        last = {leaf: number for number in found for leaf in reads[number]}
        final: dict[int, int] = {}  # how many results each value is
        for value in self.outs:  # a view that is a result lies where its operand lies
            leaf = self.alias[value]
            final[leaf] = final.get(leaf, 0) + 1
            home[leaf] = max(home[leaf], home[value])
        held: dict[int, int] = {}  # stored value -> bytes of its buffer; 0 if it is another's, that it was written over
        for number, kernel in found.items():
            row, outs = reads[number], flat.outs[number]
            over = self._overwritten(number, kernel, row, last, final)
            if kernel.kind is Kind.UPDATE:
                row.pop(over, None)
            limit = size[outs[0]] if kernel.root.primitive.name == "get" else None
            for leaf, amount in row.items():
                kernel.reads.append((amount if limit is None else min(amount, limit), home[leaf]))
            for value in outs:
                copies = final.get(value, 0)
                if not (copies or self.readers[value]):
                    continue
                partly = over >= 0 and kernel.kind is Kind.UPDATE
                kernel.writes.append((_updated_bytes(kernel.root) if partly else size[value], home[value]))
                kernel.writes.extend([(size[value], size[value])] * (copies - 1))
                held[value] = held.pop(over, 0) if over >= 0 else size[value]
                kernel.allocates += 0 if over >= 0 else size[value]
                over = -1
        for leaf, bytes_ in held.items():
            if leaf not in final:  # what only an effectful equation made ends where it began
                found[last.get(leaf, flat.producer[leaf])].frees += bytes_

    def _overwritten(
        self, number: int, kernel: Kernel, row: dict[int, int], last: dict[int, int], final: dict[int, int]
    ) -> int:
        """The operand that the kernel writes its first result over, or -1."""
        flat, size = self.flat, self.flat.size
        if kernel.kind is Kind.UPDATE:
            if isinstance(kernel.root.invars[0], Literal):
                return -1
            value = flat.ins[number][0]
            target = self.alias[value]
            unread = self.last_use[value] <= number and self.last_use[target] <= number
            return target if unread and self._own(target) and target not in final else -1
        if kernel.kind not in (Kind.CHEAP, Kind.DEAR):
            return -1
        wanted = size[flat.outs[number][0]]
        for leaf in row:
            if size[leaf] == wanted and last[leaf] == number and leaf not in final and self._own(leaf):
                return -1 if any(_moves(e, wanted) for e in (*kernel.fused, kernel.root)) else leaf
        return -1

    def _own(self, value: int) -> bool:
        return self.flat.producer[value] >= 0 or value in self.flat.owned


def _updated_bytes(eqn: JaxprEqn) -> int:
    return nbytes(eqn.invars[update_operand(eqn.primitive.name)].aval)


def _moves(eqn: JaxprEqn, size: int) -> bool:
    return eqn.primitive.name in MOVES_ELEMENTS and nbytes(eqn.outvars[0].aval) >= size
