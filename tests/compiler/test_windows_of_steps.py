"""Loops whose steps reduce windows of an array: all steps at once, as slices of that array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

STEPS = 20_000
X = jnp.asarray(np.random.default_rng(0).normal(size=STEPS + 64), jnp.float32)
WEIGHTS = jnp.cos(jnp.arange(16.0))


def steps(size: int, make: Callable[[Any], Any], stride: int = 1, reverse: bool = False) -> Callable[..., Any]:
    """A loop that makes something of a window in each step."""

    def f(x: Any) -> Any:
        count = (x.shape[0] - size) // stride

        def step(_: None, t: Any) -> Any:
            return None, make(lax.dynamic_slice_in_dim(x, t * stride, size))

        return lax.scan(step, None, jnp.arange(count), reverse=reverse)[1]

    return f


def shifted(x: Any) -> Any:
    """The same as a register."""

    def step(held: Any, one: Any) -> Any:
        held = jnp.roll(held, -1).at[-1].set(one)
        return held, held.mean()

    return lax.scan(step, jnp.zeros(16, x.dtype), x)[1]


AT_ONCE: dict[str, Callable[..., Any]] = {
    "sums": steps(16, jnp.sum),
    "means": steps(16, jnp.mean),
    "maxima": steps(8, jnp.max),
    "weighted": steps(16, lambda w: w @ WEIGHTS),
    "back in time": steps(16, jnp.sum, reverse=True),
    "a register": shifted,
}


def loops(f: Callable[..., Any], *args: Any) -> int:
    """How many loops a program has in the end."""
    return str(jax.make_jaxpr(ag.optimize(f))(*args)).count(" scan[")


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_sums_of_windows_take_no_loop(name: str, dtype: Any) -> None:
    """The numbers are those of the loop, the windows are in no memory, and of the loop nothing is left."""
    f = AT_ONCE[name]
    with jax.enable_x64(dtype == jnp.float64):
        x = jnp.asarray(np.asarray(X), dtype)
        plain, ours = jax.jit(f), ag.jit(f)
        want, got = plain(x), ours(x)
        assert got.dtype == want.dtype
        bound = 64 * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=bound, atol=16 * bound)
        if dtype == jnp.float32:
            assert loops(f, x) == 0
            taken = ours.lower(x).compile().memory_analysis().temp_size_in_bytes
            assert taken < 4 * x.size * x.dtype.itemsize or name == "weighted"  # whose windows are read as rows


STAY: dict[str, Callable[..., Any]] = {
    "what windows hold is handed over": steps(16, lambda w: w * 2),
    "sorted": steps(16, lambda w: jnp.sort(w)[3]),
    "windows at places of their own": lambda x: lax.scan(
        lambda _, t: (None, lax.dynamic_slice_in_dim(x, (t * t) % 1000, 500).sum()), None, jnp.arange(STEPS)
    )[1],
}


@pytest.mark.parametrize("name", STAY)
def test_near_misses(name: str) -> None:
    """What would need all windows at once does not have them."""
    f = STAY[name]
    np.testing.assert_allclose(ag.jit(f)(X), jax.jit(f)(X), rtol=1e-5, atol=1e-5)
    plain = jax.jit(f).lower(X).compile().memory_analysis().temp_size_in_bytes
    ours = ag.jit(f).lower(X).compile().memory_analysis().temp_size_in_bytes
    assert ours <= plain + 2 * X.size * 4


@pytest.mark.parametrize("name", ["sums", "weighted", "maxima"])
def test_gradients(name: str) -> None:
    """Inside and outside of what is optimised."""
    f = AT_ONCE[name]
    loss = lambda h: lambda x: jnp.sum(h(x) ** 2)  # noqa: E731
    want = jax.jit(jax.grad(loss(f)))(X)
    for got in (ag.jit(jax.grad(loss(f)))(X), jax.jit(jax.grad(loss(ag.optimize(f))))(X)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_no_steps() -> None:
    """An array that holds no window."""
    x = jnp.ones(16)
    assert ag.jit(AT_ONCE["sums"])(x).shape == (0,)
