"""Elementary functions of float32 as vector code: as exact as float32 allows at every number, and where they are used.

`make exhaustive` tries all 2^32 numbers; the suite 4,096 of each exponent and sign.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.kept import Kept
from aerogel.compiler.rules import elementary
from rules.rules_under_test import fired, normal, refusals

LOG = logging.getLogger(__name__)
EXHAUSTIVE = bool(os.environ.get("AEROGEL_EXHAUSTIVE"))
SPECIAL = np.array(
    [
        *(0, 0.5, 1, 2, 2.5, 3, np.pi / 2, np.pi, 1e-45, 1e-40, 2**-126, 1e-8),
        *(1 - 2**-24, 1 + 2**-23, 2**24, 3.4e38, np.inf, np.nan),
    ],
    np.float32,
)
ONE = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "cbrt": np.cbrt,
}
BOUND = 0.502  # units in the last place: a result is rounded once, and float64 adds little to the half of that
SMALLEST = 2.0**-126


def numbers() -> Iterator[np.ndarray]:
    """Arrays of float32: all there are; or so many of each exponent and sign, and special ones."""
    if EXHAUSTIVE:
        for start in range(0, 1 << 32, 1 << 20):
            yield np.arange(start, start + (1 << 20), dtype=np.uint64).astype(np.uint32).view(np.float32)
        return
    mantissas = np.random.default_rng(0).integers(0, 1 << 11, (512, 4096), np.uint32) + np.arange(
        4096, dtype=np.uint32
    ) * (1 << 11)
    drawn = (np.arange(512, dtype=np.uint32)[:, None] << 23 | mantissas).view(np.float32).reshape(-1)
    yield np.concatenate([SPECIAL, -SPECIAL, drawn])


def near_numbers(most: int) -> Iterator[np.ndarray]:
    """Those up to 2^(most - 11), and some up to 2^most, in arrays whose squares add up to less than 4^most."""
    for every in numbers():
        size = np.abs(every)
        yield every[size < 2.0 ** (most - 11)]
        for exponent in range(most - 11, most):
            large = every[(size >= 2**exponent) & (size < 2 ** (exponent + 1))]
            fit = min(4 ** (most - 1 - exponent), max(1, len(large)))
            parts = large[: len(large) // fit * fit].reshape(-1, fit)
            yield from parts[:: max(1, len(parts) // 8)]


def units(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """How far results are from float64, in units of the last place of the nearest float32; inf for a wrong inf or nan.

    What is subnormal counts as 0, and 0 as anything subnormal: XLA's CPU backend flushes it in all it computes.
    """
    with np.errstate(all="ignore"):
        nearest = truth.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(nearest), np.float32(SMALLEST))).astype(np.float64)
        off = np.abs(got.astype(np.float64) - truth) / unit
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    flushed = (np.abs(truth) < SMALLEST) & (np.abs(got) <= SMALLEST)
    off = np.where(same & ~np.isfinite(nearest) | flushed, 0, off)
    return np.where(np.isnan(off), np.inf, off)


@pytest.mark.parametrize("name", ONE)
def test_is_the_nearest_float32_nearly_everywhere(name: str) -> None:
    """Within 0.502 of a unit of float64 at every float32, with its sign, and never worse than what XLA computes."""
    natural, worst_natural = jax.jit(getattr(lax, name)), 0.0

    def numbers_seen() -> Iterator[np.ndarray]:
        nonlocal worst_natural
        for x in numbers():
            worst_natural = max(worst_natural, float(units(np.asarray(natural(x)), truth_of(name, x)).max()))
            yield x

    worst = worst_error(getattr(elementary, name), name, numbers_seen())
    LOG.info("%s: XLA %.4g", name, worst_natural)
    assert worst <= min(BOUND, worst_natural)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_of_many_numbers_is_the_nearest_float32_nearly_everywhere(name: str) -> None:
    """The same bound where a large array holds no large number, or none beyond 2^27, and where it holds any."""
    of_many = getattr(elementary, f"{name}_of_many")
    for most in (20, 27):
        assert worst_error(of_many, name, (x for x in near_numbers(most) if x.size)) <= BOUND
    assert worst_error(of_many, name, [np.concatenate([SPECIAL, -SPECIAL])]) <= BOUND


LARGE = jax.ShapeDtypeStruct((1 << 16,), jnp.float32)
STATE_ONLY = lambda x: lax.fori_loop(0, 8, lambda _, x: jnp.sin(x), x)  # noqa: E731
STACKED = lambda x: lax.scan(lambda x, _: (jnp.sin(x), x), x, None, length=16)[1]  # noqa: E731


@pytest.mark.parametrize(("f", "branches"), [(jnp.sin, True), (STATE_ONLY, False), (STACKED, True)])
def test_of_many_numbers_stands_where_one_array_more_is_little(f: Callable[..., Any], branches: bool) -> None:
    """A branch in a step keeps one array more: twice the memory of issue 4968's examples by hand."""
    program = jax.jit(ag.optimize(f)).trace(LARGE).lower()
    assert ("stablehlo.case" in program.as_text()) == branches


