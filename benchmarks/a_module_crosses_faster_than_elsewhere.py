"""Claim: a model passes `ag.jit` 4 times faster than `eqx.filter_jit`, 20 times faster than `nnx.jit`, and as Linen.

From 30 layers on for Equinox (call and update); the other two on the 3-layer MLP of Equinox issue 928. The ratio is
ours over theirs, so the bounds are 0.25, 0.05 and 1. For an update `jax.jit` of the flat list of arrays is shown too:
that is what can be had.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
from flax import nnx

import aerogel as ag

from ._finding import Finding
from ._models import WIDTH, Chain, chain, first_sum, ratio, scaled, seconds_per_call, stepping


def equinox_chain(layers: int) -> Any:
    keys = jax.random.split(jax.random.key(0), layers)
    return eqx.nn.Sequential([eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys])


class NNXChain(nnx.Module):
    """The MLP in Flax NNX."""

    def __init__(self, layers: int):
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)) for _ in range(layers)])

    def __call__(self, x):
        """The output."""
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


class LinenChain(linen.Module):
    """The MLP in Flax Linen."""

    layers: int

    @linen.compact
    def __call__(self, x):
        """The output."""
        for _ in range(self.layers):
            x = linen.relu(linen.Dense(WIDTH)(x))
        return x


def equinox_update(model: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda a: a * x if eqx.is_inexact_array(a) else a, model)


def findings(quick: bool = False) -> list[Finding]:
    """Ratios of call times, ours over theirs."""
    rounds, repeats = (10, 10) if quick else (60, 30)
    x, vector = jnp.ones(()), jnp.ones(WIDTH)
    found = []

    def compare(name: str, measure: str, ours: Any, theirs: Any, bound: float | None) -> None:
        mine, other = seconds_per_call([ours, theirs], rounds, repeats)
        details = f"{mine.mean() * 1e6:.1f} and {other.mean() * 1e6:.1f} microseconds"
        found.append(Finding(name, measure, ratio(mine, other), bound, details))

    for layers in (30, 200):
        ours, theirs = chain(layers), equinox_chain(layers)
        f, g = ag.jit(first_sum), eqx.filter_jit(first_sum)
        calls = (lambda f=f, m=ours: f(m, x)), (lambda g=g, m=theirs: g(m, x))
        compare(f"{layers} layers, call", "ag.jit over eqx.filter_jit", *calls, 0.25)
        update, filtered = ag.jit(scaled), eqx.filter_jit(equinox_update)
        calls = stepping(update, ours, x), stepping(filtered, theirs, x)
        compare(f"{layers} layers, update", "ag.jit over eqx.filter_jit", *calls, 0.25)
        flat = stepping(jax.jit(scaled), jax.tree.leaves(chain(layers)), x)
        compare(f"{layers} layers, update", "the flat list over eqx.filter_jit", flat, calls[1], None)

    mlp = chain(3)
    call = ag.jit(Chain.__call__)
    mutable = NNXChain(3)
    nnx_call = nnx.jit(lambda model, x: model(x))
    compare(
        "3-layer MLP, call", "ag.jit over nnx.jit", lambda: call(mlp, vector), lambda: nnx_call(mutable, vector), 0.05
    )
    module = LinenChain(3)
    variables = module.init(jax.random.key(0), vector)
    apply = jax.jit(module.apply)
    compare("3-layer MLP, call", "ag.jit over Linen", lambda: call(mlp, vector), lambda: apply(variables, vector), 1.0)
    return found
