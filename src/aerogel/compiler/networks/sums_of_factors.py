"""Factors that are sums with a simple term: `(A + c * eye(n)) @ x`, `(eye(n) - K @ H) @ P`, `(W + U @ V) @ x`.

Each term is multiplied alone, and the results are added: an identity times `x` is `x`, a product of low rank goes
through its few columns. One factor is taken apart at a time: `A @ P @ A.T` with `A = I - K @ H` is `Y - Y @ (K @ H).T`
of `Y = P - K @ (H @ P)`. Multiplied out as a whole, its terms would cancel each other.

Sums of nothing but products of few terms are `multiplied_out`, sum by sum: the gradient of `matrix_power(A, 6) @ v` is
a sum of outer products, multiplied by powers of A from both sides, `B @ P + P @ B` again and again.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..apart import Priced
from ..cost import Machine, equation_seconds
from ..cost.seconds import dot_seconds, transfer_seconds
from ..cost.sizes import elements
from ..known.records import Diagonal, Facts, Repeated, Separable, the
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record
from .network_reader import FLOATS, is_plain

MARGIN = 0.8
LEAST_SECONDS = 1e-6
MOST_TERMS = 4
MOST_OF_FEW = 32  # terms of a sum of products of few terms, which XLA adds up in one kernel
DEEPEST = 40


@record
class _Term:
    """A term of a sum: `core`, times the `scales` in turn.

    Attributes:
        scales: operations and the numbers that they take.
        rank: of a product of low rank; 0 of a diagonal matrix; None of any other matrix.
        made: the places of what goes with the sum.
    """

    core: Atom
    scales: tuple[tuple[str, Atom], ...]
    rank: int | None
    made: frozenset[int]


@dataclass
class _Sum:
    """A sum of matrices, and the products that read it, each with the transposes in between."""

    terms: list[_Term]
    made: set[int]
    read: list[tuple[int, int, list[JaxprEqn]]] = field(default_factory=list)


def distributed(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The sums of a level whose terms are better multiplied alone; each equation is in one of them at most."""
    return _found(level, facts, machine, of_few=False)


