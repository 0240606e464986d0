"""Claim: an edit of many places takes at most 2.5 times Equinox's `tree_at`; from 30 layers on one of one place, less.

Models of 3, 30 and 200 layers of two arrays. `tree_at` is given the places by a function that lists them; here they are
meant by a pattern, a type or such a function. An edit here looks the places up in the model, decides anew what is data,
keeps ties and runs `__check_init__` on what changed, which `tree_at` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import aerogel as ag

from ._finding import Finding
from ._models import Chain, chain, ratio, seconds_per_call


class EqxLinear(eqx.Module):
    """The same layer in Equinox."""

    weight: jax.Array
    bias: jax.Array


class EqxChain(eqx.Module):
    """Layers one after the other."""

    layers: list[EqxLinear]


def biases(model: Any) -> list[Any]:
    return [layer.bias for layer in model.layers]


def arrays(model: Any) -> list[Any]:
    return [array for layer in model.layers for array in (layer.weight, layer.bias)]


def edits(ours: Chain, theirs: EqxChain) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The same edits of both models, by name."""
    new = jnp.zeros(4)

    def change(_: Any) -> Any:
        return new

    def theirs_at(where: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: eqx.tree_at(where, theirs, replace_fn=change)

    return {
        "one place, by its path": (
            lambda: ag.at(ours).layers[1].bias.set(new),
            lambda: eqx.tree_at(lambda m: m.layers[1].bias, theirs, new),
        ),
        "all biases, by a pattern": (lambda: ag.at(ours)["layers.*.bias"].apply(change), theirs_at(biases)),
        "all biases, by a function": (lambda: ag.at(ours, biases).apply(change), theirs_at(biases)),
        "all arrays, by their type": (lambda: ag.at(ours, jax.Array).apply(change), theirs_at(arrays)),
    }


def findings(quick: bool = False) -> list[Finding]:
    """Times of edits over those of `tree_at`."""
    found = []
    for layers in (3, 30, 200):
        ours = chain(layers)
        theirs = EqxChain([EqxLinear(layer.weight, layer.bias) for layer in ours.layers])
        for name, calls in edits(ours, theirs).items():
            rounds, repeats = (10, 3) if quick else (60, max(3, 200 // layers))
            mine, other = seconds_per_call(calls, rounds, repeats)
            details = f"{mine.mean() * 1e6:.0f} and {other.mean() * 1e6:.0f} microseconds"
            bound = 1.0 if "one" in name and layers > 3 else 2.5
            found.append(Finding(f"{layers} layers, {name}", "over tree_at", ratio(mine, other), bound, details))
    return found
