"""`optimize` composes with differentiation, on the outside and on the inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

from ._programs import (
    LENGTH,
    WIDTH,
    assert_equal_trees,
    assert_fires,
    assert_same,
    left_alone,
    result_shapes,
    stacked_sum,
    start,
)


def loss(w, x):
    """A scalar with a nontrivial gradient; nothing to rewrite."""
    return jnp.mean(jnp.square(jnp.tanh(x @ w)))


def weights():
    """Weights `[4, 3]` and a batch `[5, 4]`."""
    return jnp.linspace(-1.0, 1.0, 12).reshape(4, 3), jnp.linspace(0.0, 1.0, 20).reshape(5, 4)


TRANSFORMS = {
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "grad of grad": lambda f: jax.grad(lambda *a: jax.grad(f)(*a).sum()),
    "jvp": lambda f: lambda w, x: jax.jvp(f, (w, x), (w, x)),
    "vjp": lambda f: lambda w, x: (lambda out, pull: (out, pull(jnp.ones_like(out))))(*jax.vjp(f, w, x)),
    "linearize": lambda f: lambda w, x: (lambda out, push: (out, push(w, x)))(*jax.linearize(f, w, x)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_outside_and_inside(name):
    """Derivatives of an optimised function, and an optimised derivative, are the function's derivatives."""
    transform = TRANSFORMS[name]
    w, x = weights()
    want = jax.jit(transform(loss))(w, x)
    assert_equal_trees(jax.jit(transform(ag.optimize(loss)))(w, x), want)
    assert_equal_trees(transform(ag.optimize(loss))(w, x), want)
    assert_same(transform(loss), w, x)


FIRST_ORDER = {
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "linearize": lambda f: lambda x: (lambda out, push: (out, push(x)))(*jax.linearize(f, x)),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "grad along a direction": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,)),
}


