"""Products with rows that indices pick from fewer rows: the few are multiplied, and rows of the product are picked.

A layer on the edges of a graph, `concatenate([h[senders], h[receivers], e], -1) @ W`, is `(h @ W1)[senders] + (h @
W2)[receivers] + e @ W3`: a product for each node, not for each edge. Of its gradient by `W`, what comes back for the
edges is added up for each node and multiplied then, and so it is of that by `h`. Measured on CPUs only.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..apart import Priced, cost_of
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, nbytes
from ..known.records import Facts
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record
from .network_reader import FLOATS, is_plain
from .picked_products import pays

MOST_PIECES = 16
# A logistic function of few entries is vector code. With the rows that are picked in its kernel XLA shares it among
# two threads, and of an odd number of short rows its code is scalar then: 2 to 6 ns for each entry more (301 to 2,501
# rows of 8 and 16), none for rows of 32, an even number, or tanh, which is scalar anyway. 256 kB are shared anyway. A
# gradient, whose weights read the joined rows too, gains all the same (0.85 of plain JAX's time, 703 rows of 16).
SCALAR_SECONDS = 4e-9
SCALAR_BYTES = 1 << 18
SCALAR_ROW = 16
PROMISED = lax.GatherScatterMode.PROMISE_IN_BOUNDS


@record
class _Rows:
    """Whole rows along dimension `dim` of `array`, which `eqn` gathers; `at` are the dimensions that the indices have.

    Features are all other dimensions of the result, in the array's order.
    """

    eqn: JaxprEqn
    dim: int
    at: tuple[int, ...]

    @property
    def array(self) -> Atom:
        return self.eqn.invars[0]

    @property
    def index(self) -> Atom:
        return self.eqn.invars[1]

    def own(self, d: int) -> int:
        """The array's dimension that a feature's dimension of the result is."""
        k = sum(other not in self.at for other in range(d))
        return k + (k >= self.dim)


def products_of_gathered_rows(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The products that are cheaper with the rows from which was picked: with pieces of a joined array, or with one."""
    del facts
    if machine.name != "cpu":
        return []
    found, seen = list[Priced](), set[Var]()
    for eqn in level.eqns:
        for x in eqn.invars if eqn.primitive.name == "dot_general" else ():
            made = level.maker(x) if is_var(x) else None
            x = made.invars[0] if made is not None and made.primitive.name == "transpose" else x
            if is_var(x) and x in level.made_by and x not in seen:
                seen.add(x)
                one = _multiplied(level, machine, x)
                found += [] if one is None else [one]
    return found


def _multiplied(level: Level, machine: Machine, x: Var) -> Priced | None:
    """All products with a value, one piece after the other."""
    made = level.maker(x)
    joined = made is not None and made.primitive.name == "concatenate" and len(made.invars) <= MOST_PIECES
    pieces = list(made.invars) if made is not None and joined else [x]
    along = made.params["dimension"] if made is not None and joined else None
    rows = [_rows_of(level, piece) for piece in pieces]
    readers = level.readers(x)
    if str(x.aval.dtype) not in FLOATS or not any(rows) or not readers or min(readers) < 0:
        return None
    edits, gone, results = list[Edit](), {level.made_by[x]}, list[Atom]()
    new = list[JaxprEqn]()
    products = _products_of(level, x)
    if products is None:
        return None
    for k, eqn in products:
        builder = Builder(eqn)
        result = _piece_by_piece(eqn, list(eqn.invars).index(x), along, pieces, rows, builder)
        if result is None or result.aval != eqn.outvars[0].aval:
            return None
        edits.append(Edit(k, frozenset({k}), builder.eqns, {eqn.outvars[0]: result}, frozenset({k})))
        gone |= {k, *(j for j in readers if level.eqns[j].primitive.name == "transpose")}
        new += builder.eqns
        results.append(result)
    gone |= {k for k in (level.made_by.get(v, -1) for v in pieces if is_var(v)) if k >= 0 and _dies(level, k, gone)}
    old = [level.eqns[k] for k in sorted(gone)]
    found = priced(level, machine, edits, old, [level.eqns[e.place].outvars[0] for e in edits], new, results)
    more = _scalar_seconds(level, level.eqns[edits[0].place].outvars[0]) if len(edits) == 1 else 0.0
    return found if found is not None and found.seconds_after + more < found.seconds_before else None


