"""Claim: a training step that donates its weights copies none of them, where plain JAX copies all but the first.

Their update waits for the last product that reads them; XLA does not see by itself that it comes later. Small batches
gain most: then a copy is as long as a product. Where nothing is donated, nothing may be lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import aerogel as ag

from ._case import normal
from ._finding import Finding
from ._timing import Quartiles, alternate

BOUND = 1.0
SAME = 1.03  # two programs that are the same are measured this far apart


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.square(x).mean()


def descent(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    slope = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, slope)


def adam(state: Any, x: jax.Array) -> Any:
    weights, moments = state
    updates, moments = optax.adam(1e-3).update(jax.grad(loss)(weights, x), moments, weights)
    return optax.apply_updates(weights, updates), moments


def many(weights: list[jax.Array], xs: jax.Array) -> list[jax.Array]:
    """Steps in a loop."""
    return jax.lax.scan(lambda weights, x: (descent(weights, x), None), weights, xs)[0]


def findings(quick: bool = False) -> list[Finding]:
    """Ratios of times, ours over plain JAX's, and how many weights are copied."""
    found = []
    for layers, width, batch in ((6, 512, 16), (6, 512, 128), (4, 1024, 16), (4, 1024, 256)):
        weights = [normal(k, width, width) / width**0.5 for k in range(layers)]
        x = normal(99, batch, width)
        for name, step, state, data in (
            ("descent", descent, weights, x),
            ("Adam", adam, (weights, optax.adam(1e-3).init(weights)), x),
            ("descent in a loop of 4", many, weights, jnp.stack([x] * 4)),
        ):
            case = f"{layers} layers of {width}, batch {batch}, {name}"
            found += measured(case, step, state, data, width, quick)
    return found


def measured(case: str, step: Callable, state: Any, data: jax.Array, width: int, quick: bool) -> list[Finding]:
    """One step, with a donated state and with one that is kept."""
    effort: dict[str, Any] = {"min_rounds": 7, "budget_s": 0.5, "limit_s": 10.0} if quick else {"budget_s": 3.0}
    rows = []
    for donated, bound in ((True, BOUND), (False, SAME)):
        forms = {"plain": step, "ours": ag.optimize(step)}
        compiled = {
            n: jax.jit(f, donate_argnums=0 if donated else ()).lower(state, data).compile() for n, f in forms.items()
        }
        calls = {n: call(c, jax.tree.map(jnp.copy, state), data) for n, c in compiled.items()}
        for each in calls.values():
            each()
        seconds = alternate(calls, **effort)
        copies = {
            n: len(re.findall(rf"f32\[{width},{width}\]\S* copy\(", c.as_text() or "")) for n, c in compiled.items()
        }
        text = f"{copies['ours']} and {copies['plain']} copies"
        what = "time over plain JAX, " + ("donated" if donated else "kept")
        rows.append(Finding(case, what, Quartiles.of(seconds["ours"] / seconds["plain"]), bound, text))
    return rows


def call(compiled: Any, state: Any, data: jax.Array) -> Callable[[], Any]:
    """Goes on from where the last call ended."""

    def one() -> Any:
        nonlocal state
        state = compiled(state, data)
        return state

    return one
