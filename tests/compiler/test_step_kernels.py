"""A reduction within a step is a kernel of its own: where it moves, and how its partial results combine."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.exactness import allowed
from aerogel.compiler.fusion.partials import OF_ALL
from aerogel.compiler.loop import Loop
from aerogel.compiler.passes.loop_fusion import LoopFusion
from aerogel.compiler.pipeline import Context
from compiler.loop_patterns import made
from compiler.programs_of import scans

STEPS = 1000


def states(x: Any) -> Any:
    """The states of a loop, `[STEPS, n]`."""
    return lax.scan(lambda c, _: (c * 0.999 + 0.01, c), x, None, length=STEPS)[1]


@pytest.mark.parametrize(("size", "moves"), [(256, False), (2000, False), (4000, False), (8192, True)])
def test_small_sums_stay_beside_a_stack_that_is_wanted(size: int, moves: bool) -> None:
    """A sum of few numbers in each step costs more than it saves when the stack is returned."""

    def both(x: Any) -> Any:
        ys = states(x)
        return ys, ys.mean()

    sums = [d.fired for d in ag.explain(both)(jnp.ones(size)).decisions if "reduce_sum" in d.what]
    assert sums == [moves]


@pytest.mark.parametrize(("size", "moves"), [(1000, False), (16_384, True)])
def test_deviations_of_small_steps_stay_beside_a_stack_that_is_wanted(size: int, moves: bool) -> None:
    """A deviation of all steps takes a dozen kernels in each: normalised advantages took 1.5 to 2.5 of the time."""

    def normalised(x: Any) -> Any:
        ys = states(x)
        return (ys - ys.mean()) / ys.std()

    sums = [d.what for d in ag.explain(normalised)(jnp.ones(size)).fired if "moments" in d.what]
    assert bool(sums) == moves


def test_small_sums_move_where_no_stack_is_left() -> None:
    """Without the stack the same sum pays at any size."""
    jaxpr = jax.make_jaxpr(ag.optimize(lambda x: states(x).mean()))(jnp.ones(64)).jaxpr
    assert not made(jaxpr, STEPS * 64)


@pytest.mark.parametrize(("size", "moves"), [(256, False), (500, False), (8192, True)])
def test_second_sums_of_short_steps_stay(size: int, moves: bool) -> None:
    """What one sum of a step does is fused with the step, a second is a kernel: 1.4 to 3 of the time in short steps."""

    def two(x: Any, w: Any) -> Any:
        ys = states(x)
        return jnp.sum(ys**2), jnp.sum(ys * w)

    args = (jnp.ones(size), jnp.linspace(0.0, 1.0, STEPS * size).reshape(STEPS, size))
    sums = [d.fired for d in ag.explain(two)(*args).decisions if "reduce_sum" in d.what and "time" in d.what]
    assert sums == [moves] * 2
    ag.verify(two)(*args)


@pytest.mark.parametrize(("shape", "axis"), [((128, 1000, 3), 1), ((1000, 128, 3), 0)])
def test_values_of_another_order_are_not_turned_for_a_sum(shape: tuple[int, ...], axis: int) -> None:
    """A sum along time that comes after the rays would have all that it reads written in the order of the steps.

    The gradient of a rendered volume took 1.5 of plain JAX's time.
    """
    rays, colours = jnp.ones((128,)), jnp.linspace(0.0, 1.0, 384_000).reshape(shape)

    def f(rays: Any, colours: Any) -> Any:
        seen = states(rays)
        weights = seen if axis == 0 else seen.T
        return jnp.sum(weights[..., None] * colours, axis), jnp.sum(weights)

    sums = [d.fired for d in ag.explain(f)(rays, colours).decisions if "reduce_sum" in d.what and "time" in d.what]
    assert sums[0] == (axis == 0)
    ag.verify(f)(rays, colours)


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


@pytest.mark.parametrize(("row", "flat"), [(2, False), (3, True), (24, True), (32, False), (33, False)])
@pytest.mark.parametrize(
    "reduce",
    [lambda ys: jnp.abs(ys).max(0), lambda ys: ((ys - ys.mean(0)) ** 2).sum(0), lambda ys: ys[5:].argmin(0)],
    ids=["max", "squares", "argmin"],
)
def test_short_rows_are_accumulated_in_one_dimension(reduce: Callable[[Any], Any], row: int, flat: bool) -> None:
    """Points in space, `[n, 3]`: XLA goes over rows of three numbers ten times slower than over one long row."""
    x = np.random.default_rng(0).normal(size=(64, row)).astype(np.float32)
    passes = [one for one in DEFAULT_PASSES if one.name != "loop-kernel"]  # it hides the loop in a call
    optimised = ag.optimize(lambda x: reduce(states(jnp.sin(x))), passes=passes)
    (loop,) = scans(jax.make_jaxpr(optimised)(x))
    accumulators = [v.aval.shape for v in Loop(loop).init[1:] if v.aval.size == x.size]
    assert accumulators
    assert all(shape == ((x.size,) if flat else x.shape) for shape in accumulators)
    if row == 3:
        np.testing.assert_allclose(jax.jit(optimised)(x), reduce(states(jnp.sin(x))), rtol=1e-4, atol=1e-6)


def test_rows_that_may_lie_on_several_devices_are_not_flattened() -> None:
    """A reshape that joins dimensions would gather what is spread over devices."""
    program: Any = jax.make_jaxpr(lambda x: states(x).max(0))(jnp.ones((8, 3)))
    context = Context(allowed("fast"), "cpu", over_devices=True)
    fused, _ = LoopFusion()(program, context)
    (loop,) = scans(fused)
    assert {v.aval.shape for v in Loop(loop).init} == {(8, 3)}


def test_what_a_step_divides_is_in_the_cache() -> None:
    """A quotient that each accumulator computes anew costs its arithmetic, not the memory of all steps at once."""
    jaxpr = jax.make_jaxpr(ag.optimize(lambda x: jax.nn.logsumexp(states(x) / 10, axis=0)))(jnp.ones(4000)).jaxpr
    assert not made(jaxpr, STEPS * 4000)
