"""Steps that depend on no other and multiply: their sum needs no loop, be it a number or not."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import normal
from compiler.programs_of import scans, traced

STEPS, ROWS, WIDE = 200, 16, 40
W, V = normal(0, WIDE, 30) / 7, normal(1, 30, 7) / 6
LONG = normal(4, WIDE, 600) / 7
BATCHES = normal(2, STEPS, ROWS, WIDE), normal(3, STEPS, ROWS, 7)


def errors(w: Any, batch: Any) -> Any:
    """Of a small network, on one batch."""
    return jnp.tanh(batch[0] @ w) @ V.astype(w.dtype) - batch[1]


def loss(w: Any, x: Any, y: Any) -> Any:
    """The sum over batches, in a dictionary."""
    add = lambda s, b: ({"loss": s["loss"] + jnp.sum(errors(w, b) ** 2)}, None)  # noqa: E731
    return lax.scan(add, {"loss": jnp.zeros((), w.dtype)}, (x, y))[0]["loss"]


FIRES: dict[str, Callable[..., Any]] = {
    "a loss": loss,
    "of a counted loop": lambda w, x, y: lax.fori_loop(
        0, STEPS, lambda i, s: s + jnp.mean(errors(w, (x[i], y[i])) ** 2), jnp.zeros((), w.dtype)
    ),
    "a row": lambda w, x, y: lax.scan(lambda s, b: (s + jnp.sum(jnp.tanh(b @ w), 0), None), jnp.zeros(30, w.dtype), x)[
        0
    ],
    "backwards": lambda w, x, y: lax.scan(
        lambda s, b: (s + jnp.sum(errors(w, b) ** 2), None), jnp.zeros((), w.dtype), (x, y), reverse=True
    )[0],
}
STAYS: dict[str, Callable[..., Any]] = {
    "a step that reads the sum": lambda w, x, y: lax.scan(
        lambda s, b: (s + jnp.sum(jnp.tanh(b @ w + s)), None), jnp.zeros((), w.dtype), x
    )[0],
    "steps of much memory": lambda w, x, y: lax.scan(
        lambda s, b: (s + jnp.sum(jnp.tanh(b @ LONG)), None), jnp.zeros((), w.dtype), x
    )[0],
    "work on entries alone": lambda w, x, y: lax.scan(
        lambda s, b: (s + jnp.sin(b), None), jnp.zeros((ROWS, WIDE), w.dtype), x
    )[0],
}


@pytest.mark.parametrize("form", FIRES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_the_sum_needs_no_loop(form: str, dtype: Any) -> None:
    """No loop is left, and the sum is as near to that of 64-bit numbers as a sum of so many is."""
    f = FIRES[form]
    exact = [np.asarray(x, np.float64) for x in (W, *BATCHES)]
    with jax.enable_x64():
        want = f(*map(jnp.asarray, exact))
        args = [jnp.asarray(x, dtype) for x in exact]
        assert len(scans(traced(f, *args))) == 1
        assert not scans(traced(ag.optimize(f), *args))
        got, plain = jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args)
        assert got.dtype == plain.dtype
        off, bound = (np.max(np.abs(np.asarray(x, np.float64) - want)) for x in (got, plain))
        assert off <= 2 * bound + STEPS * float(jnp.finfo(dtype).eps) * np.max(np.abs(want))


@pytest.mark.parametrize("form", STAYS)
def test_other_sums_stay_in_their_loops(form: str) -> None:
    """A sum that is read, or that is one kernel with its steps, or whose steps would take memory all at once."""
    f = STAYS[form]
    assert len(scans(traced(ag.optimize(f), W, *BATCHES))) == 1
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(W, *BATCHES), jax.jit(f)(W, *BATCHES), rtol=2e-4, atol=2e-4)


def test_gradients_need_no_loop() -> None:
    """The loss and its gradient by weights and inputs, mapped and in a step of descent too."""
    gradient = jax.value_and_grad(loss, (0, 1))
    assert len(scans(traced(gradient, W, *BATCHES))) == 2
    assert not scans(traced(ag.optimize(gradient), W, *BATCHES))
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)  # noqa: E731
    jax.tree.map(close, jax.jit(ag.optimize(gradient))(W, *BATCHES), jax.jit(gradient)(W, *BATCHES))
    jax.tree.map(close, jax.grad(ag.optimize(loss))(W, *BATCHES), jax.grad(loss)(W, *BATCHES))
    several = jax.vmap(loss, (0, None, None))
    jax.tree.map(
        close, jax.jit(ag.optimize(several))(jnp.stack([W, -W]), *BATCHES), several(jnp.stack([W, -W]), *BATCHES)
    )


def test_of_no_rows() -> None:
    """Batches without rows give the sum of nothing."""
    args = W, BATCHES[0][:, :0], BATCHES[1][:, :0]
    for f in (loss, jax.grad(loss)):
        np.testing.assert_array_equal(jax.jit(ag.optimize(f))(*args), 0 * f(*args))
