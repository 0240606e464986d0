"""Loop split: steps of which nobody reads the outputs do not make them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.passes import loop_split
from aerogel.compiler.passes.loop_split import LoopSplit
from compiler.loop_patterns import made, normal

T, SHAPE = 24, (4, 512)
SLICES: dict[str, Any] = {
    "last": np.s_[-1],
    "first": np.s_[0],
    "one inside": np.s_[7],
    "last three": np.s_[-3:],
    "first three": np.s_[:3],
    "some inside": np.s_[5:9],
    "every third": np.s_[::3],
    "every fifth, shifted": np.s_[3::5],
    "rows of few": np.s_[-2:, 1],
    "every tenth": np.s_[::10],
    "every seventh to 20": np.s_[2:20:7],
    "every second of a part": np.s_[4:14:2],
}


def sliced(which: Any, with_xs: bool, reverse: bool) -> Callable[..., Any]:
    """A loop whose outputs (costly ones) are read at some steps only."""

    def f(x0: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            c = 0.9 * c if x is None else 0.9 * c + x
            return c, jnp.exp(jnp.sin(c))

        last, ys = lax.scan(body, x0, xs if with_xs else None, length=T, reverse=reverse)
        return last, ys[which]

    return f


def optimised(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(LoopSplit(),), **options)


ARGS = normal(0, *SHAPE), normal(1, T, *SHAPE)
SIZE = T * SHAPE[0] * SHAPE[1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("with_xs", [False, True])
@pytest.mark.parametrize("name", SLICES)
def test_only_what_is_read_is_made(name: str, with_xs: bool, reverse: bool) -> None:
    """The stacked array exists in the natural program only, and values agree to a unit in the last place."""
    f = sliced(SLICES[name], with_xs, reverse)
    assert made(jax.make_jaxpr(f)(*ARGS).jaxpr, SIZE)
    assert made(jax.make_jaxpr(optimised(f))(*ARGS).jaxpr, SIZE) == []
    for got, want in zip(jax.jit(optimised(f))(*ARGS), jax.jit(f)(*ARGS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SLICES)
def test_gradients(name: str, reverse: bool) -> None:
    """Backward loops are given zeros for all other steps; gradients stay, with respect to states and inputs."""
    f = sliced(SLICES[name], True, reverse)
    g = jax.grad(lambda x0, xs: (f(x0, xs)[1] ** 2).sum(), (0, 1))
    for got, want in zip(jax.jit(optimised(g))(*ARGS), jax.jit(g)(*ARGS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_costly_outputs_are_made_at_full_steps_only() -> None:
    """A callback in the outputs' part of a pure body runs as often as outputs are read."""
    calls: list[int] = []

    def note(x: Any) -> Any:
        calls.append(1)
        return x

    def f(x0: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            y = jax.pure_callback(note, jax.ShapeDtypeStruct(SHAPE, np.float32), c)
            return 0.9 * c, y

        return lax.scan(body, x0, None, length=T)[1][::6]

    jax.block_until_ready(jax.jit(f)(ARGS[0]))
    assert len(calls) == T
    calls.clear()
    jax.block_until_ready(jax.jit(optimised(f))(ARGS[0]))
    assert len(calls) == 4


REFUSED = {
    "whole": lambda ys: (ys[-1], ys),
    "most": lambda ys: ys[2:],
    "two strides": lambda ys: (ys[::6], ys[::5]),
    "summed too": lambda ys: (ys[-1], ys.sum()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_loops_that_are_read_otherwise_are_left(name: str) -> None:
    """What most steps are read of stays one loop."""

    def f(x0: Any) -> Any:
        return REFUSED[name](lax.scan(lambda c, _: (0.9 * c, jnp.sin(c)), x0, None, length=T)[1])

    assert ag.explain(f)(ARGS[0]) is not None
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, on_report=reports.append))(ARGS[0])
    assert reports[-1].fired == ()


def test_strict_takes_no_zero_times_for_granted() -> None:
    """Under strict, backward loops keep their zeros (0 * inf is nan); slices still split forward loops."""

    def f(x0, xs):
        return (sliced(np.s_[-1], True, False)(x0, xs)[1] ** 2).sum()

    reports: list[Any] = []
    jax.make_jaxpr(optimised(jax.grad(f), numerics="strict", on_report=reports.append))(*ARGS)
    assert not any("gradient" in d.what for d in reports[-1].fired)
    jax.make_jaxpr(optimised(f, numerics="strict", on_report=reports.append))(*ARGS)
    assert reports[-1].fired
    jax.make_jaxpr(optimised(jax.grad(f), on_report=reports.append))(*ARGS)
    assert any("gradient" in d.what for d in reports[-1].fired)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.complex64, jnp.bool_])
def test_types(dtype: Any) -> None:
    """Other types keep type and value."""

    def f(x0: Any) -> Any:
        step = (lambda c: ~c) if dtype == jnp.bool_ else lambda c: c + c
        return lax.scan(lambda c, _: (step(c), c), x0, None, length=T)[1][-2:]

    x = jnp.asarray(ARGS[0].repeat(8, 1), dtype)
    assert ag.explain(f)(x).fired
    got, want = jax.jit(optimised(f))(x), jax.jit(f)(x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["last", "last three", "some inside", "every third", "every tenth"])
def test_a_gradient_stores_states_only(name: str, reverse: bool) -> None:
    """The forward loop is split too: of all steps it writes the states, which the gradient reads, and nothing else."""

    def f(x0: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            c = c - 0.05 * c * c + 0.03 * x  # small: a tanh near 1 has few digits of its derivative, in plain JAX too
            return c, jnp.tanh(2 * c + 1)

        return (lax.scan(body, x0, xs, length=T, reverse=reverse)[1][SLICES[name]] ** 2).sum()

    # rows so long that what is stored matters
    args = 0.1 * normal(0, 4, 8192), normal(1, T, 4, 8192)
    g = jax.value_and_grad(f, (0, 1))
    plans: list[Any] = [jax.jit(h).lower(*args).compile().memory_analysis() for h in (g, ag.optimize(g))]
    before, after = (plan.temp_size_in_bytes / (4 * T * 4 * 8192) for plan in plans)
    # What plain JAX stores. Since jax 0.11 the derivative of tanh is one equation, not two.
    assert before > (5 if "one_minus_square" in _jax.primitives else 6)
    assert after < 1.9  # the states, and some rows
    for got, want in zip(jax.tree.leaves(ag.optimize(g)(*args)), jax.tree.leaves(g(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_slices_that_read_all_steps_together_split_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even at free prices: what is left of such a loop would be split again and again."""
    monkeypatch.setattr(loop_split, "QUIET_SHARE", 0.0)
    monkeypatch.setattr(loop_split, "SMALLEST_OUTPUT", 0)
    reports: list[Any] = []

    def f(x0: Any, xs: Any) -> Any:
        ys = sliced(np.s_[:], True, False)(x0, xs)[1]
        return ys[1:] - ys[:-1]

    jax.make_jaxpr(optimised(f, on_report=reports.append))(*ARGS)
    assert [report.decisions for report in reports] == [()]
