"""Claim: `ag.jit` of a model costs what `jax.jit` of the flat list of its arrays costs.

Models of 3, 30 and 200 layers of two arrays, called and updated, alone and with the state of Adam, donated and not. The
functions compute next to nothing, so that only the boundary shows. The bound is the issue's: 1.05, for 3 layers 1.10.
A second compiled function of the flat list is measured as a control: what it differs from 1 by is noise. So is
`jax.jit` of the smallest node there can be: one attribute, handed out in C, taken back by one line of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import aerogel as ag

from ._finding import Finding
from ._models import adam_state, chain, first_sum, ratio, scaled, seconds_per_call, smallest_node, stepping


def cases() -> Iterator[tuple[str, int, Callable[..., Any], bool, dict[str, Any]]]:
    """Name, layers, function, whether Adam's state comes with the model, options."""
    for layers in (3, 30, 200):
        for with_adam in (False, True):
            what = f"{layers} layers{' and Adam' if with_adam else ''}"
            yield f"{what}, call", layers, first_sum, with_adam, {}
            yield f"{what}, update", layers, scaled, with_adam, {}
            yield f"{what}, update, donated", layers, scaled, with_adam, {"donate_argnums": 0}


def findings(quick: bool = False) -> list[Finding]:
    """Call times of modules over those of lists."""
    x = jnp.ones(())
    found = []
    for name, layers, function, with_adam, options in cases():

        def argument(form: Callable[[Any], Any], layers: int = layers, with_adam: bool = with_adam) -> Any:
            params = form(chain(layers))
            return (params, adam_state(params)) if with_adam else params

        forms = [jax.jit(lambda t, x, f=function: f(t, x), **options) for _ in range(3)]
        forms.append(ag.jit(lambda t, x, f=function: f(t, x), **options))
        states = [*map(argument, (jax.tree.leaves, jax.tree.leaves, smallest_node, lambda model: model))]
        if function is first_sum:
            calls = [lambda f=f, s=s: f(s, x) for f, s in zip(forms, states, strict=True)]
        else:
            calls = [stepping(f, s, x) for f, s in zip(forms, states, strict=True)]
        rounds, repeats = (10, 20) if quick else (100, max(20, 1500 // layers // (1 + 2 * with_adam)))
        flat, control, node, ours = seconds_per_call(calls, rounds, repeats)
        others = f"control {ratio(control, flat).median:.3f}, smallest node {ratio(node, flat).median:.3f}"
        details = f"{ours.mean() * 1e6:.1f} microseconds; {others}"
        bound = 1.10 if layers == 3 else 1.05
        found.append(Finding(name, "module over flat list", ratio(ours, flat), bound, details))
    return found
