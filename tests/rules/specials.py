"""Arrays at which orders go wrong, and whether a rule changes a bit."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag
from aerogel.compiler import Report

SPECIAL = (0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-40, -1e-40, 1.0, 1.0, -1.0, 2.5, 3e38)


def specials(seed: int, *shape: int, dtype: Any = "float32") -> Any:
    """Ties, zeros of both signs, nan of both signs, infinities and subnormal numbers."""
    with np.errstate(over="ignore", under="ignore"):
        return jnp.asarray(np.random.default_rng(seed).choice(SPECIAL, shape).astype(jnp.dtype(dtype)))


def integers(seed: int, *shape: int, dtype: Any = "int32") -> Any:
    """Integers with ties and the limits of their type."""
    low, high = (0, 1) if dtype == "bool" else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    few = [low, high, 0, 1, *range(max(low, -9), min(high, 9))]
    return jnp.asarray(np.random.default_rng(seed).choice(few, shape), dtype)


def bits_with(f: Callable[..., Any], rules: Any, *args: Any) -> Report:
    """The report of a program that gives, with the rules, the very bits that it gives without them."""
    reports: list[Report] = []
    ours = jax.jit(ag.optimize(f, rules=rules, passes=(), on_report=reports.append))(*args)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert jax.typeof(got).str_short() == jax.typeof(want).str_short()
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    return reports[-1]


def rules_fired(report: Report) -> list[str]:
    """The names of the rules that fired."""
    return [d.rule for d in report.fired]


def reasons(report: Report) -> list[str]:
    """Why rules did not fire."""
    return [d.reason for d in report.refused]