def multiplied_out(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The same of sums all of whose terms are products of few terms, or such a product times matrices."""
    return _found(level, facts, machine, of_few=True)


def _found(level: Level, facts: Facts, machine: Machine, of_few: bool) -> list[Priced]:
    by_sum: dict[Var, list[tuple[int, int, list[JaxprEqn]]]] = defaultdict(list)
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name != "dot_general" or not is_plain(eqn) or str(eqn.outvars[0].aval.dtype) not in FLOATS:
            continue
        for side, x in enumerate(eqn.invars):
            source, moves = _moved(level, x)
            if is_var(source) and _is_sum(level, source):
                by_sum[source].append((place, side, moves))
    found, taken = list[Priced](), set[int]()
    for var, read in by_sum.items():
        one = _judged(level, facts, machine, var, read, of_few)
        if one is not None and taken.isdisjoint(edit.place for edit in one.edits):
            taken.update(edit.place for edit in one.edits)
            found.append(one)
    return found


def _is_sum(level: Level, x: Atom) -> bool:
    made = level.maker(x)
    return made is not None and made.primitive.name in ("add", "add_any", "sub") and _is_alike(made)


def _is_alike(eqn: JaxprEqn) -> bool:
    """Whether the operands of an equation have the result's shape, but for dimensions of size 1."""
    shape = eqn.outvars[0].aval.shape
    ranks = {len(x.aval.shape) for x in eqn.invars}
    return is_plain(eqn) and ranks == {len(shape)}


def _moved(level: Level, x: Atom) -> tuple[Atom, list[JaxprEqn]]:
    """What a value is a transpose of, and the transposes, the innermost first."""
    moves: list[JaxprEqn] = []
    while (made := level.maker(x)) is not None and made.primitive.name == "transpose":
        moves.insert(0, made)
        x = made.invars[0]
    return x, moves


def _judged(
    level: Level, facts: Facts, machine: Machine, var: Var, read: list[tuple[int, int, list[JaxprEqn]]], of_few: bool
) -> Priced | None:
    """The products that read a sum, if all that reads it are such and each term alone is cheaper."""
    readers = set(level.readers(var)) | {k for _, _, moves in read for m in moves for k in level.readers(m.outvars[0])}
    own = {place for place, _, _ in read} | {level.made_by[m.outvars[0]] for _, _, moves in read for m in moves}
    if not readers <= own or len({place for place, _, _ in read}) != len(read):
        return None
    if any(_is_summed(level, level.eqns[place].outvars[0]) for place, _, _ in read):
        return None
    one = _Sum([], {level.made_by[var]}, read)
    _collect(level, facts, one, var, ())
    if of_few:
        known: dict[Atom, int | None] = {}
        one.terms = [replace(term, rank=_rank_of_chain(level, facts, term.core, known)) for term in one.terms]
    ranks = [term.rank for term in one.terms]
    if of_few and (not all(ranks) or len(ranks) > MOST_OF_FEW or any(term.scales for term in one.terms)):
        return None
    if not of_few and (len(ranks) > MOST_TERMS or ranks.count(None) == len(ranks) or ranks.count(None) > 1):
        return None
    before = after = 0.0
    for place in chain(one.made, *(term.made for term in one.terms)):
        before += equation_seconds(level.eqns[place], machine)
    for place, side, _ in read:
        seconds, apart = _seconds(level.eqns[place], side, one.terms, machine)
        before, after = before + seconds, after + apart
    if after > MARGIN * before or before - after < LEAST_SECONDS:
        return None
    edits = tuple(_edit(level.eqns[place], place, side, moves, one.terms) for place, side, moves in read)
    return Priced(edits, before, after)


def _is_summed(level: Level, x: Var) -> bool:
    """Whether a sum is all that reads a product: its network begins there, and sums the factor first."""
    readers = level.readers(x)
    eqns = [level.eqns[k] for k in readers if k >= 0]
    if not eqns or len(eqns) < len(readers):
        return False
    return all(
        eqn.primitive.name == "reduce_sum" or (eqn.primitive.name == "transpose" and _is_summed(level, eqn.outvars[0]))
        for eqn in eqns
    )


def _collect(level: Level, facts: Facts, one: _Sum, x: Atom, scales: tuple[tuple[str, Atom], ...]) -> None:
    """Adds the terms of `x`, which the `scales` multiply, to a sum."""
    made = level.maker(x)
    alone = is_var(x) and len(level.readers(x)) == 1
    if made is not None and (alone or not (one.terms or scales)) and _is_sum(level, made.outvars[0]):
        one.made.add(level.made_by[made.outvars[0]])
        signs: tuple[tuple[tuple[str, Atom], ...], ...] = ((), (("neg", x),) if made.primitive.name == "sub" else ())
        for operand, sign in zip(made.invars, signs, strict=True):
            _collect(level, facts, one, operand, (*sign, *scales))
        return
    places: set[int] = {level.made_by[x]} if alone and is_var(x) and x in level.made_by else set()
    rank = _rank(level, facts, x)
    while rank is None and (scaled := _scaled(level, made)) is not None:
        step, x = scaled
        scales = (step, *scales)
        made, rank = level.maker(x), _rank(level, facts, x)
        if is_var(x) and len(level.readers(x)) == 1 and x in level.made_by and places:
            places.add(level.made_by[x])
    one.terms.append(_Term(x, scales, rank, frozenset(places) if rank is not None else frozenset()))


def _scaled(level: Level, made: JaxprEqn | None) -> tuple[tuple[str, Atom], Atom] | None:
    """A step by which an equation scales a matrix, and the matrix."""
    if made is None or made.primitive.name not in ("mul", "div", "neg"):
        return None
    name, (x, *others) = made.primitive.name, made.invars
    if name == "neg":
        return ("neg", x), x
    for core, number in ((x, others[0]), (others[0], x)) if name == "mul" else ((x, others[0]),):
        source = _number(level, number)
        if source is not None and core.aval.shape == made.outvars[0].aval.shape:
            return (name, source), core
    return None


def _number(level: Level, x: Atom) -> Atom | None:
    """The scalar that a value repeats; None if it is no such value."""
    made = level.maker(x)
    if made is not None and made.primitive.name == "broadcast_in_dim" and not made.invars[0].aval.shape:
        x = made.invars[0]
    return x if not x.aval.shape else None


def _rank(level: Level, facts: Facts, x: Atom) -> int | None:
    """0 of a diagonal matrix, the number of terms of a product that has few of them; None of others."""
    known = facts.of(x)
    shape = x.aval.shape
    if any(isinstance(r, Diagonal) for r in known):
        return 0
    if len(shape) == 2 and (the(Separable, known) is not None or any(isinstance(r, Repeated) for r in known)):
        return 1
    made = level.maker(_unscaled(level, facts, x))
    if made is None or made.primitive.name != "dot_general":
        return None
    contract, batch = made.params["dimension_numbers"]
    if len(batch[0]) != len(shape) - 2:
        return None
    terms = 1
    for d in contract[0]:
        terms *= made.invars[0].aval.shape[d]
    return terms if 2 * terms <= min(shape[-2:]) else None


def _rank_of_chain(level: Level, facts: Facts, x: Atom, known: dict[Atom, int | None], depth: int = 0) -> int | None:
    """The rank that a matrix has at most as it is written: of products and sums of such of few terms; or None."""
    x, _ = _moved(level, x)
    if not is_var(x) or x not in known:
        found = _rank(level, facts, x) or (_rank_of_made(level, facts, x, known, depth) if depth < DEEPEST else None)
        if not is_var(x):
            return found
        known[x] = found
    return known[x]


def _rank_of_made(level: Level, facts: Facts, x: Atom, known: dict[Atom, int | None], depth: int) -> int | None:
    made = level.maker(x)
    if made is None or len(x.aval.shape) != 2:
        return None
    matrices = [y for y in made.invars if len(y.aval.shape) == 2]
    ranks = [rank for y in matrices if (rank := _rank_of_chain(level, facts, y, known, depth + 1))]
    if made.primitive.name == "dot_general" and not made.params["dimension_numbers"][1][0]:
        found = min(ranks, default=None)
    else:
        found = sum(ranks) if _is_sum(level, x) and len(ranks) == len(made.invars) else None
    return found if found is not None and 2 * found <= min(x.aval.shape) else None


def _unscaled(level: Level, facts: Facts, x: Atom) -> Atom:
    """What a matrix is without the transposes of it, and the numbers by which its rows and columns are multiplied."""
    while True:
        x, _ = _moved(level, x)
        made = level.maker(x)
        if made is None or made.primitive.name not in ("mul", "div") or not _is_alike(made):
            return x
        core, other = made.invars
        if made.primitive.name == "mul" and _is_line(facts, core):
            core, other = other, core
        if core.aval.shape != x.aval.shape or not _is_line(facts, other):
            return x
        x = core


def _is_line(facts: Facts, x: Atom) -> bool:
    """Whether a value does not vary along the rows, or the columns, of its matrices."""
    shape = x.aval.shape
    if len(shape) < 2:
        return False
    ends = {len(shape) - 1, len(shape) - 2}
    return any(shape[d] == 1 for d in ends) or any(isinstance(r, Repeated) and r.dim in ends for r in facts.of(x))


def _seconds(eqn: JaxprEqn, side: int, terms: Sequence[_Term], machine: Machine) -> tuple[float, float]:
    """What a product takes, and what its terms take one by one."""
    contract, batch = eqn.params["dimension_numbers"]
    shape, out = eqn.invars[side].aval.shape, eqn.outvars[0].aval
    size, deep = elements(eqn.invars[side].aval), 1
    for d in contract[side]:
        deep *= shape[d]
    many = 1
    for d in batch[side]:
        many *= shape[d]
    rows = size // max(many * deep, 1)
    columns = elements(out) // max(many * rows, 1)
    whole, item = equation_seconds(eqn, machine), out.dtype.itemsize

    def entries(count: int) -> float:
        return transfer_seconds(count * item, count * item, machine) + machine.seconds_per_kernel

    apart = 0.0
    for term in terms:
        if term.rank is None:
            apart += whole
        elif term.rank:
            narrow = many * term.rank * (deep + rows + 2 * columns)
            arithmetic = dot_seconds(many, term.rank, columns, deep, out.dtype, machine)
            arithmetic += dot_seconds(many, rows, columns, term.rank, out.dtype, machine)
            apart += max(arithmetic, entries(narrow)) + machine.seconds_per_kernel
        apart += entries(2 * elements(out))
    return whole, apart


def _edit(eqn: JaxprEqn, place: int, side: int, moves: Sequence[JaxprEqn], terms: Sequence[_Term]) -> Edit:
    """The sum of the products of the terms in the place of a product."""
    builder = Builder(eqn)
    total: Atom | None = None
    whole = (moves[0].invars[0] if moves else eqn.invars[side]).aval.shape
    for term in terms:
        x = term.core
        if x.aval.shape != whole:
            (x,) = builder.call(lambda x: lax.broadcast_in_dim(x, whole, tuple(range(len(whole)))), x)
        for move in moves:
            order = tuple(move.params["permutation"])
            (x,) = builder.call(lambda x, order=order: lax.transpose(x, order), x)
        operands = [x, eqn.invars[1]] if side == 0 else [eqn.invars[0], x]
        made = eqn.replace(invars=operands, outvars=[_jax.new_var(eqn.outvars[0].aval)])
        builder.eqns.append(made)
        (y,) = made.outvars
        minus = False
        for name, number in term.scales:
            if name == "neg":
                minus = not minus
            else:
                (y,) = builder.call(_SCALE[name], y, number)
        if total is None:
            total = builder.call(lax.neg, y)[0] if minus else y
        else:
            total = builder.call(lax.sub if minus else lax.add, total, y)[0]
    assert total is not None
    return Edit(place, frozenset({place}), builder.eqns, {eqn.outvars[0]: total}, frozenset({place}))


_SCALE = {
    "mul": lambda y, number: lax.mul(y, lax.broadcast(number, y.shape)),
    "div": lambda y, number: lax.div(y, lax.broadcast(number, y.shape)),
}
