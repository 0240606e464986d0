"""Loop hoisting: what a step computes without the carry runs outside the loop, for all steps at once, where that pays.

The opposite of loop fusion. Products of few rows become one of many, random numbers are drawn in one go; what XLA would
leave in the loop though it never changes is computed once.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from math import inf

from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..cost.primitives import RANDOM
from ..cost.seconds import equation_seconds, moves_few
from ..cost.vector_code import VECTOR_SECONDS
from ..exactness import Exactness
from ..hoisting.chain import find_chain, split_chain
from ..hoisting.hoist import Outside, Replacement, move_out
from ..hoisting.hoist_plan import (
    LEAST_SECONDS,
    SHORTEST_LOOP,
    Beside,
    Plan,
    Terms,
    is_map,
    plan_after,
    plan_all,
    plan_before,
    plan_once,
)
from ..hoisting.hoistable import SAME_BITS, is_heavy
from ..hoisting.repeated import with_repeated_outputs
from ..hoisting.sink import Sum, find_sums, is_long, is_small_outer, seconds_saved, sink, stays_stored, widens
from ..level import Level
from ..levels import rewrite_levels
from ..loop import MANY_STEPS, Loop, as_loop
from ..pipeline import Context
from ..program import Program, is_var, where
from ..record import record
from ..report import Decision
from ..residuals.residuals import cheapest, is_light, needed_by_loops
from .short_calls import becomes_short
from .windows import with_sums_of_slices

NAME = "loop-hoist"
# A loop over numbers is one kernel, and what stands for it several, which start fast on the thread that calls
# (`short_calls.py`). Of the time as one kernel, outside: 300 numbers 0.5 to 1.05 (in a loop around it 0.2 to 0.7),
# 1,000 0.45 to 1.2, 3,000 and more 0.13 to 0.86. The bounds are of predicted seconds, 5 to 50 ns a step.
SHORT_LOOP = 1e-6
# Few sines and powers are calls of the C library outside as well: 3,000 took 1.3 times as long there, 6,000 1.2 to 1.6,
# 10,000 0.5 to 0.7.
SHORT_LOOP_OF_CALLS = 1e-4


@record
class LoopHoist:
    """The pass. Bound: each loop is looked at once."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its loops' carry-independent work outside, and a decision for each heavy equation."""
        decisions: list[Decision] = []
        strict = Exactness.REASSOCIATES not in context.allowed
        terms = Terms(
            context.machine,
            strict,
            context.before_differentiation,
            lambda jaxpr: becomes_short(jaxpr, context),
            lambda jaxpr: with_sums_of_slices(jaxpr, context),
        )
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, terms, decisions)), decisions


def _level(jaxpr: Jaxpr, terms: Terms, decisions: list[Decision]) -> Jaxpr:
    done: set[Var] = set()
    start = 0
    while True:
        index = _next_loop(jaxpr, done, start)
        if index is None:
            return jaxpr
        work = _Work(jaxpr, set(jaxpr.eqns[index].outvars), terms, found=(jaxpr, index))
        for step in (_repeat, _gather, _chain, _all, _once, _before, _after):
            loop = work.loop()
            if loop is None:
                break
            step(work, loop)
        decisions += work.decisions
        done |= work.outs
        start = index + 1 if work.jaxpr is jaxpr else 0
        jaxpr = work.jaxpr


