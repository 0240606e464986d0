"""Batches in different orders, and products without sums: which order XLA makes of them is what is priced."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.program import inner_jaxprs


def _values(*shape, dtype="float32"):
    rng = np.random.default_rng(sum(shape))
    return jnp.asarray(rng.normal(size=shape) * 2, dtype)


def _equations(jaxpr, name):
    here = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == name]
    return here + [e for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn) for e in _equations(inner, name)]


def _optimised(f, *args):
    return jax.make_jaxpr(ag.optimize(f))(*args).jaxpr


def _fired(f, *args):
    return [d for d in ag.explain(f)(*args).decisions if d.rule == "orientation" and d.fired]


def _agree(f, *args, tolerance=1e-5):
    for wanted, got in zip(
        jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(jax.jit(ag.optimize(f))(*args)), strict=True
    ):
        assert (wanted.dtype, wanted.shape) == (got.dtype, got.shape)
        scale = max(1.0, float(jnp.max(jnp.abs(wanted), initial=0.0)))
        np.testing.assert_allclose(
            np.asarray(wanted, np.float64) / scale, np.asarray(got, np.float64) / scale, atol=tolerance
        )


def _states(order, states, rows, scale, rest):
    """What a state-space layer reads from the states of its chunks; `order` is that of the states' batch."""
    made = lax.dot_general(states, rows, (((4,), (3,)), ((0, 1), order)))
    turned = (1, 0, 4, 2, 3) if order == (1, 0) else (0, 1, 4, 2, 3)
    return rest + scale[..., None] * made.transpose(turned)


@pytest.mark.parametrize(("b", "c", "h", "p", "rows", "n"), [(2, 16, 4, 16, 16, 16), (3, 12, 2, 40, 20, 24)])
def test_the_operand_that_xla_would_sort_into_the_other_batch_is_the_small_one(b, c, h, p, rows, n):
    """Swapped for the sake of a result's transpose, XLA copies the states, its large operand."""
    args = _values(c, b, h, p, n), _values(b, c, rows, n), _values(b, c, rows, h), _values(b, c, rows, h, p)
    f = partial(_states, (1, 0))
    (product,) = [e for e in _equations(_optimised(f, *args), "dot_general") if e.params["dimension_numbers"][0][0]]
    assert product.invars[0].aval.size == args[0].size
    _agree(f, *args)


def test_batches_in_the_same_order_are_swapped_as_before():
    """Nothing is sorted there: the transpose of the result goes."""
    args = _values(2, 16, 4, 16, 16), _values(2, 16, 16, 16), _values(2, 16, 16, 4), _values(2, 16, 16, 4, 16)
    f = partial(_states, (0, 1))
    (product,) = [e for e in _equations(_optimised(f, *args), "dot_general") if e.params["dimension_numbers"][0][0]]
    assert product.invars[0].aval.size == args[1].size
    _agree(f, *args)


def _chunks(decay, rows, x):
    """Products within the chunks of a state-space layer: heads are last where the program says so."""
    sums = jnp.cumsum(decay.transpose(0, 3, 1, 2), -1)
    weights = jnp.exp(sums[..., :, None] - sums[..., None, :])
    return jnp.einsum("bcls,bhcls,bcshp->bclhp", rows, weights, x)


@pytest.mark.parametrize(("b", "c", "q", "h", "p"), [(2, 16, 16, 4, 16), (1, 9, 24, 3, 8), (2, 5, 40, 6, 12)])
def test_a_product_without_sums_is_made_in_the_order_that_the_next_product_reads(b, c, q, h, p):
    """XLA computes what such a product reads in the order of its result: with heads last, not as vectors."""
    args = _values(b, c, q, h) * 0.01, _values(b, c, q, q), _values(b, c, q, h, p)
    weights = [e.outvars[0].aval.shape for e in _equations(_optimised(_chunks, *args), "exp")]
    assert weights
    assert all(shape[-1] == q for shape in weights)
    assert _fired(_chunks, *args)
    _agree(_chunks, *args)
    _agree(jax.grad(lambda *a: _chunks(*a).sum(), (0, 1, 2)), *args)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_products_without_sums_keep_their_types_and_values(dtype):
    """Under vmap, gradients and loops, in every type, and where there is nothing."""
    with jax.enable_x64(dtype == "float64"):
        tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}[dtype]
        args = tuple(x.astype(dtype) for x in (_values(2, 3, 8, 5) * 0.01, _values(2, 3, 8, 8), _values(2, 3, 8, 5, 7)))
        _agree(_chunks, *args, tolerance=tolerance)
        _agree(jax.vmap(_chunks), *(jnp.stack([x, x + 1]) for x in args), tolerance=tolerance)
        loop = lambda *a: lax.scan(lambda s, _: (s + _chunks(*a), None), jnp.zeros((2, 3, 8, 5, 7), dtype), length=3)  # noqa: E731
        _agree(loop, *args, tolerance=tolerance)
        empty = _values(2, 0, 8, 5, dtype=dtype), _values(2, 0, 8, 8, dtype=dtype), _values(2, 0, 8, 5, 7, dtype=dtype)
        _agree(_chunks, *empty)


def test_infinities_and_nans_stay_where_they_are():
    """Zero times infinity is nan in either form, in these entries only."""
    a, b = _values(2, 3, 4, 8, 8).at[0, 0, 0, 0, 0].set(jnp.inf), _values(2, 4, 8, 8).at[0, 0, 0, 0].set(0.0)
    x = _values(2, 4, 8, 3, 5)
    f = lambda *v: jnp.einsum("bhcls,bcls,bcshp->bclhp", jnp.tanh(v[0]) + v[0], v[1], v[2])  # noqa: E731
    wanted, got = jax.jit(f)(a, b, x), jax.jit(ag.optimize(f))(a, b, x)
    assert bool(jnp.isnan(wanted).any())
    np.testing.assert_array_equal(np.isnan(wanted), np.isnan(got))


def test_a_product_with_an_algorithm_stays_a_product():
    """What an algorithm makes of the operands is not multiplying them."""
    algorithm = lax.DotAlgorithmPreset.F32_F32_F32
    args = _values(2, 3, 4, 8, 8), _values(2, 4, 8, 8), _values(2, 4, 8, 3, 5)

    def f(a, b, x):
        numbers = (((), ()), ((0, 2, 4, 3), (0, 1, 3, 2)))
        made = lax.dot_general(jnp.exp(a * 0.1), b, numbers, precision=algorithm)  # b c s l h
        return lax.dot_general(made, x, (((2,), (2,)), ((0, 1, 4), (0, 1, 3)))).transpose(0, 1, 3, 2, 4)

    entries = [e for e in _equations(_optimised(f, *args), "dot_general") if not e.params["dimension_numbers"][0][0]]
    assert len(entries) == 1
    _agree(f, *args)
