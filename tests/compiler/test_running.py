"""Running statistics in a loop: every join is the merge that its monoid means, copies no carry, and loses no digits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler.axes.monoid import ARGMAX, ARGMIN
from aerogel.compiler.fusion.running import running
from aerogel.compiler.program import inner_jaxprs
from compiler.loop_patterns import made, normal

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "var": jnp.var,
    "std": jnp.std,
    "logsumexp": jax.nn.logsumexp,
    "argmax": jnp.argmax,
    "argmin": jnp.argmin,
}


def states(x0: Any, xs: Any, reverse: bool = False) -> Any:
    """All states of a loop; the arithmetic is exact for the values below, so that results can be compared."""
    return lax.scan(lambda c, x: (c + x, c + x), x0, xs, reverse=reverse)[1]


def drawn(seed: int, length: int, dtype: Any) -> tuple[Any, Any]:
    """Initial state and increments: small multiples of 1/4, exact in every type."""
    make = np.random.default_rng(seed)
    return tuple(jnp.asarray(make.integers(-6, 7, s) / 4, dtype) for s in ((3, 8), (length, 3, 8)))  # type: ignore[return-value]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(REDUCTIONS)),
    st.integers(0, 9),
    st.sampled_from(["bfloat16", "float16", "float32", "float64"]),
    st.sampled_from([0, (0, 1), (0, 2), None]),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_length_type_and_axes(name: str, length: int, dtype: str, axis: Any, reverse: bool, seed: int) -> None:
    """Whatever the length, also 0, 1 and 2, the type, the axes and the direction: what two passes give."""
    if name.startswith("arg") and (isinstance(axis, tuple) or length == 0):
        axis, length = 0, max(length, 1)
    length = max(length, 1) if name == "logsumexp" else length  # JAX has no maximum of nothing
    keep = {} if name.startswith("arg") else {"keepdims": seed % 2 == 0}

    def f(x0: Any, xs: Any) -> Any:
        return REDUCTIONS[name](states(x0, xs, reverse), axis=axis, **keep)

    with jax.enable_x64(dtype == "float64"):
        args = drawn(seed, length, dtype)
        got, want = jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if name.startswith("arg"):
            np.testing.assert_array_equal(got, want)
        else:
            tolerance = {"float64": 1e-12, "float32": 2e-5}.get(dtype, 0.02)
            np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=tolerance, atol=tolerance)


SPECIAL = (0.0, -0.0, 1.0, 1.0, -2.0, np.inf, -np.inf, np.nan)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=6), st.sampled_from([ARGMAX, ARGMIN]), st.booleans())
def test_the_best_of_special_values(values: list[float], monoid: Any, backwards: bool) -> None:
    """The joined index is numpy's for every sequence of ties, infinities and nan, in both directions."""
    how, steps = running(monoid, backwards), list(enumerate(np.float32(values)))
    aval = jax.ShapeDtypeStruct((), np.float32)
    best = monoid.identity([aval, aval.update(dtype=np.int32)])
    for t, v in reversed(steps) if backwards else steps:
        best = how.join(best, (jnp.float32(v), jnp.int32(t)), None)
    want = np.argmax(values) if monoid is ARGMAX else np.argmin(values)
    assert int(best[1]) == want
    np.testing.assert_array_equal(best[0], np.float32(values)[want])


@pytest.mark.parametrize("name", ["var", "logsumexp", "argmax", "ties"])
def test_no_carry_is_copied(name: str) -> None:
    """XLA copies no accumulator in a step: a merge of all old accumulators at once made it copy one (watched)."""
    x = normal(0, 4096)

    def f(x0: Any) -> Any:
        # a step of a single product XLA computes anew for each reader, which then reads, and copies, the old state
        ys = lax.scan(lambda c, _: (c - 0.05 * c * c, c - 0.05 * c * c), x0, None, length=16)[1]
        return jnp.sum(ys.max(0) == 0) + (ys == ys.max(0)).sum(0) if name == "ties" else REDUCTIONS[name](ys, axis=0)

    assert not made(jax.make_jaxpr(ag.optimize(f))(x).jaxpr, 16 * x.size)
    compiled = jax.jit(ag.optimize(f)).lower(x).compile().as_text()
    bodies = [
        part for part in compiled.split("\n\n") if ("ROOT %tuple" in part and "copy(" in part) or " fusion(" in part
    ]
    steps = [part for part in bodies if "ENTRY" not in part and "f32[4096]" in part and "get-tuple-element" in part]
    assert steps
    assert not [line for part in steps for line in part.split("\n") if "[4096]" in line and " copy(" in line]


ILL: dict[str, Callable[[], Any]] = {
    "mean 1e4": lambda: (1e4 + normal(0, 256), 0.1 * normal(1, 200, 256)),
    "first state far away": lambda: (np.full(256, 1e4), np.r_[[np.full(256, -1e4)], 0.1 * normal(1, 199, 256)]),
    "drifts": lambda: (normal(0, 256), 50 + normal(1, 200, 256)),
    "nearly constant": lambda: (np.full(256, 1e3), 1e-2 * normal(1, 200, 256)),
}


