"""Basis products: a Jacobian that is only multiplied is not made: its product is one push or pull by its derivative.

`jax.hessian(f)(x) @ v` pushes n basis vectors through a gradient, and sums up what comes out with the weights v. It is
the push of v alone. `jax.jacfwd` of a function of few results is as many pulls as it has results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from aerogel._jax import Jaxpr

from ..cost import jaxpr_seconds
from ..cost.account import jaxpr_cost
from ..exactness import Exactness
from ..jacobians.basis_gradients import gradient_sums
from ..jacobians.basis_maps import Written, behind, pulled, pushes
from ..jacobians.basis_rows import FEWEST_ROWS, BasisRows, basis_rows, short_rows
from ..jacobians.matrix_sums import with_sums_after
from ..jacobians.rows_inside import loops_with_rows, with_rows_inside, with_solves_open
from ..jacobians.tangent_loops import with_loops_in_two
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import drop_dead, normalize
from ..pipeline import Context
from ..program import Program, is_var, where, with_equations
from ..record import record
from ..report import Decision

NAME = "basis-products"
# What is written may be predicted to take this share of what goes.
LARGEST_SHARE = 0.7
# Bytes that it may take in any case: a pull stores what a push needs not.
FREE_BYTES = 1 << 20
MOST_ROUNDS = 8
MOST_SUMS = 8  # loops whose cotangents are looked at
MOST_PULLED = 2000  # equations: the way to each value of short rows is written anew, as it is pulled back alone


@record
class BasisProducts:
    """The pass. Bound: up to 8 identities of a level, each followed once through it."""

    early: ClassVar = True  # the gradient of a push has no identity in it

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with pushes and pulls in place of such products, and a decision for each identity."""
        if self.exactness not in context.allowed:
            return program, []
        walk = _Walk(context)
        new = rewrite_levels(program, walk.level)
        return (program if new is program else normalize(new)[0]), walk.decisions


@dataclass
class _Walk:
    context: Context
    decisions: list[Decision] = field(default_factory=list)

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        """A level with its Jacobians' products as pushes and pulls; the same object if it has none."""
        for _ in range(MOST_ROUNDS):
            new = self._without_one(jaxpr)
            if new is jaxpr:
                break
            jaxpr = new
        return jaxpr

    def _without_one(self, jaxpr: Jaxpr) -> Jaxpr:
        for rows in self._rows(jaxpr):
            for tried, edits, later in self._candidates(rows):
                new, refusal = self._made(jaxpr, tried, edits, later)
                self.decisions.append(_decision(rows, refusal))
                if refusal is None:
                    return new
        return jaxpr

    def _candidates(self, rows: BasisRows) -> Iterator[tuple[BasisRows, list[Edit], float]]:
        """Edits to try, the best first, of rows that may be another level's, and by how much they slow later steps."""
        opened = rows if self.context.before_differentiation else self._again(rows, with_solves_open(rows))
        if any(True for _ in loops_with_rows(opened)):
            apart = self._with_sums_after(self._again(opened, with_loops_in_two(opened)))
            within, machine = _Walk(self.context), self.context.machine
            found = [with_rows_inside(apart, place, within.level, machine) for place in loops_with_rows(apart)]
            inside = [one for one in found if one is not None]
            if inside:
                yield apart, [*self._edits(apart), *(one.edit for one in inside)], sum(one.later for one in inside)
        edits = self._edits(rows)
        if edits:
            yield rows, edits, 0.0

    def _with_sums_after(self, rows: BasisRows) -> BasisRows:
        """The same rows, where loops do not carry what is summed up for the matrix that they are."""
        smallest = rows.count * FEWEST_ROWS
        for _ in range(MOST_SUMS):
            level = rows.level.jaxpr
            forms = (with_sums_after(level, place, smallest) for place in loops_with_rows(rows))
            new = next((form for form in forms if form is not level), level)
            if new is level:
                break
            rows = self._again(rows, new)
        return rows

    def _again(self, rows: BasisRows, jaxpr: Jaxpr) -> BasisRows:
        """The same rows in another form of their level."""
        return next((x for x in self._rows(jaxpr) if _same(x, rows)), rows)

    def _rows(self, jaxpr: Jaxpr) -> Iterator[BasisRows]:
        return basis_rows(Level(jaxpr), not self.context.before_differentiation)

    def _made(self, old: Jaxpr, rows: BasisRows, edits: list[Edit], later: float) -> tuple[Jaxpr, str | None]:
        """The level with edits made, and why it is left; those that they make way for may be what pays.

        (`J.T @ (J @ v)`: as long as its product with J is not made otherwise, J stays.)
        """
        new = rows.level.jaxpr
        written: list[Edit] = []
        refusal: str | None = None
        for _ in range(MOST_ROUNDS):
            new = drop_dead(apply_edits(new, edits)[0])
            written += edits
            refusal = self._refusal(old, new, written, later)
            edits = [] if refusal is None else next((self._edits(x) for x in self._rows(new) if _same(x, rows)), [])
            if not edits:
                break
        return new, refusal

    def _edits(self, rows: BasisRows) -> list[Edit]:
        """Sums of rows with weights of half as many columns as there are rows or fewer, and values of rows as short."""
        edits: list[Edit] = []
        short = list(short_rows(rows))
        ways = sum(len(behind(rows, rows.level.eqns[place].outvars)) for place in short)
        if ways <= MOST_PULLED:
            edits += [pulled(rows, place) for place in short]
        else:
            self.decisions.append(_decision(rows, f"{len(short)} pulls would be {ways:,} equations to start with"))
        written: dict[Any, Written] = {}
        edits += pushes(rows, (place for place in rows.sums if _is_narrow(rows, place)), written)
        return [*edits, *gradient_sums(rows, written, not self.context.before_differentiation)]

    def _refusal(self, old: Jaxpr, new: Jaxpr, edits: list[Edit], later: float) -> str | None:
        """Why what is written is not clearly better than what goes; None if it is."""
        machine = self.context.machine
        results = dict.fromkeys(x for e in edits for x in e.results.values() if is_var(x))
        eqns = list(chain.from_iterable(e.eqns for e in edits))
        added = jaxpr_seconds(with_equations(new, eqns, list(results)), machine)
        gone = jaxpr_seconds(old, machine) - jaxpr_seconds(new, machine) + added
        if added + later > LARGEST_SHARE * gone:
            return "that is predicted to take about as long"
        if jaxpr_cost(new).peak_bytes > max(FREE_BYTES, jaxpr_cost(old).peak_bytes):
            return "a pull would store more than is stored now"
        return None


def _same(a: BasisRows, b: BasisRows) -> bool:
    """Whether these are what is made of the same rows."""
    return a.root is b.root and a.dim == b.dim and (a.entry is None) == (b.entry is None)


def _is_narrow(rows: BasisRows, place: int) -> bool:
    weights = (x.aval.size for k, x in enumerate(rows.level.eqns[place].invars) if k != rows.sums[place])
    return 2 * max(weights, default=rows.count) <= rows.count**2


def _decision(rows: BasisRows, refusal: str | None) -> Decision:
    place = rows.level.made_by[rows.root] if rows.entry is None else rows.entry[0]
    if rows.entry is None:
        what = f"products with a Jacobian of {rows.count} rows are pushes and pulls"
        why = "the identity that it is made of need not exist"
    else:
        what = f"a loop over {rows.count} rows that are then summed up runs on their sum"
        why = "each step is linear in them"
    eqn = rows.level.eqns[place]
    return Decision(NAME, what, where(eqn), refusal is None, refusal or why, exactness=Exactness.FINITE)
