"""Sums of products of which a factor repeats along other axes are added up row by row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel.compiler.passes.weighted_sums import NAME


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers of float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How often the pass did something."""
    return sum(d.rule == NAME for d in ag.explain(f, **options)(*args).fired)


def agree(f: Callable[..., Any], *args: Any) -> None:
    """Value and gradient are those of the natural form."""

    def total(*args: Any) -> Any:
        return jnp.sum(jnp.sin(f(*args)))

    where = tuple(range(len(args)))
    forms = (f, jax.grad(total, where))
    for g in forms:
        for got, want in zip(*(jax.tree.leaves(jax.jit(h)(*args)) for h in (ag.optimize(g), g)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(want))))


x = normal(0, 24, 20, 48)
SLOW: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "weights between": (lambda w, x: jnp.sum(w[:, None] * x, 0), (normal(1, 24, 48), x)),
    "weights in front": (lambda w, x: jnp.sum(x * w, 1), (normal(1, 20, 48), x)),
    "of a function": (lambda w, x: jnp.sum(w[:, None] * jnp.exp(-x * x), 0), (normal(1, 24, 48), x)),
    "two functions": (lambda w, x: jnp.sum(jnp.tanh(w)[:, None] * jnp.abs(x), 0), (normal(1, 24, 48), x)),
    "four dimensions": (lambda w, x: jnp.sum(w[:, :, None] * x, 0), (normal(1, 24, 10, 8), normal(0, 24, 10, 16, 8))),
    "layers": (lambda w, x: jnp.sum(w[:, None, None] * x, 0), (normal(1, 40), normal(0, 40, 64, 128))),
    "in a loop": (
        lambda w, x: jax.lax.scan(lambda c, w: (c + jnp.sum(w[:, None] * x, 0), None), jnp.zeros((20, 48)), w)[0],
        (normal(1, 3, 24, 48), x),
    ),
    "of a batch": (jax.vmap(lambda w, x: jnp.sum(w[:, None] * x, 0)), (normal(1, 2, 24, 48), normal(0, 2, 24, 20, 48))),
    "the mean": (lambda w, x: jnp.mean(w[:, None] * x, 0), (normal(1, 24, 48), x)),
}


@pytest.mark.parametrize("name", SLOW)
def test_it_fires(name: str) -> None:
    """Wherever the weights stand, of what is computed on the way as well."""
    f, args = SLOW[name]
    assert fired(f, *args) == 1
    agree(f, *args)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "over the last axis": (lambda w, x: jnp.sum(w[:, None] * x, 2), (normal(1, 24, 48), x)),
    "repeated along the last axis": (lambda w, x: jnp.sum(w[..., None] * x, 0), (normal(1, 24, 20), x)),
    "repeated along the axis itself": (lambda w, x: jnp.sum(w * x, 0), (normal(1, 20, 48), x)),
    "no factor repeats": (lambda w, x: jnp.sum(w * x, 0), (normal(1, 24, 20, 48), x)),
    "few entries": (lambda w, x: jnp.sum(w[:, None] * x, 0), (normal(1, 24, 8), x[:, :10, :8])),
    "float64": (
        lambda w, x: jnp.sum(w[:, None] * x, 0),
        (np.ones((24, 48)), np.ones((24, 20, 48))),
    ),
    "half precision": (
        lambda w, x: jnp.sum(w[:, None] * x, 0),
        (normal(1, 24, 48).astype("bfloat16"), x.astype("bfloat16")),
    ),
    "read by others": (lambda w, x: (lambda y: (jnp.sum(y, 0), y))(w[:, None] * x), (normal(1, 24, 48), x)),
    "a difference": (lambda w, x: jnp.sum(jnp.abs(w[:, None] - x), 0), (normal(1, 24, 48), x)),
    "an extremum": (lambda w, x: jnp.max(w[:, None] * x, 0), (normal(1, 24, 48), x)),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    """What XLA is fast at, and what it stores anyway."""
    f, args = LEFT[name]
    with jax.enable_x64(name == "float64"):
        assert fired(f, *args) == 0


def test_strict_keeps_the_order_of_sums() -> None:
    """Row after row is another order than a library's."""
    f, args = SLOW["weights between"]
    assert fired(f, *args, numerics="strict") == 0


@given(
    shape=st.lists(st.integers(1, 40), min_size=2, max_size=4).map(lambda sizes: (*sizes, 24)),
    data=st.data(),
)
def test_any_axes_and_sizes(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Any axis, any repeated dimensions: the sums are the same."""
    if np.prod(shape) > 200_000:
        shape = shape[-3:]
    axis = data.draw(st.integers(0, len(shape) - 1))
    repeated = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    weights = normal(1, *(1 if d in repeated else size for d, size in enumerate(shape)))
    values = normal(2, *shape)

    def f(w: Any, x: Any) -> Any:
        return jnp.sum(w * x, axis)

    np.testing.assert_allclose(
        jax.jit(ag.optimize(f))(weights, values), jax.jit(f)(weights, values), rtol=1e-4, atol=1e-3
    )


def test_zero_sizes_and_nan() -> None:
    """No rows, no columns, and numbers that are none."""
    f, (w, x) = SLOW["weights between"]
    bad = x.at[3, 4, 5].set(jnp.nan).at[0, 0, 0].set(jnp.inf)
    np.testing.assert_array_equal(jnp.isnan(jax.jit(ag.optimize(f))(w, bad)), jnp.isnan(f(w, bad)))
    for size in ((0, 20, 48), (24, 0, 48), (24, 20, 0)):
        empty = jnp.zeros(size)
        got = jax.jit(ag.optimize(f))(jnp.zeros((size[0], size[2])), empty)
        assert got.shape == size[1:]
        assert not got.any()
