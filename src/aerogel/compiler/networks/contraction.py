"""The equations that contract a network in the order of its plan."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Var

from ..cost import Machine
from ..program import Builder, is_var
from .contraction_plan import Node, Task, plan
from .label_orders import bits, is_swapped, product_labels
from .network import Factor, Label, Labels, Network


class Contraction:
    """The cheapest way to contract a network on a machine; `ranks` orders the values of the program.

    On a backend that has `one_precision` all products are made in it, and what was no product asks for no other.
    """

    def __init__(self, network: Network, dtype: Any, machine: Machine, ranks: Mapping[Var, int], one_precision: bool):
        self.network, self.dtype, self.machine, self.one_precision = network, dtype, machine, one_precision
        self.ranks = [ranks.get(f.atom, -1) if is_var(f.atom) else -1 for f in network.factors]

    @cached_property
    def tree(self) -> Node | None:
        """The last node; None for a network without factors."""
        factors = self.network.factors
        task = Task(
            tuple(self.network.sizes),
            _bits(self.network.out),
            tuple(tuple(one for dim in f.dims for one in dim) for f in factors),
            tuple(f.picking.label[0] if f.picking else -1 for f in factors),
            sum(1 << k for k, f in enumerate(factors) if f.is_mask),
            tuple(dict.fromkeys(one for dim in self.network.out for one in dim)),
        )
        highest = self.precision == lax.Precision.HIGHEST and np.dtype(self.dtype) == np.float32
        machine = self.machine.at_highest_precision() if highest else self.machine
        return plan(task, self.dtype, machine)

    def emit(self, builder: Builder, shape: tuple[int, ...]) -> Atom:
        """Adds the equations to a builder; the result, of that shape."""
        dtype = self.dtype
        flat = tuple(one for dim in self.network.out for one in dim)
        sizes = tuple(self.network.sizes[one] for one in flat)
        factor = float(self.network.coefficient)
        if self.tree is None:
            (atom,) = builder.call(lambda: spread(lax.full((), 1, dtype), (), flat, sizes, factor, shape))
            return atom
        atom, labels = self._emit(self.tree, builder)
        if (flat, sizes, factor) != (labels, shape, 1.0):
            (atom,) = builder.call(lambda x: spread(x, labels, flat, sizes, factor, shape), atom)
        return atom

    def _emit(self, node: Node, builder: Builder) -> tuple[Atom, Labels]:
        if node.left is None or node.right is None:
            return self._emit_leaf(node, builder)
        y, of_y = self._emit(node.right, builder)
        if node.how in ("gather", "scatter"):
            return self._emit_picked(node, builder, y, of_y)
        x, of_x = self._emit(node.left, builder)
        if self._is_second(node, of_x, of_y):
            x, of_x, y, of_y = y, of_y, x, of_x
        kept = _labels(node.labels)
        precision, dtype = self.precision, np.dtype(self.dtype)
        out = product_labels(of_x, of_y, node.labels)
        (atom,) = builder.call(lambda x, y: product(x, y, of_x, of_y, kept, precision, dtype), x, y)
        return atom, out

    def _is_second(self, node: Node, of_x: Labels, of_y: Labels) -> bool:
        """Whether the left one of two operands comes second in their product.

        The last product is made as the result is wanted, and an outer product as who reads it has its labels; others in
        the order of the program, so that what two networks both make is one value, whichever end they come from.
        """
        if node is self.tree:
            return self._place(of_y, of_x) < self._place(of_x, of_y)
        if node.labels == bits((*of_x, *of_y)):
            first, second = ([one for one in own if one not in other] for own, other in ((of_x, of_y), (of_y, of_x)))
            for labels in self._orders:
                if first and second and first[0] in labels and second[0] in labels:
                    return labels.index(second[0]) < labels.index(first[0])
        left, right = (
            [r for k, r in enumerate(self.ranks) if part and part.mask >> k & 1] for part in (node.left, node.right)
        )
        return min(right) < min(left)

    @property
    def _orders(self) -> list[Labels]:
        """In which the result and the factors have their labels."""
        return [
            tuple(one for dim in dims for one in dim)
            for dims in (self.network.out, *(f.dims for f in self.network.factors))
        ]

    def _place(self, labels: Labels, others: Labels) -> int:
        """Where in the result the first label comes that only one operand has."""
        flat = [one for dim in self.network.out for one in dim]
        return min((flat.index(one) for one in labels if one in flat and one not in others), default=len(flat))

    def _emit_leaf(self, node: Node, builder: Builder) -> tuple[Atom, Labels]:
        factor = self.network.factors[node.mask.bit_length() - 1]
        flat = tuple(one for dim in factor.dims for one in dim)
        sizes = tuple(self.network.sizes[one] for one in flat)
        kept = tuple(one for one in dict.fromkeys(flat) if node.labels >> one & 1)
        window = factor.window
        aval, dtype = factor.atom.aval, np.dtype(self.dtype)
        if (flat, sizes, window, dtype) == (kept, tuple(aval.shape), None, aval.dtype):
            return factor.atom, flat

        def read(x: Any) -> Any:
            return leaf(lax.convert_element_type(x, dtype), flat, sizes, kept, window)  # a mask is of another type

        (atom,) = builder.call(read, factor.atom)
        return atom, kept

    def _emit_picked(self, node: Node, builder: Builder, y: Atom, of_y: Labels) -> tuple[Atom, Labels]:
        assert node.left is not None
        factor: Factor = self.network.factors[node.left.mask.bit_length() - 1]
        picking = factor.picking
        assert picking is not None
        at = tuple(one for dim in picking.at for one in dim)
        sizes = tuple(self.network.sizes[one] for one in at)
        label = picking.label[0]
        if node.how == "gather":
            out = (*at, *(one for one in of_y if one != label and one not in at))
            kept = tuple(one for one in out if node.labels >> one & 1)
            (atom,) = builder.call(lambda i, y: gathered(i, y, at, sizes, of_y, label, kept), picking.index, y)
            return atom, kept
        count = self.network.sizes[label]
        rest = tuple(one for one in of_y if one not in at)
        (atom,) = builder.call(lambda i, y: scattered(i, y, at, sizes, of_y, count), picking.index, y)
        return atom, (label, *rest)

    @property
    def precision(self) -> Any:
        """That of the products: what they had, or what a product entry by entry has."""
        given = set(self.network.precisions)
        if len(given) > 1 or not (self.one_precision or (given and not self.network.joins)):
            return lax.Precision.HIGHEST
        return given.pop() if given else None


def _bits(dims: Sequence[Labels]) -> int:
    """Labels as the bits of a number."""
    return bits(one for dim in dims for one in dim)


def _labels(bits: int) -> Labels:
    """The other way."""
    return tuple(one for one in range(bits.bit_length()) if bits >> one & 1)


def leaf(x: Any, flat: Labels, sizes: Sequence[int], kept: Labels, window: tuple[int, int, int] | None) -> Any:
    """A factor with one dimension per label: reshaped, read along its diagonals, summed over what nobody needs."""
    if window is not None:
        x = lax.slice_in_dim(x, window[1], window[2], axis=window[0])
    x = lax.reshape(x, tuple(sizes))
    labels = list(flat)
    while len(set(labels)) != len(labels):
        one = next(one for one in labels if labels.count(one) > 1)
        a = labels.index(one)
        b = labels.index(one, a + 1)
        x = diagonal(x, a, b)
        labels = [one, *(other for d, other in enumerate(labels) if d not in (a, b))]
    axes = tuple(d for d, one in enumerate(labels) if one not in kept)
    x = summed(x, axes)
    labels = [one for one in labels if one in kept]
    return _ordered(x, labels, kept)


def summed(x: Any, axes: tuple[int, ...]) -> Any:
    """A sum, of 16-bit numbers in 32 bits, as a product takes it."""
    if not axes:
        return x
    wide = lax.convert_element_type(x, np.float32) if x.dtype.itemsize == 2 else x
    return lax.convert_element_type(lax.reduce_sum(wide, axes), x.dtype)


def _ordered(x: Any, labels: Sequence[Label], wanted: Sequence[Label]) -> Any:
    order = [list(labels).index(one) for one in wanted]
    return x if order == list(range(len(order))) else lax.transpose(x, order)


def diagonal(x: Any, a: int, b: int) -> Any:
    """The entries at equal places of two dimensions of one size, which become the first one.

    A batch dimension of the gather is the first: so `x` may be made row by row (`axes/indexing.py`).
    """
    n, shape = x.shape[a], x.shape
    places = lax.broadcasted_iota(np.dtype(np.int32), (n, 1), 0)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, x.ndim - 1)),
        collapsed_slice_dims=(b,),
        start_index_map=(b,),
        operand_batching_dims=(a,),
        start_indices_batching_dims=(0,),
    )
    sizes = tuple(1 if d in (a, b) else m for d, m in enumerate(shape))
    return lax.gather(x, places, numbers, sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def spread(x: Any, labels: Labels, flat: Labels, sizes: Sequence[int], factor: float, shape: Sequence[int]) -> Any:
    """The result: its labels in order, repeated along those that it lacks, on the diagonal of those that come twice."""
    kept = [one for one in dict.fromkeys(flat) if one in labels]
    x = _ordered(x, labels, kept)
    if factor != 1.0:
        x = lax.mul(x, lax.full_like(x, factor))
    first = [flat.index(one) for one in kept]
    if len(first) != len(flat):
        x = lax.broadcast_in_dim(x, tuple(sizes), first)
        for d, one in enumerate(flat):
            if flat.index(one) != d:
                places = [lax.broadcasted_iota(np.dtype(np.int32), tuple(sizes), k) for k in (flat.index(one), d)]
                x = lax.select(lax.eq(*places), x, lax.full_like(x, 0))
    return lax.reshape(x, tuple(shape)) if tuple(x.shape) != tuple(shape) else x


def product(x: Any, y: Any, of_x: Labels, of_y: Labels, kept: Labels, precision: Any, dtype: Any) -> Any:
    """Two values multiplied where their labels meet, summed over those that are not kept."""
    shared = [one for one in of_x if one in of_y]
    batch = [one for one in shared if one in kept]
    contracted = [one for one in shared if one not in kept]
    out = product_labels(of_x, of_y, bits(kept))
    if contracted and len(out) > len(batch):
        if is_swapped(of_x, of_y, bits(contracted), dict(zip((*of_x, *of_y), (*x.shape, *y.shape), strict=True))):
            (x, of_x), (y, of_y) = (y, of_y), (x, of_x)
        dims = [[[own.index(one) for one in some] for own in (of_x, of_y)] for some in (contracted, batch)]
        return lax.dot_general(x, y, dims, precision=precision, preferred_element_type=dtype)  # type: ignore[arg-type]
    # Nothing but a batch is kept, or nothing is summed: XLA fuses that with what reads it.
    every = (*out, *contracted)
    sizes = dict(zip((*of_x, *of_y), (*x.shape, *y.shape), strict=True))
    wide = []
    for z, own in ((x, of_x), (y, of_y)):
        order = [one for one in every if one in own]
        z = _ordered(z, own, order)
        shape = tuple(sizes[one] for one in every)
        wide.append(z if len(own) == len(every) else lax.broadcast_in_dim(z, shape, [every.index(o) for o in order]))
    z = lax.mul(*wide)
    axes = tuple(range(len(out), len(every)))
    return summed(z, axes)


def gathered(
    index: Any,
    y: Any,
    at: Labels,
    sizes: Sequence[int],
    of_y: Labels,
    label: Label,
    kept: Labels,
    mode: lax.GatherScatterMode = lax.GatherScatterMode.FILL_OR_DROP,
    fill: Any = 0,
) -> Any:
    """The entries of `y` that `index` picks along `label`; where it is out of bounds, zeros unless said otherwise."""
    batch = [one for one in of_y if one in at]  # operand's batch dimensions must be in order
    dim = of_y.index(label)
    rest = [one for one in of_y if one != label and one not in at]
    whole = {of_y.index(one) for one in rest}
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(len(at), len(at) + len(rest))),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        operand_batching_dims=tuple(of_y.index(one) for one in batch),
        start_indices_batching_dims=tuple(at.index(one) for one in batch),
    )
    slices = tuple(n if d in whole else 1 for d, n in enumerate(y.shape))
    index = lax.reshape(index, (*sizes, 1))
    z = lax.gather(y, index, numbers, slices, mode=mode, fill_value=fill)
    out = (*at, *rest)
    axes = tuple(d for d, one in enumerate(out) if one not in kept)
    return summed(z, axes)


def scattered(index: Any, y: Any, at: Labels, sizes: Sequence[int], of_y: Labels, count: int) -> Any:
    """Slices of `y` added up at the places that `index` says, those out of bounds nowhere."""
    rest = [one for one in of_y if one not in at]
    y = _ordered(y, of_y, (*at, *rest))
    shape = y.shape[len(at) :]
    n = math.prod(sizes)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, 1 + len(rest))), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    zeros = lax.full((count, *shape), 0, y.dtype)
    updates, index = lax.reshape(y, (n, *shape)), lax.reshape(index, (n, 1))
    return lax.scatter_add(zeros, index, updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)
