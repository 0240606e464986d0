"""Loop windows: shift registers, what they shift out, and sums of windows need no loop."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler import Decision
from aerogel.compiler.loops.shift_registers import Outlet, Register, Sum
from aerogel.compiler.passes.loop_windows import ALONE, SIMPLER, WHAT, LoopWindows
from compiler.programs_of import traced

N, K = 700, 9
READ, OUT, ADDED = (WHAT[kind] for kind in (Register, Outlet, Sum))


def normal(*shape: int, dtype: Any = "float32") -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), dtype)


def decisions(f: Callable[..., Any], *args: Any, **options: Any) -> list[Decision]:
    """What the pass decides; the results must stay what they were."""
    found: list[Any] = []
    optimised = jax.jit(ag.optimize(f, rules=[], passes=(LoopWindows(),), on_report=found.append, **options))
    for got, want in zip(jax.tree.leaves(optimised(*args)), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert jax.typeof(got) == jax.typeof(want)
        close = 2e-2 if want.dtype == jnp.bfloat16 else 2e-5
        large = float(np.nan_to_num(np.abs(np.asarray(want, float))).max(initial=1.0))
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), close, close * large)
    return [d for d in found[-1].decisions if d.rule == "loop-windows"]


def gradient(f: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """By all arguments, of something that is no sum alone."""
    return jax.grad(lambda *args: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*args))), tuple(range(len(args))))


def filtered(shift: Callable[[Any, Any], Any], **options: Any) -> Callable[..., Any]:
    """A filter whose state `shift` moves."""

    def f(x: Any, w: Any, first: Any) -> Any:
        def step(held: Any, x: Any) -> Any:
            held = shift(held, x)
            return held, jnp.tensordot(w, held, 1)

        return lax.scan(step, first, x, **options)

    return f


def hopped(held: Any, x: Any) -> Any:
    """Three numbers come in at once."""
    return jnp.concatenate([held[3:], x])


SHIFTS: dict[str, Callable[[Any, Any], Any]] = {
    "joined in front": lambda held, x: jnp.concatenate([x[None], held[:-1]]),
    "joined behind": lambda held, x: jnp.concatenate([held[1:], x[None]]),
    "rolled": lambda held, x: jnp.roll(held, 1, 0).at[0].set(x),
    "rolled back": lambda held, x: jnp.roll(held, -1, 0).at[-1].set(x),
    "written over": lambda held, x: lax.dynamic_update_slice(
        jnp.roll(held, 1, 0), x[None], (0,) * held.ndim),
}  # fmt: skip
ARGS = normal(N), normal(K), normal(K) + 1
FILTERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{name: (filtered(shift), ARGS) for name, shift in SHIFTS.items()},
    "reversed": (filtered(SHIFTS["rolled"], reverse=True), ARGS),
    "reversed, behind": (filtered(SHIFTS["joined behind"], reverse=True), ARGS),
    "channels": (filtered(SHIFTS["rolled"]), (normal(N, 4), normal(K), normal(K, 4))),
    "under vmap": (
        jax.vmap(filtered(SHIFTS["joined in front"]), (0, None, 0)),
        (normal(3, N), normal(K), normal(3, K)),
    ),
    "vmap of a roll": (jax.vmap(filtered(SHIFTS["rolled"]), (1, None, None)), (normal(N, 3), normal(K), normal(K))),
    "several at once": (filtered(hopped), (normal(N, 3), normal(K), normal(K))),
    "before it is shifted": (
        lambda x, w, first: lax.scan(lambda h, x: (SHIFTS["rolled"](h, x), w @ h), first, x),
        ARGS,
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_register_is_a_window(name: str) -> None:
    """No step waits for another; the gradient takes all windows at once."""
    f, args = FILTERS[name]
    assert "scan" in {eqn.primitive.name for eqn in traced(f, *args).jaxpr.eqns}
    assert [(d.what, d.fired) for d in decisions(f, *args)] == [(READ, True)]
    done = [d.what for d in decisions(gradient(f, *args), *args) if d.what in (READ, OUT)]
    assert done[:1] == [READ]
    assert set(done[1:]) <= {OUT}


@pytest.mark.parametrize(
    "name", ["joined in front", "rolled", "rolled back", "reversed", "channels", "several at once"]
)
def test_a_gradient_is_a_sum_of_windows(name: str) -> None:
    """With enough numbers."""
    f, (x, w, first) = FILTERS[name]
    longer = jnp.concatenate([x] * 3)
    made = decisions(gradient(f, x, w, first), longer, w, first)
    assert [(d.what, d.fired) for d in made] == [(READ, True), (OUT, True)]


def test_a_gradient_of_a_long_mean_needs_no_loop() -> None:
    """Its cotangent is repeated to as many numbers as the loop stacks, and these are added up as windows."""

    def loss(x: Any) -> Any:
        step = lambda held, one: ((held := SHIFTS["rolled"](held, one)), held.mean())  # noqa: E731
        return (lax.scan(step, jnp.zeros(30), x)[1] ** 2).sum()

    x = normal(50_000)
    optimised = ag.optimize(jax.grad(loss))
    assert {"scan", "one_kernel"}.isdisjoint(eqn.primitive.name for eqn in traced(optimised, x).jaxpr.eqns)
    np.testing.assert_allclose(jax.jit(optimised)(x), jax.jit(jax.grad(loss))(x), rtol=1e-4, atol=1e-5)


def test_a_mean_is_written_where_it_is_repeated() -> None:
    """Who reads it entry by entry makes it; else a division by what is one has XLA write it, as for folds of four."""

    def mean(x: Any) -> Any:
        step = lambda held, one: ((held := SHIFTS["rolled back"](held, one)), held.mean())  # noqa: E731
        return lax.scan(step, jnp.zeros(30), x)[1]

    def divisions(f: Callable[..., Any]) -> int:
        return str(jax.make_jaxpr(ag.optimize(f))(normal(5000))).count(" div ")

    assert divisions(mean) == divisions(lambda x: jnp.sin(mean(x))) == 2
    assert divisions(lambda x: jnp.outer(mean(x), jnp.arange(3.0))) == divisions(lambda x: jnp.cumsum(mean(x))) == 3


def test_few_are_cut_off() -> None:
    """A gradient of few steps keeps its loop, without the writes that only made zeros."""
    f, args = FILTERS["rolled"]
    made = decisions(gradient(f, *args), *args)
    assert [(d.what, d.fired) for d in made] == [(READ, True), (OUT, False), (SIMPLER, True)]


def sliding(x: Any, w: Any) -> Any:
    """A window that is read in each step."""
    return lax.map(lambda t: w @ lax.dynamic_slice(x, (t,), w.shape), jnp.arange(len(x) - len(w) + 1))


def overlapped(y: Any, w: Any, hop: int = 3, m: Any = None) -> Any:
    """Frames that are added up in place."""

    def step(out: Any, at: Any) -> Any:
        t, y = at
        part = lax.dynamic_slice(out, (hop * t,), w.shape)
        added = y * w if m is None else m @ (y * w)
        return lax.dynamic_update_slice(out, part + added, (hop * t,)), None

    return lax.scan(step, jnp.ones(hop * len(y) + len(w)), (jnp.arange(len(y)), y))[0]


def test_windows_that_are_read_have_a_gradient_of_sums() -> None:
    """The cotangent of the array is one sum of windows."""
    args = normal(6 * N), normal(K)
    made = decisions(gradient(sliding, *args), *args)
    assert [(d.what, d.fired) for d in made] == [(ADDED, True)]


@pytest.mark.parametrize("length", [500, 900])
def test_a_loop_that_is_one_kernel_stays(length: int) -> None:
    """XLA makes one kernel of a gradient's loop: nothing of that is computed outside."""
    args = normal(length), normal(K)
    optimised = traced(ag.optimize(gradient(sliding, *args)), *args).jaxpr
    names = [eqn.primitive.name for eqn in optimised.eqns]
    assert names.count("scan") == 1
    assert not {"dot_general", "scatter-add"} & {*names}
    assert [d.fired for d in decisions(gradient(sliding, *args), *args)] == [False]


