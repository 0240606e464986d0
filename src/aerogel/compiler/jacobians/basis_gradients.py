"""What the gradient of a product with a Jacobian sums up over its rows.

The product's cotangent comes back to the Jacobian as an outer product: row b is w_b u. What is linear in such rows has
rows w_b u', and its product with a row L(e_b) is w_b L'(e_b). Summed up over b, that is L'(w): a push, as before. What
else is made of the outer product is another one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jax import lax

from aerogel._jax import Atom, Var

from ..level import Edit
from ..program import Builder, depends_on
from .basis_kinds import Kind, Region
from .basis_maps import Written, starting
from .basis_rows import BasisRows
from .outer_products import Outer, outer_products


def gradient_sums(rows: BasisRows, written: Mapping[Any, Written], after_differentiation: bool) -> Iterator[Edit]:
    """Edits for the sums over the rows of a Jacobian that are weighted as an outer product weights them.

    `written` is what is already made of weights, as of `pushes`.
    """
    done: set[Var] = set()
    for x, outer in outer_products(rows.level, rows.count, rows.root.aval.dtype, rows.axes):
        if x not in done:
            # A square Jacobian's product is as long as there are rows: what is made of it may look like rows again.
            late = depends_on(rows.level.jaxpr, [x])
            region = _region(rows, x, outer, late, after_differentiation)
            if region.sums:
                done |= {v for v, (kind, _) in region.kinds.items() if kind is Kind.SCALED}
                before = written.get((outer.vector, 0))
                known = {} if before is None else {v: a for v, a in before.values.items() if v not in late}
                yield from _edits(rows, region, x, outer, before and Written(rows, 1, before.start, known))


def _region(rows: BasisRows, scaled: Var, outer: Outer, late: set[Var], after_differentiation: bool) -> Region:
    """What is made of an outer product, and with it of rows that are not made of it, which is what is `late`."""
    kinds = {x: (Kind.PLAIN, axis) for x, axis in rows.axes.items() if x not in late}
    made = {p: m for p, m in rows.made.items() if not late.intersection(rows.level.eqns[p].outvars)}
    region = Region(rows.level, rows.count, after_differentiation, kinds, made=made)
    region.add(scaled, Kind.SCALED, outer.dim)
    return region


def _edits(rows: BasisRows, region: Region, scaled: Var, outer: Outer, before: Written | None) -> Iterator[Edit]:
    """The edits of one region; where its weights are a vector with which rows were summed up `before`, from that on."""
    level = rows.level
    axes = {x: axis for x, (_, axis) in region.kinds.items()}
    joint = BasisRows(level, rows.root, rows.dim, rows.entry, axes, region.made)
    written: Written | None = None
    for place, made in sorted(region.made.items()):
        outs = level.eqns[place].outvars
        xs = [v for v, axis in zip(outs, made.outs, strict=True) if axis is None and place in region.sums]
        wanted = [v for v in outs if _leaves(region, v)]
        if not xs and not wanted:
            continue
        builder = Builder(level.eqns[place])
        if written is None:
            written = _written(builder, joint, scaled, outer, before)
        written.write(builder, (*xs, *wanted))
        results = {v: builder.as_weak_as(v, written.values[v]) for v in xs}
        results |= {v: builder.as_weak_as(v, _whole(builder, joint, outer, v, written.values[v])) for v in wanted}
        yield Edit(place, frozenset(), builder.eqns, dict(results), frozenset((place,)))


def _written(builder: Builder, rows: BasisRows, scaled: Var, outer: Outer, before: Written | None) -> Written:
    (u,) = builder.call(outer.rows, *outer.atoms)
    if before is not None:
        return Written(rows, 1, before.start, before.values | {scaled: u})
    (w,) = builder.call(lambda matrix, *xs: starting(rows, matrix, outer.weights(*xs)), rows.root, *outer.atoms)
    return Written(rows, outer.rank, w, {scaled: u})


def _leaves(region: Region, x: Var) -> bool:
    """Whether something else than rows is made of a value with rows of an outer product."""
    if x not in region.kinds:
        return False
    kind, axis = region.kinds[x]
    return kind is Kind.SCALED and axis.is_plain and any(place not in region.made for place in region.level.readers(x))


def _whole(builder: Builder, rows: BasisRows, outer: Outer, x: Var, few: Atom) -> Atom:
    """A value whose row b is w_b u: an outer product."""
    axis, shape = rows.axes[x], x.aval.shape

    def make(few: Any, *xs: Any) -> Any:
        w = outer.weights(*xs)
        few = lax.convert_element_type(few, w.dtype)
        whole = lax.dot_general(w, few, (((0,), (axis.dim,)), ((), ())), precision=lax.Precision.HIGHEST)
        order = [*range(1, axis.dim + 1), 0, *range(axis.dim + 1, len(shape))]
        return lax.convert_element_type(lax.transpose(whole, order), x.aval.dtype)

    return builder.call(make, few, *outer.atoms)[0]
