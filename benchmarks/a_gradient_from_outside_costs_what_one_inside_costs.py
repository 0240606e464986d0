"""Claim: a gradient that is taken around an optimised function costs what the optimised gradient costs.

`jax.value_and_grad(ag.optimize(f))` and `ag.jit(f)` under `jax.value_and_grad`, beside
`ag.optimize(jax.value_and_grad(f))`: the loops of `gradients_of_loops_store_half`, and formulas over all pairs. What a
gradient keeps between its halves counts as memory in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import aerogel as ag

from . import gradients_of_loops_store_half as loops
from ._case import normal
from ._finding import Finding
from ._timing import Quartiles, measure

TIME, MEMORY = 1.05, 1.1
LOOPS = ("LSTM, batch 32", "tanh RNN, batch 32", "leapfrog, quartic", "RK4, logistic growth", "Kalman filter")


def kernel(x: Any, y: Any, v: Any) -> Any:
    """A sum of Gaussians."""
    return jnp.sum(jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v)


def attention(q: Any, k: Any, v: Any) -> Any:
    """One head."""
    return jnp.sum(jax.nn.softmax(q @ k.T / 8) @ v)


def points(*features: int) -> tuple[Any, ...]:
    return tuple(normal(seed, 4096, *([d] if d else [])) for seed, d in enumerate(features))


Program = tuple[str, Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def programs() -> Iterator[Program]:
    """Name, function, arguments, and by which of them it is differentiated."""
    for case in loops.CASES:
        if case.name in LOOPS:
            yield case.name, case.natural, case.args(), case.grad
    yield "Gaussian kernel, 4096 points", kernel, points(3, 3, 0), (0, 1, 2)
    yield "attention, 4096 places", attention, points(64, 64, 64), (0, 1, 2)


def findings(quick: bool = False) -> Iterator[Finding]:
    """Time and memory of both outside forms over the one inside."""
    for name, f, args, grad in programs():
        forms = {
            "plain": jax.value_and_grad(f, grad),
            "inside": ag.optimize(jax.value_and_grad(f, grad)),
            "around optimize": jax.value_and_grad(ag.optimize(f), grad),
            "around jit": jax.value_and_grad(ag.jit(f), grad),
        }
        rounds = {"min_rounds": 5, "budget_s": 0.5} if quick else {}
        found = measure(forms, args, **rounds)
        for form in ("around optimize", "around jit"):
            sizes = ", ".join(f"{k} {found.temp_bytes[k] / 1e6:.2f}" for k in ("plain", "inside", form))
            memory = found.temp_bytes[form] / max(1, found.temp_bytes["inside"])
            time = found.ratio(form, "inside")
            over_plain = found.ratio(form, "plain").median
            yield Finding(name, f"time of {form} / inside", time, TIME, f"{over_plain:.2f} of plain JAX's time")
            yield Finding(name, f"memory of {form} / inside", Quartiles(memory, memory, memory), MEMORY, f"MB: {sizes}")
