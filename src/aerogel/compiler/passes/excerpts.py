"""Excerpts: of a value of which only a part is read, only that part is made."""

from collections.abc import Callable
from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn

from ..apart import cost_of
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost.primitives import DEAR as WEIGHTY
from ..exactness import Exactness
from ..excerpts.cuts import cut_apart, padded_apart
from ..excerpts.excerpts import excerpt_groups
from ..excerpts.groups import Group
from ..excerpts.paddings import padding_groups
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_steps
from ..loop import SHAPING
from ..normalize import normalize
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "excerpts"
# XLA leaves out what it fuses; it does not look through products, sorts and other calls, nor from a place that is known
# only when the program runs through what is dear to compute (jaxlib 0.10.2 and 0.12).
FUSED = frozenset((*ELEMENTWISE, *SHAPING, "dynamic_slice", "pad", "dynamic_update_slice", "concatenate"))
DEAR = WEIGHTY.intersection(ELEMENTWISE)
MARGIN = 0.8
LEAST_SECONDS = 1e-6
MOST_ROUNDS = 4  # one for each dimension that is cut


@record
class Excerpts:
    """The pass. Bound: each equation is looked at in at most `MOST_ROUNDS` rounds."""

    early: ClassVar = True  # the gradient is then of the part, too

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values made in part, and a decision for each group of equations."""
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_steps(program, lambda jaxpr, _: _level(jaxpr, context, decisions))
        return (program if new is program else normalize(new)[0]), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    if Exactness.FINITE in context.allowed and not names.isdisjoint(("pad", "dynamic_update_slice")):

        def paddings(level: Level) -> list[Group]:
            return padding_groups(level, not context.before_differentiation)

        what = "what is zero around a part"
        jaxpr = _rounds(jaxpr, padded_apart, paddings, what, Exactness.FINITE, context, decisions)
    if not names.isdisjoint(("slice", "dynamic_slice", "pad", "dynamic_update_slice")):

        def excerpts(level: Level) -> list[Group]:
            return excerpt_groups(level, by_half=not context.before_differentiation)

        what = "what nobody reads of a value"
        jaxpr = _rounds(jaxpr, cut_apart, excerpts, what, Exactness.REASSOCIATES, context, decisions)
    return jaxpr


def _rounds(
    jaxpr: Jaxpr,
    apart: Callable[[Jaxpr], Jaxpr],
    groups: Callable[[Level], list[Group]],
    what: str,
    exactness: Exactness,
    context: Context,
    decisions: list[Decision],
) -> Jaxpr:
    """A level edited in one dimension after the other, a round for each; the same object if nothing pays."""
    current, refused = apart(jaxpr), list[Decision]()
    for _ in range(MOST_ROUNDS):
        level, made = Level(current), list[Decision]()
        new = _edited(level, groups(level), what, exactness, context, made)
        refused = [one for one in made if not one.fired]
        decisions += (one for one in made if one.fired)
        if new is current:
            break
        jaxpr = current = new
    decisions += refused
    return jaxpr


def _edited(
    level: Level, groups: list[Group], what: str, exactness: Exactness, context: Context, decisions: list[Decision]
) -> Jaxpr:
    edits: list[Edit] = []
    for group in groups:
        heavy = _made_whole(group)
        if heavy is None:
            continue
        results = [group.edit.results[v] for v in group.results]
        was = cost_of(level, group.eqns, group.results, context.machine)
        now = cost_of(level, group.edit.eqns, results, context.machine)
        before, after = was.seconds or 0.0, now.seconds or 0.0
        pays = after <= MARGIN * before and before - after >= LEAST_SECONDS
        if pays:
            edits.append(group.edit)
        reason = f"{1e6 * before:.1f} us become {1e6 * after:.1f} us"
        saved = was.flops - now.flops, was.bytes_moved - now.bytes_moved, was.peak_bytes - now.peak_bytes
        whole = f"{what} is left out, from `{heavy.primitive.name}` on" if pays else f"{what} is computed, too"
        decisions.append(Decision(NAME, whole, where(heavy), pays, reason, *saved, exactness))
    return apply_edits(level.jaxpr, edits)[0] if edits else level.jaxpr


def _made_whole(group: Group) -> JaxprEqn | None:
    """The first equation of which XLA would make what nobody reads."""
    names = [eqn.primitive.name for eqn in group.eqns]
    whole = DEAR if "dynamic_slice" in names else frozenset[str]()
    return next((eqn for eqn, name in zip(group.eqns, names, strict=True) if name not in FUSED or name in whole), None)
