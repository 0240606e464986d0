"""Products with triangles of ones are running sums."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.passes.contraction import ContractionOrder
from compiler.loop_patterns import normal

N = 400
X, BATCH = normal(0, N, 24), normal(1, 3, N, 12)

# fmt: off
RUNNING: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "tri": (lambda x: jnp.tri(N) @ x, (X,)),
    "tril of ones": (lambda x: jnp.tril(jnp.ones((N, N))) @ x, (X,)),
    "triu of ones, turned": (lambda x: jnp.triu(jnp.ones((N, N))).T @ x, (X,)),
    "from each place on": (lambda x: jnp.triu(jnp.ones((N, N))) @ x, (X,)),
    "on the right": (lambda x: x @ jnp.tri(N), (X.T,)),
    "on the right, turned": (lambda x: x @ jnp.tri(N).T, (X.T,)),
    "without its own": (lambda x: jnp.tri(N, k=-1) @ x, (X,)),
    "without its own, from behind": (lambda x: jnp.einsum("st,sd->td", jnp.tri(N, k=-1), x), (X,)),
    "a mask of counters": (lambda x: (jnp.arange(N)[:, None] >= jnp.arange(N)) @ x, (X,)),
    "a mask by where": (lambda x: jnp.where(jnp.arange(N)[:, None] < jnp.arange(N), 0.0, 1.0) @ x, (X,)),
    "einsum of a batch": (lambda x: jnp.einsum("ts,bsd->btd", jnp.tri(N), x), (BATCH,)),
    "vmap": (jax.vmap(lambda x: jnp.tri(N) @ x), (BATCH,)),
}
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "few": (lambda x: jnp.tri(16) @ x, (X[:16],)),
    "a band": (lambda x: (jnp.tri(N) - jnp.tri(N, k=-3)) @ x, (X,)),
    "further off": (lambda x: jnp.tri(N, k=2) @ x, (X,)),
    "a wide one": (lambda x: jnp.tri(N - 9, N) @ x, (X,)),
    "no ones": (lambda x: jnp.tril(x @ x.T) @ x, (X,)),
    "bfloat16": (lambda x: jnp.tri(N, dtype=x.dtype) @ x, (X.astype("bfloat16"),)),
}
# fmt: on


def optimised(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """With this pass alone."""
    return ag.optimize(f, passes=(ContractionOrder(),), **options)


def running(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Cumulative sums of a program."""
    return sum(eqn.primitive.name == "cumsum" for eqn in jax.make_jaxpr(f)(*args).eqns)


@pytest.mark.parametrize("name", RUNNING)
def test_a_triangle_of_ones_sums_up(name: str) -> None:
    """In the value and in its gradient, as JAX writes it; as near to the exact numbers as the product is."""
    f, args = RUNNING[name]
    assert running(f, args) == 0
    made = optimised(f)
    assert running(made, args) == 1
    exact = f(*(np.asarray(x, np.float64) for x in args))
    np.testing.assert_allclose(jax.jit(made)(*args), exact, rtol=1e-4, atol=1e-3)

    def gradient(h: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda x: jnp.sin(h(x) / 9).sum())

    assert running(optimised(gradient(f)), args) == 2
    np.testing.assert_allclose(jax.jit(optimised(gradient(f)))(*args), gradient(f)(*args), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_such_triangle_stays(name: str) -> None:
    """Other shapes, other entries, few of them; and numbers that lose too much when they are summed one by one."""
    f, args = OTHERS[name]
    assert running(optimised(f), args) == 0


def test_settings() -> None:
    """`strict` multiplies by zeros, too."""
    f, args = RUNNING["tri"]
    assert running(optimised(f, numerics="strict"), args) == 0
