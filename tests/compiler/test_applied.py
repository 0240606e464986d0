"""`x.at[i].apply(f)`, a scatter by name, writes no update: what stands there is read, and `f` is not linear."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.axes.linear import linear_together
from compiler.loop_patterns import normal

X = abs(normal(0, 300)) + 0.1


def applied(x: Any, **options: Any) -> Any:
    """Sines of the first third."""
    return x.at[:100].apply(jnp.sin, **options)


FORMS: dict[str, Callable[[Any], Any]] = {
    "in the rows of a stack": lambda x: jax.vmap(lambda x: jnp.sum(applied(x)))(jnp.stack([x, x / 2])),
    "to one row": lambda x: jnp.sum(jnp.outer(x, x).at[3].apply(jnp.cos), 1),
    "to zeros": lambda x: jnp.sum(jnp.zeros(300).at[7].apply(jnp.cos)) * x,
    "to zeros by an index": lambda x: jnp.sum(jnp.zeros((300, 5)).at[jnp.arange(300), 2].apply(jnp.cos), 1) * x,
    "in a branch": jax.vmap(lambda x: lax.cond(x > 0.8, lambda y: applied(y, mode="clip"), lambda y: y, x * X)),
    "to every row of a loop": lambda x: lax.scan(lambda c, y: (c + 1, applied(y * x)), 0.0, jnp.ones((9, 300)))[1].sum(
        0
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_values_are_those_of_jax(name: str) -> None:
    """Blocks of a stream, masked writes, sums of zeros: all of these took it for a write."""
    f = FORMS[name]
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(X), jax.jit(f)(X), rtol=2e-5)


def test_it_is_linear_in_nothing() -> None:
    """A plain scatter is, in what is written and in what it is written to."""
    numbers = {}
    for name, f in {
        "set": lambda x: x.at[jnp.array([3])].set(1.0),
        "apply": lambda x: x.at[jnp.array([3])].apply(abs),
    }.items():
        eqn = next(e for e in jax.make_jaxpr(f)(X).jaxpr.eqns if e.primitive.name == "scatter")
        numbers[name] = linear_together(eqn)
    assert numbers == {"set": (0, 2), "apply": ()}