PART_READ: dict[str, tuple[Callable[..., Any], bool]] = {
    "a quarter": (lambda x: jnp.sin(x)[: 1 << 14] * 2, False),
    "every third": (lambda x: (1 + jnp.sin(x))[::3], False),
    "most": (lambda x: jnp.sin(x)[100:], True),
    "a quarter, and the sum": (lambda x: (lambda y: (y[: 1 << 14], y.sum()))(jnp.sin(x)), True),
    "two quarters": (lambda x: (lambda y: (y[: 1 << 14], y[-(1 << 14) :]))(jnp.sin(x)), True),
}


@pytest.mark.parametrize("name", PART_READ)
def test_of_many_numbers_of_which_few_are_read(name: str) -> None:
    """Of a branch XLA computes all: 130,000 sines for one column of 64."""
    f, branches = PART_READ[name]
    program = jax.jit(ag.optimize(f)).trace(LARGE).lower()
    assert ("stablehlo.case" in program.as_text()) == branches


def truth_of(name: str, x: np.ndarray) -> np.ndarray:
    """The function in float64."""
    with np.errstate(all="ignore"):
        return ONE[name](x.astype(np.float64))


def worst_error(function: Callable[..., Any], name: str, arrays: Iterable[np.ndarray]) -> float:
    """The largest error in units; asserts that every sign is right."""
    ours, worst, at = jax.jit(function), 0.0, 0.0
    for x in arrays:
        truth, got = truth_of(name, x), np.asarray(ours(x))
        off = units(got, truth)
        if off.max() > worst:
            worst, at = float(off.max()), x[off.argmax()]
        assert not ((np.signbit(got) != np.signbit(truth)) & ~np.isnan(truth)).any()
    LOG.info("%s: %.4f units at %s", name, worst, at)
    return worst


