"""What of a loop's body runs outside it: minimum cuts over what must then cross the loop's border."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from math import inf

import jax.numpy as jnp

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..cost import Machine, equation_seconds, jaxpr_seconds, nbytes
from ..cost.account import jaxpr_cost
from ..cost.primitives import KIND, RANDOM, REDUCE, Kind
from ..cost.seconds import step_launches
from ..cost.short import is_surely_short
from ..cut import SINK, SOURCE, Graph
from ..loop import Loop
from ..program import depends_on, inner_jaxprs, is_var, users
from ..record import record
from .chain import find_chain
from .hoist import Outside, constant_equations, move_out
from .hoistable import crossing_seconds, is_dear, is_heavy, refusal, stacked_inputs, steps_saved

# The share of a predicted saving that is believed: products of few rows gain less than the model says.
TRUST = 0.5
# Savings below these are noise.
LEAST_SHARE, LEAST_SECONDS = 0.03, 2e-6
# A loop that is done by then is not worth a kernel besides it: 300 products of 50 entries took 14 us in one, 35 with
# the product of all of them before it, which wakes a thread.
SHORTEST_LOOP = 3e-5
# What that took longer, and what a short loop must be predicted to lose by it. (A filter of 32 particles, 5 steps, with
# its draws before the loop: 1.5 of plain JAX's time, predicted to save 10 us of 34; mixtures of 4 normals, 10 points
# in 10 steps: 0.78, predicted to save 39 of 55.)
WAKING = 2e-5
# Bytes that stacking may add without a large gain in time.
FREE_BYTES = 16 << 20
LARGE_GAIN = 1.5
# The same for what is wider than what a step of a map reads and hands over: whoever writes it bounds memory with it.
# (Attention over blocks of 32 queries of 2,048 took 1.33 of its time, and 34 MB in place of 0.5, with all scores made
# before the loop, of which a gain of 1.8 was predicted; a product of one row gains 5.)
FREE_WIDE_BYTES = 1 << 20
LARGE_WIDE_GAIN = 3.0
# The same for what is stored for another loop, which may come to make it again, if both stay loops. (Gradients of maps
# over rows: attention over blocks of 128 of 2,048, of which a gain of 1.04 was predicted, took 1.16 of its time at
# once, and 51 MB in place of 20; a network of 64, 512 and 64 took 0.5, predicted 1.7.)
GAIN_OF_STORED = 1.25
# The same for the loops of a gradient, between which much is stored besides: so much, or this share of that.
# Half of it is not stored in the end (`residuals.py`), so an eighth is a quarter of the rest.
FREE_GRADIENT_BYTES, FREE_GRADIENT_SHARE = 4 << 20, 0.125
# More than this must leave half of what such loops store unused. (The gradient of a minimal gated unit, 100 steps,
# batch 32, width 128: with its projections at once 8.4 MB, 0.84 of plain JAX's time; without 5.3, 0.89; plain 14.8.)
LEAST_GRADIENT_BYTES = 1 << 20
# A loop that takes longer gains by what is shared among cores, and by vector code: 1,000 sums of 200 sines take 0.2 of
# the time.
SHORT_LOOP = 3e-4
# Kernels of a step whose starts the time of a step has already: the one that its work is, and the one that counts.
KERNELS_OF_A_STEP = 2
# Bytes of intermediate results that a loop may leave behind when it goes away.
FREE_STEPS = 64 << 10
LITTLE_SHARE = 1 / 16  # the same, of what it stacks: a row of a number repeated 30 times is made of that number
SUMS = frozenset("add add_any mul convert_element_type broadcast_in_dim reshape squeeze".split())


@record
class Terms:
    """What the plan may rest on."""

    machine: Machine
    strict: bool
    before_differentiation: bool
    becomes_short: Callable[[Jaxpr], bool] = lambda _: False  # whether a pass makes a program short (`short_calls.py`)
    without_windows: Callable[[Jaxpr], Jaxpr] = lambda jaxpr: jaxpr  # sums of windows made of slices (`windows.py`)


@record
class Beside:
    """What the other loops of a gradient are to one of them.

    Attributes:
        residual_bytes: what the loop stores for them, or reads of what they stored.
        seconds: how long they take.
        room: what may be kept besides what they need of each other at the least, and half of it is still saved.
    """

    residual_bytes: int = 0
    seconds: float = 0.0
    room: Callable[[], float] = lambda: inf


ALONE = Beside()


@dataclass
class Plan:
    """Equations that move, in one of the three ways, and why others do not.

    Attributes:
        outside: what moves.
        refusals: for a heavy equation that stays, by index, the reason.
        seconds_saved: predicted, what crosses the border taken off.
        bytes_added: stacked values that did not exist before.
    """

    outside: Outside = field(default_factory=Outside)
    refusals: dict[int, str] = field(default_factory=dict)
    seconds_saved: float = 0.0
    bytes_added: int = 0


def plan_once(loop: Loop, terms: Terms) -> Plan:
    """Work on constants only that XLA would leave in the loop: random numbers; before differentiation, all."""
    eqns = loop.body.eqns
    fixed = constant_equations(loop)
    plan = Plan()
    roots = {i for i in fixed if _stays_in_loop(eqns[i], terms)}
    if not roots:
        return plan
    late = depends_on(loop.body, [v for i in roots for v in eqns[i].outvars])
    once = {i for i in fixed if i in roots or any(is_var(x) and x in late for x in eqns[i].invars)}
    saved = (loop.length - 1) * sum(equation_seconds(eqns[i], terms.machine) for i in roots)
    return Plan(Outside(once=frozenset(once)), seconds_saved=saved)


def _stays_in_loop(eqn: JaxprEqn, terms: Terms) -> bool:
    if not is_heavy(eqn):
        return terms.before_differentiation and is_dear(eqn) and any(is_var(x) for x in eqn.invars)
    return terms.before_differentiation or any(one.primitive.name in RANDOM for one in _flat(eqn))


def _flat(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    yield eqn
    for inner in inner_jaxprs(eqn):
        for one in inner.eqns:
            yield from _flat(one)


def plan_before(loop: Loop, terms: Terms, beside: Beside = ALONE, *, small_draws: bool = False) -> Plan:
    """What reads no carry and is cheaper for all steps at once than step by step.

    With `small_draws` also random numbers of which a step draws only a few.
    """
    eqns = loop.body.eqns
    fixed = constant_equations(loop)
    carried = depends_on(loop.body, loop.body_carry)
    free = {
        i for i, eqn in enumerate(eqns) if i not in fixed and not any(is_var(x) and x in carried for x in eqn.invars)
    }
    heavy = {i for i in free if is_heavy(eqns[i]) or (small_draws and eqns[i].primitive.name in RANDOM)}
    return _plan(loop, free, heavy, fixed, terms, beside, after=False) if heavy else Plan()


def plan_after(loop: Loop, terms: Terms, beside: Beside = ALONE) -> Plan:
    """What only stacked outputs read, and is cheaper for all steps at once than step by step."""
    eqns = loop.body.eqns
    fixed = constant_equations(loop)
    needed: set[object] = {x for x in loop.next_carry if is_var(x)}
    free: set[int] = set()
    for i in reversed(range(len(eqns))):
        if i in fixed:
            continue
        if eqns[i].effects or any(v in needed for v in eqns[i].outvars):
            needed.update(x for x in eqns[i].invars if is_var(x))
        else:
            free.add(i)
    heavy = {i for i in free if is_heavy(eqns[i])}
    return _plan(loop, free, heavy, fixed, terms, beside, after=True) if heavy else Plan()


# What sums of windows must save: 4,000 to 40,000 of 4 to 16 numbers took 0.9 to 1.9 of the time as slices where less
# was predicted, where more was 0.03 to 0.9 (a sum of 16, a place further each step, 40,000 times: 146 and 58 us).
WAKINGS = 2
LARGER = "a step's intermediate values are larger than what it reads and hands over"


def plan_all(jaxpr: Jaxpr, index: int, loop: Loop, terms: Terms, stored: Collection[Var] = ()) -> Outside | str:
    """All of a loop without carries, when its steps at once keep no more than it stacks anyway; else why not.

    `stored` is what this loop stacks for others, or others for it, step by step: it may come to be made again.
    """
    eqns = loop.body.eqns
    fixed = constant_equations(loop)
    free = frozenset(range(len(eqns))) - fixed
    refused = next((r for i in sorted(free) if (r := refusal(eqns[i], terms.strict)) is not None), None)
    if refused is not None:
        return refused
    if any(not is_var(y) or y in loop.body_consts for y in loop.body_ys) or not free:
        return "its steps hand over constants"
    heavy, wide = any(is_heavy(eqns[i]) for i in free), _widens(loop, free)
    if wide and not heavy:
        return _plan_windows(jaxpr, loop, free, terms)
    if not terms.before_differentiation and not heavy and _summed_over_time(jaxpr, index, loop):
        return "its outputs are summed over the steps alone, which a carry does faster"
    new = move_out(loop, Outside(before=free))
    ins = list(dict.fromkeys(x for x in loop.eqn.invars if is_var(x)))
    whole = _jax.new_jaxpr(loop.body, ins, [new.results.get(y, y) for y in loop.ys], new.eqns)
    after, before = jaxpr_seconds(whole, terms.machine), equation_seconds(loop.eqn, terms.machine)
    peak = jaxpr_cost(whole).peak_bytes
    if wide and peak > FREE_WIDE_BYTES:
        return _plan_windows(jaxpr, loop, free, terms)
    if before < GAIN_OF_STORED * after and _stores_wide(loop, free, stored):
        return "what its steps store for another loop is larger than what they read and hand over"
    # elementwise work fuses with what comes after it, which the figures of the loop alone do not show
    if heavy and after > (1 - LEAST_SHARE) * before:
        return "its steps at once are no faster"
    before += loop.length * _seconds_of_starts(loop, terms.machine)
    if not terms.before_differentiation and _wakes_another(jaxpr, whole, before, after, terms):
        return "it would take longer to wake another thread, and the thread that calls runs its steps"
    stacks = (1 + LITTLE_SHARE) * sum(nbytes(y.aval) for y in loop.ys)
    if peak > max(FREE_WIDE_BYTES if heavy else 0, FREE_STEPS + stacks):
        return "its steps at once need more memory"
    return Outside(before=free)


def _plan_windows(jaxpr: Jaxpr, loop: Loop, free: frozenset[int], terms: Terms) -> Outside | str:
    """All of a loop whose steps make something of windows of an array that is made of slices of it; else why not."""
    cut = (loop.body.eqns[i] for i in free if loop.body.eqns[i].primitive.name == "dynamic_slice")
    if terms.before_differentiation or not any(eqn.invars[0] in loop.body_consts for eqn in cut):
        return LARGER
    counters = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "iota" and eqn.outvars[0] in loop.xs]
    counted = {eqn.outvars[0] for eqn in counters}
    new = move_out(loop, Outside(before=free))
    ins = [x for x in dict.fromkeys(loop.eqn.invars) if is_var(x) and x not in counted]
    outs = [new.results.get(y, y) for y in loop.ys]
    whole = terms.without_windows(_jax.new_jaxpr(loop.body, ins, outs, [*counters, *new.eqns]))
    most = FREE_STEPS + sum(nbytes(x.aval) for x in (*loop.consts, *loop.ys))
    if any(nbytes(v.aval) > most for eqn in whole.eqns for v in eqn.outvars) or jaxpr_cost(whole).peak_bytes > most:
        return LARGER
    saved = equation_seconds(loop.eqn, terms.machine) - jaxpr_seconds(whole, terms.machine)
    if saved < WAKINGS * terms.machine.seconds_to_hand_over:
        return "its steps at once are no faster"
    return Outside(before=free)


def _wakes_another(level: Jaxpr, whole: Jaxpr, before: float, after: float, terms: Terms) -> bool:
    """Whether a program is short with a loop in it, not with its steps at once, and these save less than that takes.

    JAX's CPU client runs in the thread that calls what counts as little, and a loop counts as one step. (Rows
    `v * v + 2 * v`, 200 to 1,000 of 64, took 1.8 to 3.5 times as long at once, sums of 500 and 1,000 rows of
    exponentials 2.4; 5,000 rows 0.9 and 1.0, softmax of 200 rows 0.5.)
    """
    machine = terms.machine
    if machine.name != "cpu" or before >= SHORT_LOOP or after + machine.seconds_to_hand_over <= before:
        return False
    return is_surely_short(level) and not is_surely_short(whole) and not terms.becomes_short(whole)


def _seconds_of_starts(loop: Loop, machine: Machine) -> float:
    """Seconds that a step takes to start kernels, where it is several."""
    kernels = step_launches(loop.eqn, machine).count
    return max(0, kernels - KERNELS_OF_A_STEP) * machine.seconds_per_step_kernel


def _widens(loop: Loop, free: frozenset[int]) -> bool:
    """Whether a value of the steps is larger than what they read and hand over: a map then bounds memory."""
    given = sum(nbytes(x.aval) for x in loop.body_xs) + sum(nbytes(y.aval) for y in loop.body_ys)
    return any(nbytes(v.aval) > given for i in free for v in loop.body.eqns[i].outvars)


def _stores_wide(loop: Loop, free: frozenset[int], stored: Collection[Var]) -> bool:
    """Whether a value of the steps is larger than each that they read and hand over, but for what is stored."""
    given = max((nbytes(x.aval) for x in (*loop.xs, *loop.ys) if x not in stored), default=0)
    largest = loop.length * max(nbytes(v.aval) for i in free for v in loop.body.eqns[i].outvars)
    return bool(stored) and largest > max(given, FREE_WIDE_BYTES)


def _summed_over_time(jaxpr: Jaxpr, index: int, loop: Loop) -> bool:
    """Whether every output is next reduced over the steps and nothing else: a carry is better at that."""
    roots: dict[Var, set[Var]] = {y: {y} for y in loop.ys}  # the outputs that a value is computed from
    summed: set[Var] = set()
    for eqn in jaxpr.eqns[index + 1 :]:
        ys = set().union(*(roots.get(x, ()) for x in eqn.invars if is_var(x)))
        if not ys or not eqn.outvars:
            continue
        shape = getattr(eqn.outvars[0].aval, "shape", ())
        if eqn.primitive.name in REDUCE and tuple(eqn.params.get("axes", ())) == (0,) and shape:
            summed |= ys
        elif KIND.get(eqn.primitive.name, Kind.OPAQUE) <= Kind.DEAR and shape[:1] == (loop.length,):
            roots.update(dict.fromkeys(eqn.outvars, ys))
    return summed >= set(loop.ys)


def _plan(
    loop: Loop, free: set[int], heavy: set[int], fixed: set[int], terms: Terms, beside: Beside, *, after: bool
) -> Plan:
    eqns, plan = loop.body.eqns, Plan()
    constant = {*loop.body_consts, *(v for i in fixed for v in eqns[i].outvars)}
    refusals = {i: r for i in free if (r := refusal(eqns[i], terms.strict)) is not None}
    gains = {
        i: TRUST * steps_saved(eqns[i], stacked_inputs(eqns[i], constant), loop.length, terms.machine)
        for i in sorted(heavy - refusals.keys())
    }
    plan.refusals = {i: r for i, r in refusals.items() if i in heavy}
    graph = Graph()
    build = _after_graph if after else _before_graph
    build(graph, loop, free, constant, terms.machine)
    for i in free:
        if i in refusals:
            graph.edge(i, SINK, inf)
        elif i in gains:
            graph.edge(SOURCE, i, gains[i])
        elif is_dear(eqns[i]):
            graph.edge(SOURCE, i, 0.25 * max(crossing_seconds(v, loop.length, terms.machine) for v in eqns[i].outvars))
    taken = {i for i in graph.taken() if isinstance(i, int)} if any(gains.values()) else set()
    moved = frozenset(taken & free)
    for i in gains.keys() - moved:
        plan.refusals[i] = "stacking what crosses the loop's border costs what running it at once saves"
    if not moved & gains.keys():
        return plan
    new = _new_stacks(loop, moved, constant, after=after)
    plan.seconds_saved = sum(gains[i] for i in moved & gains.keys()) - sum(
        crossing_seconds(v, loop.length, terms.machine) for v in new
    )
    plan.seconds_saved += TRUST * _starts_saved(loop, moved, terms.machine) if after else 0.0
    inner = {v for i in moved & gains.keys() for v in eqns[i].outvars}
    plan.bytes_added = loop.length * sum(_held_bytes(v, terms.machine) for v in new | inner)
    reason = _too_little(loop, plan, terms, beside) or _too_wide(loop, plan, new | inner, terms)
    if reason is None:
        plan.outside = Outside(after=moved) if after else Outside(before=moved)
    else:
        plan.refusals |= dict.fromkeys(moved & gains.keys(), reason)
    return plan


def _starts_saved(loop: Loop, moved: frozenset[int], machine: Machine) -> float:
    """Seconds that the steps need not start what runs after the loop: a head of 10 classes has a softmax behind it."""
    new = move_out(loop, Outside(after=moved))
    rest = [eqn for eqn in new.eqns if eqn.primitive.name == "scan" and not {*eqn.outvars}.isdisjoint(loop.finals)]
    if len(rest) != 1:
        return 0.0
    saved = step_launches(loop.eqn, machine).count - step_launches(rest[0], machine).count
    return loop.length * max(0, saved) * machine.seconds_per_step_kernel


def _held_bytes(v: Var, machine: Machine) -> int:
    """What a value takes: XLA's CPU backend multiplies halves as float32, and holds the product besides its rounding.

    An LSTM in bfloat16 whose inputs are projected before the loop takes 21 MB, with the projection in its steps 9 MB.
    """
    halves = machine.name == "cpu" and nbytes(v.aval) == 2 * v.aval.size and jnp.issubdtype(v.aval.dtype, jnp.floating)
    return (4 if halves else 1) * nbytes(v.aval)


def _before_graph(graph: Graph, loop: Loop, free: set[int], constant: set[Var], machine: Machine) -> None:
    """Taking an equation means that it runs before the loop: so does what it reads; what others read crosses."""
    eqns, readers = loop.body.eqns, users(loop.body)
    carried_on = {x for x in loop.next_carry if is_var(x)}
    makers = {v: i for i in free for v in eqns[i].outvars}
    for i in free:
        for x in eqns[i].invars:
            if is_var(x) and x in makers:
                graph.implies(i, makers[x])
        for v in eqns[i].outvars:
            inside = [k for k in readers.get(v, ()) if k >= 0]
            if not inside and v not in carried_on:
                continue
            graph.edge(i, v, crossing_seconds(v, loop.length, machine))
            for k in inside:
                graph.implies(v, k if k in free else SINK)
            if v in carried_on:
                graph.implies(v, SINK)


def _after_graph(graph: Graph, loop: Loop, free: set[int], constant: set[Var], machine: Machine) -> None:
    """Taking an equation means that it runs after the loop: so does what reads it; what it reads is stacked."""
    eqns, readers = loop.body.eqns, users(loop.body)
    existing = {*loop.body_xs, *loop.body_ys, *constant}
    makers = {v: i for i in free for v in eqns[i].outvars}
    for i in free:
        for v in eqns[i].outvars:
            for k in readers.get(v, ()):
                if k >= 0:
                    graph.implies(i, k)
        for x in eqns[i].invars:
            if not is_var(x) or x in existing:
                continue
            graph.implies(i, x)
            graph.edge(x, makers.get(x, SINK), crossing_seconds(x, loop.length, machine))


def _new_stacks(loop: Loop, moved: frozenset[int], constant: set[Var], *, after: bool) -> set[Var]:
    """The values that cross the border and were not stacked before."""
    eqns, readers = loop.body.eqns, users(loop.body)
    made = {v for i in moved for v in eqns[i].outvars}
    if not after:
        carried_on = {x for x in loop.next_carry if is_var(x)}
        ys = {y for y in loop.body_ys if is_var(y)}
        return {v for v in made - ys if v in carried_on or any(k >= 0 and k not in moved for k in readers.get(v, ()))}
    existing = {*loop.body_xs, *loop.body_ys, *constant}
    return {x for i in moved for x in eqns[i].invars if is_var(x) and x not in made and x not in existing}


def _too_little(loop: Loop, plan: Plan, terms: Terms, beside: Beside) -> str | None:
    """Why a plan is not worth its while; None if it is."""
    whole = equation_seconds(loop.eqn, terms.machine)
    if whole < SHORTEST_LOOP and not terms.before_differentiation:
        return "the loop is done before another kernel has begun"
    wakes = terms.machine.name == "cpu" and whole < SHORT_LOOP and not terms.before_differentiation
    if wakes and plan.seconds_saved < TRUST * WAKING:
        return "it saves less than another kernel beside the loop takes to wake a thread"
    if plan.seconds_saved < max(LEAST_SECONDS, LEAST_SHARE * whole):
        return "it saves too little to be sure"
    limit = max(FREE_BYTES, sum(nbytes(y.aval) for y in loop.ys))
    if beside.residual_bytes:
        limit = max(FREE_GRADIENT_BYTES, FREE_GRADIENT_SHARE * beside.residual_bytes)
        whole += beside.seconds
    if whole >= LARGE_GAIN * (whole - plan.seconds_saved / TRUST):
        return None
    if plan.bytes_added > limit:
        return f"it would keep {plan.bytes_added >> 20} MB more for a small gain in time"
    if beside.residual_bytes and plan.bytes_added > max(LEAST_GRADIENT_BYTES, beside.room()):
        return "half of what the loops of a gradient store for each other need not be kept, with it more is"
    return None


def _too_wide(loop: Loop, plan: Plan, held: set[Var], terms: Terms) -> str | None:
    """Why what a map makes step by step should not be made for all steps at once; None if it may."""
    given = sum(nbytes(x.aval) for x in loop.body_xs) + sum(nbytes(y.aval) for y in loop.body_ys if is_var(y))
    if plan.bytes_added <= FREE_WIDE_BYTES or all(nbytes(v.aval) <= given for v in held) or not is_map(loop):
        return None
    whole = equation_seconds(loop.eqn, terms.machine)
    if whole >= LARGE_WIDE_GAIN * (whole - plan.seconds_saved / TRUST):
        return None
    return f"it would keep {plan.bytes_added / 1e6:.1f} MB of what the steps make and use up"


def is_map(loop: Loop) -> bool:
    """Whether what a step computes of the step before it is nothing but sums, besides keys and counters."""
    chain = find_chain(loop)
    alone = () if chain is None else (*chain.carries, *chain.counters)
    carried = depends_on(loop.body, [v for k, v in enumerate(loop.body_carry) if k not in alone])
    late = (eqn for eqn in loop.body.eqns if any(v in carried for v in eqn.outvars))
    return all(eqn.primitive.name in SUMS for eqn in late)
