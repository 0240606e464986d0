"""What the loops of a gradient store for each other: a minimum cut between storing a value and computing it again.

A backward loop reads what the forward loop stacked for it. Of these residuals many are a few additions and products
away from others: plain JAX stores `x`, `0.05 * x` and `x - 0.05 * x * x` side by side. Each value of the forward body
that a reader needs is stored, or computed again in the reader's step from what is stored, from the forward loop's own
inputs, or from what exists anyway. The carry before a step is the one after the step before: where that is stacked
anyway, it is read from there.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, equation_seconds, nbytes
from ..cost.primitives import DEAR
from ..cost.vector_code import SCALAR_SECONDS
from ..cut import SINK, SOURCE, Graph
from ..kernels.kernel_products import why_not
from ..level import Level
from ..loop import Loop, LoopBuilder, as_loop
from ..program import copy_equation, is_var, rename, substitute
from ..record import record
from ..short_axes.short_sums import calls, row_by_row
from .made_there import Made, made_there
from .moved import scalar_beside_seams, seconds_of_moved

# Computed again without a kernel of their own: they are fused into what reads them.
AGAIN = frozenset((*ELEMENTWISE, "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "iota"))
# So is what cuts an array into pieces. What joins them is a kernel of its own, slower for each entry than most: with
# the slopes of Lorenz's equations, three coordinates joined, computed again, a Runge-Kutta gradient took 1.4 of its
# time (4,096 starts; 5.4 MB in place of 25).
PIECES = frozenset(("slice", "split", "unstack"))
JOINS = frozenset(("concatenate", "stack"))
# So are sums over so few entries: of the coordinates of a point, say.
SHORT_SUM = 8
# Of these, what does not round.
EXACT = frozenset("neg abs sign max min clamp select_n copy broadcast_in_dim reshape squeeze expand_dims".split())
# What is stored also drives other values out of the caches, and a line is fetched before it is written: so much of the
# time that its transfer takes. Gradients of recurrent cells take the same time at 0.25, 0.75 and 1.25 (an LSTM 0.92 to
# 0.91 of plain JAX's, minGRU 0.85 to 0.83), and less memory the higher it is (12.1 to 10.4 MB, 13.3 to 10.0 MB).
DRIVEN_OUT = 1.0
# Less than this is not worth another program,
SMALLEST_SAVING = 2**18
# nor less than this where each stack is a kernel of its own in every step. A loop without a product that XLA gives to a
# library may become one kernel, for which a stack is one store more and what is computed again feeds its products once
# for every multiplication: 8 x 16 units of a plain recurrent cell took 1.6 times as long, 4 numbers of Runge-Kutta 1.4.
SMALLEST_OF_KERNELS = 2**12
# The new way must be predicted this much better.
WORTH = 0.95


@record
class Residuals:
    """A loop whose stacked outputs other loops read step by step, and what is best done about them.

    Attributes:
        place: of the loop in its level.
        readers: the places of the loops that read residuals.
        needed: the outputs that only these loops read, each with its value in the body.
        stored: the values of the body that are stacked for the readers, with the stacked variable.
        before: the carries that are read from what is stacked of the step before, with that.
        bytes_saved: what the loop stacks less than before.
    """

    place: int
    loop: Loop
    readers: tuple[int, ...]
    needed: dict[Var, Atom]
    stored: dict[Var, Var]
    before: dict[Var, Var]
    bytes_saved: int


def cheapest(level: Level, place: int, loop: Loop, machine: Machine, parts_from: float) -> Residuals | None:
    """The cheapest set of values to store for the loops that read the outputs of `loop`; None if it stores that now.

    A loop that stores `parts_from` bytes or more may yet be run in parts: it is not read at other steps.
    """
    needed, readers = needed_by_loops(level, loop)
    now = sum(nbytes(y.aval) for y in needed)
    smallest = SMALLEST_OF_KERNELS if machine.name == "cpu" and _calls_library(loop) else SMALLEST_SAVING
    if now < smallest:
        return None
    fresh = now > machine.fresh_bytes
    pairs = [(y, v) for y, v in zip(loop.ys, loop.body_ys, strict=True) if is_var(v)]
    kept = {v: y for y, v in pairs if y not in needed and level.readers(y)}
    carries = [] if now >= parts_from else _carries(loop)
    before = {v: kept[x] for v, x in carries if x in kept and v not in kept}
    fixed = _rounded(loop, compared(level, needed, readers))
    slow = row_by_row(level, loop, readers) | calls(loop, needed.values()) if machine.name == "cpu" else set[int]()
    loops = [reader for place in readers if (reader := as_loop(level.eqns[place])) is not None]
    there = made_there(loop, loops) - fixed
    work = _Choice(level, loop, needed, kept, before, carries, fixed, there, slow, len(loops), machine, fresh)
    cost, stored, before = work.best()
    now_stored = {v for v in needed.values() if is_var(v)}
    if cost > WORTH * sum(_stored_seconds(v, False, loop, machine, fresh) for v in now_stored):
        return None
    saved = now - sum(nbytes(y.aval) for v, y in stored.items() if v not in kept)
    return Residuals(place, loop, readers, needed, stored, before, saved) if saved >= smallest else None


def _calls_library(loop: Loop) -> bool:
    """Whether a step holds a product that keeps it from becoming one kernel."""
    return any(eqn.primitive.name == "dot_general" and why_not(eqn) is not None for eqn in loop.body.eqns)


@record
class _Choice:
    """What a choice is made of: `kept` and `before` are stacked anyway, `carries` may be read of the step before.

    `there` is what the readers have without the loop, `slow` are ids of equations that a library would compute row by
    row.
    """

    level: Level
    loop: Loop
    needed: dict[Var, Atom]
    kept: dict[Var, Var]
    before: dict[Var, Var]
    carries: list[tuple[Var, Var]]
    fixed: set[Var]
    there: set[Var]
    slow: set[int]
    readers: int
    machine: Machine
    fresh: bool

    def best(self) -> tuple[float, dict[Var, Var], dict[Var, Var]]:
        """Seconds, the values that are stored and the carries that are read of the step before, with their stacks.

        Where a carry is stored, what it becomes may be the better thing to store, of which both can be made.
        """
        found = self.cheapest(set())
        ends = {x for v, x in self.carries if v in found[1] and x not in found[1]}
        return min(found, self.cheapest(ends), key=lambda one: one[0]) if ends else found

    def cheapest(self, ends: set[Var]) -> tuple[float, dict[Var, Var], dict[Var, Var]]:
        """The same for the cheapest choice that stores `ends`, what carries become."""
        loop, kept = self.loop, self.kept
        read = {v for v, x in self.carries if x in ends and v not in self.before}
        graph = self._graph({*self.before, *read}, ends)
        taken = graph.taken()
        cost = graph.cost(taken)
        named = {v: y for y, v in self.needed.items() if is_var(v)} | kept
        own = [*loop.body_carry, *(v for eqn in loop.body.eqns for v in eqn.outvars)]
        stored = {
            v: named.get(v) or _jax.new_var(v.aval.update(shape=(loop.length, *v.aval.shape), weak_type=False))
            for v in own
            if ("need", v) in taken and ("again", v) not in taken and v not in self.before
        }
        before = {v: y for v, y in self.before.items() if ("need", v) in taken}
        for v, x in self.carries:
            if v in stored and v not in kept and x in stored and stored[v] not in before.values():
                before[v] = stored[x]
                del stored[v]
                cost -= 0.0 if v in read else self._written(v)
        return cost + sum(self._written(v) for v in read if v in stored), stored, before

    def _graph(self, before: Collection[Var], ends: set[Var]) -> Graph:
        """Two nodes for each value of the body: the readers need it; they compute it themselves.

        The first without the second means that it is stored.
        """
        loop, machine, graph, fixed = self.loop, self.machine, Graph(), self.fixed | ends
        steady = replace(machine, seconds_per_fresh_byte=0.0)  # what a step makes, the next one makes in the same place
        moved = seconds_of_moved(loop, steady)
        scalar = scalar_beside_seams(loop, moved) if machine.name == "cpu" else set[int]()
        for v in (*ends, *filter(is_var, self.needed.values())):
            graph.edge(SOURCE, ("need", v), float("inf"))
        for v in loop.body_carry:
            graph.edge(("need", v), SINK, self._stored(v, v in self.kept or v in before))
        for x, v in zip(loop.xs, loop.body_xs, strict=True):
            free = v in self.there
            graph.edge(("need", v), SINK, 0.0 if free else self._stored(v, _exists(self.level, x, loop)))
        for eqn in loop.body.eqns:
            free = self.there.issuperset(eqn.outvars)
            cheap = free or is_light(eqn) or _shapes_inputs(eqn, loop) or id(eqn) in moved
            again = cheap and not eqn.effects and fixed.isdisjoint(eqn.outvars)
            for v in eqn.outvars:
                other = ("again", v) if again else SINK
                graph.edge(("need", v), other, self._stored(v, v in self.kept))
                if again:
                    graph.implies(other, ("run", id(eqn)))
            if again and not free:
                entries = max(v.aval.size for v in (eqn.outvars[0], *eqn.invars)) if id(eqn) in self.slow else 0
                seconds = entries * machine.short_axis_seconds if entries else arithmetic(eqn, steady)
                seconds += SCALAR_SECONDS * eqn.outvars[0].aval.size if id(eqn) in scalar else 0.0
                seconds = moved.get(id(eqn), seconds)
                graph.edge(("run", id(eqn)), SINK, loop.length * self.readers * seconds)
                for x in filter(is_var, eqn.invars):
                    graph.implies(("run", id(eqn)), ("need", x))
        return graph

    def _stored(self, v: Var, exists: bool) -> float:
        return _stored_seconds(v, exists, self.loop, self.machine, self.fresh)

    def _written(self, v: Var) -> float:
        """What storing a value costs more than reading what exists."""
        return self._stored(v, False) - self._stored(v, True)


def _carries(loop: Loop) -> list[tuple[Var, Var]]:
    """The carries at the start of a step, each with the value that it takes at the end."""
    pairs = zip(loop.body_carry, loop.next_carry, strict=True)
    return [(v, x) for v, x in pairs if is_var(x) and x is not v and _same(v, x)]


def _same(v: Var, x: Var) -> bool:
    return (v.aval.shape, v.aval.dtype) == (x.aval.shape, x.aval.dtype) and _jax.is_number(v.aval.dtype)


def needed_by_loops(level: Level, loop: Loop) -> tuple[dict[Var, Atom], tuple[int, ...]]:
    """The outputs that are read by other loops only, entry by entry, and the places of those loops."""
    needed: dict[Var, Atom] = {}
    places: set[int] = set()
    for y, v in zip(loop.ys, loop.body_ys, strict=True):
        readers = level.readers(y)
        if readers and all(k != -1 and _reads_entries(level.eqns[k], y, loop.length) for k in readers):
            needed[y] = v
            places.update(readers)
    return needed, tuple(sorted(places))


def compared(level: Level, needed: dict[Var, Atom], readers: Sequence[int]) -> set[Var]:
    """The values of the body that a reader compares with another value.

    Computed again, beside other work, they may differ in the last bit (a product and a sum are one instruction here and
    two there), and be equal no longer to the maximum that was found among them.
    """
    found: set[Var] = set()
    for place in readers:
        reader = as_loop(level.eqns[place])
        assert reader is not None
        inputs = {v: needed[x] for x, v in zip(reader.xs, reader.body_xs, strict=True) if is_var(x) and x in needed}
        tested: set[Var] = set()
        for eqn in reversed(reader.body.eqns):
            values = {x for x in eqn.invars if is_var(x) and jnp.issubdtype(x.aval.dtype, jnp.inexact)}
            is_test = eqn.primitive.name in ("eq", "ne") and len(values) == 2
            if is_test or (eqn.primitive.name in AGAIN and any(v in tested for v in eqn.outvars)):
                tested |= values
        found |= {x for v, x in inputs.items() if v in tested and is_var(x)}
    return found


def _rounded(loop: Loop, values: Collection[Var]) -> set[Var]:
    """What rounding gives of these values of the body, or of what they are made of without rounding."""
    seeds, rounded = set(values), set[Var]()
    for eqn in reversed(loop.body.eqns):
        if seeds.isdisjoint(eqn.outvars):
            continue
        if eqn.primitive.name in EXACT:
            seeds.update(x for x in eqn.invars if is_var(x))
        else:
            rounded.update(eqn.outvars)
    return rounded


def _reads_entries(eqn: JaxprEqn, y: Var, length: int) -> bool:
    reader = as_loop(eqn)
    return reader is not None and reader.length == length and y not in (*reader.consts, *reader.init)


def is_light(eqn: JaxprEqn) -> bool:
    """Whether an equation is computed again without a kernel of its own."""
    if eqn.primitive.name == "reduce_sum":
        return eqn.invars[0].aval.size <= SHORT_SUM * eqn.outvars[0].aval.size
    return eqn.primitive.name in AGAIN or eqn.primitive.name in PIECES


def _shapes_inputs(eqn: JaxprEqn, loop: Loop) -> bool:
    """Whether it transposes what the loop is given, a layer's weight, or joins an input and a state.

    Products read the weight as well as its transpose, and what is joined for them they read from memory anyway.
    """
    if eqn.primitive.name in JOINS:
        return all(is_var(x) and x in (*loop.body_xs, *loop.body_carry) for x in eqn.invars)
    return eqn.primitive.name == "transpose" and eqn.invars[0] in loop.body_xs


def _stored_seconds(v: Var, exists: bool, loop: Loop, machine: Machine, fresh: bool) -> float:
    """Time to read a value back step by step, and to write it unless it exists anyway."""
    size = loop.length * nbytes(v.aval)
    once = size / machine.bytes_per_second
    return once if exists else (2 + 2 * DRIVEN_OUT) * once + fresh * size * machine.seconds_per_fresh_byte


def _exists(level: Level, x: Atom, loop: Loop) -> bool:
    """Whether an input of the loop is in memory anyway when the readers run."""
    return not is_var(x) or x not in level.made_by or any(level.eqns[k] is not loop.eqn for k in level.readers(x))


def arithmetic(eqn: JaxprEqn, machine: Machine) -> float:
    """Time to compute a fused value: its arithmetic, without a kernel and without memory."""
    if eqn.primitive.name == "reduce_sum":
        return eqn.invars[0].aval.size / machine.vector_flops_per_second
    if eqn.primitive.name not in ELEMENTWISE:
        return 0.0
    by_number = eqn.primitive.name == "div" and not is_var(eqn.invars[1])  # of which XLA takes the reciprocal
    if eqn.primitive.name in DEAR and not by_number:
        return equation_seconds(eqn, machine)
    return max(v.aval.size for v in eqn.outvars) / machine.vector_flops_per_second


def rebuilt(level: Level, found: Residuals) -> dict[int, list[JaxprEqn]]:
    """The loop with what it now stacks, and its readers with what they now compute, by place."""
    loop = found.loop
    pairs = [(v, y) for y, v in zip(loop.ys, loop.body_ys, strict=True) if y not in found.needed]
    there = {y for _, y in pairs}
    pairs += [(v, y) for v, y in found.stored.items() if y not in there]
    new = {found.place: [loop.restacked(pairs)]}
    for place in found.readers:
        reader = as_loop(level.eqns[place])
        assert reader is not None
        new[place] = _reader(reader, found)
    return new


def _reader(reader: Loop, found: Residuals) -> list[JaxprEqn]:
    """A loop that computes in its steps those residuals that are not stored."""
    new = LoopBuilder(reader.eqn, reader.length, reader.reverse)
    ins: list[Atom] = [new.const(c) for c in reader.consts]
    setters: list[Callable[[Atom], None]] = []
    for init, final in zip(reader.init, reader.finals, strict=True):
        var, set_next = new.keep_carry(init, _jax.new_var(final.aval) if isinstance(final, _jax.DropVar) else final)
        ins.append(var)
        setters.append(set_next)
    made = _made_in_step(new, found, [found.needed[x] for x in reader.xs if is_var(x) and x in found.needed])
    for x, v in zip(reader.xs, reader.body_xs, strict=True):
        assert is_var(x), "what has an entry for each step is an array"
        ins.append(_as(new, next(made), v.aval) if x in found.needed else new.x(x))
    outs = _without_what_is_made(new, reader, ins)
    for set_next, out in zip(setters, outs[: len(setters)], strict=True):
        set_next(out)
    for y, out in zip(reader.ys, outs[len(setters) :], strict=True):
        new.y(out, y)
    return new.equations()


def _without_what_is_made(new: LoopBuilder, reader: Loop, ins: Sequence[Atom]) -> list[Atom]:
    """The results of the reader's step, behind what was made in it of the loop's values: nothing is made twice."""
    made = Made(new.body.eqns)
    env: dict[Var, Atom] = dict(zip(reader.body.invars, ins, strict=True))
    for eqn in reader.body.eqns:
        same = () if eqn.effects else made.find(rename(eqn, env))
        if same:
            env.update(zip(eqn.outvars, same, strict=True))
        else:
            new.body.eqns.append(copy_equation(eqn, env))
    return [substitute(v, env) for v in reader.body.outvars]


def _made_in_step(new: LoopBuilder, found: Residuals, wanted: Sequence[Atom]) -> Iterator[Atom]:
    """Values of the forward body in a reader's step, from what is stored."""
    loop = found.loop
    env: dict[Var, Atom] = {v: new.x(y) for v, y in found.stored.items()}
    env.update((v, _from_step_before(new, loop, v, y)) for v, y in found.before.items())
    consts = dict(zip(loop.body_consts, loop.consts, strict=True))
    entries = dict(zip(loop.body_xs, loop.xs, strict=True))

    def read(atom: Atom) -> None:
        if is_var(atom) and atom not in env:
            source = entries[atom] if atom in entries else consts[atom]
            env[atom] = new.x(source) if atom in entries and is_var(source) else new.const(source)

    for eqn in _between(loop, {*found.stored, *found.before}, wanted):
        for x in eqn.invars:
            read(x)
        new.body.eqns.append(copy_equation(eqn, env))
    for v in wanted:
        read(v)
        yield substitute(v, env)


