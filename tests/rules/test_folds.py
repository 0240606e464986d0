"""Sums and extrema of windows, made of slices: the same numbers, and where they are left alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import window_max, window_min, window_sum
from rules.rules_under_test import fired, normal, refusals

RULES = [window_sum, window_max, window_min]
FOLDS = {"sum": (lax.add, 0), "max": (lax.max, -np.inf), "min": (lax.min, np.inf)}


def windows(
    name: str, *window: int, strides: Any = None, padding: Any = "VALID", **dilations: Any
) -> Callable[..., Any]:
    """The fold of that name over windows."""
    fold, start = FOLDS[name]

    def folded(x: Any) -> Any:
        limits = jnp.iinfo(x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else None
        of = {"sum": 0, "max": limits.min if limits else start, "min": limits.max if limits else start}[name]
        at = strides or (1,) * len(window)
        return lax.reduce_window(x, np.array(of, x.dtype), fold, window, at, padding, **dilations)

    return folded


def names(f: Callable[..., Any], *args: Any) -> set[str]:
    """The primitives of a program."""
    return {eqn.primitive.name for eqn in jax.make_jaxpr(f)(*args).eqns}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("shape", "window", "more"),
    [
        ((40,), (7,), {}),
        ((40,), (40,), {}),
        ((3, 40), (1, 12), {"padding": "SAME"}),
        ((2, 9, 8, 3), (1, 3, 3, 1), {"padding": "SAME"}),
        ((2, 9, 8, 3), (1, 3, 2, 1), {"strides": (1, 2, 2, 1)}),
        ((2, 9, 8), (1, 3, 2), {"strides": (1, 2, 3), "padding": ((0, 0), (1, 2), (0, 1))}),
        ((50,), (11,), {"strides": (4,)}),
        ((50,), (4,), {"window_dilation": (3,), "padding": ((2, 5),)}),
        ((50,), (1,), {"strides": (4,)}),
    ],
)
def test_the_numbers_are_those_of_xla(name: str, dtype: str, shape: Any, window: Any, more: dict[str, Any]) -> None:
    """Along any axes, with strides, padding and gaps, with infinities and nan; extrema to the bit."""
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(10 * normal(0, *shape), dtype)
        if dtype != "int32":
            x = x.at[(1,) * len(shape)].set(np.inf).at[(2,) * len(shape)].set(np.nan)
        natural = windows(name, *window, **more)
        written = ag.optimize(natural, rules=RULES, passes=())
        assert f"reduce_window_{name}" in names(natural, x)
        if max(window) > 1:
            assert f"reduce_window_{name}" not in names(written, x)
        got, want = jax.jit(written)(x), jax.jit(natural)(x)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if name == "sum" and dtype != "int32":
            tight = 1e-5 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(got, want, rtol=tight, atol=30 * tight)
        else:
            np.testing.assert_array_equal(got, want)


def test_gradients_of_averages_are_made_of_slices() -> None:
    """The cotangents of windows that are one apart are summed over windows, too."""
    x = normal(0, 2, 30, 4)
    natural = jax.grad(lambda x: (windows("sum", 1, 5, 1, padding="SAME")(x) ** 2).sum())
    written = ag.optimize(natural, rules=RULES, passes=())
    assert "reduce_window_sum" in names(natural, x)
    assert "reduce_window_sum" not in names(written, x)
    np.testing.assert_allclose(jax.jit(written)(x), jax.jit(natural)(x), rtol=1e-5, atol=1e-5)


def test_largest_of_pairs_of_pairs_are_those_of_slices() -> None:
    """Max-pooling, channels first."""
    x = normal(0, 2, 3, 9, 8)
    natural = windows("max", 1, 1, 2, 2, strides=(1, 1, 2, 2))
    assert fired(natural, window_max, x)
    np.testing.assert_array_equal(jax.jit(ag.optimize(natural))(x), jax.jit(natural)(x))


def test_extrema_of_windows_fire_in_loops_and_under_vmap() -> None:
    """A dilation of an image, many times."""
    x = normal(0, 3, 12, 12)
    dilate = windows("max", 3, 3, padding="SAME")
    natural = jax.vmap(lambda x: lax.fori_loop(0, 3, lambda _, x: dilate(x), x))
    assert fired(natural, window_max, x)
    np.testing.assert_array_equal(jax.jit(ag.optimize(natural, rules=RULES))(x), jax.jit(natural)(x))


X = normal(0, 4, 40)
PAIRS = windows("max", 1, 2, 2, 1, strides=(1, 2, 2, 1))


@pytest.mark.parametrize("name", ["max", "sum"])
def test_pairs_of_pairs_are_slices_where_nothing_else_makes_or_repeats_them(name: str) -> None:
    """Channels last, behind what is computed entry by entry, and in a network whose convolution has few terms."""
    x, kernel = normal(0, 3, 9, 8, 5), normal(1, 3, 3, 1, 5)
    pool = windows(name, 1, 2, 2, 1, strides=(1, 2, 2, 1))
    rule = window_max if name == "max" else window_sum
    assert fired(lambda x: pool(jax.nn.gelu(x)) * 2, rule, x)

    def network(x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return pool(jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)))

    thin = ag.optimize(network)
    assert f"reduce_window_{name}" not in names(thin, x[..., :1])
    np.testing.assert_allclose(jax.jit(thin)(x[..., :1]), jax.jit(network)(x[..., :1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "window", "strides", "padding"),
    [
        ((2, 9, 8, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        ((2, 9, 7, 3), (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
        ((2, 9, 8, 3), (1, 2, 3, 1), (1, 4, 3, 1), ((0, 0), (1, 0), (0, 2), (0, 0))),
        ((2, 7, 7, 3), (1, 7, 7, 1), (1, 7, 7, 1), "VALID"),
        ((4, 40), (1, 5), (1, 7), ((0, 0), (4, 4))),
        ((5, 41), (1, 4), (2, 4), "VALID"),
    ],
)
def test_gradients_of_averages_over_windows_apart_repeat_cotangents(
    dtype: str, shape: Any, window: Any, strides: Any, padding: Any
) -> None:
    """With gaps between the windows, rests behind them, and padding around them: no sums, and the same numbers."""
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(normal(0, *shape), dtype)
        pool = windows("sum", *window, strides=strides, padding=padding)
        natural = jax.grad(lambda x: jnp.sin(pool(x)).sum())
        written = ag.optimize(natural, rules=RULES, passes=())
        adds = [
            eqn
            for eqn in jax.make_jaxpr(written)(x).eqns
            if eqn.primitive.name == "add" and eqn.outvars[0].aval.shape == shape
        ]
        assert "reduce_window_sum" in names(natural, x)
        assert not adds
        for form in (written, ag.optimize(natural), jax.vmap(lambda x: written(x), axis_size=1, in_axes=None)):
            got, want = jax.jit(form)(x), jax.jit(natural)(x)
            np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-6, atol=1e-6)


def test_folds_of_many_that_several_read_are_made_once() -> None:
    """A mean and the numbers themselves; not where one of them reads it, and not of few."""
    x = normal(0, 3, 70)
    averages, few = windows("sum", 1, 20, strides=(1, 10)), windows("sum", 1, 10, strides=(1, 10))
    two = lambda pool: lambda x: (jnp.tanh(pool(x)), pool(x).mean(0))  # noqa: E731
    written = [ag.optimize(f, rules=RULES, passes=()) for f in (two(averages), averages, two(few))]
    assert ["bitcast_convert_type" in names(f, x) for f in written] == [True, False, False]
    for got, want in zip(jax.jit(written[0])(x), jax.jit(two(averages))(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_folds_of_four_of_many_are_made_once() -> None:
    """Along one long row, where a window holds many; else all of the windows would ask for each of its numbers."""

    def divisions(natural: Callable[..., Any], x: Any) -> int:
        return str(jax.make_jaxpr(ag.optimize(natural, rules=RULES))(x)).count(" div ")

    row = jnp.ones(4000)
    assert divisions(windows("sum", 30), row) == divisions(windows("max", 30), row) == 1
    assert divisions(windows("sum", 16), row) == divisions(windows("sum", 30, 1), jnp.ones((400, 10))) == 0


def test_means_of_small_images_are_made_once() -> None:
    """Sums of slices that the gradient repeats would be made again for each entry."""
    mean = lambda x: windows("sum", 1, 7, 7, 1)(x) / 49  # noqa: E731
    x = jax.random.normal(jax.random.key(0), (3, 7, 7, 64))
    loss = lambda x: (mean(x) ** 2).sum()  # noqa: E731
    got, want = (jax.jit(jax.grad(f))(x) for f in (ag.optimize(loss, rules=RULES), loss))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert " div " in str(jax.make_jaxpr(ag.optimize(windows("sum", 1, 7, 7, 1), rules=RULES))(x))


def test_cotangents_that_are_no_numbers_stay_in_their_windows() -> None:
    """An infinity and a nan are repeated where their windows are, and nowhere else."""
    x = normal(0, 2, 9, 8, 3)
    pool = windows("sum", 1, 2, 3, 1, strides=(1, 3, 3, 1))
    ct = pool(x).at[0, 1, 0, 0].set(np.inf).at[1, 0, 1, 2].set(np.nan)
    natural = lambda ct: jax.vjp(pool, x)[1](ct)[0]  # noqa: E731
    np.testing.assert_array_equal(jax.jit(ag.optimize(natural, rules=RULES))(ct), jax.jit(natural)(ct))


@pytest.mark.parametrize(
    "natural",
    [
        lambda x: windows("sum", 1, 3)(lax.pad(x, 0.0, [(0, 0, 0), (2, 2, 1)])),  # two numbers in a window
        lambda x: windows("sum", 1, 2)(lax.pad(x, 1.0, [(0, 0, 0), (1, 1, 1)])),  # no zeros
        lambda x: windows("sum", 1, 2)(lax.pad(x, 0.0, [(0, 0, 0), (-1, 1, 1)])),  # a number is cut off
        lambda x: windows("sum", 1, 2)(lax.pad(x, 0.0, [(0, 0, 0), (1, 1, 0)])),  # no zeros in between
        lambda x: windows("sum", 2, 1)(lax.pad(x, 0.0, [(0, 0, 0), (1, 1, 1)])),  # other windows than the gaps
    ],
)
def test_other_padded_sums_are_sums(natural: Callable[..., Any]) -> None:
    """Near misses of a gradient of an average."""
    x = normal(0, 4, 40)
    written = ag.optimize(natural, rules=RULES, passes=())
    assert {"add", "slice"} <= names(written, x)
    np.testing.assert_allclose(jax.jit(written)(x), jax.jit(natural)(x), rtol=1e-6, atol=1e-6)


def test_nothing_padded_is_a_sum_of_zeros() -> None:
    """No cotangents at all, but zeros around them."""
    x = jnp.zeros((3, 0))
    natural = lambda x: windows("sum", 1, 2)(lax.pad(x, 0.0, [(0, 0, 0), (3, 3, 1)]))  # noqa: E731
    np.testing.assert_array_equal(jax.jit(ag.optimize(natural, rules=RULES))(x), jax.jit(natural)(x))


@pytest.mark.parametrize(
    ("rule", "natural", "x", "reason"),
    [
        (
            window_sum,
            windows("sum", 1, 5, base_dilation=(1, 2)),
            X,
            "what lies between the entries would have to be made",
        ),
        (window_sum, windows("sum", 1, 5), X.astype(jnp.bfloat16), "bfloat16 numbers"),
        (window_max, windows("max", 1, 1, strides=(1, 2)), X, "its windows hold one number or none"),
        (window_sum, windows("sum", 1, 5), X[:0], "its windows hold one number or none"),
        (
            window_max,
            lambda x: PAIRS(jnp.tanh(x.reshape(1, 4, 10, 4) @ jnp.ones((4, 3)))),
            X,
            "XLA computes windows of so few entries together with the product in front of them",
        ),
        (
            window_max,
            lambda x: jnp.tile(PAIRS(x.reshape(1, 4, 10, 4)), (1, 2, 2, 1)),
            X,
            "of so few entries what reads it is faster with the window as one",
        ),
        (
            window_sum,
            lambda x: windows("sum", 1, 2, 2, 1, strides=(1, 2, 2, 1))(x.reshape(1, 4, 10, 4)).sum((1, 2)),
            X,
            "of so few entries what reads it is faster with the window as one",
        ),
        (
            window_max,
            lambda x: windows("max", 1, 5, padding="SAME")(jnp.exp(x)),
            X,
            "in its padding XLA would compute number by number what is vector code now",
        ),
        (
            window_sum,
            lambda x: windows("sum", 1, 6, strides=(1, 2))(x).sum(),
            X,
            "what is summed up again takes no longer from window to window",
        ),
        (
            window_sum,
            windows("sum", 1, 7, 7, 1, strides=(1, 7, 7, 1)),
            jnp.ones((12, 7, 7, 64)),
            "windows as wide as the array are a reduction, which XLA takes them for",
        ),
        (
            window_sum,
            lambda x: windows("sum", 7, 7)(lax.pad(x[:1, :1], 0.0, [(6, 6, 6), (6, 6, 0)])),
            X,
            "each window holds the one number there is, which XLA repeats",
        ),
    ],
)
def test_near_misses_are_left_alone(rule: Any, natural: Callable[..., Any], x: Any, reason: str) -> None:
    """Each with its reason."""
    assert refusals(natural, rule, x) == [reason]


def test_strict_numerics_leave_sums_of_windows() -> None:
    """Sums are taken in another order."""
    natural = windows("sum", 1, 5)
    assert "reduce_window_sum" in names(ag.optimize(natural, numerics="strict"), X)
    assert "reduce_window_sum" not in names(ag.optimize(natural), X)
