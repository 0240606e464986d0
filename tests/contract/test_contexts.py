"""Settings that an equation was made under belong to it, whether they hold around the call or inside the function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

import aerogel as ag
from aerogel import _jax

from ._programs import (
    LENGTH,
    assert_fires,
    assert_lowers_alike,
    assert_same,
    beside_rewrite,
    equations,
    lowered_text,
    stacked_sum,
    start,
)


def test_compute_on():
    """A part that is computed on the host stays there, and nothing else goes with it."""

    def f(x):
        with _jax.computed_on("device_host"):
            y = jnp.sin(x) * 2
        return jnp.cos(y) + x

    x = jnp.ones(4)
    assert "_xla_compute_type" in lowered_text(f, x)
    assert_lowers_alike(f, x)
    assert lowered_text(ag.optimize(beside_rewrite(f)), start(), x).count("_xla_compute_type") == lowered_text(
        f, x
    ).count("_xla_compute_type")


def test_a_loop_computed_on_the_host():
    """A loop inside `compute_on` is rewritten into equations that all are computed on the host, new ones too."""

    def f(x):
        with _jax.computed_on("device_host"):
            return stacked_sum(x)

    for program in (jax.make_jaxpr(f)(start()), jax.make_jaxpr(ag.optimize(f))(start())):
        assert {equation.ctx.compute_type for equation in equations(program)} == {"device_host"}
    assert_fires(f, start())


def test_xla_metadata_inside():
    """Attributes for XLA stay on the operations they were put on, and on no other."""

    def f(x):
        y = jnp.cos(x)
        with set_xla_metadata(stage="hot"):
            y = jnp.sin(y)
        return y * 2

    x = jnp.ones(4)
    assert 'stage = "hot"' in lowered_text(f, x)
    assert_lowers_alike(f, x)
    count = lowered_text(ag.optimize(beside_rewrite(f)), start(), x).count('stage = "hot"')
    assert count == lowered_text(f, x).count('stage = "hot"')


def test_xla_metadata_around():
    """Attributes that are set around the call reach the same operations."""

    def around(f):
        def g(x):
            with set_xla_metadata(stage="hot"):
                y = f(x)
            return jnp.sin(y)

        return g

    def f(x):
        with set_xla_metadata(inner="yes"):
            y = jnp.cos(x)
        return y + 1

    x = jnp.ones(4)
    got = jax.jit(around(ag.optimize(f))).lower(x).as_text()
    want = jax.jit(around(f)).lower(x).as_text()
    assert 'stage = "hot"' in want
    assert got == want


@pytest.mark.parametrize("precision", ["float32", "tensorfloat32"])
def test_matmul_precision(precision):
    """The precision that holds where a product is written goes with it, around or inside."""

    def f(a, b):
        with jax.default_matmul_precision("highest"):
            first = a @ b
        return first, a @ b, jnp.einsum("ij,jk->ik", a, b, precision="high")

    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    plain = lowered_text(f, a, b)
    with jax.default_matmul_precision(precision):
        assert_lowers_alike(f, a, b)
        assert lowered_text(f, a, b) != plain
        assert_same(f, a, b)
    assert_lowers_alike(f, a, b)


def test_matmul_precision_in_a_loop_whose_product_can_move_out():
    """A product that is hoisted out of a loop, or stays in it, has the precision it was written with."""

    def f(w, xs):
        def body(c, x):
            c = jnp.tanh(c + jnp.dot(x, w, precision="highest"))
            return c, c

        return lax.scan(body, jnp.zeros(64), xs)[1].sum()

    w, xs = jnp.full((32, 64), 0.01), jnp.ones((LENGTH, 32))
    text = lowered_text(ag.optimize(f), w, xs)
    assert text.count("stablehlo.dot_general") == text.count("precision = [HIGHEST, HIGHEST]") > 0


@pytest.mark.parametrize("partitionable", [True, False])
def test_prng_layout(partitionable):
    """`jax_threefry_partitionable` decides the bits, around the call and inside the function."""

    def f(key):
        return jax.random.bits(key, (5,)), jax.random.normal(key, (3,))

    def inside(key):
        with jax.threefry_partitionable(partitionable):
            mine = f(key)
        return mine, f(key)

    key = jax.random.key(3)
    with jax.threefry_partitionable(partitionable):
        assert_same(f, key)
        assert_lowers_alike(f, key)
    assert_same(inside, key)
    bits = {setting: _bits(f, key, setting) for setting in (True, False)}
    assert not np.array_equal(bits[True], bits[False])


def _bits(f, key, partitionable: bool) -> np.ndarray:
    with jax.threefry_partitionable(partitionable):
        return np.asarray(jax.jit(ag.optimize(f))(key)[0])


def test_prng_layout_in_a_loop_that_is_rewritten():
    """The same, for numbers drawn in the body of a loop that is rewritten."""

    def f(key, x):
        def body(key, _):
            key, now = jax.random.split(key)
            return key, jax.random.uniform(now, x.shape)

        return lax.scan(body, key, None, length=LENGTH)[1].sum()

    key, x = jax.random.key(3), start()
    got = {}
    for setting in (True, False):
        with jax.threefry_partitionable(setting):
            assert_fires(f, key, x)
            got[setting] = float(jax.jit(ag.optimize(f))(key, x))
            np.testing.assert_allclose(got[setting], jax.jit(f)(key, x), rtol=1e-5)
    assert got[True] != got[False]


def test_default_prng_implementation():
    """`jax_default_prng_impl` decides which keys are made, around and inside."""
    for impl in ("threefry2x32", "unsafe_rbg"):
        # A new function each time: this setting is no part of `jit`'s own cache key.
        def f(seed):
            with jax.default_prng_impl("rbg"):
                inner = jax.random.key(seed)
            outer = jax.random.key(seed)
            return inner, outer, jax.random.uniform(inner, (2,)), jax.random.uniform(outer, (2,))

        with jax.default_prng_impl(impl):
            assert_same(f, 3)


def test_numpy_promotion_and_rank_settings():
    """Strict promotion raises JAX's error inside an optimised function as in any other."""

    def f(x, i):
        return x + i

    args = jnp.ones(3), jnp.arange(3)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion path"):
        jax.jit(ag.optimize(f))(*args)
    with jax.numpy_dtype_promotion("standard"):
        assert_same(f, *args)