def _scalar_seconds(level: Level, x: Var) -> float:
    """What is lost where a logistic function of picked rows becomes scalar code."""
    shape = x.aval.shape
    is_odd = len(shape) == 2 and shape[0] % 2 == 1 and shape[1] <= SCALAR_ROW
    if not is_odd or nbytes(x.aval) >= SCALAR_BYTES or _jax.usable_cores() == 1:
        return 0.0
    waiting, seen = [x], {x}
    while waiting:
        for k in level.readers(waiting.pop()):
            eqn = level.eqns[k] if k >= 0 else None
            if eqn is not None and eqn.primitive.name == "logistic":
                return SCALAR_SECONDS * x.aval.size
            if eqn is not None and eqn.primitive.name in ELEMENTWISE and eqn.outvars[0] not in seen:
                seen.add(eqn.outvars[0])
                waiting.append(eqn.outvars[0])
    return 0.0


def _products_of(level: Level, x: Var) -> list[tuple[int, JaxprEqn]] | None:
    """The products that read a value, by their places, as if they read none of its transposes; None if others do."""
    found = list[tuple[int, JaxprEqn]]()
    for k in dict.fromkeys(level.readers(x)):
        eqn, rank = level.eqns[k], len(x.aval.shape)
        order, var = tuple(range(rank)), x
        if eqn.primitive.name == "transpose":
            order, var = tuple(map(int, eqn.params["permutation"])), eqn.outvars[0]
        for j in dict.fromkeys(level.readers(var) if var is not x else [k]):
            eqn = level.eqns[j]
            if j < 0 or eqn.primitive.name != "dot_general" or not is_plain(eqn) or eqn.invars[0] is eqn.invars[1]:
                return None
            side = list(eqn.invars).index(var)
            contract, batch = (list(map(tuple, dims)) for dims in eqn.params["dimension_numbers"])
            if var is not x and rank - len(contract[side]) > 1:
                return None  # the result has them in the order of the transpose
            contract[side] = tuple(order[d] for d in contract[side])
            numbers, read = (tuple(contract), tuple(batch)), [x if v is var else v for v in eqn.invars]
            found.append((j, eqn.replace(invars=read, params={**eqn.params, "dimension_numbers": numbers})))
    return found


def _dies(level: Level, place: int, gone: set[int]) -> bool:
    eqn = level.eqns[place]
    return eqn.primitive.name == "gather" and all(k in gone for k in level.readers(eqn.outvars[0]))


def priced(
    level: Level,
    machine: Machine,
    edits: Sequence[Edit],
    old: Sequence[JaxprEqn],
    outs: Sequence[Atom],
    new: Sequence[JaxprEqn],
    results: Sequence[Atom],
) -> Priced | None:
    """The edits, where the `new` equations are predicted to make `results` sooner than the `old` ones make `outs`."""
    before, after = cost_of(level, old, outs, machine), cost_of(level, new, results, machine)
    in_place = sum(nbytes(x.aval) for x in results)  # where XLA adds up what the pieces give
    if not pays(before, replace(after, peak_bytes=after.peak_bytes - in_place)):
        return None
    return Priced(tuple(edits), before.seconds or 0.0, after.seconds or 0.0)


def _rows_of(level: Level, x: Atom) -> _Rows | None:
    """That a value is rows which indices pick from fewer rows."""
    eqn = level.maker(x) if is_var(x) else None
    if eqn is None or eqn.primitive.name != "gather":
        return None
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    dims, alone = tuple(numbers.start_index_map), tuple(numbers.collapsed_slice_dims)
    if len(dims) != 1 or dims != alone or numbers.operand_batching_dims or 0 in (*shape, *x.aval.shape):
        return None
    dim = int(dims[0])
    if any(n != (1 if d == dim else m) for d, (n, m) in enumerate(zip(eqn.params["slice_sizes"], shape, strict=True))):
        return None
    at = tuple(d for d in range(len(x.aval.shape)) if d not in numbers.offset_dims)
    return _Rows(eqn, dim, at) if eqn.invars[0].aval.size < x.aval.size else None


