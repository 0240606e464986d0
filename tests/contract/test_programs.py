"""The programs that the other tests build on do what those tests rely on."""

import jax
import jax.numpy as jnp
from jax import lax

import aerogel as ag

from ._programs import STACKED, assert_fires, left_alone, primitives, result_shapes, stacked_sum, start


def test_the_stacked_array_of_the_rewritten_program_disappears():
    """4 MB of stacked outputs exist in the natural form and not in the optimised one."""
    assert_fires(stacked_sum, start())


def test_fusion_keeps_the_one_loop():
    """The rewritten program still runs one scan: it is neither unrolled nor run twice."""
    natural, optimised = (jax.make_jaxpr(f)(start()) for f in (stacked_sum, ag.optimize(stacked_sum)))
    assert primitives(natural)["scan"] == 1
    assert primitives(optimised)["scan"] == 1


def test_the_program_left_alone_stays_as_it_is():
    """Where there is nothing to improve, primitive by primitive nothing changes."""
    natural, optimised = (jax.make_jaxpr(f)(start()) for f in (left_alone, ag.optimize(left_alone)))
    assert primitives(natural) == primitives(optimised)


def test_shapes_are_found_in_nested_programs():
    """The look into programs reaches branches (a tuple of programs), loops and inner jits."""

    def f(x):
        return lax.cond(x[0] > 0, jax.jit(stacked_sum), lambda x: x.sum(), x)

    assert result_shapes(jax.make_jaxpr(f)(jnp.ones(STACKED[1])))[STACKED] == 1
