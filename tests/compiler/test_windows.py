"""Windows that indices read: their sums are made of slices, and what is left of them is read row by row."""

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
from aerogel.compiler import Decision, Report
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.passes.windows import WindowsOfArrays
from aerogel.compiler.rules.folds import folded
from aerogel.compiler.windows.sliding import weighted, weights_of
from compiler.programs_of import traced

N = 1500


def normal(*shape: int, dtype: Any = "float32") -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), dtype)


def windows(x: Any, size: int, hop: int = 1, apart: int = 1) -> Any:
    """Windows of an array, by indices."""
    count = (len(x) - (size - 1) * apart - 1) // hop + 1
    return x[hop * jnp.arange(count)[:, None] + apart * jnp.arange(size)]


def report_of(f: Callable[..., Any], *args: Any, **options: Any) -> Report:
    """What the pass does; the results must stay what they were."""
    reports: list[Report] = []
    optimised = jax.jit(ag.optimize(f, rules=[], passes=(WindowsOfArrays(),), on_report=reports.append, **options))
    for got, want in zip(jax.tree.leaves(optimised(*args)), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert jax.typeof(got) == jax.typeof(want)
        large = float(np.nan_to_num(np.abs(want)).max(initial=1.0))
        np.testing.assert_allclose(got, want, 2e-5, 2e-5 * large)
    return reports[-1]


def gradient(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    """By all arguments, of something that is no sum alone."""
    return jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), tuple(range(count)))


def acted(report: Report) -> list[Decision]:
    """What the pass did, and not the normal form before it."""
    return [d for d in report.fired if d.rule == "windows"]


def indices(f: Callable[..., Any], *args: Any) -> int:
    """How many indices an optimised function looks at, one by one: the gradient of few weights has one for each."""
    optimised = ag.optimize(f, rules=[], passes=(WindowsOfArrays(),))
    eqns = traced(optimised, *args).jaxpr.eqns
    return sum(eqn.invars[1].aval.size for eqn in eqns if eqn.primitive.name in ("gather", "scatter-add"))


LAGS, MANY_LAGS = (np.arange(n, N)[:, None] - np.arange(1, 1 + n) for n in (5, 20))
PLACES = jnp.arange(N - 8)[:, None] + jnp.arange(9)
SITES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mean": (lambda x: windows(x, 5).mean(1), (normal(N),)),
    "mean of many": (lambda x: windows(x, 40).mean(1), (normal(N),)),
    "maximum": (lambda x: windows(x, 7).max(1), (normal(N),)),
    "mean of places that NumPy counted": (
        lambda x: x[np.arange(5 * N)[:, None] + np.arange(20)].mean(1),
        (normal(5 * N + 19),),
    ),
    "minimum of pairs apart": (lambda x: windows(x, 4, apart=3).min(1), (normal(N),)),
    "deviation": (lambda x: windows(x, 9).std(1), (normal(N),)),
    "every second": (lambda x: jnp.sqrt((windows(x, 6, 2) ** 2).sum(1)), (normal(N),)),
    "weights": (lambda x, k: windows(x, 5) @ k, (normal(N), normal(5, 1)[:, 0])),
    "many weights": (lambda x, k: k @ windows(x, 20).T, (normal(N), normal(20, 1)[:, 0])),
    "lags of weights": (lambda x, k: x[LAGS] @ k, (normal(N), normal(5, 1)[:, 0])),
    "many lags of weights": (lambda x, k: x[MANY_LAGS] @ k, (normal(N), normal(20, 1)[:, 0])),
    "from the last window to the first": (lambda x, k: x[LAGS[::-1]] @ k, (normal(N), normal(5, 1)[:, 0])),
    "all turned round": (lambda x, k: x[::-1][MANY_LAGS][::-1] @ k, (normal(N), normal(20, 1)[:, 0])),
    "turned places": (lambda x, k: windows(x, 20)[:, ::-1] @ k, (normal(N), normal(20, 1)[:, 0])),
    "turned windows": (lambda x: jnp.sin(windows(x, 6, 2)[::-1]).max(1), (normal(N),)),
    "a constant's indices": (lambda x: x[PLACES].mean(1), (normal(N),)),
    "windows first": (lambda x: x[jnp.arange(6)[:, None] + jnp.arange(N - 5)].max(0), (normal(N),)),
    "batch": (lambda x, k: x[:, PLACES] @ k, (normal(3, N), normal(9, 1)[:, 0])),
    "channels": (lambda x, k: jnp.einsum("nwc,w->nc", x[PLACES], k), (normal(N, 4), normal(9, 1)[:, 0])),
    "under vmap": (jax.vmap(lambda x: windows(x, 7).mean(1)), (normal(3, N),)),
    "slices under vmap": (
        lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i,), (9,)))(jnp.arange(N - 8)).std(1),
        (normal(N),),
    ),
    "of two arrays": (lambda x, y: (windows(x, 9) * windows(y, 9)).mean(1), (normal(N), normal(N, 1)[:, 0])),
    "softened": (lambda x: jax.nn.logsumexp(windows(x, 5), axis=1), (normal(N),)),
    "whole numbers": (lambda x: windows(jnp.round(9 * x).astype(int), 9).sum(1) * x[8:], (normal(N),)),
}