def test_frames_are_added_at_once() -> None:
    """Read, added to and written back: neighbours, or what each step has something to compute for."""
    made = decisions(lambda y, w: overlapped(y, w, hop=1), normal(6 * N), normal(K))
    assert [(d.what, d.fired) for d in made] == [(ADDED, True)]
    made = decisions(lambda y, w, m: overlapped(y, w, m=m), normal(6 * N), normal(K), normal(K, K))
    assert [(d.what, d.fired) for d in made] == [(ADDED, True)]


@pytest.mark.parametrize(("steps", "places", "hop"), [(N, 300, 1), (6 * N, K, 3), (100, 400, 100)])
def test_a_loop_that_only_adds_is_left_alone(steps: int, places: int, hop: int) -> None:
    """It is one kernel, which adds neighbours at once: no other form of frames that are apart, or long, is as fast."""
    f = partial(overlapped, hop=hop)
    assert [(d.what, d.fired, d.reason) for d in decisions(f, normal(steps), normal(places))] == [(ADDED, False, ALONE)]


def test_few_numbers_that_are_only_added_are_left_alone() -> None:
    """Slices of them are some kernels more."""
    made = decisions(lambda y, w: overlapped(y, w, hop=1), normal(3 * N), normal(K))
    assert [(d.fired, d.reason) for d in made] == [(False, "18900 numbers are fewer than 32768")]


NEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "what comes in is computed of what is held": (
        lambda x, w, first: lax.scan(lambda h, x: (SHIFTS["rolled"](h, x + w @ h), w @ h), first, x),
        ARGS,
    ),
    "what comes in is computed": (
        lambda x, w, first: lax.scan(lambda h, x: (SHIFTS["rolled"](h, jnp.sin(x)), w @ h), first, x),
        ARGS,
    ),
    "it decays": (filtered(lambda h, x: SHIFTS["rolled"](0.9 * h, x)), ARGS),
    "it is written in the middle": (filtered(lambda h, x: jnp.roll(h, 1).at[3].set(x)), ARGS),
    "it only turns round": (filtered(lambda h, x: jnp.roll(h, 1) + 0 * x), ARGS),
    "another carry is a state": (
        lambda x, w, first: lax.scan(
            lambda c, x: ((SHIFTS["rolled"](c[0], x), jnp.tanh(c[1] + w @ c[0])), c[1]), (first, jnp.zeros(()) + 0.5), x
        ),
        ARGS,
    ),
    "places from data": (
        lambda x, w, first: lax.scan(
            lambda c, x: (
                lax.dynamic_update_slice(
                    c, lax.dynamic_slice(c, (x.astype(int),), (K,)) + w, (x.astype(int),)), None,
            ), jnp.zeros(N), x,
        ),
        ARGS,
    ),
    "the sum is read": (
        lambda x, w, first: lax.scan(
            lambda c, t: (lax.dynamic_update_slice(c, lax.dynamic_slice(c, (t,), (K,)) + w * c[0], (t,)), None),
            jnp.ones(N + K), jnp.arange(N),
        ),
        ARGS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_is_left_alone(name: str) -> None:
    """And stays right."""
    f, args = NEAR[name]
    assert not [d for d in decisions(f, *args) if d.fired]
    decisions(gradient(f, *args), *args)


def test_few_numbers_and_strict_numerics() -> None:
    """Nothing is done for some microseconds, nor where sums must keep their order."""
    f, args = FILTERS["rolled"]
    assert [d.fired for d in decisions(f, args[0][:30], *args[1:])] == [False]
    assert decisions(f, *args, numerics="strict") == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_other_types(dtype: str) -> None:
    """Registers hold any numbers."""
    x, w, first = (jnp.asarray(10 * v, dtype) for v in ARGS)
    f = filtered(SHIFTS["rolled"])
    assert decisions(lambda *args: jax.tree.map(lambda v: v.astype("float32"), f(*args)), x, w, first)[0].fired


def test_zero_sizes() -> None:
    """No steps, no places."""
    decisions(filtered(SHIFTS["rolled"]), normal(0), normal(K), normal(K))
    decisions(filtered(SHIFTS["joined behind"]), normal(N, 0), normal(K), normal(K, 0))


@given(st.data())
@settings(max_examples=10, deadline=None)
def test_random_registers(data: st.DataObject) -> None:
    """Any direction, any number at once: the same as plain JAX, value and gradient."""
    move, length = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 40))
    size = move + data.draw(st.integers(1, 6))
    in_front, reverse = data.draw(st.booleans()), data.draw(st.booleans())

    def shift(held: Any, x: Any) -> Any:
        return jnp.concatenate([x, held[:-move]] if in_front else [held[move:], x])

    f = filtered(shift, reverse=reverse)
    x, first = jnp.tile(normal(length, move), (1, 1, 1))[0], normal(size)
    wide = 1 + 20_000 // (length * size)
    x, first = (jnp.stack([v * (k + 1) for k in range(wide)], -1) for v in (x, first))
    made = decisions(f, x, normal(size), first)
    assert [d.fired for d in made] == [True]
    decisions(gradient(f, x, first, first), x, normal(size), first)
