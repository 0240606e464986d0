"""Convolutions of few terms, and the derivatives of depthwise kernels, as sums of products."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import depthwise_kernel_gradient, few_term_convolution
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


@pytest.mark.parametrize("holes", [(1, 1), (2, 1)])
def test_an_infinite_kernel_meets_the_zeros_that_plain_jax_multiplies(holes: tuple[int, int]) -> None:
    """Zeros of the padding are terms in XLA's library, and neither these nor holes are in its own loops."""
    f = conv(padding=((1, 1), (1, 1)), lhs_dilation=holes)
    kernel = np.array(normal(9, 3, 1, 3, 3))
    kernel[0, 0, 1, 0], kernel[1, 0, 0, 2] = np.inf, np.nan
    assert fired(f, few_term_convolution, IMAGE, kernel) == 1
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(IMAGE, kernel), jax.jit(f)(IMAGE, kernel), rtol=1e-5, atol=1e-5)


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
        "it is not of float32 alone",
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


def by_kernel(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a convolution by its kernel."""
    return jax.grad(lambda w, x: (f(x, w) ** 2).sum())


KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "channels first, two outputs each": (by_kernel(conv(feature_group_count=4)), (DEPTHWISE, DEEP)),
    "channels last, strides, dilation": (
        by_kernel(conv((2, 1), layout=LAST, rhs_dilation=(1, 2), feature_group_count=4)),
        (DEPTHWISE[::2].transpose(2, 3, 1, 0), DEEP.transpose(0, 2, 3, 1)),
    ),
    "uneven padding": (by_kernel(conv(padding=((2, 0), (1, 3)), feature_group_count=4)), (DEPTHWISE[:4], DEEP)),
    "over time, in a scan": (
        lambda w, x: lax.scan(lambda w, _: (w - by_kernel(over_time)(w, x), None), w, None, length=2)[0],
        (normal(6, 4, 1, 5) / 9, normal(7, 2, 9, 5) / 9),
    ),
    "mapped over inputs": (
        jax.vmap(by_kernel(conv(feature_group_count=4)), (None, 0)),
        (DEPTHWISE, normal(8, 2, 1, 4, 5, 5)),
    ),
}


def over_time(x: Any, w: Any) -> Any:
    """A causal depthwise convolution."""
    layout = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, w, (1,), [(3, 0)], dimension_numbers=layout, feature_group_count=5)


@pytest.mark.parametrize("name", KERNELS)
def test_derivative_of_a_depthwise_kernel(name: str) -> None:
    """In every layout, with strides, dilations and paddings, several outputs for a channel, batched, and in loops."""
    f, args = KERNELS[name]
    assert fired(f, depthwise_kernel_gradient, *args) == 1


@pytest.mark.parametrize(
    ("kernel", "groups", "reason"),
    [
        ((8, 2, 3, 2), 2, "several channels share a group"),
        ((4, 1, 4, 3), 4, "the kernel has more than 9 places, or nothing to sum"),
        ((8, 4, 3, 2), 1, "its batch has no groups"),
    ],
)
def test_leaves_other_kernels_alone(kernel: tuple[int, ...], groups: int, reason: str) -> None:
    """Kernels over several channels, and larger ones."""
    f = by_kernel(conv(feature_group_count=groups))
    assert reason in refusals(f, depthwise_kernel_gradient, normal(0, *kernel), DEEP)


def test_many_terms_are_summed_in_parts() -> None:
    """121 terms, one after the other, would have 2.8 times the error of the library's sum."""
    x, kernel = abs(normal(0, 4, 1, 64, 64)), abs(normal(1, 1, 1, 11, 11))

    def f(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID")

    assert fired(f, few_term_convolution, x, kernel) == 1
    with jax.enable_x64(True):
        truth = np.asarray(jax.jit(f)(np.asarray(x, np.float64), np.asarray(kernel, np.float64)))
    plain, ours = (
        np.sqrt(np.mean((np.asarray(jax.jit(g)(x, kernel)) - truth) ** 2))
        for g in (f, ag.optimize(f, rules=[few_term_convolution]))
    )
    assert ours < 1.2 * plain


def test_a_kernel_that_fits_nowhere_has_no_gradient() -> None:
    """The input's gradient is the convolution of an empty array: zeros, whatever stands in the kernel."""
    x, kernel = jnp.ones((2, 6, 4, 3)), jnp.full((1, 6, 3, 2), jnp.nan)
    spelt = ("NCHW", "OIHW", "NHWC")

    def f(x: jax.Array) -> jax.Array:
        out = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", rhs_dilation=(2, 2), dimension_numbers=spelt)
        assert out.size == 0
        return out.sum()

    np.testing.assert_array_equal(jax.jit(ag.optimize(jax.grad(f)))(x), jnp.zeros_like(x))
