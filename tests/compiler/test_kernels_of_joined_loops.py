"""Loops that are one kernel each stay apart where the loop that they would be is too much for one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import KNOWS_KERNELS, jaxprs_in_params
from aerogel.compiler.passes.loop_fusion import LoopFusion
from compiler.loop_patterns import normal

pytestmark = pytest.mark.skipif(not KNOWS_KERNELS, reason="of this jaxlib it is not known which loops are one kernel")
STEPS = 50


def section(x: Any, c: Any) -> Any:
    """A filter of second order, along time."""

    def step(state: Any, row: Any) -> Any:
        y = c[0] * row + state[0]
        return (c[1] * row - c[3] * y + state[1], c[2] * row - c[4] * y), y

    zeros = jnp.zeros_like(x[0])
    return lax.scan(step, (zeros, zeros), x)[1]


def cascade(c: Any, x: Any) -> Any:
    """One filter after the other."""
    for one in c:
        x = section(x, one)
    return x


def power(c: Any, x: Any) -> Any:
    """What a user differentiates."""
    return (cascade(c, x) ** 2).mean()


def scans(f: Callable[..., Any], *args: Any) -> int:
    """How many loops there are."""

    def count(jaxpr: Any) -> int:
        inner = sum(count(held) for eqn in jaxpr.eqns for held in jaxprs_in_params(eqn.params))
        return inner + sum(eqn.primitive.name == "scan" for eqn in jaxpr.eqns)

    return count(jax.make_jaxpr(f)(*args).jaxpr)


def fused(f: Callable[..., Any], reasons: set[str] | None = None) -> Callable[..., Any]:
    """`f` with loop fusion alone."""

    def note(report: Any) -> None:
        if reasons is not None:
            reasons.update(d.reason for d in report.refused)

    return ag.optimize(f, passes=(LoopFusion(),), rules=(), on_report=note)


def filters(count: int, width: int, dtype: Any = jnp.float32) -> tuple[Any, Any]:
    """Coefficients and what is filtered."""
    return (0.2 * normal(0, count, 5)).astype(dtype), normal(1, STEPS, width).astype(dtype)


def test_a_gradient_of_a_cascade_stays_apart() -> None:
    """Each loop backwards has five sums; a kernel of twenty takes LLVM seconds, and none as one loop is no kernel."""
    args, reasons = filters(4, 4), set[str]()
    f = jax.grad(power)
    assert scans(f, *args) == 8
    assert scans(fused(f, reasons), *args) >= 7
    assert any("too much for one" in reason for reason in reasons)
    np.testing.assert_allclose(jax.jit(fused(f))(*args), jax.jit(f)(*args), rtol=1e-4, atol=1e-6)


def test_what_is_one_kernel_together_is_joined() -> None:
    """Near miss: the values, of few equations and no sum."""
    args = filters(4, 4)
    assert scans(cascade, *args) == 4
    assert scans(fused(cascade), *args) == 1


def test_what_is_no_kernel_is_joined() -> None:
    """Near miss: sums over 4,096 entries call a library, whatever loop they stand in."""
    args = filters(2, 4096)
    f = jax.grad(power)
    assert scans(fused(f), *args) < scans(f, *args)


@pytest.mark.parametrize("width", [0, 1, 7])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_values(count: int, width: int) -> None:
    """Gradients, mapped and in float64."""
    with jax.enable_x64(True):
        c, x = filters(count, width, jnp.float64)
        both = jnp.stack([c, 0.5 * c])
        f = jax.vmap(jax.grad(lambda c, x: (cascade(c, x) ** 2).sum()), (0, None))
        np.testing.assert_allclose(jax.jit(ag.optimize(f))(both, x), jax.jit(f)(both, x), rtol=1e-9, atol=1e-9)
