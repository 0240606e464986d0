"""What is known of the values of a level, and for how long."""

import gc
import weakref

import jax
import jax.numpy as jnp

from aerogel.compiler.known.structure import structure


def test_what_is_known_is_found_once_and_forgotten_with_the_program() -> None:
    """All passes that leave a level as it is share what is known of it, which does not keep it alive."""
    program = jax.make_jaxpr(lambda x: jnp.eye(3) @ x + 1)(jnp.ones((3, 3)))
    found = structure(program.jaxpr)
    assert structure(program.jaxpr) is found
    assert structure(program.jaxpr, program.jaxpr.eqns[:1]) is not found
    gone = weakref.ref(found), weakref.ref(program.jaxpr)
    del program, found
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