@pytest.mark.parametrize("name", SITES)
def test_windows_are_slices(name: str) -> None:
    """No window has an index any more, in the value and in the gradient."""
    f, args = SITES[name]
    for g in (f, gradient(f, len(args))):
        assert acted(report_of(g, *args))
        assert indices(g, *args) <= 20


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "frames": (lambda x: windows(x, 400, 160), (normal(4000),)),
    "spectra": (lambda x: jnp.abs(jnp.fft.rfft(windows(x, 64, 16))), (normal(4000),)),
    "products with a matrix": (lambda x, w: windows(x, 30) @ w, (normal(N), normal(30, 4))),
    "maxima of many": (lambda x: windows(x, 40).max(1), (normal(N),)),
    "energy of frames": (lambda x: (windows(x, 100, 40) ** 2).sum(1), (normal(4000),)),
    "patches": (
        lambda x: x[
            jnp.arange(30)[:, None, None, None] + jnp.arange(5)[None, None, :, None],
            jnp.arange(30)[None, :, None, None] + jnp.arange(5),
        ].mean((2, 3)),
        (normal(34, 34),),
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_read_row_by_row(name: str) -> None:
    """An index for each row."""
    f, args = LEFT[name]
    reports = report_of(f, *args), report_of(gradient(f, len(args)), *args)
    assert "windows are read row by row" in [d.what for report in reports for d in report.fired]


NEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "beyond the end": (lambda x: x[jnp.arange(N)[:, None] + jnp.arange(5)].mean(1), (normal(N),)),
    "filled": (
        lambda x: x.at[jnp.arange(N)[:, None] + jnp.arange(5)].get(mode="fill", fill_value=3).sum(1),
        (normal(N),),
    ),
    "from data": (lambda x: x[jnp.abs(x[:900] * 99).astype(int)[:, None] + jnp.arange(5)].mean(1), (normal(N),)),
    "squares of places": (lambda x: x[jnp.arange(30)[:, None] ** 2 + jnp.arange(40)].mean(1), (normal(N),)),
    "counted from the end, some": (
        lambda x: x[np.arange(-9, 5 * N)[:, None] + np.arange(20)].mean(1),
        (normal(5 * N + 19),),
    ),
    "few": (lambda x: windows(x, 5).mean(1), (normal(60),)),
    "no windows": (lambda x: x[jnp.arange(0, N, 3)], (normal(N),)),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_is_left_alone(name: str) -> None:
    """What is not in the array, not evenly spaced, or little."""
    f, args = NEAR[name]
    assert not acted(report_of(f, *args))
    assert not acted(report_of(gradient(f, 1), *args))


def test_under_strict_nothing_is_done() -> None:
    """Sums would be taken in another order."""
    f, args = SITES["mean"]
    assert not acted(report_of(f, *args, numerics="strict"))


def test_weights_as_a_product_are_finite_only() -> None:
    """An infinite number meets zeros there: said, and slices are taken where it is not allowed."""
    f, args = SITES["many weights"]
    assert [d.exactness for d in acted(report_of(f, *args))] == [Exactness.FINITE]
    few, args = SITES["weights"]
    assert [d.exactness for d in acted(report_of(few, *args))] == [Exactness.REASSOCIATES]
    x = normal(N).at[700].set(jnp.inf)
    got, want = ag.optimize(few)(x, args[1]), few(x, args[1])
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


def test_in_a_loop() -> None:
    """Of what each step computes."""
    step = lambda c, _: (jnp.pad(windows(c, 5).mean(1), 2), None)  # noqa: E731
    assert acted(report_of(lambda x: lax.scan(step, x, None, length=3)[0], normal(N)))


def test_zero_sizes() -> None:
    """Nothing to read."""
    f = lambda x: x[jnp.arange(4)[:, None] + jnp.arange(0)].sum(1)  # noqa: E731
    assert not acted(report_of(f, normal(9)))
    g = lambda x: x[jnp.arange(0)[:, None] + jnp.arange(3)].sum(1)  # noqa: E731
    assert not acted(report_of(g, normal(9)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_floats_are_read_row_by_row_at_most(dtype: str) -> None:
    """Their sums are taken in a wider type, which the program says."""
    x = normal(N, dtype=dtype)
    assert report_of(lambda x: windows(x, 9).max(1), x).fired
    assert report_of(lambda x: windows(x, 9).mean(1), x).fired


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_windows(data: st.DataObject) -> None:
    """Any number of axes, steps and places: the same as plain JAX, value and gradient."""
    size, hop, apart = (data.draw(st.integers(1, most)) for most in (40, 4, 3))
    lead, behind = (data.draw(st.sampled_from([(), (2,)])) for _ in range(2))
    count = data.draw(st.integers(1, 300))
    before, length = data.draw(st.integers(0, 5)), (count - 1) * hop + (size - 1) * apart + 1
    x = normal(*lead, before + length + data.draw(st.integers(0, 5)), *behind)
    fold = data.draw(st.sampled_from([jnp.sum, jnp.max, jnp.std, jnp.prod, lambda v, axis: jnp.sum(jnp.exp(v), axis)]))
    turned, moves, falls = (data.draw(st.booleans()) for _ in range(3))

    def f(x: Any) -> Any:
        places = before + hop * jnp.arange(count)[:: -1 if moves else 1, None]
        places += apart * jnp.arange(size)[:: -1 if falls else 1]
        axis = len(lead) + 1
        places, axis = (places.T, axis - 1) if turned else (places, axis)
        return fold(jnp.take(x, places, axis=len(lead)) / 4, axis=axis)

    report_of(f, x)
    report_of(jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))), x + 0.5)


