"""What JAX's own tests, random programs, and probes beside them, found to break once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import aerogel as ag
from aerogel import _jax

from ._programs import LENGTH, assert_fires, assert_same, equations, stacked_sum, start


class _ScaleRules:
    """Elements are float32; cotangents are added up by taking the larger one."""

    allow_conversion = True

    @staticmethod
    def physical_element_aval(dtype):
        return jax.core.ShapedArray((), np.dtype(np.float32))

    @staticmethod
    def add(dtype, x, y):
        larger = lax.max(lax.convert_element_type(x, np.float32), lax.convert_element_type(y, np.float32))
        return lax.convert_element_type(larger, dtype)

    @staticmethod
    def zero(dtype):
        return lax.convert_element_type(np.float32(-np.inf), dtype)

    @staticmethod
    def tangent_dtype(dtype):
        return dtype


class _ScaleKind(_jax.dtypes.extended):
    pass


@dataclasses.dataclass(frozen=True)
class _Scale(_jax.dtypes.ExtendedDType):
    _rules: type = _ScaleRules
    type: type = _ScaleKind
    name = "scale"


def test_cotangents_of_a_type_with_an_addition_of_its_own():
    """The sum of a type's own cotangents over a loop's steps is not a sum of numbers: `scale` takes the largest."""

    @jax.custom_vjp
    def inner(carry, scale):
        return carry

    def backward(scale, g):
        larger = 0.5 * (lax.convert_element_type(scale, np.float32) + jnp.max(g))
        return g, lax.convert_element_type(larger, _Scale())

    inner.defvjp(lambda carry, scale: (inner(carry, scale), scale), backward)

    def loss(x, scale):
        typed = lax.convert_element_type(scale, _Scale())
        return lax.scan(lambda c, _: (inner(c, typed), None), x, None, length=3)[0]

    gradient = jax.grad(loss, (0, 1))
    got = jax.jit(ag.optimize(gradient))(jnp.float32(3.14), jnp.float32(2.0))
    assert [float(x) for x in got] == [1.0, 1.5]


def test_constants_of_64_bits_where_x64_is_off_outside():
    """Arithmetic on literals inside `enable_x64` is folded to literals of its own types."""

    def f(x):
        with jax.enable_x64(True):
            y = lax.convert_element_type(x, np.float64)
            return stacked_sum(x), lax.dynamic_index_in_dim(y, 1)

    assert_same(f, start())
    assert_fires(f, start())


def loops(f, *args):
    """The scans of the optimised program."""
    return [eqn for eqn in equations(jax.make_jaxpr(ag.optimize(f))(*args)) if eqn.primitive.name == "scan"]


def test_what_compute_on_puts_elsewhere_stays_out_of_the_loop():
    """A reduction on the host stays one after the loop: in it, every step would go to the host."""

    def f(x):
        ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=LENGTH)[1]
        with _jax.computed_on("device_host"):
            return ys.sum(0)

    x = start()[:-1]  # another shape than that of `assert_same`'s own loop
    (scan,) = loops(f, x)
    assert {equation.ctx.compute_type for equation in equations(scan.params["jaxpr"])} == {None}
    assert_same(f, x)


def test_what_compute_on_makes_elsewhere_is_an_input_of_the_loop():
    """An input that the host makes is not made in the steps of a loop on the device."""

    def f(x, a):
        with _jax.computed_on("device_host"):
            xs = a[:, None] * x[None]
        return lax.scan(lambda c, row: (jnp.sin(c + row), None), x, xs)[0]

    x, a = start()[:-1], jnp.linspace(0.0, 1.0, LENGTH)
    (scan,) = loops(f, x, a)
    assert {equation.ctx.compute_type for equation in equations(scan.params["jaxpr"])} == {None}
    assert_same(f, x, a)


def test_a_counter_that_began_as_a_python_number_stays_weak():
    """The keys of a sampler are made before its loop, and with them its counter, whose last value is a result."""

    def f(key):
        def step(carry, _):
            key, count = carry
            return (jax.random.fold_in(key, 1), count + 1), jax.random.normal(key, (64,)) * count

        return lax.scan(step, (key, 0), None, length=LENGTH)

    assert jax.jit(f)(jax.random.key(0))[0][1].weak_type
    reports = []
    jax.jit(ag.optimize(f, on_report=reports.append)).lower(jax.random.key(0))
    assert any("chain" in decision.what for decision in reports[0].fired)
    assert_same(f, jax.random.key(0))


def test_a_loop_without_results():
    """A scan that only writes to a reference, beside one whose first output the others meet."""

    def f(x):
        ref = jax.new_ref(jnp.zeros_like(x))

        def write(_, v):
            ref[...] += v
            return None, None

        lax.scan(write, None, jnp.stack([x, x]))
        ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), ref[...], None, length=LENGTH)[1]
        return jnp.abs(ys - ys[0]).max()

    assert_same(f, start())


def test_the_other_kind_of_custom_vjp():
    """JAX's setting for another `jax.custom_vjp`, which knows no zeros in forward mode, is for users' functions."""
    jax.config.update("jax_custom_vjp3", True)
    try:
        f = ag.optimize(stacked_sum)
        gradient = jax.grad(jax.jit(lambda x: jax.jit(f)(x).sum()))(start())
    finally:
        jax.config.update("jax_custom_vjp3", False)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: stacked_sum(x).sum())(start()), rtol=1e-5)


def test_a_step_adds_what_is_made_of_nothing():
    """The term of a sum is a call without operands, or counts up to a length that is a symbol."""

    def counted(x):
        return lax.fori_loop(0, LENGTH, lambda _, c: c + jnp.arange(x.shape[0], dtype=x.dtype), x)

    def called(x):
        def ones():
            return jax.pure_callback(lambda: np.ones(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype))

        return lax.fori_loop(0, LENGTH, lambda _, c: c + ones(), x)

    assert_same(called, start())
    (n,) = jax.export.symbolic_shape("n")
    any_length = jax.export.export(jax.jit(ag.optimize(counted)))(jax.ShapeDtypeStruct((n,), np.float32))
    np.testing.assert_allclose(any_length.call(start()), counted(start()), rtol=1e-6)
