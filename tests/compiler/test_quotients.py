"""The derivative of a maximum chooses its halves, and divides nothing; the same bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler.normalize import normalize
from compiler.programs_of import bits, traced

EDGES = (0.0, -0.0, 1.0, -1.0, 1e-40, np.inf, -np.inf, np.nan)
X, Y = (np.asarray(v, np.float32) for v in np.meshgrid(EDGES, EDGES))


def divisions(program: ClosedJaxpr) -> int:
    """How many quotients a program computes."""
    return sum(eqn.primitive.name == "div" for eqn in program.jaxpr.eqns)


def pulled(f: Callable[..., Any]) -> Callable[..., Any]:
    """What goes to the operands of an extremum, for numbers, infinities and nan."""
    return lambda x, y, ct: jax.vjp(f, x, y)[1](ct)


DIVIDED: dict[str, Callable[..., Any]] = {
    "maximum": pulled(jnp.maximum),
    "minimum": pulled(jnp.minimum),
    "clipped": pulled(lambda x, y: jnp.minimum(jnp.maximum(x * y, -1.0), 1.0)),
    "by hand": lambda x, y, ct: ct * (jnp.where(x > y, 1.0, 0.0) / jnp.where(x < 1, 2.0, 1.0)),
    "one case of two": lambda x, y, ct: ct * (jnp.where(x > y, 0.0, 0.5) / jnp.where(x < 1, 1.0, 2.0)),
}
KEPT: dict[str, Callable[..., Any]] = {
    "thirds": lambda x, y, ct: jnp.where(x > y, 1.0, 0.0) / jnp.where(x < 1, 3.0, 1.0),
    "by zero": lambda x, y, ct: jnp.where(x > y, 1.0, 0.0) / jnp.where(x < 1, 0.0, 1.0),
    "negative zeros": lambda x, y, ct: jnp.where(x > y, 1.0, -0.0) / jnp.where(x < 1, 2.0, 1.0),
    "both cases": lambda x, y, ct: jnp.where(x > y, 1.0, 0.5) / jnp.where(x < 1, 2.0, 1.0),
    "of numbers that are given": lambda x, y, ct: jnp.where(x > y, ct, 0.0) / jnp.where(x < 1, 2.0, 1.0),
    "by numbers that are given": lambda x, y, ct: jnp.where(x > y, 1.0, 0.0) / jnp.where(x < 1, ct, 1.0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", DIVIDED)
def test_nothing_is_divided(name: str, dtype: str) -> None:
    """Of no type, and no bit changes."""
    with jax.enable_x64(True):
        args = [jnp.asarray(v, dtype) for v in (X, Y, 3 * Y.T)]
        program = traced(DIVIDED[name], *args)
        normal, _ = normalize(program)
        assert divisions(program)
        assert not divisions(normal)
        assert bits(evaluate(normal, args)) == bits(evaluate(program, args))
        assert normalize(normal)[0] is normal


@pytest.mark.parametrize("name", KEPT)
def test_other_quotients_stay(name: str) -> None:
    """Those that are rounded, that have a sign to lose, or that would take two choices more."""
    args = [jnp.asarray(v) for v in (X, Y, 3 * Y.T)]
    program = traced(KEPT[name], *args)
    normal, _ = normalize(program)
    assert divisions(normal) == divisions(program) == 1
    assert bits(evaluate(normal, args)) == bits(evaluate(program, args))
