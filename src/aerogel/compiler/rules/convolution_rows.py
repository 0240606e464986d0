"""Convolutions of few channels, row by row: XLA's CPU backend hands them to a library that is made for many.

One matrix product for each row keeps vector registers full where the library's loops over channels cannot, and what it
needs and makes stays in a cache. The longest axis of images, their batch, is the last one meanwhile, so that windows
are long runs of memory, which are copied as they are. Three products do for a network:

- *gathered*: the windows of a row of the output, times the kernel, are that row;
- *scattered*: a row of the input, times the kernel, is added up in the rows of the output that read it. It is what
  differentiates by an input, where the padding is as wide as the kernel;
- *summed*: the windows of an input, times a row of a kernel that is larger than the output, are added up over rows. It
  is what differentiates by a kernel: the "kernel" is the cotangent, and the channels that are summed are the batch.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from ..record import record
from .convolution import Convolution, Sizes
from .on import on

# What was measured to pay (docs/reference/catalogue-elementary.md). For each place of the kernel at each place of the
# output the library takes as long, however few channels there are: on two cores so many nanoseconds, half of those of
# one. The rest is what that costs here, where a second core does not help.
NS_OF_THE_LIBRARY, NS_OF_ITS_SUMS = 5.0, 7.0
NS_OF_A_WINDOW, NS_OF_A_PRODUCT, NS_OF_A_MOVED_ENTRY = 0.4, 0.02, 1.5
MOST_OUTPUTS = 32  # of what is gathered: the library takes less for each of more
FEWEST_PRODUCTS = 1 << 20  # below, starting the pieces takes most of the time
FEWEST_OF_A_ROW = 1 << 15
SHORTEST_RUN, SHORTEST_SUMMED_RUN = 8, 64  # of images
LARGEST_STEP = 1 << 20  # entries that a row's windows or products have: they stay in a cache
MOST_PRODUCTS_OF_FEW = 160  # at a place: so few terms are one loop


@record
class _Plan:
    """One of the three forms with what its time depends on.

    Attributes:
        form: computes the output of a convolution, its input and its kernel.
        few: channels that windows have, or that are scattered.
        others: channels on the other side.
        run: the size of the axis that is made the last one.
        places: what a window has in space.
        positions: of windows; the form goes from row to row of them.
        moved: channels of the arrays that have another last axis.
        library_ns: what the library takes for a place at a position.
    """

    form: Callable[[Convolution, Any, Any], Any]
    few: int
    others: int
    run: int
    places: Sizes
    positions: Sizes
    moved: int
    library_ns: float

    @classmethod
    def of(cls, conv: Convolution) -> "_Plan":
        """The form for a convolution: which one gathers or scatters least."""
        images, kernels, made = (spec.index(len(spec) - 1) for spec in (conv.data, conv.kernel, conv.out))
        if math.prod(conv.places) > math.prod(conv.made):
            moved = conv.batch * (images != 1) + conv.outputs * (kernels != 1)
            return cls(_summed, conv.batch, conv.outputs, conv.inputs, conv.made, conv.places, moved, NS_OF_ITS_SUMS)
        moved = conv.inputs * (images != 0) + conv.outputs * (made != 0)
        if conv.outputs <= conv.inputs:
            library = NS_OF_THE_LIBRARY * math.prod(conv.made) / math.prod(conv.given)
            return cls(_scattered, conv.outputs, conv.inputs, conv.batch, conv.places, conv.given, moved, library)
        return cls(_gathered, conv.inputs, conv.outputs, conv.batch, conv.places, conv.made, moved, NS_OF_THE_LIBRARY)

    @property
    def refusal(self) -> str | None:
        """Why another form is faster; None if none is."""
        at_once = self.few * math.prod(self.places) * math.prod(_first_row(self.positions, 1)[1:]) * self.run
        if self.run < (SHORTEST_SUMMED_RUN if self.form is _summed else SHORTEST_RUN):
            return f"it has {self.run} images"
        if self.others * at_once < FEWEST_OF_A_ROW or at_once > LARGEST_STEP:
            return f"of a row there are {at_once} entries: few, or too many for a cache"
        products = self.few * self.others
        if self.form is _gathered and products * math.prod(self.places) <= MOST_PRODUCTS_OF_FEW:
            return "its entries are sums of few terms"
        if self.form is _gathered and self.others > MOST_OUTPUTS:
            return f"it makes {self.others} channels"
        nanoseconds = self.few * NS_OF_A_WINDOW + products * NS_OF_A_PRODUCT
        nanoseconds += self.moved / math.prod(self.places) * NS_OF_A_MOVED_ENTRY
        if nanoseconds > self.library_ns:
            return f"there are many channels ({self.few} and {self.others}) for {math.prod(self.places)} places"
        return None


@on(
    lax.conv_general_dilated_p,
    stage="final",
    platforms=("cpu",),
    exactness="finite",  # as of `few_term_convolution`: zeros around an input meet an infinite kernel in some loops
    reason="a product for each row keeps vector registers full, and what it takes in a cache",
)
def convolution_by_rows(lhs: Any, rhs: Any, **params: Any) -> Any:
    """The convolution as a loop over rows."""
    conv = Convolution.of(lhs, rhs, params)
    refusal = _refusal(conv)
    if refusal is not None:
        return refusal
    plan = _Plan.of(conv)
    if plan.form is not _scattered and max(conv.dilation) > 1:
        return "it is dilated"
    return plan.refusal or plan.form(conv, lhs, rhs)


def wanted_orders(lhs: Any, rhs: Any, params: Mapping[str, Any]) -> tuple[Sizes | None, ...] | None:
    """The orders in which a convolution by rows has its input, kernel and output; None if it is not to go by rows.

    None also for the one of the three that it has in any order.
    """
    conv = Convolution.of(lhs, rhs, params)
    if _refusal(conv) is not None:
        return None
    plan = replace(_Plan.of(conv), moved=0)
    if plan.refusal is not None or (plan.form is not _scattered and max(conv.dilation) > 1):
        return None
    data, kernel, out = ((one, *space, other) for one, other, *space in (conv.data, conv.kernel, conv.out))
    if plan.form is _summed:
        return data, kernel, None
    return (conv.data[1], *conv.data[2:], conv.data[0]), None, (out[-1], *out[1:-1], out[0])


def _refusal(conv: Convolution) -> str | None:
    """Why it has none of the three forms."""
    if not conv.is_float32:
        return "it is not of float32 alone"
    if conv.groups != 1 or conv.batch_groups != 1:
        return "its channels or its batch have groups"
    if not conv.given or max(*conv.strides, *conv.holes) > 1:
        return "it has strides, is the derivative of one with strides, or has no axis in space"
    if not math.prod(conv.given):
        return "its input has no entries"
    if conv.products < FEWEST_PRODUCTS:
        return f"it takes {conv.products} products: fewer than {FEWEST_PRODUCTS}"
    return "its kernel has one place" if math.prod(conv.places) < 2 else None


def _gathered(conv: Convolution, lhs: Any, rhs: Any) -> Any:
    """Each row of the output is a product of its windows."""
    x, w = _by_rows(conv.padded(lhs), conv.data, (1, 0)), _by_rows(rhs, conv.kernel, (0, 1))
    (rows, *places), (height, *made) = w.shape[1:-1], _first_row(conv.made, 1)
    outputs, batch = len(w), x.shape[-1]
    w = lax.reshape(lax.transpose(w, (0, *range(2, w.ndim), 1)), (outputs, conv.terms))

    def body(row: Any, out: Any) -> Any:
        found = lax.dot(w, _windows(x, row, rows, places, made), precision=conv.precision)
        return _written(out, lax.reshape(found, (outputs, 1, *made, batch)), row)

    out = _over(height, body, lax.full((outputs, height, *made, batch), 0, x.dtype))
    return conv.result(lax.reshape(out, (outputs, *conv.made, batch)), _axes(conv, 1, 0))


def _scattered(conv: Convolution, lhs: Any, rhs: Any) -> Any:
    """Each row of the input is added to those of the output that read it, which are as many as all padding has."""
    x, w = _by_rows(lhs, conv.data, (1, 0)), _by_rows(rhs, conv.kernel, (0, 1))
    (height, *given), (rows, *places) = x.shape[1:-1], w.shape[1:-1]
    apart, padding = _first_row(conv.dilation, 1), _first_row(conv.padding, (0, 0))
    wide = [(n - 1) * d for n, d in zip((rows, *places), apart, strict=True)]
    outputs, inputs, batch = len(w), len(x), x.shape[-1]
    zero = np.array(0, x.dtype)
    w = lax.reshape(lax.rev(w, range(1, w.ndim - 1)), (w.size // inputs, inputs))

    def body(row: Any, out: Any) -> Any:
        found = lax.dot(w, _row(x, row), precision=conv.precision)
        found = lax.reshape(found, (outputs, rows, math.prod(places), *given, batch))
        parts = []
        for k, place in enumerate(_each(places)):
            starts = [p * d for p, d in zip(place, apart[1:], strict=True)]
            around = [(start, n - start, 0) for start, n in zip(starts, wide[1:], strict=True)]
            part = lax.index_in_dim(found, k, 2, keepdims=False)
            parts.append(lax.pad(part, zero, [(0, 0, 0), (0, 0, apart[0] - 1), *around, (0, 0, 0)]))
        total = sum(parts[1:], parts[0])
        return _written(out, total + _read(out, total.shape, row), row)

    sizes = [n + more for n, more in zip((height, *given), wide, strict=True)]
    out = _over(height, body, lax.full((outputs, *sizes, batch), 0, x.dtype))
    cut = [(low - n, high - n, 0) for (low, high), n in zip(padding, wide, strict=True)]
    out = lax.pad(out, zero, [(0, 0, 0), *cut, (0, 0, 0)])
    return conv.result(lax.reshape(out, (outputs, *conv.made, batch)), _axes(conv, 1, 0))


def _summed(conv: Convolution, lhs: Any, rhs: Any) -> Any:
    """Over the rows of the kernel, products of the windows that all entries of the output have there are summed."""
    x, w = _by_rows(conv.padded(lhs), conv.data, (0, 1)), _by_rows(rhs, conv.kernel, (0, 1))
    (height, *places), (rows, *made) = w.shape[1:-1], _first_row(conv.made, 1)
    images, outputs = len(x), len(w)

    def body(row: Any, total: Any) -> Any:
        windows = _windows(x, row, rows, made, places)
        return total + lax.dot_general(windows, _row(w, row), (((1,), (1,)), ((), ())), precision=conv.precision)

    total = _over(height, body, lax.full((images * math.prod((rows, *made)), outputs), 0, x.dtype))
    total = lax.reshape(total, (*made, images, rows, outputs))
    total = lax.transpose(total, (len(made), len(made) + 1, *range(len(made)), len(made) + 2))
    return conv.result(lax.reshape(total, (images, *conv.made, outputs)), _axes(conv, 0, 1))


def _by_rows(x: Any, spec: Sizes, around: tuple[int, int]) -> Any:
    """An array with its space in the middle, which begins with one row if it has one axis."""
    one, other = around
    x = lax.transpose(x, (spec[one], *spec[2:], spec[other]))
    return x if x.ndim > 3 else lax.expand_dims(x, (1,))


def _first_row(values: Any, of_rows: Any) -> Any:
    """A value for each axis in space, rows included."""
    return values if len(values) > 1 else (of_rows, *values)


def _axes(conv: Convolution, first: int, last: int) -> Sizes:
    return (first, *range(2, 2 + len(conv.given)), last)


def _each(sizes: Any) -> Iterator[Sizes]:
    return itertools.product(*map(range, sizes))


def _windows(x: Any, row: Any, rows: int, places: Any, sizes: Any) -> Any:
    """What stands from a row on at each place across: [places across, first axis, rows] by [sizes across, last axis].

    XLA copies slices at a variable place as whole runs, and others entry by entry, four times slower.
    """
    parts = [lax.dynamic_slice(x, (0, row, *at, 0), (len(x), rows, *sizes, x.shape[-1])) for at in _each(places)]
    return lax.reshape(lax.concatenate(parts, 0), (len(parts) * len(x) * rows, math.prod(sizes) * x.shape[-1]))


def _row(x: Any, row: Any) -> Any:
    """A row, as [first axis, all else]."""
    return lax.reshape(lax.dynamic_index_in_dim(x, row, 1), (len(x), x.size // (x.shape[0] * x.shape[1])))


def _read(x: Any, shape: Any, row: Any) -> Any:
    return lax.dynamic_slice(x, (0, row, *[0] * (x.ndim - 2)), shape)


def _written(x: Any, part: Any, row: Any) -> Any:
    return lax.dynamic_update_slice(x, part, (0, row, *[0] * (x.ndim - 2)))


def _over(rows: int, body: Callable[[Any, Any], Any], start: Any) -> Any:
    return body(0, start) if rows == 1 else lax.fori_loop(0, rows, body, start)
