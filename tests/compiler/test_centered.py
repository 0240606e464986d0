"""Sums around a center that is known only after the loop: any center, and what infinities and nan do to them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import made, normal

T, SHAPE = 16, (4, 256)


def stacked(x0: Any, grow: float = 0.97) -> Any:
    """All states of a loop."""
    return lax.scan(lambda c, _: (grow * c, c), x0, None, length=T)[1]


CENTERS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda ys: ys.mean(0),
    "max": lambda ys: ys.max(0),
    "min": lambda ys: ys.min(0),
    "mean of all": lambda ys: ys.mean(),
    "far away": lambda ys: ys.sum(0) + 100,
    "kept dimension": lambda ys: ys.mean((0, 1), keepdims=True)[0],
}
SUMS: dict[str, Callable[[Any], Any]] = {
    "square": lambda d: jnp.square(d).sum(0),
    "power": lambda d: (d**2).sum(0),
    "product": lambda d: (d * d).sum(0),
    "exp": lambda d: jnp.exp(d).sum(0),
}


def around(center: str, how: str) -> Callable[[Any], Any]:
    """The sum `how` over time of all states around a center."""

    def f(x0: Any) -> Any:
        ys = stacked(x0)
        return SUMS[how](ys - CENTERS[center](ys))

    return f


def fused(f: Callable[[Any], Any], *args: Any, **options: Any) -> bool:
    """Whether no array over all steps is left; there is one in the natural program."""
    size = T * int(np.prod(SHAPE))
    assert made(jax.make_jaxpr(f)(*args).jaxpr, size)
    return not made(jax.make_jaxpr(ag.optimize(f, **options))(*args).jaxpr, size)


@pytest.mark.parametrize("how", SUMS)
@pytest.mark.parametrize("center", CENTERS)
def test_any_center(center: str, how: str) -> None:
    """Whatever the late center is, the sum is made in one pass and agrees with float64 as well as two passes do."""
    f, x = around(center, how), normal(0, *SHAPE)
    if center != "min" or how != "exp":  # a minimum is held by no other accumulator, and then costs one of its own
        assert fused(f, x)
    with jax.enable_x64(True):
        truth = np.asarray(jax.jit(f)(x.astype(np.float64)))
    natural, got = (np.asarray(jax.jit(g)(x), np.float64) for g in (f, ag.optimize(f)))
    scale = np.abs(truth).max()
    assert np.abs(got - truth).max() <= 2 * np.abs(natural - truth).max() + 8e-6 * scale


def test_strict_leaves_them() -> None:
    """Both are sums in another order, and no pass makes them under `strict`; results have the same bits."""
    for how in SUMS:
        f, x = around("mean", how), normal(0, *SHAPE)
        assert not fused(f, x, numerics="strict")
        np.testing.assert_array_equal(jax.jit(ag.optimize(f, numerics="strict"))(x), jax.jit(f)(x))


SPECIAL = {
    "inf": [np.inf], "-inf": [-np.inf], "nan": [np.nan], "both": [np.inf, -np.inf], "all -inf": [-np.inf] * 1024,
    "all inf": [np.inf] * 1024, "huge": [3e38, -3e38],
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, (0, 2), None], ids=str)
@pytest.mark.parametrize("name", SPECIAL)
def test_logsumexp_of_special_values(name: str, axis: Any) -> None:
    """Infinities and nan give what they give in two passes: the online form takes no infinite maximum as center."""

    def f(x):
        return jax.nn.logsumexp(stacked(x, 1.0), axis=axis)

    x = normal(0, *SHAPE)
    x.flat[: len(SPECIAL[name])] = SPECIAL[name]
    assert fused(f, x)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), rtol=1e-5)


@pytest.mark.parametrize("name", ["inf", "-inf", "nan", "both"])
def test_variance_of_special_values(name: str) -> None:
    """Where any value is not finite the variance is nan, as in two passes; its neighbours are not touched."""

    def f(x):
        return stacked(x, 1.0).var(0)

    x = normal(0, *SHAPE)
    x.flat[: len(SPECIAL[name])] = SPECIAL[name]
    assert fused(f, x)
    got, want = jax.jit(ag.optimize(f))(x), jax.jit(f)(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    """The variance around 10,000 is as good as the two-pass one: moments are merged, squares are not subtracted."""

    def f(x):
        return stacked(x, 1.0001).var(0)

    x = normal(0, *SHAPE) + np.float32(1e4)
    assert fused(f, x)
    with jax.enable_x64(True):
        truth = np.asarray(jax.jit(f)(x.astype(np.float64)))
    natural, got = (np.abs(np.asarray(jax.jit(g)(x)) / truth - 1).max() for g in (f, ag.optimize(f)))
    assert got <= 2 * natural + 1e-6


def test_what_else_reads_the_difference_keeps_it() -> None:
    """A difference that is returned is made after the loop; the sum is right all the same."""

    def f(x: Any) -> Any:
        ys = stacked(x)
        d = ys - ys.mean(0)
        return (d**2).sum(0), d

    x = normal(0, *SHAPE)
    for got, want in zip(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_center_that_varies_along_the_sum_is_none() -> None:
    """Around a value for each column, a sum over columns is not one-pass in this form; numbers stay."""

    def f(x: Any) -> Any:
        ys = stacked(x)
        return jnp.exp(ys - ys.mean(0)).sum((0, 2))

    x = normal(0, *SHAPE)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), rtol=1e-5)


def test_a_sum_within_each_step_stays_after_the_loop() -> None:
    """The distance of each step from the mean of all is one number for each step, and no sum over time."""

    def f(x: Any) -> Any:
        ys = stacked(x)
        return ((ys - ys.mean()) ** 2).sum(1), jnp.exp(ys - ys.max()).sum((1, 2))

    x = normal(0, *SHAPE)
    for got, want in zip(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("reduce", [jnp.var, jax.nn.logsumexp])
def test_time_may_share_its_dimension(reduce: Callable[..., Any]) -> None:
    """Points of all steps in one dimension are summed up step by step all the same."""

    def f(x: Any) -> Any:
        return reduce(stacked(x).reshape(-1, SHAPE[1]), axis=0)

    x = normal(0, *SHAPE)
    assert fused(f, x)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_types(dtype: Any) -> None:
    """Narrow floats are summed up in float32: results differ from float64 by the rounding of the states only."""

    def f(x):
        return (stacked(x).var(0), jax.nn.logsumexp(stacked(x), axis=0))

    x = jnp.asarray(normal(0, *SHAPE), dtype)
    for got, want in zip(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), strict=True):
        assert got.dtype == want.dtype == dtype
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=0.02, atol=0.005)


@pytest.mark.parametrize("reduce", [jnp.var, jnp.std, jax.nn.logsumexp])
def test_large_steps(reduce: Callable[[Any], Any]) -> None:
    """A step of 10^5 elements is reduced to one number around a late center."""

    def f(x0: Any) -> Any:
        return reduce(stacked(x0))

    x = normal(0, 102_400)
    assert not made(jax.make_jaxpr(ag.optimize(f))(x).jaxpr, T * x.size)
    ag.verify(f)(x)


TIES: dict[str, Callable[[Any], Any]] = {
    "max of all": jnp.max,
    "min of all": jnp.min,
    "max over time": lambda ys: ys.max(0).sum(),
    "min over time and columns": lambda ys: ys.min((0, 2)).sum(),
    "max and mean": lambda ys: ys.max() + ys.mean(),
    "max of halves": lambda ys: ys[: T // 2].max() + ys[T // 2 :].max(),
}


@pytest.mark.parametrize("values", ["distinct", "ties", "infinite", "nan"])
@pytest.mark.parametrize("name", TIES)
def test_gradients_of_extremes(name: str, values: str) -> None:
    """The gradient of a maximum is shared by its ties; they are counted in the loop."""

    def f(x0: Any) -> Any:
        # Turned twice, it is as it was: every second step ties, and no step is known to repeat the one before.
        return TIES[name](
            lax.scan(lambda c, _: (c[:, ::-1] if values == "ties" else 0.5 * c, c), x0, None, length=T)[1]
        )

    x = normal(0, 8, 1024)
    x = np.round(x) if values == "ties" else x
    if values in ("infinite", "nan"):
        x[0, :3] = (np.inf, -np.inf, 1) if values == "infinite" else (np.nan, 2, np.nan)
    natural = jax.value_and_grad(f)
    ag.verify(natural)(x)
    if name != "max of halves":
        assert any("ties" in d.what for d in ag.explain(natural)(x).fired)
