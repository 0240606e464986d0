"""Gradients of lists of slices: windows that steps add up in places of their own are stacked, and added at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel.compiler.loop import Loop
from aerogel.compiler.passes import reroll
from aerogel.compiler.passes.reroll import Reroll
from aerogel.compiler.rolled import rolled_steps
from aerogel.compiler.rolled.strips import Strip, strip_of
from compiler.programs_of import scans, traced
from rules.rules_under_test import normal


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of few steps, which compile fast."""
    monkeypatch.setattr(reroll, "FEWEST", 5)
    monkeypatch.setattr(reroll, "FEWEST_PRODUCTS", 7)
    monkeypatch.setattr(rolled_steps, "FEWEST_NUMBERS", 5)


X = normal(0, 24, 6)
W = normal(1, 6, 6) / 3


@st.composite
def strips(draw: Any) -> tuple[Strip, tuple[int, ...]]:
    """Windows along one dimension of an array, and its shape."""
    rank = draw(st.integers(1, 3))
    sizes = tuple(draw(st.integers(1, 7)) for _ in range(rank))
    dim, count, move = draw(st.integers(0, rank - 1)), draw(st.integers(1, 6)), draw(st.integers(1, 9))
    start = tuple(draw(st.integers(0, 3)) for _ in range(rank))
    covered = [a + n for a, n in zip(start, sizes, strict=True)]
    covered[dim] += (count - 1) * move
    shape = tuple(n + draw(st.integers(0, 3)) for n in covered)
    return Strip(count, start, sizes, dim, move), shape


@given(strips())
def test_windows_are_those_of_the_array(drawn: tuple[Strip, tuple[int, ...]]) -> None:
    """As slices, one by one; and added up they are the sum of paddings."""
    strip, shape = drawn
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    places = [
        tuple(slice(a + k * strip.move * (d == strip.dim), a + k * strip.move * (d == strip.dim) + n)
              for d, (a, n) in enumerate(zip(strip.start, strip.sizes, strict=True)))
        for k in range(strip.count)
    ]  # fmt: skip
    windows = np.stack([x[place] for place in places])
    np.testing.assert_array_equal(strip.of(jnp.asarray(x)), windows)
    want = np.zeros_like(x)
    for place, window in zip(places, windows, strict=True):
        want[place] += window
    np.testing.assert_array_equal(strip.added(jnp.asarray(windows), shape), want)


def test_windows_that_move_along_two_dimensions_are_no_strip() -> None:
    """Nor are those that do not move."""
    assert strip_of((0, 0), (1, 1), (2, 2), 4) is None
    assert strip_of((0, 0), (0, 0), (2, 2), 4) is None
    assert strip_of((9, 1), (-3, 0), (2, 2), 4) == Strip(4, (0, 1), (2, 2), 0, 3)


def f(row: Any) -> Any:
    """Of a row."""
    return jnp.sum(jnp.tanh(row) * row)


SUMS = {
    "rows": lambda x: sum(f(x[i]) for i in range(24)),
    "rows from the last": lambda x: sum(f(x[23 - i]) for i in range(24)),
    "every other row": lambda x: sum(f(x[2 * i]) for i in range(12)),
    "squares of rows": lambda x: sum(jnp.dot(x[i], x[i]) for i in range(24)),
    "columns": lambda x: sum(f(x[:, i]) for i in range(6)),
    "entries": lambda x: sum(jnp.sin(x[i, 2]) for i in range(24)),
    "entries and the next": lambda x: sum((x[i + 1, 0] - x[i, 0] ** 2) ** 2 for i in range(23)),
    "stacked rows": lambda x: jnp.sin(jnp.stack([jax.nn.softmax(x[i]) for i in range(24)])),
    "stacked rows from the last": lambda x: jnp.sin(jnp.stack([jnp.cumsum(x[23 - i]) for i in range(24)])),
    "stacked columns": lambda x: jnp.sin(jnp.stack([jnp.tanh(x[:, i]) for i in range(6)], 1)),
    "rows and weights": lambda x: sum(jnp.sum(jnp.tanh(jnp.cumsum(W, 1) @ x[i])) for i in range(24)),
    "side by side": lambda x: jnp.sin(jnp.stack([f(x[3 * i : 3 * i + 3]) for i in range(8)])),
    "with gaps": lambda x: jnp.sin(jnp.stack([f(x[4 * i + 1 : 4 * i + 3]) for i in range(5)])),
    "halves over each other": lambda x: jnp.sin(jnp.stack([f(x[2 * i : 2 * i + 4]) for i in range(11)])),
    "many over each other": lambda x: jnp.sin(jnp.stack([f(x[i : i + 6]) for i in range(19)])),
    "parts of rows": lambda x: jnp.sin(jnp.stack([f(x[i, 1:4]) for i in range(24)])),
    "rows twice": lambda x: sum(f(x[i]) * f(jnp.cumsum(x[i])) for i in range(24)),
    "rows, and all of them": lambda x: sum(f(x[i]) for i in range(24)) + jnp.sum(x**3),
    "neighbours": lambda x: sum(jnp.sum((x[i + 1] - x[i]) ** 2) for i in range(23)),
    "of a batch": lambda x: jax.vmap(lambda y: sum(f(y[i]) for i in range(6)))(x.reshape(4, 6, 6)),
}


def loss(name: str) -> Any:
    """Sum of what a program gives."""
    return lambda x: jnp.sum(SUMS[name](x))


