"""What a loop is given in windows is read from the whole, and what it gives to a longer array is written there."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.loops.loop_ends import LEAST_BYTES
from aerogel.compiler.passes.loop_ends import JOINTS, NAME, WINDOWS


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers of float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def fired(f: Callable[..., Any], *args: Any) -> list[str]:
    """What the pass did."""
    return [d.what for d in ag.explain(f)(*args).fired if d.rule == NAME]


def smoothed(x: Any, reverse: bool = False) -> Any:
    """Every entry of `x` with what is left of those before it; all but the first."""
    return lax.scan(lambda c, v: (0.9 * c + jnp.sin(v),) * 2, x[0], x[1:], reverse=reverse)[1]


def trajectory(c: Any) -> Any:
    """600 states."""
    return lax.scan(lambda c, _: (jnp.sin(c) + 0.1 * c,) * 2, c, None, length=600)[1]


x, c = normal(0, 601, 24), normal(1, 24)
ENDS: dict[str, tuple[Callable[..., Any], Any, list[str]]] = {
    "behind a start": (lambda c: jnp.concatenate([c[None], trajectory(c)]), c, [JOINTS]),
    "before an end": (lambda c: jnp.concatenate([trajectory(c), c[None], 2 * c[None]]), c, [JOINTS]),
    "between": (lambda c: jnp.concatenate([c[None], trajectory(c), jnp.stack([c, -c])]), c, [JOINTS]),
    "a last state": (
        lambda c: (lambda ys, last: jnp.concatenate([ys, last[None]]))(
            *lax.scan(lambda c, _: (jnp.sin(c), c), c, None, length=600)[::-1]
        ),
        c,
        [JOINTS],
    ),
    "windows": (smoothed, x, [WINDOWS]),
    "two windows": (
        lambda x: lax.scan(lambda c, ab: (c + jnp.sin(ab[0]) * ab[1], None), x[0], (x[:-1], x[1:]))[0],
        x,
        [WINDOWS],
    ),
    "backwards": (lambda x: jnp.concatenate([smoothed(x, True), x[:1]]), x, [WINDOWS, JOINTS]),
    "both": (lambda x: jnp.concatenate([x[:1], smoothed(x)]), x, [WINDOWS, JOINTS]),
    "in a batch": (jax.vmap(lambda c: jnp.concatenate([c[None], trajectory(c)])), normal(1, 3, 24), []),
    "in a branch": (
        lambda c: lax.cond(c[0] > 9, lambda: jnp.zeros((601, 24)), lambda: jnp.concatenate([c[None], trajectory(c)])),
        c,
        [JOINTS],
    ),
    "in a loop": (
        lambda c: lax.fori_loop(0, 3, lambda _, s: s + jnp.concatenate([s[:1], trajectory(s[0])]), jnp.ones((601, 24))),
        c,
        [JOINTS],
    ),
    "integers": (
        lambda c: jnp.concatenate([c[None], lax.scan(lambda c, _: (3 * c + 1,) * 2, c, None, length=600)[1]]),
        jnp.arange(24),
        [JOINTS],
    ),
    "half of it": (
        lambda c: jnp.concatenate([c[None], trajectory(c)]).astype("float32"),
        normal(1, 48).astype("bfloat16"),
        [JOINTS],
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_are_where_they_lie(name: str) -> None:
    """Bit for bit what plain JAX gives, and the gradient of it, taken around the optimised program and inside."""
    f, arg, want = ENDS[name]
    assert fired(f, arg) == want
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(arg), jax.jit(f)(arg))
    if arg.dtype != "float32":
        return

    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: jnp.sum(jnp.sin(f(x)))

    plain = jax.jit(jax.grad(total(f)))(arg)
    for gradient in (
        jax.grad(total(ag.optimize(f))),
        jax.grad(jax.jit(ag.optimize(total(f)))),
        ag.optimize(jax.grad(total(f))),
    ):
        np.testing.assert_allclose(jax.jit(gradient)(arg), plain, rtol=1e-4, atol=1e-4)


LEFT: dict[str, tuple[Callable[..., Any], Any]] = {
    "states that are wanted by themselves": (
        lambda c: (lambda ys: (ys, jnp.concatenate([c[None], ys])))(trajectory(c)),
        c,
    ),
    "joined along another axis": (lambda c: jnp.concatenate([jnp.ones((600, 2)), trajectory(c)], 1), c),
    "joined twice": (lambda c: (lambda ys: jnp.concatenate([ys, ys]))(trajectory(c)), c),
    "few bytes": (lambda c: jnp.concatenate([c[None], trajectory(c)]), c[:3]),
    "every second entry": (lambda x: lax.scan(lambda c, v: (c + jnp.sin(v), None), x[0], x[1::2])[0], x),
    "a part of each entry": (lambda x: lax.scan(lambda c, v: (c + jnp.sin(v), None), x[0, 1:], x[:, 1:])[0], x),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    """What is no window, and what is needed as an array of its own."""
    f, arg = LEFT[name]
    assert not fired(f, arg)


def test_two_loops_in_one_array() -> None:
    """One of them writes there, what the other gives is copied; nothing is lost."""

    def f(c: Any) -> Any:
        return jnp.concatenate([trajectory(c), -trajectory(2 * c), c[None]])

    def g(c: Any) -> Any:
        return jnp.concatenate([trajectory(c), trajectory(2 * c), c[None]])

    for h in (f, g):
        np.testing.assert_array_equal(jax.jit(ag.optimize(h))(c), jax.jit(h)(c))


def temporary(f: Any, *args: Any) -> int:
    """Bytes that a program takes besides what it is given and gives."""
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("width", "steps", "reason"), [(24, 6000, "XLA makes one of them by itself"), (96, 1500, "576 kB")]
)
def test_no_copy_is_kept(width: int, steps: int, reason: str) -> None:
    """The trajectory exists once: as the result, and not in a kernel's own copy either."""
    c = normal(1, width)

    def f(c: Any) -> Any:
        return jnp.concatenate([c[None], lax.scan(lambda c, _: (0.5 * jnp.sin(c),) * 2, c, None, length=steps)[1]])

    assert temporary(ag.optimize(f), c) < 30_000 < steps * c.nbytes <= temporary(f, c)
    (refused,) = [d for d in ag.explain(f)(c).decisions if d.rule == "loop-kernel"]
    assert not refused.fired
    assert reason in refused.reason


