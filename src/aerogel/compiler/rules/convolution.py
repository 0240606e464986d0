"""Convolutions as equations hold them: the sizes that their parameters name, and their arrays in one layout."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from ..record import record

Sizes = tuple[int, ...]


@record
class Convolution:
    """What one `conv_general_dilated` computes.

    Entry p of an output channel is the sum, over places q of the kernel and input channels, of `kernel[q]` times entry
    `p * strides + q * dilation - low` of the input, in which `holes - 1` zeros stand between entries.

    Attributes:
        data, kernel, out: where input, kernel and output have their axes: (batch, channels, *space), where a kernel has
            (outputs, inputs, *space).
        batch, inputs, outputs: how many images and channels; `inputs` are those of one group.
        given, places, made: the sizes in space of input, kernel and output.
        padding: for each axis how many entries are added in front and behind; less than none are taken away.
        strides, holes, dilation: for each axis, as above.
        groups, batch_groups: of channels and of images.
        precision: of products.
        is_float32: whether input, kernel and sums are.
    """

    data: Sizes
    kernel: Sizes
    out: Sizes
    batch: int
    inputs: int
    outputs: int
    given: Sizes
    places: Sizes
    padding: tuple[tuple[int, int], ...]
    strides: Sizes
    holes: Sizes
    dilation: Sizes
    groups: int
    batch_groups: int
    precision: Any
    is_float32: bool

    @classmethod
    def of(cls, lhs: Any, rhs: Any, params: Mapping[str, Any]) -> "Convolution":
        """That of an input and a kernel, with the parameters of `conv_general_dilated`."""
        numbers = params["dimension_numbers"]
        data, kernel = tuple(numbers.lhs_spec), tuple(numbers.rhs_spec)
        floats = {lhs.dtype, rhs.dtype, params["preferred_element_type"] or lhs.dtype}
        return cls(
            data,
            kernel,
            tuple(numbers.out_spec),
            lhs.shape[data[0]],
            rhs.shape[kernel[1]],
            rhs.shape[kernel[0]],
            tuple(lhs.shape[axis] for axis in data[2:]),
            tuple(rhs.shape[axis] for axis in kernel[2:]),
            tuple(tuple(pair) for pair in params["padding"]),
            tuple(params["window_strides"]),
            tuple(params["lhs_dilation"]),
            tuple(params["rhs_dilation"]),
            params["feature_group_count"],
            params["batch_group_count"],
            params["precision"],
            floats == {np.dtype(np.float32)},
        )

    @property
    def extents(self) -> Sizes:
        """Entries of the input from the first to the last that an entry of the output reads, for each axis."""
        return tuple((n - 1) * d + 1 for n, d in zip(self.places, self.dilation, strict=True))

    @property
    def made(self) -> Sizes:
        """The sizes in space of the output."""
        whole = ((n - 1) * hole + 1 if n else 0 for n, hole in zip(self.given, self.holes, strict=True))
        ends = zip(whole, self.padding, self.extents, self.strides, strict=True)
        return tuple(max(0, (n + low + high - extent) // s + 1) for n, (low, high), extent, s in ends)

    @property
    def terms(self) -> int:
        """How many products are summed for an entry of the output."""
        return self.inputs * math.prod(self.places)

    @property
    def products(self) -> int:
        """How many products are taken in all."""
        return self.terms * self.outputs * self.batch // self.batch_groups * math.prod(self.made)

    def padded(self, lhs: Any) -> Any:
        """The input with its padding and holes."""
        config = [(0, 0, 0)] * lhs.ndim
        for axis, (low, high), hole in zip(self.data[2:], self.padding, self.holes, strict=True):
            config[axis] = (low, high, hole - 1)
        return lax.pad(lhs, np.array(0, lhs.dtype), config)

    def result(self, found: Any, axes: Sequence[int]) -> Any:
        """The output, of an array that has its axes `axes`, numbered as (batch, channels, *space)."""
        wanted = [self.out[k] for k in axes]
        return lax.transpose(found, [wanted.index(axis) for axis in range(found.ndim)])
