"""Convolutions of one channel with a long kernel, as products of windows."""

import sys
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import long_convolution as RULE
from rules.rules_under_test import fired, normal, refusals

ROW, LONG, SHORT = normal(0, 900), normal(1, 180), normal(2, 30)
IMAGE, STAMP = normal(3, 40, 37), normal(4, 13, 14)


def conv(padding: Any, layout: Any = None, **more: Any) -> Callable[..., Any]:
    """A convolution without strides."""
    return lambda x, w: lax.conv_general_dilated(x, w, (1,) * (x.ndim - 2), padding, dimension_numbers=layout, **more)


def both(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a convolution by its input and its kernel."""
    return jax.grad(lambda x, w: jnp.sum((f(x, w) / 100) ** 2), (0, 1))


FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "full": (jnp.convolve, (ROW, LONG), 1),
    "same": (lambda x, k: jnp.convolve(x, k, "same"), (ROW, LONG), 1),
    "valid": (lambda x, k: jnp.convolve(x, k, "valid"), (ROW, LONG), 1),
    "the kernel first": (jnp.convolve, (LONG, ROW), 1),
    "few terms, many entries": (jnp.convolve, (normal(0, 5000), SHORT), 1),
    "correlated": (lambda x, k: jnp.correlate(x, k, "full"), (ROW, LONG), 1),
    "scipy": (lambda x, k: jax.scipy.signal.convolve(x, k, "same"), (ROW, LONG), 1),
    "scipy, an image": (lambda x, k: jax.scipy.signal.convolve2d(x, k, "same"), (IMAGE, STAMP), 1),
    "the larger part of an image": (
        lambda x, k: jax.scipy.signal.convolve2d(x, k, "valid"),
        (IMAGE, IMAGE[:30, :20]),
        1,
    ),
    "cut off, and padded": (conv([(-3, 200)]), (ROW[None, None], LONG[None, None]), 1),
    "a batch": (jax.vmap(jnp.convolve, (0, None)), (normal(0, 3, 900), LONG), 1),
    "each its kernel": (jax.vmap(jnp.convolve), (normal(0, 3, 900), normal(1, 3, 180)), 1),
    "channels last, two for each": (
        conv([(179, 0)], ("NWC", "WIO", "NWC"), feature_group_count=3),
        (normal(0, 2, 300, 3), normal(1, 180, 1, 6)),
        1,
    ),
    "the gradient": (both(jnp.convolve), (ROW, LONG), 3),
    "the gradient, a longer row": (both(lambda x, k: jnp.convolve(x, k, "same")), (normal(0, 3000), LONG), 3),
    "the gradient of an image": (both(lambda x, k: jax.scipy.signal.convolve2d(x, k, "same")), (IMAGE, STAMP), 2),
    "in a scan": (
        lambda x, k: lax.scan(lambda c, _: (jnp.tanh(jnp.convolve(c, k, "same")), None), x, None, length=2)[0],
        (ROW, LONG / 20),
        1,
    ),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires_and_agrees(name: str) -> None:
    """In every mode and layout, batched, in groups, and in gradients."""
    f, args, count = FIRES[name]
    assert fired(f, RULE, *args) == count


@pytest.mark.parametrize("name", FIRES)
def test_float64_agrees_to_its_digits(name: str) -> None:
    """So nothing but the order of sums differs."""
    f, args, _ = FIRES[name]
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in args]
        got, want = (jax.jit(g)(*wide) for g in (ag.optimize(f, rules=[RULE], passes=()), f))
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12 * float(jnp.abs(other).max()))


@settings(max_examples=20)
@given(data=st.data())
def test_any_sizes(data: st.DataObject) -> None:
    """Blocks that do not divide what they are of, windows of one block and of many, outputs of one entry."""
    draw = data.draw
    rank, groups, outputs, batch = (draw(st.integers(1, most)) for most in (2, 3, 3, 2))
    places = [draw(st.integers(1, most)) for most in (5, 60)[2 - rank :]]
    given_ = [draw(st.integers(1, most)) for most in (6, 100)[2 - rank :]]
    padding = [(draw(st.integers(-1, p)), draw(st.integers(-1, p))) for p in places]
    x, w = normal(0, batch, groups, *given_), normal(1, groups * outputs, 1, *places)
    f = conv(padding, feature_group_count=groups)
    if min(n + sum(ends) - p for n, ends, p in zip(given_, padding, places, strict=True)) < 0:
        return
    with pytest.MonkeyPatch.context() as patched, jax.enable_x64(True):
        module = sys.modules["aerogel.compiler.rules.long_convolution"]  # the package has the rule under this name
        for name in ("SHORTEST", "SHORTEST_OF_MANY_TERMS", "FEWEST_PRODUCTS", "FEWEST_OF_MANY_TERMS", "MOST_TERMS"):
            patched.setattr(module, name, 1)
        patched.setattr(module, "is_sum_of_few", lambda conv: False)
        x, w = (jnp.asarray(np.asarray(v, np.float64)) for v in (x, w))
        reports: list[Any] = []
        got, want = ag.optimize(f, rules=[RULE], passes=(), on_report=reports.append)(x, w), f(x, w)
    (decision,) = reports[0].decisions
    assert decision.fired or decision.reason == "its kernel is larger than its output"
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-11)


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "few terms": (jnp.convolve, (normal(0, 3000), SHORT), "it takes 90870 products, fewer than 131072"),
    "a short kernel": (
        jnp.convolve,
        (normal(0, 30_000), SHORT[:5]),
        "its kernel has 5 places, its output 30004: one of them fewer than 24",
    ),
    "channels that are summed": (
        conv("SAME"),
        (normal(0, 1, 2, 900), normal(1, 1, 2, 180)),
        "channels are summed, its batch has groups, or more than 4 outputs share their input",
    ),
    "strides": (
        lambda x, w: lax.conv_general_dilated(x, w, (2,), "VALID"),
        (ROW[None, None], LONG[None, None]),
        "it has strides, holes or dilation, or more than two dimensions",
    ),
    "half precision": (
        jnp.convolve,
        (ROW.astype("bfloat16"), LONG.astype("bfloat16")),
        "it is not of float32 or float64 alone",
    ),
    "few terms of a batch": (
        jax.vmap(jnp.convolve, (0, None)),
        (normal(0, 4, 2000), SHORT),
        "its entries are sums of few terms, and its batch is shared among threads",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """Stay as they are, with a reason."""
    f, args, reason = NEAR_MISSES[name]
    assert refusals(f, RULE, *args) == [reason]


def test_memory_is_bounded() -> None:
    """Windows and Toeplitz matrices of a hundred million entries are not made."""
    shapes = (jax.ShapeDtypeStruct((3_000_000,), np.float32), jax.ShapeDtypeStruct((100_000,), np.float32))
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(jnp.convolve, rules=[RULE], passes=(), on_report=reports.append))(*shapes)
    assert not reports[0].fired
    assert any("its windows have" in one.reason for one in reports[0].decisions)
