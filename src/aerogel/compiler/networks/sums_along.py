"""Sums of products that are summed along one dimension first, what does not vary along it beside them.

`sum(c[:, None] * x * y)` over both dimensions is `sum(c * sum(x * y, 1))`: one product less for each entry, and the sum
along one dimension is vector code, where XLA takes a sum of a whole formula entry by entry.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..apart import cost_of
from ..cost import Machine
from ..known.records import Facts
from ..level import Edit, Level
from ..program import Builder, is_var
from .contraction import summed
from .monomials import ENTRYWISE, VIEWS, Labels, Leaf, Monomial, Monomials, Polynomial, TooMany, multiplied

SUMS = frozenset(("dot_general", "reduce_sum"))
Groups = dict[Monomial, Polynomial]  # by what varies along the dimension: what is beside it


def labels_of(eqn: JaxprEqn) -> list[Labels]:
    """Labels of the operands of a sum: equal ones are summed over together, or kept."""
    shapes = [x.aval.shape for x in eqn.invars]
    if eqn.primitive.name == "reduce_sum":
        return [tuple("" if n == 1 else f"r{d}" for d, n in enumerate(shapes[0]))]
    contract, batch = eqn.params["dimension_numbers"]
    names = [[f"{side}{d}" for d in range(len(shape))] for side, shape in zip("xy", shapes, strict=True)]
    for a, b in zip((*contract[0], *batch[0]), (*contract[1], *batch[1]), strict=True):
        names[1][b] = names[0][a]
    return [
        tuple("" if n == 1 else name for n, name in zip(shape, own, strict=True))
        for shape, own in zip(shapes, names, strict=True)
    ]


def out_labels(eqn: JaxprEqn, of: Sequence[Labels]) -> Labels:
    """Labels of its result."""
    if eqn.primitive.name == "reduce_sum":
        return tuple(one for d, one in enumerate(of[0]) if d not in eqn.params["axes"])
    contract, batch = eqn.params["dimension_numbers"]
    out = [of[0][d] for d in batch[0]]
    for side in (0, 1):
        out += [one for d, one in enumerate(of[side]) if d not in contract[side] and d not in batch[side]]
    return tuple(out)


def whole_of(eqn: JaxprEqn, of: Sequence[Labels], reader: Monomials) -> Polynomial:
    """What is summed up.

    Raises:
        TooMany: it has too many terms.
    """
    whole: Polynomial = {frozenset(): 1.0}
    for x, labels in zip(eqn.invars, of, strict=True):
        whole = multiplied(whole, reader.read(x, labels))
    return whole


def summed_along_first(level: Level, facts: Facts, place: int, machine: Machine) -> Edit | None:
    """The edit by which a sum over several dimensions is one along one of them first, the cheapest, if that pays."""
    root = level.eqns[place]
    (out,), of = root.outvars, labels_of(root)
    kept = out_labels(root, of)
    every = frozenset(one for own in of for one in own if one)
    old, here = [level.eqns[k] for k in _dying(level, place)], frozenset([place])
    least = cost_of(level, old, [out], machine).seconds or 0.0
    best: Edit | None = None
    for along in sorted(every.difference(kept)):
        try:
            whole = whole_of(root, of, Monomials(level, facts, out.aval.dtype, along=along))
        except TooMany:
            continue
        # Along a label that a term has not, equal ones would be summed up.
        is_full = all(every.issubset(one for leaf, _ in monomial for one in leaf[1]) for monomial in whole)
        groups = grouped(whole, along) if is_full else None
        if not groups:
            continue
        builder = Builder(root)
        result = sum_along(builder, groups, along, kept, out.aval.shape)
        seconds = cost_of(level, [*_makers(old, builder.eqns), *builder.eqns], [result], machine).seconds or 0.0
        if result.aval == out.aval and seconds < least:
            least, best = seconds, Edit(place, here, builder.eqns, {out: result}, here)
    return best


def _dying(level: Level, place: int) -> list[int]:
    """The places of a sum and of the entrywise equations that nothing else reads, in order."""
    dying = {place}
    for k in range(place - 1, -1, -1):
        eqn = level.eqns[k]
        if eqn.primitive.name not in ENTRYWISE and eqn.primitive.name not in VIEWS:
            continue
        readers = level.readers(eqn.outvars[0])
        if readers and all(j in dying for j in readers):
            dying.add(k)
    return sorted(dying)


def _makers(eqns: Sequence[JaxprEqn], readers: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Those of some equations that others need."""
    read = {x for eqn in readers for x in eqn.invars if is_var(x)}
    needed = list[JaxprEqn]()
    for eqn in reversed(eqns):
        if not read.isdisjoint(eqn.outvars):
            needed.append(eqn)
            read.update(x for x in eqn.invars if is_var(x))
    return needed[::-1]


