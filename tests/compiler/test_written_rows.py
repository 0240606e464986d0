"""Rows into which one entry is written are one-hot rows, and a product of these is a lookup."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.networks.written_rows import WRITTEN
from aerogel.compiler.program import inner_jaxprs

N, M = 37, 53
Formula = Callable[..., Any]
rng = np.random.default_rng(0)
v, a, b = (jnp.asarray(rng.standard_normal(shape), "float32") for shape in ((N,), (M, 5), (N, 5)))
i = jnp.asarray(rng.integers(-M - 5, M + 5, N))  # some are outside: nothing is written there

SEEN: dict[str, Formula] = {
    "written": lambda v, a, b: jnp.zeros((N, M)).at[jnp.arange(N), i].set(1.0) @ a,
    "added": lambda v, a, b: jnp.zeros((N, M)).at[jnp.arange(N), i].add(v) @ a,
    "in columns": lambda v, a, b: jnp.zeros((M, N)).at[i, jnp.arange(N)].set(v) @ b,
    "vmap": lambda v, a, b: jax.vmap(lambda k, s: jnp.zeros(M).at[k].set(s) @ a)(i, v),
    "int8 indices": lambda v, a, b: jnp.zeros((N, M)).at[jnp.arange(N), i.astype("int8")].set(v) @ a,
    "a loop": lambda v, a, b: jax.lax.map(
        lambda s: jnp.zeros((N, M)).at[jnp.arange(N), i].set(s * v) @ a, jnp.arange(3.0)
    ),
}
LEFT: dict[str, Formula] = {
    "a result": lambda v, a, b: jnp.zeros((N, M)).at[jnp.arange(N), i].set(v),
    "integers": lambda v, a, b: jnp.zeros((N, M), int).at[jnp.arange(N), i].set(3),
    "not into zeros": lambda v, a, b: jnp.ones((N, M)).at[jnp.arange(N), i].set(v) @ a,
    "a diagonal": lambda v, a, b: jnp.zeros((N, M)).at[jnp.arange(N), jnp.arange(N)].set(v) @ a,
    "any rows": lambda v, a, b: jnp.zeros((N, M)).at[i % N, i].set(v) @ a,
    "every second row": lambda v, a, b: jnp.zeros((2 * N, M)).at[2 * jnp.arange(N), i].set(v) @ a,
    "fewer rows": lambda v, a, b: jnp.zeros((N + 1, M)).at[jnp.arange(N), i].set(v) @ a,
    "the nearest place": lambda v, a, b: jnp.zeros((N, M)).at[jnp.arange(N), i].set(v, mode="clip") @ a,
    "a product": lambda v, a, b: jnp.zeros((N, M)).at[jnp.arange(N), i].mul(v) @ a,
    "rows of rows": lambda v, a, b: jnp.zeros((N, M, 5)).at[jnp.arange(N), i].set(b),
}


def seen(f: Formula) -> int:
    """How many were found."""
    return sum(d.what == WRITTEN for d in ag.explain(f)(v, a, b).fired)


def scatters(jaxpr: Any) -> int:
    """How many equations write by index, in loops too."""
    own = sum(eqn.primitive.name.startswith("scatter") for eqn in jaxpr.eqns)
    return own + sum(scatters(inner) for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn))


@pytest.mark.parametrize("name", SEEN)
def test_one_entry_of_each_row(name: str) -> None:
    """The numbers are the same to the bit but for sums, with their gradients; nothing is written by index."""
    f = SEEN[name]
    assert seen(f) == 1
    assert not scatters(jax.make_jaxpr(ag.optimize(f))(v, a, b).jaxpr)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(v, a, b), f(v, a, b), rtol=1e-6, atol=1e-6)
    loss = lambda *args: jnp.sum(jnp.sin(f(*args)))  # noqa: E731
    for g in (jax.grad(ag.optimize(loss), (0, 1, 2)), ag.grad(loss, (0, 1, 2))):
        for got, want in zip(g(v, a, b), jax.grad(loss, (0, 1, 2))(v, a, b), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LEFT)
def test_near_misses_are_written(name: str) -> None:
    """What is written elsewhere, or on what is no zero, or is no factor, stays as it is."""
    f = LEFT[name]
    assert seen(f) == 0
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(v, a, b), f(v, a, b), rtol=1e-6, atol=1e-6)


def test_no_rows() -> None:
    """Nothing to write, and nothing to write into."""
    for n, m in ((0, 4), (3, 1)):
        f = lambda v, n=n, m=m: jnp.zeros((n, m)).at[jnp.arange(n), jnp.zeros(n, int)].set(v)  # noqa: E731
        np.testing.assert_array_equal(jax.jit(ag.optimize(f))(jnp.ones(n)), f(jnp.ones(n)))