@pytest.mark.parametrize("name", ILL)
@pytest.mark.parametrize("gradient", [False, True])
def test_digits(name: str, gradient: bool) -> None:
    """Against float64, a variance and its gradient lose no more than 3 times what two passes lose (and 16 ulp)."""

    def value(x0: Any, xs: Any) -> Any:
        ys = x0 + xs  # no state: the error of the states would hide that of the variance
        return lax.scan(lambda c, y: (c, y * np.float32(1)), jnp.float32(0), ys)[1].var(0)

    f = jax.grad(lambda *args: (value(*args) ** 2).sum(), 1) if gradient else value
    args = [np.asarray(x, np.float32) for x in ILL[name]()]

    with jax.enable_x64(True):
        ys = jnp.asarray((args[0] + args[1]).astype(np.float64))
        scalar = lambda ys: (ys.var(0) ** 2).sum()  # noqa: E731
        truth = np.asarray(jax.grad(scalar)(ys) if gradient else ys.var(0))
    errors = [np.abs(np.asarray(jax.jit(g)(*args), np.float64) - truth).max() for g in (f, ag.optimize(f))]
    assert errors[1] <= 3 * errors[0] + 16 * np.finfo(np.float32).eps * np.abs(truth).max()


@pytest.mark.parametrize("reverse", [False, True])
def test_where_it_stands(reverse: bool) -> None:
    """Under vmap, cond, an outer loop and derivatives; with `where=`, `ddof` and windows of the steps."""

    def f(x0: Any, xs: Any) -> Any:
        ys = states(x0, xs, reverse)
        mask = np.arange(8) % 2 == 0
        return (
            ys.var(0, ddof=1).sum()
            + ys.var(0, where=mask).sum()
            + jax.nn.logsumexp(ys[1:6], axis=0).sum()
            + ys[::2].std()
            + ys.var((0, 2), keepdims=True).sum()
        )

    args = drawn(0, 8, np.float32)
    many = tuple(jnp.stack([a, a + 1]) for a in args)
    forms: dict[str, Any] = {
        "itself": (f, args),
        "vmap": (jax.vmap(f), many),
        "gradient": (jax.value_and_grad(f, (0, 1)), args),
        "jvp": (lambda *a: jax.jvp(f, a, a), args),
        "cond": (lambda x0, xs: lax.cond(x0.sum() > 0, f, lambda *_: jnp.float32(0), x0, xs), args),
        "loop": (lambda x0, xs: lax.scan(lambda c, x: (c, f(c, x)), x0, jnp.stack([xs, xs + 1]))[1], args),
    }
    for name, (g, given_args) in forms.items():
        for got, want in zip(
            jax.tree.leaves(jax.jit(ag.optimize(g))(*given_args)), jax.tree.leaves(jax.jit(g)(*given_args)), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4, err_msg=name)
    got, want = jax.grad(ag.optimize(f))(*args), jax.grad(f)(*args)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_a_gradient_reads_the_stack_once() -> None:
    """The gradient of a variance or a logsumexp makes no pass over the stack between its two loops."""
    for reduce in (jnp.var, jax.nn.logsumexp):

        def loss(x0: Any, reduce: Any = reduce) -> Any:
            ys = lax.scan(lambda c, _: (c - 0.05 * c * c, c - 0.05 * c * c), x0, None, length=64)[1]
            return (reduce(ys, axis=0) ** 2).sum()

        x = jnp.abs(normal(0, 4096)) + 0.5
        before = jax.make_jaxpr(jax.grad(loss))(x).jaxpr
        after = jax.make_jaxpr(ag.optimize(jax.grad(loss)))(x).jaxpr

        def passes(jaxpr: Any) -> list[str]:
            stack = lambda v: getattr(v.aval, "size", 0) >= 64 * 4096  # noqa: E731
            inner = [p for e in jaxpr.eqns for one in inner_jaxprs(e) for p in passes(one)]
            return inner + [
                e.primitive.name for e in jaxpr.eqns if e.primitive.name == "reduce_sum" and stack(e.invars[0])
            ]

        assert passes(before)
        assert not passes(after)


def test_sums_of_differences_with_factors() -> None:
    """`sum(a * (y - mean))` for every kind of factor that does not vary along the sum, and for one that does."""

    def f(x0: Any, w: Any) -> Any:
        ys = lax.scan(lambda c, _: (0.9 * c, c), x0, None, length=16)[1]
        mean = ys.mean(0)
        d = ys - (mean + 1)
        v = ys.var(0)
        return (
            (-(2 * d) * v).sum(0),
            (-(ys - ys.mean()) * v[0]).sum((0, 1)),
            (w[:, None, None] * d).sum(0),
            (d * v).sum((0, 1)),
            v,
        )

    x, w = normal(0, 4, 4096), normal(1, 16)
    sums = [d.fired for d in ag.explain(f)(x, w).decisions if "moments" in d.what]
    assert sum(sums) == 3
    for got, want in zip(jax.jit(ag.optimize(f))(x, w), jax.jit(f)(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
