"""Entries of a product that indices pick: rows and columns are picked from its factors, and they alone are multiplied.

`(A @ B)[i]` is `A[i] @ B`, and `(A @ B)[i, j]` is `sum(A[i] * B.T[j], -1)`: a table of embeddings in factors, the
scores of the pairs that were seen. An index out of bounds picks from the factor what it picked from the product: the
nearest row, or nan.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..apart import Priced, cost_of
from ..cost import Cost, Machine
from ..known.records import Counted, Facts, the
from ..level import Edit, Level
from ..program import Builder, is_var
from .contraction import gathered, product
from .label_orders import bits, product_labels
from .network import Label, Labels
from .network_reader import FLOATS, is_plain

MARGIN = 0.8
LEAST_SECONDS = 1e-6
MORE_BYTES = 1 << 16


def picked_products(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The gathers of entries of products that nobody else reads which are cheaper from the factors."""
    gathers = (place for place, eqn in enumerate(level.eqns) if eqn.primitive.name == "gather")
    return [found for place in gathers if (found := _judged(level, facts, machine, place)) is not None]


def _judged(level: Level, facts: Facts, machine: Machine, place: int) -> Priced | None:
    eqn = level.eqns[place]
    (x, _), out = eqn.invars, eqn.outvars[0]
    gone, order = {place}, tuple(range(len(x.aval.shape)))
    made = _alone(level, x)
    while made is not None and made.primitive.name == "transpose":
        order = tuple(made.params["permutation"][d] for d in order)
        gone.add(level.made_by[made.outvars[0]])
        made = _alone(level, made.invars[0])
    numbers = eqn.params["dimension_numbers"]
    if made is None or made.primitive.name != "dot_general" or not is_plain(made) or not _picks(eqn):
        return None
    if is_diagonal(facts, eqn.invars[1], numbers.start_index_map):
        return None
    gone.add(level.made_by[made.outvars[0]])
    builder = Builder(eqn)
    whole = counted(level, facts, eqn, numbers.start_index_map, numbers.start_indices_batching_dims)
    whole = {d: at for d, at in whole.items() if d in numbers.collapsed_slice_dims}
    result = _Picking(eqn, made, order, whole).emit(builder)
    before = cost_of(level, [level.eqns[k] for k in sorted(gone)], [out], machine)
    after = cost_of(level, builder.eqns, [result], machine)
    if not pays(before, after):
        return None
    here = frozenset(gone)
    edit = Edit(place, here, builder.eqns, {out: result}, here)
    return Priced((edit,), before.seconds or 0.0, after.seconds or 0.0)


def pays(before: Cost, after: Cost) -> bool:
    """Whether a form is predicted to take so much less time, and no more memory, that it is taken."""
    now, then = before.seconds or 0.0, after.seconds or 0.0
    is_small = after.peak_bytes <= before.peak_bytes + MORE_BYTES
    return then <= MARGIN * now and now - then >= LEAST_SECONDS and is_small


def is_diagonal(facts: Facts, indices: Atom, dims: Sequence[int]) -> bool:
    """Whether indices of the dimensions `dims` are those of a diagonal: networks read it as one."""
    known = the(Counted, facts.of(indices))
    return len(dims) > 1 and known is not None and (known.scale, known.offset) == (1, 0)


def _alone(level: Level, x: Atom) -> JaxprEqn | None:
    return level.maker(x) if is_var(x) and len(level.readers(x)) == 1 else None


def _picks(eqn: JaxprEqn) -> bool:
    """Whether a gather picks single places of some dimensions and all of the others, and fills with nan if it fills."""
    (x, index), p = eqn.invars, eqn.params
    numbers, fill = p["dimension_numbers"], p["fill_value"]
    single = {*map(int, numbers.start_index_map), *map(int, numbers.operand_batching_dims)}
    sizes = zip(p["slice_sizes"], x.aval.shape, strict=True)
    filled = p["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    return (
        str(x.aval.dtype) in FLOATS
        and bool(numbers.start_index_map)
        and 0 not in (*x.aval.shape, *index.aval.shape)
        and all(n == (1 if d in single else m) for d, (n, m) in enumerate(sizes))
        and (not filled or fill is None or bool(np.isnan(fill)))
    )


def counted(level: Level, facts: Facts, eqn: JaxprEqn, dims: Sequence[int], batched: Sequence[int]) -> dict[int, int]:
    """The `dims` of which indices count all places, along a dimension of their own, and that: `P[arange(n), j]`.

    `dims` are those that the indices' components are of, `batched` the dimensions of the indices that are taken.
    """
    x, index = eqn.invars[:2]
    joined = level.maker(index)
    if joined is None or joined.primitive.name != "concatenate":
        return {}
    last = len(index.aval.shape) - 1
    if joined.params["dimension"] != last or any(part.aval.shape[last] != 1 for part in joined.invars):
        return {}
    found: dict[int, int] = {}
    for d, part in zip(map(int, dims), joined.invars, strict=True):
        known = the(Counted, facts.of(part))
        if known is None or (known.scale, known.offset) != (1, 0) or known.dim == last:
            continue
        is_free = known.dim not in found.values() and known.dim not in batched
        if is_free and x.aval.shape[d] == index.aval.shape[known.dim]:
            found[d] = known.dim
    return found


