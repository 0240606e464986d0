"""What the gradient of a product with a Jacobian sums up over its rows.

The product's cotangent comes back to the Jacobian as an outer product: row b is w_b u. What is linear in such rows has
rows w_b u', and its product with a row L(e_b) is w_b L'(e_b). Summed up over b, that is L'(w): a push, as before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from jax import lax

from aerogel._jax import JaxprEqn, Var

from .axes import MONOIDS, Axis, Mapped, Reduced, along, linear_in
from .basis_maps import Written, in_its_place, operands
from .basis_rows import BasisRows, grow, is_one_map
from .level import Edit, Level
from .linear_values import linear_outs
from .program import Builder, is_var

MOST_OUTER = 4  # outer products of a level that are looked at


@dataclass
class _Products:
    """Values whose row b is w_b L(e_b).

    Attributes:
        rows: the values with rows L(e_b).
        scaled: those with rows w_b u, made of an outer product.
        weights: w, and then u of that product.
        axes: where the rows are in values that are made of both.
        made: how the equation at a place makes rows of rows.
        sums: how the equation at a place sums up rows.
    """

    rows: BasisRows
    scaled: BasisRows
    weights: tuple[Var, Var]
    axes: dict[Var, Axis] = field(default_factory=dict)
    made: dict[int, Mapped] = field(default_factory=dict)
    sums: dict[int, Reduced] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        return self.rows.level

    def read(self, eqn: JaxprEqn) -> dict[int, Axis]:
        """Where rows are in the operands of an equation; nothing where it is not linear in them as such."""
        found = [
            {k: axes[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in axes}
            for axes in (self.rows.axes, self.scaled.axes, self.axes)
        ]
        plain, scaled, both = found
        if both:
            return {} if plain or scaled else both
        known = plain | scaled
        factors = eqn.primitive.name in ("mul", "dot_general") and set(linear_in(eqn)) == {0, 1}
        return known if factors and len(plain) == len(scaled) == 1 and len(known) == 2 else {}

    def grow(self, after_differentiation: bool) -> None:
        """Follows what is made of both, reader by reader."""
        read_by = self.level.readers
        waiting = list(
            {k for x in self.scaled.axes for k in read_by(x)} & {k for x in self.rows.axes for k in read_by(x)}
        )
        heapify(waiting)
        last = -1
        while waiting:
            place = heappop(waiting)
            if place <= last:
                continue
            last, eqn = place, self.level.eqns[place]
            known = self.read(eqn)
            outs = set(range(len(eqn.outvars))) if len(known) == 2 else linear_outs(self.level, eqn, set(known))
            if not known or not outs:
                continue
            found = along(eqn, known, self.rows.count, after_differentiation=after_differentiation)
            if isinstance(found, Mapped) and is_one_map(self.level, eqn, found, known, outs):
                self.made[place] = found
                for v, axis in zip(eqn.outvars, found.outs, strict=True):
                    if axis is not None:
                        self.axes[v] = axis
                        for reader in read_by(v):
                            heappush(waiting, reader)
            elif isinstance(found, Reduced) and _adds_rows(found, known):
                self.sums[place] = found

    def joint(self) -> BasisRows:
        """All values with rows of any kind."""
        kinds = (self.scaled, self.rows, self)
        axes = {x: axis for one in kinds for x, axis in one.axes.items()}
        made = {place: answer for one in kinds for place, answer in one.made.items()}
        return BasisRows(self.level, self.rows.root, self.rows.dim, axes=axes, made=made)


def _adds_rows(found: Reduced, known: dict[int, Axis]) -> bool:
    alone = all(axis is None or k in known for k, axis in enumerate(found.ins))
    return alone and found.monoid is MONOIDS["add"] and not found.uses_start


def gradient_sums(rows: BasisRows, after_differentiation: bool) -> Iterator[Edit]:
    """An edit for each sum over the rows of a Jacobian, weighted as an outer product weights them."""
    for scaled, weights in _outer_products(rows):
        grow(scaled, after_differentiation)
        products = _Products(rows, scaled, weights)
        products.grow(after_differentiation)
        yield from _pushes(products)


def _outer_products(rows: BasisRows) -> Iterator[tuple[BasisRows, tuple[Var, Var]]]:
    followed, dtype = 0, rows.root.aval.dtype
    for eqn in rows.level.eqns:
        if eqn.primitive.name != "dot_general" or eqn.params["dimension_numbers"] != (((), ()), ((), ())):
            continue
        (a, b), (out,) = eqn.invars, eqn.outvars
        if not is_var(a) or not is_var(b) or len(a.aval.shape) != 1 or len(b.aval.shape) != 1:
            continue
        if followed >= MOST_OUTER or any(x.aval.dtype != dtype for x in (a, b, out)):
            continue
        followed += 1
        for dim, pair in enumerate(((a, b), (b, a))):
            if pair[0].aval.size == rows.count:
                yield BasisRows(rows.level, out, dim), pair


def _pushes(products: _Products) -> Iterator[Edit]:
    rows, scaled = products.joint(), products.scaled
    written: Written | None = None
    for place, answer in products.sums.items():
        eqn = rows.level.eqns[place]
        builder = Builder(eqn)
        if written is None:
            w, u = (
                builder.call(lambda x, dim=one.dim: lax.expand_dims(x, [dim]), x)[0]
                for one, x in zip((rows, scaled), products.weights, strict=True)
            )
            written = Written(rows, 1, w, {scaled.root: u})
        written.write(builder, [x for x in eqn.invars if is_var(x)])
        atoms = {x: written.values.get(x, x) for x in eqn.invars if is_var(x)}

        def finish(*given: Any, place: int = place, answer: Reduced = answer, xs: Sequence[Var] = (*atoms,)) -> Any:
            inputs = operands(rows, place, answer.ins, dict(zip(xs, given, strict=True)), 1)
            return answer.finish(*answer.block(0, 1, *inputs))

        yield in_its_place(builder, place, builder.call(finish, *atoms.values()))