@dataclass
class _Work:
    """One loop that is being looked at: the level it stands in, and its results, by which it is found again."""

    jaxpr: Jaxpr
    outs: set[Var]
    terms: Terms
    decisions: list[Decision] = field(default_factory=list)
    chained: bool = False  # whether keys come from a loop of their own
    found: tuple[Jaxpr | None, int | None] = (None, None)  # the level that was last looked through, and the place in it

    @property
    def index(self) -> int | None:
        """Its place; the last one, where it was split."""
        if self.found[0] is not self.jaxpr:
            places = (
                i
                for i in reversed(range(len(self.jaxpr.eqns)))
                if self.jaxpr.eqns[i].primitive.name == "scan"
                and any(v in self.outs for v in self.jaxpr.eqns[i].outvars)
            )
            self.found = self.jaxpr, next(places, None)
        return self.found[1]

    def loop(self) -> Loop | None:
        """The loop; None when it is gone."""
        index = self.index
        loop = None if index is None else as_loop(self.jaxpr.eqns[index])
        if loop is not None:
            self.outs.update(loop.eqn.outvars)
        return loop

    def replace(self, new: Replacement) -> None:
        """Puts `new` in the loop's place."""
        assert self.index is not None
        for eqn in new.eqns:
            if eqn.primitive.name == "scan":
                self.outs.update(eqn.outvars)
        self.jaxpr = new.apply(self.jaxpr, self.index)

    def note(self, eqn: JaxprEqn, what: str, reason: str, fired: Exactness | None = None, bytes_added: int = 0) -> None:
        """Adds a decision: fired, with how exact that is, or refused."""
        exactness = fired or Exactness.BITWISE
        made = Decision(NAME, what, where(eqn), fired is not None, reason, 0, 0, -bytes_added, exactness)
        self.decisions.append(made)


def exactness_of(rounds: bool) -> Exactness:
    """How exact it is to run something for all steps at once."""
    return Exactness.REASSOCIATES if rounds else Exactness.BITWISE


def _repeat(work: _Work, loop: Loop) -> None:
    """Outputs that are the same in all steps are repeated, not stacked."""
    found = with_repeated_outputs(loop)
    if found is not None:
        for _ in found.results:
            work.note(loop.eqn, "an output of the loop is repeated", "it is the same in all steps", Exactness.BITWISE)
        work.replace(found)


def _gather(work: _Work, loop: Loop) -> None:
    """Sums of products leave; sums of numbers too, when then nothing is left of the loop."""
    if work.terms.strict or not loop.init:
        return
    sums = find_sums(loop)
    products = [one for one in sums if one.eqn is not None and _leaves(one, work.terms)]
    if _vanishes(work, loop, sums):
        return
    paying: list[Sum] = []
    for one in products:
        assert one.eqn is not None
        what = f"the sum of `{one.eqn.primitive.name}` over {loop.length} steps is one product after the loop"
        reason = _stays(work, loop, one, paying)
        if reason is None:
            paying.append(one)
            work.note(one.eqn, what, "no step reads the sum", Exactness.REASSOCIATES)
        else:
            work.note(one.eqn, what, reason)
    if paying:
        work.replace(sink(loop, paying))


def _stays(work: _Work, loop: Loop, one: Sum, others: list[Sum]) -> str | None:
    """Why a sum of products should stay in its loop, which `others` leave; None if it should not."""
    machine = work.terms.machine
    if is_long(loop, one, _made_again(work, loop)):
        return "each step sums up enough terms already, for the memory that stacking its factors takes"
    if moves_few(loop.eqn, machine) and not work.terms.before_differentiation:
        return "XLA makes one kernel of the loop: a product of few terms costs next to nothing there"
    if seconds_saved(loop, one, machine) < LEAST_SECONDS:
        return "stacking its factors costs more than it saves"
    if _stacked_bytes(loop, one) > machine.fresh_bytes:
        return "a step adds a multiple of what it has: stacked, that takes more memory than time"
    if is_map(loop) and stays_stored(loop, one, _stored_for(work, loop)):
        return "what another loop stores for this one alone could then not be made again"
    if widens(loop, [*others, one]):
        return "its factors, stacked, would be more than half of all that the steps read"
    return None


def _stacked_bytes(loop: Loop, one: Sum) -> int:
    """The bytes of all the rows that are added up, if each step has a number and a row to multiply; else 0."""
    assert one.eqn is not None
    number, row = sorted((x.aval for x in one.eqn.invars), key=lambda aval: aval.size)
    return loop.length * nbytes(row) if number.size == 1 else 0


def _leaves(one: Sum, terms: Terms) -> bool:
    """Whether a sum of products is more than one kernel of each step over a few numbers."""
    return terms.before_differentiation or not is_small_outer(one)


