"""Convolutions of one channel with a long kernel: XLA's CPU backend takes one product after the other.

Windows that begin at each block of entries and reach over the kernel, as the rows of a matrix, times the kernel at each
place of a block, as the columns of another one (a Toeplitz matrix), are the output, block by block: a matrix product of
hardly more products than there were. It is as exact: its sums are those of any product. (A Fourier transform takes less
for kernels of 3,000 places and more, and loses the digits of small entries beside large ones.) Where the kernel is
longer than the output, as of what differentiates by a kernel, blocks of the kernel are multiplied by windows that reach
over the output, and the diagonals of that product are summed.
"""

import math
from typing import Any

import numpy as np
from jax import lax

from .convolution import Convolution
from .few_terms import MOST_TERMS, is_sum_of_few
from .on import on

# What was measured to pay (docs/reference/catalogue-elementary.md): below, sums of few terms are as fast.
SHORTEST, SHORTEST_OF_MANY_TERMS = 24, 8
FEWEST_PRODUCTS, FEWEST_OF_MANY_TERMS = 1 << 17, 1 << 14
MOST_OUTPUTS = 4  # that share their input: the library takes less for each of more
# Entries in a block. Windows are a block longer than the kernel, and their matrix is as many times as long as the input
# as there are blocks in a window.
BLOCKS = ((24, 16), (80, 32), (512, 64), (math.inf, 128))  # of kernels that are shorter than this
MOST_ENTRIES = 1 << 24  # of all windows, and of the kernel at all places


