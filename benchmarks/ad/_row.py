"""A row of the AD table: a scalar function, its arguments, and what its value and gradient may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Row:
    """One function that is differentiated, as it is written in JAX.

    Targets are ratios to plain JAX measured beside it; the pairs that they come from are those of the issue, of one
    core of another machine.

    Attributes:
        number: of the row in the issue; some have several functions.
        f: of arrays, to a scalar.
        args: makes the arguments, NumPy's; float64 ones are computed with in float64.
        wrt: positions to differentiate by.
        time: the target of value and gradient, and what plain JAX took, in one unit.
        memory: the same for temporary memory.
        published: the best published time of value and gradient over that of the value alone.
        prepared: Aerogel's form is `ag.prepare`, which takes the memory of the last gradient.
    """

    number: int
    name: str
    f: Callable
    args: Callable[[], tuple[np.ndarray, ...]]
    time: tuple[float, float]
    wrt: tuple[int, ...] = (0,)
    memory: tuple[float, float] | None = None
    published: float | None = None
    prepared: bool = False


def normal(*shapes: tuple[int, ...], dtype: type = np.float32, scale: float = 1.0) -> tuple[np.ndarray, ...]:
    """Normal numbers, an array per shape, the same at every call."""
    rng = np.random.default_rng(0)
    return tuple((scale * rng.standard_normal(shape)).astype(dtype) for shape in shapes)
