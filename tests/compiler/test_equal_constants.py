"""Constants that are equal are one; those that only look alike stay apart."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.normalize import normalize

W = np.random.default_rng(0).standard_normal((4000, 20)).astype(np.float32)
LARGE = np.zeros((600, 600), np.float32)  # more bytes than are compared
ON_DEVICE = jnp.asarray(W)
ZEROS = np.zeros((4000, 20), np.float32)


def constants(f: Any) -> tuple[int, int]:
    """How many a trace has, and its normal form."""
    program = jax.make_jaxpr(f)(1.0)
    normal = normalize(program)[0]
    assert normalize(normal)[0] is normal
    want, got = (jax.core.eval_jaxpr(p.jaxpr, p.consts, 2.0)[0] for p in (program, normal))
    np.testing.assert_array_equal(want, got)
    return len(program.consts), len(normal.consts)


def test_equal_constants_are_one() -> None:
    """The same memory whatever its size, and the same bytes."""
    assert constants(lambda x: x * W.T + x * jnp.sin(W.T)) == (2, 1)
    assert constants(lambda x: x * LARGE.T + x * jnp.sin(LARGE.T)) == (2, 1)
    assert constants(lambda x: x * W + x * jnp.sin(W.copy())) == (2, 1)
    assert constants(lambda x: x * W.T + x * jnp.sin(W).T + W.copy().T * x + W.T) == (4, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ZEROS, -ZEROS),  # -0.0
        (W, W.astype(np.int32)),
        (W.T, W.reshape(20, 4000)),
        (W, np.append(W[:-1], W[-1:] + 1, 0)),
        (W, ON_DEVICE),
        (LARGE, LARGE.copy()),
    ],
    ids=["signs of zeros", "dtypes", "orders", "last rows", "host and device", "large ones"],
)
def test_constants_that_look_alike_stay_two(one: Any, other: Any) -> None:
    """Of other signs, dtypes, orders, ends; and what it would take long to compare."""
    assert constants(lambda x: jnp.sum(x * one) / jnp.sum(x + other)) == (2, 2)


def test_a_sum_of_squares_of_one_constant_is_not_multiplied_out() -> None:
    """`x @ (W.T @ W) @ x` is less than nothing where `x @ W.T` is small: a norm was nan."""
    w = W.copy()
    w[:, 0] = w[:, 1:].sum(1)
    x = np.random.default_rng(1).standard_normal((5000, 20)).astype(np.float32)
    x[:, 1:] = -x[:, :1]  # w @ x is zero

    def norms(x: Any) -> Any:
        return jnp.sqrt(((x @ w.T) * (x @ w.T)).sum(-1))

    assert len(jax.make_jaxpr(norms)(x).consts) == 2
    assert not np.isnan(jax.jit(ag.optimize(norms))(x)).any()
