"""Terms of a sum and divisors of rows leave a sum of products where that then has a cheaper order."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel.compiler.cost import program_cost
from aerogel.compiler.passes.contraction import ContractionOrder
from compiler.loop_patterns import normal

A, B, C, ROW = normal(0, 200, 210), normal(1, 210, 220), normal(2, 200, 220), normal(3, 220)
Q, K, V = (abs(normal(4 + k, 300, 16)) + 0.1 for k in range(3))
HEADS = tuple(abs(normal(7 + k, 2, 128, 3, 8)) + 0.1 for k in range(3))


def by_heads(q: Any, k: Any, v: Any) -> Any:
    """Linear attention of several heads."""
    a = jnp.einsum("bthd,bshd->bhts", q, k)
    return jnp.einsum("bhts,bshe->bthe", a / a.sum(-1, keepdims=True), v)


def by_columns(q: Any, k: Any, v: Any) -> Any:
    """Its weights stand in columns, and are turned."""
    a = k @ q.T
    return (a / a.sum(0)).T @ v


def divided_along(q: Any, k: Any, v: Any) -> Any:
    """Of several heads; what divides varies along what is summed over."""
    a = jnp.einsum("bthd,bshd->bhts", q, k)
    return jnp.einsum("bhts,bshe->bthe", a / a.sum(-2, keepdims=True), v)


EXAMPLES = normal(10, 100, 40), normal(11, 100, 30)


def clipped(x: Any, d: Any) -> Any:
    """The mean gradient of a layer's weights, each example's divided by its norm where that is large."""

    def one(x: Any, d: Any) -> Any:
        g = jnp.outer(x, d)
        return g / jnp.maximum(1.0, jnp.sqrt(jnp.vdot(g, g)))

    return jnp.mean(jax.vmap(one)(x, d), 0)


# fmt: off
OUTSIDE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a mean of a layer": (lambda a, b, r: jnp.mean(a @ b + r), (A, B, ROW)),
    "columns of a layer": (lambda a, b, r: jnp.sum(a @ b + r, 0), (A, B, ROW)),
    "rows of a layer": (lambda a, b, r: jnp.mean(r + a @ b, axis=1), (A, B, ROW)),
    "a difference": (lambda a, b, c: jnp.sum(c - 2 * (a @ b)), (A, B, C)),
    "three terms in any order": (lambda a, b, c, r: jnp.sum((c + r) - (a @ b - c)), (A, B, C, ROW)),
    "a number": (lambda a, b: jnp.einsum("ij->j", 3.0 + a @ b), (A, B)),
    "normalised": (lambda q, k, v: (lambda a: (a / a.sum(-1, keepdims=True)) @ v)(q @ k.T), (Q, K, V)),
    "normalised by a column": (lambda q, k, v: (lambda a: (a / jnp.sum(a, 1)[:, None]) @ v)(q @ k.T), (Q, K, V)),
    "normalised, heads": (by_heads, HEADS),
    "normalised, turned": (by_columns, (Q, K, V)),
    "divided along the sum": (lambda q, k, v: (lambda a: (a / a.sum(0)) @ v)(q @ k.T), (Q, K, V)),
    "divided along the sum, heads": (divided_along, HEADS),
    "read twice": (lambda q, k, v: (lambda a: a @ v + a.T @ v)((w := q @ k.T) / w.sum(1)[:, None]), (Q, K, V)),
}
INSIDE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "the product is read, too": (lambda a, b, r: (lambda y: (y, jnp.sum(y + r)))(a @ b), (A, B, ROW)),
    "the sum is read, too": (lambda a, b, r: (lambda y: (y, jnp.sum(y)))(a @ b + r), (A, B, ROW)),
    "no product": (lambda c, r: jnp.sum(c + r), (C, ROW)),
    "not linear": (lambda a, b, r: jnp.sum(jnp.tanh(a @ b) + r), (A, B, ROW)),
    "few rows": (lambda a, b, r: jnp.sum(a @ b + r, 1), (A[:4, :8], B[:8, :4], ROW[:4])),
    "softmax": (lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, (Q, K, V)),
    "divided along both": (lambda q, k, v: ((w := q @ k.T) / jnp.outer(w.sum(0), w.sum(1))) @ v, (Q, K, V)),
    "divided by what it is not": (lambda q, k, v: jnp.sum(jnp.tanh(q @ k.T) / jnp.sum(v, 1), 1), (Q, K, V)),
    "divided by a matrix": (lambda q, k, v, w: (q @ k.T / w) @ v, (Q, K, V, abs(normal(11, 300, 300)) + 1)),
    "short rows": (lambda q, k, v: (lambda a: (a / a.sum(1)[:, None]) @ v)(q @ k.T), (Q[:8], K[:8], V[:8])),
}
# fmt: on


def optimised(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """With this pass alone."""
    return ag.optimize(f, passes=(ContractionOrder(),), **options)


def flops(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Operations of a program."""
    return program_cost(jax.make_jaxpr(f)(*args)).flops


