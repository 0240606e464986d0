"""Products with an inverse become solves, whatever their axes and operand order.

`inv(A) @ b` solves for every column of the identity, and then multiplies; `solve(A, b)` needs b's columns alone, and
loses fewer digits. A rule would have to be written for each of the ways in which a product can be spelt
(`inv(A).T @ b`, `einsum("ij,nj->ni", inv(A), X)`, one inverse for a batch); here they are read off the dimension
numbers.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.rebind import shape_of
from ..exactness import Exactness
from ..known.identity import identity_axes
from ..known.solves import DenseSolve, dense_solve
from ..level import Edit, Level, apply_edits
from ..levels import Around, rewrite_nested
from ..normalize import normalize
from ..pipeline import Context
from ..program import Builder, Program, depends_on, is_var, where
from ..record import record
from ..report import Decision
from ..rules import small_linalg, small_solves

NAME = "inverse-products"
WHAT = "a product with an inverse becomes a solve"
# A solve goes through all columns twice, by triangles; a product with the inverse once, by blocks. On an Intel Xeon
# one solve takes 0.88 to 0.98 of the time for n columns (n = 50, 200), 1.08 for 2 n, 1.35 to 1.6 for 3 n and 4 n; on an
# AMD EPYC it is never slower up to 4 n columns, for n = 8 to 400. Other backends were not measured.
WIDEST, WIDEST_ON_CPU = 4, 1
# Several solves, as of a value and its gradient, share their factors and no more: for 2 n columns in all they took 1.1
# to 1.5 times what one inverse and its products take (n = 8 to 128), on an H200 1.34 times (80,000 matrices of 3 x 3).
WIDEST_OF_SEVERAL = 1
# Of so few rows a call of LAPACK is what takes the time, and the inverse is a solve like one for n columns: that took
# 1.0 to 1.2 of its time, two solves of one column 1.1 to 1.4 (of 16 rows 0.9).
FEW_ROWS = 8


@record
class InverseProducts:
    """The pass. Bound: each inverse is looked at once."""

    early: ClassVar = True  # the gradient of a solve has no inverse in it

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with solves in place of such products, and a decision for each inverse."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_nested(program, lambda jaxpr, around: _level(jaxpr, around, context, decisions))
        return (program if new is program else normalize(new)[0]), decisions


def _level(jaxpr: Jaxpr, around: Around, context: Context, decisions: list[Decision]) -> Jaxpr:
    places = [k for k, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "custom_linear_solve"]
    if not places:
        return jaxpr
    level, edits = Level(jaxpr), []
    varies = _varying(jaxpr, around)
    for place in places:
        eqn = jaxpr.eqns[place]
        inverse = _inverse(level, eqn)
        if inverse is None:
            continue
        found = (
            _products(level, inverse, context.platform == "cpu")
            if varies(inverse.matrix)
            else "the matrix is the same in every step of a loop"
        )
        fired = not isinstance(found, str)
        reason = "only the columns that are asked for are solved for" if fired else str(found)
        decisions.append(Decision(NAME, WHAT, where(eqn), fired, reason, exactness=Exactness.REASSOCIATES))
        edits += [] if isinstance(found, str) else found
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _varying(jaxpr: Jaxpr, around: Around) -> Callable[[Atom], bool]:
    """Whether a value is made anew each time that it is read: the inverse of another one leaves the loop."""
    loops = [eqn for eqn in around if eqn.primitive.name in ("scan", "while")]
    if not loops:
        return lambda x: True
    if loops[-1] is not around[-1]:
        return lambda x: False  # in a branch of a loop
    scan = loops[-1].primitive.name == "scan"
    constants = _jax.scan_counts(loops[-1].params)[0] if scan else loops[-1].params["body_nconsts"]
    late = depends_on(jaxpr, jaxpr.invars[constants:])
    return lambda x: is_var(x) and x in late


@record
class _Inverse:
    """The inverse M^-1 that an equation makes: `solve.along` counts its rows, `columns` its columns."""

    eqn: JaxprEqn
    solve: DenseSolve
    columns: int

    @property
    def matrix(self) -> Atom:
        return self.eqn.invars[0]


def _inverse(level: Level, eqn: JaxprEqn) -> _Inverse | None:
    """What a solve inverts, if it is an LU solve for an identity matrix and nothing else."""
    solve, axes = dense_solve(eqn.params), identity_axes(level, eqn.invars[-1])
    if solve is None or axes is None or solve.along not in axes:
        return None
    lengths = eqn.params["const_lengths"]
    factor = eqn.invars[lengths.matvec + lengths.vecmat]
    place = level.made_by.get(factor) if is_var(factor) else None
    if place is None or level.eqns[place].primitive.name != "lu":
        return None
    (columns,) = (a for a in axes if a != solve.along)
    known = {solve.along, columns, *(b for _, b in solve.batch)}
    return _Inverse(eqn, solve, columns) if len(known) == len(shape_of(eqn.outvars[0])) else None


def _products(level: Level, inverse: _Inverse, on_cpu: bool) -> list[Edit] | str:
    """The edits that put a solve in the place of each product that reads an inverse; or the reason against it."""
    waiting = [(inverse.eqn.outvars[0], list(range(inverse.eqn.outvars[0].aval.ndim)))]  # the inverse, as it is read
    edits: dict[int, Edit] = {}
    columns = 0
    while waiting:
        at, axes = waiting.pop()
        readers = level.readers(at)
        if -1 in readers:
            return "the inverse is a result of its own"
        for place in readers:
            eqn = level.eqns[place]
            if eqn.primitive.name == "transpose":
                waiting.append((eqn.outvars[0], [axes[d] for d in eqn.params["permutation"]]))
                continue
            if place in edits:
                return "the inverse is multiplied with itself"
            found = _summed(inverse, eqn, place, axes) or _multiplied(level, inverse, place, at, axes)
            if isinstance(found, str):
                return found
            edits[place], columns = found[0], columns + found[1]
    slower = _is_slower(inverse, len(edits), columns, on_cpu)
    return slower or list(edits.values()) or "nobody reads the inverse"


def _is_slower(inverse: _Inverse, solves: int, columns: int, on_cpu: bool) -> str | None:
    """Why so many solves, for so many columns in all, would take longer than the inverse and its products."""
    shape = shape_of(inverse.eqn.outvars[0])
    n = shape[inverse.solve.along]
    widest = WIDEST_OF_SEVERAL if solves > 1 else WIDEST_ON_CPU if on_cpu else WIDEST
    if columns > widest * n:
        return f"more than {widest * n} columns for {n} rows: one inverse serves all of them"
    if not on_cpu or n > FEW_ROWS:
        return None
    if columns >= n:
        return f"{n} rows are few: their inverse takes no longer than a solve for {columns} columns"
    matrices = math.prod(shape[b] for _, b in inverse.solve.batch)
    if solves > 1 and not (n <= small_linalg.LARGEST and matrices >= small_solves.FEWEST):
        return f"{n} rows are few: {solves} solves take longer than their inverse"
    return None


def _multiplied(level: Level, inverse: _Inverse, place: int, at: Var, axes: list[int]) -> tuple[Edit, int] | str:
    """What reads the inverse as `at`, which has these axes, as a solve; for how many columns."""
    eqn = level.eqns[place]
    if eqn.primitive.name != "dot_general":
        return f"the inverse is read by `{eqn.primitive.name}`"
    k = 0 if eqn.invars[0] is at else 1
    return (
        "the inverse is multiplied with itself" if eqn.invars[1 - k] is at else _solved(level, inverse, place, k, axes)
    )


def _summed(inverse: _Inverse, eqn: JaxprEqn, place: int, axes: list[int]) -> tuple[Edit, int] | None:
    """The sum of an inverse's rows or columns, a product with ones, as a solve for these; None of other axes."""
    if eqn.primitive.name != "reduce_sum" or len(eqn.params["axes"]) != 1:
        return None
    (dim,) = eqn.params["axes"]
    if axes[dim] not in (inverse.solve.along, inverse.columns):
        return None
    transposed = axes[dim] == inverse.solve.along
    row = inverse.columns if transposed else inverse.solve.along
    made = [*(b for _, b in inverse.solve.batch), row]
    order = [made.index(a) for d, a in enumerate(axes) if d != dim]

    def solved(A: Any) -> Any:
        M = lax.transpose(A, [*(a for a, _ in inverse.solve.batch), inverse.solve.rows, inverse.solve.columns])
        ones = jnp.ones((*M.shape[:-1], 1) if M.ndim > 2 else M.shape[:1], M.dtype)
        solve = partial(jnp.linalg.solve, M)
        (x,) = jax.linear_transpose(solve, ones)(ones) if transposed else (solve(ones),)
        return lax.transpose(x.reshape(M.shape[:-1]), order)

    builder, here = Builder(eqn), frozenset((place,))
    (out,) = builder.call(solved, inverse.matrix)
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: out}, here), 1


