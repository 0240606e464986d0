"""A reduction within a step is a kernel of its own: where it moves, and how its partial results combine."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.partials import OF_ALL
from compiler.loop_patterns import made

STEPS = 1000


def states(x: Any) -> Any:
    """The states of a loop, `[STEPS, n]`."""
    return lax.scan(lambda c, _: (c * 0.999 + 0.01, c), x, None, length=STEPS)[1]


@pytest.mark.parametrize(("size", "moves"), [(256, False), (8192, True)])
def test_small_sums_stay_beside_a_stack_that_is_wanted(size: int, moves: bool) -> None:
    """A sum of few numbers in each step costs more than it saves when the stack is returned."""

    def both(x: Any) -> Any:
        ys = states(x)
        return ys, ys.mean()

    sums = [d.fired for d in ag.explain(both)(jnp.ones(size)).decisions if "reduce_sum" in d.what]
    assert sums == [moves]


def test_small_sums_move_where_no_stack_is_left() -> None:
    """Without the stack the same sum pays at any size."""
    jaxpr = jax.make_jaxpr(ag.optimize(lambda x: states(x).mean()))(jnp.ones(64)).jaxpr
    assert not made(jaxpr, STEPS * 64)


@pytest.mark.parametrize(("mean", "spread"), [(0, 1), (1e4, 0.1), (-1e6, 3)])
@pytest.mark.parametrize("counted", [slice(None), slice(100, None), slice(None, None, 3)], ids=str)
def test_moments_of_all_steps(mean: float, spread: float, counted: slice) -> None:
    """Steps that do not count are nothing, and the digits are those of the values, not of their mean."""
    y = (np.random.default_rng(0).normal(size=(300, 50)) * spread + mean).astype(np.float32)
    hit = np.zeros(300, bool)
    hit[counted] = True
    n = np.where(hit, 50, 0).astype(np.float32)
    base = np.where(hit, y.astype(np.float64).mean(1), 0).astype(np.float32)
    exact = y.astype(np.float64) - base[:, None]
    rest, squares = exact.mean(1), ((exact - exact.mean(1, keepdims=True)) ** 2).sum(1)
    rest, squares = (np.where(hit, x, 0).astype(np.float32) for x in (rest, squares))
    total, middle, off, spread_squares = OF_ALL["moments"](*map(jnp.asarray, (n, base, rest, squares)))
    want = y[hit].astype(np.float64)
    assert total == want.size
    np.testing.assert_allclose(np.float64(middle) + np.float64(off), want.mean(), atol=1e-6 * spread, rtol=0)
    np.testing.assert_allclose(spread_squares, ((want - want.mean()) ** 2).sum(), rtol=1e-5)


@pytest.mark.parametrize("special", [[], [-np.inf], [np.inf], [-np.inf, np.inf], [np.nan]], ids=str)
def test_logsumexp_of_all_steps(special: list[float]) -> None:
    """Maxima and sums of each step become those of all; empty steps and infinities included."""
    y = np.concatenate([np.random.default_rng(0).normal(size=90).astype(np.float32) * 30 - 500, special]).astype("f4")
    most, total = OF_ALL["online softmax"](
        jnp.append(jnp.asarray(y), -jnp.inf),
        jnp.append(jnp.where(jnp.isfinite(y), 1.0, jnp.where(y == -jnp.inf, 0.0, y)), 0.0),
    )
    np.testing.assert_allclose(jnp.log(total) + jnp.where(jnp.isfinite(most), most, 0), jax.nn.logsumexp(y), rtol=1e-6)


@pytest.mark.parametrize(("size", "moves"), [(1000, False), (8192, True)])
@pytest.mark.parametrize("reduce", [lambda ys: ys.sum(0), lambda ys: ys.std(0)], ids=["sum", "std"])
def test_sums_over_time_beside_a_stack(reduce: Callable[[Any], Any], size: int, moves: bool) -> None:
    """Where the stack is returned, accumulators of short rows cost each step more than XLA's sum after the loop."""

    def both(x: Any) -> Any:
        ys = states(x)
        return ys, reduce(ys)

    fired = [d.what for d in ag.explain(both)(jnp.ones(size)).fired if "reduce_sum" in d.what]
    assert bool(fired) == moves
    assert not made(jax.make_jaxpr(ag.optimize(lambda x: reduce(states(x))))(jnp.ones(size)).jaxpr, STEPS * size)


def test_sums_that_share_accumulators_pay_once() -> None:
    """A variance's accumulators hold its mean: both move to steps in which three accumulators would not pay."""
    report = ag.explain(lambda x: (lambda ys: (ys, ys.var(0)))(states(x)))(jnp.ones(2000))
    assert len([d for d in report.fired if "reduce_sum" in d.what]) == 2