@pytest.mark.parametrize(("length", "size"), [(100, 1), (100, 2), (50, 5), (300, 17), (300, 18), (200, 100), (64, 64)])
def test_sliding_sums(length: int, size: int) -> None:
    """Against NumPy's windows."""
    x, k, y = normal(2, length), normal(size), normal(2, length - size + 1)
    wide = np.lib.stride_tricks.sliding_window_view(np.asarray(x), size, axis=1)
    np.testing.assert_allclose(weighted(x, k), wide @ np.asarray(k), 1e-4, 1e-4)
    np.testing.assert_allclose(weights_of(x, y), np.einsum("bnw,bn->w", wide, np.asarray(y)), 1e-3, 1e-3)
    np.testing.assert_array_equal(folded(x, 1, size, 1, lax.max)[:, : length - size + 1], wide.max(-1))


def test_what_windows_alone_read_is_not_streamed() -> None:
    """The gradient of a moving average whose windows take 33 MB is a sum of slices, not a loop over rows of windows."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(16, 8192)), jnp.float32)
    moving = lambda x: x[:, jnp.arange(8192 - 63)[:, None] + jnp.arange(64)].mean(-1)  # noqa: E731
    gradient = jax.grad(lambda x: (moving(x) ** 3).sum())
    report = ag.explain(gradient)(x)
    assert any("windows alone read it" in d.reason for d in report.refused if d.rule == "streaming")
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(ag.optimize(gradient))(x).eqns]
    assert not {"scatter-add", "scan"} & {*names}
    np.testing.assert_allclose(jax.jit(ag.optimize(gradient))(x), gradient(x), rtol=1e-4, atol=1e-6)


FILTERS: dict[str, tuple[int, int, bool]] = {
    "few places": (8, 6, True),
    "many places, short rows": (12, 6, False),
    "many places": (12, 8, True),
    "many filters": (16, 24, False),
}


@pytest.mark.parametrize("name", FILTERS)
def test_windows_of_halves_are_left_where_that_takes_longer(name: str) -> None:
    """Short rows of bfloat16 are no vector code, and what is a product of matrices the library multiplies."""
    places, filters, fires = FILTERS[name]
    f = lambda x, h: jnp.sum(windows(x, places)[:, None] * h, -1)  # noqa: E731
    args = normal(900, dtype="bfloat16"), normal(filters, places, dtype="bfloat16")
    reports: list[Report] = []
    jax.eval_shape(ag.optimize(f, rules=[], passes=(WindowsOfArrays(),), on_report=reports.append), *args)
    assert any("is made of slices" in d.what for d in acted(reports[-1])) == fires
    got, want = (np.asarray(jax.jit(g)(*args), "float32") for g in (ag.optimize(f), f))
    np.testing.assert_allclose(got, want, rtol=3e-2, atol=3e-2 * float(np.max(np.abs(want))))