def _solved(level: Level, inverse: _Inverse, place: int, k: int, axes: list[int]) -> tuple[Edit, int] | str:
    """The product at `place`, whose operand `k` is the inverse with these axes, as a solve; for how many columns."""
    eqn = level.eqns[place]
    contract, batch = ([list(one) for one in pair] for pair in eqn.params["dimension_numbers"])
    contracted = [axes[d] for d in contract[k]]
    other = eqn.invars[1 - k]
    if len(contracted) != 1 or contracted[0] not in (inverse.solve.along, inverse.columns):
        return "the product is not one of matrices"
    if not eqn.outvars[0].aval.dtype == other.aval.dtype == inverse.eqn.outvars[0].aval.dtype:
        return "its factors are of several types"
    free = [d for d in range(len(shape_of(other))) if d not in (*contract[1 - k], *batch[1 - k])]
    paired = {axes[d]: e for d, e in zip(batch[k], batch[1 - k], strict=True)}  # axis of the inverse -> of the other
    ours = [axes[d] for d in range(len(axes)) if d not in (*contract[k], *batch[k])]
    # Axes of the result are named by where they come from: the inverse's (0, axis), the other's (1, axis).
    sides = [[(0, a) for a in ours], [(1, d) for d in free]]
    wanted = [(0, axes[d]) for d in batch[k]] + (sides[0] + sides[1] if k == 0 else sides[1] + sides[0])
    row = inverse.columns if contracted[0] == inverse.solve.along else inverse.solve.along
    made = [*((0, b) for _, b in inverse.solve.batch), (0, row), *sides[1]]
    order = [made.index(label) for label in wanted]
    transposed = contracted[0] == inverse.solve.along

    def solved(A: Any, y: Any) -> Any:
        batched = [a for a, _ in inverse.solve.batch]
        M = lax.transpose(A, [*batched, inverse.solve.rows, inverse.solve.columns])
        there = [paired[b] for _, b in inverse.solve.batch if b in paired]
        y = lax.transpose(y, [*there, *contract[1 - k], *free])
        keeps = [i for i, (_, b) in enumerate(inverse.solve.batch) if b in paired]
        whole = (*M.shape[:-1], *y.shape[len(there) + 1 :])
        y = lax.broadcast_in_dim(y, whole, [*keeps, *range(len(batched), len(whole))])
        y = y if y.ndim == 1 else y.reshape(*M.shape[:-1], -1)
        solve = partial(jnp.linalg.solve, M)
        # The transposed solve takes the factors of M itself, which a determinant may need too.
        (x,) = jax.linear_transpose(solve, y)(y) if transposed else (solve(y),)
        return lax.transpose(x.reshape(whole), order)

    builder = Builder(eqn)
    (out,) = builder.call(solved, inverse.matrix, other)
    results: dict[Var, Atom] = {eqn.outvars[0]: out}
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, results, here), math.prod(shape_of(other)[d] for d in free)
