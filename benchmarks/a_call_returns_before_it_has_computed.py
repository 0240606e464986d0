"""Claim: `ag.jit` returns within 5 ms of a computation of one second: dispatch is asynchronous.

The ratio is the time until the call returns over 5 ms; `eqx.filter_jit`, which waits, is shown beside it.
"""

from __future__ import annotations

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag

from ._finding import Finding
from ._models import chain
from ._timing import Quartiles

LIMIT_S = 5e-3


def slow(model: Any, matrix: jax.Array, steps: jax.Array) -> Any:
    """Takes as long as `steps` says, which XLA cannot know."""
    scale = jax.tree.leaves(model)[0].sum()
    return jax.lax.fori_loop(0, steps, lambda i, m: jnp.tanh(m @ m) * scale * 0.1, matrix)


def findings(quick: bool = False) -> list[Finding]:
    """Time until the call returns."""
    matrix, model = jnp.ones((300, 300)), chain(3)
    compiled = ag.jit(slow)

    def run(f: Any, steps: int) -> tuple[float, float]:
        start = time.perf_counter()
        result = f(model, matrix, jnp.int32(steps))
        returned = time.perf_counter()
        jax.block_until_ready(result)
        return returned - start, time.perf_counter() - start

    run(compiled, 10)
    steps = int(100 / run(compiled, 100)[1])  # a second
    found = []
    filtered = eqx.filter_jit(slow)
    run(filtered, 10)
    for name, f, bound in (("ag.jit", compiled, 1.0), ("eqx.filter_jit, for comparison", filtered, None)):
        times = [run(f, steps // 10 if quick else steps) for _ in range(3 if quick else 5)]
        details = f"returned after {np.median([t[0] for t in times]) * 1e3:.2f} ms of {times[0][1] * 1e3:.0f} ms"
        ratios = Quartiles.of(np.array([t[0] for t in times]) / LIMIT_S)
        found.append(Finding(name, "time to return over 5 ms", ratios, bound, details))
    return found
