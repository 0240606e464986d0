"""Convolutions of few terms as sums of products."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import few_term_convolution
from rules.rules_under_test import fired, normal, refusals

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def conv(strides: Any = (1, 1), padding: Any = "SAME", layout: Any = FIRST, **more: Any) -> Callable[..., Any]:
    """A convolution in two dimensions."""
    return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=layout, **more)


def both(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a convolution by its input and its kernel."""
    return jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1))


IMAGE, DEEP = normal(0, 2, 1, 7, 6), normal(1, 2, 4, 7, 6)
ONE, DEPTHWISE = normal(2, 3, 1, 3, 3), normal(3, 8, 1, 3, 2)
FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "one channel": (conv(), (IMAGE, ONE), 1),
    "one channel, dilated, uneven padding": (conv(padding=((0, 3), (2, 1)), rhs_dilation=(2, 1)), (IMAGE, ONE), 1),
    "one channel, strides, holes": (conv((2, 3), ((1, 1), (-1, 2)), lhs_dilation=(2, 1)), (IMAGE, ONE), 1),
    "some channels": (conv(padding="VALID"), (DEEP, normal(4, 2, 4, 2, 2)), 1),
    "depthwise, two for each": (conv(feature_group_count=4), (DEEP, DEPTHWISE), 1),
    "groups of two": (conv((2, 2), feature_group_count=2), (DEEP, normal(5, 6, 2, 3, 3)), 1),
    "channels last": (
        conv((2, 1), layout=LAST, feature_group_count=4),
        (DEEP.transpose(0, 2, 3, 1), DEPTHWISE.transpose(2, 3, 1, 0)),
        1,
    ),
    "no batch but vmap": (jax.vmap(lambda x, w: conv()(x[None], w)[0], (0, None)), (IMAGE, ONE), 1),
    "kernels under vmap": (jax.vmap(conv(), (None, 0)), (IMAGE, normal(6, 2, 3, 1, 3, 3)), 1),
    "jnp.convolve": (lambda x, k: jnp.convolve(x, k, mode="same"), (normal(7, 50), normal(8, 5)), 1),
    "scipy": (lambda x, k: jax.scipy.signal.convolve2d(x, k, mode="same"), (IMAGE[0, 0], ONE[0, 0]), 1),
    "in a scan": (lambda x, w: lax.scan(lambda c, _: (conv()(c, w), None), x, None, length=2)[0], (IMAGE, ONE[:1]), 1),
    "gradient": (both(conv(feature_group_count=4)), (DEEP, DEPTHWISE), 2),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires_and_agrees(name: str) -> None:
    """In every layout, with strides, dilations, groups and paddings, batched, and in the gradient by the input."""
    f, args, count = FIRES[name]
    assert fired(f, few_term_convolution, *args) == count


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "many channels": (conv(), (normal(0, 1, 16, 4, 4), normal(1, 2, 16, 3, 3)), "it has 16 input channels"),
    "many outputs": (
        conv(),
        (normal(0, 1, 3, 4, 4), normal(1, 64, 3, 3, 3)),
        "its entries are sums of 27 terms, and there are 64 of them at each place",
    ),
    "large kernel": (
        conv(feature_group_count=2),
        (normal(0, 1, 2, 9, 9), normal(1, 2, 1, 9, 9)),
        "its entries are sums of 81 terms",
    ),
    "strides": (conv((2, 2)), (normal(0, 1, 3, 4, 4), normal(1, 4, 3, 3, 3)), "it has strides and several channels"),
    "half precision": (
        conv(),
        (IMAGE.astype("float16"), ONE.astype("float16")),
        "it is of float16 and float16, not of float32",
    ),
    "no window": (conv(padding="VALID"), (IMAGE[:, :, :2], ONE), "it has no entries"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What the library is made for, and what was not measured."""
    f, args, reason = NEAR_MISSES[name]
    assert refusals(f, few_term_convolution, *args) == [reason]


def test_leaves_the_derivative_of_a_kernel_alone() -> None:
    """It sums over all places: as many terms as the input has."""
    gradient = jax.grad(lambda w: (conv(feature_group_count=4)(DEEP, w) ** 2).sum())
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(gradient, rules=[few_term_convolution], on_report=reports.append))(DEPTHWISE)
    assert [d.reason for d in reports[-1].refused] == ["its batch has groups: it is the derivative of a kernel"]
