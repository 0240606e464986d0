"""Loops whose outputs are read through views of time: reversed, shifted, joined with other values, summed up so far."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.loop import Loop
from compiler.loop_patterns import LENGTH, made, normal, scalar, stacked, step
from compiler.programs_of import scans

SHAPE = (16, 512)
SIZE = (LENGTH - 16) * SHAPE[0] * SHAPE[1]  # what is left of the stack by most slices here
X0, XS, W = normal(0, *SHAPE), normal(1, LENGTH, *SHAPE), normal(2, LENGTH)


def trajectory(x0: Any, reverse: bool) -> Any:
    """All states, and something of each."""

    def body(c: Any, x: Any) -> Any:
        c = step(c, 0.1 * x)
        return c, (c, jnp.tanh(c))

    return lax.scan(body, x0, normal(3, LENGTH, 1), reverse=reverse)[1]


def second(ys: Any, x0: Any, reverse: bool) -> Any:
    """A second loop over neighbours of the first one's outputs; its outputs are summed."""

    def body(c: Any, ab: Any) -> Any:
        c = 0.5 * c + (ab[1] - ab[0]) ** 2
        return c, jnp.sin(c)

    last, zs = lax.scan(body, x0, (ys[:-1], ys[1:]), reverse=reverse)
    return last, zs.sum(0)


Consume = Callable[[Any, Any, Any], Any]
EITHER_WAY: dict[str, Consume] = {
    "reversed sum": lambda ys, zs, x0: ys[::-1].sum(0),
    "reversed, weighted": lambda ys, zs, x0: (jnp.flip(ys, 0) * W[:, None, None]).sum(0),
    "reversed, with its index": lambda ys, zs, x0: jnp.argmax(ys[::-1], 0),
    "every third, backwards": lambda ys, zs, x0: (ys[::-3] * W[: len(W[::3]), None, None]).sum(0),
    "reversed twice": lambda ys, zs, x0: (ys[::-1][5:][::-1] - 1).max(0),
    "against its reversal": lambda ys, zs, x0: ys[::-1].mean(0) * zs.mean(0),
    "differences": lambda ys, zs, x0: ((ys[1:] - ys[:-1]) ** 2).sum(),
    "differences of zs": lambda ys, zs, x0: jnp.abs(jnp.diff(zs, axis=0)).sum(0),
    "differences of a function": lambda ys, zs, x0: jnp.diff(jnp.exp(ys), axis=0).max(0),
    "second differences": lambda ys, zs, x0: ((ys[2:] - 2 * ys[1:-1] + ys[:-2]) ** 2).mean(0),
    "lag 7": lambda ys, zs, x0: (zs[7:] * zs[:-7]).mean(0),
    "lag 3, weighted": lambda ys, zs, x0: (ys[3:] * zs[:-3] * W[3:, None, None]).sum(0),
    "differences of pairs": lambda ys, zs, x0: (ys[::2] - ys[1::2]).max(0),
    "reversed differences": lambda ys, zs, x0: jnp.abs(jnp.diff(ys[::-1], axis=0)).sum(0),
    "with the initial state": lambda ys, zs, x0: jnp.concatenate([x0[None], ys]).mean(0),
    "with the initial state, squares": lambda ys, zs, x0: (jnp.concatenate([x0[None], ys]) ** 2).sum(),
    "initial state, differences": lambda ys, zs, x0: (jnp.diff(jnp.concatenate([x0[None], ys]), axis=0) ** 2).sum(0),
    "initial state, maximum": lambda ys, zs, x0: jnp.vstack([x0[None], ys]).max(0),
    "with both ends, weighted": lambda ys, zs, x0: (
        jnp.concatenate([x0[None], ys, x0[None]]) * jnp.arange(LENGTH + 2.0)[:, None, None]).sum(0),
    "rolled": lambda ys, zs, x0: (jnp.roll(ys, 1, 0) * ys).sum(0),
    "in four parts": lambda ys, zs, x0: [part.mean(0) for part in jnp.split(ys, 4)],
    "first set": lambda ys, zs, x0: ys.at[0].set(0).sum(0),
    "some set": lambda ys, zs, x0: ys.at[3:9].set(W[:6, None, None]).sum(0),
    "one added to": lambda ys, zs, x0: (ys.at[5].add(x0) ** 2).sum(0),
    "last multiplied": lambda ys, zs, x0: zs.at[-1].multiply(0.5).max(0),
    "row 3": lambda ys, zs, x0: jnp.take(zs, 3, axis=0),
    "rows by an array": lambda ys, zs, x0: zs[jnp.arange(2, LENGTH, 16)].sum(0),
}  # fmt: skip
FORWARD: dict[str, Consume] = {
    "running sum": lambda ys, zs, x0: jnp.cumsum(ys, 0).max(0),
    "drawdown": lambda ys, zs, x0: (lax.cummax(ys, 0) - ys).max(0),
    "running product": lambda ys, zs, x0: jnp.cumprod(1 + 0.01 * ys, 0).min(0),
    "running minimum of a function": lambda ys, zs, x0: lax.cummin(jnp.cos(ys), 0).sum(0),
}
LOOPS = {
    "second loop": lambda ys, zs, x0, reverse: second(ys, x0, reverse),
    "second loop, reversed view": lambda ys, zs, x0, reverse: second(ys[::-1], x0, not reverse),
    "second loop over a part": lambda ys, zs, x0, reverse: lax.scan(
        lambda c, y: (0.5 * c + y, None), x0, zs[2:], reverse=reverse)[0],
    "second loop and early inputs": lambda ys, zs, x0, reverse: lax.scan(
        lambda c, yx: (0.5 * c + yx[0] * yx[1], None), x0, (zs[3:], XS[3:]), reverse=reverse)[0],
}  # fmt: skip
CASES = [
    *(pytest.param(name, reverse, id=f"{name}-{'reverse' if reverse else 'forward'}")
      for name in (*EITHER_WAY, *LOOPS) for reverse in (False, True)),
    *(pytest.param(name, False, id=f"{name}-forward") for name in FORWARD),
]  # fmt: skip


