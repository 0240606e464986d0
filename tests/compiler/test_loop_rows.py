"""Carries with short rows, or of an odd number of entries, are long rows in a loop, with the same numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler.kernels import long_rows
from aerogel.compiler.loops.loop_rows import Rows
from aerogel.compiler.passes.loop_rows import LoopRows
from aerogel.compiler.passes.short_rows import ShortRows
from aerogel.compiler.program import inner_jaxprs

ODD = 99_999  # = 3 * 3 * 41 * 271: 123 rows of 813
PRIME = 100_003
T = 9


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine the tests run on: XLA makes two parts of large arrays."""
    monkeypatch.setattr(long_rows, "_cpus", lambda: 2)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The function with this pass alone."""
    on_report = [].append if reports is None else reports.append
    return ag.optimize(f, passes=(LoopRows(),), rules=(), on_report=on_report, **options)


def report_of(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What the pass did."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports, **options))(*args)
    return reports[-1]


def shapes_in_loops(f: Callable[..., Any], *args: Any) -> set[tuple[int, ...]]:
    """The shapes that the steps of loops compute, wherever the loops stand."""
    found: set[tuple[int, ...]] = set()

    def walk(jaxpr: Any, inside: bool) -> None:
        for eqn in jaxpr.eqns:
            if inside and eqn.primitive.name != "reshape":
                found.update(v.aval.shape for v in eqn.outvars)
            for inner in inner_jaxprs(eqn):
                walk(inner, inside or eqn.primitive.name in ("scan", "while"))

    walk(jax.make_jaxpr(f)(*args).jaxpr, False)
    return found


def assert_same(f: Callable[..., Any], *args: Any, tolerance: float = 1e-6) -> None:
    """Types, weak ones too, and values of the results are those of the function."""
    got, want = jax.jit(optimised(f))(*args), jax.jit(f)(*args)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=tolerance, atol=tolerance)


def logistic(c: Any, r: Any = 3.7) -> Any:
    """One step of a map that stays between 0 and 1."""
    return r * c * (1 - c)


def steps(x: Any, length: int = T) -> Any:
    """A carry, and nothing else."""
    return lax.scan(lambda c, _: (logistic(c), None), x, None, length=length)[0]


def stacked(x: Any, ks: Any) -> Any:
    """A carry, inputs of the steps and outputs."""
    return lax.scan(lambda c, k: (logistic(c) + 0.01 * k, jnp.tanh(c)), x, ks)


def until(x: Any) -> Any:
    """A loop that looks at its carry to end."""
    return lax.while_loop(lambda s: (s[0] < 20) & (jnp.max(s[1]) > 0.3), lambda s: (s[0] + 1, 0.9 * s[1]), (0, x))


def extremes(x: Any) -> Any:
    """Largest and smallest entries on the way, and whether one is small."""

    def step(c: Any, _: Any) -> Any:
        c = logistic(c)
        return c, (jnp.max(c), jnp.min(c), jnp.any(c < 0.1))

    return lax.scan(step, x, None, length=T)


def drawn(key: Any, shape: tuple[int, ...]) -> Any:
    """Numbers between 0 and 1."""
    return jnp.asarray(jax.random.bits(key, shape), np.float32) / 2.0**32


def walks(x: Any, key: Any) -> Any:
    """Random numbers in each step."""
    return lax.scan(lambda c, k: (0.5 * c + drawn(k, c.shape), None), x, jax.random.split(key, T))[0]


def unit(*shape: int) -> Any:
    """Numbers between 0 and 1."""
    return np.random.default_rng(7).uniform(0.05, 0.95, shape).astype(np.float32)


FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, int]]] = {
    "short rows": (steps, (unit(1024, 28),), (1, 28672)),
    "an odd number": (steps, (unit(ODD),), (123, 813)),
    "an odd number of pairs": (steps, (unit(50_001, 2),), (1, 100_002)),
    "one row of them": (steps, (unit(1, ODD),), (123, 813)),
    "a prime number": (steps, (unit(PRIME),), (98, 1024)),
    "reverse": (
        lambda x: lax.scan(lambda c, _: (logistic(c), None), x, None, T, reverse=True)[0],
        (unit(ODD),),
        (123, 813),
    ),
    "inputs and outputs": (stacked, (unit(ODD), unit(T, ODD)), (123, 813)),
    "inputs that are numbers": (stacked, (unit(ODD), unit(T)), (123, 813)),
    "a constant": (
        lambda x, r: lax.scan(lambda c, _: (logistic(c, r), None), x, None, T)[0],
        (unit(ODD), 3 + unit(ODD)),
        (123, 813),
    ),
    "an output alone": (
        lambda x: lax.scan(lambda c, k: (c, x * k), 0.0, jnp.arange(1.0 * T))[1],
        (unit(ODD),),
        (123, 813),
    ),
    "a while": (until, (unit(ODD),), (123, 813)),
    "a while that carries whether it goes on": (
        lambda x: lax.while_loop(lambda s: s[0], lambda s: (jnp.max(s[1]) > 0.3, 0.9 * s[1]), (True, x)),
        (unit(ODD),),
        (123, 813),
    ),
    "two shapes": (
        lambda x, y: lax.scan(lambda c, _: ((logistic(c[0]), logistic(c[1])), None), (x, y), None, T)[0],
        (unit(ODD), unit(1024, 28)),
        (1, 28672),
    ),
    "a carry that is stacked as it is": (
        lambda x: lax.scan(lambda c, _: (logistic(c), c), x, None, T),
        (unit(ODD),),
        (123, 813),
    ),
    "what was carried before": (
        lambda x: lax.scan(lambda c, _: ((logistic(c[0]) - 0.01 * c[2], c[0], c[1]), None), (x, x, x), None, T)[0],
        (unit(ODD),),
        (123, 813),
    ),
    "a counted loop": (
        lambda x, n: lax.fori_loop(0, n, lambda i, c: logistic(c) + 0 * i, x),
        (unit(ODD), 5),
        (123, 813),
    ),
    "extremes": (extremes, (unit(ODD),), (123, 813)),
    "extremes of a prime number": (extremes, (unit(PRIME),), (98, 1024)),
    "a sum": (lambda x: lax.scan(lambda c, _: (logistic(c), jnp.sum(c)), x, None, T), (unit(ODD),), (123, 813)),
    "a mean that keeps its axis": (
        lambda x: lax.scan(lambda c, _: (logistic(c - jnp.mean(c, keepdims=True) + 0.5), None), x, None, T)[0],
        (unit(ODD),),
        (123, 813),
    ),
    "random numbers": (
        lambda x, key: lax.scan(lambda c, k: (c + jax.random.normal(k, c.shape), None), x, jax.random.split(key, T))[0],
        (unit(ODD), jax.random.key(0)),
        (123, 813),
    ),
    "random numbers of a prime number": (walks, (unit(PRIME), jax.random.key(0)), (98, 1024)),
    "a gradient": (jax.grad(lambda x: jnp.sum(steps(x))), (unit(ODD),), (123, 813)),
    "under vmap": (jax.vmap(lambda x: steps(x)), (unit(33_333, 3),), (123, 813)),
    "in a branch": (lambda x: lax.cond(x[0] > 0, steps, lambda x: x, x), (unit(ODD),), (123, 813)),
    "in a loop": (lambda x: lax.scan(lambda c, _: (jnp.sort(steps(c)), None), x, None, 2)[0], (unit(ODD),), (123, 813)),
    "half precision": (steps, (jnp.asarray(unit(3 * ODD), jnp.bfloat16),), (369, 813)),
    "integers": (lambda x: lax.fori_loop(0, T, lambda i, c: c * 3 + i, x), (np.arange(ODD),), (123, 813)),
    "a recurrent cell of 28": (
        lambda x, w: lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, T)[0],
        (unit(1024, 28), unit(28, 28)),
        (1, 28672),
    ),
    "a cell of 48 that does much": (
        lambda x, w: lax.scan(lambda h, _: (logistic(logistic(logistic(jnp.tanh(h @ w)))), None), x, None, T)[0],
        (unit(512, 48), unit(48, 48)),
        (1, 24576),
    ),
    "weak types": (
        lambda x: lax.scan(lambda c, _: (jnp.where(c > 0, 1.0, 2.0) * c, None), x, None, T)[0],
        (unit(ODD),),
        (123, 813),
    ),
}


# What is done there besides work on entries is done to arrays as they were.
SOME_STAY = ("in a loop", "a gradient", "random numbers")


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    """Wherever the loop stands and whatever else it hands on; types and results are the same."""
    f, args, rows = FIRES[name]
    assert report_of(f, *args).fired
    inside = shapes_in_loops(optimised(f), *args)
    assert rows in inside
    assert not any(long_rows.is_halved(shape, 4) for shape in inside) or name in SOME_STAY
    assert_same(f, *args, tolerance=1e-3 if "half" in name else 1e-5)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str | None]] = {
    "an even number": (steps, (unit(ODD + 1),), None),
    "few entries": (steps, (unit(999),), None),
    "an odd number of long rows": (steps, (unit(101, 1000),), None),
    "what is worked on nowhere": (lambda x: lax.fori_loop(0, T, lambda i, c: c[::-1], x), (unit(ODD),), None),
    "a row for all": (
        lambda x, row: lax.scan(lambda c, _: (0.5 * (logistic(c) + row), None), x, None, T)[0],
        (unit(1024, 28), unit(28)),
        "XLA computes it together with what is done to other shapes",
    ),
    "a recurrent cell of 48": (
        lambda x, w: lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, T)[0],
        (unit(512, 48), unit(48, 48)),
        "little is done to the entries beside a product",
    ),
    "shifts": (
        lambda x: lax.scan(lambda c, _: (logistic(c) + 0.1 * jnp.roll(c, 1), None), x, None, T)[0],
        (unit(ODD),),
        "XLA computes it together with what is done to other shapes",
    ),
    "branches": (
        lambda x: lax.fori_loop(0, T, lambda i, c: lax.cond(i > 2, logistic, jnp.tanh, c) * 0.9, x),
        (unit(ODD),),
        "XLA computes it together with what is done to other shapes",
    ),
    "the sum of a prime number": (
        lambda x: lax.scan(lambda c, _: (logistic(c), jnp.sum(c)), x, None, T),
        (unit(PRIME),),
        "its entries are not some long rows, and their sum is taken",
    ),
    "outputs of a prime number": (
        stacked,
        (unit(PRIME), unit(T)),
        "its entries are not some long rows, and what is stacked would be copied",
    ),
    "extremes of random numbers, a prime number of them": (
        lambda x, key: lax.scan(lambda c, k: (c + drawn(k, c.shape), jnp.max(c)), x, jax.random.split(key, T)),
        (unit(PRIME), jax.random.key(0)),
        "its entries are not some long rows, and those that fill them up would draw numbers of their own",
    ),
    "random numbers of another generator": (
        walks,
        (unit(PRIME), jax.random.key(0, impl="rbg")),
        "its entries are not some long rows, and are not only worked on one by one",
    ),
    "few steps of a prime number": (
        lambda x: steps(x, 7),
        (unit(PRIME),),
        "its entries are not some long rows, and few steps are not worth a copy",
    ),
    "a while of a prime number": (
        until,
        (unit(PRIME),),
        "its entries are not some long rows, and few steps are not worth a copy",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_leaves_alone(name: str) -> None:
    """With a reason where the shape is bad; the program is the same."""
    f, args, reason = LEFT[name]
    report = report_of(f, *args)
    assert not report.fired
    assert {one.reason for one in report.refused} == ({reason} if reason else set())
    assert_same(f, *args)


def test_numbers_that_fill_up_are_numbers_of_the_array() -> None:
    """No step computes what the program would not, but for random numbers; they are taken off again."""
    x = jnp.arange(1, PRIME + 1)
    filled = Rows((PRIME,), (98, 1024), "")
    rows = filled.to_rows(x)
    assert rows.shape == (98, 1024)
    assert set(np.asarray(rows).ravel()) == set(np.asarray(x))
    np.testing.assert_array_equal(filled.from_rows(rows), x)


def test_sums_keep_their_order_where_that_is_asked_for() -> None:
    """Under strict numerics a sum is taken of the array as it was, or the loop stays."""
    f = FIRES["a sum"][0]
    assert [one.exactness for one in report_of(f, unit(ODD)).fired] == ["reassociates"]
    assert [one.exactness for one in report_of(steps, unit(ODD)).fired] == ["bitwise"]
    assert not report_of(f, unit(ODD), numerics="strict").fired
    assert report_of(steps, unit(ODD), numerics="strict").fired


@pytest.mark.parametrize(("cpus", "acts"), [(1, False), (2, True), (4, True), (5, False), (64, False)])
def test_only_two_parts_are_unlike(monkeypatch: pytest.MonkeyPatch, cpus: int, acts: bool) -> None:
    """One CPU has the whole, more than four make three parts and more; short rows are short on any."""
    monkeypatch.setattr(long_rows, "_cpus", lambda: cpus)
    assert bool(report_of(steps, unit(ODD)).fired) == acts
    assert report_of(steps, unit(1024, 28)).fired


def test_work_outside_of_loops_is_done_to_long_rows() -> None:
    """In a branch, as that on short rows is; a mask of booleans, which alone would be small, is part of it."""

    def f(x: Any) -> Any:
        return jnp.where((x > 0.2) & (x < 0.8), jnp.tanh(x), 0.0) / (x - jnp.mean(x, keepdims=True) + 2)

    reports: list[Any] = []
    g = ag.optimize(f, passes=(ShortRows(),), rules=(), on_report=reports.append)
    x = unit(ODD)
    eqns = jax.make_jaxpr(g)(x).jaxpr.eqns
    branches = [eqn for eqn in eqns if eqn.primitive.name == "cond"]
    assert {v.aval.shape for eqn in branches for v in eqn.outvars} == {(123, 813), ()}
    assert {one.what for one in reports[-1].fired} == {"work on 99,999 entries is done to long rows"}
    assert not reports[-1].refused
    np.testing.assert_allclose(jax.jit(g)(x), f(x), rtol=1e-5, atol=1e-6)
    assert ag.optimize(f, passes=(ShortRows(),), rules=(), on_report=reports.append)(unit(PRIME)) is not None
    assert "entries are not some long rows, and sums of whole arrays are fast" in reports[-1].refused[0].reason


def test_derivatives() -> None:
    """The pass works on what differentiation makes, and is differentiated as what it replaces."""
    x, args = unit(ODD), (unit(ODD),)
    for g in (
        jax.grad(lambda x: jnp.sum(jnp.sin(optimised(steps)(x)))),
        jax.grad(optimised(lambda x: jnp.sum(jnp.sin(steps(x))))),
    ):
        np.testing.assert_allclose(g(x), jax.grad(lambda x: jnp.sum(jnp.sin(steps(x))))(x), rtol=1e-4, atol=1e-4)
    got = jax.jvp(optimised(steps), args, args)
    for a, b in zip(got, jax.jvp(steps, args, args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(
    st.sampled_from([(1024, 28), (ODD,), (33_333, 3), (PRIME,)]),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7),
)
def test_any_step_keeps_its_meaning(shape: tuple[int, ...], kinds: list[tuple[int, int, int]]) -> None:
    """Steps drawn from work on entries, reductions, shifts and sorts give the same numbers."""

    def step(carry: Any, k: Any) -> Any:
        values = list(carry)
        for kind, i, j in kinds:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(
                (
                    lambda a, b: 0.5 * a + 0.25 * b,
                    lambda a, b: jnp.where(a > b, a, 0.25 * k),
                    lambda a, b: a - jnp.sum(b) / b.size,
                    lambda a, b: jnp.minimum(a, jnp.max(b)),
                    lambda a, b: jnp.tanh(a) * b,
                    lambda a, b: a[::-1],
                    lambda a, b: lax.sort(a),
                    lambda a, b: jnp.full_like(a, 0.5) + b,
                    lambda a, b: jnp.asarray((a > 0.3) & (b < 0.6), a.dtype),
                )[kind](a, b)
            )
        return (values[-1], values[len(values) // 2]), (values[-1] * 2, jnp.max(values[-2]))

    def f(x: Any, y: Any) -> Any:
        return lax.scan(step, (x, y), jnp.arange(3.0))

    assert_same(f, unit(*shape), 1 - unit(*shape), tolerance=1e-4)
