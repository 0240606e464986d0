"""Logarithms of what overflows become the forms that stay finite."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from rules.rules_under_test import normal, refusals, regular, report_of

LOG_DET, LOG_ABS_DET = ag.rules.log_det, ag.rules.log_abs_det
LOG_SOFTMAX, LOG_SUM_EXP = ag.rules.log_of_softmax, ag.rules.log_of_sum_of_exp
SOFTPLUS = ag.rules.log_of_one_plus_exp


def in_scan(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`f` of each slice, in a loop whose carry it needs."""
    return lambda xs: jax.lax.scan(lambda c, x: (c / 2, f(x + c)), jnp.float32(0), xs)[1]


CASES: dict[str, tuple[Any, Callable[..., Any], Any]] = {
    "log det": (LOG_DET, lambda A: jnp.log(jnp.linalg.det(A)), regular(0)),
    "log det of a stack": (LOG_DET, lambda A: 2 * jnp.log(jnp.linalg.det(A)) + 1, regular(0, 3)),
    "log det, mapped twice": (LOG_DET, jax.vmap(jax.vmap(lambda A: jnp.log(jnp.linalg.det(A)))), regular(0, 2, 3)),
    "log det in a loop": (LOG_DET, in_scan(lambda A: jnp.log(jnp.linalg.det(A))), regular(0, 3)),
    "log |det|": (LOG_ABS_DET, lambda A: jnp.log(jnp.abs(jnp.linalg.det(A))), -regular(0)),
    "log softmax": (LOG_SOFTMAX, lambda x: jnp.log(jax.nn.softmax(x)), normal(0, 3, 5)),
    "log softmax of columns": (LOG_SOFTMAX, lambda x: -jnp.log(jax.nn.softmax(x, axis=0)), normal(0, 3, 5)),
    "log softmax, bfloat16": (LOG_SOFTMAX, lambda x: jnp.log(jax.nn.softmax(x)), normal(0, 3, 5, dtype="bfloat16")),
    "log sum exp": (LOG_SUM_EXP, lambda x: jnp.log(jnp.sum(jnp.exp(x), 0)), normal(0, 3, 5)),
    "log sum exp, mapped": (LOG_SUM_EXP, jax.vmap(lambda x: jnp.log(jnp.exp(x).sum())), normal(0, 3, 5)),
    "softplus": (SOFTPLUS, lambda x: jnp.log(1 + jnp.exp(x)), normal(0, 3, 5)),
    "softplus, other order": (SOFTPLUS, lambda x: 2 * jnp.log(jnp.exp(x) + 1.0), normal(0, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str) -> None:
    """Each spelling is found, and its results stay what they were."""
    rule, f, x = CASES[name]
    assert [d.rule for d in report_of(f, [rule], x).fired] == [rule.name]


@pytest.mark.parametrize(
    ("rule", "f"),
    [
        (LOG_DET, lambda A: jnp.linalg.det(A) + jnp.log(jnp.trace(A))),
        (LOG_DET, lambda A: jnp.log(1 + jnp.linalg.det(A))),
        (LOG_DET, lambda A: (lambda d: (d, jnp.log(d)))(jnp.linalg.det(A))),
        (LOG_ABS_DET, lambda A: jnp.log(jnp.abs(jnp.linalg.det(A) + 1))),
        (LOG_ABS_DET, lambda A: jnp.log1p(jnp.abs(jnp.linalg.det(A)))),
        (LOG_SOFTMAX, lambda x: jnp.log(jax.nn.softmax(x) + 1e-6)),
        (LOG_SOFTMAX, lambda x: (lambda p: (p, jnp.log(p)))(jax.nn.softmax(x))),
        (LOG_SUM_EXP, lambda x: jnp.log(jnp.sum(jnp.exp2(x), 0))),
        (LOG_SUM_EXP, lambda x: jnp.log(jnp.sum(jnp.exp(x), 0) + 1)),
        (SOFTPLUS, lambda x: jnp.log(2 + jnp.exp(x))),
        (SOFTPLUS, lambda x: jnp.log(1 - jnp.exp(-jnp.abs(x) - 1))),
    ],
)
def test_near_misses_stay(rule: Any, f: Callable[..., Any]) -> None:
    """What is another formula, or is read elsewhere too, is left alone."""
    refusals(f, rule, regular(0))


def test_complex_determinants_stay() -> None:
    """The logarithm of a complex determinant has an angle, which the size does not tell."""
    said = refusals(lambda A: jnp.log(jnp.linalg.det(A)), LOG_DET, regular(0) + 1j)
    assert said == ["complex numbers"]


def test_they_stay_finite() -> None:
    """Where the formulas overflow, the rules give the number."""
    A = 1e4 * jnp.eye(12)
    x = jnp.array([200.0, -200.0])
    for rule, f, arg, want in [
        (LOG_DET, lambda A: jnp.log(jnp.linalg.det(A)), A, 12 * np.log(1e4)),
        (LOG_SOFTMAX, lambda x: jnp.log(jax.nn.softmax(x)), x, [0, -400]),
        (LOG_SUM_EXP, lambda x: jnp.log(jnp.sum(jnp.exp(x), 0)), x, 200),
        (SOFTPLUS, lambda x: jnp.log(1 + jnp.exp(x)), x, [200, 0]),
    ]:
        assert not np.isfinite(jax.jit(f)(arg)).all()
        np.testing.assert_allclose(jax.jit(ag.optimize(f, rules=[rule]))(arg), want, rtol=1e-6)


@pytest.mark.parametrize("name", ["log det", "log |det|", "log softmax", "log sum exp", "softplus"])
def test_they_keep_their_claims(name: str) -> None:
    """Values and gradients are as exact as each rule says."""
    rule, f, x = CASES[name]
    ag.check_rule(rule, fires_on=[(f, (x,))])
