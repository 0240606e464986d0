"""Claim: once compiled, a call of `jax.jit(ag.optimize(f))` costs what a call of `jax.jit(f)` costs.

Programs that compute next to nothing, with few and many arguments, so that only the dispatch shows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag

from ._finding import Finding
from ._timing import Quartiles, time_calls

BOUND = 1.03
CALLS = 1_000


def add_one_each(*arrays):
    return [a + 1 for a in arrays]


def update(tree, scale):
    return jax.tree.map(lambda a: a * scale, tree)


def programs():
    """Name, function and arguments."""
    array = jnp.ones(4)
    yield "1 array", add_one_each, (array,)
    yield "10 arrays", add_one_each, (array,) * 10
    yield "100 arrays", add_one_each, (array,) * 100
    yield "a nested dict of 60 arrays", update, ({f"layer{i}": {"w": array, "b": array} for i in range(30)}, 0.5)


def findings(quick: bool = False) -> list[Finding]:
    """The ratio of call times, optimised over plain."""
    found = []
    for name, f, args in programs():
        forms = [jax.jit(lambda *a, f=f: f(*a)), jax.jit(ag.optimize(lambda *a, f=f: f(*a)))]
        seconds: list[list[float]] = [[], []]
        for form in forms:
            time_calls(form, args, 50)
        calls = 100 if quick else CALLS
        for round_ in range(7 if quick else 60):
            for which in (0, 1) if round_ % 2 else (1, 0):
                seconds[which].append(time_calls(forms[which], args, calls))
        plain, optimised = map(np.array, seconds)
        details = f"{np.median(plain) * 1e6:.1f} and {np.median(optimised) * 1e6:.1f} microseconds"
        found.append(Finding(name, "optimised over plain", Quartiles.of(optimised / plain), BOUND, details))
    return found