def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of special numbers, of any bits, of ordinary numbers, and of numbers near one with large ones."""
    both = np.concatenate([SPECIAL, -SPECIAL])
    a, b = np.meshgrid(both, both)
    yield a.reshape(-1), b.reshape(-1)
    for seed in range(500 if EXHAUSTIVE else 1):
        rng = np.random.default_rng(seed)
        n = 1 << (22 if EXHAUSTIVE else 18)
        x, y = rng.integers(0, 1 << 32, (2, n), np.uint32).view(np.float32)
        yield x, y
        x, y = rng.normal(size=(2, n)).astype(np.float32)
        yield x, y
        yield np.abs(x), y * np.float32(9)
        yield np.exp(x * np.float32(0.01)), y * np.float32(3000)
        yield (y * np.float32(9)).round(), (x * np.float32(9)).round()


@pytest.mark.parametrize(("name", "ours", "exact"), [("atan2", "atan2", np.arctan2), ("pow", "power", np.power)])
def test_of_two_numbers_is_the_nearest_float32_nearly_everywhere(name: str, ours: str, exact: Any) -> None:
    """Within 0.502 of a unit of float64, also of 0, inf, nan and subnormal numbers, whatever their signs."""
    f, worst = jax.jit(getattr(elementary, ours)), 0.0
    for x, y in pairs():
        with np.errstate(all="ignore"):
            truth = exact(x.astype(np.float64), y.astype(np.float64))
        got = np.asarray(f(x, y))
        off = units(got, truth)
        at = off.argmax()
        assert off[at] <= BOUND, (x[at], y[at], got[at], truth[at])
        assert not ((np.signbit(got) != np.signbit(truth)) & ~np.isnan(truth)).any()
        worst = max(worst, float(off[at]))
    LOG.info("%s: %.4f units", name, worst)


# --- where they are used -------------------------------------------------------------------------------------------

RULES = {rule.name.removeprefix("vector-"): rule for rule in elementary.rules}
X = jnp.abs(normal(0, 2048, 8)) % 1
NATURAL: dict[str, Callable[..., Any]] = {
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "atan": jnp.arctan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "cbrt": jnp.cbrt,
    "atan2": lambda x: jnp.arctan2(x, 2 - x),
    "pow": lambda x: x**2.5 + 1.5**x,
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "vmap": jax.vmap,
    "gradient": lambda f: jax.grad(lambda x: jnp.cos(f(x)).sum()),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c) % 1, f(c)), x, None, length=2),
    "branch": lambda f: lambda x: lax.cond(x[0, 0] > 0, f, lambda x: x, x),
}


def of_xla(monkeypatch: pytest.MonkeyPatch, *, has_vector_sums: bool) -> None:
    """The rules are as with such an XLA; what they remember of sites goes, now and when this is taken back."""
    monkeypatch.setattr(_jax, "HAS_VECTOR_SUMS", has_vector_sums)
    for rule in RULES.values():
        monkeypatch.setattr(rule, "kept", Kept(rule.kept.most))


@pytest.mark.parametrize("name", NATURAL)
def test_fires_on_its_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule fires on its own operation, in float32 and bfloat16, and none of the others does."""
    of_xla(monkeypatch, has_vector_sums=False)
    x = jnp.concatenate([X, X])
    for dtype in ("float32", "bfloat16"):
        for other, rule in RULES.items():
            found = fired(NATURAL[name], rule, x.astype(dtype)) if other == name else 0
            assert found == (0 if other != name else 2 if name == "pow" else 1)
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(NATURAL[name], rules=elementary.rules, on_report=reports.append))(x)
    assert {d.rule for d in reports[-1].fired} == {f"vector-{name}"}


ALL_IT_DOES: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "alone": (jnp.sin, 16384, False),
    "as little": (jnp.sin, 8191, False),
    "of what is not counted": (lambda x: jnp.exp(jnp.sin(x)), 32000, False),
    "of rows, as a loop": (lambda x: lax.map(jnp.sin, x.reshape(-1, 64)), 16384, False),
    "of many": (jnp.sin, 32768, True),
    "of many together": (lambda x: (jnp.sin(x), jnp.cos(x)), 16384, True),
    "beside additions": (lambda x: jnp.sin(x) + x, 16384, True),
    "beside a product": (lambda x: jnp.sin(x) @ x, 16384, True),
    "of few additions": (lambda x: (jnp.sin(x), x[:100] + 1), 16384, False),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ALL_IT_DOES)
def test_a_program_of_few_sines_stays_in_the_thread_that_calls(name: str, dtype: str) -> None:
    """Calls of the C library count as nothing, vector code of them has another thread wake."""
    f, size, fires = ALL_IT_DOES[name]
    x = normal(0, size).astype(dtype)
    found = [d.rule for d in ag.explain(f)(x).fired]
    assert ("vector-sin" in found) == fires
    for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(x)), jax.tree.leaves(f(x)), strict=True):
        np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=2e-2, atol=1e-2)


