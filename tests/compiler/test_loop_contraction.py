"""Loops that only add up or stack products are contractions of all their steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.cost import equation_seconds, machine

NAME = "loop-contraction"


def normal(seed: int, *shape: int) -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def decisions(f: Callable[..., Any], *args: Any) -> list[Any]:
    """What the pass decided."""
    return [d for d in ag.explain(f)(*args).decisions if d.rule == NAME]


def weighted(X: Any, Y: Any, w: Any) -> Any:
    """A sum of outer products, each with a weight."""
    start = jnp.ones((X.shape[1], Y.shape[1]), X.dtype)
    return lax.scan(lambda S, a: (S + a[2] * jnp.outer(a[0], a[1]), None), start, (X, Y, w))[0]


def moments(X: Any, w: Any) -> Any:
    """Three sums of one loop: weights, weighted rows, and their outer products."""

    def step(sums: Any, row: Any) -> tuple[Any, None]:
        x, v = row
        return (sums[0] + v * jnp.outer(x, x), sums[1] + v * x, sums[2] + v), None

    d = X.shape[1]
    S, m, total = lax.scan(step, (jnp.zeros((d, d)), jnp.zeros(d), 0.0), (X, w))[0]
    return S / total - jnp.outer(m / total, m / total)


def backwards(X: Any, Y: Any, w: Any) -> Any:
    """The sum from the last step to the first, with a factor between the two."""
    step = lambda S, a: (S + a[0][:, None] * a[2] * a[1][None], None)  # noqa: E731
    return lax.scan(step, jnp.zeros((X.shape[1], Y.shape[1])), (X, Y, w), reverse=True)[0]


ROWS = (normal(0, 400, 48), normal(1, 400, 40), normal(2, 400))
FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "weights": (weighted, ROWS),
    "many rows": (weighted, (normal(0, 1000, 64), normal(1, 1000, 64), normal(2, 1000))),
    "moments": (moments, (normal(0, 800, 32), jnp.abs(normal(1, 800)))),
    "backwards": (backwards, ROWS),
    "read afterwards": (lambda X, Y, w: jnp.tanh(weighted(X, Y, w) / 400) @ Y[0], ROWS),
    "in a branch": (lambda X, Y, w: lax.cond(w[0] > 9, lambda: jnp.zeros((48, 40)), lambda: weighted(X, Y, w)), ROWS),
}


FORMS = [
    (name, form) for name in FIRES for form in ("value", "gradient") if (name, form) != ("in a branch", "gradient")
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_the_loop_goes(name: str, form: str) -> None:
    """One or more products of all steps stand for it, in a gradient for both loops, and nothing is stacked."""
    f, args = FIRES[name]
    if form == "gradient":
        value = f
        f = jax.grad(lambda *args: jnp.sum(jnp.sin(value(*args) / 8)), tuple(range(len(args))))
    assert any(d.fired for d in decisions(f, *args))
    assert "scan" not in str(jax.make_jaxpr(ag.optimize(f))(*args))
    ag.verify(f)(*args)


def test_a_gradient_keeps_no_outer_products() -> None:
    """Plain JAX stores the product of each step for the gradient by the weights."""
    g = jax.grad(lambda *args: jnp.sum(jnp.sin(weighted(*args))), (0, 1, 2))
    compiled = (jax.jit(f).lower(*ROWS).compile() for f in (g, ag.optimize(g)))
    plain, ours = (one.memory_analysis().temp_size_in_bytes for one in compiled)  # pyright: ignore[reportOptionalMemberAccess]
    assert plain > 2_000_000
    assert ours < 300_000


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a step reads the sum": (
        lambda X, Y, w: lax.scan(
            lambda S, a: (S + a[2] * jnp.outer(a[0], a[1]) * S[0, 0], None), jnp.ones((48, 40)), (X, Y, w)
        )[0],
        ROWS,
    ),
    "a function of the products": (
        lambda X, Y, w: lax.scan(
            lambda S, a: (S + jnp.tanh(a[2] * jnp.outer(a[0], a[1])), None), jnp.ones((48, 40)), (X, Y, w)
        )[0],
        ROWS,
    ),
    "integers": (weighted, tuple(x.astype("int32") for x in ROWS)),
}


@pytest.mark.parametrize("name", LEFT)
def test_it_stays(name: str) -> None:
    """What a step reads of another, and what is no sum of products, stays a loop."""
    f, args = LEFT[name]
    assert not any(d.fired for d in decisions(f, *args))
    assert "scan" in str(jax.make_jaxpr(ag.optimize(f))(*args))
    ag.verify(f)(*args)


def test_strict_numerics_leaves_it() -> None:
    """The order of the sum is another."""
    assert "scan" in str(jax.make_jaxpr(ag.optimize(weighted, numerics="strict"))(*ROWS))


def test_a_loop_of_few_numbers_stays() -> None:
    """2,000 products of 3 with 3 numbers are one kernel of 17 us; a product of all of them took 3.5 times as long."""
    args = (normal(0, 2000, 3), normal(1, 2000, 3), normal(2, 2000))
    (found,) = decisions(weighted, *args)
    assert not found.fired
    assert "us would become" in found.reason


def test_a_short_loop_over_rows_stays() -> None:
    """300 errors of a linear model took 14 us in one kernel, and 2.8 times that with the predictions before it."""
    f = lambda X, b, y: lax.scan(lambda c, a: (c + (a[0] @ b - a[1]) ** 2, None), 0.0, (X, y))[0]  # noqa: E731
    assert "loop-hoist" not in {d.rule for d in ag.explain(f)(normal(0, 300, 50), normal(1, 50), normal(2, 300)).fired}


def test_products_of_few_numbers_stay_in_their_loop() -> None:
    """The gradient of a cell of 4 numbers took 1.4 times as long with its 4 x 4 products after the loop."""
    cell = lambda X, W: lax.scan(lambda h, x: (jnp.tanh(h @ W + x),) * 2, jnp.zeros(4), X)[1].sum()  # noqa: E731
    args = (normal(0, 1000, 4), 0.1 * normal(1, 4, 4))
    found = {d.rule for d in ag.explain(jax.grad(cell, (0, 1)))(*args).fired}
    assert "loop-hoist" not in found
    ag.verify(jax.grad(cell, (0, 1)))(*args)


def test_a_loop_that_is_one_kernel_anyway_is_left() -> None:
    """16 running means in a loop are one kernel of XLA's; as a call of ours they took 1.8 times as long."""
    means = jax.vmap(lambda xs: lax.scan(lambda c, x: (0.9 * c + 0.1 * x,) * 2, 0.0, xs)[1])
    found = [d for d in ag.explain(means)(normal(0, 16, 1000)).decisions if d.rule == "loop-kernel"]
    assert [(d.fired, d.reason) for d in found] == [(False, "XLA makes one of them by itself")]


def test_a_loop_of_few_numbers_is_priced_as_one_kernel() -> None:
    """A step that moves less than a kilobyte starts nothing: 6 ns for an addition, 20 to 60 with more."""
    adding = lambda x: lax.scan(lambda c, a: (c + a, None), jnp.zeros(x.shape[1:]), x)[0]  # noqa: E731
    few, many = (
        equation_seconds(jax.make_jaxpr(adding)(jnp.ones((1000, n))).jaxpr.eqns[-1], machine("cpu")) for n in (1, 400)
    )
    assert few < 1e-5 < 4e-5 < many
