"""Negative powers of one array share one division."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel._jax import jaxprs_in_params
from aerogel.compiler.passes.shared_reciprocals import NAME

Function = Callable[..., Any]


def fired(f: Function, *args: Any, **options: Any) -> int:
    """How often the pass did something."""
    return sum(d.rule == NAME for d in ag.explain(f, **options)(*args).fired)


def divisions(f: Function, *args: Any) -> int:
    """How many equations of a program divide, loops and calls included."""

    def count(jaxpr: Any) -> int:
        own = sum(
            eqn.primitive.name == "div" or (eqn.primitive.name == "integer_pow" and eqn.params["y"] < 0)
            for eqn in jaxpr.eqns
        )
        return own + sum(count(inner) for eqn in jaxpr.eqns for inner in jaxprs_in_params(eqn.params))

    return count(jax.make_jaxpr(f)(*args).jaxpr)


def lennard_jones(r: Any) -> Any:
    """As it is written."""
    return 4 * (r**-12 - r**-6)


r = jnp.linspace(0.7, 3.0, 2100)
SHARED: dict[str, tuple[Function, int, int]] = {
    "Lennard-Jones": (lennard_jones, 2, 1),
    "its gradient": (jax.grad(lambda r: lennard_jones(r).sum()), 2, 1),
    "of one over it": (lambda r: 1 / r + r**-2 + jnp.power(r, -3), 3, 1),
    "half of it": (lambda r: 0.5 / r - r**-2, 2, 1),
    "of odd powers": (lambda r: r**-9 - r**-6, 2, 1),
    "of examples": (jax.vmap(lambda r: r**-4 - r**-2), 2, 1),
    "in a loop": (lambda r: jax.lax.scan(lambda c, _: (c**-2 + c**-4 + 1, None), r, None, 3)[0], 2, 1),
}


@pytest.mark.parametrize("name", SHARED)
def test_one_division_is_left(name: str) -> None:
    """However it is written."""
    f, before, after = SHARED[name]
    assert divisions(f, r) >= before
    assert fired(f, r) == 1
    assert divisions(ag.optimize(f), r) == after


APART: dict[str, tuple[Function, Any]] = {
    "one power": (lambda r: r**-12, r),
    "written by hand": (lambda r: (1 / r**6) * (1 / r**6) - 1 / r**6, r),
    "of two arrays": (lambda r: r**-2 - (r + 1) ** -3, r),
    "of few numbers": (lennard_jones, r[:4]),
    "of rows' sums": (lambda x: x * x.sum(1, keepdims=True) ** -2 + 1 / x.sum(1, keepdims=True), jnp.ones((70, 30))),
    "above one": (lambda r: 3 / r - r**-2, r),
    "of bfloat16": (lennard_jones, r.astype("bfloat16")),
    "of complex numbers": (lennard_jones, r + 0j),
    "of no entries": (lennard_jones, r[:0]),
}


@pytest.mark.parametrize("name", APART)
def test_it_leaves_alone(name: str) -> None:
    """What divides once, and what would be another number."""
    f, x = APART[name]
    assert fired(f, x) == 0


def test_strict_numerics_keep_each_power() -> None:
    """The products are rounded elsewhere."""
    assert fired(lennard_jones, r) == 1
    assert fired(lennard_jones, r, numerics="strict") == 0


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("shape", [(37,), (5, 21)])
def test_the_numbers_are_as_near_to_float64(name: str, shape: tuple[int, ...]) -> None:
    """At sizes that are nobody's, of both signs; a power of 12 is within 16 units in the last place."""
    f, *_ = SHARED[name]
    x = np.random.default_rng(3).uniform(0.5, 2, shape) * np.random.default_rng(4).choice([-1, 1], shape)
    x = np.float32(x)
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(f)(x.astype(np.float64)))
        wide = np.asarray(jax.jit(ag.optimize(f))(x.astype(np.float64)))
        size = np.asarray(jax.jit(f)(np.abs(x).astype(np.float64) * 0 + np.abs(x).min()))
    scale = np.maximum(np.abs(exact), np.abs(size).max() * 1e-2)
    assert np.max(np.abs(wide - exact) / scale) < 1e-12
    got = np.asarray(jax.jit(ag.optimize(f))(x), np.float64)
    assert np.max(np.abs(got - exact) / scale) < 1e-4


@pytest.mark.parametrize("powers", [(-12, -6), (-13, -7), (-3, -2), (-1, -2)])
def test_a_power_is_rounded_no_more_than_twice_as_much(powers: tuple[int, int]) -> None:
    """Against float64, each by itself; the reciprocal is of the greatest power that all are powers of."""

    def both(x: Any) -> Any:
        return [jax.lax.integer_pow(x, p) for p in powers]

    x = np.float32(np.random.default_rng(0).uniform(0.3, 3, 5000))
    assert fired(both, jnp.asarray(x)) == 1
    for ours, plain, p in zip(jax.jit(ag.optimize(both))(x), jax.jit(both)(x), powers, strict=True):
        exact = x.astype(np.float64) ** p
        errors = [np.max(np.abs(np.asarray(y, np.float64) / exact - 1)) for y in (ours, plain)]
        assert errors[0] <= 2 * errors[1] + 1e-7


def test_ends_of_the_range() -> None:
    """Zeros of both signs, infinities and nan; where one power is beyond the range and the other is not."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e30, -1e30, 3e38, 1e-4, 1e4, 1e-38, 1, -1, 2]
    x = jnp.asarray(special, "float32")
    for powers in ((-12, -6), (-3, -2), (-1, -3), (-13, -7, -12, -6)):

        def each(x: Any, powers: tuple[int, ...] = powers) -> Any:
            return [jax.lax.integer_pow(x, p) for p in powers]

        assert fired(each, x) == 1
        for got, want in zip(jax.jit(ag.optimize(each))(x), jax.jit(each)(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
            assert np.array_equal(
                np.signbit(got), np.signbit(want) & ~np.isnan(want) | np.isnan(want) & np.signbit(got)
            )