SUMMED = "a reduction is all that reads it: they are one loop, of vector code"
OF_NEWER_XLA: dict[str, tuple[str, Callable[..., Any], str, str | None]] = {
    "alone": ("atan", jnp.arctan, "bfloat16", "XLA has vector code for it"),
    "in a loop": ("atan", PLACES["scan"](jnp.arctan), "float32", None),
    "another alone": ("tan", jnp.tan, "float32", None),
    "summed": ("sin", lambda x: jnp.sin(x).sum(), "float32", SUMMED),
    "an extremum": ("tan", lambda x: jnp.tan(x).max(0), "bfloat16", SUMMED),
    "a formula that is summed": ("cos", lambda x: jnp.sum(x * jnp.cos(2 * x) + 1, 1), "float32", SUMMED),
    "a formula with two of it": (
        "tan",
        lambda x: (lambda t: jnp.sum((t - 1) ** 2 / 3 - t))(jnp.tan(x)),
        "float32",
        SUMMED,
    ),
    "summed in a loop": (
        "atan",
        lambda x: lax.scan(lambda c, _: (c + jnp.arctan(c * x).sum(), None), 0.0, None, length=2)[0],
        "float32",
        SUMMED,
    ),
    "summed in half precision": ("sin", lambda x: lax.reduce_sum(jnp.sin(x), (0, 1)), "float16", None),
    "summed and kept": ("sin", lambda x: (jnp.sin(x), jnp.sin(x).sum()), "float32", None),
    "two sums": ("sin", lambda x: (jnp.sin(x).sum(0), jnp.sin(x).max(1)), "float32", None),
    "summed as something else": ("sin", lambda x: jnp.sin(x).reshape(-1, 4).sum(1), "float32", None),
    "another function": ("asin", lambda x: jnp.arcsin(x).sum(), "float32", None),
}


@pytest.mark.parametrize("name", OF_NEWER_XLA)
def test_leaves_to_newer_xla_what_that_has_vector_code_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since jaxlib 0.12 those are arctangents, and more in a reduction with nothing stored before it."""
    rule, f, dtype, reason = OF_NEWER_XLA[name]
    for has in (False, True):
        of_xla(monkeypatch, has_vector_sums=has)
        if has and reason is not None:
            assert refusals(f, RULES[rule], X.astype(dtype)) == [reason]
        else:
            assert fired(f, RULES[rule], X.astype(dtype)) == 1


@pytest.mark.parametrize("length", [4, 5, 6, 8, 13])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_powers_of_rows_that_are_written_out_are_left(length: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 5, 6 and 13 numbers of bfloat16 are no vector code; of each other length, and of float32, they are."""
    of_xla(monkeypatch, has_vector_sums=False)
    x = jnp.ones((6_000, length), dtype)
    is_left = dtype == "bfloat16" and length in (5, 6, 13)
    for name, f in (("pow", lambda x: x**0.7), ("atan", jnp.arctan)):
        if is_left:
            assert refusals(f, RULES[name], x) == [f"rows of {length} are no vector code"]
        else:
            assert fired(f, RULES[name], x) == 1
    assert fired(jnp.tan, RULES["tan"], x)


@pytest.mark.parametrize("ours", ["atan2", "power"])
def test_operands_are_spread(ours: str) -> None:
    """Scalars and dimensions of size 1 are taken as they are, on both sides, as JAX's operations take them."""
    f = getattr(elementary, ours)
    x, y = X[:, :1], X[:1]
    np.testing.assert_array_equal(f(x, y), f(jnp.broadcast_to(x, X.shape), jnp.broadcast_to(y, X.shape)))
    np.testing.assert_array_equal(f(X, jnp.float32(0.3)), f(X, jnp.full(X.shape, 0.3, X.dtype)))


