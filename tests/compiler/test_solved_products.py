"""A solve for a product of few terms is a product with a solve where the library saves more than a kernel's start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

WHAT = "a solve for a product becomes a product with a solve"


def _loss(m, x):
    """A loop of inverses, whose derivatives solve for outer products."""

    def step(h, u):
        h = jnp.tanh(jnp.linalg.inv(m + 0.01 * jnp.outer(h, h)) @ h + u)
        return h, h

    return (lax.scan(step, jnp.zeros(m.shape[0], m.dtype), x)[1] ** 2).sum()


@pytest.mark.parametrize(("rows", "fires"), [(3, False), (6, False), (12, False), (16, True), (30, True)])
def test_few_rows_are_solved_for_all_columns(rows, fires):
    """3 to 6 rows took 1.1 of the time with a solve for one column and a product, 16 take 0.96."""
    rng = np.random.default_rng(rows)
    with jax.enable_x64(True):
        m = jnp.eye(rows) + jnp.asarray(rng.normal(size=(rows, rows))) * 0.3 / rows**0.5
        args = m, jnp.asarray(rng.normal(size=(20, rows)))
        gradient = jax.grad(_loss)
        assert any(d.fired and d.what == WHAT for d in ag.explain(gradient)(*args).decisions) == fires
        np.testing.assert_allclose(jax.jit(ag.optimize(gradient))(*args), jax.jit(gradient)(*args), rtol=1e-9)
