"""What the gradient of a product with a Jacobian sums up over its rows.

The product's cotangent comes back to the Jacobian as an outer product: row b is w_b u. What is linear in such rows has
rows w_b u', and its product with a row L(e_b) is w_b L'(e_b). Summed up over b, that is L'(w): a push, as before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from .axes import MONOIDS, Axis, Mapped, Reduced, along, linear_in
from .basis_maps import repeated
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
        factors = eqn.primitive.name in ("mul", "dot_general") and len(plain) == len(scaled) == 1
        return plain | scaled if factors and set(linear_in(eqn)) == {0, 1} else {}

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

    def maker(self, x: Var) -> Mapped:
        """How the equation that makes a value makes its rows."""
        place = self.level.made_by[x]
        return next(one.made[place] for one in (self, self.rows, self.scaled) if x in one.axes)

    def has_rows(self, x: Atom) -> bool:
        """Whether a value has rows of any kind."""
        return is_var(x) and any(x in one.axes for one in (self, self.rows, self.scaled))


def _adds_rows(found: Reduced, known: dict[int, Axis]) -> bool:
    alone = all(axis is None or k in known for k, axis in enumerate(found.ins))
    return alone and found.monoid is MONOIDS["add"] and not found.uses_start


def gradient_sums(rows: BasisRows, after_differentiation: bool) -> Iterator[Edit]:
    """An edit for each sum over the rows of a Jacobian, weighted as an outer product weights them."""
    for scaled, weights in _outer_products(rows):
        grow(scaled, after_differentiation)
        products = _Products(rows, scaled, weights)
        products.grow(after_differentiation)
        for place in products.sums:
            yield _pushed(products, place)


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


def _pushed(products: _Products, place: int) -> Edit:
    eqn, answer = products.level.eqns[place], products.sums[place]
    builder = Builder(eqn)
    reads = _reads(products, eqn)
    roots = {products.rows.root: products.rows.dim, products.scaled.root: products.scaled.dim}

    def push(w: Any, u: Any, *consts: Any) -> Any:
        env: dict[Var, Any] = dict(zip(reads, consts, strict=True))
        for (root, dim), value in zip(roots.items(), (w, u), strict=True):
            env[root] = lax.expand_dims(value, [dim])

        def inputs(eqn: JaxprEqn, answer: Mapped | Reduced) -> list[Any]:
            found = []
            for x, axis in zip(eqn.invars, answer.ins, strict=True):
                value = x.val if isinstance(x, Literal) else at(x)
                found.append(repeated(value, axis, 1) if axis is not None and not products.has_rows(x) else value)
            return found

        def at(x: Var) -> Any:
            if x not in env:
                made, how = products.level.eqns[products.level.made_by[x]], products.maker(x)
                env.update(zip(made.outvars, how.block(0, 1, *inputs(made, how)), strict=True))
            return env[x]

        return answer.finish(*answer.block(0, 1, *inputs(eqn, answer)))

    results = builder.call(push, *products.weights, *reads)
    made = {v: builder.as_weak_as(v, x) for v, x in zip(eqn.outvars, results, strict=True)}
    return Edit(place, frozenset((place,)), builder.eqns, dict(made), frozenset((place,)))


def _reads(products: _Products, eqn: JaxprEqn) -> list[Var]:
    """What is read on the way from both roots, besides rows."""
    found: dict[Var, None] = {}
    seen = {products.rows.root, products.scaled.root}
    stack = [*eqn.invars]
    while stack:
        x = stack.pop()
        if not is_var(x) or x in seen:
            continue
        seen.add(x)
        if products.has_rows(x):
            stack += products.level.eqns[products.level.made_by[x]].invars
        else:
            found[x] = None
    return list(found)