def _vanishes(work: _Work, loop: Loop, sums: list[Sum]) -> bool:
    """Takes all sums out if the rest of the loop then goes away altogether."""
    heavy = any(map(is_heavy, loop.body.eqns))
    small = all(_leaves(one, work.terms) if one.eqn is not None else _is_small(loop, one, heavy) for one in sums)
    if not sums or len({one.carry for one in sums}) < len(loop.init) or not small:
        return False
    calls = any(eqn.primitive.name in VECTOR_SECONDS for eqn in loop.body.eqns)
    short = SHORT_LOOP_OF_CALLS if calls else SHORT_LOOP
    least = SHORTEST_LOOP if heavy or any(one.eqn is not None for one in sums) else short
    least = least if loop.length >= MANY_STEPS else 0.0
    if not work.terms.before_differentiation and equation_seconds(loop.eqn, work.terms.machine) < least:
        work.note(loop.eqn, "the sums of the loop need no loop", "one kernel takes no longer than several to start")
        return False
    trial = _Work(work.jaxpr, set(work.outs), work.terms)
    trial.replace(sink(loop, sums))
    rest = trial.loop()
    if rest is not None:
        _all(trial, rest, {*_stored_for(work, loop), *rest.ys} - {*loop.ys})
        if trial.loop() is not None:
            return False
    for one in sums:
        eqn = one.eqn or one.add
        what = f"the sum of `{eqn.primitive.name}` over {loop.length} steps needs no loop"
        work.note(eqn, what, "no step reads the sum, or depends on another", Exactness.REASSOCIATES)
    work.jaxpr, work.outs = trial.jaxpr, trial.outs
    return True


def _is_small(loop: Loop, one: Sum, heavy: bool) -> bool:
    """Whether a term is a number, or no more than what a step of `heavy` work reads: all terms are then stacked."""
    (term,) = one.operands
    return not term.aval.shape or (heavy and nbytes(term.aval) <= sum(nbytes(x.aval) for x in loop.body_xs))


def _chain(work: _Work, loop: Loop) -> None:
    """Keys and counters that the carry threads through the steps are advanced before the loop, if that frees work."""
    if not any(is_heavy(eqn) or eqn.primitive.name in RANDOM for eqn in loop.body.eqns):
        return
    chain = find_chain(loop)
    new = None if chain is None else split_chain(loop, chain)
    if chain is None or new is None:
        return
    trial = _Work(work.jaxpr, set(work.outs), work.terms)
    trial.replace(new)
    rest = trial.loop()
    if rest is None or not _frees(rest, work.terms):
        return
    what = "the chain of keys or counters runs before the loop"
    if work.terms.machine.seconds_per_graph and chain.carries:
        work.note(loop.eqn, what, "a loop more costs more than the draws, which are part of a kernel of the step here")
        return
    work.note(loop.eqn, what, "it depends on itself only", Exactness.BITWISE)
    work.jaxpr, work.outs, work.chained = trial.jaxpr, trial.outs, True


def _frees(rest: Loop, terms: Terms) -> bool:
    return plan_before(rest, terms, small_draws=True).outside != Outside()


def _all(work: _Work, loop: Loop, stored: Collection[Var] = ()) -> None:
    """A loop whose steps depend on no other goes away, if its steps at once need no more memory.

    `stored` are values that exist for other loops or for a product after it only, besides those seen here.
    """
    if loop.init:
        return
    assert work.index is not None
    needed, _ = needed_by_loops(Level(work.jaxpr), loop)
    found = plan_all(work.jaxpr, work.index, loop, work.terms, {*stored, *needed, *_stored_for(work, loop)})
    what = "the loop is one operation on all steps"
    if isinstance(found, str):
        work.note(loop.eqn, what, found)
    else:
        rounds = any(eqn.primitive.name not in SAME_BITS for eqn in loop.body.eqns)
        work.note(loop.eqn, what, f"none of its {loop.length} steps depends on another", exactness_of(rounds))
        work.replace(move_out(loop, found))


def _once(work: _Work, loop: Loop) -> None:
    _move(work, loop, plan_once(loop, work.terms), "is computed once, before the loop")


def _before(work: _Work, loop: Loop) -> None:
    plan = plan_before(loop, work.terms, _beside(work, loop), small_draws=work.chained)
    _move(work, loop, plan, "runs before the loop, for all steps at once")


