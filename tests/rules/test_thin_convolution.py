"""Convolutions that make few channels of many, as one product that is added up where it goes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import thin_convolution
from aerogel.compiler.rules.thin_convolution import FEWEST_PRODUCTS
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


X, W = normal(0, N, 8, 12, 11), normal(1, 2, 8, 5, 5)
FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "wide padding": (conv(padding=((4, 4), (4, 4))), (X, W)),
    "uneven padding": (conv(padding=((0, 3), (5, 1))), (X, W)),
    "less than the input": (conv(padding=((-1, 2), (3, -2))), (X, W)),
    "places that read padding alone": (conv(padding=((0, 0), (14, -6))), (X[..., :8], W)),
    "dilated": (conv(rhs_dilation=(2, 1)), (X, W)),
    "channels last": (conv(layout=("NHWC", "HWIO", "HWNC")), (X.transpose(0, 2, 3, 1), W.transpose(2, 3, 1, 0))),
    "over time": (conv(padding=((3, 3),)), (normal(0, N, 8, 200), normal(1, 5, 8, 7))),
    "in space": (conv(padding=((1, 1),) * 3), (normal(0, 16, 8, 9, 8, 7), normal(1, 1, 8, 3, 3, 3))),
    "batched": (jax.vmap(conv(), (0, None)), (X.reshape(2, N // 2, 8, 12, 11), W)),
    "a gradient": (by_input, (normal(0, N, 12, 12, 8), normal(1, 3, 3, 6, 8) / 3)),
    "in a loop": (lambda x, w: lax.scan(lambda c, x: (c, conv()(x, w)), 0, x)[1], (X[None], W)),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires_and_agrees(name: str) -> None:
    """In every layout and number of dimensions, with dilations and paddings of either sign, and as a derivative."""
    f, args = FIRES[name]
    assert fired(f, thin_convolution, *args) == 1


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "few channels": (conv(), (X[:, :4], W[:, :4]), "it makes 2 channels of 4"),
    "many channels": (conv(), (X, normal(1, 9, 8, 5, 5)), "it makes 9 channels of 8"),
    "strides": (conv(2), (X, W), "it has strides, or is the derivative of one with strides"),
    "holes": (conv(lhs_dilation=(2, 1)), (X, W), "it has strides, or is the derivative of one with strides"),
    "groups": (conv(feature_group_count=2), (X, W[:, :4]), "its channels or its batch have groups"),
    "one place": (
        conv(),
        (normal(0, N, 64, 12, 12), normal(1, 8, 64, 1, 1)),
        "its kernel has one place, or more than 16 along an axis",
    ),
    "a large product": (conv(), (X, normal(1, 5, 8, 5, 5)), "the product would be too large"),
    "little work": (conv(), (X[:1], W), f"it takes 52800 products: fewer than {FEWEST_PRODUCTS}"),
    "half precision": (
        conv(),
        (X.astype("float16"), W.astype("float16")),
        "it is of float16 and float16, not of float32",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What the library is made for, and what would take more memory."""
    f, args, reason = NEAR_MISSES[name]
    assert refusals(f, thin_convolution, *args) == [reason]


def test_stands_in_front_of_the_sum_of_terms() -> None:
    """By default it writes what both could: one output channel of six."""
    reports: list[Any] = []
    x, w = normal(0, N, 6, 24, 24), normal(1, 1, 6, 5, 5)
    got = jax.jit(ag.optimize(conv(), on_report=reports.append))(x, w)
    assert [d.rule for d in reports[-1].fired] == ["thin-convolution"]
    np.testing.assert_allclose(got, jax.jit(conv())(x, w), rtol=1e-4, atol=1e-4)
