"""Loop fusion: what is done to the stacked outputs of a scan is done in its body instead, and they need not exist.

See docs/explanation/loop-fusion.md. For each scan the region of its outputs is grown, a minimum cut chooses which of
its sites run inside the loop, and the loop is rebuilt around them.
"""

from dataclasses import dataclass

from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Var

from ..axes import Mapped, Reduced
from ..choose import Plan, block_length, choose, stacked_bytes
from ..exactness import Exactness
from ..fusion import fuse
from ..levels import rewrite_levels
from ..loop import Loop, as_loop, why_left
from ..normalize import LOOPS_AND_BRANCHES, drop_dead
from ..pipeline import Context
from ..producers import makeable_inputs
from ..program import Program, inner_jaxprs, producers, users, where
from ..region import Joined, Region, Site, Sliced, grow
from ..report import Decision

NAME = "loop-fusion"
# A loop of its own must be predicted this much better than the first loop.
WORTH = 0.95


@dataclass(frozen=True)
class LoopFusion:
    """The pass. Bound: each loop is fused once; what it then stacks is what others read."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its loops fused, and a decision for each site."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            return _fuse_level(jaxpr, context, decisions)

        return rewrite_levels(program, level), decisions


def _fuse_level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    done: set[Var] = set()
    decisions += _left(jaxpr)
    while True:
        found = _next_loop(jaxpr, done)
        if found is None:
            return jaxpr
        index, loop = found
        done.update(loop.eqn.outvars)
        plan = _plan(jaxpr, index, loop, context)
        region, chosen = plan.region, plan.sites
        inputs = makeable_inputs(jaxpr, index, loop)
        decisions += _decisions(jaxpr, region, chosen)
        decisions += [_input_decision(jaxpr, loop, x) for x in inputs]
        if chosen or inputs:
            fused, new = fuse(jaxpr, region, chosen)
            done.update(new.outvars)
            jaxpr = drop_dead(fused)


def _plan(jaxpr: Jaxpr, index: int, loop: Loop, context: Context) -> Plan:
    """The best plan for a loop: its outputs are used in its steps, or some steps at a time after it."""

    def permitted(site: Site) -> str | None:
        return _refusal(site, context)

    region = grow(jaxpr, index, loop, permitted)
    inside = choose(jaxpr, region, context.machine)
    block = block_length(region)
    if block is None:
        return inside
    after = choose(jaxpr, grow(jaxpr, index, loop, permitted, block), context.machine)
    return after if after.sites and after.seconds < WORTH * inside.seconds else inside


def _left(jaxpr: Jaxpr) -> list[Decision]:
    """Decisions about the loops that no pass looks at: near misses are not silent."""
    made = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            reason = why_left(eqn)
            if reason is not None:
                made.append(Decision(NAME, "a loop is left as it is", where(eqn), False, reason))
        elif eqn.primitive.name not in LOOPS_AND_BRANCHES:
            reason = f"it stands in a `{eqn.primitive.name}`, whose body is left as it is"
            for inner in inner_jaxprs(eqn):
                made += [
                    Decision(NAME, "a loop is left as it is", where(scan), False, reason) for scan in _scans(inner)
                ]
    return made


def _scans(jaxpr: Jaxpr) -> list[JaxprEqn]:
    return [
        scan
        for eqn in jaxpr.eqns
        for scan in ([eqn] if eqn.primitive.name == "scan" else [s for j in inner_jaxprs(eqn) for s in _scans(j)])
    ]


def _next_loop(jaxpr: Jaxpr, done: set[Var]) -> tuple[int, Loop] | None:
    for index, eqn in enumerate(jaxpr.eqns):
        outs = [v for v in eqn.outvars if not isinstance(v, DropVar)]
        if eqn.primitive.name == "scan" and not done.issuperset(outs):
            loop = as_loop(eqn)
            if loop is not None and loop.length > 1:
                return index, loop
    return None


def _refusal(site: Site, context: Context) -> str | None:
    """Why a site may not move, whatever it saves."""
    if isinstance(site.answer, Reduced):
        name = site.answer.monoid.name
        exact = name not in ("add", "mul", "moments", "online softmax") or not rounds(site)
        if not exact and Exactness.REASSOCIATES not in context.allowed:
            return "it would sum in another order, and numerics is strict"
        if context.before_differentiation and name not in ("add",):
            return f"the derivative of `{name}` in a loop would keep more than it saves"
    return None


def rounds(site: Site) -> bool:
    """Whether the results of a site are floating-point numbers."""
    return any(v.aval.dtype.kind not in "biu" for v in site.eqn.outvars)


def _decisions(jaxpr: Jaxpr, region: Region, chosen: list[Site]) -> list[Decision]:
    made: list[Decision] = []
    inside = {site.index for site in chosen}
    readers = users(jaxpr)
    saved = _saved_bytes(jaxpr, region, chosen)
    for site in chosen:
        if isinstance(site.answer, Mapped) and not _crosses(site, readers, inside):
            continue
        made.append(
            Decision(
                NAME,
                _what(site),
                where(site.eqn),
                True,
                f"the stacked output of {region.loop.length} steps need not exist",
                bytes_saved=2 * saved,
                peak_bytes_saved=saved,
                exactness=Exactness.REASSOCIATES if rounds(site) else Exactness.BITWISE,
            )
        )
        saved = 0  # the saving is one for all sites of a loop
    for site in region.sites:
        if site.index not in inside and not isinstance(site.answer, Mapped):
            reason = "costs more than it saves" if inside else "the stacked output is needed as a whole anyway"
            made.append(Decision(NAME, _what(site), where(site.eqn), False, reason))
    for index, reason in region.refusals.items():
        eqn = jaxpr.eqns[index]
        made.append(Decision(NAME, f"`{_name(eqn)}` over the outputs of a loop", where(eqn), False, reason))
    return made


def _input_decision(jaxpr: Jaxpr, loop: Loop, x: Var) -> Decision:
    maker = jaxpr.eqns[producers(jaxpr)[x]]
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


def _crosses(site: Site, readers: dict[Var, list[int]], inside: set[int]) -> bool:
    """Whether something outside the loop reads a result of the site."""
    return any(k not in inside for v in site.eqn.outvars for k in readers.get(v, ()))


def _saved_bytes(jaxpr: Jaxpr, region: Region, chosen: list[Site]) -> int:
    """Bytes of stacked outputs that are gone, less those of the values that cross the loop's border now."""
    inside = {site.index for site in chosen} | {k for site in chosen for k in site.chain}
    made = {v for site in chosen for v in site.eqn.outvars}
    readers = users(jaxpr)
    crossing = {v for v in region.stacked if any(k not in inside for k in readers.get(v, ()))}
    before = sum(stacked_bytes(y) for y in region.loop.ys if y in readers)
    return before - sum(stacked_bytes(v) for v in crossing if v in made or v in region.loop.ys)


def _name(eqn: JaxprEqn) -> str:
    return eqn.params["name"] if eqn.primitive.name == "jit" else eqn.primitive.name


def _what(site: Site) -> str:
    answer = site.answer
    if isinstance(answer, Joined):
        return "a second loop over the outputs runs in the first"
    if isinstance(answer, Sliced):
        count = site.eqn.outvars[0].aval.shape[next(p.dim for p in site.places if p is not None)]
        return f"only the {count} steps that are read are kept" if count > 1 else "only one step is kept"
    if isinstance(answer, Mapped):
        return f"`{_name(site.eqn)}` runs in the loop, step by step"
    return f"`{_name(site.eqn)}` over time is accumulated in the loop ({answer.monoid.name})"
