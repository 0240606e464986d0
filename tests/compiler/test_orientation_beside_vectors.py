"""What XLA makes entry by entry, fuses or computes before a loop is not turned: it took longer so."""

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
    return jnp.asarray(rng.normal(size=shape), dtype)


def _equations(jaxpr, name):
    here = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == name]
    return here + [e for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn) for e in _equations(inner, name)]


def _optimised(f, *args):
    return jax.make_jaxpr(ag.optimize(f))(*args).jaxpr


def _agree(f, *args, tolerance=1e-12):
    """As plain JAX does, in float64."""
    with jax.enable_x64(True):
        args = [jnp.asarray(np.asarray(x, np.float64)) for x in args]
        for wanted, got in zip(
            jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(jax.jit(ag.optimize(f))(*args)), strict=True
        ):
            scale = max(1.0, float(jnp.max(jnp.abs(wanted), initial=0.0)))
            np.testing.assert_allclose(np.asarray(wanted) / scale, np.asarray(got) / scale, atol=tolerance)


def _forms(x, w):
    """A quadratic form of each column."""
    return jnp.einsum("in,ij,jn->n", x, w, x)


@pytest.mark.parametrize(("d", "n"), [(100, 60), (37, 150), (200, 24)])
def test_entries_that_are_multiplied_and_summed_are_not_turned_for(d, n):
    """Gradients of quadratic forms: the columns were turned before a product that XLA multiplies entry by entry."""
    args = _values(d, n), _values(d, d)
    gradient = jax.grad(lambda x, w: jnp.sin(_forms(x, w)).sum())
    assert _equations(jax.make_jaxpr(gradient)(*args).jaxpr, "transpose")
    turned = [e for e in _equations(_optimised(gradient, *args), "transpose") if e.invars[0].aval.size == d * n]
    assert not turned
    _agree(gradient, *args)


def test_operands_of_such_a_product_that_lie_in_different_orders_still_make_one_turn():
    """The near miss: one of two operands is made in the other order by its own product, whose transpose goes."""

    def f(a, w, b):
        made = jax.vmap(jax.vmap(lambda v: w @ v))(a)  # dot_general and a transpose
        return (made * b).sum(-1)

    args = _values(30, 20, 48), _values(64, 48), _values(30, 20, 64)
    assert not [e for e in _equations(_optimised(f, *args), "transpose") if e.invars[0].aval.size == 30 * 20 * 64]
    _agree(f, *args)


def _regressions(x, y):
    """Steps of regressions on a basis that is made in each of them."""

    def step(v, z):
        basis = jnp.stack([jnp.ones_like(z), z, z**2, z**3], -1)
        b = jnp.linalg.solve(basis.T @ basis + 0.1 * jnp.eye(4, dtype=z.dtype), basis.T @ v)
        return jnp.where(z > basis @ b, z, v), None

    return lax.scan(step, y, x)[0]


@pytest.mark.parametrize(("paths", "steps"), [(2000, 15), (1500, 9)])
def test_a_matrix_that_a_product_with_a_vector_reads_may_be_fused_with_its_transpose(paths, steps):
    """Read against its rows of 4 entries, it took three times as long as made again by XLA the other way."""
    args = _values(steps, paths), _values(paths)
    products = _equations(_optimised(_regressions, *args), "dot_general")
    with_vectors = [e for e in products if e.outvars[0].aval.shape == (4,) and e.invars[0].aval.size == 4 * paths]
    assert with_vectors
    assert all(e.params["dimension_numbers"][0][0] == (1,) for e in with_vectors)
    _agree(_regressions, *args, tolerance=1e-8)


def test_a_matrix_that_products_with_matrices_read_has_no_transpose():
    """The near miss: XLA folds the transpose in any case."""
    args = _values(2000, 4), _values(2000, 3)
    f = lambda x, y: (jnp.tanh(x).T @ jnp.tanh(x), jnp.tanh(x).T @ y)  # noqa: E731
    assert not [e for e in _equations(_optimised(f, *args), "transpose") if e.invars[0].aval.size >= 6000]
    _agree(f, *args)


def _solves(m, x):
    """A loop whose matrix is inverted in each step, always the same one."""

    def step(h, u):
        h = jnp.tanh(jnp.linalg.inv(m) @ h + u)
        return h, h

    return lax.scan(step, jnp.zeros(m.shape[0], m.dtype), x)[1]


@pytest.mark.parametrize(("n", "steps"), [(100, 30), (60, 12)])
def test_what_a_short_loop_computes_once_stays_as_it_is(n, steps):
    """The inverse is the same in all steps; read against its rows, it was copied in each."""
    args = _values(n, n) * 0.3 / n**0.5 + jnp.eye(n), _values(steps, n)
    assert not [d for d in ag.explain(_solves)(*args).decisions if d.rule == "orientation" and d.fired]
    _agree(_solves, *args, tolerance=1e-10)
    _agree(jax.grad(lambda *a: _solves(*a).sum()), *args, tolerance=1e-10)


def test_what_a_short_loop_computes_in_each_step_is_turned():
    """The near miss: a product that depends on the carry."""

    def f(w, x):
        def step(h, _):
            return jnp.tanh(jax.vmap(jax.vmap(lambda v: w @ v))(h)), None

        return lax.scan(step, x, length=12)[0]

    args = _values(48, 48), _values(8, 40, 48)
    assert not [e for e in _equations(_optimised(f, *args), "transpose") if e.invars[0].aval.size == 8 * 40 * 48]
    _agree(f, *args)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_is_nothing(shape):
    """No columns, or no entries in them."""
    args = _values(*shape), _values(shape[0], shape[0])
    _agree(partial(_forms), *args)
    _agree(jax.grad(lambda x, w: jnp.sin(_forms(x, w)).sum()), *args)
