"""Small axes: a reduction over, or beside, a last axis of at most 8 is made entry by entry.

Points in space, quaternions, small one-hot codes: the last axis has 2 to 8 entries, and XLA's CPU backend makes it the
innermost loop. Entry by entry (`components.py`) the same numbers come from long loops. It acts on the differentiated
program: before differentiation, the slices would turn into padding and sums, and gradients become 100 times slower.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn

from ..axes.rebind import bind
from ..components import Components
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Builder, Program, where
from ..report import Decision

NAME = "small-axes"
# From how many entries on XLA's own loop is as good (0.8 of its time was lost for 8 entries of a maximum).
LONGEST = {"reduce_sum": 8, "reduce_prod": 8, "reduce_max": 4, "reduce_min": 4}
FOLDS = {"reduce_sum": lax.add, "reduce_prod": lax.mul, "reduce_max": lax.max, "reduce_min": lax.min}
FEWEST = 1024  # results; below, starting either form takes most of the time
FEWEST_SUMMED = 4096  # elements of a value that is made small by a reduction beside the short axis
AMPLIFIED = 16  # times that such a value is larger than what it is made of: an array that is there is read as it is


@dataclass(frozen=True)
class SmallAxes:
    """The pass. Bound: every reduction is looked at once. CPUs only, and after differentiation only."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such reductions made entry by entry, and a decision for each."""
        if context.platform != "cpu" or context.before_differentiation or self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    while True:  # what is left of [n, 4, 3] is reduced beside an axis of 4
        sites = [place for place, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name in FOLDS and _is_short(eqn)]
        level = Level(jaxpr)
        found = [(jaxpr.eqns[place], *_edit(level, place, jaxpr.eqns[place])) for place in sites]
        edits = [edit for _, edit, _ in found if edit is not None]
        decisions += [_decision(eqn, True, reason) for eqn, edit, reason in found if edit is not None]
        if not edits:
            decisions += [_decision(eqn, False, reason) for eqn, _, reason in found]
            return jaxpr
        jaxpr, _ = apply_edits(jaxpr, edits)


def _is_short(eqn: JaxprEqn) -> bool:
    """Whether the last axis of what is reduced is a short one."""
    shape, dtype = eqn.invars[0].aval.shape, eqn.invars[0].aval.dtype
    if len(shape) < 2 or not isinstance(dtype, np.dtype) or dtype.kind not in "fiu" or dtype.itemsize < 4:
        return False
    return 2 <= shape[-1] <= LONGEST[eqn.primitive.name]


def _edit(level: Level, place: int, eqn: JaxprEqn) -> tuple[Edit | None, str]:
    operand, last = eqn.invars[0], eqn.invars[0].aval.ndim - 1
    axes = tuple(eqn.params["axes"])
    if axes == (last,):
        if eqn.outvars[0].aval.size < FEWEST:
            return None, f"fewer than {FEWEST} results: starting either form takes most of the time"
        return _folded(level, place, eqn, Components(level, operand, last)), "the innermost loop is a long one"
    if last in axes or not axes:
        return None, "it is reduced together with other axes, by one loop"
    found = Components(level, operand, last)
    if operand.aval.size < FEWEST_SUMMED or not found.amplify(AMPLIFIED):
        return None, "what it reads is there, and read as it is"
    if found.stores(AMPLIFIED):
        return None, "all entries would read a value that is not stored now"
    return _beside(place, eqn, found), "the innermost loop is a long one"


def _folded(level: Level, place: int, eqn: JaxprEqn, found: Components) -> Edit:
    """The reduction over the short axis."""
    builder = Builder(eqn)
    entries = [found.entry(builder, k) for k in range(eqn.invars[0].aval.shape[-1])]
    fold = FOLDS[eqn.primitive.name]
    (total,) = builder.call(lambda *xs: reduce(fold, xs), *entries)
    return _replacing(place, eqn, builder, total)


def _beside(place: int, eqn: JaxprEqn, found: Components) -> Edit:
    """A reduction over other axes, which keeps the short one."""
    builder = Builder(eqn)
    totals: list[Atom] = []
    for k in range(eqn.invars[0].aval.shape[-1]):
        totals += builder.call(lambda x: bind(eqn, [x], eqn.params), found.entry(builder, k))
    last = totals[0].aval.ndim
    (out,) = builder.call(lambda *xs: lax.concatenate([lax.expand_dims(x, [last]) for x in xs], last), *totals)
    return _replacing(place, eqn, builder, out)


def _replacing(place: int, eqn: JaxprEqn, builder: Builder, out: Any) -> Edit:
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: out}, here)


def _decision(eqn: JaxprEqn, fired: bool, reason: str) -> Decision:
    entries = eqn.invars[0].aval.shape[-1]
    what = f"`{eqn.primitive.name}` with a last axis of {entries} is made entry by entry"
    return Decision(NAME, what, where(eqn), fired, reason, exactness=Exactness.REASSOCIATES)
