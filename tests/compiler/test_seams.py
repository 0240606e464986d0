"""What paddings and rolls read is computed once where it is dear, bit by bit as before."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.seams import Seams
from compiler.loop_patterns import normal

X = normal(0, 300, 200)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The function with this pass alone."""
    on_report = [].append if reports is None else reports.append
    return ag.optimize(f, passes=(Seams(),), rules=(), on_report=on_report, **options)


def decided(f: Callable[..., Any], *args: Any, **options: Any) -> list[bool]:
    """For each value that seams read and that is dear, whether it is stored."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports, **options))(*args)
    return [d.fired for d in reports[-1].decisions if d.rule == "seams"]


def smoothness(axes: tuple[int, ...]) -> Callable[..., Any]:
    """The gradient of a total variation, with rounded corners."""

    def f(x: Any) -> Any:
        return sum(jnp.sum(jnp.sqrt(1 + jnp.diff(x, axis=a) ** 2)) for a in axes)

    return jax.grad(f)


def periodic(x: Any) -> Any:
    """Differences of a function of both neighbours."""
    y = x * lax.rsqrt(1 + x * x)
    return jnp.roll(y, 1, -1) + jnp.roll(y, -1, -1) - 2 * y


FIRES: dict[str, tuple[int, Callable[..., Any], tuple[Any, ...]]] = {
    "both axes": (2, smoothness((0, 1)), (X,)),
    "the last axis": (1, smoothness((1,)), (X,)),
    "three axes": (3, smoothness((0, 1, 2)), (normal(1, 30, 40, 50),)),
    "a row": (1, smoothness((0,)), (normal(2, 20_000),)),
    "under vmap": (1, jax.vmap(smoothness((0,))), (X,)),
    "rolls": (1, periodic, (X,)),
    "in a branch": (2, lambda x: lax.cond(x[0, 0] > 0, smoothness((0, 1)), lambda x: x, x), (X,)),
    "double precision": (2, smoothness((0, 1)), (X.astype("float64"),)),
}


@pytest.mark.parametrize("name", FIRES)
@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_fires(name: str, numerics: str) -> None:
    """On each such value; types and all bits stay."""
    count, f, args = FIRES[name]
    with jax.enable_x64(name == "double precision"):
        assert decided(f, *args, numerics=numerics) == [True] * count
        got, want = optimised(f, numerics=numerics)(*args), f(*args)
        assert jax.typeof(got) == jax.typeof(want)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_allclose(jax.jit(optimised(f, numerics=numerics))(*args), want, rtol=1e-5, atol=1e-5)


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cheap": (jax.grad(lambda x: jnp.sum(jnp.diff(x) ** 2)), (X,)),
    "the first axis": (smoothness((0,)), (X,)),
    "one side": (lambda x: jnp.pad(x * lax.rsqrt(1 + x * x), ((0, 0), (1, 0))), (X,)),
    "stored anyway": (lambda x: (lambda y: jnp.roll(y, 1) + jnp.roll(y, -1))(jnp.sort(jnp.sqrt(x))), (abs(X),)),
    "a quotient": (lambda x: (lambda y: jnp.roll(y, 1) + jnp.roll(y, -1))(1 / jnp.sqrt(1 + x)), (abs(X),)),
    "in a loop": (lambda x: lax.fori_loop(0, 2, lambda i, c: c + periodic(c), x), (X,)),
    "half precision": (smoothness((0, 1)), (X.astype(jnp.bfloat16),)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What is cheap, what XLA stores by itself, and what other passes see to."""
    f, args = NEAR_MISSES[name]
    assert decided(f, *args) == []


def test_says_what_does_not_pay() -> None:
    """Few entries, and one dear operation of many."""
    assert decided(smoothness((0, 1)), X[:20, :20]) == [False, False]

    def two_sides(x: Any) -> Any:
        d = x[1:] - x[:-1]
        y = d * lax.rsqrt(1 + d * d)
        return jnp.pad(y, (1, 0)) - jnp.pad(y, (0, 1))

    assert decided(two_sides, X.ravel()) == [True]
    assert decided(two_sides, normal(3, 1_000_000)) == [False]


def test_xla_computes_it_once() -> None:
    """The compiled program holds what both sides of a seam read as a value of its own."""

    def stores(f: Callable[..., Any]) -> bool:
        text = jax.jit(f).lower(X).compile().as_text()
        assert text is not None
        _, entry = text.split("ENTRY")
        return "f32[300,199]" in entry

    assert stores(optimised(smoothness((0, 1))))
    assert not stores(smoothness((0, 1)))
