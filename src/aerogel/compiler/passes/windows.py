"""Windows that indices read: their sums and slices are made of slices of the array, what is left is read row by row."""

from collections.abc import Mapping
from typing import ClassVar

from aerogel._jax import Jaxpr, Var

from ..exactness import Exactness
from ..known.even_indices import Even, even_arrays
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from ..windows.window_rows import window_rows
from ..windows.window_slices import window_slices
from ..windows.window_sums import window_sums

NAME = "windows"
WINDOWED = ("gather", "scatter-add")
ROWS = "windows are read row by row"
SLICES = "slices of windows are read from their array"


@record
class WindowsOfArrays:
    """The pass. Bound: each reduction, product, gather and scatter is looked at once."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums, and a decision for each."""
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        decisions, arrays = list[Decision](), dict[Var, Even]()
        if any(eqn.primitive.name in WINDOWED for eqn in program.jaxpr.eqns):
            arrays = even_arrays(dict(zip(program.jaxpr.constvars, program.consts, strict=True)))
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, arrays, context, decisions)), decisions


def with_sums_of_slices(jaxpr: Jaxpr, context: Context) -> Jaxpr:
    """A level as this pass will leave it, constants of the program aside."""
    ours = context.platform in WindowsOfArrays.platforms and Exactness.REASSOCIATES in context.allowed
    return _level(jaxpr, {}, context, []) if ours else jaxpr


def read_by_windows(level: Level, context: Context) -> frozenset[Var]:
    """What is computed for windows alone that this pass adds up as slices: none of it will exist."""
    ours = context.platform in WindowsOfArrays.platforms and Exactness.REASSOCIATES in context.allowed
    if not ours or all(eqn.primitive.name != "scatter-add" for eqn in level.eqns):
        return frozenset()
    found = window_sums(level, {}, Exactness.FINITE in context.allowed)
    gone = {level.made_by[one.eqn.outvars[0]] for one in found if one.edit is not None}
    alone: set[Var] = set()
    for place in reversed(range(max(gone, default=-1) + 1)):
        outs = level.eqns[place].outvars
        if place not in gone and all(level.readers(v) and gone.issuperset(level.readers(v)) for v in outs):
            gone.add(place)
            alone.update(outs)
    return frozenset(alone)


def _level(jaxpr: Jaxpr, arrays: Mapping[Var, Even], context: Context, decisions: list[Decision]) -> Jaxpr:
    if not any(eqn.primitive.name in WINDOWED for eqn in jaxpr.eqns):
        return jaxpr
    found = list(window_sums(Level(jaxpr), arrays, Exactness.FINITE in context.allowed))
    for one in found:
        what = f"`{one.eqn.primitive.name}` of windows is made of slices"
        fired = one.edit is not None
        decisions.append(Decision(NAME, what, where(one.eqn), fired, one.reason, exactness=one.exactness))
    edits = [one.edit for one in found if one.edit is not None]
    jaxpr = apply_edits(jaxpr, edits)[0] if edits else jaxpr
    level = Level(jaxpr)
    slices = list(window_slices(level, arrays))
    for edit in slices:
        line, reason = where(level.eqns[edit.place]), "the windows need not exist"
        decisions.append(Decision(NAME, SLICES, line, True, reason, exactness=Exactness.BITWISE))
    jaxpr = apply_edits(jaxpr, slices)[0] if slices else jaxpr
    level = Level(jaxpr)
    rows = list(window_rows(level, arrays))
    for edit in rows:
        eqn = level.eqns[edit.place]
        exactness = Exactness.BITWISE if eqn.primitive.name == "gather" else Exactness.REASSOCIATES
        reason = "what lies behind one index is copied without a look at others"
        decisions.append(Decision(NAME, ROWS, where(eqn), True, reason, exactness=exactness))
    return apply_edits(jaxpr, rows)[0] if rows else jaxpr
