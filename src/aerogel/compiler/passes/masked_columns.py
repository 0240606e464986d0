"""Masked columns: the steps of a loop leave out what a mask empties (`narrowed.py`).

Attention over blocks of queries, causal or in a window, has no scores behind a query or far before it. Steps that see
about the same keys become a loop of their own, over these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any, ClassVar

import numpy as np

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var, new_jaxpr

from ..apart import inputs_of
from ..cost import jaxpr_seconds, nbytes
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..loop import Loop, as_loop, is_float
from ..masks.narrowed import columns_of, in_stretches
from ..masks.outside import leaves_out, seen_columns
from ..masks.split_rows import in_groups
from ..masks.stretches import candidates, may_mask_columns, stretched
from ..masks.through import Whole
from ..masks.visible import Known, compares_counters, step_of
from ..normalize import LOOPS_AND_BRANCHES, drop_dead, map_inner
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..record import record
from ..report import Decision
from ..views import with_counters_cut

NAME = "masked-columns"
MOST_STEPS = 256
# What is left of the work around a mask, and the time that is predicted for it, must be at most so much.
MOST_LEFT = 0.8
MOST_SECONDS = 0.92


@record
class MaskedColumns:
    """The pass. Bound: each mask of a loop is looked at once in each of its steps, each of a level once for its groups.

    Attributes:
        fewest_rows: from so many rows and columns on they are put into groups.
        least_bytes: from which size on. Below, there is little to leave out beside what more kernels cost.
        least_block_bytes: the same where all rows see the same part of the columns: no kernel comes.
    """

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    fewest_rows: int = 256
    least_bytes: int = 1 << 20
    least_block_bytes: int = 1 << 17
    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops in parts, and a decision for each loop with a mask."""
        if not {Exactness.FINITE, Exactness.REASSOCIATES} <= context.allowed:
            return program, []
        walk = _Walk(self, context)
        new = walk.level(Known(Level(program.jaxpr)))
        return program if new is program.jaxpr else ClosedJaxpr(new, program.consts), walk.decisions


