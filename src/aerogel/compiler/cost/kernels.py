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
4. A reduction computes what feeds it, and is dear itself: it is written unless one kernel reads it element by element.
5. All else reads and writes whole values. A `dot_general` reads through a transpose of its operand.
6. An elementwise kernel writes over an operand of its size that nobody needs afterwards. Updates of a part (`dynamic_update_slice`, scatter, ref writes) are in place when nobody reads the old value
   afterwards and it is the program's own (a loop's carry is, an argument is not).
7. What nobody reads and has no effect does not run.

Two passes over the equations, each linear; the number of readers that are told apart is bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from .primitives import CALL_PARAMETER, ENDS_KERNEL, KIND, MOVES_ELEMENTS, SLICES, Kind
from .sizes import nbytes
from .work import update_operand

INLINE_LIMIT = 200
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


def open_jaxpr(program: Any) -> Jaxpr:
    """The jaxpr without its constants."""
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program


def called(eqn: JaxprEqn) -> Jaxpr | None:
    """The program that a call runs when it is evaluated (not its derivative's programs); None if it holds none."""
    inner = eqn.params.get(CALL_PARAMETER[eqn.primitive.name])
    inner = getattr(inner, "solve", inner)  # custom_linear_solve holds four programs and runs this one
    inner = open_jaxpr(inner)
    return inner if isinstance(inner, Jaxpr) else None


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
    flat = _Flat(inputs, owned)
    flat.append(eqns, flat.ids)
    outs = [flat.ids[v] for v in outputs if not isinstance(v, Literal) and v in flat.ids]
    fusion = _Fusion(flat, outs)
    for var, size in (homes or {}).items():
        if var in flat.ids:
            value = flat.ids[var]
            fusion.home[value] = max(fusion.home[value], size)
    return fusion.kernels()


class _Flat:
    """Equations with calls inlined and variables numbered."""

    def __init__(self, inputs: Sequence[Any], owned: Sequence[Any]):
        self.ids: dict[Any, int] = {}
        self.size: list[int] = []
        self.producer: list[int] = []
        # Parallel lists, and tuples of numbers, as the garbage collector looks at anything else again and again.
        self.eqns: list[JaxprEqn] = []
        self.kinds: list[Kind] = []
        self.ins: list[tuple[int, ...]] = []
        self.outs: list[tuple[int, ...]] = []
        for var in inputs:
            self.ids[var] = self._input(var.aval)
        self.owned = frozenset(self.ids[var] for var in owned)

    def append(self, eqns: Sequence[JaxprEqn], ids: dict[Any, int]) -> None:
        size, producer = self.size, self.producer
        for eqn in eqns:
            kind = KIND.get(eqn.primitive.name, Kind.OPAQUE)
            if kind is Kind.CALL:
                inner = called(eqn)
                if inner is not None and len(inner.eqns) <= INLINE_LIMIT and inlined_length(inner) <= INLINE_LIMIT:
                    self._inline(eqn, inner, ids)
                    continue
                kind = Kind.OPAQUE
            # A variable that is nowhere defined is an argument of the equation alone.
            ins = [ids[v] if v in ids else self._read(ids, v) for v in eqn.invars if type(v) is not Literal]
            number = len(self.eqns)
            first = len(size)
            for var in eqn.outvars:
                ids[var] = len(size)
                size.append(nbytes(var.aval))
                producer.append(number)
            self.eqns.append(eqn)
            self.kinds.append(kind)
            self.ins.append(tuple(ins))
            self.outs.append(tuple(range(first, len(size))))

    def _input(self, aval: Any) -> int:
        self.size.append(nbytes(aval))
        self.producer.append(-1)
        return len(self.size) - 1

    def _read(self, ids: dict[Any, int], atom: Any) -> int:
        if isinstance(atom, Literal):
            return self._input(atom.aval)
        if atom not in ids:
            ids[atom] = self._input(atom.aval)
        return ids[atom]

    def _inline(self, eqn: JaxprEqn, inner: Jaxpr, ids: dict[Any, int]) -> None:
        scope: dict[Any, int] = {}
        # custom_linear_solve hands its `solve` the last operands only; elsewhere the lengths are equal.
        operands = eqn.invars[len(eqn.invars) - len(inner.invars) :]
        for var, atom in zip(inner.invars, operands, strict=True):
            scope[var] = self._read(ids, atom)
        for var in inner.constvars:
            scope[var] = self._input(var.aval)
        self.append(inner.eqns, scope)
        for var, atom in zip(eqn.outvars, inner.outvars, strict=False):
            ids[var] = self._read(scope, atom)


