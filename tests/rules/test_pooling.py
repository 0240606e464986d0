"""The gradient of max-pooling in pairs: every bit of it, and where it is left alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import max_pool_gradient
from rules.rules_under_test import fired, normal, refusals


def pool(x: Any, window: tuple[int, ...], strides: tuple[int, ...], padding: Any = "VALID") -> Any:
    """The largest entries of windows."""
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


def gradient(window: tuple[int, ...], strides: tuple[int, ...], padding: Any = "VALID") -> Callable[[Any, Any], Any]:
    """The cotangent of the operand."""
    return lambda x, g: jax.vjp(lambda x: pool(x, window, strides, padding), x)[1](g)[0]


@pytest.mark.parametrize(
    ("window", "apart", "padding", "shape", "dtype"),
    [
        ((1, 1, 2, 2), 0, "SAME", (2, 3, 5, 7), "float32"),
        ((1, 2, 2, 1), 0, "VALID", (2, 5, 6, 3), "float32"),
        ((1, 2, 2, 1), 0, "SAME", (2, 3, 3, 17), "float32"),
        ((2, 2, 1, 1), 1, "VALID", (6, 5, 2, 3), "bfloat16"),
        ((1, 1, 1, 2), 1, "VALID", (2, 2, 3, 7), "float32"),
        ((1, 2, 1, 1), 0, "SAME", (2, 9, 2, 2), "float16"),
    ],
)
def test_every_bit_is_that_of_xla(window: Any, apart: int, padding: str, shape: Any, dtype: str) -> None:
    """Ties, nan, inf, -0 in entries and cotangents, in every layout, with windows apart and a last one cut short."""
    strides = tuple(size + apart if size > 1 else 1 for size in window)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.choice([0.0, -0.0, 1.0, 2.0, -np.inf, np.inf, np.nan], shape), dtype)
    out = jax.eval_shape(lambda x: pool(x, window, strides, padding), x)
    g = jnp.asarray(rng.choice([0.0, -0.0, 1.5, -2.0, np.nan, np.inf], out.shape), dtype)
    natural = gradient(window, strides, padding)
    written = ag.optimize(natural, rules=[max_pool_gradient], passes=())
    assert "select_and_scatter_add" not in {eqn.primitive.name for eqn in jax.make_jaxpr(written)(x, g).eqns}
    got, want = jax.jit(written)(x, g), jax.jit(natural)(x, g)
    a, b = (np.asarray(y, np.float32) for y in (got, want))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


X = normal(0, 2, 4, 6, 3)
SQUARES = (1, 2, 2, 1)


def loss(x: Any) -> Any:
    """A loss behind a pool."""
    return (pool(x, SQUARES, SQUARES) ** 2).sum()


PLACES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "gradient": (jax.grad(loss), X),
    "value and gradient of relu": (jax.value_and_grad(lambda x: loss(jax.nn.relu(x))), X),
    "vmap": (jax.vmap(jax.grad(loss)), normal(1, 2, 2, 4, 4, 1)),
    "scan": (lambda x: lax.scan(lambda c, _: (c - jax.grad(loss)(c), None), x, None, length=2)[0], X),
    "channels first": (jax.grad(lambda x: loss(x.transpose(0, 2, 3, 1))), normal(2, 2, 3, 4, 6)),
}


@pytest.mark.parametrize("name", PLACES)
def test_fires(name: str) -> None:
    """In gradients however they are written, batched, and in loops."""
    f, x = PLACES[name]
    assert fired(f, max_pool_gradient, x) == 1


NEAR_MISSES: dict[str, tuple[Any, str]] = {
    "overlap": (((1, 2, 2, 1), (1, 1, 1, 1)), "its windows overlap"),
    "threes": (((1, 3, 3, 1), (1, 3, 3, 1)), "its windows are no pairs, nor pairs of pairs"),
    "three in a row": (((1, 3, 1, 1), (1, 3, 1, 1)), "its windows are no pairs, nor pairs of pairs"),
    "cubes": (((2, 2, 2, 1), (2, 2, 2, 1)), "its windows are no pairs, nor pairs of pairs"),
    "one entry each": (((1, 1, 1, 1), (1, 2, 2, 1)), "its windows are no pairs, nor pairs of pairs"),
    "padded in front": ((SQUARES, SQUARES, ((0, 0), (1, 1), (0, 0), (0, 0))), "its first windows begin in the padding"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """Windows for which slices were measured slower."""
    how, reason = NEAR_MISSES[name]
    f = jax.grad(lambda x: (pool(x, *how) ** 2).sum())
    assert refusals(f, max_pool_gradient, X) == [reason]


def test_leaves_minimum_alone() -> None:
    """A pool of the smallest entries selects by another comparison."""
    f = jax.grad(lambda x: (lax.reduce_window(x, jnp.inf, lax.min, SQUARES, SQUARES, "VALID") ** 2).sum())
    assert refusals(f, max_pool_gradient, X) == ["it selects by `le`"]
