"""Weighted sums over the rows of square arrays are as fast as those of others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.passes.square_sums import NAME
from aerogel.compiler.readers.square_sums import LEAST_SIDE

N = 2 * LEAST_SIDE  # of fewer, others make products of matrices


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers of float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How often the pass did something."""
    return sum(d.rule == NAME for d in ag.explain(f, **options)(*args).fired)


def distances(x: Any) -> Any:
    """The squared distances of numbers to each other."""
    return (x[:, None] - x) ** 2


def regression(a: Any, x: Any, b: Any) -> Any:
    """A loss over all pairs, whose gradient adds up weighted rows."""
    return jnp.mean((a[:, None] * x - b[:, None]) ** 2)


w, x, X = normal(0, N), normal(1, N), normal(2, N, N)
SLOW: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a kernel": (lambda w, x: (jnp.exp(-distances(x)) * w[:, None]).sum(0), (w, x)),
    "weights in front": (lambda w, X: jnp.mean(w[:, None] * jnp.tanh(X), 0), (w, X)),
    "a quotient": (lambda w, X: jnp.sum(jnp.tanh(X) / (2 + w * w)[:, None], axis=-2), (w, X)),
    "less": (lambda w, X: jnp.sum(-(jnp.tanh(X) * w[:, None]), 0), (w, X)),
    "a mask": (lambda w, X: jnp.sum((w > 0)[:, None] * X**3, 0), (w, X)),
    "bfloat16": (lambda w, X: jnp.sum(jnp.tanh(X) * w[:, None], 0), (w.astype("bfloat16"), X.astype("bfloat16"))),
    "vmap": (jax.vmap(lambda w, X: jnp.sum(jnp.tanh(X) * w[:, None], 0), (None, 0)), (w, normal(3, 2, N, N))),
    "a loop": (
        lambda w, X: jax.lax.scan(lambda c, _: ((jnp.tanh(X + c) * w[:, None]).sum(0) / N, None), w, None, length=3)[0],
        (w, X),
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_it_fires(name: str) -> None:
    """Whatever the weights stand before, in any place and in loops; the numbers are those of the natural form."""
    f, args = SLOW[name]
    assert fired(f, *args) == 1
    got, want = jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args)
    tolerance = 2e-2 if want.dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(
        np.asarray(got, "float32"), np.asarray(want, "float32"), atol=tolerance * float(jnp.max(jnp.abs(want)))
    )


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "not square": (lambda w, X: (jnp.tanh(X) * w[:, None]).sum(0), (normal(0, N + 1), normal(1, N + 1, N))),
    "small": (lambda w, X: (jnp.tanh(X) * w[:, None]).sum(0), (normal(0, 511), normal(1, 511, 511))),
    "along the rows": (lambda w, X: (jnp.tanh(X) * w).sum(1), (w, X)),
    "weights of columns": (lambda w, X: (jnp.tanh(X) * w).sum(0), (w, X)),
    "an array that is there": (lambda w, X: (X * w[:, None]).sum(0), (w, X)),
    "one that others read": (lambda w, X: ((y := jnp.tanh(X)), (y * w[:, None]).sum(0)), (w, X)),
    "over all": (lambda w, X: (jnp.tanh(X) * w[:, None]).sum(), (w, X)),
    "another operation behind": (lambda w, X: (jnp.tanh(X) * w[:, None] + X).sum(0), (w, X)),
    "integers": (lambda w, X: (jnp.abs(X) * w[:, None]).sum(0), (w.astype("int32"), X.astype("int32"))),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left(name: str) -> None:
    """Sums that the library is as fast at stay as they are."""
    f, args = LEFT[name]
    assert fired(f, *args) == 0


def test_a_gradient_over_all_pairs_is_no_such_sum() -> None:
    """Its array is written once for all of its sums, and none of them computes it."""
    f = jax.value_and_grad(regression, (0, 1, 2))
    args = normal(0, N), normal(1, N), normal(2, N)
    assert fired(f, *args) == 0
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * float(jnp.max(jnp.abs(want))))


def test_nothing_in_a_row_is_another_number() -> None:
    """What is added changes no number: inf and nan stay where they are."""
    f = lambda w, X: (jnp.square(X) * w[:, None]).sum(0)  # noqa: E731
    odd = X.at[3, 5].set(jnp.inf).at[4, 6].set(jnp.nan)
    assert fired(f, w, odd) == 1
    got, want = jax.jit(ag.optimize(f))(w, odd), jax.jit(f)(w, odd)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


def test_strict_leaves_the_order_of_sums() -> None:
    """The library adds up in another order: not under "strict"."""
    f, args = SLOW["a kernel"]
    assert fired(f, *args, numerics="strict") == 0
