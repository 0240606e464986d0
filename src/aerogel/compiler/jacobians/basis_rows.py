"""What a program makes of an identity matrix, linearly and row by row: the rows of a Jacobian.

`jax.jacfwd` pushes the rows of an identity through a derivative, `jax.jacrev` pulls them back. Row b of each value is
then L(e_b), of one linear map L. So a sum of rows with weights t is L(t), one push in place of n; and a value of few
entries in each row is made of as many pulls by L's transpose. A loop that multiplies a matrix again and again is such a
map of the matrix that it starts from, an identity or not: L(a_b), and a sum of rows is L(t A).
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush

import jax.numpy as jnp

from aerogel._jax import Atom, JaxprEqn, Var, scan_counts

from ..axes import Axis, Mapped, Reduced, along
from ..axes.rebind import shape_of
from ..known.identity import identity_axes
from ..known.linear_values import is_zero, linear_outs
from ..known.repeated_rows import is_repeated
from ..level import Level
from ..program import is_var

FEWEST_ROWS = 16  # of a matrix that is looked at
MOST_ROOTS = 8  # of a level


@dataclass
class BasisRows:
    """The values of a level that are linear in the rows of a matrix.

    Attributes:
        root: the matrix: an identity as floats, or what a loop starts from.
        dim: the dimension of its rows.
        entry: None for an identity; else the place of the loop, and the operand that it starts from.
        axes: where the rows are in each value.
        made: how the equation at a place makes rows of rows.
        sums: the places of equations that sum up rows, and which operand holds them.
    """

    level: Level
    root: Var
    dim: int
    entry: tuple[int, int] | None = None
    axes: dict[Var, Axis] = field(default_factory=dict)
    made: dict[int, Mapped] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.root.aval.shape[self.dim]

    def width(self, x: Atom) -> int:
        """The entries of a row."""
        return x.aval.size // self.count

    def read(self, place: int) -> dict[int, Axis]:
        """Where rows are in the operands of an equation, by position."""
        eqn = self.level.eqns[place]
        read = {k: self.axes[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in self.axes}
        if self.entry is not None and self.entry[0] == place:
            read[self.entry[1]] = Axis(self.dim)
        return read


def basis_rows(level: Level, after_differentiation: bool) -> Iterator[BasisRows]:
    """For each large matrix of a level what is made of its rows, where that is anything: identities, and loops."""
    followed = 0
    for place, eqn in enumerate(level.eqns):
        if followed >= MOST_ROOTS:
            return
        roots = [*_identity(level, eqn), *_starts(level, place)]
        followed += bool(roots)
        for rows in roots:
            grow(rows, after_differentiation)
            if rows.sums or rows.made:
                yield rows


def _identity(level: Level, eqn: JaxprEqn) -> list[BasisRows]:
    if eqn.primitive.name != "convert_element_type":
        return []
    (x,), (root,) = eqn.invars, eqn.outvars
    if not _is_large(root) or not is_var(x) or x.aval.dtype != bool or identity_axes(level, root) != (0, 1):
        return []
    return [BasisRows(level, root, dim) for dim in (0, 1)]


def _starts(level: Level, place: int) -> list[BasisRows]:
    """The matrices that a loop starts from."""
    eqn = level.eqns[place]
    if eqn.primitive.name != "scan":
        return []
    first, count = scan_counts(eqn.params)
    carries = [(k, eqn.invars[k]) for k in range(first, first + count)]
    return [BasisRows(level, x, dim, (place, k)) for k, x in carries if is_var(x) and _is_large(x) for dim in (0, 1)]


def _is_large(x: Var) -> bool:
    shape = shape_of(x)
    return len(shape) == 2 and min(shape) >= FEWEST_ROWS and jnp.issubdtype(x.aval.dtype, jnp.floating)


def grow(rows: BasisRows, after_differentiation: bool) -> None:
    """Follows what is made of the rows, reader by reader."""
    level = rows.level

    def visit(place: int) -> list[Var]:
        eqn, known = level.eqns[place], rows.read(place)
        outs = linear_outs(level, eqn, set(known))
        if not outs:
            return []
        found = along(eqn, known, rows.count, after_differentiation=after_differentiation)
        if isinstance(found, Mapped) and is_one_map(eqn, found, known, outs, partial(_is_same, level)):
            rows.made[place] = found
            new = {v: axis for v, axis in zip(eqn.outvars, found.outs, strict=True) if axis is not None}
            rows.axes.update(new)
            return [*new]
        if isinstance(found, Reduced) and _sums_rows(rows, eqn, known):
            (rows.sums[place],) = known
        return []

    if rows.entry is None:
        rows.axes[rows.root] = Axis(rows.dim)
    follow(level, level.readers(rows.root) if rows.entry is None else [rows.entry[0]], visit)


def follow(level: Level, places: Iterable[int], visit: Callable[[int], Iterable[Var]]) -> None:
    """Visits equations in their order, each once, and then those that read the variables which a visit returns."""
    waiting = [place for place in places if place >= 0]
    heapify(waiting)
    last = -1
    while waiting:
        place = heappop(waiting)
        if place > last:
            last = place
            for x in visit(place):
                for reader in level.readers(x):
                    heappush(waiting, reader)


def _is_same(level: Level, x: Atom, axis: Axis) -> bool:
    return is_zero(level, x) or is_repeated(level, x, axis)


def is_one_map(
    eqn: JaxprEqn, found: Mapped, known: Container[int], outs: set[int], is_same: Callable[[Atom, Axis], bool]
) -> bool:
    """Whether an equation makes of each row the same: it reads nothing else row by row, nor which row it is.

    What it makes row by row are the results at `outs`, which are linear, and no others. `is_same` tells whether all
    rows of a value are the same.
    """
    others = [(x, axis) for k, (x, axis) in enumerate(zip(eqn.invars, found.ins, strict=True)) if k not in known]
    alike = all(axis is None or is_same(x, axis) for x, axis in others)
    return alike and not found.uses_start and outs == {i for i, axis in enumerate(found.outs) if axis is not None}


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
        if is_short(rows, x) and not all(
            k in rows.made and all(is_short(rows, v) for v in rows.level.eqns[k].outvars) for k in rows.level.readers(x)
        ):
            yield place


def is_short(rows: BasisRows, x: Var) -> bool:
    """Whether a value, made alone, has rows of half as many entries as there are rows, or fewer."""
    axis = rows.axes.get(x)
    alone = len(rows.level.eqns[rows.level.made_by[x]].outvars) == 1
    return alone and axis is not None and axis.is_plain and 0 < 2 * rows.width(x) <= rows.count