class _Picking:
    """The labels of a gather from a product: of its indices, of the product's dimensions, and of those summed over."""

    def __init__(self, eqn: JaxprEqn, made: JaxprEqn, order: Sequence[int], whole: Mapping[int, int]):
        """Of a gather, and the product from which it is.

        Args:
            order: for each dimension of what is gathered from, the one of the product that it is.
            whole: the dimensions of which no place is picked but all, along a dimension of the indices.
        """
        self.eqn, self.made = eqn, made
        numbers = eqn.params["dimension_numbers"]
        fresh = count()
        self.at: Labels = tuple(next(fresh) for _ in eqn.invars[1].aval.shape[:-1])
        ranks = [len(v.aval.shape) for v in made.invars]
        contract, batch = made.params["dimension_numbers"]
        self.of: list[list[Label]] = [[-1] * n for n in ranks]  # labels of the factors' dimensions
        outs: list[list[tuple[int, int]]] = []  # for each dimension of the product, those of the factors that it is
        for a, b in zip(contract[0], contract[1], strict=True):
            self.of[0][a] = self.of[1][b] = next(fresh)
        outs += [[(0, a), (1, b)] for a, b in zip(batch[0], batch[1], strict=True)]
        for side in (0, 1):
            outs += [[(side, d)] for d in range(ranks[side]) if d not in contract[side] and d not in batch[side]]
        turned = [outs[d] for d in order]
        batched = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
        batched |= whole
        labels = [self.at[batched[d]] if d in batched else next(fresh) for d in range(len(turned))]
        for label, places in zip(labels, turned, strict=True):
            for side, d in places:
                self.of[side][d] = label
        self.picked = [None if d in whole else labels[d] for d in map(int, numbers.start_index_map)]
        hidden = {*map(int, numbers.collapsed_slice_dims), *map(int, numbers.operand_batching_dims)}
        offsets = {int(d): k for k, d in enumerate(numbers.offset_dims)}
        shown = [d for d in range(len(turned)) if d not in hidden]
        rest = iter(self.at)
        # The dimensions of the result; one of size 1 stands for a place that is picked and not collapsed.
        rank = len(eqn.outvars[0].aval.shape)
        self.out = [labels[shown[offsets[d]]] if d in offsets else next(rest) for d in range(rank)]

    def emit(self, builder: Builder) -> Atom:
        """Adds the equations; the result."""
        index, aval = self.eqn.invars[1], self.eqn.outvars[0].aval
        params, factors = self.made.params, []
        for x, own in zip(self.made.invars, self.of, strict=True):
            labels = list(own)
            for component, label in enumerate(self.picked):
                if label is not None and label in labels:
                    how = self.eqn.params["mode"], self.eqn.params["fill_value"]
                    x, labels = picked(builder, x, labels, self.at, index, component, label, *how)
            factors.append((x, tuple(labels)))
        (x, of_x), (y, of_y) = factors
        flat = tuple(one for one in self.out if one not in self.picked)

        def multiplied(x: Any, y: Any) -> Any:
            z = product(x, y, of_x, of_y, flat, params["precision"], np.dtype(aval.dtype))
            return lax.reshape(in_order(z, of_x, of_y, flat), aval.shape)

        return builder.call(multiplied, x, y)[0]


def picked(
    builder: Builder,
    x: Atom,
    labels: Sequence[Label],
    at: Labels,
    index: Atom,
    component: int,
    label: Label,
    mode: lax.GatherScatterMode,
    fill: Any,
) -> tuple[Atom, list[Label]]:
    """A factor at the places along `label` that one component of the indices says, and its labels then.

    Those are the indices' own, `at`, and what is left of the factor's.
    """
    kept = (*at, *(one for one in labels if one != label and one not in at))

    def read(x: Any, i: Any) -> Any:
        i = lax.index_in_dim(i, component, axis=-1, keepdims=False)
        return gathered(i, x, at, i.shape, tuple(labels), label, kept, mode, fill)

    return builder.call(read, x, index)[0], list(kept)


def in_order(z: Any, of_x: Labels, of_y: Labels, wanted: Labels) -> Any:
    """A product of two values with its dimensions as they are wanted."""
    made = product_labels(of_x, of_y, bits(wanted))
    return lax.transpose(z, [made.index(one) for one in wanted])
