"""What a loop reads that its steps can make from less: it is made in the steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import made, normal

T, N = 32, 512
SIZE = T * 8 * N


def total(xs: Any) -> Any:
    """A loop over inputs that stacks nothing."""
    return lax.scan(lambda c, x: (0.9 * c + jnp.sin(x), None), jnp.zeros(xs.shape[1:], xs.dtype), xs)[0]


V, W = normal(0, 8, N), normal(1, T)
INPUTS: dict[str, Callable[..., Any]] = {
    "broadcast": lambda v, w: jnp.broadcast_to(v, (T, 8, N)),
    "outer product": lambda v, w: w[:, None, None] * v,
    "counter": lambda v, w: v + jnp.arange(T, dtype=np.float32)[:, None, None],
    "iota": lambda v, w: lax.broadcasted_iota(jnp.float32, (T, 8, N), 0) * v,
    "comparison": lambda v, w: jnp.where(w[:, None, None] > 0, v, -v),
    "padded": lambda v, w: jnp.pad(v[None] * w[:8, None, None], ((4, T - 12), (0, 0), (0, 0))) * 2,
    "einsum": lambda v, w: jnp.einsum("t,bn->tbn", w, v),
}


@pytest.mark.parametrize("name", INPUTS)
def test_it_need_not_exist(name: str) -> None:
    """The natural program makes the input of all steps, the optimised one does not; values and gradients agree."""

    def f(v, w):
        return total(INPUTS[name](v, w))

    assert made(jax.make_jaxpr(f)(V, W).jaxpr, SIZE)
    assert made(jax.make_jaxpr(ag.optimize(f))(V, W).jaxpr, SIZE) == []
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(V, W), jax.jit(f)(V, W), rtol=1e-5, atol=1e-5)
    g = jax.grad(lambda v, w: (f(v, w) ** 2).sum(), (0, 1))
    for got, want in zip(jax.jit(ag.optimize(g))(V, W), jax.jit(g)(V, W), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_what_is_dear_or_needed_elsewhere_is_made_once() -> None:
    """A value that is returned as well, and small ones, are read from memory."""

    def returned(v: Any, w: Any) -> Any:
        xs = w[:, None, None] * v
        return total(xs), xs

    assert len(made(jax.make_jaxpr(ag.optimize(returned))(V, W).jaxpr, SIZE)) == len(
        made(jax.make_jaxpr(returned)(V, W).jaxpr, SIZE)
    )

    def small(v, w):
        return total(w[:, None] * v[0, :3])

    assert {d.rule for d in ag.explain(small)(V, W).fired} <= {"loop-kernel"}


def test_the_decision_names_what_is_made() -> None:
    """The report says which input no longer exists."""
    report = ag.explain(lambda v, w: total(w[:, None, None] * v))(V, W)
    assert [d.what for d in report.fired] == ["`mul`, an input of the loop, is made in the loop, step by step"]
    assert report.fired[0].peak_bytes_saved == 4 * SIZE
    assert report.fired[0].where.startswith("test_producers.py:")


def test_a_value_that_is_read_often_is_read_once() -> None:
    """The cotangents of Huber's loss read the states four times over: the backward loop makes them from one read."""

    def loss(x):
        ys = lax.scan(lambda c, _: (c + 0.01 * jnp.sin(3 * c),) * 2, x, None, length=T)[1]
        d = ys - 0.5
        return jnp.where(jnp.abs(d) < 0.1, 0.5 * d**2, 0.1 * (jnp.abs(d) - 0.05)).mean()

    natural = jax.make_jaxpr(jax.grad(loss))(V).jaxpr
    optimised = jax.make_jaxpr(ag.optimize(jax.grad(loss)))(V).jaxpr
    assert len(made(natural, SIZE)) > 10
    assert len(made(optimised, SIZE)) == 2  # what the backward loop reads: the states, and the cosines
    np.testing.assert_allclose(
        jax.jit(ag.optimize(jax.grad(loss)))(V), jax.jit(jax.grad(loss))(V), rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("rows", [slice(1, None), slice(None, -1), slice(3, -2)])
def test_rows_of_what_exists_are_read_where_they_stand(rows: slice) -> None:
    """A padded part of an array is made in the steps from that array: neither the part nor the padded one exist."""

    def f(x, a):
        part = 0.5 * jnp.sin(a)[rows]
        start, stop, _ = rows.indices(T)
        padded = jnp.pad(part, ((start, T - stop), (0, 0), (0, 0)))
        return lax.scan(lambda c, v: (0.9 * c + v, None), x, padded)[0], jnp.sin(a)

    a = normal(7, T, *V.shape)
    optimised = ag.optimize(f)
    assert len(made(jax.make_jaxpr(optimised)(V, a).jaxpr, SIZE // 4)) == 1  # the sines, which are a result
    for got, want in zip(jax.jit(optimised)(V, a), jax.jit(f)(V, a), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("wanted", "amplified", "moves"), [(True, False, False), (False, False, True), (True, True, True)]
)
def test_exponentials_that_others_read_are_not_made_again(wanted: bool, amplified: bool, moves: bool) -> None:
    """Computed in the steps and after the loop, ratios took 1.15 to 1.26 of the time; what is far larger still is."""

    def f(x: Any) -> Any:
        scale = jnp.linspace(0.5, 1.0, 64 if amplified else 1)
        ratios = jnp.minimum(1.0, jnp.exp(x[..., None] * scale))
        ys = lax.scan(lambda c, r: (r * c + 1, c.sum()), jnp.zeros(ratios.shape[1:]), ratios)[1]
        return ys.sum(), jnp.cos(ratios).sum() if wanted else 0.0

    x = jnp.linspace(-1.0, 1.0, 100 * 256).reshape(100, 256)
    report = ag.explain(f)(x)
    assert any("an input of the loop, is made in the loop" in d.what for d in report.fired) == moves
    ag.verify(f)(x)
