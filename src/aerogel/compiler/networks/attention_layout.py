"""An attention as `jax.nn.dot_product_attention` takes it: [batch, queries, heads, depth]."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from ..record import record
from .attention import Attention, NotAttention
from .labelled import Operand
from .network import Labels, Network

MOST_DEPTH = 128
IMPLEMENTATION = "cudnn"


@record
class Layout:
    """Which labels make up each dimension.

    Attributes:
        batch, queries, heads, shared, keys, depth, values: labels; `shared` are heads of queries that share keys.
    """

    batch: Labels
    queries: Labels
    heads: Labels
    shared: Labels
    keys: Labels
    depth: Labels
    values: Labels


def layout_of(found: Attention) -> Layout:
    """The layout of an attention.

    Raises:
        NotAttention: its dimensions are not those of one.
    """
    q, k, v = (x.labels for x in (found.q, found.k, found.v))
    out = [one for dim in found.out for one in dim]
    rows = [one for one in q if one in out and one not in (*k, *v)]
    values = [one for one in v if one in out and one not in (*q, *k)]
    both = [one for one in out if one not in (*rows, *values)]
    depth = tuple(one for one in q if one in found.depth)
    fits = (
        {*found.keys} <= {*k} & {*v}
        and {*found.keys}.isdisjoint(q)
        and {*depth} == {*found.depth} <= {*k}
        and {*found.depth}.isdisjoint(v)
        and {*q, *k, *v} == {*out, *found.keys, *depth}
    )
    if not fits:
        raise NotAttention("its products are not those of queries, keys and values")
    if not rows:
        raise NotAttention("there is one query")
    queries = _queries(found, rows)
    first = min(k for k, one in enumerate(q) if one in queries)
    return Layout(
        tuple(one for one in both if one not in q[first:]),
        queries,
        tuple(one for one in q[first:] if one in both),
        tuple(one for one in rows if one not in queries),
        tuple(one for one in k if one in found.keys),
        depth,
        tuple(values),
    )


def _queries(found: Attention, rows: Sequence[int]) -> Labels:
    if found.causal is None:
        return (max(rows, key=lambda one: found.network.sizes[one]),)
    queries, keys = found.causal
    sizes = found.network.sizes
    if len(queries) != 1 or len(keys) != 1 or queries[0] not in rows or keys != found.keys:
        raise NotAttention("its mask is of other dimensions than queries and keys")
    if sizes[queries[0]] != sizes[keys[0]]:
        raise NotAttention("its mask is causal for as many queries as keys only")
    return queries


@record
class Form:
    """A function of the operands of an attention that has its result.

    Attributes:
        sizes: of each label.
        layout: which labels make up each dimension.
        out: the labels of the result.
        operands: the labels of the dimensions of queries, keys, values and, if there is one, bias.
        inputs: which argument each of these is.
        scale: what scores are multiplied by.
        causal: whether no key that comes later is seen.
        dtype: of the result.
        implementation: whose attention it is.
    """

    sizes: tuple[int, ...]
    layout: Layout
    out: tuple[Labels, ...]
    operands: tuple[tuple[Labels, ...], ...]
    inputs: tuple[int, ...]
    scale: float
    causal: bool
    dtype: str
    implementation: str

    def __call__(self, *args: Any) -> list[Any]:
        """The result, in a list."""
        lay = self.layout
        heads = (*lay.heads, *lay.shared)
        q, k, v, *bias = (
            self._arranged(args[i], dims, to)
            for i, dims, to in zip(
                self.inputs,
                self.operands,
                (
                    (lay.batch, lay.queries, heads, lay.depth),
                    (lay.batch, lay.keys, lay.heads, lay.depth),
                    (lay.batch, lay.keys, lay.heads, lay.values),
                    ((), heads, lay.queries, lay.keys),
                ),
                strict=False,
            )
        )
        how = {"scale": self.scale, "is_causal": self.causal, "implementation": self.implementation}
        y: Any = jax.nn.dot_product_attention(q, k, v, bias[0] if bias else None, **how)
        labels = (*lay.batch, *lay.queries, *heads, *lay.values)
        y = lax.convert_element_type(lax.reshape(y, [self.sizes[one] for one in labels]), self.dtype)
        order = [labels.index(one) for dim in self.out for one in dim]
        return [lax.reshape(lax.transpose(y, order), [self._size(dim) for dim in self.out])]

    def _size(self, labels: Sequence[int]) -> int:
        return math.prod(self.sizes[one] for one in labels)

    def _arranged(self, x: Any, dims: Sequence[Labels], to: Sequence[Labels]) -> Any:
        """A value with its dimensions put together anew, repeated along those that it does not have."""
        mine, new = [one for dim in dims for one in dim], [one for dim in to for one in dim]
        x = lax.reshape(x, [self.sizes[one] for one in mine])
        kept = [one for one in new if one in mine]
        x = lax.transpose(x, [mine.index(one) for one in kept])
        x = lax.broadcast_in_dim(x, [self.sizes[one] for one in new], [new.index(one) for one in kept])
        return lax.reshape(x, [self._size(dim) for dim in to])


def check_operands(found: Attention, layout: Layout) -> None:
    """Raises `NotAttention`, saying why, unless cuDNN takes the operands of an attention."""
    size = _Size(found.network)
    dtypes = {str(x.atom.aval.dtype) for x in (found.q, found.k, found.v)}
    if len(dtypes) != 1 or dtypes.isdisjoint(("bfloat16", "float16")):
        raise NotAttention(
            f"cuDNN's attention is of bfloat16 or float16, and this is of {' and '.join(sorted(dtypes))}"
        )
    depth = size(layout.depth)
    if depth % 8 or depth > MOST_DEPTH:
        raise NotAttention(f"cuDNN's attention has a depth of a multiple of 8 up to {MOST_DEPTH}, and this of {depth}")
    if size(layout.values) != depth:
        raise NotAttention(f"its values have another depth, {size(layout.values)}, than queries and keys, {depth}")
    if found.bias is not None:
        _check_bias(found.bias, layout, size, found.q)


@record
class _Size:
    network: Network

    def __call__(self, labels: Sequence[int]) -> int:
        return math.prod(self.network.sizes[one] for one in labels)


def _check_bias(bias: Operand, layout: Layout, size: _Size, q: Operand) -> None:
    mine, heads = {*bias.labels}, {*layout.heads, *layout.shared}
    if bias.atom.aval.dtype != q.atom.aval.dtype:
        raise NotAttention("what is added to its scores has more bits than queries and keys")
    if not heads or mine != {*heads, *layout.queries, *layout.keys}:
        # Masks are added, too; they are shared by heads.
        raise NotAttention("what is added to its scores is not one matrix for each head: it may be a mask")
    if size(layout.queries) % 2 or size(layout.keys) % 2:
        raise NotAttention("with a bias, cuDNN's attention has even numbers of queries and keys")
