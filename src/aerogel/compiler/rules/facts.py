"""Facts about an operand: what its entries say where they are known, and what users say of others."""

from typing import Any

import numpy as np

from ..._jax import Atom, Literal
from ..assume import closed
from .graph import Graph

LARGEST = 1 << 16  # entries that are looked at


def facts_at(graph: Graph, x: Atom) -> frozenset[str]:
    """What is known of a value of a level."""
    if isinstance(x, Literal):
        return facts_of(np.asarray(x.val, x.aval.dtype))
    x = graph.seen(x)
    return graph.assumed(x) | facts_of(graph.values.get(x))  # pyright: ignore[reportArgumentType]


def facts_of(value: Any) -> frozenset[str]:
    """What holds of a constant; nothing of None, and "constant" alone of one that is large or holds no numbers.

    >>> sorted(facts_of(np.full((2, 2), 3)))
    ['constant', 'finite', 'non_negative', 'positive', 'symmetric']
    """
    if value is None:
        return frozenset()
    if not isinstance(value.dtype, np.dtype) or value.size > LARGEST or value.dtype.kind not in "biufcV":
        return frozenset(("constant",))
    array = np.asarray(value)
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
    if array.ndim >= 2 and array.shape[-1] == array.shape[-2]:
        unit = np.eye(array.shape[-1], dtype=bool)
        found["diagonal"] = not array[..., ~unit].any()
        found["identity"] = found["diagonal"] and bool((array[..., unit] == 1).all())
        found["symmetric"] = bool((array == np.swapaxes(array, -1, -2)).all())
    return closed(frozenset(name for name, holds in found.items() if holds))