def left_a_sum(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether anything left a sum of products."""
    reports: list[Any] = []
    jax.eval_shape(optimised(f, on_report=reports.append), *args)
    return any("leave a sum" in decision.what for decision in reports[0].fired)


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_product_is_made_for_a_sum_of_it(name: str) -> None:
    """A tenth of the work, or less where there are as many features as half the rows; the same numbers."""
    f, args = OUTSIDE[name]
    made = optimised(f)
    assert flops(made, args) < flops(f, args) / 4
    exact = f(*(np.asarray(x, np.float64) for x in args))  # in float32 where x64 is off: compared loosely
    np.testing.assert_allclose(jax.jit(made)(*args), exact, rtol=1e-4, atol=1e-4 * float(np.abs(exact).max()))
    got, want = (jax.grad(lambda *xs, h=h: jnp.sin(h(*xs)).sum(), range(len(args)))(*args) for h in (made, f))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3 * float(np.abs(y).max()) + 1e-6)


@pytest.mark.parametrize("f", [clipped, lambda x, d: clipped(d, x).T])
def test_divided_examples_are_one_product(f: Callable[..., Any]) -> None:
    """No gradient of a single example is made; values and derivatives are the same numbers."""

    def largest(f: Callable[..., Any]) -> int:
        jaxpr = jax.make_jaxpr(f)(*EXAMPLES).jaxpr
        return max(v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars)

    made = optimised(f)
    assert largest(f) == 100 * 40 * 30
    assert largest(made) <= 100 * 40
    squares = [jax.value_and_grad(lambda *args, g=g: jnp.sum(g(*args) ** 2), (0, 1)) for g in (made, f)]
    for got, want in zip(*(jax.tree.leaves(g(*EXAMPLES)) for g in squares), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize("name", INSIDE)
def test_where_no_order_is_cheaper_nothing_leaves(name: str) -> None:
    """Someone reads the product, or dividing does not pass the sum, or little is saved."""
    f, args = INSIDE[name]
    assert not left_a_sum(f, args)


def test_settings() -> None:
    """`strict` keeps the order in which a sum is taken, and 16 bits are not rounded term by term."""
    f, args = OUTSIDE["a mean of a layer"]
    assert flops(optimised(f, numerics="strict"), args) == flops(f, args)
    short = tuple(x.astype("bfloat16") for x in args)
    assert left_a_sum(f, args)
    assert not left_a_sum(f, short)


@given(
    signs=st.lists(st.sampled_from((1, -1)), min_size=2, max_size=4),
    product=st.integers(0, 3),
    left=st.booleans(),
    axis=st.sampled_from((0, 1, (0, 1), None)),
    shapes=st.lists(st.sampled_from(("whole", "row", "column", "number")), min_size=4, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_any_bracketing_order_and_sign(
    signs: list[int], product: int, left: bool, axis: Any, shapes: list[str]
) -> None:
    """Of a sum of products and of arrays of any shape that broadcasts: the sum of it is made without the product."""
    product %= len(signs)
    sizes = {"whole": (200, 220), "row": (220,), "column": (200, 1), "number": ()}
    terms = tuple(normal(k, *sizes[shape]) for k, shape in enumerate(shapes[: len(signs)]))

    def f(a: Any, b: Any, *terms: Any) -> Any:
        every = [s * (a @ b if k == product else x) for k, (s, x) in enumerate(zip(signs, terms, strict=True))]
        total = every[0] if left else every[-1]
        for x in every[1:] if left else every[-2::-1]:
            total = total + x if left else x + total
        return jnp.sum(total, axis)

    made = optimised(f)
    assert flops(made, (A, B, *terms)) < flops(f, (A, B, *terms)) / 10
    want = f(*(np.asarray(x, np.float64) for x in (A, B, *terms)))
    np.testing.assert_allclose(jax.jit(made)(A, B, *terms), want, rtol=1e-4, atol=1e-2)