@pytest.mark.parametrize(
    ("place", "name"), [("vmap", "pow"), ("gradient", "sin"), ("scan", "atan2"), ("branch", "cbrt")]
)
def test_fires_where_the_function_stands(place: str, name: str) -> None:
    """Under vmap, in the program of a gradient, in loops and in branches."""
    assert fired(PLACES[place](NATURAL[name]), RULES[name], X) >= 1


# In cbrt, tan, ... what follows the rounding is a few vector operations of float32.
@pytest.mark.parametrize("name", ["sin", "cos", "atan", "acos", "cbrt", "pow"])
def test_what_rows_share_is_computed_once(name: str) -> None:
    """A row that a broadcast reads is computed once, to the end: the kernel of all rows has nothing of float64.

    The sign of a power was found behind the rounding, once for each of 41 rows: a binomial tree took 1.9 of the time.
    """
    function = (lambda x: x[0] ** x) if name == "pow" else NATURAL[name]

    def f(x: Any, rows: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            return jnp.maximum(c, rows - function(x * i)), None

        return lax.scan(step, rows, jnp.arange(100.0))[0]

    rows = jnp.zeros((41, 1000))
    program = jax.jit(ag.optimize(f, rules=elementary.rules, passes=())).lower(X[:125].reshape(-1), rows).compile()
    kernels = [text for text in str(program.as_text()).split("\n\n") if "ROOT" in text]
    assert any("f64[1000]" in text for text in kernels)
    of_rows = [text for text in kernels if "maximum(" in text]
    assert of_rows
    assert not any("f64[" in text for text in of_rows)


NEAR_MISSES: dict[str, tuple[str, Callable[..., Any], Any, str]] = {
    "few elements": ("sin", jnp.sin, X[1:1024], "it has fewer than 8192 elements"),
    "a row that is repeated": (
        "sin",
        lambda x: jnp.sin(abs(jnp.broadcast_to(x, (40, *x.shape)))).sum(0),
        X[1:1024],
        "XLA computes it before it repeats it",
    ),
    "few that are read": (
        "sin",
        lambda x: 2 * jnp.sin(x)[:, 3],
        X,
        "only 2048 of its elements are read, and XLA computes no others",
    ),
    "few that are picked": (
        "atan",
        lambda x: jnp.sum((jnp.arctan(x) + 1)[jnp.array([3, 5, 900])], 0),
        X,
        "only 24 of its elements are read, and XLA computes no others",
    ),
    "few elements of a power": ("pow", lambda x: x**2.5, X[1:], "it has fewer than 16384 elements"),
    "few elements of a dear function": ("atan", jnp.arctan, X[1:512], "it has fewer than 4096 elements"),
    "a step that XLA shares between cores": (
        "sin",
        lambda x: lax.fori_loop(0, 4, lambda _, x: jnp.sin(x), x.reshape(-1)[:2001]),
        X,
        "XLA would share a step's 2001 elements between cores, which takes as long as it saves",
    ),
    "a step that XLA shares for what it joins": (
        "sin",
        lambda x: lax.fori_loop(0, 4, lambda _, x: jnp.stack([x[:, 1], 0.5 * jnp.sin(x[:, 0]) - x[:, 1]], 1), x),
        X.reshape(-1)[:1202].reshape(-1, 2),
        "XLA would share a step's 1202 elements between cores, which takes as long as it saves",
    ),
    "complex": ("sin", jnp.sin, X + 0j, "its operands are not floats of one type"),
    "square root": ("pow", lambda x: x**0.5, X, "XLA writes a power of 0.5 without the C library"),
    "inverse": ("pow", lambda x: lax.pow(x, np.float32(-1)), X, "XLA writes a power of -1 without the C library"),
    "integer exponent": (
        "pow",
        lambda x: lax.pow(x, jnp.arange(8)[None] + 0 * x.astype(int)),
        X,
        "its operands are not floats of one type",
    ),
    "chosen accuracy": (
        "tan",
        lambda x: lax.tan(x, accuracy=lax.AccuracyMode.HIGHEST),
        X,
        "its accuracy is chosen by hand",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """Few elements, other types, what XLA has vector code for, and what its user has chosen."""
    rule, f, x, reason = NEAR_MISSES[name]
    assert refusals(f, RULES[rule], x) == [reason]


def rotated(x: Any) -> Any:
    """Pairs of numbers, turned by angles of their places."""
    a, b = jnp.split(x, 2, -1)
    angle = jnp.arange(x.shape[-2], dtype=x.dtype)[:, None] / (1 + jnp.arange(a.shape[-1], dtype=x.dtype))
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)


SPREAD: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "of a counter": (lambda x: x * jnp.sin(jnp.arange(64.0)), (200, 64)),
    "of an argument": (lambda x: x * jnp.sin(x[0]), (200, 64)),
    "under vmap": (jax.vmap(lambda x: x * jnp.sin(jnp.arange(64.0))), (200, 64)),
    "of a window": (lambda x: x * (1 - jnp.sin(jnp.arange(64.0)) / 2), (200, 64)),
    "along the other axis": (lambda x: x * jnp.sin(jnp.arange(200.0))[:, None], (200, 64)),
    "rotated": (rotated, (8, 80, 32)),
    "in a scan": (lambda x: lax.scan(lambda c, x: (c + x * jnp.sin(x[0]), None), x[0], x)[0], (3, 200, 64)),
    "of one number": (lambda x: x * jnp.sin(x[:1, 0])[None], (200, 64)),
    "an outer product": (lambda x: jnp.outer(x[:, 0], jnp.sin(x[0])), (200, 64)),
    "columns times a row": (lambda x: x[:, :1] @ jnp.sin(x[:1]), (200, 64)),
    "an outer product for each": (jax.vmap(lambda x: jnp.sin(x[:, None]) @ x[None] + 1), (40, 24)),
}


@pytest.mark.parametrize("name", SPREAD)
def test_few_sines_that_are_repeated(name: str) -> None:
    """XLA calls the library for each entry that they are repeated to, however few they are."""
    f, shape = SPREAD[name]
    x = normal(0, *shape)
    assert fired(f, RULES["sin"], x) > 0
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), f(x), 1e-6, 1e-6)
    gradient = jax.grad(lambda x: jnp.sum(f(x) ** 2))
    np.testing.assert_allclose(jax.jit(ag.optimize(gradient))(x), gradient(x), 1e-5, 1e-5)


