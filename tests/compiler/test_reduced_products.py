"""Products that are reduced as they are made, in one call of a library: whole, or in few blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.program import inner_jaxprs

Formula = Callable[..., Any]
AT_ONCE: dict[str, Formula] = {
    "least": lambda x, y: (x @ y.T).min(1),
    "largest of columns": lambda x, y: (3 - x @ y.T).max(0),
    "polynomial": lambda x, y: ((x @ y.T + 1) ** 3).sum(1),
    "exponentials": lambda x, y: jnp.exp(x @ y.T / 4).sum(),
}


def squared(x: Any, y: Any) -> Any:
    """Squared distances, by a product."""
    return (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T


def points(m: int, n: int, k: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    """Types of two clouds."""
    return jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((n, k), dtype)


def decisions(f: Formula, *args: Any, **options: Any) -> list[Any]:
    """Those of streaming, among all passes."""
    found: list[Any] = []
    jax.eval_shape(ag.optimize(f, on_report=found.append, **options), *args)
    return [d for d in found[0].decisions if d.rule == "streaming"]


def is_whole(f: Formula, *args: Any) -> bool:
    """Whether a product is left for the reason that it is reduced as it is made."""
    found = decisions(f, *args)
    return not any(d.fired for d in found) and any("the call that makes it reduces it" in d.reason for d in found)


def steps(f: Formula, *args: Any) -> list[int]:
    """The lengths of the loops."""

    def of(jaxpr: Any) -> list[int]:
        own = [eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
        return own + [n for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn) for n in of(inner)]

    return of(jax.make_jaxpr(ag.optimize(f))(*args).jaxpr)


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_is_reduced_at_once_stays_whole(name: str) -> None:
    """Of few coordinates, or of two clouds that are not as large."""
    f = AT_ONCE[name]
    assert is_whole(f, *points(4000, 4000, 3))
    assert is_whole(f, *points(8000, 4160, 8))
    with jax.enable_x64(True):
        assert is_whole(f, *points(4000, 4000, 4, np.float64))
        assert is_whole(f, *points(4000, 5003, 8, np.float64))


def test_near_misses_go_in_blocks() -> None:
    """What the library stores, or something else does, goes in blocks as before."""
    least = AT_ONCE["least"]
    assert not is_whole(least, *points(8192, 8192, 8))  # square, with operands of more than 128 KiB
    assert not is_whole(lambda x, y: jnp.sin(x @ y.T).sum(1), *points(8000, 4160, 3))
    assert not is_whole(lambda x, y: (x @ y.T < 0.5).sum(1), *points(8000, 4160, 3))
    assert not is_whole(lambda x, y: jnp.exp(-squared(x, y)).sum(1), *points(8000, 4160, 3))
    assert not is_whole(lambda x, y: jax.nn.logsumexp(x @ y.T, 1), *points(8000, 4160, 3))
    assert not is_whole(least, *points(8000, 4160, 3, jnp.bfloat16))
    assert not is_whole(least, *points(65_536, 32_768, 3))  # if it were stored after all, it would fill the memory
    assert not is_whole(jax.value_and_grad(lambda x, y: jnp.exp(x @ y.T).sum()), *points(8000, 4160, 3))


def test_a_gradient_that_is_to_come_has_its_blocks() -> None:
    """Else it would keep the product."""
    gradient = jax.grad(ag.optimize(lambda x, y: jnp.exp(x @ y.T).sum()))
    args = points(8192, 8000, 3)
    analysis = jax.jit(gradient).lower(*args).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 20e6


def test_what_is_in_no_memory_takes_few_blocks() -> None:
    """Each block is a call: of squared distances of 4,000 and 5,003 points there are few, not 40."""
    args = points(4000, 5003, 3)
    assert max(steps(lambda x, y: jnp.exp(-squared(x, y)).sum(1), *args)) <= 8
    assert max(steps(lambda x, y: squared(x, y).min(0), *args)) <= 8
    # What has several readers is stored, and stays in a cache.
    assert max(steps(lambda x, y: jax.nn.logsumexp(-squared(x, y), 1), *args)) > 16
    assert max(steps(jax.value_and_grad(lambda x, y: jnp.exp(-squared(x, y)).sum()), *args)) > 16
    assert max(steps(lambda x, y: jnp.sin(squared(x, y)).sum(1), *args)) > 16


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2203, 2311, 3), (2311, 2311, 9)])
def test_numbers(dtype: str, shape: tuple[int, int, int]) -> None:
    """They are those of plain JAX, not-a-numbers too."""
    with jax.enable_x64(dtype == "float64"):
        m, n, k = shape
        rng = np.random.default_rng(m)
        x, y = (jnp.asarray(rng.normal(size=(size, k)), dtype) for size in (m, n))
        x = x.at[5].set(jnp.nan)
        for f in (*AT_ONCE.values(), lambda x, y: jnp.exp(-squared(x, y)).sum(1), lambda x, y: squared(x, y).min(0)):
            want, got = jax.jit(f)(x, y), ag.jit(f)(x, y)
            assert want.dtype == got.dtype
            np.testing.assert_allclose(got, want, rtol=1e-4 if dtype == "float32" else 1e-11, atol=1e-4)