@pytest.mark.parametrize("name", FIRST_ORDER)
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_derivatives_of_a_rewritten_program(name, where):
    """The same where the loop that is differentiated is rewritten, before or after differentiation."""
    transform, x = FIRST_ORDER[name], start()
    assert_fires(stacked_sum, x)
    f = transform(ag.optimize(stacked_sum)) if where == "outside" else ag.optimize(transform(stacked_sum))
    got, want = jax.jit(f)(x), jax.jit(transform(stacked_sum))(x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


def test_gradient_of_an_optimised_function_is_rewritten():
    """Under `grad` the stacked outputs, which only a sum reads, do not exist either.

    One stacked array remains, JAX's own residual: the cosine or the carry of each step.
    """

    def f(x):
        return jax.grad(ag.optimize(stacked_sum))(x)

    natural, optimised = (jax.make_jaxpr(g)(start()) for g in (jax.grad(stacked_sum), f))
    assert result_shapes(natural)[LENGTH, WIDTH] > result_shapes(optimised)[LENGTH, WIDTH]


def test_argnums_aux_and_trees_in_grad():
    """`argnums`, `has_aux` and pytrees of parameters, through the optimised function."""

    def f(params, x):
        y = jnp.tanh(x @ params["w"] + params["b"])
        return jnp.sum(y * y), {"y": y, "none": None}

    params = {"w": weights()[0], "b": jnp.ones(3)}
    x = weights()[1]
    for transform in (jax.grad, jax.value_and_grad):
        got = jax.jit(transform(ag.optimize(f), argnums=(0, 1), has_aux=True))(params, x)
        assert_equal_trees(got, jax.jit(transform(f, argnums=(0, 1), has_aux=True))(params, x))
        assert_same(transform(f, argnums=(0, 1), has_aux=True), params, x)


def test_linear_transpose():
    """A linear function stays linear: it can be transposed."""

    def f(x):
        return jnp.cumsum(3 * x) + lax.scan(lambda c, row: (c + row, c), jnp.zeros(()), x)[1]

    x = jnp.ones(5)
    transposed = jax.linear_transpose(ag.optimize(f), x)
    assert_equal_trees(jax.jit(transposed)(x), jax.jit(jax.linear_transpose(f, x))(x))


def test_linear_transpose_of_a_rewritten_program():
    """The rewritten form of a linear loop is linear in JAX's eyes too."""

    def f(x):
        return lax.scan(lambda c, _: (0.5 * c, 0.5 * c), x, None, length=LENGTH)[1].sum()

    x = start()
    assert_fires(f, x)
    (got,) = jax.jit(jax.linear_transpose(ag.optimize(f), x))(jnp.float32(2))
    (want,) = jax.jit(jax.linear_transpose(f, x))(jnp.float32(2))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_float0():
    """Integer and boolean inputs have float0 tangents, in and out."""

    def f(x, i, flag):
        return jnp.where(flag, x * i, x), i + 1

    x, i, flag = jnp.arange(3.0), jnp.arange(3), jnp.array([True, False, True])
    zero = np.zeros(3, jax.dtypes.float0)
    for g in (f, ag.optimize(f)):
        out, tangent = jax.jvp(g, (x, i, flag), (x, zero, zero))
        assert tangent[1].dtype == jax.dtypes.float0
        assert_equal_trees(out, f(x, i, flag))
        grads = jax.grad(lambda *a, g=g: g(*a)[0].sum(), argnums=(0, 1, 2), allow_int=True)(x, i, flag)
        assert [leaf.dtype for leaf in grads] == [jnp.float32, jax.dtypes.float0, jax.dtypes.float0]


def test_closed_over_tracers():
    """A function made inside a transformation closes over tracers: of grad, vmap, jit and scan."""
    x = jnp.linspace(0.0, 1.0, 4)

    def inner(optimize, x):
        return optimize(lambda y: jnp.sin(y * x) + x)(2 * x)

    for outer in (
        lambda f: jax.grad(lambda x: f(x).sum()),
        jax.vmap,
        jax.jit,
        lambda f: lambda x: lax.scan(lambda c, row: (c + f(row), f(c)), 0.0, x),
        lambda f: jax.jit(jax.vmap(jax.grad(f))),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    ):
        got = jax.jit(outer(lambda x: inner(ag.optimize, x)))(x)
        assert_equal_trees(got, jax.jit(outer(lambda x: inner(lambda f: f, x)))(x))


def test_closed_over_tracers_in_a_rewritten_program():
    """The loop that is rewritten reads a tracer of an enclosing `grad` that it closed over."""

    def outer(optimize, scale):
        def f(x):
            return lax.scan(lambda c, _: (jnp.sin(scale * c), jnp.sin(scale * c)), x, None, length=LENGTH)[1].sum()

        return optimize(f)(start())

    got = jax.jit(jax.grad(lambda s: outer(ag.optimize, s)))(1.5)
    np.testing.assert_allclose(got, jax.jit(jax.grad(lambda s: outer(lambda f: f, s)))(1.5), rtol=1e-4)


def test_stop_gradient():
    """A stopped gradient stays stopped, also through what rewriting moves."""

    def f(x):
        ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c) * lax.stop_gradient(c)), x, None, length=LENGTH)[1]
        return ys.sum()

    x = start()
    assert_fires(f, x)
    want = jax.jit(jax.grad(f))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(ag.optimize(f)))(x), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(jax.jit(ag.optimize(jax.grad(f)))(x), want, rtol=1e-4, atol=1e-6)


def test_gradients_at_special_points():
    """`where` around a nan, ties of `max` and the kink of `abs` have JAX's gradients, not others."""

    def f(x):
        safe = jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)
        return (safe + jnp.maximum(x, 1.0) + jnp.abs(x)).sum() + x.max() + jnp.sort(x)[0]

    x = jnp.array([0.0, 1.0, -1.0, 1.0, 4.0, -0.0])
    assert_same(jax.grad(f), x)
    assert_equal_trees(jax.jit(jax.grad(ag.optimize(f)))(x), jax.jit(jax.grad(f))(x))


def test_fwd_and_rev_modes_compose():
    """Forward over reverse over an optimised function over an optimised derivative."""

    def f(x):
        return left_alone(x).sum()

    x = jnp.linspace(0.1, 1.0, 5)
    got = jax.jit(jax.jvp, static_argnums=0)(ag.optimize(jax.grad(ag.optimize(f))), (x,), (x,))
    assert_equal_trees(got, jax.jit(jax.jvp, static_argnums=0)(jax.grad(f), (x,), (x,)))