@pytest.mark.parametrize("shape", [(2, 64), (0, 64), (200, 1)])
def test_few_sines_that_are_hardly_repeated(shape: tuple[int, ...]) -> None:
    """Or not at all."""
    f = SPREAD["of an argument" if shape[0] else "of a counter"][0]
    assert refusals(f, RULES["sin"], normal(0, *shape)) == ["it has fewer than 8192 elements"]


def test_few_sines_that_are_multiplied_and_summed() -> None:
    """A product of more terms than one reads an array of them."""
    f = lambda x: x[:, :2] @ jnp.sin(x[:2])  # noqa: E731
    assert refusals(f, RULES["sin"], normal(0, 200, 64)) == ["it has fewer than 8192 elements"]


def test_an_array_of_sines_is_none_of_repeated_ones() -> None:
    """What is repeated first is an array of many."""
    f = lambda x: jnp.sin(jnp.broadcast_to(x, (9, 64))) * 2  # noqa: E731
    assert refusals(f, RULES["sin"], normal(0, 64)) == ["it has fewer than 8192 elements"]


def test_leaves_float64_alone() -> None:
    """Float64 would need more than float64 to be rounded once."""
    with jax.enable_x64(True):
        assert refusals(jnp.sin, RULES["sin"], X.astype("float64")) == ["it is of float64"]


