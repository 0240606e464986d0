"""`optimize` composes with `vmap`: axes, names, collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

from ._programs import LENGTH, assert_equal_trees, assert_fires, assert_same, equations, stacked_sum, start


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (1, 0), (0, -1)], ids=str)
@pytest.mark.parametrize("out", [0, 1, -1])
def test_vmap_outside_and_inside(axes, out):
    """Every combination of mapped and unmapped inputs, and every place of the output's axis."""

    def f(x, y):
        return jnp.sin(x).sum() * jnp.cumsum(y, 0)

    x, y = jnp.arange(16.0).reshape(4, 4), jnp.arange(16.0).reshape(4, 4) / 3
    want = jax.jit(jax.vmap(f, axes, out))(x, y)
    assert_equal_trees(jax.jit(jax.vmap(ag.optimize(f), axes, out))(x, y), want)
    assert_equal_trees(jax.vmap(ag.optimize(f), axes, out)(x, y), want)
    assert_same(jax.vmap(f, axes, out), x, y)


def test_vmap_of_trees_with_none():
    """`in_axes` trees, a `None` leaf and an unmapped output."""

    def f(tree, k):
        return {"sum": tree["a"].sum() + k, "none": tree["b"], "k": k}

    tree = {"a": jnp.ones((3, 4)), "b": None}
    axes, out = ({"a": 1, "b": None}, None), {"sum": 0, "none": None, "k": None}
    assert_same(jax.vmap(f, axes, out), tree, jnp.float32(2))
    got = jax.jit(jax.vmap(ag.optimize(f), axes, out))(tree, jnp.float32(2))
    assert_equal_trees(got, jax.jit(jax.vmap(f, axes, out))(tree, jnp.float32(2)))


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_vmap_of_a_rewritten_program(where):
    """A loop that is rewritten, mapped over: at once, or before it is optimised."""
    x = start().reshape(16, -1)
    mapped = jax.vmap(stacked_sum)
    assert_fires(mapped, x, gone=_stacked_shape(mapped, x))
    f = jax.vmap(ag.optimize(stacked_sum)) if where == "outside" else ag.optimize(mapped)
    np.testing.assert_allclose(jax.jit(f)(x), jax.jit(mapped)(x), rtol=1e-5)


def _stacked_shape(f, x) -> tuple[int, ...]:
    """The shape of the one scan's stacked output, wherever `vmap` put its axis."""
    (scan,) = [e for e in equations(jax.make_jaxpr(f)(x)) if e.primitive.name == "scan"]
    return scan.outvars[-1].aval.shape


def test_axis_names_and_collectives():
    """Collectives over a named axis, whether the name is bound outside the optimised function or inside."""

    def f(x):
        return (
            lax.psum(x, "i"),
            x - lax.pmean(x, "i"),
            lax.pmax(x, "i"),
            lax.axis_index("i"),
            lax.axis_size("i"),
            lax.all_gather(x, "i"),
            lax.ppermute(x, "i", [(k, (k + 1) % 4) for k in range(4)]),
        )

    x = jnp.arange(8.0).reshape(4, 2)
    want = jax.jit(jax.vmap(f, axis_name="i"))(x)
    assert_equal_trees(jax.jit(jax.vmap(ag.optimize(f), axis_name="i"))(x), want)
    assert_same(jax.vmap(f, axis_name="i"), x)


def test_collectives_inside_a_rewritten_loop():
    """A `psum` in the body of a loop that is rewritten under a named axis."""

    def f(x):
        def body(c, _):
            c = jnp.sin(c + lax.pmean(c, "i"))
            return c, c

        return lax.scan(body, x, None, length=LENGTH)[1].sum()

    x = start().reshape(4, -1)
    want = jax.jit(jax.vmap(f, axis_name="i"))(x)
    np.testing.assert_allclose(jax.jit(jax.vmap(ag.optimize(f), axis_name="i"))(x), want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(ag.optimize(jax.vmap(f, axis_name="i")))(x), want, rtol=1e-5)


def test_nested_axis_names():
    """Two named axes, a collective over both, and gradients through it."""

    def f(x):
        return lax.psum(jnp.sin(x), ("i", "j")) * x

    def mapped(f):
        return jax.vmap(jax.vmap(f, axis_name="j"), axis_name="i")

    x = jnp.arange(6.0).reshape(2, 3)
    assert_equal_trees(jax.jit(mapped(ag.optimize(f)))(x), jax.jit(mapped(f))(x))
    assert_same(jax.grad(lambda x: mapped(f)(x).sum()), x)
    got = jax.jit(jax.grad(lambda x: mapped(ag.optimize(f))(x).sum()))(x)
    assert_equal_trees(got, jax.jit(jax.grad(lambda x: mapped(f)(x).sum()))(x))


def test_spmd_axis_name_and_size():
    """`axis_size` without mapped inputs."""
    f = jax.vmap(lambda: lax.axis_index("i"), axis_name="i", axis_size=3)
    assert_same(f)
    assert_equal_trees(jax.vmap(ag.optimize(lambda: lax.axis_index("i")), axis_name="i", axis_size=3)(), f())
