"""A primitive that nobody has heard of passes through untouched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax

from ._programs import (
    LENGTH,
    assert_equal_trees,
    assert_lowers_alike,
    assert_same,
    primitives,
    result_shapes,
    stacked_sum,
    start,
)


class Box:
    """A parameter that prints, hashes and compares by identity: nothing that a compiler could look into."""


BOX = Box()


def make_primitive(name: str, multiple_results: bool = False):
    """A user's own primitive: doubles its argument; typed, lowered, batched and differentiated by the user."""
    p = _jax.Primitive(name)
    p.multiple_results = multiple_results

    def compute(x, **params):
        assert params == {"box": BOX, "names": ("a", frozenset({1}))}
        return [2 * x, x + 1] if multiple_results else 2 * x

    def abstract(x, **params):
        return [x, x] if multiple_results else x

    p.def_impl(compute)
    p.def_abstract_eval(abstract)
    _jax.mlir.register_lowering(p, _jax.mlir.lower_fun(compute, multiple_results=multiple_results))
    _jax.batching.primitive_batchers[p] = lambda xs, dims, **kw: (
        p.bind(*xs, **kw),
        [dims[0]] * 2 if multiple_results else dims[0],
    )
    if not multiple_results:
        _jax.ad.deflinear2(p, lambda ct, x, **kw: [p.bind(ct, **kw)])
    return lambda x: p.bind(x, box=BOX, names=("a", frozenset({1})))


double = make_primitive("contract_double")
double_and_more = make_primitive("contract_double_and_more", multiple_results=True)


def test_alone_it_is_left_as_it_is():
    """Parameters, order and number of a user's equations are those that the user wrote."""

    def f(x):
        y = double(jnp.sin(x))
        return double(y), double(y), double_and_more(y)

    x = jnp.ones(3)
    assert_lowers_alike(f, x)
    assert_same(f, x)
    assert_equal_trees(ag.optimize(f)(x), f(x))


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.vmap(f), lambda f: jax.grad(jax.checkpoint(f))])
def test_its_own_rules_are_used(transform):
    """Differentiation and batching of the user's primitive are the user's."""

    def f(x):
        return double(jnp.sin(x)) * 3

    x = jnp.ones(3) if transform is not jax.grad else jnp.float32(1)
    g = transform(f if x.ndim == 0 else lambda x: f(x).sum())
    assert_same(g, x)


def test_beside_and_around_a_rewrite():
    """It neither stops what lies beside it nor is lost from what is rewritten around it."""

    def f(x):
        return double(stacked_sum(double(x)))

    natural, optimised = (jax.make_jaxpr(g)(start()) for g in (f, ag.optimize(f)))
    assert primitives(natural)["contract_double"] == primitives(optimised)["contract_double"] == 2
    stacked = (LENGTH, *start().shape)
    assert result_shapes(natural)[stacked] == 1
    assert result_shapes(optimised)[stacked] == 0
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(start()), jax.jit(f)(start()), rtol=1e-5)


def test_inside_loops_and_branches():
    """In a body whose outputs are reduced, in a branch, in a while loop."""

    def f(x):
        ys = lax.scan(lambda c, _: (jnp.sin(c), double(c)), x, None, length=LENGTH)[1].sum(0)
        z = lax.cond(x[0] > 0, double, jnp.sin, ys)
        return lax.while_loop(lambda c: c[0] < 10, lambda c: double(c) + 1, z)

    x = start()
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), rtol=1e-5)


def test_between_a_loop_and_its_reduction():
    """What stands between the stacked outputs and their sum, and is unknown, sees the stacked outputs."""

    def f(x):
        return double(lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=LENGTH)[1]).sum()

    program = jax.make_jaxpr(ag.optimize(f))(start())
    assert primitives(program)["contract_double"] == 1
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(start()), jax.jit(f)(start()), rtol=1e-5)


@pytest.mark.parametrize("g", [lambda x: jnp.searchsorted(jnp.linspace(0.0, 1.0, 9), x), lambda x: jnp.ldexp(x, 2)])
def test_what_jax_lowers_late_is_left_alone(g):
    """Functions that jax 0.11 keeps whole until a program is lowered: what stands beside them is rewritten."""
    x = jnp.linspace(0.1, 0.9, 5)
    assert_same(g, x)  # alone, and beside a rewrite that must fire
    assert_same(lambda x: lax.scan(lambda c, y: (c + y, g(c + y)), 0.0, x)[1], x)
