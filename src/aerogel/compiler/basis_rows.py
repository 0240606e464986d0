"""What a program makes of an identity matrix, linearly and row by row: the rows of a Jacobian.

`jax.jacfwd` pushes the rows of an identity through a derivative, `jax.jacrev` pulls them back. Row b of each value is
then L(e_b), of one linear map L. So a sum of rows with weights t is L(t), one push in place of n; and a value of few
entries in each row is made of as many pulls by L's transpose.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import jax.numpy as jnp

from aerogel._jax import Atom, JaxprEqn, Var

from .axes import Axis, Mapped, Reduced, along
from .axes.rebind import shape_of
from .identity import identity_axes
from .level import Level
from .linear_values import linear_outs
from .program import is_var

FEWEST_ROWS = 16  # of an identity that is looked at
MOST_ROOTS = 8  # of a level


@dataclass
class BasisRows:
    """The values of a level that are linear in the rows of an identity.

    Attributes:
        root: the identity, as floats.
        axes: where its rows are in each value.
        made: how the equation at a place makes rows of rows.
        sums: the places of equations that sum up rows, and which operand holds them.
    """

    level: Level
    root: Var
    axes: dict[Var, Axis] = field(default_factory=dict)
    made: dict[int, Mapped] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.root.aval.shape[0]

    def width(self, x: Atom) -> int:
        """The entries of a row."""
        return x.aval.size // self.count

    def read(self, eqn: JaxprEqn) -> dict[int, Axis]:
        """Where rows are in the operands of an equation, by position."""
        return {k: self.axes[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in self.axes}


def basis_rows(level: Level, after_differentiation: bool) -> Iterator[BasisRows]:
    """For each large identity of a level what is made of its rows, where that is anything."""
    followed = 0
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name != "convert_element_type" or followed >= MOST_ROOTS:
            continue
        (x,), (root,) = eqn.invars, eqn.outvars
        shape, dtype = shape_of(root), root.aval.dtype
        if len(shape) != 2 or shape[0] < FEWEST_ROWS or not jnp.issubdtype(dtype, jnp.floating):
            continue
        if is_var(x) and x.aval.dtype == bool and identity_axes(level, root) == (0, 1):
            followed += 1
            rows = _grown(BasisRows(level, root), place + 1, after_differentiation)
            if rows.made or rows.sums:
                yield rows


def _grown(rows: BasisRows, start: int, after_differentiation: bool) -> BasisRows:
    rows.axes[rows.root] = Axis(0)
    for place in range(start, len(rows.level.eqns)):
        eqn = rows.level.eqns[place]
        known = rows.read(eqn)
        outs = linear_outs(rows.level, eqn, set(known)) if known else set()
        if not outs:
            continue
        found = along(eqn, known, rows.count, after_differentiation=after_differentiation)
        if isinstance(found, Mapped) and _is_one_map(rows.level, eqn, found, known, outs):
            rows.made[place] = found
            rows.axes.update((v, axis) for v, axis in zip(eqn.outvars, found.outs, strict=True) if axis is not None)
        elif isinstance(found, Reduced) and _sums_rows(rows, eqn, known):
            (rows.sums[place],) = known
    return rows


def _is_one_map(level: Level, eqn: JaxprEqn, found: Mapped, known: dict[int, Axis], outs: set[int]) -> bool:
    """Whether an equation makes of each row the same: it reads nothing else row by row, nor which row it is.

    What it makes row by row are the results at `outs`, which are linear, and no others.
    """
    others = [(x, axis) for k, (x, axis) in enumerate(zip(eqn.invars, found.ins, strict=True)) if k not in known]
    alike = all(axis is None or _is_repeated(level, x, axis) for x, axis in others)
    return alike and not found.uses_start and outs == {i for i, axis in enumerate(found.outs) if axis is not None}


def _is_repeated(level: Level, x: Atom, axis: Axis) -> bool:
    """Whether a value is the same at each index of a plain axis."""
    eqn = level.maker(x)
    if eqn is None or eqn.primitive.name != "broadcast_in_dim" or not axis.is_plain:
        return False
    inner, dims = shape_of(eqn.invars[0]), eqn.params["broadcast_dimensions"]
    return axis.dim not in dims or inner[list(dims).index(axis.dim)] == 1


def _sums_rows(rows: BasisRows, eqn: JaxprEqn, known: dict[int, Axis]) -> bool:
    """Whether it is a sum over the rows and nothing else, or a product of them with weights of their own type."""
    if len(known) != 1:
        return False
    ((k, axis),) = known.items()
    if eqn.primitive.name == "reduce_sum":
        return axis.is_plain and tuple(eqn.params["axes"]) == (axis.dim,)
    if eqn.primitive.name != "dot_general" or not axis.is_plain:
        return False
    contracted, batch = eqn.params["dimension_numbers"]
    dtypes = {x.aval.dtype for x in (*eqn.invars, *eqn.outvars, rows.root)}
    return tuple(contracted[k]) == (axis.dim,) and not batch[0] and len(dtypes) == 1


def short_rows(rows: BasisRows) -> Iterator[int]:
    """The places of the equations that make rows of half as many entries as there are rows, or fewer.

    The last ones: all that is made on the way to them can be made the other way round.
    """
    for place in rows.made:
        x = rows.level.eqns[place].outvars[0]
        if _is_short(rows, x) and not all(
            k in rows.made and all(_is_short(rows, v) for v in rows.level.eqns[k].outvars)
            for k in rows.level.readers(x)
        ):
            yield place


def _is_short(rows: BasisRows, x: Var) -> bool:
    axis = rows.axes.get(x)
    alone = len(rows.level.eqns[rows.level.made_by[x]].outvars) == 1
    return alone and axis is not None and axis.is_plain and 0 < 2 * rows.width(x) <= rows.count