def test_a_rewrite_works_under_strict_promotion():
    """What a rewrite adds is written with exact types: strict promotion and rank checks do not disturb it."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert_fires(stacked_sum, start())
        assert_same(jnp.sin, start())


def test_user_contexts():
    """A `make_user_context` value is the same inside, and two values are two programs."""
    context = jax.make_user_context(0)
    g = jax.jit(ag.optimize(lambda x: x + context.value))
    for value in (1, 2, 1):
        with context(value):
            np.testing.assert_array_equal(g(jnp.zeros(2)), value)


def test_settings_are_part_of_the_memory_of_an_optimised_function():
    """One optimised function, called under two settings, answers for each: nothing is remembered across them."""
    g = ag.optimize(lambda a, b: a @ b)
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    programs = []
    for precision in ("bfloat16", "highest", "bfloat16"):
        with jax.default_matmul_precision(precision):
            programs.append(str(jax.make_jaxpr(g)(a, b)))
    assert programs[0] == programs[2] != programs[1]


def test_a_loop_with_metadata_that_is_rewritten():
    """Where the loop carries an attribute, every equation of the rewritten loop carries it too."""

    def f(x):
        with set_xla_metadata(stage="hot"):
            return stacked_sum(x)

    for program in (jax.make_jaxpr(f)(start()), jax.make_jaxpr(ag.optimize(f))(start())):
        assert all("hot" in str(equation.ctx.xla_metadata) for equation in equations(program))
    assert_fires(f, start())