@pytest.mark.parametrize("name", SUMS)
def test_gradients_are_what_they_were(name: str) -> None:
    """Found unrolled in the program that JAX made, they are loops, and agree."""
    gradient, reports = jax.value_and_grad(loss(name)), list[Any]()
    after = ag.optimize(gradient, passes=(Reroll(),), on_report=reports.append)
    got, want = jax.jit(after)(X), jax.jit(gradient)(X)
    assert len([d for d in reports[0].fired if d.rule == "reroll"]) == 2
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, 2e-5, 1e-5)


@pytest.mark.parametrize("name", sorted(SUMS.keys() - {"many over each other"}))
def test_no_loop_carries_the_gradient(name: str) -> None:
    """Nothing goes over all of the array in every step."""
    loops = [Loop(eqn) for eqn in scans(traced(ag.optimize(jax.grad(loss(name)), passes=(Reroll(),)), X))]
    assert loops
    assert not [v for loop in loops for v in loop.body_carry if v.aval.size == X.size]


@pytest.mark.parametrize("name", SUMS)
def test_all_passes_agree(name: str) -> None:
    """Values, gradients, and gradients of a batch."""
    gradient = jax.value_and_grad(loss(name))
    batch = jnp.stack([X, 2 * X])
    for program, x in ((gradient, X), (jax.vmap(gradient), batch)):
        for a, b in zip(jax.jit(ag.optimize(program))(x), jax.jit(program)(x), strict=True):
            np.testing.assert_allclose(a, b, 5e-5, 2e-5)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(jax.grad(ag.optimize(loss(name)))))(batch), jax.vmap(gradient)(batch)[1], 5e-5, 2e-5
    )


@given(st.data())
def test_drawn_windows(data: Any) -> None:
    """Of whatever sizes and distances, read in whichever direction, once or twice."""
    count, size, move = data.draw(st.integers(6, 9)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    start, end, dim = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    falls, twice, stacks = (data.draw(st.booleans()) for _ in range(3))
    n = start + (count - 1) * move + size + end
    x = np.moveaxis(np.random.default_rng(0).integers(-9, 9, (n, 3)).astype("float32"), 0, dim)

    def loss(x: Any) -> Any:
        places = [start + i * move for i in range(count)]
        windows = [jax.lax.slice_in_dim(x, p, p + size, axis=dim) for p in (places[::-1] if falls else places)]
        terms = [jnp.sum(w * w * (w if twice else 1.0)) for w in windows]
        return jnp.sum(jnp.stack(terms) ** 2) if stacks else sum(terms)

    want = jax.grad(loss)(x)
    np.testing.assert_array_equal(jax.jit(ag.optimize(jax.grad(loss), passes=(Reroll(),)))(x), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_types_survive(dtype: str) -> None:
    """A sum of windows has the type of its terms."""
    x = X.astype(dtype)
    gradient = lambda x: jax.vjp(lambda x: jnp.stack([jnp.prod(x[i]) for i in range(24)]), x)[1](x[:, 0])  # noqa: E731
    program = traced(ag.optimize(gradient, passes=(Reroll(),)), x)
    assert [v.aval for v in program.jaxpr.outvars] == [v.aval for v in traced(gradient, x).jaxpr.outvars]
    np.testing.assert_allclose(
        *(np.asarray(jax.jit(g)(x)[0], "complex64") for g in (ag.optimize(gradient), gradient)), 0.05, 0.05
    )


def test_sums_of_paddings_of_integers() -> None:
    """Added up by the program itself."""

    def spread(x: Any) -> Any:
        return sum(jnp.pad(x[i] * i, (3 * i, 21 - 3 * i)) for i in range(8))

    x = jnp.arange(24, dtype=jnp.int32).reshape(8, 3)
    program = ag.optimize(spread, passes=(Reroll(),))
    assert scans(traced(program, x))
    np.testing.assert_array_equal(jax.jit(program)(x), spread(x))


def test_numbers_that_are_none_stay_where_they_are() -> None:
    """What is infinite or no number in one window does not reach another."""
    x = X.at[3, 2].set(jnp.inf).at[20, 0].set(jnp.nan)
    for name in ("rows", "halves over each other", "stacked rows"):
        want = jax.jit(jax.grad(loss(name)))(x)
        np.testing.assert_allclose(jax.jit(ag.optimize(jax.grad(loss(name))))(x), want, 2e-5, 1e-5)


def test_a_sum_that_is_read_before_its_end_is_carried() -> None:
    """Somebody wants to know it after some of the steps."""

    def spread(x: Any) -> Any:
        y, seen = jnp.zeros(24), []
        for i in range(8):
            y = y + jnp.pad(jnp.cumsum(x[i]), (3 * i, 21 - 3 * i))
            seen.append(jnp.max(y))
        return y, jnp.stack(seen)

    x = normal(0, 8, 3)
    for a, b in zip(jax.jit(ag.optimize(spread, passes=(Reroll(),)))(x), jax.jit(spread)(x), strict=True):
        np.testing.assert_allclose(a, b, 1e-6)


@pytest.mark.parametrize("zeros", [{3}, {0, 1}, {0, 4, 7}, set(range(1, 8))], ids=str)
def test_zeros_that_begin_no_sum(zeros: set[int]) -> None:
    """Some steps add zero, others what they read."""
    g = lambda x: jnp.stack([jnp.cumsum(x[i] + (jnp.float32(0) if i in zeros else x[i, 0])) for i in range(8)])  # noqa: E731
    h = lambda x: jnp.stack([jnp.sum(x[i]) + (0.0 if i in zeros else x[i, 0]) for i in range(8)])  # noqa: E731
    for program in (g, h):
        np.testing.assert_allclose(jax.jit(ag.optimize(program, passes=(Reroll(),)))(X), program(X), 1e-5, 1e-5)
