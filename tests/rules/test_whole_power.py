"""Powers whose exponents are known whole numbers: as exact as float32 allows, and where they are used."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.rules.elementary.rules import rules as elementary_rules
from aerogel.compiler.rules.elementary.whole_power import whole_power
from rules.rules_under_test import fired, normal, refusals

(VECTOR_POW,) = (rule for rule in elementary_rules if rule.name == "vector-pow")
SPECIAL = np.array([0, 1, 1.5, np.inf, np.nan, 1e30, 1e-30, 3e38, 1.2e-38, 2.0**-126], np.float32)
X = np.concatenate([SPECIAL, -SPECIAL, normal(0, 2000), np.exp(6 * normal(1, 2000))]).astype(np.float32)

Formula = Callable[..., Any]
FOUND: dict[str, Formula] = {
    "counted": lambda x: x[:, None] ** jnp.arange(8),
    "counted as floats": lambda x: x[:, None] ** jnp.arange(8.0),
    "in rows": lambda x: x[None, :] ** jnp.arange(8)[:, None],
    "vander": lambda x: jnp.vander(x, 20),
    "below zero": lambda x: x[:, None] ** jnp.arange(-4, 5),
    "a constant": lambda x: x[:, None] ** np.array([1, 5, 9, 200, 0]),
    "one exponent": lambda x: jnp.power(jnp.tile(x, 5), 5.0),
    "one below zero": lambda x: jnp.power(jnp.tile(x, 5), -7.0),
    "under vmap": lambda x: jax.vmap(lambda x: x ** jnp.arange(6))(x),
    "in a step": lambda x: lax.scan(lambda c, i: (c, x[:, None] ** jnp.arange(6.0)), 0, None, length=2)[1],
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    """They are rounded once: half a unit in the last place, and zeros, infinities and nan where they were."""
    f = FOUND[name]
    assert fired(f, whole_power, X)
    got, want = (np.asarray(jax.jit(g)(X)).astype(np.float64) for g in (ag.optimize(f), f))
    with jax.enable_x64(True):
        truth = np.asarray(jax.jit(f)(X.astype(np.float64)), np.float64)
    for test in (np.isnan, np.isinf, np.signbit):
        where = ~np.isnan(want) if test is np.signbit else np.ones_like(want, bool)
        np.testing.assert_array_equal(test(got)[where], test(want)[where])
    inside = np.isfinite(got) & (np.abs(truth) >= float(jnp.finfo(np.float32).tiny))
    error = np.abs(got[inside] - truth[inside])
    assert np.all(error <= 0.502 * float(jnp.finfo(np.float32).eps) * np.abs(truth[inside]))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_narrow_types(dtype: Any) -> None:
    """Through float32, as XLA does it."""
    x = jnp.asarray(normal(4, 4000), dtype)
    f = lambda x: x[:, None] ** jnp.arange(6)  # noqa: E731
    assert fired(f, whole_power, x)
    got, want = (np.asarray(jax.jit(g)(x), np.float64) for g in (ag.optimize(f), f))
    np.testing.assert_allclose(got, want, rtol=float(jnp.finfo(dtype).eps), atol=1e-6)


def polynomial(c: Any, x: Any) -> Any:
    """As one writes it down."""
    return jnp.sum(c * x[:, None] ** jnp.arange(c.shape[0]), 1)


@pytest.mark.parametrize("k", [5, 8, 20])
def test_gradients(k: int) -> None:
    """The exponents that JAX's derivative makes are known too; no power is left, and errors are those of before."""
    c, x = normal(2, k), np.asarray(normal(3, 20_000)) / 4
    g = jax.grad(lambda c, x: (polynomial(c, x) ** 2).sum(), (0, 1))
    ours = ag.optimize(g)
    left = {eqn.primitive.name for eqn in jax.make_jaxpr(ours)(c, x).jaxpr.eqns}
    assert "pow" in {eqn.primitive.name for eqn in jax.make_jaxpr(g)(c, x).jaxpr.eqns}
    assert not {"pow", "vector_power"} & left
    with jax.enable_x64(True):
        truth = jax.jit(g)(*(jnp.asarray(a, np.float64) for a in (c, x)))
    for a, b, t in zip(jax.jit(g)(c, x), jax.jit(ours)(c, x), truth, strict=True):
        error, size = float(np.abs(a - np.asarray(t)).max()), float(np.abs(t).max())
        assert float(np.abs(b - np.asarray(t)).max()) <= 2 * error + 1e-6 * size


NEAR: dict[str, tuple[Formula, str]] = {
    "halves": (lambda x: x[:, None] ** (jnp.arange(8) / 2), "no whole numbers"),
    "an argument": (lambda x: x[:, None] ** x[None, :8], "not known"),
    "large": (lambda x: x[:, None] ** np.array([1.0, 300.0, 2.0, 3.0], np.float32), "an exponent of 300"),
    "few": (lambda x: x[:9, None] ** jnp.arange(8.0), "fewer than"),
    "rows of three": (lambda x: jnp.tile(x, 5)[:, None] ** jnp.arange(3.0), "rows of 3"),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name: str) -> None:
    """Others stay powers, or go another way."""
    f, reason = NEAR[name]
    assert any(reason in r for r in refusals(f, whole_power, X))


def test_short_rows_stay_with_llvm() -> None:
    """Rows of two or three known exponents are unrolled, and each is known then: `vector-pow` leaves them, too."""
    assert any("rows of 3" in r for r in refusals(NEAR["rows of three"][0], VECTOR_POW, X))


def test_doubles_stay() -> None:
    """There is no wider type in which to multiply."""
    with jax.enable_x64(True):
        (reason,) = refusals(FOUND["counted as floats"], whole_power, X.astype(np.float64))
        assert reason == "it is of float64"


def test_subnormal_numbers_are_zero() -> None:
    """As in XLA's own products."""
    x = np.full(5000, 2.0**-140, np.float32)
    assert not np.any(np.asarray(jax.jit(ag.optimize(FOUND["counted"]))(x))[:, 1:])


def test_names() -> None:
    """What counts the operations of a step knows what they compute."""
    assert "vector_power_of_3_digits" in _jax.OURS
