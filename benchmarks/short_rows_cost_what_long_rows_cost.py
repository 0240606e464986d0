"""Claim: work on the entries of arrays with short rows costs what it costs on one long row.

Both are the same bytes in memory. An expert keeps images as one long row outside of the compiled function: inside, XLA
moves a reshape back past such work.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

SIZE = (512, 28, 28)
FORM = "a branch that is always taken keeps the long row"
FASTER = Bounds(speedup=1.3, over_hand=1.1, memory_over_hand=None)


def apart(f):
    """f of the entries as one long row, in a branch."""

    def g(x):
        flat = x.reshape(-1)
        return jax.lax.cond(flat[0] <= jnp.inf, f, jnp.zeros_like, flat).reshape(x.shape)

    return g


def case(name, f):
    return Case(name, f, {FORM: apart(f)}, lambda: (normal(0, *SIZE),), bounds=FASTER)


CASES = (
    case("quotient", lambda x: 1 / (1 + x * x)),
    case("exponential", lambda x: jnp.exp(-x * x)),
    case("gated", lambda x: x * jax.nn.sigmoid(x) + 0.5),
)
