"""Claim: a write that some lanes of `vmap` leave out costs what it writes, not what the whole buffer holds.

`vmap` of a `while` or of a `cond` selects between whole buffers in every step. An expert selects what is written.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

N, LANES = 10_000, 4


def filled(i, x):
    """A buffer filled from a place of its own on."""
    return lax.while_loop(lambda s: s[0] < N, lambda s: (s[0] + 1, s[1].at[s[0]].set(jnp.sin(1.0 * s[0]))), (i, x))


def filled_by_hand(i, x):
    lanes = jnp.arange(LANES)

    def step(s):
        i, x = s
        on = i < N
        value = jnp.where(on, jnp.sin(1.0 * i), x[lanes, i])
        return jnp.where(on, i + 1, i), x.at[lanes, i].set(value, unique_indices=True)

    return lax.while_loop(lambda s: jnp.any(s[0] < N), step, (i, x))


def pushed(i, x):
    """JAX issue 8192: a step that writes while there is room."""

    def step(s, _):
        i, x = s
        return (i + 1, lax.cond(i < N, lambda x: x.at[i].set(1.0), lambda x: x, x)), None

    return lax.scan(step, (i, x), None, length=N)[0][1]


def pushed_by_hand(i, x):
    lanes = jnp.arange(LANES)

    def step(s, _):
        i, x = s
        x = x.at[lanes, i].set(jnp.where(i < N, 1.0, x[lanes, i]), unique_indices=True)
        return (i + 1, x), None

    return lax.scan(step, (i, x), None, length=N)[0][1]


def walked(i, x):
    """A walk over places of the data that stops where it finds a large value, and marks where it was."""

    def more(s):
        i, x, steps = s
        return (x[i] < 3.0) & (steps < 2000)

    def step(s):
        i, x, steps = s
        return (7 * i + 1) % N, lax.dynamic_update_slice(x, x[i][None] + 0.5, (i,)), steps + 1

    return lax.while_loop(more, step, (i, x, 0))[1]


def walked_by_hand(i, x):
    lanes = jnp.arange(LANES)

    def more(s):
        i, x, steps = s
        return (x[lanes, i] < 3.0) & (steps < 2000)

    def step(s):
        i, x, steps = s
        on = more(s)
        x = x.at[lanes, i].add(jnp.where(on, 0.5, -0.0), unique_indices=True)
        return jnp.where(on, (7 * i + 1) % N, i), x, jnp.where(on, steps + 1, steps)

    return lax.while_loop(lambda s: jnp.any(more(s)), step, (i, x, jnp.zeros(LANES, jnp.int32)))[1]


def lanes():
    return jnp.arange(LANES, dtype=jnp.int32) * 17, normal(0, LANES, N)


FORM = "what is written is selected"
BOUNDS = Bounds(over_hand=1.25, speedup=10.0)
CASES = (
    Case("a while that fills a buffer", jax.vmap(filled), {FORM: filled_by_hand}, lanes, bounds=BOUNDS),
    Case("a cond in a scan (JAX 8192)", jax.vmap(pushed), {FORM: pushed_by_hand}, lanes, bounds=BOUNDS),
    Case(
        "a walk that marks its way",
        jax.vmap(walked),
        {FORM: walked_by_hand},
        lanes,
        notes="short: the expert's loop runs 40 us",
        bounds=Bounds(over_hand=None, speedup=5.0),
    ),
)