@pytest.mark.parametrize(("width", "is_kernel"), [(32, True), (2000, False)])
def test_a_loop_that_becomes_one_kernel_is_left_to_that(width: int, is_kernel: bool) -> None:
    """One kernel takes a fraction of what many take that read and write in place, though it has copies."""
    mix, x = jnp.eye(width) * 0.5, jnp.abs(normal(2, 500, width))

    def f(x: Any) -> Any:
        def step(c: Any, v: Any) -> tuple[Any, Any]:
            c = jnp.tanh((c @ mix if is_kernel else c) + v) * v
            return c / c.sum(), (c, c.sum())

        _, (ys, sums) = lax.scan(step, x[0], x[1:])
        return jnp.concatenate([x[:1], ys]), sums

    rules = {d.rule for d in ag.explain(f)(x).fired}
    assert ("loop-kernel" in rules) == is_kernel
    assert ("loop-ends" in rules) != is_kernel
    for got, want in zip(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def moving(order: int, start: Callable[[Any], Any] = lambda x: x, dtype: str = "float32") -> Callable[[Any], Any]:
    """What every row of a buffer is made of: those before it, and one of `x`; the first ones are `start(x)`."""

    def f(x: Any) -> Any:
        x = x.astype(dtype)
        filled = jnp.zeros_like(x).at[:order].set(start(x)[:order])

        def step(t: Any, rows: Any) -> Any:
            before = [rows[t - k - 1] for k in range(order)]
            return rows.at[t].set(sum((v // 3 if dtype == "int32" else v / 4 for v in before), start=x[t]))

        return lax.fori_loop(order, x.shape[0], step, filled)

    return f


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("width", [12, 24])
def test_a_buffer_with_a_start_is_written_where_it_is(order: int, width: int, dtype: str) -> None:
    """A buffer that was filled before its loop has its rows written into it: there is no other one."""
    x, f = normal(3, 801, width) * 9, moving(order, dtype=dtype)
    assert fired(f, x) or x.astype(dtype).nbytes < LEAST_BYTES
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(x), jax.jit(f)(x))
    if width == 12 and dtype == "float32":
        assert temporary(ag.optimize(f), x) < x.nbytes / 2  # its copy was once a temporary, and one kernel had another


def test_a_start_that_is_read_elsewhere_is_kept() -> None:
    """What others read of a buffer is what it was before the loop; the caller's array is not written into either."""

    def read(x: Any) -> Any:
        filled = jnp.zeros_like(x).at[:2].set(x[:2])
        ys = lax.scan(lambda c, v: (0.9 * c + v,) * 2, filled[1], filled[2:] + x[2:])[1]
        return jnp.concatenate([filled[:2], ys]), filled, filled.sum(0)

    def given(x: Any) -> Any:
        return jnp.concatenate([x[:1], smoothed(x)]), x[0]

    def elsewhere(x: Any) -> Any:  # a part of the buffer, in another place
        y = 2.0 * x
        return jnp.concatenate([y[1:2], lax.scan(lambda c, v: (0.9 * c + v,) * 2, x[0], x[1:])[1]]), y[5]

    def within(x: Any) -> Any:  # the loop reads what it would write over
        y = jnp.sin(x)
        return jnp.concatenate([y[:1], lax.scan(lambda c, v: (0.9 * c + v,) * 2, x[0], y[1:], reverse=True)[1]])

    for f in (read, given, elsewhere, within):
        assert fired(f, x)
        jax.tree.map(np.testing.assert_array_equal, jax.jit(ag.optimize(f))(x), jax.jit(f)(x))


@given(
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    steps=st.integers(300, 340),
    reverse=st.booleans(),
    dtype=st.sampled_from(("float32", "int32", "complex64", "bool", "bfloat16")),
)
def test_any_place(before: int, after: int, steps: int, reverse: bool, dtype: str) -> None:
    """Any parts before and after, any type, both directions."""
    values = jnp.asarray(np.random.default_rng(steps).integers(0, 2, (steps + before + after, 120)), dtype)

    def f(v: Any) -> Any:
        window = v[before : before + steps]
        _, ys = lax.scan(lambda c, x: (x, c ^ x if dtype == "bool" else c + x), v[0], window, reverse=reverse)
        return jnp.concatenate([v[:before], ys, v[before + steps :]])

    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(values), jax.jit(f)(values))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_the_index_is_counted(dtype: str, reverse: bool) -> None:
    """No step of several kernels reads its index from an array: each kernel would do so at every entry of a window."""

    def f(x: Any) -> Any:
        def step(c: Any, v: Any) -> Any:
            c = c + (2 * v - jnp.roll(v, 1))
            return c, c

        return jnp.concatenate([x[:1], lax.scan(step, x[0], x[1:], reverse=reverse)[1]])

    values = (10 * normal(0, 65, 20_000)).astype(dtype)
    assert fired(f, values) == [WINDOWS, JOINTS]
    (loop,) = (e for e in jax.make_jaxpr(ag.optimize(f))(values).eqns if e.primitive.name == "scan")
    rows = loop.invars[sum(_jax.scan_counts(loop.params)) :]
    assert [row.aval.shape for row in rows] == []
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(values), jax.jit(f)(values))
