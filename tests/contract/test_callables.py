"""Every kind of callable, and that it stays itself: name, doc, signature, identity."""

import functools
import inspect
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag

from ._programs import LENGTH, assert_equal_trees, assert_fires, assert_same, stacked_sum, start


def documented(x, scale=2.0, *, shift=0.0):
    """Scale and shift."""
    return x * scale + shift


class Layer:
    """A callable object with methods of every kind."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return x * self.scale

    def method(self, x):
        return x * self.scale + 1

    def summed(self, x):
        return self.scale * stacked_sum(x)

    @staticmethod
    def static(x):
        return x + 2

    @classmethod
    def of_class(cls, x):
        return x + len(cls.__name__)


CALLABLES = {
    "function": documented,
    "lambda": lambda x: x + 1,
    "partial": functools.partial(documented, scale=3.0),
    "partial of partial": functools.partial(functools.partial(documented, shift=1.0), scale=3.0),
    "tree partial": jax.tree_util.Partial(documented, scale=3.0),
    "object": Layer(2.0),
    "bound method": Layer(2.0).method,
    "static method": Layer.static,
    "class method": Layer.of_class,
    "partial of method": functools.partial(Layer.method, Layer(3.0)),
    "jitted": jax.jit(documented),
    "vmapped": jax.vmap(jnp.sin),
    "jnp function": jnp.sin,
    "jnp ufunc": jnp.negative,
    "custom_jvp": jax.nn.relu,
    "builtin": operator.neg,
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_every_kind_of_callable(kind):
    """Functions, lambdas, partials, objects, methods, jitted functions and builtins."""
    f = CALLABLES[kind]
    assert_same(f, jnp.arange(4.0))
    assert_equal_trees(ag.optimize(f)(jnp.arange(4.0)), f(jnp.arange(4.0)))


def test_bound_methods_of_two_objects_are_two_functions():
    """`a.method` and `b.method` share their code, never their results; nor do methods of a dead object's successor."""
    x = jnp.ones(3)
    for scale in (2.0, 3.0, 4.0):
        np.testing.assert_array_equal(jax.jit(ag.optimize(Layer(scale).method))(x), scale + 1)
    first, second = Layer(2.0), Layer(3.0)
    np.testing.assert_array_equal(jax.jit(ag.optimize(first.method))(x), 3.0)
    np.testing.assert_array_equal(jax.jit(ag.optimize(second.method))(x), 4.0)
    np.testing.assert_array_equal(ag.optimize(first.method)(x), 3.0)


def test_bound_methods_that_are_rewritten_are_two_functions():
    """The same where a rewrite fires in the method's program."""
    x, want = start(), float(jax.jit(stacked_sum)(start()))
    assert_fires(Layer(2.0).summed, x)
    for scale in (2.0, 3.0):
        np.testing.assert_allclose(jax.jit(ag.optimize(Layer(scale).summed))(x), scale * want, rtol=1e-5)


def test_a_partial_with_an_array_is_no_constant_of_another():
    """Two partials of one function hold different arrays and give different results."""
    x = jnp.ones(3)
    for scale in (2.0, 3.0):
        f = functools.partial(documented, scale=jnp.full(3, scale))
        np.testing.assert_array_equal(jax.jit(ag.optimize(f))(x), scale)


def test_wraps_leaks_no_cache():
    """`functools.wraps` copies `__dict__`: what `optimize` remembers about `f` is not taken for the wrapper's."""

    def f(x):
        return x + 1

    x = jnp.zeros(3)
    optimised = ag.optimize(f)
    np.testing.assert_array_equal(jax.jit(optimised)(x), 1.0)

    @functools.wraps(f)
    def around(x):
        return f(x) * 10

    @functools.wraps(optimised)
    def around_optimised(x):
        return optimised(x) * 100

    np.testing.assert_array_equal(jax.jit(ag.optimize(around))(x), 10.0)
    np.testing.assert_array_equal(jax.jit(ag.optimize(around_optimised))(x), 100.0)
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(x), 1.0)


@pytest.mark.parametrize("kind", CALLABLES)
def test_name_doc_and_signature_survive(kind):
    """What introspection sees of `jit(f)` it sees of `jit(optimize(f))`, and of `optimize(f)` where `f` has it."""
    f = CALLABLES[kind]
    for attribute in ("__name__", "__doc__", "__module__", "__qualname__"):
        if hasattr(f, attribute):
            assert getattr(ag.optimize(f), attribute) == getattr(f, attribute)
        assert getattr(jax.jit(ag.optimize(f)), attribute, None) == getattr(jax.jit(f), attribute, None)
    assert _signature(ag.optimize(f)) == _signature(f)
    assert _signature(jax.jit(ag.optimize(f))) == _signature(jax.jit(f))


def _signature(f) -> str:
    try:
        return str(inspect.signature(f))
    except ValueError:  # some builtins have none
        return "none"


def test_optimize_decorates():
    """`@ag.optimize`, and `@partial(ag.optimize, numerics=...)`, read as decorators of a definition."""

    @ag.optimize
    def f(x):
        return stacked_sum(x)

    @functools.partial(ag.optimize, numerics="strict")
    def g(x):
        return x + LENGTH

    np.testing.assert_allclose(f(start()), jax.jit(stacked_sum)(start()), rtol=1e-5)
    np.testing.assert_array_equal(g(jnp.zeros(2)), LENGTH)


@pytest.mark.parametrize("wrong", [3, "f", None, jnp.ones(2)], ids=["int", "str", "None", "array"])
def test_what_is_not_callable_is_refused_as_jit_refuses_it(wrong):
    """`optimize(3)` raises `jit(3)`'s own error, at once."""
    with pytest.raises(TypeError) as plain:
        jax.jit(wrong)
    with pytest.raises(TypeError) as optimised:
        jax.jit(ag.optimize(wrong))
    assert str(optimised.value) == str(plain.value)


def test_generator_functions_are_refused_as_jit_refuses_them():
    """A generator function cannot be traced; the message is JAX's."""

    def f(x):
        yield x

    with pytest.raises(TypeError) as plain:
        jax.jit(f)
    with pytest.raises(TypeError) as optimised:
        jax.jit(ag.optimize(f))
    assert str(optimised.value) == str(plain.value)
