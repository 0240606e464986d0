"""Facts about an array that a program holds: what its entries say."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..known.assume import closed

LARGEST = 1 << 16  # entries that are looked at


def facts_of(value: Any, order: Sequence[int] | None = None) -> frozenset[str]:
    """What holds of a constant; "constant" alone of one that is large or holds no numbers.

    Args:
        value: an array.
        order: of its dimensions, if another than its own.

    >>> sorted(facts_of(np.full((2, 2), 3)))
    ['broadcast', 'constant', 'finite', 'non_negative', 'positive', 'sorted', 'symmetric']
    """
    if not isinstance(value.dtype, np.dtype) or value.size > LARGEST or value.dtype.kind not in "biufcV":
        return frozenset(("constant",))
    array = np.asarray(value)
    array = array if order is None else array.transpose(order)
    if array.dtype.kind == "V":  # bfloat16 and its like
        array = array.astype(np.float32)
    real = array.dtype.kind != "c"
    found = {
        "constant": True,
        "finite": bool(np.isfinite(array).all()),
        "zero": not array.any(),
        "ones": bool((array == 1).all()),
        "non_negative": real and bool((array >= 0).all()),
        "positive": real and bool((array > 0).all()),
    }
    if array.ndim:
        found["broadcast"] = any(n > 1 and bool((array == array.take([0], d)).all()) for d, n in enumerate(array.shape))
        found["one_hot"] = bool(((array == 0) | (array == 1)).all() and (array.astype(bool).sum(-1) <= 1).all())
        found["sorted"] = real and bool((array[..., 1:] >= array[..., :-1]).all())
    if array.ndim >= 2:
        found["lower_triangular"] = not np.triu(array, 1).any()
        found["upper_triangular"] = not np.tril(array, -1).any()
    if array.ndim >= 2 and array.shape[-1] == array.shape[-2]:
        unit = np.eye(array.shape[-1], dtype=bool)
        found["diagonal"] = not array[..., ~unit].any()
        found["identity"] = found["diagonal"] and bool((array[..., unit] == 1).all())
        found["symmetric"] = bool((array == np.swapaxes(array, -1, -2)).all())
    return closed(frozenset(name for name, holds in found.items() if holds))
