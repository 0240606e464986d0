"""Nested programs on blocks: the block function of a nested program, traced at the types of its blocks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from ..._jax import ClosedJaxpr, ShapedArray, trace_small
from .answer import Axis, Mapped


def trace_block(answer: Mapped, avals: Sequence[Any], size: int, with_start: bool) -> ClosedJaxpr:
    """The program of `answer.block` at blocks of `size` indices.

    Args:
        answer: what a nested program is along the axis.
        avals: the types of the nested program's whole inputs.
        size: how many indices a block holds.
        with_start: whether the program takes the first index of the block, an int32, in front of its inputs.
    """
    blocks = [_resized(aval, axis, size) for aval, axis in zip(avals, answer.ins, strict=True)]

    def with_first(start: Any, *inputs: Any) -> Sequence[Any]:
        return answer.block(start, size, *inputs)

    def without(*inputs: Any) -> Sequence[Any]:
        return answer.block(0, size, *inputs)

    assert with_start or not answer.uses_start, "the block needs to know where it starts"
    fun: Callable[..., Sequence[Any]] = with_first if with_start else without
    return trace_small(fun, [_START, *blocks] if with_start else blocks)


_START = ShapedArray((), np.dtype(np.int32))


def start_operands(start: Any, used: bool) -> list[Any]:
    """`start` as an operand of a nested program, if it takes one."""
    return [lax.convert_element_type(start, np.int32)] if used else []


def _resized(aval: Any, axis: Axis | None, size: int) -> Any:
    return aval if axis is None else aval.update(shape=axis.resize(aval.shape, size))
