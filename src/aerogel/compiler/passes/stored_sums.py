"""Stored sums: what XLA would store for a sum alone is made block by block (see `stored_sums.py`)."""

from collections.abc import Sequence
from typing import ClassVar

from aerogel import _jax
from aerogel._jax import Jaxpr, Var

from ..cost import nbytes
from ..exactness import Exactness
from ..fusion.canonical import canonical
from ..level import Level
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from ..streams.stored_sums import LEAST_BYTES, MOVES, ROOTS, StoredSum, in_blocks, stored_sums, together

NAME = "stored-sums"
# More cores share what XLA stores for a sum, and its blocks are worked on by one. (On two, what is read is up to three
# times as large as what is stored where blocks were measured to take less.)
MOST_CORES = 2
MOST_READ = 3
# What is larger, the C library asks the system for anew each time, and page by page that takes longer than all else. On
# two cores less pays for sums with little work only (0.6 to 1.0 of the time on an Intel Xeon; `isclose`, 12 operations,
# 1.15 to 1.26, extrema 0.9 to 1.2).
FRESH_BYTES = 1 << 25
MOST_OPERATIONS = 8


@record
class StoredSums:
    """The pass. Bound: each sum is looked at once, with at most 24 operations before it. It runs late, on CPUs."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums in blocks, and a decision for each group of one shape."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            large = any(eqn.primitive.name in ROOTS and nbytes(eqn.invars[0].aval) >= LEAST_BYTES for eqn in jaxpr.eqns)
            outermost = list(jaxpr.invars) == list(program.jaxpr.invars)
            return _level(jaxpr, context, decisions, outermost) if large else jaxpr

        return rewrite_levels(program, level), decisions


def stored_for_sums(level: Level, context: Context) -> frozenset[Var]:
    """What the pass will make in blocks, of a level that is no longer differentiated, and nothing else reads."""
    groups = together(list(stored_sums(level, False)), level)
    chosen = [one for sums in groups if _refused(level, sums, _exactness(level, sums), context) is None for one in sums]
    own = {k for one in chosen for k in (*one.chain, one.place)}
    made = (v for k in own for v in level.eqns[k].outvars)
    return frozenset(v for v in made if own.issuperset(level.readers(v)))


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision], outermost: bool) -> Jaxpr:
    new = canonical(jaxpr)
    found = Level(new)
    changed = False
    for sums in together(list(stored_sums(found, outermost)), found):
        exactness = _exactness(found, sums)
        made = _refused(found, sums, exactness, context) or in_blocks(found, sums)
        decisions.append(_decision(found, sums, made, exactness))
        if not isinstance(made, str):
            new, changed = made[0], True
            break
    return _level(new, context, decisions, outermost) if changed else jaxpr


def _exactness(level: Level, sums: Sequence[StoredSum]) -> Exactness:
    """Extrema are the same in any order, but for the sign of a zero."""
    adds = any(level.eqns[one.place].primitive.name == "reduce_sum" for one in sums)
    return Exactness.REASSOCIATES if adds else Exactness.NO_WORSE


def _refused(level: Level, sums: Sequence[StoredSum], exactness: Exactness, context: Context) -> str | None:
    if exactness not in context.allowed:
        return 'it adds up in another order: numerics="fast" allows that'
    cores = _jax.usable_cores()
    if cores > MOST_CORES:
        return f"{cores} cores share what is stored"
    stored = sum(nbytes(level.eqns[one.place].invars[0].aval) for one in sums)
    read = sum(nbytes(v.aval) for v in frozenset().union(*(one.given for one in sums)))
    if cores > 1 and read > MOST_READ * stored:
        return f"one core would read {read / 1e6:.1f} MB, which {cores} share"
    if cores > 1 and stored < FRESH_BYTES and not all(_is_little(level, one) for one in sums):
        return f"{cores} cores share the work on its entries"
    return None


def _is_little(level: Level, one: StoredSum) -> bool:
    """Whether there is little work on each entry."""
    work = sum(level.eqns[k].primitive.name not in MOVES for k in one.chain)
    return level.eqns[one.place].primitive.name == "reduce_sum" and work <= MOST_OPERATIONS


def _decision(level: Level, sums: Sequence[StoredSum], made: tuple[Jaxpr, int] | str, exactness: Exactness) -> Decision:
    eqn = level.eqns[sums[0].place]
    one = f"{eqn.invars[0].aval.str_short(True)}, which `{eqn.primitive.name}` alone would read from memory,"
    what = f"{one} is made in blocks" if len(sums) == 1 else f"{one} and {len(sums) - 1} more are made in blocks"
    if isinstance(made, str):
        return Decision(NAME, what, where(eqn), False, made)
    saved = nbytes(eqn.invars[0].aval)
    reason = f"XLA's library for sums takes no comparisons along; a block has {made[1]:,} entries"
    return Decision(
        NAME, what, where(eqn), True, reason, bytes_saved=2 * saved, peak_bytes_saved=saved, exactness=exactness
    )
