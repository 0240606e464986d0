"""`optimize` inside `optimize`: only the outer one works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

from ._programs import STACKED, assert_fires, result_shapes, stacked_sum, start

NESTS = {
    "directly": lambda f: f,
    "under jit": jax.jit,
    "under vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
    "under grad": lambda f: lambda x: jax.grad(lambda x: f(x))(x).sum(),
    "under checkpoint": jax.checkpoint,
    "in a branch": lambda f: lambda x: lax.cond(x[0] > 0, f, lambda x: x[0], x),
    "in a loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, c: c + f(x), 0.0),
}


@pytest.mark.parametrize("nest", NESTS)
def test_only_the_outer_one_works(nest):
    """One report, the outer function's, whatever lies between; the program that the inner one wrote is optimised."""
    inner_reports, outer_reports = [], []

    def natural(x):
        return NESTS[nest](stacked_sum)(x) + 1

    def outer(x):
        return NESTS[nest](ag.optimize(stacked_sum, on_report=inner_reports.append))(x) + 1

    got = jax.jit(ag.optimize(outer, on_report=outer_reports.append))(start())
    assert len(outer_reports) == 1
    assert inner_reports == []
    np.testing.assert_allclose(got, jax.jit(natural)(start()), rtol=1e-5)


def test_the_inner_ones_program_is_rewritten_by_the_outer_one():
    """Nesting does not hide a site."""
    assert_fires(stacked_sum, start())
    nested = ag.optimize(lambda x: ag.optimize(stacked_sum)(x) + 1)
    assert result_shapes(jax.make_jaxpr(nested)(start()))[STACKED] == 0
    assert result_shapes(jax.make_jaxpr(ag.optimize(ag.optimize(stacked_sum)))(start()))[STACKED] == 0


def test_an_inner_jit_used_alone_and_inside():
    """A jitted optimised function works alone after it was traced inside another one, and the reverse."""
    reports = []
    inner = jax.jit(ag.optimize(stacked_sum, on_report=reports.append))
    outer = jax.jit(ag.optimize(lambda x: inner(x) * 2))
    want = float(jax.jit(stacked_sum)(start()))
    np.testing.assert_allclose(outer(start()), 2 * want, rtol=1e-5)
    assert len(reports) == 0
    np.testing.assert_allclose(inner(start()), want, rtol=1e-5)
    assert len(reports) == 1
    np.testing.assert_allclose(outer(start()), 2 * want, rtol=1e-5)
    assert len(reports) == 1


def test_reports_once_per_trace():
    """`on_report` is called when the function is traced, and not when it is called again."""
    reports = []
    g = jax.jit(ag.optimize(stacked_sum, on_report=reports.append))
    for _ in range(3):
        g(start())
    assert len(reports) == 1
    g(start()[:100])
    assert len(reports) == 2
    assert reports[0].equations == reports[1].equations > 0


def test_two_optimised_functions_side_by_side():
    """Both report when neither encloses the other."""
    reports = []
    f = ag.optimize(stacked_sum, on_report=reports.append)
    g = ag.optimize(jnp.sin, on_report=reports.append)
    jax.jit(lambda x: f(x) + g(x).sum())(start())
    assert sorted(report.name for report in reports) == ["sin", "stacked_sum"]


def test_an_optimised_step_in_a_loop_that_is_not_optimised():
    """`lax.scan` over an optimised body, `lax.map`, `while_loop`: each traces its body as one program."""

    @ag.optimize
    def step(c, x):
        return c + x, c * x

    xs = jnp.arange(5.0)
    got = jax.jit(lambda xs: lax.scan(step, 0.0, xs))(xs)
    want = jax.jit(lambda xs: lax.scan(lambda c, x: (c + x, c * x), 0.0, xs))(xs)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    np.testing.assert_array_equal(lax.map(ag.optimize(lambda x: x * 2), xs), 2 * xs)
    assert lax.while_loop(ag.optimize(lambda c: c < 10), ag.optimize(lambda c: c * 2), 1) == 16