@on(
    lax.conv_general_dilated_p,
    stage="final",
    platforms=("cpu",),
    exactness="finite",  # zeros beside the kernel meet infinite entries of the input
    reason="windows of blocks times the kernel at each place of a block are a matrix product",
)
def long_convolution(lhs: Any, rhs: Any, **params: Any) -> Any:
    """The convolution as a product of windows."""
    conv = Convolution.of(lhs, rhs, params)
    refusal = _refusal(conv, lhs, rhs, params)
    if refusal is not None:
        return refusal
    # Both with their space in the middle, which begins with one row if it has one axis.
    x = lax.transpose(conv.padded(lhs), (conv.data[1], conv.data[0], *conv.data[2:]))
    kernel = lax.transpose(rhs, (conv.kernel[0], *conv.kernel[2:], conv.kernel[1]))
    rows, height = (conv.places[0], conv.made[0]) if len(conv.places) > 1 else (1, 1)
    x = lax.reshape(x, (conv.groups, conv.batch, height + rows - 1, x.shape[-1]))
    kernel = lax.reshape(kernel, (conv.groups, conv.outputs // conv.groups, rows, kernel.shape[-2]))
    made = _diagonals(conv, x, kernel) if _is_summed(conv) else _blocks(conv, x, kernel, height)
    made = lax.transpose(made, (1, 0, 2, *range(3, made.ndim)))
    return conv.result(lax.reshape(made, (conv.batch, conv.outputs, *conv.made)), range(lhs.ndim))


def _refusal(conv: Convolution, lhs: Any, rhs: Any, params: Any) -> str | None:
    floats = {lhs.dtype, rhs.dtype, params["preferred_element_type"] or lhs.dtype}
    if floats not in ({np.dtype(np.float32)}, {np.dtype(np.float64)}):
        return "it is not of float32 or float64 alone"
    if conv.inputs != 1 or conv.batch_groups != 1 or conv.outputs > MOST_OUTPUTS * conv.groups:
        return f"channels are summed, its batch has groups, or more than {MOST_OUTPUTS} outputs share their input"
    if len(conv.places) not in (1, 2) or max(*conv.strides, *conv.holes, *conv.dilation) > 1:
        return "it has strides, holes or dilation, or more than two dimensions"
    shortest, fewest = SHORTEST_OF_MANY_TERMS, FEWEST_OF_MANY_TERMS
    if conv.terms <= MOST_TERMS:
        shortest, fewest = SHORTEST, FEWEST_PRODUCTS
    if conv.products < fewest or not lhs.size:
        return f"it takes {conv.products} products, fewer than {fewest}"
    if min(conv.places[-1], conv.made[-1]) < shortest:
        return f"its kernel has {conv.places[-1]} places, its output {conv.made[-1]}: one of them fewer than {shortest}"
    if conv.batch * conv.groups > 1 and is_sum_of_few(conv):
        return "its entries are sums of few terms, and its batch is shared among threads"
    if _is_summed(conv) and len(conv.places) > 1:
        return "its kernel is larger than its output"
    entries = _entries(conv)
    return f"its windows have {entries} entries" if entries > MOST_ENTRIES else None


def _is_summed(conv: Convolution) -> bool:
    return conv.places[-1] > 2 * conv.made[-1]


def _block(conv: Convolution) -> int:
    """How many entries are a block: fewer where there are few of them."""
    longer, shorter = sorted((conv.made[-1], conv.places[-1]), reverse=True)
    size = next(size for most, size in BLOCKS if shorter < most)
    return min(size, max(16, 1 << (longer // 16).bit_length()))


def _entries(conv: Convolution) -> int:
    """Entries of the larger one of the two matrices."""
    block, (longer, shorter) = _block(conv), sorted((conv.made[-1], conv.places[-1]), reverse=True)
    lines = conv.batch * conv.groups * math.prod(conv.made[:-1]) + math.prod(conv.places[:-1])
    return (shorter + block) * max(-(-longer // block) * lines, conv.outputs * math.prod(conv.places[:-1]) * block)


def _blocks(conv: Convolution, x: Any, kernel: Any, height: int) -> Any:
    """[group, image, output, row, entry] of [group, image, row, entry] and [group, output, row, place]."""
    block, made, (groups, outputs, rows, length) = _block(conv), conv.made[-1], kernel.shape
    blocks, images = -(-made // block), conv.batch
    windows, kernel = _windows(x, block, blocks, length + block - 1), _at_each_place(kernel, block)

    def product(k: Any) -> Any:
        lines = lax.dynamic_slice_in_dim(windows, k, height, axis=2)
        lines = lax.reshape(lines, (groups, images * height * blocks, lines.shape[-1]))
        there = lax.dynamic_index_in_dim(kernel, k, 2, keepdims=False)
        there = lax.reshape(there, (groups, outputs * block, there.shape[-1]))
        return _product(lines, there, 2, conv)

    if rows == 1:
        total = product(0)
    else:
        zeros = lax.full((groups, images * height * blocks, outputs * block), 0, x.dtype)
        total = lax.fori_loop(0, rows, lambda k, total: lax.add(total, product(k)), zeros)
    total = lax.reshape(total, (groups, images, height, blocks, outputs, block))
    total = lax.transpose(total, (0, 1, 4, 2, 3, 5))
    total = lax.reshape(total, (groups, images, outputs, height, blocks * block))
    return lax.slice_in_dim(total, 0, made, axis=4)


def _diagonals(conv: Convolution, x: Any, kernel: Any) -> Any:
    """The same of one row: entry j is the sum over i of what block entry i and window entry i + j have in common."""
    block, made, (groups, outputs, _, length) = _block(conv), conv.made[-1], kernel.shape
    blocks, images, wide = -(-length // block), conv.batch, made + block - 1
    windows = lax.reshape(_windows(x, block, blocks, wide), (groups, images, blocks, wide))
    zero = np.array(0, x.dtype)
    parts = lax.pad(kernel, zero, [*[(0, 0, 0)] * 3, (0, blocks * block - length, 0)])
    parts = lax.reshape(parts, (groups, outputs, blocks, block))
    found = lax.dot_general(windows, parts, (((2,), (2,)), ((0,), (0,))), precision=conv.precision)
    # [group, image, window entry, output, block entry]
    found = lax.reshape(lax.transpose(found, (0, 1, 3, 4, 2)), (groups, images, outputs, block * wide))
    found = lax.pad(found, zero, [*[(0, 0, 0)] * 3, (0, block, 0)])
    found = lax.reshape(found, (groups, images, outputs, block, wide + 1))  # each row begins one entry later
    return lax.reduce_sum(lax.slice_in_dim(found, 0, made, axis=4), (3,))


def _windows(x: Any, block: int, blocks: int, wide: int) -> Any:
    """[..., block, entry]: so many entries from the beginning of each block on, of [..., entry]."""
    pieces, last = -(-wide // block), x.ndim - 1
    missing = (blocks + pieces - 1) * block - x.shape[last]
    x = lax.pad(x, np.array(0, x.dtype), [*[(0, 0, 0)] * last, (0, missing, 0)])
    x = lax.reshape(x, (*x.shape[:last], blocks + pieces - 1, block))
    parts = [lax.slice_in_dim(x, k, k + blocks, axis=last) for k in range(pieces)]
    return lax.slice_in_dim(lax.concatenate(parts, last + 1), 0, wide, axis=last + 1)


def _at_each_place(kernel: Any, block: int) -> Any:
    """[..., place of the block, entry of the window]: the kernel with zeros around, moved by one entry in each row."""
    *outer, length = kernel.shape
    zero, last = np.array(0, kernel.dtype), len(outer)
    around = lax.pad(kernel, zero, [*[(0, 0, 0)] * last, (0, block, 0)])
    rows = lax.broadcast_in_dim(around, (*outer, block, length + block), (*range(last), last + 1))
    flat = lax.reshape(rows, (*outer, block * (length + block)))
    flat = lax.slice_in_dim(flat, 0, block * (length + block - 1), axis=last)
    return lax.reshape(flat, (*outer, block, length + block - 1))


def _product(one: Any, other: Any, axis: int, conv: Convolution) -> Any:
    """Rows times rows, group by group; one group is no batch."""
    if conv.groups > 1:
        return lax.dot_general(one, other, (((axis,), (axis,)), ((0,), (0,))), precision=conv.precision)
    one, other = lax.squeeze(one, (0,)), lax.squeeze(other, (0,))
    return lax.expand_dims(lax.dot_general(one, other, (((1,), (1,)), ((), ())), precision=conv.precision), (0,))