def _after(work: _Work, loop: Loop) -> None:
    plan = plan_after(loop, work.terms, _beside(work, loop))
    _move(work, loop, plan, "runs after the loop, for all steps at once")


def _beside(work: _Work, loop: Loop) -> Beside:
    """The loops that read what this one stores, and those that run the other way and stored what it reads."""
    level = Level(work.jaxpr)
    stored, readers = needed_by_loops(level, loop)
    read = {x: level.made_by[x] for x in loop.xs if is_var(x) and _runs_the_other_way(level.maker(x), loop)}
    others = {*readers, *read.values()}
    seconds = sum(equation_seconds(level.eqns[place], work.terms.machine) for place in others)
    return Beside(sum(nbytes(y.aval) for y in {*stored, *read}), seconds, partial(_room, work, level, loop))


def _room(work: _Work, level: Level, loop: Loop) -> float:
    """Half of what a loop stacks and its readers read besides, less what it must stack for them; inf of no readers."""
    stored, places = needed_by_loops(level, loop)
    if not stored or work.index is None:
        return inf
    readers = [reader for place in places if (reader := as_loop(level.eqns[place])) is not None]
    stacks = {*loop.ys, *(x for reader in readers for x in reader.xs if is_var(x) and x in level.made_by)}
    found = cheapest(level, work.index, loop, work.terms.machine, work.terms.machine.fresh_bytes)
    kept = stored if found is None else {*found.stored.values(), *found.before.values()}
    return sum(nbytes(x.aval) for x in stacks) / 2 - sum(nbytes(y.aval) for y in kept)


def _stored_for(work: _Work, loop: Loop) -> set[Var]:
    """What other loops store for this one alone."""
    level = Level(work.jaxpr)
    makers = {level.made_by[x] for x in loop.xs if is_var(x) and _runs_the_other_way(level.maker(x), loop)}
    others = (as_loop(level.eqns[place]) for place in makers)
    return {y for other in others if other is not None for y in needed_by_loops(level, other)[0]}


def _made_again(work: _Work, loop: Loop) -> set[Var]:
    """What the steps read that another loop stores for this one alone, and that may be made of others in them."""
    level, stored, found = Level(work.jaxpr), _stored_for(work, loop), set[Var]()
    for x, v in zip(loop.xs, loop.body_xs, strict=True):
        other = as_loop(eqn) if x in stored and (eqn := level.maker(x)) is not None else None
        if other is None or x not in other.ys:
            continue
        y = other.body_ys[other.ys.index(x)]
        maker = next((eqn for eqn in other.body.eqns if y in eqn.outvars), None)
        if maker is not None and is_light(maker) and y not in other.next_carry:
            found.add(v)
    return found


def _runs_the_other_way(maker: JaxprEqn | None, loop: Loop) -> bool:
    other = None if maker is None else as_loop(maker)
    return other is not None and other.length == loop.length and other.reverse != loop.reverse


def _move(work: _Work, loop: Loop, plan: Plan, how: str) -> None:
    eqns, moved = loop.body.eqns, plan.outside
    places = sorted(moved.once | moved.before | moved.after)
    named = [i for i in places if is_heavy(eqns[i]) or eqns[i].primitive.name in RANDOM]
    added = plan.bytes_added
    for i in named or places[:1]:
        exactness = exactness_of(eqns[i].primitive.name not in SAME_BITS and i not in moved.once)
        reason = f"it needs nothing that the other {loop.length - 1} steps compute"
        work.note(eqns[i], f"`{eqns[i].primitive.name}` {how}", reason, exactness, added)
        added = 0
    for i, reason in sorted(plan.refusals.items()):
        work.note(eqns[i], f"`{eqns[i].primitive.name}` outside the loop", reason)
    if moved != Outside():
        work.replace(move_out(loop, moved))


def _next_loop(jaxpr: Jaxpr, done: set[Var], start: int) -> int | None:
    for index in range(start, len(jaxpr.eqns)):
        eqn = jaxpr.eqns[index]
        outs = [v for v in eqn.outvars if not isinstance(v, DropVar)]
        if eqn.primitive.name == "scan" and not done.issuperset(outs):
            loop = as_loop(eqn)
            if loop is not None and loop.length > 1:
                return index
    return None
