"""Sums of products over arrays with an axis of the length one leave that axis out, and no others do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from rules.rules_under_test import normal, refusals, report_of

RULE = ag.rules.unit_axis_sum
ONE, FRONT, BEHIND, MANY = (1, 64, 64), (64, 1, 64), (64, 64, 1), (2, 32, 64)


def product(axis: Any) -> Callable[..., Any]:
    """A sum of products over an axis."""
    return lambda x, y: jnp.sum(x * y, axis)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rows": (product(2), ONE),
    "columns": (product(1), ONE),
    "the axis in the middle": (product(0), FRONT),
    "the axis behind": (product(1), BEHIND),
    "the axis is added up, too": (product((0, 2)), ONE),
    "two of them": (product(3), (1, 1, 64, 64)),
    "an axis is kept": (lambda x, y: jnp.sum(x * y, 1, keepdims=True) * x, ONE),
    "broadcasting": (lambda x, y: jnp.sum(jax.nn.softmax(x[..., 0], -1)[..., None] * y, 1), ONE),
    "in a loop": (lambda x, y: lax.scan(lambda c, _: (c + y, product(1)(c, y)), x, None, length=3)[1], ONE),
    "a batch of one": (jax.vmap(product(0)), ONE),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str, dtype: str) -> None:
    """Each spelling is found, and its results stay what they were."""
    f, shape = CASES[name]
    x, y = (normal(k, *shape).astype(dtype) for k in (0, 1))
    assert [d.rule for d in report_of(f, [RULE], x, y).fired] == [RULE.name]


@pytest.mark.parametrize(
    ("f", "shape", "dtype", "reason"),
    [
        (product(1), MANY, "float32", "no axis has the length one"),
        (lambda x, y: jnp.sum(x + y, 1), ONE, "float32", "it is no sum of products"),
        (product(None), ONE, "float32", "it is one sum of all, or none"),
        (product(0), ONE, "float32", "it is one sum of all, or none"),
        (product(1), (1, 64, 63), "float32", "the library does not take it"),
        (product(1), ONE, "int32", "the library does not take it"),
    ],
)
def test_what_would_gain_nothing_stays(f: Callable[..., Any], shape: Any, dtype: str, reason: str) -> None:
    """Where XLA is as fast, the rule says so."""
    x, y = (normal(k, *shape).astype(dtype) for k in (0, 1))
    assert refusals(f, RULE, x, y) == [reason]


def test_xla_keeps_the_axis_out() -> None:
    """Another version of XLA that moved the axis back into the sum would make the rule do nothing."""
    x, y = normal(0, *ONE), normal(1, *ONE)
    text = [jax.jit(f).lower(x, y).compile().as_text() for f in (product(1), ag.optimize(product(1)))]
    of_whole = [one.count("reduce(") - one.count("f32[64]{0} reduce(") for one in text if one]
    assert of_whole == [1, 0]


def test_gradients() -> None:
    """Of a batch of one: the derivative by what is repeated along an axis is such a sum."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(w[..., None] * x))

    args = normal(0, 1, 64), normal(1, *ONE)
    assert [d.rule for d in report_of(jax.grad(loss), [RULE], *args).fired] == [RULE.name]
    got = jax.jit(ag.optimize(jax.grad(loss, (0, 1)), rules=[RULE], passes=()))(*args)
    for one, other in zip(got, jax.grad(loss, (0, 1))(*args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_it_keeps_its_claim() -> None:
    """Values are as exact as a sum in another order is."""
    ag.check_rule(RULE, fires_on=[(product(1), (normal(0, *ONE), normal(1, *ONE)))], under=[jax.jit])
