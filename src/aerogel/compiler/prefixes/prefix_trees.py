"""Trees of prefixes: what `jax.lax.associative_scan` leaves of itself in a program.

It joins neighbours, then the pairs, then the pairs of pairs: strided slices, the user's function, paddings that put the
odd entries between the even ones, at each of log2(n) levels. What joins is read off the first level. Whether the
program then is that tree is asked the way a repeated value is found: the tree is traced with it, and each of its
equations must stand in the program.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import jax
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, JaxprEqn, Var

from ..axes import Axis, Mapped, jaxpr_along
from ..level import Level
from ..program import depends_on, is_var
from ..record import record

SHORTEST = 8  # entries: with fewer, the slices of the levels are too short to tell an element from a sum
LARGEST_COMBINE = 256  # equations
MOST_ELEMENTS = 4
FIRST, SECOND = 0, 1


@record
class Combine:
    """What joins two neighbours, the first one on the left.

    Attributes:
        reads: for each input but the constants, which of two neighbours it is of, and which element.
        answer: the function at any number of pairs; it takes the reads, then the constants.
        parts: for each element, the reads (by position) that the joined one depends on.
        multiplies: whether it multiplies matrices.
    """

    reads: tuple[tuple[int, int], ...]
    answer: Mapped
    parts: tuple[frozenset[int], ...]
    multiplies: bool

    def __call__(self, pairs: int, first: Sequence[Any], second: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """The joined elements of so many pairs."""
        given = [(first, second)[side][element] for side, element in self.reads]
        return self.answer.block(0, pairs, *given, *constants)

    def needed_by(self, elements: Iterable[int], sides: Collection[int] = (FIRST, SECOND)) -> frozenset[int]:
        """The elements of which either neighbour is needed for these, and for what they need in turn."""
        found, todo = set[int](), list(elements)
        while todo:
            reads = (self.reads[k] for k in self.parts[todo.pop()])
            more = {element for side, element in reads if side in sides} - found
            found |= more
            todo += more
        return frozenset(found)


@record
class Tree:
    """What may be a tree: its leaves, and what joins them.

    Attributes:
        elements: arrays with `length` entries each, along `axes`.
        alike: the elements whose entries are all the same.
        joined: what the pairs of each element are joined to.
        constants: what the function takes whole.
        like: an equation of the tree.
        is_part: whether it is a part of a larger one, which was given before.
    """

    elements: tuple[Var, ...]
    alike: frozenset[int]
    joined: tuple[Var, ...]
    axes: tuple[int, ...]
    length: int
    constants: tuple[Var, ...]
    combine: Combine
    like: JaxprEqn
    is_part: bool = False

    def prefixes(self, elements: Sequence[Any], constants: Sequence[Any], squeezes: bool = False) -> list[Any]:
        """What the tree computes of arrays, in the operations that JAX writes.

        `squeezes`: whether a product of one pair of matrices is written without the dimension of the pairs, which
        `jnp.matmul` does.
        """

        def joined(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
            pairs = first[0].shape[self.axes[0]]
            if pairs == 1 and squeezes:
                return self._one_pair(first, second, constants)
            return self.combine(pairs, first, second, constants)

        def prefixes(x: Sequence[Any], n: int) -> Sequence[Any]:
            if n < 2:
                return x
            odd = prefixes(joined(self._cut(x, 0, n - 1, 2), self._cut(x, 1, n, 2)), n // 2)
            last = n // 2 - 1 if n % 2 == 0 else n // 2
            even = joined(self._cut(odd, 0, last) if n % 2 == 0 else odd, self._cut(x, 2, n, 2))
            even = map(self._behind, self._cut(x, 0, 1), even, self.axes)
            return [_interleaved(*one) for one in zip(even, odd, self.axes, strict=True)]

        return list(prefixes(elements, self.length))

    def _one_pair(self, first: Sequence[Any], second: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        n, flat = len(first), [*first, *second, *constants]

        def one(*x: Any) -> list[Any]:
            return self.combine(1, x[:n], x[n : 2 * n], x[2 * n :])

        step = _jax.trace_small(one, [jax.typeof(x) for x in flat])
        return _jax.evaluate_around(step, flat, {"dot_general": _without_unit_batches})

    def _cut(self, x: Sequence[Any], start: int, stop: int, stride: int = 1) -> list[Any]:
        return [lax.slice_in_dim(v, start, stop, stride, axis) for v, axis in zip(x, self.axes, strict=True)]

    @staticmethod
    def _behind(first: Any, others: Any, axis: int) -> Any:
        return lax.concatenate([first, others], axis)


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    def padded(x: Any, before: int, after: int) -> Any:
        return lax.pad(
            x, np.zeros((), x.dtype), [(before, after, 1) if k == axis else (0, 0, 0) for k in range(x.ndim)]
        )

    more = even.shape[axis] - odd.shape[axis]
    together = lax.bitwise_or if even.dtype == np.bool_ else lax.add
    return together(padded(even, 0, 1 - more), padded(odd, 1, more))


def _without_unit_batches(eqn: JaxprEqn, a: Any, b: Any) -> list[Any]:
    """A product of one pair of matrices, as `jnp.matmul` writes it."""
    (contracted, batch), p = eqn.params["dimension_numbers"], eqn.params
    units = [k for k, i in enumerate(batch[0]) if a.shape[i] == 1]
    gone = [{side[k] for k in units} for side in batch]
    shorter = [lax.squeeze(x, sorted(dims)) if dims else x for x, dims in zip((a, b), gone, strict=True)]

    def left(dims: Sequence[int], side: int) -> list[int]:
        return [d - sum(g < d for g in gone[side]) for d in dims if d not in gone[side]]

    numbers: Any = tuple(tuple(left(dims, side) for side, dims in enumerate(kind)) for kind in (contracted, batch))
    product = lax.dot_general(shorter[0], shorter[1], numbers, p["precision"], p["preferred_element_type"])
    return [lax.expand_dims(product, units) if units else product]


def half(eqn: JaxprEqn) -> tuple[Var, int, int] | None:
    """Of a slice that takes the first or the second one of all pairs: of which array, along which axis, and which."""
    if eqn.primitive.name != "slice" or eqn.params["strides"] is None:
        return None
    x, (start, limit, stride) = eqn.invars[0], (eqn.params[f"{k}s"] for k in ("start_indice", "limit_indice", "stride"))
    strided = [k for k, step in enumerate(stride) if step != 1]
    if len(strided) != 1 or stride[strided[0]] != 2 or not is_var(x):
        return None
    (k,) = strided
    whole = all(a == 0 and b == n for i, (a, b, n) in enumerate(zip(start, limit, x.aval.shape, strict=True)) if i != k)
    n = x.aval.shape[k]
    side = {(0, n - 1): FIRST, (1, n): SECOND}.get((start[k], limit[k]))
    return (x, k, side) if whole and side is not None else None


class Trees:
    """What may be trees at a level, those with the most entries first."""

    def __init__(self, level: Level) -> None:
        self.level = level
        # By array and axis: the slices of its first and of its second ones.
        self.halves: dict[tuple[Var, int], dict[int, Var]] = {}
        self.like: dict[Var, JaxprEqn] = {}
        for eqn in level.eqns:
            found = half(eqn)
            if found is not None:
                x, axis, side = found
                self.halves.setdefault((x, axis), {})[side] = eqn.outvars[0]
                self.like.setdefault(x, eqn)
        self.halves = {key: sides for key, sides in self.halves.items() if SECOND in sides}

    def lengths(self) -> list[int]:
        """How many entries trees may have, the largest number first."""
        found = {x.aval.shape[axis] for x, axis in self.halves}
        return sorted((n for n in found if n >= SHORTEST and n // 2 in found), reverse=True)

    def of_length(self, length: int) -> Iterator[Tree]:
        """What may be trees with so many leaves: each in all orders of its elements that their types allow."""
        slices = {v: (key, side) for key, sides in self.halves.items() if _length(key) == length
                  for side, v in sides.items()}  # fmt: skip
        varying = depends_on(self.level.jaxpr, slices)
        pairs = [
            key for key in self.halves if _length(key) == length // 2 and key[0] in varying and key[0] not in slices
        ]
        joined = {key: cone for key in pairs if (cone := self._cone(key[0], slices, varying)) is not None}
        for elements, made in _together(joined, slices):
            if len(made) <= MOST_ELEMENTS:
                for order in permutations(made, len(elements)):
                    if all(_is_half(x, y) for x, y in zip(elements, order, strict=True)):
                        tree = self._tree(elements, order, joined, slices)
                        if tree is not None:
                            yield tree
                            yield from self._parts(tree, elements, order, joined, slices)

    def _parts(
        self,
        tree: Tree,
        elements: Sequence["Key"],
        order: Sequence["Key"],
        joined: dict["Key", "_Cone"],
        slices: dict[Var, Any],
    ) -> Iterator[Tree]:
        """Trees of some of the elements only, where these need no other: two that share one are one tree, too."""
        for part in dict.fromkeys(tree.combine.needed_by([k]) | {k} for k in range(len(elements))):
            if len(part) < len(elements):
                kept = sorted(part)
                found = self._tree([elements[k] for k in kept], [order[k] for k in kept], joined, slices)
                if found is not None:
                    yield replace(found, is_part=True)

    def _cone(self, var: Var, slices: dict[Var, Any], varying: set[Var]) -> "_Cone | None":
        """What makes `var` of slices; None if that is more than a function of two neighbours would be."""
        cone, todo, seen = _Cone(), [var], {var}
        while todo:
            v = todo.pop()
            if v in slices:
                cone.reads.add(v)
                continue
            if v not in varying:
                cone.constants.add(v)
                continue
            place = self.level.made_by[v]
            eqn = self.level.eqns[place]
            cone.places.add(place)
            if eqn.effects or len(cone.places) > LARGEST_COMBINE:
                return None
            more = [x for x in eqn.invars if is_var(x) and x not in seen]
            seen.update(more)
            todo += more
        return cone

    def _tree(self, elements: Sequence["Key"], order: Sequence["Key"], joined: dict["Key", "_Cone"],
              slices: dict[Var, tuple["Key", int]]) -> Tree | None:  # fmt: skip
        cones = [joined[key] for key in order]
        level, like = self.level, self.like[elements[0][0]]
        reads = _in_order(level, set().union(*(cone.reads for cone in cones)))
        constants = _in_order(level, set().union(*(cone.constants for cone in cones)))
        eqns = [level.eqns[k] for k in sorted(set().union(*(cone.places for cone in cones)))]
        body = _jax.new_jaxpr(level.jaxpr, [*reads, *constants], [x for x, _ in order], eqns)
        ins = {k: Axis(slices[v][0][1]) for k, v in enumerate(reads)}
        whole = range(len(reads), len(body.invars))
        answer = jaxpr_along(ClosedJaxpr(body, ()), ins, _length(elements[0]) // 2, whole=whole)
        axes = tuple(axis for _, axis in elements)
        if not isinstance(answer, Mapped) or answer.uses_start or answer.outs != tuple(map(Axis, axes)):
            return None
        if any(answer.ins[k] is not None for k in whole):
            return None
        named = tuple((slices[v][1], elements.index(slices[v][0])) for v in reads)
        parts = tuple(frozenset(reads.index(v) for v in cone.reads) for cone in cones)
        leaves = tuple(x for x, _ in elements)
        made = tuple(x for x, _ in order)
        combine = Combine(named, answer, parts, any(eqn.primitive.name == "dot_general" for eqn in eqns))
        alike = frozenset(k for k, one in enumerate(elements) if self._is_alike(*one))
        return Tree(leaves, alike, made, axes, _length(elements[0]), tuple(constants), combine, like)

    def _is_alike(self, x: Var, axis: int) -> bool:
        maker = self.level.maker(x)
        if maker is None or maker.primitive.name != "broadcast_in_dim":
            return False
        return axis not in maker.params["broadcast_dimensions"]


Key = tuple[Var, int]  # an array, and the axis of its entries


class _Cone:
    """Equations, by place, between slices and what they make; the slices, and what does not depend on any."""

    def __init__(self) -> None:
        self.places, self.reads, self.constants = set[int](), set[Var](), set[Var]()


def _length(key: Key) -> int:
    x, axis = key
    return x.aval.shape[axis]


def _is_half(x: Key, y: Key) -> bool:
    """Whether `y` may be what joins the pairs of `x`."""
    (a, axis), (b, other) = x, y
    shape = (*a.aval.shape[:axis], a.aval.shape[axis] // 2, *a.aval.shape[axis + 1 :])
    return axis == other and b.aval.shape == shape and b.aval.dtype == a.aval.dtype


def _in_order(level: Level, found: Iterable[Var]) -> list[Var]:
    """Variables in the order in which they are made; those from outside first."""
    outside = {v: k for k, v in enumerate((*level.jaxpr.constvars, *level.jaxpr.invars))}
    return sorted(found, key=lambda v: (1, level.made_by[v]) if v in level.made_by else (0, outside[v]))


def _together(joined: dict[Key, _Cone], slices: dict[Var, tuple[Key, int]]) -> list[tuple[list[Key], list[Key]]]:
    """The elements that are joined together, and what they are joined to."""
    groups: list[tuple[dict[Key, None], list[Key]]] = []
    for key, cone in joined.items():
        elements = dict.fromkeys(element for element, sides in _members(slices).items() if sides & cone.reads)
        apart, made = [], [key]
        for group in groups:
            if elements.keys() & group[0].keys():
                elements, made = {**group[0], **elements}, [*group[1], *made]
            else:
                apart.append(group)
        groups = [*apart, (elements, made)]
    return [(list(elements), made) for elements, made in groups]


def _members(slices: dict[Var, tuple[Key, int]]) -> dict[Key, set[Var]]:
    found: dict[Key, set[Var]] = {}
    for v, (key, _) in slices.items():
        found.setdefault(key, set()).add(v)
    return found