def program(name: str, reverse: bool) -> Callable[[Any], Any]:
    """A loop and what is made of its outputs, as a function of the initial state."""

    def f(x0: Any) -> Any:
        ys, zs = trajectory(x0, reverse)
        if name in LOOPS:
            return LOOPS[name](ys, zs, x0, reverse)
        return {**EITHER_WAY, **FORWARD}[name](ys, zs, x0)

    return f


def temporary(f: Callable[..., Any]) -> int:
    """Bytes of temporary memory of the compiled function."""
    plan = jax.jit(f).lower(X0).compile().memory_analysis()
    assert plan is not None
    return plan.temp_size_in_bytes


def agree(f: Callable[..., Any], tolerance: float) -> None:
    """The optimised program's results are the natural one's, up to rounding."""
    got, want = jax.tree.leaves(jax.jit(ag.optimize(f))(X0)), jax.tree.leaves(jax.jit(f)(X0))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        scale = float(np.max(np.abs(np.asarray(b, np.float64))))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(("name", "reverse"), CASES)
def test_values_need_no_stack(name: str, reverse: bool) -> None:
    """The natural program makes an array over most steps, the optimised one stacks none; results agree."""
    f = program(name, reverse)
    assert made(jax.make_jaxpr(f)(X0).jaxpr, SIZE)
    assert stacked(jax.make_jaxpr(ag.optimize(f))(X0).jaxpr, SIZE) == []
    assert temporary(ag.optimize(f)) < temporary(f) / 3
    agree(f, 2e-5)


@pytest.mark.parametrize(("name", "reverse"), CASES)
def test_gradients(name: str, reverse: bool) -> None:
    """Value and gradient agree with plain JAX's."""
    f = program(name, reverse)
    if "index" not in name:
        agree(jax.value_and_grad(lambda x0: scalar(f(x0))), 1e-3)


