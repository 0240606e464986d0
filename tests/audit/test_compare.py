"""`--compare`: what is measured, what is not, and that nothing of the script is disturbed by it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel.audit import FunctionRow, _compare, _measure
from aerogel.audit._session import Session

MakeSession = Callable[..., Session]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_measure, "SECONDS", 0.0)


def rows(session: Session) -> dict[str, FunctionRow]:
    """Measures, then the report's rows by name."""
    session.uninstall()
    assert session.sampler is not None
    session.sampler.measure(session.records.values())
    return {row.name: row for row in session.report().functions}


def scan_sum(x: jax.Array) -> jax.Array:
    """The sum over a loop's stacked results, which the optimiser always rewrites."""
    return jax.lax.scan(lambda c, _: (c * 0.5, c), x, None, length=50)[1].sum()


def test_times_memory_and_difference(session: MakeSession) -> None:
    """A rewritten function has numbers for both forms: less memory, the same result; an unchanged one has ratio 1."""
    one = session(compare=True)
    jax.jit(scan_sum)(jnp.ones(100_000))
    jax.jit(jnp.sin)(jnp.ones(3))
    found = rows(one)
    (m,) = found["scan_sum"].measurements
    assert (m.status, m.arguments, m.repeats) == ("measured", "f32[100000]", _measure.FEWEST)
    assert m.natural_temp_bytes is not None
    assert m.optimized_temp_bytes is not None
    assert m.natural_temp_bytes >= 50 * 400_000 > 10 * m.optimized_temp_bytes
    assert m.difference is not None
    assert m.difference < 1e-4
    assert m.time_ratio is not None
    (same,) = found["sin"].measurements
    assert (same.status, same.time_ratio, same.repeats) == ("unchanged", 1.0, 0)


def test_tracing_happens_once(session: MakeSession) -> None:
    """The natural program is taken when the script traces; a function that counts its traces counts one."""
    one = session(compare=True)
    traces = []

    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        traces.append(x)
        return scan_sum(x)

    f(jnp.ones(3))
    f(jnp.ones(3))
    assert rows(one)["f"].measurements[0].status == "measured"
    assert len(traces) == 1


def test_donated_and_deleted_arguments(session: MakeSession) -> None:
    """Arguments are copied before they are donated, and what the script deletes later does not matter."""
    one = session(compare=True)

    @partial(jax.jit, donate_argnums=0)
    def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x + 1, scan_sum(x * y)

    x, y = jnp.ones(1000), np.ones(1000, np.float32)
    new, _ = step(x, y)
    assert x.is_deleted()
    y[:] = np.nan
    new.delete()
    (m,) = rows(one)["step"].measurements
    assert (m.status, m.difference is not None and m.difference < 1e-4) == ("measured", True)


def test_what_has_effects_is_not_run_again(session: MakeSession) -> None:
    """A print or callback happens as often as the script made it happen."""
    one = session(compare=True)
    seen: list[Any] = []

    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        jax.debug.callback(seen.append, x)
        return scan_sum(x)

    f(jnp.ones(3)).block_until_ready()
    jax.effects_barrier()
    (m,) = rows(one)["f"].measurements
    assert (m.status, len(seen)) == ("skipped", 1)
    assert "not run again" in m.reason


def test_memory_is_bounded(session: MakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound, and beyond three signatures, a call is named as not measured; the bound is in the notes."""
    one = session(compare=True)
    assert one.sampler is not None
    one.sampler.most_bytes = 2**20
    f = jax.jit(scan_sum)
    f(jnp.ones(2**19))
    for size in range(1, 6):
        f(jnp.ones(size))
    one.uninstall()
    kept = sum(x.nbytes for samples in one.sampler.samples.values() for s in samples for x in s.arrays)
    assert kept == one.sampler.bytes_kept == 4 * (1 + 2 + 3)
    first, *_ = rows(one)["scan_sum"].measurements
    assert first.reason == "copies of its arguments (2 MiB) do not fit into the 1 MiB kept"
    statuses = [m.status for m in rows(one)["scan_sum"].measurements]
    assert sorted(statuses) == ["measured"] * _compare.MOST_SIGNATURES + ["skipped"] * 3
    assert "1 MiB" in one.report().notes[0]


def test_keys_wide_types_and_static_arguments(session: MakeSession) -> None:
    """Typed keys, 64-bit arguments from an x64 context and static arguments are measured like any others."""
    one = session(compare=True)

    @partial(jax.jit, static_argnames="n")
    def noisy(key: jax.Array, x: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
        return jax.random.split(key)[0], scan_sum(x) * n

    noisy(jax.random.key(0), jnp.ones(3), n=2)
    with jax.enable_x64(True):
        noisy(jax.random.key(0), jnp.ones(3, jnp.float64), n=3)
    found = rows(one)["noisy"].measurements
    assert [m.status for m in found] == ["measured", "measured"]
    assert all(m.difference is not None and m.difference < 1e-6 for m in found)
    assert "f64[3]" in found[1].arguments


@pytest.mark.parametrize(
    ("wanted", "got", "difference"),
    [
        ([1.0, 4.0], [1.0, 3.0], 0.25),
        ([np.inf, np.nan], [np.inf, np.nan], 0.0),
        ([np.inf, 1.0], [1.0, 1.0], np.inf),
        ([0.0], [1e-9], np.inf),
        ([], [], 0.0),
        ([True], [True], 0.0),
        ([2, 8], [2, 4], 0.5),
    ],
)
def test_the_size_of_a_difference(wanted: Any, got: Any, difference: float) -> None:
    """Relative to the largest value; nan for nan is none; a lost infinity is infinite."""
    assert _measure.relative_difference(np.array(wanted), np.array(got)) == difference


def test_where_the_largest_difference_is() -> None:
    """The result, by its place in what the function returns, and how large its numbers are."""
    x = jnp.ones(2)
    program = jax.jit(lambda x: ({"weight": x, "bias": x}, jnp.argmax(x), x[:0])).trace(x).jaxpr
    names = [_measure.largest_difference(program, [x] * 4, [y if k == j else x for j in range(4)]) for k, y in CHANGED]
    assert names == [
        (0.5, "result[0]['bias'], f32[2] of numbers up to 1.0e+00"),
        (0.25, "result[0]['weight'], f32[2] of numbers up to 1.0e+00"),
    ]
    assert _measure.largest_difference(program, [x] * 4, [x] * 4) == (0.0, "")
    tiny = np.array([3e-10, 0.0], np.float32)
    assert "up to 3.0e-10" in _measure.largest_difference(program, [tiny, x, x, x], [2 * tiny, x, x, x])[1]


CHANGED = [(0, np.array([1.0, 1.5], np.float32)), (1, np.array([0.75, 1.0], np.float32))]