def _from_step_before(new: LoopBuilder, loop: Loop, v: Var, y: Var) -> Atom:
    """The carry `v` at the start of a step, from the carries `y` at the ends of all steps."""
    init = loop.init[loop.body_carry.index(v)]
    first, ahead = (loop.length - 1, 1) if loop.reverse else (0, -1)

    def read(y: Any, init: Any, t: Any) -> Any:
        # An index out of bounds is clamped, and what it reads is not used.
        entry = lax.dynamic_index_in_dim(y, lax.max(t + np.int32(ahead), np.int32(0)), 0, keepdims=False)
        init = lax.convert_element_type(init, entry.dtype)
        return lax.select(lax.broadcast(t == np.int32(first), entry.shape), init, entry)

    return new.body.call(read, new.const(y), new.const(init), new.index())[0]


def _between(loop: Loop, stored: Collection[Var], wanted: Sequence[Atom]) -> list[JaxprEqn]:
    """The equations of the body that lead from the stored values to the wanted ones, in order."""
    live = {v for v in wanted if is_var(v) and v not in stored}
    found = []
    for eqn in reversed(loop.body.eqns):
        if any(v in live for v in eqn.outvars):
            found.append(eqn)
            live.update(x for x in eqn.invars if is_var(x) and x not in stored)
    return found[::-1]


def _as(new: LoopBuilder, atom: Atom, aval: Any) -> Atom:
    """`atom` with the weakness of `aval`: what is stacked is strong."""
    if getattr(atom.aval, "weak_type", False) == getattr(aval, "weak_type", False):
        return atom
    (out,) = new.body.call(lambda v: _jax.convert_element_type(v, aval.dtype, aval.weak_type), atom)
    return out
