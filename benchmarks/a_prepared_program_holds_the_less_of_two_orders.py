"""Claim: what is prepared holds no more than what is jitted, and less where XLA's usual order holds too much.

Both are the same optimised program; only the order of its operations differs. Its time falls with what it holds, and is
nowhere longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.stats import norm

import aerogel as ag

from ._case import normal
from ._finding import Finding
from ._timing import Quartiles, alternate

MEMORY_BOUND, TIME_BOUND = 1.0, 1.03


def contrastive(a: jax.Array, b: jax.Array) -> jax.Array:
    """Each row of `a` is told from all of `b`, and the other way round."""
    scores = a @ b.T / 8
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(scores, 0)) + jnp.diag(jax.nn.log_softmax(scores, 1)))


def warped(image: jax.Array, flow: jax.Array) -> jax.Array:
    """What an image and itself differ by after a flow."""
    y, x = (p + d for p, d in zip(jnp.mgrid[: image.shape[0], : image.shape[1]], flow, strict=True))
    y0, x0 = jnp.floor(y).astype(int), jnp.floor(x).astype(int)
    wy, wx = y - y0, x - x0

    def at(i: jax.Array, j: jax.Array) -> jax.Array:
        return image[jnp.clip(i, 0, image.shape[0] - 1), jnp.clip(j, 0, image.shape[1] - 1)]

    above = at(y0, x0) * (1 - wx) + at(y0, x0 + 1) * wx
    below = at(y0 + 1, x0) * (1 - wx) + at(y0 + 1, x0 + 1) * wx
    return jnp.mean((above * (1 - wy) + below * wy - image) ** 2)


def call_prices(spot: jax.Array, strike: jax.Array, time: jax.Array, spread: jax.Array) -> jax.Array:
    """Black and Scholes."""
    d = (jnp.log(spot / strike) + (0.02 + spread**2 / 2) * time) / (spread * jnp.sqrt(time))
    return jnp.sum(spot * norm.cdf(d) - strike * jnp.exp(-0.02 * time) * norm.cdf(d - spread * jnp.sqrt(time)))


def projected(u: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A flow after a small step, without its divergence as far as five sweeps get."""
    n, dt = len(u), 1e-5

    def slope(a: jax.Array, axis: int) -> jax.Array:
        return (jnp.roll(a, -1, axis) - jnp.roll(a, 1, axis)) * n / 2

    def around(a: jax.Array) -> jax.Array:
        return sum((jnp.roll(a, k, axis) for axis in (0, 1) for k in (-1, 1)), jnp.zeros_like(a))

    def moved(a: jax.Array) -> jax.Array:
        return a + dt * (0.01 * (around(a) - 4 * a) * n**2 - u * slope(a, 0) - v * slope(a, 1))

    u, v = moved(u), moved(v)
    divergence = (slope(u, 0) + slope(v, 1)) / dt
    pressure = lax.fori_loop(0, 5, lambda _, p: (around(p) - divergence / n**2) / 4, jnp.zeros_like(u))
    return u - dt * slope(pressure, 0), v - dt * slope(pressure, 1)


def residual_blocks(params: Any, x: jax.Array) -> jax.Array:
    """Dense layers with gates, each added to what it gets."""
    for gate, value, out in params:
        x = x + (jax.nn.sigmoid(x @ gate) * jnp.tanh(x @ value)) @ out
    return jnp.mean(x**2)


def programs() -> Mapping[str, tuple[Callable, tuple[Any, ...]]]:
    """By name, a function and its arguments."""
    options = [jnp.abs(normal(k, 1_000_000)) + 0.5 for k in range(4)]
    layers = [[normal(10 * k + i, 256, 256) / 16 for i in range(3)] for k in range(4)]
    rows = normal(0, 2000, 128), normal(1, 2000, 128)
    image = normal(0, 1000, 1000), normal(1, 2, 1000, 1000)
    return {
        "contrastive loss": (contrastive, rows),
        "contrastive loss, gradient": (jax.value_and_grad(contrastive, (0, 1)), rows),
        "warped image, gradient": (jax.value_and_grad(warped, (0, 1)), image),
        "call prices": (call_prices, tuple(options)),
        "call prices, gradient": (jax.value_and_grad(call_prices, (0, 2, 3)), tuple(options)),
        "flow without divergence": (projected, (normal(0, 1000, 1000), normal(1, 1000, 1000))),
        "gated blocks, gradient": (jax.value_and_grad(residual_blocks), (layers, normal(99, 2048, 256))),
    }


def findings(quick: bool = False) -> list[Finding]:
    """Ratios of memory and time, of what is prepared over what is jitted."""
    found = []
    effort: dict[str, Any] = {"min_rounds": 7, "budget_s": 0.5, "limit_s": 10.0} if quick else {"budget_s": 3.0}
    for case, (f, args) in programs().items():
        prepared, jitted, plain = ag.prepare(f, *args), ag.jit(f), jax.jit(f)
        held = {"prepared": prepared.cost.temp_bytes, "jitted": planned(jitted, *args), "plain": planned(plain, *args)}
        forms = {"prepared": prepared, "jitted": jitted, "plain": plain}
        seconds = alternate({name: partial(form, *args) for name, form in forms.items()}, **effort)
        memory = np.array([held["prepared"] / max(held["jitted"], 1)])
        megabytes = ", ".join(f"{name} {one / 1e6:.1f} MB" for name, one in held.items())
        of_plain = f"{np.median(seconds['prepared'] / seconds['plain']):.2f} of plain JAX's"
        found.append(Finding(case, "memory of what is jitted", Quartiles.of(memory), MEMORY_BOUND, megabytes))
        ratio = Quartiles.of(seconds["prepared"] / seconds["jitted"])
        bound = TIME_BOUND if memory[0] < 1 else None  # where nothing is gained it is the same program
        found.append(Finding(case, "time of what is jitted", ratio, bound, of_plain))
    return found


def planned(jitted: Any, *args: Any) -> int:
    """What XLA plans to hold beside arguments and results."""
    return jitted.lower(*args).compile().memory_analysis().temp_size_in_bytes
