"""Reroll leaves steps that compute much of what all read, and rows that are parts of the kernel that reads them."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.loop import Loop
from aerogel.compiler.passes.reroll import NAME, Reroll
from compiler.programs_of import scans, traced
from rules.rules_under_test import normal

N = 20
C = jnp.linspace(0.1, 1.0, N)
SHORT, LONG = normal(0, 700), normal(0, 40_000)


def each(one: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A list of what `one` makes of an array and one of the numbers."""
    return lambda x, c: jnp.stack([one(x, c[k]) for k in range(N)])


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Of a function of its result, by both arguments."""
    return jax.grad(lambda x, c: jnp.sum(jnp.sin(f(x, c))), (0, 1))


def loops(f: Callable[..., Any], *args: Any) -> int:
    """How many loops reroll by itself makes."""
    return len(scans(traced(ag.optimize(f, passes=(Reroll(),)), *args)))


def agrees(f: Callable[..., Any], *args: Any) -> None:
    """With all passes, with what plain JAX computes."""
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(jnp.abs(want).max() + 1))


NUMBERS = {
    "a kernel": each(lambda x, c: jnp.exp(-((x - c) ** 2)).mean()),
    "a threshold": each(lambda x, c: jax.nn.sigmoid(9 * (x - c)).mean()),
    "a maximum": each(lambda x, c: jnp.maximum(x - c, 0.0).sum()),
    "logsumexp": each(lambda x, c: jax.nn.logsumexp(x * c)),
    "a product of both": each(lambda x, c: jnp.dot(x - c, x * c) / x.size),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_much_of_what_all_read_stays(name: str) -> None:
    """A gradient of 10,000 entries took 1.2 to 1.6 times as long in loops, of 100,000 up to 3; of few 0.2 to 0.3."""
    f = NUMBERS[name]
    assert loops(f, LONG, C) == loops(gradient(f), LONG, C) == 0
    assert loops(f, SHORT, C) == 1
    assert loops(gradient(f), SHORT, C) > 0
    for x in (SHORT, LONG):
        agrees(gradient(f), x, C)


SCALED = {
    "weights": each(lambda x, c: jnp.sum(x * jnp.cos(x) * c)),
    "a polynomial": each(lambda x, c: jnp.mean(x**2 * c + x * c**2)),
    "a quotient": each(lambda x, c: jnp.sum(x / c - x * c)),
}


@pytest.mark.parametrize("name", SCALED)
def test_what_is_one_contraction_is_rolled_up(name: str) -> None:
    """Numbers come out of the sums: 0.03 to 0.1 of the time is left."""
    f = SCALED[name]
    assert loops(f, LONG, C) == 1
    agrees(f, LONG, C)


def test_rows_of_few_coordinates() -> None:
    """What a step reads at its own place may be a row, or a small matrix; not one as large as what is made of it."""
    x, rows = normal(0, 10_000, 4), normal(1, N, 4)
    f = lambda x, c: jnp.stack([jnp.exp(-((x - c[k]) ** 2).sum(-1)).mean() for k in range(N)])  # noqa: E731
    assert loops(f, x, rows) == 0
    matrices = lambda x, w: jnp.stack([jnp.tanh(x @ w[k]).mean() for k in range(N)])  # noqa: E731
    assert loops(matrices, x, normal(1, N, 4, 4)) == 0
    large = lambda x, w: jnp.stack([jnp.tanh(x * w[k]).mean() for k in range(N)])  # noqa: E731
    assert loops(large, LONG, normal(1, N, 40_000)) == 1
    results = lambda x, w: [x @ w[k] for k in range(N)]  # noqa: E731  # 3.3 times as long in a loop, and copied
    assert loops(results, x, normal(1, N, 4, 4)) == 0
    agrees(results, x, normal(1, N, 4, 4))


def windows(x: Any, _: Any) -> list[Any]:
    """Windows that lie over each other."""
    return [x[k : x.size - N + k] for k in range(N)]


ROWS: dict[str, Callable[..., list[Any]]] = {
    "windows": windows,
    "functions of a number": lambda x, c: [jnp.exp(x * c[k]) for k in range(N)],
    "distances": lambda x, c: [jnp.abs(x - c[k]) for k in range(N)],
}
JOINED: dict[str, Callable[[list[Any]], Any]] = {
    "summed": lambda rows: jnp.stack(rows).sum(0),
    "the least": lambda rows: jnp.min(jnp.stack(rows, 1), 1),
    "one by one": lambda rows: reduce(jnp.minimum, rows),
}


@pytest.mark.parametrize("x", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("how", JOINED)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_that_are_parts_of_what_reads_them_stay(rows: str, how: str, x: Any) -> None:
    """One kernel with nothing in memory: in loops 1.3 to 10 times as long, with all rows in memory."""
    f = lambda x, c: JOINED[how](ROWS[rows](x, c))  # noqa: E731
    program = traced(ag.optimize(f), x, C)
    assert not scans(program)
    refused = [d.reason for d in ag.explain(f)(x, C).refused if d.rule == NAME]
    assert any("part of the kernel that reads it" in reason for reason in refused)
    agrees(f, x, C)


def test_rows_that_are_kept_are_still_a_loop() -> None:
    """An array of all of them exists with and without a loop; half the time of few entries, and of many."""
    f = lambda x, c: jnp.stack([jnp.tanh(x * c[k]) for k in range(N)])  # noqa: E731
    assert loops(f, SHORT, C) == loops(f, LONG, C) == 1


def test_what_falls_is_read_backwards() -> None:
    """A derivative's loop runs from the last step to the first, and nothing is turned round before it."""
    f = jax.grad(lambda x: jnp.sum(jnp.sin(NUMBERS["a kernel"](x, C))))
    program = traced(ag.optimize(f, passes=(Reroll(),)), SHORT)
    assert any(eqn.params["reverse"] for eqn in scans(program))
    assert not any(eqn.primitive.name == "rev" for eqn in program.jaxpr.eqns)


def test_steps_begin_where_they_hand_on_least() -> None:
    """What the next step could make itself it makes itself: only the gradient's sum is carried."""
    for f in SCALED.values():
        for eqn in scans(traced(ag.optimize(gradient(f), passes=(Reroll(),)), LONG, C)):
            assert sum(x.aval.shape == LONG.shape for x in Loop(eqn).init) <= 1
