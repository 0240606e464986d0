# ruff: noqa: D103, T201
"""Diffrax: its own jitted `diffeqsolve`, called outside a jit, and again inside one and under a gradient."""

import diffrax
import jax
import jax.numpy as jnp


def decay(t, y, rate):
    return -rate * y


def solve(rate):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(decay), diffrax.Tsit5(), 0.0, 1.0, 0.1, jnp.ones(3), args=rate, saveat=diffrax.SaveAt(t1=True)
    )


@jax.jit
def final(rate):
    return solve(rate).ys.sum()


print(f"{solve(0.5).ys.sum():.4f}")
print(f"{final(0.5):.4f} {jax.grad(final)(0.5):.4f}")
