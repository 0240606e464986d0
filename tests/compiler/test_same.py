"""Loops whose bodies were traced twice are one loop exactly where they compute the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import normal


def trajectory(x: Any, factor: Any = 0.9, length: int = 5, reverse: bool = False, keep: bool = False) -> Any:
    """States of a loop, with a body of its own at every call."""
    final, ys = lax.scan(lambda c, _: (c * factor, jnp.sin(c)), x, None, length=length, reverse=reverse)
    return (ys, final) if keep else ys


EQUAL: dict[str, Callable[[Any], Any]] = {
    "two calls": lambda x: (trajectory(x).sum(0), trajectory(x).max(0)),
    "three calls": lambda x: (trajectory(x).sum(0), trajectory(x).max(0), trajectory(x)[-1]),
    "in a branch": lambda x: lax.cond(x[0] > 0, lambda: trajectory(x) + trajectory(x), lambda: 2 * trajectory(x)),
}
UNEQUAL: dict[str, Callable[[Any], Any]] = {
    "another factor": lambda x: (trajectory(x), trajectory(x, 0.8)),
    "a signed zero": lambda x: (trajectory(x, 0.0), trajectory(x, -0.0)),
    "another direction": lambda x: (trajectory(x), trajectory(x, reverse=True)),
    "another length": lambda x: (trajectory(x), trajectory(x, length=6)),
    "another start": lambda x: (trajectory(x), trajectory(2 * x)),
    "another order": lambda x: (
        lax.scan(lambda c, _: (c, c[0] - c[1]), x, None, length=5)[1],
        lax.scan(lambda c, _: (c, c[1] - c[0]), x, None, length=5)[1],
    ),
}


def loops(f: Callable[[Any], Any], x: Any) -> int:
    """How many scans stand in a program."""
    return str(jax.make_jaxpr(f)(x)).count("scan[")


@pytest.mark.parametrize("name", EQUAL)
def test_equal_loops_are_one(name: str) -> None:
    """Bodies that are equal up to the names of their variables are one loop; the results are those of two."""
    f, x = EQUAL[name], np.abs(normal(0, 8192))
    optimised = ag.optimize(f)
    assert loops(f, x) > loops(optimised, x)
    for got, want in zip(jax.tree.leaves(jax.jit(optimised)(x)), jax.tree.leaves(jax.jit(f)(x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_loops_stay_two(name: str) -> None:
    """Whatever differs, a literal's sign, an operand's place, a length, keeps results apart."""

    def f(x: Any) -> Any:
        # the last rows: something fires, else the program stays as it was and shows nothing
        return [ys[-1] for ys in UNEQUAL[name](x)], trajectory(x, 0.7).sum(0)

    x = normal(0, 8192)
    assert ag.explain(f)(x).fired
    assert loops(ag.optimize(f), x) >= (2 if name in ("another order", "another direction") else 3)
    for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(x)), jax.tree.leaves(jax.jit(f)(x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