LEFT: dict[str, Consume] = {
    "the whole is returned": lambda ys, zs, x0: jnp.concatenate([x0[None], ys]),
    "an index, with the initial state": lambda ys, zs, x0: jnp.argmin(jnp.concatenate([x0[None], ys]), 0),
    "far apart": lambda ys, zs, x0: (ys[24:] * ys[:-24]).sum(0),
    "other strides": lambda ys, zs, x0: (ys[::2] * ys[: LENGTH // 2]).sum(0),
    "its own reversal": lambda ys, zs, x0: (ys[::-1] * ys).sum(0),
    "median": lambda ys, zs, x0: jnp.median(ys, 0),
    "running sum from the end": lambda ys, zs, x0: jnp.cumsum(ys[::-1], 0).max(0),
    "sorted": lambda ys, zs, x0: jnp.sort(ys, 0)[3],
}


@pytest.mark.parametrize("name", LEFT)
def test_what_needs_all_steps_is_left(name: str) -> None:
    """What joins steps that are far apart, or orders them, keeps its stack and its results."""

    def f(x0: Any) -> Any:
        ys, zs = trajectory(x0, False)
        return LEFT[name](ys, zs, x0)

    assert stacked(jax.make_jaxpr(ag.optimize(f))(X0).jaxpr, SIZE)
    agree(f, 1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.bool_, jnp.complex64])
def test_types(dtype: Any) -> None:
    """Differences, reversals and initial states of other types."""

    def f(x0: Any) -> Any:
        ys = lax.scan(lambda c, _: (~c, c) if dtype == jnp.bool_ else (c * -1 + x0, c), x0, None, length=LENGTH)[1]
        joined = jnp.concatenate([x0[None], ys])
        differ = ys[1:] != ys[:-1]
        return differ.sum(0), (ys[::-1][3:] == x0).all(0), (joined == x0).sum(0)

    x = jnp.asarray(X0 * 9, dtype)
    for got, want in zip(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_a_second_loop_that_might_not_end_waits_for_the_first() -> None:
    """A `while` in the second loop's step is not run on values that are not its own."""

    def f(x0: Any) -> Any:
        ys = trajectory(jnp.abs(x0), False)[0]

        def body(c: Any, y: Any) -> Any:
            return c + lax.while_loop(lambda v: v.max() > 1.0, lambda v: 0.5 * v, y), None

        return lax.scan(body, x0, ys[1:])[0]

    reasons = [d.reason for d in ag.explain(f)(X0).refused]
    assert "the second loop might not end at steps that it does not take" in reasons
    agree(f, 1e-5)


def test_strict_keeps_the_order_of_sums() -> None:
    """Under strict neither parts nor totals of floats are summed in another order; differences still move."""

    def f(x0: Any) -> Any:
        ys, _ = trajectory(x0, False)
        return jnp.concatenate([x0[None], ys]).sum(0), jnp.cumsum(ys, 0).max(0), (ys[1:] - ys[:-1]).max(0)

    assert not any(d.rule == "loop-parts" for d in ag.explain(f, numerics="strict")(X0).fired)
    assert ag.explain(lambda x0: f(x0)[2], numerics="strict")(X0).fired
    agree(f, 2e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("place", [0, -1])
def test_one_outermost_step_is_no_buffer(place: int, reverse: bool) -> None:
    """The last step that runs leaves its values in carries, the loop's own where it can; the first is made before."""

    def f(x0: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            c = jnp.cos(c) + x
            return c, (c, jnp.tanh(c), c > 0, 1)

        ys, zs, hits, ones = lax.scan(body, x0, normal(3, 40, 1), reverse=reverse)[1]
        return ys[place], zs[place], hits[place], ones[place], ys.sum(0), zs.max(0), hits.sum(0)

    (loop,) = scans(jax.make_jaxpr(ag.optimize(f))(X0))
    is_last = (place == -1) != reverse
    assert len(Loop(loop).init) == 4 + (is_last and 2)  # the state, three reductions; zs, hits
    assert not Loop(loop).ys
    agree(f, 1e-5)


def test_a_stack_that_is_wanted_is_not_turned() -> None:
    """A sum in the loop does not pay where it takes a transpose along, which would be undone after the loop."""

    def f(x0: Any) -> Any:
        return jnp.cov(trajectory(x0, False)[0].reshape(-1, SHAPE[1]).T)

    (loop,) = scans(jax.make_jaxpr(ag.optimize(f))(X0))
    assert [v.aval.shape for v in Loop(loop).ys] == [(LENGTH, *SHAPE)]


def test_stacks_that_stay_are_not_taken_apart() -> None:
    """Two loops that run in opposite directions keep their stacks: sums over both are made of whole arrays."""

    def expected(A: Any, b: Any) -> Any:
        def forward(a: Any, b: Any) -> tuple[Any, Any]:
            a = (a @ A) * b
            return a / a.sum(), (a / a.sum(), a.sum())

        def backward(late: Any, step: Any) -> tuple[Any, Any]:
            late = A @ (step[0] * late) / step[1]
            return late, late

        first, last = b[0] / b[0].sum(), jnp.ones(b.shape[1])
        _, (early, c) = lax.scan(forward, first, b[1:])
        early = jnp.concatenate([first[None], early])
        _, late = lax.scan(backward, last, (b[1:], c), reverse=True)
        late = jnp.concatenate([late, last[None]])
        both = early * late
        pairs = early[:-1, :, None] * A * (b[1:] * late[1:])[:, None] / c[:, None, None]
        return (both / both.sum(1, keepdims=True)).sum(0), pairs.sum(0)

    args = jax.nn.softmax(normal(0, 16, 16)), jnp.abs(normal(1, 1200, 16)) + 0.1
    made = [d for d in ag.explain(expected)(*args).decisions if d.rule == "loop-parts"]
    assert made
    assert {(d.fired, d.reason) for d in made} == {(False, "what the loops stack is needed all the same")}
    for got, want in zip(jax.jit(ag.optimize(expected))(*args), jax.jit(expected)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3)


def splats(centre: Any, form: Any, share: Any, colour: Any) -> Any:
    """How far the picture that splats make, one behind the other, is from a grey one."""
    given = (centre, form, share, colour)
    centre, form, share, colour = (x[jnp.argsort(x.sum(tuple(range(1, x.ndim))))] for x in given)
    yy, xx = jnp.meshgrid(jnp.arange(64), jnp.arange(64), indexing="ij")
    dx, dy = xx[None] - centre[:, 0, None, None], yy[None] - centre[:, 1, None, None]
    a, b, c = (form[:, k][:, None, None] for k in range(3))
    bell = jnp.exp(-0.5 * (a * dx**2 + 2 * b * dx * dy + c * dy**2))
    share = jnp.clip(jax.nn.sigmoid(share)[:, None, None] * bell, 0, 0.99)
    left = jnp.cumprod(1 - share, 0)
    left = jnp.concatenate([jnp.ones_like(left[:1]), left[:-1]])
    return jnp.abs(jnp.einsum("nhw,nc->hwc", share * left, jax.nn.sigmoid(colour)) - 0.5).mean()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_parts_hold_no_more_at_once(dtype: str) -> None:
    """Where more memory would be taken while the parts are worked on, the concatenation stays: no more than without."""
    f = jax.value_and_grad(splats, argnums=(0, 1, 2, 3))
    centre = 64 * jax.random.uniform(jax.random.key(0), (100, 2))
    form = jnp.array([0.05, 0.01, 0.05]) * (1.5 + jnp.sin(normal(1, 100, 3)))
    args = [x.astype(dtype) for x in (centre, form, normal(2, 100), normal(3, 100, 3))]
    (made,) = [d for d in ag.explain(f)(*args).decisions if d.rule == "loop-parts"]
    assert not made.fired
    assert made.reason.startswith("more memory would be taken at once: " if dtype == "float32" else "what the loops ")
    plain, ours = jax.jit(f).lower(*args).compile(), jax.jit(ag.optimize(f)).lower(*args).compile()
    assert ours.memory_analysis().temp_size_in_bytes <= plain.memory_analysis().temp_size_in_bytes
    for got, want in zip(jax.tree.leaves(ours(*args)), jax.tree.leaves(plain(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2 if dtype == "float16" else 1e-5)
