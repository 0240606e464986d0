"""What stands between a loop and its reductions: concatenations are taken part by part, running totals are loops.

`concatenate([x0[None], ys]).mean(0)` and `cumsum(ys, 0).max(0)` need no array of all steps.
"""

from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes import No
from ..cost import nbytes
from ..cost.account import jaxpr_cost
from ..exactness import Exactness
from ..fusion.first import SMALLEST_OUTPUT, knotted_outputs, without_first
from ..fusion.parts import joins_a_loop, take_apart
from ..fusion.totals import as_scan, is_running, rounds
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..loop import as_loop
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, is_var, where, with_equations
from ..record import record
from ..report import Decision
from ..views import with_slices
from .loop_fusion import fused, stacked_bytes_of

NAME = "loop-parts"
# Smaller concatenations are left: nothing to gain.
SMALLEST = 16_384  # elements


@record
class LoopParts:
    """The pass. Bound: each round takes away at least one concatenation of a level, and makes none."""

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without the concatenations that are not needed as a whole, and a decision for each."""
        decisions: list[Decision] = []
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    if context.platform == "cpu":
        jaxpr = _with_loops(jaxpr, decisions)
    jaxpr = _without_knots(jaxpr, decisions)
    made: list[Decision] = []
    apart = _without_joints(jaxpr, made)
    reason = None if apart is jaxpr else _not_worth(fused(jaxpr, context), fused(apart, context))
    if reason is None:
        decisions += made
        return apart
    decisions += [Decision(NAME, one.what, one.where, False, reason) if one.fired else one for one in made]
    return jaxpr


def _not_worth(whole: Jaxpr, apart: Jaxpr) -> str | None:
    """Why a level with fused loops is better off with its concatenations; None where it is not."""
    # Where loops stack as much in the end, more and smaller kernels work on it: sums over the 2,000 steps of a hidden
    # Markov model, forward and backward, took twice the time.
    if stacked_bytes_of(apart) >= stacked_bytes_of(whole):
        return "what the loops stack is needed all the same"
    # What many read, and that is no sum, is computed for each part: the gradient of a picture that splats make took 1.6
    # times the time, and three times the memory.
    peak, more = jaxpr_cost(whole).peak_bytes, jaxpr_cost(apart).peak_bytes
    if more > peak:
        return f"more memory would be taken at once: {more / 1e6:,.1f} MB in place of {peak / 1e6:,.1f}"
    return None


def _without_joints(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    """Concatenations over time, taken part by part."""
    what = "a concatenation over time is taken part by part"
    left: set[object] = set()
    while True:
        level = Level(jaxpr)
        for eqn in level.eqns:
            out = eqn.outvars[0] if eqn.outvars else None
            if out in left or not joins_a_loop(level, eqn) or eqn.outvars[0].aval.size < SMALLEST:
                continue
            left.add(out)
            taken = _taken(jaxpr, eqn.outvars[0])
            if isinstance(taken, str):
                decisions.append(Decision(NAME, what, where(eqn), False, taken))
                continue
            jaxpr = taken
            decisions.append(_fired(what, eqn, "what is read of it needs no whole", nbytes(eqn.outvars[0].aval)))
            break
        else:
            return jaxpr


def _taken(jaxpr: Jaxpr, whole: Var) -> Jaxpr | str:
    """`jaxpr` without the concatenation that makes `whole`; or why not."""
    level = Level(jaxpr)
    found = take_apart(level, level.made_by[whole])
    return found.reason if isinstance(found, No) else drop_dead(with_slices(apply_edits(jaxpr, [found])[0]))


def _without_knots(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    """Loops whose first output meets the others run their first step in front; none where that leaves a whole."""
    what = "the first step, whose output the others meet, runs before the loop"
    loops = [eqn.outvars[-1] for eqn in jaxpr.eqns if eqn.primitive.name == "scan" and eqn.outvars]
    for last in loops:
        level = Level(jaxpr)
        place = level.made_by.get(last)
        loop = None if place is None else as_loop(level.eqns[place])
        knotted = [] if loop is None else knotted_outputs(level, loop)
        if loop is None or place is None or not knotted:
            continue
        edit = without_first(level, place)
        found: Jaxpr | str = apply_edits(jaxpr, [edit])[0]
        for y in loop.ys:
            # Small ones may stay as they are.
            if y in edit.results and nbytes(y.aval) >= SMALLEST_OUTPUT and isinstance(found, Jaxpr):
                whole = edit.results[y]
                assert is_var(whole)
                found = _taken(found, whole)
        eqn = loop.eqn
        if isinstance(found, str):
            decisions.append(Decision(NAME, what, where(eqn), False, found))
        else:
            jaxpr = found
            decisions.append(_fired(what, eqn, "they wait for no whole", sum(nbytes(y.aval) for y in knotted)))
    return jaxpr


def _fired(what: str, eqn: JaxprEqn, reason: str, size: int) -> Decision:
    return Decision(NAME, what, where(eqn), True, reason, 0, 2 * size, size, Exactness.REASSOCIATES)


def _with_loops(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    """Running totals beside loops as loops."""
    level = Level(jaxpr)
    eqns = []
    for eqn in level.eqns:
        if not is_running(level, eqn):
            eqns.append(eqn)
            continue
        eqns += as_scan(eqn)
        exactness = Exactness.REASSOCIATES if rounds(eqn) else Exactness.BITWISE
        what = f"`{eqn.primitive.name}` over the steps of a loop is a loop"
        decisions.append(Decision(NAME, what, where(eqn), True, "it can join that loop", exactness=exactness))
    return jaxpr if len(eqns) == len(jaxpr.eqns) else with_equations(jaxpr, eqns)