class _Fusion:
    """Who reads each value (`readers`: numbers of the equations that root the kernels), and what must be stored."""

    def __init__(self, flat: _Flat, outs: list[int]):
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
        flat, stored, readers, widened, last_use = self.flat, self.stored, self.readers, self.widened, self.last_use
        size = flat.size
        for number in range(len(flat.eqns) - 1, -1, -1):
            eqn, kind, ins, outs = flat.eqns[number], flat.kinds[number], flat.ins[number], flat.outs[number]
            users, store = _NOBODY, False
            for value in outs:
                users = users | readers[value] if users else readers[value]
                store = store or stored[value]
            if not (users or store or eqn.effects):
                continue
            for value in ins:
                if last_use[value] < number:
                    last_use[value] = number
            if kind is Kind.VIEW and ins:
                self._view(ins, outs)
                continue
            name = eqn.primitive.name
            if kind <= Kind.REDUCE and name not in ENDS_KERNEL:
                wide = widened[outs[0]] if len(outs) == 1 else any(widened[v] for v in outs)
                dear = kind is not Kind.CHEAP
                if store or len(users) > RECOMPUTE_LIMIT or (dear and (len(users) > 1 or wide)):
                    for value in outs:
                        stored[value] = True
                    users = frozenset((number,))
                    wide = False
                if name == "gather" and ins:
                    stored[ins[0]] = True
                out_size = size[outs[0]]
                for value in ins:
                    readers[value] = readers[value] | users if readers[value] else users
                    if wide or 0 < 4 * size[value] < out_size:
                        widened[value] = True
                self.runs_in[number] = users
                continue
            here = frozenset((number,))
            self.runs_in[number] = here
            for value in outs:
                stored[value] = True
            if name == "dot_general":
                ins = flat.ins[number] = tuple(self._through_transpose(v, number) for v in ins)
            for value in ins:
                readers[value] = readers[value] | here if readers[value] else here
                if kind is not Kind.REDUCE and (name != "dynamic_update_slice" or value == ins[0]):
                    stored[value] = True

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
        flat, size, home, alias = self.flat, self.flat.size, self.home, self.alias
        final: dict[int, int] = {}
        for value in self.outs:  # a view that is a result lies where its operand lies
            leaf = alias[value]
            final[leaf] = final.get(leaf, 0) + 1
            home[leaf] = max(home[leaf], home[value])
        last: dict[int, int] = {leaf: number for number in found for leaf in reads[number]}
        held: dict[int, int] = {}  # stored value -> bytes of its buffer; 0 if it is another's, that it was written over
        for number, kernel in found.items():
            eqn, kind, ins, outs = kernel.root, kernel.kind, flat.ins[number], flat.outs[number]
            row = reads[number]
            over = -1
            if kind is Kind.UPDATE and ins and not isinstance(eqn.invars[0], Literal):
                target = alias[ins[0]]
                unread = self.last_use[ins[0]] <= number and self.last_use[target] <= number
                if unread and self._own(target) and target not in final:
                    over = target
                    row.pop(target, None)
            elif kind is Kind.CHEAP or kind is Kind.DEAR:
                over = self._dying_operand(number, kernel, row, last, final)
            for value in outs:
                copies = final.get(value, 0)
                if not (copies or self.readers[value]):
                    continue
                written = size[value]
                if kind is Kind.UPDATE and over >= 0:
                    written = nbytes(eqn.invars[update_operand(eqn.primitive.name)].aval)
                kernel.writes.append((written, home[value]))
                kernel.writes.extend([(size[value], size[value])] * (copies - 1))
                held[value] = held.pop(over, 0) if over >= 0 else size[value]
                kernel.allocates += 0 if over >= 0 else size[value]
                over = -1
            limit = size[outs[0]] if eqn.primitive.name == "get" else None
            for leaf, amount in row.items():
                kernel.reads.append((amount if limit is None else min(amount, limit), home[leaf]))
        for leaf, bytes_ in held.items():
            if leaf not in final:  # what only an effectful equation made ends where it began
                found[last.get(leaf, flat.producer[leaf])].frees += bytes_

    def _own(self, value: int) -> bool:
        return self.flat.producer[value] >= 0 or value in self.flat.owned

    def _dying_operand(
        self, number: int, kernel: Kernel, row: dict[int, int], last: dict[int, int], final: dict[int, int]
    ) -> int:
        """An operand that the kernel may write its result over, or -1."""
        flat = self.flat
        value = flat.outs[number][0]
        for leaf in row:
            if flat.size[leaf] == flat.size[value] and last[leaf] == number and leaf not in final:
                if self._own(leaf) and not any(
                    e.primitive.name in MOVES_ELEMENTS and nbytes(e.outvars[0].aval) >= flat.size[leaf]
                    for e in (*kernel.fused, kernel.root)
                ):
                    return leaf
        return -1


def inlined_length(jaxpr: Jaxpr) -> int:
    """Number of equations once calls are inlined, or more than `INLINE_LIMIT` if there are more than that."""
    total = 0
    stack = [jaxpr]
    while stack and total <= INLINE_LIMIT:
        current = stack.pop()
        total += len(current.eqns)
        if total > INLINE_LIMIT:
            break
        for eqn in current.eqns:
            if KIND.get(eqn.primitive.name) is Kind.CALL:
                inner = called(eqn)
                if inner is not None:
                    stack.append(inner)
    return total
