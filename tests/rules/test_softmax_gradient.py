"""The gradient of a softmax from its result: where it fires, how exact it is, and what need not be kept for it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import softmax_gradient
from rules.rules_under_test import fired, normal, refusals

Array = jax.Array


def attention(q: Array, k: Array, v: Array) -> Array:
    """A causal attention of [batch, time, heads, size], as it is written out."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)


def by_hand(x: Array) -> Array:
    """A softmax in one's own words."""
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1)[..., None]


def loss_of(f: Callable[..., Array]) -> Callable[..., Array]:
    """A number that depends on all of a result."""
    return lambda *xs: jnp.sum(jnp.tanh(f(*xs)) ** 2)


def weighing(f: Callable[..., Array]) -> Callable[..., Array]:
    """A product reads the softmax: of values that it weighs, as in attention."""
    return loss_of(lambda x: jnp.tanh(f(x) @ normal(5, 4, 2).astype(x.dtype)))


X = normal(0, 3, 5, 4)
Q = normal(1, 2, 6, 2, 4)


def of_library(q: Array) -> Array:
    """JAX's own attention."""
    return jax.nn.dot_product_attention(q, q, q, is_causal=True)


PLACES: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "last axis": (jax.grad(weighing(jax.nn.softmax)), (X,)),
    "first axis": (jax.grad(weighing(lambda x: jax.nn.softmax(x, 0))), (X,)),
    "by hand": (jax.grad(weighing(by_hand)), (X,)),
    "value too": (jax.value_and_grad(weighing(jax.nn.softmax)), (X,)),
    "attention": (jax.grad(loss_of(attention), (0, 1, 2)), (Q, 2 * Q, 3 * Q)),
    "the library's": (jax.grad(loss_of(of_library)), (Q,)),
    "vmap of the gradient": (jax.vmap(jax.grad(weighing(jax.nn.softmax))), (X,)),
    "gradient of vmap": (jax.grad(weighing(jax.vmap(jax.nn.softmax))), (X,)),
    "bfloat16": (jax.grad(weighing(jax.nn.softmax)), (X.astype("bfloat16"),)),
    "in a loop": (
        lambda x: lax.scan(lambda c, _: (c - jax.grad(weighing(jax.nn.softmax))(c), None), x, None, 3)[0],
        (X,),
    ),
    "no entries": (jax.grad(weighing(jax.nn.softmax)), (X[:0],)),
}


@pytest.mark.parametrize("name", PLACES)
def test_fires(name: str) -> None:
    """However a softmax is written, along any axis, in attention, batched, and in loops."""
    f, args = PLACES[name]
    assert fired(f, softmax_gradient, *args) == 1


def normalised(x: Array) -> Array:
    """No exponentials: what is divided by its sum."""
    return x / jnp.sum(x, -1, keepdims=True)


def of_others(x: Array, y: Array) -> Array:
    """Exponentials divided by the sum of others."""
    return jnp.exp(x) / jnp.sum(jnp.exp(y), -1, keepdims=True)


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "no exponentials": (jax.grad(loss_of(normalised)), (X,)),
    "the sum of others": (jax.grad(loss_of(of_others), (0, 1)), (X, 2 * X)),
    "no product": (jax.grad(loss_of(jax.nn.softmax)), (X,)),
    "a product of what is made of it": (jax.grad(lambda x: jnp.sum(jnp.tanh((jax.nn.softmax(x) - 1) @ X[0].T))), (X,)),
    "squares": (jax.grad(loss_of(lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x) ** 2, -1, keepdims=True))), (X,)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """Quotients that are no softmax, and those that need not exist."""
    f, args = NEAR_MISSES[name]
    assert refusals(f, softmax_gradient, *args)


def test_is_as_exact_as_it_claims() -> None:
    """Its claim holds at the numbers at which rewrites go wrong, for any exponentials, sums and cotangents."""
    g, e = normal(2, 3, 4), normal(3, 3, 4)
    values = normal(4, 4, 2)

    def before(g: Array, e: Array, total: Array) -> tuple[Array, Array]:
        return softmax_gradient.before(g, e, total, axis=1), (e / total) @ values

    def along(axis: int) -> Callable[..., Any]:
        return lambda x: jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(jax.nn.softmax(x, axis) @ values)))(x)

    ag.check_rule(softmax_gradient, fires_on=[(before, (g, e, abs(e).sum(1, keepdims=True))), along(-1), along(0)])


def test_strict_keeps_it() -> None:
    """It needs no other order of sums, so that `strict` allows it."""
    f, args = PLACES["attention"]
    assert "softmax-gradient" in {d.rule for d in ag.explain(f, numerics="strict")(*args).fired}


def test_exponentials_are_not_kept() -> None:
    """Of the weights of each attention the gradient keeps one array, and not two."""
    q = normal(4, 2, 256, 4, 8)
    weights = 2 * 4 * 256 * 256 * 4

    def loss(q: Array) -> Array:
        for _ in range(3):
            q = q + attention(q, 0.5 * q, q)
        return jnp.sum(q**2)

    def planned(f: Callable[..., Any]) -> int:
        plan: Any = jax.jit(f).lower(q).compile().memory_analysis()
        return plan.temp_size_in_bytes

    natural = jax.grad(loss)
    written = ag.optimize(natural, rules=[softmax_gradient], passes=())
    # Those of the last layer XLA overwrites in time in both.
    assert planned(natural) - planned(written) > 0.9 * 2 * weights
    want = jax.jit(natural)(q)
    np.testing.assert_allclose(jax.jit(written)(q), want, rtol=1e-4, atol=1e-5 * float(abs(want).max()))
