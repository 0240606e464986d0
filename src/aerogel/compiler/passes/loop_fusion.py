"""Loop fusion: what is done to the stacked outputs of a scan is done in its body instead, and they need not exist.

For each scan the region of its outputs is grown, a minimum cut chooses which of its sites run inside the loop, and the
loop is rebuilt around them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var

from ..axes import Axis, Mapped, Reduced
from ..cost import nbytes, program_cost
from ..exactness import Exactness
from ..excerpts.cuts import cut_apart
from ..fusion.accumulate import summed_in_steps
from ..fusion.canonical import canonical
from ..fusion.choose import Plan, block_length, choose, is_product, stacked_bytes
from ..fusion.fusion import fuse
from ..fusion.producers import makeable_inputs
from ..fusion.region import Joined, Region, Site, Sliced, grow
from ..fusion.site_seconds import is_put
from ..kernels import kernel_scatters
from ..kernels.one_kernel import MOST_WRITTEN_BYTES
from ..known.spread import stays_local
from ..level import After, Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, as_loop, is_float, why_left
from ..normalize import LOOPS_AND_BRANCHES
from ..pipeline import Context
from ..program import Program, bodies, is_var, where
from ..record import record
from ..report import Decision
from .loop_kernel import becomes_one, lose_their_kernels

NAME = "loop-fusion"
# A loop of its own must be predicted this much better than the first loop.
WORTH = 0.95
# And this much where all sites could run in the first loop: in one of its own, what that stacks exists.
WORTH_A_STACK = 0.8
# A product of a step's few rows keeps one core busy, that of a block more of them, and plain JAX's all. Of results up
# to this size that shows (a byte language model's loss: 1.04 to 1.16 of plain JAX's time in the loop, 0.97 to 1.02 in
# blocks); larger ones cost plain JAX more to write.
ONE_CORE_BYTES = 16 * 2**20
# A running sum of T numbers loses up to T ulp, a stacked and then reduced one about log2(T): of 5,000 losses six times
# as much. So a few numbers of each of many steps are left to be summed after the loop, where that is little memory.
FEW, MANY_STEPS, FEW_BYTES = 16, 1024, 2**20
# Stacks of results, which a loop fills before it begins, for one that was read: with products of chunks of a state
# space model 41 MB became 57, and 1.17 of plain JAX's time.
MORE_HELD = 1.1
MORE = "with it, the program would move more bytes and hold more at once"
# Twice is the most that a program was seen to need; the bound is for costs that contradict each other.
MOST_TIMES = 4


@record
class LoopFusion:
    """The pass. Bound: each loop is fused a few times; what it then stacks is what others read."""

    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its loops fused, and a decision for each site."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            return _fuse_level(jaxpr, context, decisions)

        return rewrite_levels(program, level), decisions


def _fuse_level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    """Rounds: all loops that do not concern each other are fused together, then those that concern these again."""
    if not bodies(jaxpr):
        return jaxpr
    decided = _left(jaxpr)
    looks = Looks()
    # `ys[-1, :5]` is a step, and entries of it.
    original, jaxpr = jaxpr, cut_apart(canonical(jaxpr))
    fired = False
    while True:
        level = Level(jaxpr, context.over_devices)
        edits: list[Edit] = []
        made: list[tuple[Loop, JaxprEqn, list[Decision]]] = []
        taken: set[int] = set()
        for index, loop in _loops(jaxpr, looks.settled):
            plan = _plan(level, index, loop, context)
            inputs = makeable_inputs(level, index, loop, context.platform == "cpu")
            found = _decisions(level, plan.region, plan.sites)
            found += [_input_decision(level, loop, x) for x in inputs]
            if looks.is_second(loop.eqn):
                # what was refused is known already, or we made it
                found = [d for d in found if d.fired]
            if not plan.sites and not inputs:
                looks.settle(loop.eqn, [*loop.xs, *plan.region.stacked])
                decided += found
                continue
            edit, new = fuse(level, plan)
            if taken.isdisjoint(edit.touched):
                taken |= edit.touched
                edits.append(edit)
                made.append((loop, new, found))
        if not edits:
            if fired and not context.before_differentiation and _takes_more(original, jaxpr):
                fired, decided = False, [replace(d, fired=False, reason=MORE) if d.fired else d for d in decided]
            decisions += _latest(decided)
            return jaxpr if fired else original
        fired = True
        jaxpr, count = apply_edits(jaxpr, edits)
        for edit, (loop, new, found) in zip(edits[:count], made, strict=False):
            looks.fused(loop.eqn, new, [level.eqns[i] for i in edit.touched])
            decided += found


def _takes_more(before: Jaxpr, after: Jaxpr) -> bool:
    """Whether a level moves more bytes, and holds clearly more at once, than it did."""
    old, new = program_cost(before), program_cost(after)
    return new.bytes_moved > old.bytes_moved and new.peak_bytes > MORE_HELD * old.peak_bytes


def fused(jaxpr: Jaxpr, context: Context) -> Jaxpr:
    """A level as this pass will leave it."""
    return _fuse_level(jaxpr, context, [])


def stacked_bytes_of(jaxpr: Jaxpr) -> int:
    """Bytes that the loops of a level stack for others."""
    level = Level(jaxpr)
    loops = filter(None, (as_loop(eqn) for eqn in level.eqns if eqn.primitive.name == "scan"))
    return sum(stacked_bytes(y) for loop in loops for y in loop.ys if level.readers(y))


@dataclass
class Looks:
    """Which loops of a level are looked at again: those that were fused, and those whose decision rested on one.

    What is refused beside a neighbour can pay once the neighbour makes its inputs itself, and what a fused loop reads
    or stacks is another choice than what it did.

    Attributes:
        settled: the results of loops that are not looked at now.
    """

    settled: set[Var] = field(default_factory=set)
    _times: dict[Var, int] = field(default_factory=dict)  # how often the loop that makes a variable was fused
    _resting_on: dict[Var, list[JaxprEqn]] = field(default_factory=dict)  # a variable -> loops that were refused

    def is_second(self, loop: JaxprEqn) -> bool:
        """Whether a loop, or one that it was made of, was decided upon before."""
        return any(v in self._times for v in loop.outvars)

    def settle(self, loop: JaxprEqn, looked_at: Iterable[Atom]) -> None:
        """Nothing is to be done with a loop, unless one of the variables comes to be made or read otherwise."""
        self._count(loop, self._fused_times(loop))
        self.settled.update(loop.outvars)
        for x in looked_at:
            if is_var(x):
                self._resting_on.setdefault(x, []).append(loop)

    def fused(self, old: JaxprEqn, new: JaxprEqn, touched: Iterable[JaxprEqn]) -> None:
        """`new` stands for `old`, which may stay beside it, and for other equations that it took in."""
        times = 1 + self._fused_times(old)
        for loop in (old, new):
            self._count(loop, times)
            if times == MOST_TIMES:
                self.settled.update(loop.outvars)
        for eqn in touched:
            for x in (*eqn.invars, *eqn.outvars):
                for loop in self._resting_on.pop(x, []) if is_var(x) else []:
                    if self._fused_times(loop) < MOST_TIMES:
                        self.settled.difference_update(loop.outvars)

    def _fused_times(self, loop: JaxprEqn) -> int:
        return max((self._times.get(v, 0) for v in loop.outvars), default=0)

    def _count(self, loop: JaxprEqn, times: int) -> None:
        self._times.update(dict.fromkeys(loop.outvars, times))


def _latest(decisions: list[Decision]) -> list[Decision]:
    """Without the refusals of what fired in a later round."""
    fired = {(d.what, d.where) for d in decisions if d.fired}
    return [d for d in decisions if d.fired or (d.what, d.where) not in fired]


def _plan(level: Level, index: int, loop: Loop, context: Context) -> Plan:
    """The best plan for a loop: its outputs are used in its steps, or some steps at a time after it."""
    summed = summed_in_steps(loop)

    def permitted(site: Site) -> str | None:
        if isinstance(site.answer, Reduced) and any(x in summed for x in site.reads):
            return "its steps are summed up already: one number a step is no burden"
        if _is_small_stack(site):
            return "a few numbers a step are little memory, and lose digits when one is added to the other"
        if site.eqn.ctx.compute_type != loop.eqn.ctx.compute_type:
            return "`compute_on` puts it and the loop in different places"
        reason = None if early else _refused_for_a_kernel(site, loop, joined, context)
        if reason is not None:
            return reason
        if context.over_devices and (communicates(site) or reads_elsewhere(site, level, loop, late)):
            return "its values are spread over devices: it would communicate in every step"
        return _refusal(site, context)

    late, early = After(level, index), context.before_differentiation
    joined = {index: loop.eqn}
    region = grow(level, index, loop, permitted)
    inside = choose(level, region, context.machine, early)
    block = block_length(region, context.machine)
    if block is None:
        return inside
    after = choose(level, grow(level, index, loop, permitted, block), context.machine, early)
    # Without a product in it, a loop of its own only walks over what exists as a whole.
    products = [site for site in after.sites if is_product(site.eqn)]
    if not products:
        return inside
    does_all = len(after.sites) >= len(inside.sites)
    if does_all and max(nbytes(v.aval) for site in products for v in site.eqn.outvars) < ONE_CORE_BYTES:
        return after
    worth = WORTH_A_STACK if len(inside.sites) == len(region.sites) else WORTH
    return after if after.seconds < worth * inside.seconds else inside


def _left(jaxpr: Jaxpr) -> list[Decision]:
    """Decisions about the loops that no pass looks at: near misses are not silent."""
    made = []
    for eqn, held in bodies(jaxpr):
        if eqn.primitive.name == "scan":
            reason = why_left(eqn)
            if reason is not None:
                made.append(Decision(NAME, "a loop is left as it is", where(eqn), False, reason))
        elif eqn.primitive.name not in LOOPS_AND_BRANCHES:
            reason = f"it stands in a `{eqn.primitive.name}`, whose body is left as it is"
            for inner in held:
                made += [
                    Decision(NAME, "a loop is left as it is", where(scan), False, reason) for scan in _scans(inner)
                ]
    return made


def _scans(jaxpr: Jaxpr) -> list[JaxprEqn]:
    return [
        scan
        for eqn, held in bodies(jaxpr)
        for scan in ([eqn] if eqn.primitive.name == "scan" else [s for inner in held for s in _scans(inner)])
    ]


def _loops(jaxpr: Jaxpr, done: set[Var]) -> list[tuple[int, Loop]]:
    """The loops of a level that were not looked at yet."""
    found = []
    for index, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "scan" and not all(v in done or isinstance(v, DropVar) for v in eqn.outvars):
            loop = as_loop(eqn)
            if loop is not None and loop.length > 1:
                found.append((index, loop))
    return found


def _refusal(site: Site, context: Context) -> str | None:
    """Why a site may not move, whatever it saves."""
    if isinstance(site.answer, Reduced):
        name = site.answer.monoid.name
        exact = not site.answer.monoid.rounds or not rounds(site)
        if not exact and Exactness.REASSOCIATES not in context.allowed:
            return "it would sum in another order, and numerics is strict"
        if context.before_differentiation and name not in ("add",):
            return f"the derivative of `{name}` in a loop would keep more than it saves"
    return None


def _is_small_stack(site: Site) -> bool:
    """Whether a site sums up a few numbers of each of many steps: one after the other, with that many roundings."""
    if not isinstance(site.answer, Reduced) or site.answer.monoid.name != "add" or not rounds(site):
        return False
    steps, stacks = site.window.count, [x for x in site.reads if is_var(x)]
    few = all(x.aval.size <= FEW * steps and stacked_bytes(x) <= FEW_BYTES for x in stacks)
    return steps >= MANY_STEPS and bool(stacks) and few


def _refused_for_a_kernel(site: Site, loop: Loop, joined: dict[int, JaxprEqn], context: Context) -> str | None:
    """Why a loop that is one kernel is left so; `joined`, loops that may be one, takes in what the site joins."""
    if _takes_a_kernel(site, loop) and becomes_one(loop.eqn, context):
        return "the loop is one kernel without it, and would be none with it"
    if isinstance(site.answer, Joined):
        together = {**joined, site.index: site.eqn}
        if lose_their_kernels([*together.values()], context):
            return "each of the loops is one kernel, and together they would be too much for one"
        joined.update(together)
    return None


def _takes_a_kernel(site: Site, loop: Loop) -> bool:
    """Whether a site is put into the whole step by step, and cannot be so in one kernel for all steps."""
    if not is_put(loop, site):
        return False
    is_large = nbytes(site.eqn.outvars[0].aval) > MOST_WRITTEN_BYTES
    return is_large or kernel_scatters.why_not(site.eqn, site.window.count) is not None


def rounds(site: Site) -> bool:
    """Whether the results of a site are floating-point numbers."""
    return any(is_float(v.aval.dtype) for v in site.eqn.outvars)


def communicates(site: Site) -> bool:
    """Whether a step of a site may need a collective: one after the loop would become one in every step."""
    if isinstance(site.answer, Reduced):
        axes, place = site.eqn.params.get("axes"), site.places[0]
        return axes is None or place is None or not place.is_plain or tuple(axes) != (place.dim,)
    return isinstance(site.answer, Mapped) and not stays_local(site.eqn, site.places[0] if site.places else None)


def reads_elsewhere(site: Site, level: Level, loop: Loop, late: After) -> bool:
    """Whether a step reads an entry of a value that the loop neither reads already nor makes, as `late` tells.

    Where that is spread along time, it would come from another device.
    """
    return any(
        place is not None and is_var(x) and x not in late and x not in loop.xs and not _repeats(level, x, place)
        for x, place in zip(site.reads, site.places, strict=True)
    )


def _repeats(level: Level, x: Var, place: Axis) -> bool:
    """Whether all entries are made from what does not vary with time."""
    eqn = level.eqns[level.made_by[x]] if x in level.made_by else None
    if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "iota"):
        return False
    return place.dim not in eqn.params.get("broadcast_dimensions", ())


def _decisions(level: Level, region: Region, chosen: list[Site]) -> list[Decision]:
    made: list[Decision] = []
    inside = {site.index for site in chosen}
    saved = _saved_bytes(level, region, chosen)
    for site in chosen:
        if isinstance(site.answer, Mapped) and not _crosses(level, site, inside):
            continue
        made.append(
            Decision(
                NAME,
                _what(site),
                where(site.eqn),
                True,
                _why(region, saved),
                bytes_saved=2 * saved,
                peak_bytes_saved=saved,
                exactness=_exactness(site),
            )
        )
        saved = 0  # the saving is one for all sites of a loop
    for site in region.sites:
        if site.index not in inside and not isinstance(site.answer, Mapped):
            reason = "costs more than it saves" if inside else "the stacked output is needed as a whole anyway"
            made.append(Decision(NAME, _what(site), where(site.eqn), False, reason))
    for index, reason in region.refusals.items():
        eqn = level.eqns[index]
        made.append(Decision(NAME, f"`{_name(eqn)}` over the outputs of a loop", where(eqn), False, reason))
    return made


def _why(region: Region, saved: int) -> str:
    if saved > 0:
        return f"the stacked output of {region.loop.length} steps need not exist"
    return "what the loop stacks is not read again for it"


def _exactness(site: Site) -> Exactness:
    """What moving a site may do to the numbers."""
    if not isinstance(site.answer, Reduced) or not rounds(site):
        return Exactness.BITWISE
    if site.late:
        return Exactness.FINITE
    return Exactness.REASSOCIATES if site.answer.monoid.rounds else Exactness.BITWISE


def _input_decision(level: Level, loop: Loop, x: Var) -> Decision:
    maker = level.eqns[level.made_by[x]]
    size = stacked_bytes(x)
    return Decision(
        NAME,
        f"`{_name(maker)}`, an input of the loop, is made in the loop, step by step",
        where(maker) or where(loop.eqn),
        True,
        f"the input of {loop.length} steps need not exist",
        bytes_saved=2 * size,
        peak_bytes_saved=size,
    )


def _crosses(level: Level, site: Site, inside: set[int]) -> bool:
    """Whether something outside the loop reads a result of the site."""
    return any(k not in inside for v in site.eqn.outvars for k in level.readers(v))


def _saved_bytes(level: Level, region: Region, chosen: list[Site]) -> int:
    """Bytes of stacked outputs that are gone, less those of the values that cross the loop's border now."""
    inside = {site.index for site in chosen} | {k for site in chosen for k in site.chain}
    made = {v for site in chosen for v in site.eqn.outvars}
    crossing = {v for v in region.stacked if any(k not in inside for k in level.readers(v))}
    before = sum(stacked_bytes(y) for y in region.loop.ys if level.readers(y))
    after = sum(stacked_bytes(v) for v in crossing if v in made or v in region.loop.ys)
    return max(0, before - after)


def _name(eqn: JaxprEqn) -> str:
    return eqn.params["name"] if eqn.primitive.name == "jit" else eqn.primitive.name


def _what(site: Site) -> str:
    answer = site.answer
    if isinstance(answer, Joined):
        return "a second loop over the outputs runs in the first"
    if isinstance(answer, Sliced):
        count = site.eqn.outvars[0].aval.shape[next(p.dim for p in site.places if p is not None)]
        if site.eqn.primitive.name == "rev":
            return "steps are read in the opposite order"
        return f"only the {count} steps that are read are kept" if count > 1 else "only one step is kept"
    if isinstance(answer, Mapped):
        return f"`{_name(site.eqn)}` runs in the loop, step by step"
    return f"`{_name(site.eqn)}` over time is accumulated in the loop ({answer.monoid.name})"
