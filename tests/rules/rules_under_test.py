"""Small rules, and what a rule decides about a program."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag
from aerogel.compiler import Report, Rule
from aerogel.compiler.rules import AnyRule


def made(before: Callable[..., Any], after: Callable[..., Any], exactness: str = "reassociates", **more: Any) -> Rule:
    """A rule of two functions."""
    rule = ag.rule(exactness=exactness, reason="a test says so", **{"name": "the-rule", **more})(before)
    rule.to(after)
    return rule


log1p = made(lambda x: jnp.log(1 + x), jnp.log1p, "no_worse", name="log-of-one-plus")


def scaled_sum(x: Any, *, axis: int = -1, scale: float = 2.0) -> Any:
    """A pattern with an axis and a constant."""
    return scale * jnp.sum(x, axis)


scale_first = made(scaled_sum, lambda x, *, axis, scale: jnp.sum(scale * x, axis), name="scale-first")


def report_of(f: Callable[..., Any], rules: Iterable[AnyRule], *args: Any, **options: Any) -> Report:
    """What the rules alone do to a program; its results must stay what they were."""
    reports: list[Report] = []
    optimized = jax.jit(ag.optimize(f, rules=rules, passes=(), on_report=reports.append, **options))
    for got, want in zip(jax.tree.leaves(optimized(*args)), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert jax.typeof(got).str_short() == jax.typeof(want).str_short()
        assert getattr(got, "weak_type", False) == getattr(want, "weak_type", False)
        if not jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
            short = jnp.issubdtype(got.dtype, jnp.floating) and jnp.finfo(got.dtype).bits < 32
            tolerance = 4e-2 if short else 1e-5
            wide = [np.asarray(x, np.complex128) for x in (got, want)]
            np.testing.assert_allclose(wide[0], wide[1], tolerance, tolerance)
    return reports[-1]


def fired(f: Callable[..., Any], rule: AnyRule, *args: Any, **options: Any) -> int:
    """How often a rule fires."""
    return sum(d.rule == rule.name for d in report_of(f, [rule], *args, **options).fired)


def refusals(f: Callable[..., Any], rule: AnyRule, *args: Any, **options: Any) -> list[str]:
    """Why a rule does not fire, at each of its sites; that it does not."""
    report = report_of(f, [rule], *args, **options)
    assert not report.fired
    return [d.reason for d in report.refused]


def normal(seed: int, *shape: int, dtype: Any = "float32") -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def regular(seed: int, *batch: int) -> Any:
    """Matrices that are far from singular."""
    return normal(seed, *batch, 4, 4) / 4 + 2 * jnp.eye(4)
