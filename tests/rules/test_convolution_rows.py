"""Convolutions of few channels, as loops over rows: gathered, scattered and summed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import convolution_by_rows, convolution_rows
from aerogel.compiler.rules.convolution_rows import FEWEST_PRODUCTS
from rules.rules_under_test import fired, normal, refusals

N = 32


def conv(strides: Any = 1, padding: Any = ((2, 2), (2, 2)), layout: Any = None, **more: Any) -> Callable[..., Any]:
    """A convolution, in as many dimensions as it has paddings."""
    given = [strides] * len(padding) if isinstance(strides, int) else strides
    return lambda x, w: lax.conv_general_dilated(x, w, given, padding, dimension_numbers=layout, **more) / 8


def by_input(x: Any, w: Any) -> Any:
    """What the gradient of a network's layer by its input is."""
    f = lambda x: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))  # noqa: E731
    return jax.linear_transpose(f, jnp.zeros((*x.shape[:3], w.shape[2])))(x)[0] / 8


def by_kernel(x: Any, cotangent: Any) -> Any:
    """What the gradient of a layer by its kernel is, for images with the batch first."""
    w = jnp.zeros(
        (cotangent.shape[1], x.shape[1], *(n - m + 1 for n, m in zip(x.shape[2:], cotangent.shape[2:], strict=True)))
    )
    return jax.linear_transpose(lambda w: lax.conv(x, w, (1,) * (x.ndim - 2), "VALID"), w)(cotangent)[0] / 300


X, W = normal(0, N, 8, 12, 11), normal(1, 2, 8, 5, 5)
WIDE = normal(2, 12, 3, 4, 3)
FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "wide padding": (conv(padding=((4, 4), (4, 4))), (X, W)),
    "uneven padding": (conv(padding=((0, 3), (5, 1))), (X, W)),
    "less than the input": (conv(padding=((-1, 4), (3, -2))), (X, W)),
    "places that read padding alone": (conv(padding=((0, 0), (14, -6))), (X[..., :8], W)),
    "dilated": (conv(rhs_dilation=(2, 1)), (X, W)),
    "channels last": (conv(layout=("NHWC", "HWIO", "HWNC")), (X.transpose(0, 2, 3, 1), W.transpose(2, 3, 1, 0))),
    "over time": (conv(padding=((3, 3),)), (normal(0, N, 8, 200), normal(1, 3, 8, 7))),
    "in space": (conv(padding=((1, 1),) * 3), (normal(0, 16, 8, 9, 8, 7), normal(1, 1, 8, 3, 3, 3))),
    "gathered, uneven padding": (conv(padding=((0, 3), (5, -1))), (X[:, :3], WIDE)),
    "gathered, channels last": (
        conv(layout=("NHWC", "HWIO", "HWNC")),
        (X[:, :3].transpose(0, 2, 3, 1), WIDE.transpose(2, 3, 1, 0)),
    ),
    "gathered, over time": (conv(padding=((3, 3),)), (normal(0, N, 3, 200), normal(1, 11, 3, 7))),
    "gathered, in space": (conv(padding=((1, 1),) * 3), (normal(0, 16, 2, 9, 8, 7), normal(1, 6, 2, 3, 3, 3))),
    "summed": (by_kernel, (normal(0, 64, 3, 12, 13), normal(1, 64, 6, 10, 10))),
    "summed, over time": (by_kernel, (normal(0, 64, 3, 104), normal(1, 64, 12, 100))),
    "summed, in space": (by_kernel, (normal(0, 64, 2, 7, 8, 6), normal(1, 64, 6, 5, 6, 5))),
    "batched": (jax.vmap(conv(), (0, None)), (X.reshape(2, N // 2, 8, 12, 11), W)),
    "a gradient": (by_input, (normal(0, N, 16, 16, 8), normal(1, 3, 3, 2, 8) / 3)),
    "in a loop": (lambda x, w: lax.scan(lambda c, x: (c, conv()(x, w)), 0, x)[1], (X[None], W)),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires_and_agrees(name: str) -> None:
    """In every layout and number of dimensions, with dilations and paddings of either sign, and as derivatives."""
    f, args = FIRES[name]
    assert fired(f, convolution_by_rows, *args) == 1


STRIDES = "it has strides, is the derivative of one with strides, or has no axis in space"
NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "many channels": (
        conv(padding=((0, 0), (0, 0))),
        (normal(0, N, 24, 6, 6), normal(1, 24, 24, 3, 3)),
        "there are many channels (24 and 24) for 9 places",
    ),
    "many outputs": (conv(), (X[:, :3], normal(1, 33, 3, 5, 5)), "it makes 33 channels"),
    "few terms": (
        conv(padding=((4, 4), (4, 4))),
        (X[:, :1], normal(1, 13, 1, 4, 3)),
        "its entries are sums of few terms",
    ),
    "few images": (conv(), (normal(0, 4, 8, 30, 30), W), "it has 4 images"),
    "dilated windows": (conv(rhs_dilation=(1, 2)), (X[:, :3], WIDE), "it is dilated"),
    "short rows": (
        conv(padding=((1, 1), (0, 0))),
        (normal(0, 8, 4, 1000, 3), normal(1, 4, 4, 3, 3)),
        "of a row there are 864 entries: few, or too many for a cache",
    ),
    "strides": (conv(2), (X, W), STRIDES),
    "holes": (conv(lhs_dilation=(2, 1)), (X, W), STRIDES),
    "groups": (conv(feature_group_count=2), (X, W[:, :4]), "its channels or its batch have groups"),
    "one place": (conv(), (normal(0, N, 64, 12, 12), normal(1, 8, 64, 1, 1)), "its kernel has one place"),
    "little work": (conv(), (X[:1], W), f"it takes 52800 products: fewer than {FEWEST_PRODUCTS}"),
    "half precision": (
        conv(),
        (X.astype("float16"), W.astype("float16")),
        "it is not of float32 alone",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What the library is made for, and what is none of the three forms."""
    f, args, reason = NEAR_MISSES[name]
    assert refusals(f, convolution_by_rows, *args) == [reason]


def test_stands_in_front_of_the_sum_of_terms() -> None:
    """By default it writes what both could: one output channel of six."""
    reports: list[Any] = []
    x, w = normal(0, N, 6, 24, 24), normal(1, 1, 6, 5, 5)
    got = jax.jit(ag.optimize(conv(), on_report=reports.append))(x, w)
    fired_rules = [d.rule for d in reports[-1].fired]
    assert "convolution-by-rows" in fired_rules
    assert "few-term-convolution" not in fired_rules
    np.testing.assert_allclose(got, jax.jit(conv())(x, w), rtol=1e-4, atol=1e-4)


def test_an_input_of_no_entries_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding alone makes the output: there is no price to compare, and once there was an error instead."""
    monkeypatch.setattr(convolution_rows, "FEWEST_PRODUCTS", 0)
    f = lambda x, k: lax.conv_general_dilated(x, k, (1,), ((2, 2),))  # noqa: E731
    assert refusals(f, convolution_by_rows, jnp.ones((1, 1, 0)), jnp.ones((2, 1, 3))) == ["its input has no entries"]
