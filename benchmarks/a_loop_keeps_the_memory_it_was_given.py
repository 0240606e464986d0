"""Claim: a loop with chosen memory takes no more of it, and no more time, than other ways to give a loop little memory.

Value and gradient of 1000 steps of a recurrent network, an integrator and a stencil, by `ag.scan` with
`checkpoint="sqrt"` and `"log"`; beside them the plain loop, `jax.checkpoint` around the step and around every 25 steps,
and Equinox's loop for this (Diffrax's `RecursiveCheckpointAdjoint` is that loop) with the snapshots that it takes by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax

import aerogel as ag

from ._case import normal
from ._finding import Finding
from ._timing import Quartiles, measure

STEPS, CHUNK = 1000, 25

Body = Callable[[Any, Any], Any]


def plain(body: Body, carry: Any, xs: Any, length: int = STEPS) -> Any:
    return lax.scan(lambda c, x: (body(c, x), None), carry, xs, length=length)[0]


def nested(body: Body, carry: Any, xs: Any) -> Any:
    chunks = jax.tree.map(lambda x: x.reshape(-1, CHUNK, *x.shape[1:]), xs)
    inner = jax.checkpoint(lambda c, x: plain(jax.checkpoint(body), c, x, CHUNK))
    return plain(inner, carry, chunks, STEPS // CHUNK)


def equinox(body: Body, carry: Any, xs: Any) -> Any:
    def step(state: Any) -> Any:
        i, c = state
        return i + 1, body(c, jax.tree.map(lambda x: x[i], xs))

    first = jnp.int32(0), carry
    return eqxi.while_loop(lambda state: state[0] < STEPS, step, first, kind="checkpointed", max_steps=STEPS)[1]


def chosen(checkpoint: Any) -> Any:
    def run(body: Body, carry: Any, xs: Any) -> Any:
        return ag.scan(lambda c, x: (body(c, x), None), carry, xs, STEPS, checkpoint=checkpoint)[0]

    return run


FORMS = {
    "plain": plain,
    "step": lambda body, carry, xs: plain(jax.checkpoint(body), carry, xs),
    "nested": nested,
    "Equinox": equinox,
    "sqrt": chosen("sqrt"),
    "log": chosen("log"),
}


def network(run: Any) -> Any:
    """A recurrent network of width 128, batch 32."""
    inputs = normal(1, STEPS, 32, 128)
    return lambda weights, state: jnp.sum(run(lambda c, x: jnp.tanh(c @ weights + x), state, inputs) ** 2)


def leapfrog(run: Any) -> Any:
    """Pendulums."""

    def loss(strength: Any, q: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            q, p = state
            p = p - 0.01 * strength * jnp.sin(q)
            return q + 0.01 * p, p

        return jnp.sum(run(step, (q, jnp.zeros_like(q)), None)[0] ** 2)

    return loss


def heat(run: Any) -> Any:
    """Heat with a source."""

    def loss(rate: Any, u: Any) -> Any:
        def step(u: Any, _: Any) -> Any:
            return u + rate * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u) + 0.01 * u * (1 - u)

        return jnp.sum(run(step, u, None) ** 2)

    return loss


def findings(quick: bool) -> list[Finding]:
    line = jnp.linspace(0.0, 1.0, 10_000)
    cases = {
        "recurrent network": (network, (0.08 * normal(0, 128, 128), jnp.zeros((32, 128))), 1),
        "leapfrog": (leapfrog, (jnp.float32(1.0), line), 2),
        "heat": (heat, (jnp.float32(0.1), line), 1),
    }
    found = []
    for name, (loss, args, parts) in cases.items():
        forms = {form: jax.value_and_grad(loss(run), (0, 1)) for form, run in FORMS.items()}
        seen = measure(forms, args, min_rounds=3 if quick else 20, budget_s=0, limit_s=5 if quick else 60)
        carry = parts * args[1].nbytes
        for form in FORMS:
            ratio = seen.ratio(form, "plain")
            found.append(
                Finding(name, f"time of {form} / plain", ratio, None, f"{seen.temp_bytes[form] / carry:.0f} carries")
            )
        for form in ("nested", "Equinox"):
            memory = seen.temp_bytes["sqrt"] / seen.temp_bytes[form]
            found.append(Finding(name, f"memory of sqrt / {form}", Quartiles(memory, memory, memory), 1.0))
            found.append(Finding(name, f"time of sqrt / {form}", seen.ratio("sqrt", form), 1.05))
    return found