def grouped(polynomial: Polynomial, along: str) -> Groups | None:
    """The terms by their factors that vary along a dimension; None where one is no product, which is rounded anyway."""
    groups: Groups = {}
    for monomial, number in polynomial.items():
        if sum(power for _, power in monomial) < 2:
            return None
        inner = frozenset(each for each in monomial if along in each[0][1])
        if not inner:
            return None
        groups.setdefault(inner, {})[monomial - inner] = number
    return groups


def sum_along(builder: Builder, groups: Groups, along: str, out: Labels, shape: Sequence[int]) -> Atom:
    """The sum of all terms over every label but those of the result, along one of them first."""
    leaves = list(dict.fromkeys(leaf for inner, beside in groups.items() for leaf in _leaves(inner, beside)))
    names = [leaf[1] for leaf in leaves]

    def run(*arrays: Any) -> Any:
        known = {leaf: lax.reshape(x, [n for n in x.shape if n != 1]) for leaf, x in zip(leaves, arrays, strict=True)}
        sizes = {one: n for leaf, x in known.items() for one, n in zip(leaf[1], x.shape, strict=True)}
        parts: dict[Labels, list[Any]] = {}
        for inner, beside in groups.items():
            mine = {one for leaf in _leaves(inner, beside) for one in leaf[1]} - {along}
            space = (*(one for one in out if one in mine), *sorted(mine.difference(out), key=_first(names)))
            parts.setdefault(space, []).append(_term(known, sizes, inner, beside, along, space))
        results = []
        for space, terms in parts.items():
            total = summed(reduce(lax.add, terms), tuple(d for d, one in enumerate(space) if one not in out))
            kept = [one for one in space if one in out]
            wide = [sizes[one] for one in out if one]
            at = [[one for one in out if one].index(one) for one in kept]
            results.append(lax.broadcast_in_dim(total, wide, at))
        return lax.reshape(reduce(lax.add, results), tuple(shape))

    return builder.call(run, *(leaf[0] for leaf in leaves))[0]


def _leaves(inner: Monomial, beside: Polynomial) -> list[Leaf]:
    every = [*_ordered(inner), *(each for monomial in beside for each in _ordered(monomial))]
    return [leaf for leaf, _ in every]


def _ordered(monomial: Monomial) -> list[tuple[Leaf, int]]:
    """The factors of a product in an order that is the same in every run: by their labels, those of most first."""
    return sorted(monomial, key=lambda each: (-len(each[0][1]), each[0][1], each[1], str(each[0][0].aval)))


def _first(names: Sequence[Labels]) -> Any:
    return lambda one: next((k, own.index(one)) for k, own in enumerate(names) if one in own)


def _term(
    known: Mapping[Leaf, Any],
    sizes: Mapping[str, int],
    inner: Monomial,
    beside: Polynomial,
    along: str,
    space: Labels,
) -> Any:
    """One sum along the dimension, times what is beside it, with the dimensions of `space`."""

    def placed(x: Any, own: Labels, wanted: Labels) -> Any:
        order = sorted(range(len(own)), key=lambda d: wanted.index(own[d]))
        x = lax.transpose(x, order) if order != list(range(len(order))) else x
        at = [wanted.index(own[d]) for d in order]
        return lax.broadcast_in_dim(x, [sizes[one] for one in wanted], at) if len(at) < len(wanted) else x

    factors = _ordered(inner)
    wide = tuple(dict.fromkeys(one for leaf, _ in factors for one in leaf[1]))
    product = reduce(lax.mul, (placed(known[leaf], leaf[1], wide) for leaf, n in factors for _ in range(n)))
    own = tuple(one for one in wide if one != along)
    total = placed(summed(product, (wide.index(along),)), own, space)
    terms = []
    for monomial, number in beside.items():
        values = [placed(known[leaf], leaf[1], space) for leaf, n in _ordered(monomial) for _ in range(n)]
        values += [lax.full_like(total, number)] if number != 1.0 or not values else []
        terms.append(reduce(lax.mul, values))
    return lax.mul(total, reduce(lax.add, terms))


def one_term(shape: Sequence[int], is_negative: bool) -> Any:
    """What makes a term of a sum, in the sum's shape."""

    def term(x: Any) -> Any:
        x = x if x.shape == tuple(shape) else lax.broadcast_in_dim(x, tuple(shape), range(x.ndim))
        return lax.neg(x) if is_negative else x

    return term