def _piece_by_piece(
    eqn: JaxprEqn, side: int, along: int | None, pieces: Sequence[Atom], rows: Sequence[_Rows | None], builder: Builder
) -> Atom | None:
    contract, batch = eqn.params["dimension_numbers"]
    mine, theirs = tuple(contract[side]), tuple(contract[1 - side])
    if batch[0]:
        return None
    other, start, parts = eqn.invars[1 - side], 0, list[Atom]()
    for piece, picked in zip(pieces, rows, strict=True):
        part = other
        if along is not None and along in mine:
            cut = theirs[mine.index(along)]
            size = piece.aval.shape[along]
            first, start = start, start + size
            (part,) = builder.call(lambda y, a=first, b=first + size, d=cut: lax.slice_in_dim(y, a, b, axis=d), other)
        if picked is None:
            how = "whole"
        elif not set(mine) & set(picked.at):
            how = "picked"
        elif set(mine) == set(picked.at) and picked.eqn.params["mode"] == PROMISED:
            how = "added"
        else:
            return None
        made = _made(eqn, side, piece, part, picked, how, builder)
        parts.append(made)
    if len(parts) == 1:
        return parts[0]
    if along in mine:
        return builder.call(lambda *ys: reduce(lax.add, ys), *parts)[0]
    free = [d for d in range(len(pieces[0].aval.shape)) if d not in mine]
    left = len(other.aval.shape) - len(theirs) if side else 0
    assert along is not None, "several pieces are joined"
    return builder.call(lambda *ys: lax.concatenate(ys, free.index(along) + left), *parts)[0]


def _made(eqn: JaxprEqn, side: int, piece: Atom, other: Atom, rows: _Rows | None, how: str, builder: Builder) -> Atom:
    """The product with one piece: as it is, of the rows from which was picked, or with what is added up for these."""
    contract = eqn.params["dimension_numbers"][0]
    mine, theirs = tuple(contract[side]), tuple(contract[1 - side])

    def dot(x: Any, y: Any, own: Sequence[int], of_other: Sequence[int]) -> Any:
        sides, dims = ((x, y), (own, of_other)) if side == 0 else ((y, x), (of_other, own))
        numbers = ((tuple(dims[0]), tuple(dims[1])), ((), ()))
        kind = eqn.params["preferred_element_type"]
        return lax.dot_general(*sides, numbers, precision=eqn.params["precision"], preferred_element_type=kind)

    if rows is None or how == "whole":
        return builder.call(lambda x, y: dot(x, y, mine, theirs), piece, other)[0]
    if how == "picked":
        own = tuple(map(rows.own, mine))
        free = [d for d in range(len(piece.aval.shape)) if d not in mine]
        left = len(other.aval.shape) - len(theirs) if side else 0
        places = [k + left for k, d in enumerate(free) if d in rows.at]
        params = {k: v for k, v in rows.eqn.params.items() if k not in ("dimension_numbers", "slice_sizes")}

        def picked(h: Any, i: Any, y: Any) -> Any:
            product = dot(h, y, own, theirs)
            at = sum(d not in own for d in range(rows.dim)) + left
            offsets = tuple(d for d in range(product.ndim - 1 + len(places)) if d not in places)
            numbers = lax.GatherDimensionNumbers(offsets, (at,), (at,))
            sizes = tuple(1 if d == at else n for d, n in enumerate(product.shape))
            return lax.gather(product, i, numbers, sizes, **params)

        return builder.call(picked, rows.array, rows.index, other)[0]

    def added(h: Any, i: Any, y: Any) -> Any:
        order = [theirs[mine.index(d)] for d in rows.at]
        y = lax.transpose(y, [*order, *(d for d in range(y.ndim) if d not in order)])
        sums = added_up(y, i, h.shape[rows.dim], PROMISED)
        return dot(h, sums, (rows.dim,), (0,))

    return builder.call(added, rows.array, rows.index, other)[0]


def added_up(y: Any, index: Any, count: int, mode: Any) -> Any:
    """Rows that are added where indices say, which have its first dimensions, in that many rows."""
    rank = index.ndim - 1
    window = tuple(range(rank, y.ndim))
    shape = (count, *y.shape[rank:])
    numbers = lax.ScatterDimensionNumbers(tuple(window), (0,), (0,))
    return lax.scatter_add(lax.full(shape, 0, y.dtype), index, y, numbers, mode=mode)
