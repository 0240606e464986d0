"""A diagonal that is filled is chosen by places, with the same bits, where what it is in goes in blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax
from aerogel._jax import ClosedJaxpr
from aerogel.compiler.fusion.canonical import canonical
from aerogel.compiler.passes.streaming import Streaming
from aerogel.compiler.streams.filled_diagonals import with_filled_diagonals
from aerogel.compiler.streams.stream_plan import Sizes
from compiler.loop_patterns import normal
from compiler.programs_of import traced

X = normal(0, 40, 40)
WIDE, TALL = normal(1, 20, 50), normal(2, 50, 20)
D = normal(3, 20)

FILLED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "fill_diagonal": (lambda x: jnp.fill_diagonal(jnp.exp(x), 0.0, inplace=False), (X,)),
    "at diag_indices": (lambda x: jnp.exp(x).at[jnp.diag_indices(40)].set(-jnp.inf), (X,)),
    "at arange": (lambda x: (1 / x).at[jnp.arange(40), jnp.arange(40)].set(jnp.nan), (X,)),
    "a vector": (lambda x, d: jnp.sin(x).at[jnp.diag_indices(20)].set(d), (WIDE, D)),
    "a vector, tall": (lambda x, d: jnp.sin(x).at[jnp.diag_indices(20)].set(d), (TALL, D)),
    "added": (lambda x, d: jnp.sin(x).at[jnp.diag_indices(20)].add(d), (WIDE, D)),
    "into numbers": (lambda d: jnp.full((20, 30), -0.0).at[jnp.diag_indices(20)].add(d), (D,)),
    "integers": (lambda x: (x > 0).astype(int).at[jnp.diag_indices(40)].set(7), (X,)),
    "a product": (lambda x: (x @ x).at[jnp.diag_indices(40)].add(1.0), (X,)),
}


def chosen(f: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], int]:
    """The program of `f` with filled diagonals chosen by places, and how many equations still write by indices."""
    program = traced(f, *args).jaxpr
    jaxpr = with_filled_diagonals(canonical(program), 0)
    return lambda *args: _jax.evaluate(ClosedJaxpr(jaxpr, ()), args), str(jaxpr).count("scatter")


@pytest.mark.parametrize("name", FILLED)
def test_filled(name: str) -> None:
    """No entry is written by itself, and no bit is another."""
    f, args = FILLED[name]
    assert "scatter" in str(traced(f, *args).jaxpr)
    made, left = chosen(f, *args)
    assert left == 0
    assert np.asarray(jax.jit(made)(*args)[0]).tobytes() == np.asarray(jax.jit(f)(*args)).tobytes()


def loss(x: Any, v: Any) -> Any:
    """Of points, with all of themselves left out."""
    near = 1 / (1 + ((x[:, None] - x[None]) ** 2).sum(-1))
    near = jnp.fill_diagonal(near, 0.0, inplace=False)
    return (v * (near @ v) / near.sum()).sum()


def test_in_blocks() -> None:
    """A filled diagonal is in blocks, value and gradient; where nothing goes in blocks it is written as it was."""
    args = normal(4, 97, 2), normal(5, 97)
    for f in (loss, jax.value_and_grad(loss, argnums=(0, 1))):
        fast = jax.jit(ag.optimize(f, passes=(Streaming(Sizes(1 << 12, at_any_price=True)),)))
        assert "while" in fast.lower(*args).as_text()
        for got, want in zip(jax.tree.leaves(fast(*args)), jax.tree.leaves(f(*args)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert "scatter" in str(traced(ag.optimize(loss), *args).jaxpr)


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "in memory": (lambda x: x.at[jnp.diag_indices(40)].set(0.0), (X,)),
    "another diagonal": (lambda x: jnp.exp(x).at[jnp.arange(39), jnp.arange(1, 40)].set(0.0), (X,)),
    "part of it": (lambda x: jnp.exp(x).at[jnp.diag_indices(20)].set(0.0), (X,)),
    "backwards": (lambda x: jnp.exp(x).at[jnp.arange(40), jnp.arange(39, -1, -1)].set(0.0), (X,)),
    "multiplied": (lambda x: jnp.exp(x).at[jnp.diag_indices(40)].multiply(2.0), (X,)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """What comes from outside, or is written elsewhere, is written as it was."""
    f, args = NEAR_MISSES[name]
    assert chosen(f, *args)[1] > 0
