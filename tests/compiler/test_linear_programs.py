"""Branches, loops and calls that are linear in some of their operands, and what a loop sums up in front of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import Literal
from aerogel.compiler.axes import is_linear
from aerogel.compiler.passes.loop_linear import LoopLinear
from benchmarks._case import normal

M, K = normal(0, 6, 6), normal(1, 6)

LINEAR: dict[str, Callable[..., Any]] = {
    "cond": lambda x, i, m: lax.cond(i > 0, lambda x, m: m @ x, lambda x, m: -x, x, m),
    "a branch of zeros": lambda x, i, m: lax.cond(i > 0, lambda x, m: m @ x, lambda x, m: jnp.zeros_like(x), x, m),
    "switch": lambda x, i, m: lax.switch(i, (lambda x, m: x * m[0], lambda x, m: 2 * x, lambda x, m: m @ x + x), x, m),
    "a loop": lambda x, i, m: lax.scan(lambda c, _: (m @ c, None), x, None, length=3)[0],
    "a loop from zeros": lambda x, i, m: lax.scan(lambda c, r: (c + r * x, None), jnp.zeros(6), m)[0],
    "a loop over it": lambda x, i, m: lax.scan(lambda c, y: (c + y, y * m[0]), jnp.zeros(()), x),
    "a branch in a loop": lambda x, i, m: lax.scan(
        lambda c, r: (lax.cond(r[0] > 0, lambda c, r: c * r, lambda c, r: c, c, r), None), x, m
    )[0],
    "a solve": lambda x, i, m: lax.cond(i > 0, lambda x, m: jnp.linalg.solve(m, x), lambda x, m: x, x, m),
}
NOT: dict[str, Callable[..., Any]] = {
    "another branch": lambda x, i, m: lax.cond(i > 0, lambda x, m: m @ x, lambda x, m: m[0], x, m),
    "a square": lambda x, i, m: lax.cond(i > 0, lambda x, m: x * x, lambda x, m: x, x, m),
    "chosen by it": lambda x, i, m: lax.cond(x[0] > 0, lambda x, m: m @ x, lambda x, m: x, x, m),
    "a loop from ones": lambda x, i, m: lax.scan(lambda c, r: (c + r * x, None), jnp.ones(6), m)[0],
    "a product in a loop": lambda x, i, m: lax.scan(lambda c, _: (c * c, None), x, None, length=3)[0],
    "a sum in a loop": lambda x, i, m: lax.scan(lambda c, r: (c + r, None), x, m)[0],
    "something else is stacked": lambda x, i, m: lax.scan(lambda c, r: (c, r + 1), x, m),
}


@pytest.mark.parametrize("name", [*LINEAR, *NOT])
def test_which_are_linear(name: str) -> None:
    """Asked of the last equation that holds a program, in what depends on x."""
    jaxpr = jax.make_jaxpr((LINEAR | NOT)[name])(K, np.int32(1), M).jaxpr
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}

    def is_zero(x: Any) -> bool:
        maker = None if isinstance(x, Literal) else makers.get(x)
        repeated = maker is not None and maker.primitive.name == "broadcast_in_dim"
        return not np.any(x.val) if isinstance(x, Literal) else repeated and is_zero(maker.invars[0])

    moving = {jaxpr.invars[0]}
    for eqn in jaxpr.eqns:
        own = [k for k, v in enumerate(eqn.invars) if not isinstance(v, Literal) and v in moving]
        if own and eqn.primitive.name in ("cond", "scan"):
            zeros = [k for k, v in enumerate(eqn.invars) if is_zero(v)]
            assert is_linear(eqn, own, zeros) == (name in LINEAR)
            return
        if own:
            moving.update(eqn.outvars)
    raise AssertionError("nothing that holds a program")


def through(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a loop that multiplies with a function of constants in each step."""

    def total(a: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda c, _: (jnp.sin(f(a) @ c), None), x, None, length=6)[0])

    return jax.grad(total, (0, 1))


OF_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "expm": lambda a: jax.scipy.linalg.expm(a / 5),
    "a branch": lambda a: lax.cond(a[0, 0] > 0, lambda a: jnp.linalg.inv(a) @ a.T, lambda a: jnp.tanh(a @ a), a),
    "a power": lambda a: jnp.linalg.matrix_power(a / 5, 5),
}


@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_what_a_loop_holds_of_constants_is_differentiated_once(name: str) -> None:
    """The loop sums up what comes back to it; the gradient is as near to float64 as before."""
    a, x = normal(2, 32, 32) + 6 * np.eye(32, dtype=np.float32), normal(3, 32)
    g = through(OF_CONSTANTS[name])
    reports: list[Any] = []
    ours = ag.optimize(g, passes=(LoopLinear(),), on_report=reports.append)
    got = jax.jit(ours)(a, x)
    assert any(d.rule == "loop-linear" for d in reports[0].fired)
    with jax.enable_x64(True):
        truth = jax.jit(g)(*(jnp.asarray(v, np.float64) for v in (a, x)))
    for one, other, t in zip(got, jax.jit(g)(a, x), truth, strict=True):
        error, size = float(np.abs(other - np.asarray(t)).max()), float(np.abs(t).max())
        assert float(np.abs(one - np.asarray(t)).max()) <= 2 * error + 1e-5 * size
