"""Products that are only summed up with weights, where their mirror image stands in the program: `<a, x @ B.T>`.

That sum is `<a @ B, x>`. The trace of a Hessian has one for each layer: the tangents of the gradient are multiplied by
the weights once more on the way back, and summed up with the rows of an identity. What the way back makes of these rows
are the tangents of the way forth, whose products are known.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, permutations
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Var

from ..apart import cost_of
from ..cost import Machine
from ..known.records import Facts
from ..level import Edit, Level
from ..program import Builder, copy_equation, is_var
from ..record import record
from .contraction import product
from .label_orders import bits, product_labels
from .monomials import ENTRYWISE, VIEWS, Labels, Monomials, Polynomial, TooMany
from .network_reader import FLOATS, is_plain
from .picked_products import pays
from .sums_along import SUMS, labels_of, one_term, out_labels, whole_of

MOST_CONE = 200  # equations between a product and the sum


@record
class Dot:
    """A product at a place, seen from one operand: `side` is the other one's.

    Attributes:
        matrix: the operand from which it is seen.
        summed, batch, free: the matrix's dimensions.
    """

    place: int
    side: int
    matrix: Var
    summed: tuple[int, ...]
    batch: tuple[int, ...]
    free: tuple[int, ...]


@record
class Mirrored:
    """The edit by which a sum does without a product, what both forms are predicted to take, and the new sums."""

    edit: Edit
    seconds_before: float
    seconds_after: float
    sums: tuple[Var, ...]


def mirrored_product(level: Level, facts: Callable[[], Facts], machine: Machine) -> Mirrored | None:
    """Of the last sum that can do without a product, and pays; few levels have any for which `facts` are looked for."""
    dots = list(_dots(level))
    by_matrix: dict[tuple[Var, frozenset[int], tuple[int, ...]], list[Dot]] = {}
    for one in dots:
        by_matrix.setdefault((one.matrix, frozenset(one.summed), one.batch), []).append(one)
    for one in reversed(dots):
        images = by_matrix.get((one.matrix, frozenset(one.free), one.batch), [])
        images = [image for image in images if image.place != one.place and _is_like(level, one, image)]
        found = _judged(level, facts(), one, images, machine) if images else None
        if found is not None:
            return found
    return None


def _dots(level: Level) -> Iterator[Dot]:
    for place, eqn in enumerate(level.eqns):
        aval = eqn.outvars[0].aval if eqn.outvars else None
        if eqn.primitive.name != "dot_general" or aval is None or not is_plain(eqn) or aval.weak_type:
            continue
        if str(aval.dtype) not in FLOATS:
            continue
        contract, batch = eqn.params["dimension_numbers"]
        for k, x in enumerate(eqn.invars):
            if not is_var(x):
                continue
            summed, shared = tuple(map(int, contract[k])), tuple(map(int, batch[k]))
            free = tuple(d for d in range(len(x.aval.shape)) if d not in summed and d not in shared)
            if summed and free:
                yield Dot(place, 1 - k, x, summed, shared, free)


def _is_like(level: Level, one: Dot, image: Dot) -> bool:
    """Whether two products are made in the same precision."""
    a, b = (level.eqns[dot.place].params for dot in (one, image))
    return all(a.get(key) == b.get(key) for key in ("precision", "preferred_element_type"))


def _judged(level: Level, facts: Facts, one: Dot, images: Sequence[Dot], machine: Machine) -> Mirrored | None:
    found = _cone(level, one.place)
    if found is None:
        return None
    root, cone = found
    site = _Site(level, facts, one, root, cone)
    try:
        matched = next((match for image in images if (match := site.matched(image)) is not None), None)
    except TooMany:
        return None
    if matched is None:
        return None
    (out,) = level.eqns[root].outvars
    builder = Builder(level.eqns[root])
    result = site.emit(builder, *matched)
    if result.aval != out.aval:
        return None
    gone = frozenset({one.place, *cone, root})
    before = cost_of(level, [level.eqns[k] for k in sorted(gone)], [out], machine)
    after = cost_of(level, builder.eqns, [result], machine)
    if not pays(before, after):
        return None
    sums = tuple(eqn.outvars[0] for eqn in builder.eqns if eqn.primitive.name in SUMS)
    edit = Edit(root, gone, builder.eqns, {out: result}, gone)
    return Mirrored(edit, before.seconds or 0.0, after.seconds or 0.0, sums)


def _cone(level: Level, place: int) -> tuple[int, set[int]] | None:
    """The one sum that reads what becomes of a product entry by entry, and the equations between."""
    product, cone, roots = level.eqns[place], set[int](), set[int]()
    waiting = [place]
    while waiting:
        eqn = level.eqns[waiting.pop()]
        if len(cone) > MOST_CONE:
            return None
        for k in level.readers(eqn.outvars[0]):
            if k < 0 or k in cone or k in roots:
                if k < 0:
                    return None
                continue
            reader = level.eqns[k]
            if reader.primitive.name in SUMS:
                roots.add(k)
            elif reader.primitive.name in ENTRYWISE or reader.primitive.name in VIEWS:
                cone.add(k)
                waiting.append(k)
            else:
                return None
    if len(roots) != 1:
        return None
    (root,) = roots
    eqn = level.eqns[root]
    reads = [x for x in eqn.invars if is_var(x) and level.made_by.get(x, -1) in {place, *cone}]
    is_small = eqn.outvars[0].aval.size < product.outvars[0].aval.size and is_plain(eqn)
    return (root, cone) if len(reads) == 1 and is_small else None


class _Site:
    """A product, a sum of what becomes of it, and what is between, with labels."""

    def __init__(self, level: Level, facts: Facts, dot: Dot, root: int, cone: set[int]):
        self.level, self.dot, self.root, self.cone = level, dot, level.eqns[root], cone
        self.product = level.eqns[dot.place]
        (self.made,) = self.product.outvars
        self.reader = Monomials(level, facts, self.made.aval.dtype, frozenset([self.made]))
        self.of = labels_of(self.root)
        self.out = out_labels(self.root, self.of)

    def weights(self) -> tuple[Labels, Polynomial] | None:
        """The labels of the product, and what each of its entries is multiplied by; None if that is not linear."""
        whole = whole_of(self.root, self.of, self.reader)
        found: dict[Labels, Polynomial] = {}
        for monomial, number in whole.items():
            own = [(labels, power) for (var, labels), power in monomial if var is self.made]
            if not own:
                continue
            ((labels, power), *more) = own
            if more or power != 1 or len(set(labels)) != len(labels):
                return None
            rest = frozenset(each for each in monomial if each[0][0] is not self.made)
            if any(not set(leaf[1]) <= set(labels) for leaf, _ in rest):
                return None
            found.setdefault(labels, {})[rest] = number
        return next(iter(found.items())) if len(found) == 1 else None

    def matched(self, image: Dot) -> tuple[Dot, Labels, Labels, float] | None:
        """An image whose other operand is, times a number, what the product is weighted with; with all labels.

        These are those of the image, of the product's other operand, and the number.
        """
        weights = self.weights()
        if weights is None:
            return None
        flat, wanted = weights
        rest = iter(flat)
        full = tuple("" if n == 1 else next(rest) for n in self.made.aval.shape)
        of_matrix, of_other = self._operands(full)
        kept = {one for one in self.out if one}
        # Along a label that the product has not, equal terms are summed up.
        if kept & {of_matrix[d] for d in self.dot.free} or not {*kept, *filter(None, chain(*self.of))} <= set(flat):
            return None
        eqn = self.level.eqns[image.place]
        contract, batch = eqn.params["dimension_numbers"]
        x, own = eqn.invars[image.side], 1 - image.side
        names: dict[int, str] = {}
        for dims in (contract, batch):
            names |= {d: of_matrix[e] for d, e in zip(dims[image.side], dims[own], strict=True)}
        free = [d for d in range(len(x.aval.shape)) if d not in names]
        names |= {d: "" for d in free if x.aval.shape[d] == 1}
        free = [d for d in free if x.aval.shape[d] != 1]
        others = [one for one in flat if one not in names.values()]
        for order in permutations(others) if len(others) == len(free) <= 4 else ():
            labels = tuple({**names, **dict(zip(free, order, strict=True))}[d] for d in range(len(x.aval.shape)))
            number = self._ratio(x, labels, wanted)
            if number is not None:
                of_image = out_labels(eqn, [labels, of_matrix] if image.side == 0 else [of_matrix, labels])
                return image, of_image, of_other, number
        return None

    def _ratio(self, x: Atom, labels: Labels, wanted: Polynomial) -> float | None:
        """The number by which a value is to be multiplied to be the weights; None if there is none."""
        sizes = {one: n for one, n in zip(labels, x.aval.shape, strict=True) if one}
        places = {one: n for leaf, _ in (each for m in wanted for each in m) for one, n in self._sizes(leaf)}
        if any(sizes.get(one, n) != n for one, n in places.items()):
            return None
        found = self.reader.read(x, labels)
        if found.keys() != wanted.keys():
            return None
        numbers = {wanted[m] / found[m] for m in wanted}
        return numbers.pop() if len(numbers) == 1 else None

    @staticmethod
    def _sizes(leaf: tuple[Var, Labels]) -> Iterator[tuple[str, int]]:
        yield from zip(leaf[1], (n for n in leaf[0].aval.shape if n != 1), strict=True)

    def _operands(self, of_product: Labels) -> tuple[Labels, Labels]:
        """The labels of the matrix and of the other operand of the product."""
        dot, eqn = self.dot, self.product
        contract, batch = eqn.params["dimension_numbers"]
        own = 1 - dot.side
        shapes = [x.aval.shape for x in eqn.invars]
        names: list[dict[int, str]] = [{}, {}]
        for k, (a, b) in enumerate(zip(contract[0], contract[1], strict=True)):
            names[0][a] = names[1][b] = "" if shapes[0][a] == 1 else f"q{k}"
        start = len(batch[0])
        for k, (a, b) in enumerate(zip(batch[0], batch[1], strict=True)):
            names[0][a] = names[1][b] = of_product[k]
        for side in (0, 1):
            for d in range(len(shapes[side])):
                if d not in names[side]:
                    names[side][d] = of_product[start]
                    start += 1
        both = [tuple(names[side][d] for d in range(len(shapes[side]))) for side in (0, 1)]
        return both[own], both[dot.side]

    def emit(self, builder: Builder, image: Dot, of_image: Labels, of_other: Labels, number: float) -> Atom:
        """The sum without the product, and the image summed up with what the product is of."""
        x, y = self.level.eqns[image.place].outvars[0], self.product.invars[self.dot.side]
        numbers = {one: k for k, one in enumerate(dict.fromkeys((*of_image, *of_other)))}
        of_x, of_y = (tuple(numbers[one] for one in own if one) for own in (of_image, of_other))
        kept = tuple(numbers[one] for one in self.out if one)
        aval, precision = self.root.outvars[0].aval, self.product.params["precision"]

        def summed(x: Any, y: Any) -> Any:
            flat = [lax.reshape(z, [n for n in z.shape if n != 1]) for z in (x, y)]
            z = product(flat[0], flat[1], of_x, of_y, kept, precision, np.dtype(aval.dtype))
            made = product_labels(of_x, of_y, bits(kept))
            z = lax.reshape(lax.transpose(z, [made.index(one) for one in kept]), aval.shape)
            return z if number == 1.0 else lax.mul(z, lax.full_like(z, number))

        (result,) = builder.call(summed, x, y)
        rest = self._without(builder)
        return result if rest is None else builder.call(lax.add, rest, result)[0]

    def _without(self, builder: Builder) -> Atom | None:
        """The sum where the product is zero; None if nothing is left."""
        env: dict[Var, Atom | None] = {self.made: None}
        for place in (*sorted(self.cone), -1):
            eqn = self.root if place < 0 else self.level.eqns[place]
            zero = [is_var(x) and x in env and env[x] is None for x in eqn.invars]
            (out,) = eqn.outvars
            if all(zero) or (any(zero) and eqn.primitive.name not in ("add", "add_any", "sub")):
                env[out] = None
                continue
            given = [env.get(x, x) if is_var(x) else x for x in eqn.invars]
            if not any(zero):
                here = {x: y for x, y in zip(eqn.invars, given, strict=True) if is_var(x) and y is not None}
                new = copy_equation(eqn, here)
                builder.eqns.append(new)
                env[out] = new.outvars[0]
                continue
            (kept,) = (x for x, is_zero in zip(given, zero, strict=True) if not is_zero)
            assert kept is not None
            is_negative = eqn.primitive.name == "sub" and zero[0]
            env[out] = builder.call(one_term(out.aval.shape, is_negative), kept)[0]
        return env[self.root.outvars[0]]
