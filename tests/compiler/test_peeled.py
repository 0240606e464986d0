"""An odd number of entries that are no long rows: the last one is worked on by itself, with the same numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler.cost.machine import of_processor, table
from aerogel.compiler.kernels import left_over, long_rows
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes.short_rows import ShortRows
from aerogel.compiler.short_axes import short_rows
from compiler.loop_patterns import normal
from compiler.programs_of import traced

IF_SCALAR = short_rows.if_scalar  # the fixture takes it away
EVEN, PRIME = 65_540, 65_543  # with `two_cpus`: of 99, 65,539 is a prime, too
X, P, Q = normal(0, EVEN), normal(1, PRIME), normal(2, PRIME)
X[-1] = 200.0  # so that a sum without the last entry shows


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads, and vectors that mask nothing, whatever the machine has."""
    monkeypatch.setattr(long_rows, "_cpus", lambda: 2)
    monkeypatch.setattr(short_rows, "if_scalar", lambda rows: rows)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The function with this pass alone."""
    on_report = [].append if reports is None else reports.append
    return ag.optimize(f, passes=(ShortRows(),), rules=(), on_report=on_report, **options)


def peeled(f: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """What the pass did by working on the last entry by itself."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports, **options))(*args)
    return [d.what for d in reports[-1].fired if "by itself" in d.what]


def assert_same(f: Callable[..., Any], *args: Any, tolerance: float = 1e-5) -> None:
    """Types, weak ones too, and values of the results are those of the function."""
    got, want = optimised(f)(*args), f(*args)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, jax.tree.map(jnp.asarray, want))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(*(np.asarray(z).astype(float) for z in (a, b)), rtol=tolerance, atol=tolerance)


FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "differences": (jnp.diff, (X,)),
    "differences of every other": (lambda x: x[2:-1] * x[1:-2] - x[:-3], (X,)),
    "total variation": (lambda x: jnp.sum(jnp.abs(x[1:] - x[:-1])), (X,)),
    "trapezoids": (lambda y, x: jnp.trapezoid(y, x), (X, jnp.linspace(0, 1, EVEN))),
    "a likelihood of an autoregression": (lambda x, a: jnp.sum((x[1:] - a * x[:-1]) ** 2) / 2, (X, np.float32(0.5))),
    "a prime number": (lambda x, y: x * jax.nn.sigmoid(y), (P, Q)),
    "several results": (lambda x, y: (x * y, x > y, (2 * x).astype(jnp.int32)), (P, Q)),
    "an axis of one": (lambda x: jnp.exp(x) / 2, (P[None],)),
    "points": (lambda x: jnp.tanh(x[1:] - x[:-1]), (normal(4, 21_848, 3),)),
    "integers": (lambda x: x[1:] // 2 - x[:-1], ((8 * X).astype(np.int32),)),
    "weak types": (lambda x: jnp.where(x > 0, 1.0, 2.0), (P,)),
    "numbers in a row": (lambda x: x * jnp.arange(PRIME, dtype=jnp.float32), (P,)),
    "under vmap": (jax.vmap(lambda a, b: jnp.sin(a) * b), (P, Q)),
    "random numbers": (lambda x: x[1:] * jax.random.normal(jax.random.key(0), (EVEN - 1,)), (X,)),
    "a sum and the entries": (lambda x: (lambda d: (d * 2, jnp.sum(d * d)))(x[1:] - x[:-1]), (X,)),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    """Once for each such work; types and numbers are the same."""
    f, args = FIRES[name]
    assert len(peeled(f, *args)) == 1
    assert_same(f, *args, tolerance=1e-4)
    joined = [e for e in jax.make_jaxpr(optimised(f))(*args).jaxpr.eqns if e.primitive.name == "concatenate"]
    assert all([v.aval.size % 2 for v in eqn.invars[:1]] == [0] for eqn in joined)
    assert all(eqn.invars[1].aval.size in (1, 3) for eqn in joined)


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "two like halves": (lambda x: x[2:] - x[:-2], (X,)),
    "few entries": (lambda x: x[1:] - x[:-1], (X[:4000],)),
    "long rows": (lambda x: jnp.exp(x) / (1 + x), (normal(0, 99_999),)),
    "every other entry": (lambda x: x[::2] * 2, (normal(0, 2 * PRIME),)),
    "a sum of whole arrays": (lambda x, y: jnp.sum(x * y), (P, Q)),
    "a sum of a slice": (lambda x: jnp.sum(x[1:]), (X,)),
    "entries that others read, too": (lambda x: (lambda d: d[1:] - d[:-1])(jnp.exp(x[1:]) - x[:-1]), (X,)),
    "random bits": (lambda x: x[1:] ^ jax.random.bits(jax.random.key(0), (EVEN - 1,)), (np.arange(EVEN, dtype="u4"),)),
    "a carry": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + 1, x), (P,)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What gains nothing, or is done otherwise."""
    f, args = NEAR_MISSES[name]
    assert not peeled(f, *args)
    assert_same(f, *args, tolerance=1e-4)


def test_sums_keep_their_order_where_that_is_asked_for() -> None:
    """Under strict numerics entries are worked on as before, bit by bit, and sums stay whole."""
    f = FIRES["differences"][0]
    assert peeled(f, X, numerics="strict")
    np.testing.assert_array_equal(optimised(f, numerics="strict")(X), f(X))
    assert not peeled(FIRES["total variation"][0], X, numerics="strict")


@pytest.mark.parametrize("cpus", [1, 8])
def test_other_numbers_of_threads_have_other_parts(cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread has no parts, and three unlike parts are as good as like ones."""
    monkeypatch.setattr(long_rows, "_cpus", lambda: cpus)
    assert not peeled(jnp.diff, X)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_any_order_of_work_keeps_its_meaning(steps: list[tuple[int, int, int]]) -> None:
    """Slices, work on entries, sums and reversals, in any order, give the same numbers."""

    def f(x: Any) -> Any:
        values = [x, x[1:]]
        for kind, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            n = min(a.size, b.size)
            made = (
                lambda a, b, n: a[:n] * 0.5 + b[-n:],
                lambda a, b, n: jnp.where(a[-n:] > b[:n], 0.25, b[:n]),
                lambda a, b, n: a - jnp.sum(a * a) / a.size,
                lambda a, b, n: a[::-1],
                lambda a, b, n: jnp.tanh(a[1:]),
                lambda a, b, n: b[n // 5 :],
            )[kind]
            values.append(made(a, b, n))
        return values[2:]

    assert_same(f, X, tolerance=1e-3)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    ("f", "with_masks"),
    [
        (jnp.diff, 0),
        (lambda x: jnp.sqrt(1 + jnp.diff(x) ** 2), 0),
        (lambda x: jnp.exp(-jnp.abs(x[1:] - x[:-1])), 1),
        (lambda x: jnp.tanh(x[1:]) * x[:-1], 0),
        (lambda x: jnp.tanh(jnp.diff(x)), 1),
        (lambda x: jnp.log1p(jnp.exp(x[1:] - x[:-1])), 1),
    ],
)
def test_vectors_that_mask_need_it_for_choices_only(
    f: Any, with_masks: int, masks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices in two parts took up to 2.6 times as long where code for what is left over is vector code."""
    monkeypatch.undo()
    monkeypatch.setattr(long_rows, "_cpus", lambda: 2)
    program, *_ = normalize(traced(f, X))
    _, found = short_rows.lengthened(program.jaxpr, True, False, masks)
    assert sum(rows.is_peeled and rows.refusal is None for rows in found) == (with_masks if masks else 1)


@pytest.mark.parametrize(
    ("f", "gains"),
    [
        (lambda x: jnp.tanh(x) + 1, True),
        (jax.nn.gelu, True),
        (jax.nn.softplus, True),
        (lambda x: jnp.exp(-x * x), True),
        (jax.grad(lambda x: jnp.tanh(x).sum()), True),
        (jnp.tanh, False),
        (lambda x: jnp.tanh(x) * x, False),
        (lambda x: jnp.log1p(jnp.exp(x)), False),
        (jnp.exp, False),
        (lambda x: 1 / (1 + x * x), False),
    ],
)
def test_a_prime_number_where_vectors_mask(f: Any, gains: bool) -> None:
    """Functions that choose between formulas are scalar code beside a sum; others took up to 1.7 of the time so."""
    program, *_ = normalize(traced(f, P))
    _, found = short_rows.lengthened(program.jaxpr, True, False, True)
    assert any(rows.is_peeled and rows.refusal is None for rows in map(IF_SCALAR, found)) == gains


def test_rules_see_an_odd_number_first() -> None:
    """Of an odd number of numbers none was looked up in a table at once: they stood in a branch already."""
    bins = np.linspace(-2, 2, 21).astype(np.float32)
    report = ag.explain(lambda x: jnp.digitize(x, bins), rules=ag.rules.default)(P)
    fired = [d.rule for d in report.fired]
    assert "searched-short" in fired


def test_functions_of_our_own_are_vector_code() -> None:
    """A sine of a prime number of numbers is not taken apart: it took twice as long with masks."""
    names = {"vector_sin_of_many", "add", "exp"}
    assert not left_over.is_scalar(names)
    assert not left_over.is_called(names)


@pytest.mark.parametrize(("flags", "masks"), [("avx2 avx512f", True), ("avx2", False), ("", False)])
def test_processors_that_mask_vectors(flags: str, masks: bool, tmp_path: Path) -> None:
    """What the system says of this one decides."""
    described = tmp_path / "cpuinfo"
    described.write_text(f"vendor_id\t: Another\nflags\t\t: fpu {flags}\n")
    assert replace(table("cpu"), **of_processor(described)).masks_vectors == masks