@dataclass
class _Walk:
    sizes: MaskedColumns
    context: Context
    decisions: list[Decision] = field(default_factory=list)

    def level(self, known: Known) -> Jaxpr:
        """A level of the program with its loops in parts; the same object if none is."""
        jaxpr = known.level.jaxpr
        edits: list[Edit] = []
        eqns: list[JaxprEqn] = []
        for place, eqn in enumerate(jaxpr.eqns):
            loop = as_loop(eqn) if eqn.primitive.name == "scan" else None
            edit = None if loop is None else self._loop(known, place, loop)
            if edit is not None:
                edits.append(edit)
            elif eqn.primitive.name in LOOPS_AND_BRANCHES:
                eqn = map_inner(eqn, partial(self._inside, known, loop))
            eqns.append(eqn)
        edits += self._groups(known, frozenset[int]().union(*(edit.touched for edit in edits)))
        if any(a is not b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            jaxpr = with_equations(jaxpr, eqns)
        return apply_edits(jaxpr, edits)[0] if edits else jaxpr

    def _inside(self, known: Known, loop: Loop | None, inner: Any) -> Any:
        old = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        new = self.level(Known(Level(old)) if loop is None else step_of(known, loop, None))
        if new is old:
            return inner
        return ClosedJaxpr(new, inner.consts) if isinstance(inner, ClosedJaxpr) else new

    def _loop(self, known: Known, place: int, loop: Loop) -> Edit | None:
        if not 2 <= loop.length <= MOST_STEPS or not any(map(may_mask_columns, loop.body.eqns)):
            return None
        steps = [step_of(known, loop, at) for at in range(loop.length)]
        refusal: Decision | None = None
        for one in candidates(loop, steps):
            parts = stretched(one.ranges)
            width = one.seed.aval.shape[one.dim]
            left = sum(part.work for part in parts) / (width * loop.length)
            what = f"steps of {width} columns, of which a mask leaves {left:.0%}"
            try:
                columns = columns_of(loop, one.seed, one.dim, parts, steps)
            except Whole as reason:
                line = where(loop.eqn)
                refusal = refusal or Decision(NAME, what, line, False, str(reason))
                continue
            eqns, results = in_stretches(loop, columns, parts)
            here = frozenset({place})
            edit = Edit(place, here, eqns, results, here)
            old = new_jaxpr(known.level.jaxpr, list(inputs_of([loop.eqn], ())), list(results), [loop.eqn], ())
            why = f"what it empties is left out, in {len(parts)} loops"
            if self._pays(known.level, what, why, loop.eqn, old, edit, list(results)):
                return edit
            return None
        if refusal is not None:
            self.decisions.append(refusal)
        return None

    def _groups(self, known: Known, taken: frozenset[int]) -> list[Edit]:
        """The edits that put rows around the masks of a level into groups."""
        edits: list[Edit] = []
        for place, eqn in enumerate(known.level.eqns):
            if place in taken or not self._may_mask(eqn, known):
                continue
            (seed,) = eqn.outvars
            dims = [d for d, n in enumerate(seed.aval.shape) if n >= self.sizes.fewest_rows]
            ways = [(rows, columns, True) for rows, columns in permutations(dims, 2)]
            if nbytes(seed.aval) < self.sizes.least_bytes:
                ways = [(self._beside(seed, d), d, False) for d in dims if self._is_cut(known, eqn, d)]
            found = (self._grouped(known, eqn, *way, taken) for way in ways)
            edit = next(filter(None, found), None)
            if edit is not None:
                edits.append(edit)
                taken |= edit.touched
        return edits

    def _beside(self, seed: Var, columns: int) -> int:
        """The dimension of the rows, for columns along another one."""
        return max((d for d in range(seed.aval.ndim) if d != columns), default=columns)

    def _is_cut(self, known: Known, eqn: JaxprEqn, columns: int) -> bool:
        """Whether a mask leaves a part of the columns to all rows: a block of queries, cut out by hand."""
        seen = seen_columns(eqn, columns, known) if eqn.outvars[0].aval.ndim > 1 else None
        if seen is None:
            return False
        (places,) = np.nonzero(np.broadcast_to(seen, eqn.outvars[0].aval.shape[columns : columns + 1]))
        return bool(places.size) and places[-1] + 1 - places[0] <= MOST_LEFT * eqn.outvars[0].aval.shape[columns]

    def _grouped(
        self, known: Known, eqn: JaxprEqn, rows: int, columns: int, apart: bool, taken: frozenset[int]
    ) -> Edit | None:
        (seed,) = eqn.outvars
        what = f"{seed.aval.str_short(True)} behind a mask"
        try:
            found = in_groups(known.level, known, seed, rows, columns, apart)
            leaves = f"leaves {found.left:.0%} of it to " + (f"{found.count} groups of rows" if apart else "its rows")
            if not taken.isdisjoint(found.edit.touched):
                raise Whole("what is around it belongs to another mask")
            if found.left > MOST_LEFT:
                raise Whole(f"it {leaves}")
        except Whole as reason:
            self.decisions.append(Decision(NAME, what, where(eqn), False, str(reason)))
            return None
        old, results = found.whole.jaxpr, found.whole.results
        what = f"{what}, which {leaves}"
        pays = self._pays(known.level, what, "each reads its own columns", eqn, old, found.edit, results)
        return found.edit if pays else None

    def _pays(
        self, level: Level, what: str, why: str, eqn: JaxprEqn, old: Jaxpr, edit: Edit, results: Sequence[Var]
    ) -> bool:
        """Whether an edit is predicted to take clearly less time than what it stands for; the decision is noted."""
        outs = [edit.results[v] for v in results]
        new = new_jaxpr(old, list(inputs_of(edit.eqns, outs)), outs, list(edit.eqns), ())
        handed = {v: maker for v in new.invars if (maker := level.maker(v)) is not None}
        new = drop_dead(with_counters_cut(drop_dead(new), handed))  # XLA cuts no counter that it has written
        was, now = (jaxpr_seconds(one, self.context.machine) for one in (old, new))
        pays = now <= MOST_SECONDS * was
        why = why if pays else f"it would take {1e3 * now:.2f} ms instead of {1e3 * was:.2f} ms"
        self.decisions.append(Decision(NAME, what, where(eqn), pays, why, exactness=Exactness.FINITE))
        return pays

    def _may_mask(self, eqn: JaxprEqn, known: Known) -> bool:
        """Whether an equation masks something large by places."""
        least = min(self.sizes.least_bytes, self.sizes.least_block_bytes)
        if eqn.primitive.name not in ("select_n", "add") or nbytes(eqn.outvars[0].aval) < least:
            return False
        if eqn.primitive.name == "select_n":
            return len(eqn.invars) == 3 and compares_counters(known, eqn.invars[0])
        return is_float(eqn.outvars[0].aval.dtype) and any(leaves_out(known, x) for x in eqn.invars)
