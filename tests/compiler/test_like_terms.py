"""Terms of a loop's sum that are made alike: what makes them is done once in a step, to their sum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.loop_linear import LoopLinear
from compiler.loop_patterns import normal
from compiler.test_loop_linear import alone, in_loops

A, B = (jnp.asarray(normal(seed, 64, 64)) / 8 for seed in (0, 1))
XS = jnp.asarray(normal(2, 100, 64))
ROWS = jnp.asarray(normal(3, 100, 8, 4096))

TERMS: dict[str, tuple[Callable[[Any], Any], str, int]] = {
    "products with one matrix": (lambda x: A @ jnp.sin(x) + A @ jnp.cos(x) + A @ (x * x), "dot_general", 1),
    "and with two": (lambda x: A @ jnp.sin(x) + B @ jnp.cos(x) + A @ (x * x) + B @ x**3, "dot_general", 2),
    "a product of a product": (lambda x: B @ (A @ jnp.sin(x)) + B @ (A @ jnp.cos(x)), "dot_general", 2),
    "running sums": (lambda x: jnp.cumsum(A * jnp.sin(x)) + jnp.cumsum(A * jnp.cos(x)), "cumsum", 1),
    "one term twice": (lambda x: (y := A @ jnp.sin(x)) + A @ jnp.cos(x) + y, "dot_general", 2),
}
KEPT: dict[str, tuple[Callable[[Any], Any], str, int]] = {
    "products with two matrices": (lambda x: A @ jnp.sin(x) + B @ jnp.cos(x), "dot_general", 2),
    "from two sides": (lambda x: A @ jnp.sin(x) + jnp.cos(x) @ A, "dot_general", 2),
    "in two directions": (
        lambda x: jnp.cumsum(A * jnp.sin(x)) + lax.cumsum((A * jnp.cos(x)).ravel(), reverse=True),
        "cumsum",
        2,
    ),
    "not linear": (lambda x: jnp.sort(A @ jnp.sin(x)) + jnp.sort(A @ jnp.cos(x)), "sort", 2),
    "read besides": (lambda x: (y := A @ jnp.sin(x)) + A @ jnp.cos(x) + jnp.tanh(y), "dot_general", 2),
}


def added_up(term: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The sum of a term over all steps, of which the steps show the largest part: it does not leave the loop."""

    def f(xs: Any) -> Any:
        start = jnp.zeros_like(term(xs[0]))
        return lax.scan(lambda s, x: (s + term(x), None), start, xs)[0]

    return f


def together(f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`f` with like terms made together, and nothing of the sums after the loop."""
    monkeypatch.setattr("aerogel.compiler.passes.loop_linear.find_linear", lambda *_: [])
    return alone(f)


def agree(f: Callable[..., Any], g: Callable[..., Any], *args: Any, rtol: float = 1e-4) -> None:
    """The two give the same, to the rounding of their largest entry."""
    for got, want in zip(*(jax.tree.leaves(jax.jit(h)(*args)) for h in (g, f)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * float(jnp.abs(want).max(initial=1.0)))


@pytest.mark.parametrize("name", TERMS)
def test_what_makes_the_terms_is_done_once_in_a_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms by the same matrix are one product with the sum of what it multiplied, and so on; gradients agree."""
    term, primitive, left = TERMS[name]
    f = added_up(term)
    assert in_loops(f, XS).count(primitive) > left or name == "one term twice"
    g = together(f, monkeypatch)
    assert in_loops(g, XS).count(primitive) == left
    agree(f, g, XS)
    agree(*(jax.grad(lambda xs, h=h: h(xs).sum()) for h in (f, g)), XS)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_alike_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other matrices or parameters, what is not linear, and what is read by others too."""
    term, primitive, count = KEPT[name]
    f = added_up(term)
    g = together(f, monkeypatch)
    assert in_loops(f, XS).count(primitive) == in_loops(g, XS).count(primitive) >= count
    agree(f, g, XS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64", "int32"])
def test_other_types(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in other types; of whole numbers to the last digit."""
    with jax.enable_x64(dtype == "float64"):
        a = (8 * A).astype(dtype)
        xs = (4 * XS).astype(dtype)

        def f(xs: Any) -> Any:
            return lax.scan(lambda s, x: (s + a @ (x * x) + a @ (x + x), None), xs[0], xs)[0]

        g = together(f, monkeypatch)
        assert in_loops(f, xs).count("dot_general") == 2 * in_loops(g, xs).count("dot_general") == 2
        agree(f, g, xs, rtol={"int32": 0, "float64": 1e-12, "complex64": 1e-4}.get(dtype, 0.1))


def test_terms_without_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of nothing are left alone or right."""
    xs = jnp.zeros((100, 0))
    f = added_up(lambda x: jnp.zeros((4, 0)) @ jnp.sin(x) + jnp.zeros((4, 0)) @ jnp.cos(x))
    agree(f, together(f, monkeypatch), xs)


def slopes(equations: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Value and gradient, by its parameters and its start, of predator and prey by Runge and Kutta's method."""

    def loss(rates: Any, start: Any) -> Any:
        def slope(y: Any) -> Any:
            a, b = y[0], y[1]
            return jnp.stack([rates[0] * a - rates[1] * a * b, rates[2] * a * b - rates[3] * b])

        def step(y: Any, _: Any) -> Any:
            k1 = slope(y)
            k2 = slope(y + 0.01 * k1)
            k3 = slope(y + 0.01 * k2)
            y = y + 0.02 / 6 * (k1 + 4 * k2 + k3)
            return y, jnp.sum(y**2)

        return jnp.mean(lax.scan(step, start, None, length=100)[1])

    start = jnp.abs(jnp.asarray(normal(4, 2, equations) if equations else normal(4, 2))) + 0.5
    return jax.value_and_grad(loss, (0, 1)), (jnp.array([1.0, 0.5, 0.4, 0.8]), start)


def test_a_gradient_by_parameters_of_many_equations_adds_up_once_a_step() -> None:
    """Of three slopes a parameter's shares are added before they are summed up over the equations, in the loop."""
    f, args = slopes(4096)
    fired = [d for d in ag.explain(f)(*args).fired if d.rule == "loop-linear"]
    assert any("several terms" in d.what for d in fired)
    assert not any("steps" in d.what for d in fired)  # sums of all equations, carried along, took 1.6 times as long
    sums = [in_loops(g, *args).count("reduce_sum") for g in (f, ag.optimize(f, passes=(LoopLinear(),)))]
    assert sums[0] - sums[1] == 2 * 4
    agree(f, ag.optimize(f), *args)


def test_a_gradient_by_parameters_of_one_equation_carries_no_more_sums() -> None:
    """Zeros around a number cost nothing in a step: with sums of each term the loop took 8 times as long."""
    f, args = slopes(0)
    assert "pad" in in_loops(f, *args)
    assert not [d for d in ag.explain(f)(*args).fired if d.rule == "loop-linear"]
    agree(f, ag.optimize(f), *args)