def test_the_logarithm_of_float64() -> None:
    """Within 0.75 units of the last place, subnormal numbers too; of zeros, infinities, nan and less than 0, C99's."""
    ends = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e-310, 2.0**-1022, 1.7e308, 1 - 2.0**-53]
    rng = np.random.default_rng(0)
    drawn = [np.exp(rng.uniform(-700, 700, 50_000)), 1 + 0.1 * rng.normal(size=50_000), rng.uniform(0.5, 2, 50_000)]
    x = np.concatenate([ends, *drawn])
    with jax.enable_x64(True), np.errstate(all="ignore"):
        got, truth = np.asarray(jax.jit(elementary.log)(x)), np.log(x.astype(np.longdouble))
        assert (np.isfinite(got) == np.isfinite(x) & (x > 0)).all()
        np.testing.assert_allclose(got[: len(ends)], np.log(x[: len(ends)]), 2e-16)
        off = np.abs(got - truth) / np.spacing(np.abs(truth).astype(np.float64))
        assert np.nanmax(np.where(np.isfinite(truth), off, 0)) < 0.75


def test_logarithms_that_are_vector_code_are_left_alone() -> None:
    """Those of float32, what one reduction reads in the end, and what the place of an extremum is looked for in."""
    with jax.enable_x64(True):
        x = X.astype("float64") + 1
        assert fired(lambda x: jnp.log(x) + 1, RULES["log"], x) == 1
        assert fired(lambda x: (jnp.log(x).sum(), (jnp.log(x) ** 2).sum()), RULES["log"], x) == 1
        for summed in (lambda x: jnp.log(x), lambda x: (jnp.log(x) - 1) ** 2 / 3 - jnp.log(x)):
            assert refusals(lambda x, summed=summed: summed(x).sum(), RULES["log"], x) == [SUMMED]
        rows = x.reshape(-1, 4)
        for find in (jnp.argmax, jnp.argmin):
            drawn = refusals(lambda x, find=find: find(x - jnp.log(x), -1), RULES["log"], rows)
            assert drawn == ["the place of an extremum is all that reads it: they are one loop, of scalar code"]
        assert fired(lambda x: (jnp.argmax(jnp.log(x), -1), jnp.log(x) + 1), RULES["log"], rows) == 1
        assert refusals(jnp.log, RULES["log"], X) == ["it is of float32, not of float64"]
        assert refusals(jnp.log, RULES["log"], x[:9]) == ["it has fewer than 4096 elements"]


def test_has_the_derivatives_of_the_function() -> None:
    """First and second derivatives of what is written, batched too, are those of JAX.

    A rule of the final stage does not fire where a derivative is still to be taken, if that is known.
    """

    def derivatives(sin: Any, atan2: Any, cbrt: Any, power: Any) -> Any:
        def f(x: Any) -> Any:
            return (sin(x) * atan2(x, 1 - x) + power(cbrt(x + 1), x + 0.25)).sum()

        return jax.jit(jax.vmap(lambda x: (jax.grad(f)(x), jax.grad(lambda x: jax.grad(f)(x).sum())(x))))

    ours = derivatives(elementary.sin, elementary.atan2, elementary.cbrt, elementary.power)
    natural = derivatives(jnp.sin, jnp.arctan2, jnp.cbrt, jnp.power)
    x = normal(1, 128, 16) % 1
    for got, want in zip(ours(x), natural(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_keeps_its_claim() -> None:
    """`check_rule` at its probes, which hold subnormal numbers, inf and nan, under vmap and grad."""
    fires_on = [(lambda x: jnp.sin(x) + 1, (normal(0, 8192),))]
    ag.check_rule(RULES["sin"], fires_on=fires_on, leaves_alone=[jnp.cos, jnp.sinh])
