"""Ends of cumulative sums, searches in short tables, and powers of quarters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules.lookups import FEWEST, FEWEST_EVENLY, FEWEST_OF_MORE, MANY, _is_even
from aerogel.compiler.rules.powers import POWERS
from aerogel.compiler.rules.reductions import MANY as MANY_EXTREMA
from rules.rules_under_test import fired, normal, refusals
from rules.specials import bits_with, integers, rules_fired, specials

END, SEARCH, POWER = ag.rules.last_of_cumsum, ag.rules.searched_short, ag.rules.root_power
AT_ONCE, EVENLY = ag.rules.searched_at_once, ag.rules.searched_evenly
HIGHEST, LOWEST = ag.rules.last_of_cummax, ag.rules.last_of_cummin
X = normal(0, 20, 30)
TABLE = jnp.sort(normal(2, 20))


SPELLINGS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "end": (END, lambda x: jnp.cumsum(x)[-1], (X,)),
    "end of rows": (END, lambda x: lax.cumsum(x, 1, reverse=True)[:, :1], (X,)),
    "end under vmap": (END, jax.vmap(lambda x: jnp.cumsum(x)[-1]), (X,)),
    "end of a count": (END, lambda x: jnp.cumsum(x > 0, 0)[-1], (X,)),
    "end in bfloat16": (END, lambda x: jnp.cumsum(x)[-1], (abs(X.astype("bfloat16")),)),
    "end in a scan": (END, lambda x: lax.scan(lambda c, r: (c + jnp.cumsum(r)[-1], c), 0.0, x), (X,)),
    "end of maxima": (HIGHEST, lambda x: lax.cummax(x)[-1], (X,)),
    "end of maxima of rows, backward": (HIGHEST, lambda x: lax.cummax(x, 1, reverse=True)[:, 0], (X,)),
    "end of minima under vmap": (LOWEST, jax.vmap(lambda x: lax.cummin(x)[-1]), (X,)),
    "end of minima in float16": (LOWEST, lambda x: lax.cummin(x, 1)[:, -1:], (X.astype("float16"),)),
    "end of maxima in a scan": (HIGHEST, lambda x: lax.scan(lambda c, r: (c + lax.cummax(r)[-1], c), 0.0, x), (X,)),
    "power": (POWER, lambda x: x**1.5, (abs(X),)),
    "power below": (POWER, lambda x: jnp.power(x, -0.5), (abs(X),)),
    "power in a loop": (POWER, lambda x: lax.fori_loop(0, 2, lambda _, x: x**2.5, x), (abs(X) / 2,)),
    "power under vmap": (POWER, jax.vmap(lambda x: 2 * x**3.5), (abs(X),)),
    "power of any sign": (POWER, lambda x: jnp.power(x * x + 1, 0.25), (X,)),
    "power of a sum of squares": (POWER, lambda x: jnp.sum(x * x, 1) ** -1.25, (X,)),
    "whole power": (POWER, lambda x: x**4.0, (X,)),
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, wide: bool) -> None:
    """Fires, and agrees; with 64 bits allowed, on the same arrays."""
    rule, f, args = SPELLINGS[name]
    with jax.enable_x64(wide):
        assert fired(f, rule, *args) == 1


@pytest.mark.parametrize("shape", [(5,), (2, 2), (7, 33), (2 * MANY_EXTREMA,), (3, MANY_EXTREMA)])
@pytest.mark.parametrize("odd", [(), (np.nan,), (-np.nan,), (np.inf, -np.inf), (3e38, 3e38), (np.inf, np.nan)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
def test_ends_of_extrema(shape: tuple[int, ...], odd: tuple[float, ...], dtype: str) -> None:
    """The same numbers, and nan in the rows that have one: a reduction on CPU drops it."""
    axis = len(shape) - 1
    with jax.enable_x64(dtype == "float64"):
        x = normal(1, *shape).astype("float64" if dtype == "float64" else "float32")
        x = x * 100 if dtype == "int32" else x.at[(*[0] * axis, slice(0, len(odd)))].set(jnp.array(odd[: shape[-1]]))
        x = x.astype(dtype)
        for rule, f in (
            (HIGHEST, lambda x: lax.cummax(x, axis)[..., -1]),
            (LOWEST, lambda x: lax.cummin(x, axis)[..., -1]),
        ):
            ours = ag.optimize(f, rules=[rule], passes=())
            assert "cum" not in str(jax.make_jaxpr(ours)(x))
            got, want = (np.asarray(jax.jit(g)(x), np.float64) for g in (ours, f))
            np.testing.assert_array_equal(got, want)


def test_ends_of_extrema_under_vmap_take_one_branch() -> None:
    """A row with nan does not make both sides for all."""
    x = normal(0, 3, MANY_EXTREMA).at[1, 5].set(jnp.nan)
    f = jax.vmap(lambda x: lax.cummax(x)[-1])
    ours = ag.optimize(f, rules=[HIGHEST], passes=())
    assert "cond" in {eqn.primitive.name for eqn in jax.make_jaxpr(ours)(x).eqns}
    np.testing.assert_array_equal(jax.jit(ours)(x), jax.jit(f)(x))


def test_gradients_of_ends_of_extrema_are_those_of_jax() -> None:
    """Ties share it in another way by a maximum: nothing is written before the derivative is taken."""
    x = jnp.round(normal(0, 200)).at[3].set(9).at[100:103].set(9)
    f = lambda x: lax.cummax(x)[-1]  # noqa: E731
    np.testing.assert_array_equal(ag.grad(f)(x), jax.grad(f)(x))


def spread_out(x: Any, *shape: int) -> Any:
    """Its entries again and again."""
    return jnp.resize(x, shape)


@pytest.mark.parametrize("right", [False, True])
def test_searches(right: bool) -> None:
    """The same places in short tables: with ties, nan and zeros of both signs; batched, of integers, in no order."""
    side = "right" if right else "left"
    odd = specials(0, 30)
    many = spread_out(specials(1, 40), FEWEST)
    search = lambda t, x: jnp.searchsorted(t, x, side=side)  # noqa: E731
    for f, args in [
        (search, (jnp.sort(odd), many)),
        (search, (odd, many)),
        (search, (-TABLE, spread_out(X, FEWEST))),
        (search, (TABLE, normal(4, 77, 131))),
        (search, (jnp.sort(odd), spread_out(specials(1, 41), FEWEST + 3))),
        (search, (jnp.sort(spread_out(odd, 128)), spread_out(specials(1, 40), FEWEST_OF_MORE))),
        (search, (jnp.sort(spread_out(odd, 128)), spread_out(specials(1, 40), FEWEST_OF_MORE + 1))),
        (search, (spread_out(odd, 33), spread_out(specials(1, 40), 129, 129))),
        (jax.vmap(search, (None, 0)), (jnp.arange(40.0), spread_out(specials(1, 41), 5, FEWEST + 1))),
        (search, (jnp.sort(odd.astype("bfloat16")), many.astype("bfloat16"))),
        (jax.vmap(search, (None, 0)), (TABLE, normal(3, 5, FEWEST))),
        (jax.vmap(search, (None, 0)), (TABLE, normal(3, FEWEST))),
        (lambda t, x: jnp.digitize(x, t, right=right), (TABLE, spread_out(X, FEWEST))),
        (search, (jnp.arange(9), integers(4, FEWEST))),
        (search, (jnp.arange(1), integers(4, FEWEST))),
        (lambda t, x: lax.map(lambda x: search(t, x), x), (TABLE, normal(3, 3, FEWEST))),
    ]:
        assert rules_fired(bits_with(f, [SEARCH], *args)) == [SEARCH.name]


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [2, 33, 1000])
def test_searches_at_once(right: bool, size: int) -> None:
    """The same places in longer tables, in order or not, one for all or one for each."""
    side = "right" if right else "left"
    search = lambda t, x: jnp.searchsorted(t, x, side=side)  # noqa: E731
    odd = spread_out(specials(0, 30), size)
    many = spread_out(specials(1, 40), MANY)
    tables = jnp.sort(normal(1, 4, size))
    for f, args in [
        (search, (odd, many)),
        (search, (jnp.sort(odd), many)),
        (search, (odd, spread_out(specials(1, 40), MANY + 1))),
        (jax.vmap(search), (tables, normal(2, 4, MANY // 4))),
    ]:
        assert rules_fired(bits_with(f, [AT_ONCE], *args)) == [AT_ONCE.name]


EVEN = jnp.linspace(-3.0, 3.0, 601)
NOISE = 0.4 * jnp.sin(jnp.arange(300.0) ** 2)
TABLES = {
    "even": (EVEN, True),
    "even by sums": (jnp.cumsum(jnp.full(200, 0.1)), True),
    "close to even": (jnp.arange(300.0) + NOISE, True),
    "one unit apart": (jnp.linspace(1, 1 + 129 * 2.0**-23, 130), True),
    "powers": (jnp.geomspace(1, 1e3, 400), False),
    "farther from even": (jnp.arange(300.0) + 6 * NOISE, False),
    "equal": (jnp.ones(300), False),
    "backward": (EVEN[::-1], False),
    "infinite": (EVEN.at[-1].set(jnp.inf), False),
    "with nan": (EVEN.at[7].set(jnp.nan), False),
    "ending in nan": (EVEN.at[-3:].set(jnp.nan), False),
    "too large a step": (EVEN / 3 * 3.4e38, False),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", TABLES)
def test_searches_in_even_tables(name: str, dtype: str) -> None:
    """The same places: at the entries, next to them, beyond the ends, of nan; whatever the table is."""
    table, even = TABLES[name]
    assert bool(_is_even(table)) == even
    with jax.enable_x64(dtype == "float64"):
        table = table.astype(dtype)
        near = [jnp.nextafter(table, jnp.full_like(table, side)) for side in (-jnp.inf, jnp.inf)]
        few = jnp.concatenate([*near, table, specials(1, 40, dtype=dtype), (X.ravel() * 100).astype(dtype)])
        x = spread_out(few, max(FEWEST_EVENLY, few.size) + 1)
        for side in ("left", "right"):
            search = lambda t, x, side=side: jnp.searchsorted(t, x, side=side)  # noqa: E731
            assert rules_fired(bits_with(search, [EVENLY], table, x)) == [EVENLY.name]
            assert rules_fired(bits_with(jax.vmap(search, (None, 0)), [EVENLY], table, x.reshape(1, -1)))


def test_what_is_interpolated_on_an_even_grid_is_the_same() -> None:
    """Values and gradients by what was given, bit for bit."""
    y, x = jnp.sin(EVEN), spread_out(normal(5, 300), FEWEST_EVENLY)
    f = lambda y: jnp.interp(x, EVEN, y)  # noqa: E731
    assert EVENLY.name in rules_fired(bits_with(f, [EVENLY], y))
    assert EVENLY.name in rules_fired(bits_with(jax.grad(lambda y: jnp.sum(f(y) ** 2)), [EVENLY], y))


@pytest.mark.parametrize(("rule", "size", "numbers"), [(SEARCH, 20, FEWEST), (EVENLY, 601, 8192), (AT_ONCE, 200, MANY)])
def test_searches_for_what_a_gradient_is_taken_by(rule: Any, size: int, numbers: int) -> None:
    """JAX then does a part of each step in front of the search's loop, which is another spelling of it."""
    x, table, y = spread_out(specials(3, 301), numbers), jnp.linspace(-2.0, 2.0, size), normal(1, size)

    def loss(x: Any, table: Any, y: Any) -> Any:
        return jnp.sum(jnp.interp(x, table, y) ** 2)

    mapped = jax.grad(lambda x: jnp.sum(jax.vmap(lambda x: jnp.interp(x, table, y))(x)))
    gradients = [(jax.value_and_grad(loss, which), (x, table, y)) for which in (0, 1, (0, 1, 2))]
    for f, args in [*gradients, (mapped, (x.reshape(2, -1),))]:
        reports: list[Any] = []
        ours = ag.optimize(f, rules=[rule], passes=(), on_report=reports.append)
        for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ours, f)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
        assert rules_fired(reports[-1]) == [rule.name]


@pytest.mark.parametrize(("rule", "size"), [(SEARCH, 20), (SEARCH, 100), (AT_ONCE, 200)])
def test_an_odd_number_is_looked_up_as_an_even_one_and_one(rule: Any, size: int) -> None:
    """XLA looks up an odd number one by one."""
    x = normal(2, MANY + 1)
    optimised = ag.optimize(jnp.searchsorted, rules=[rule], passes=())
    program = str(jax.make_jaxpr(optimised)(jnp.arange(size + 0.0), x))
    assert "concatenate" in program
    assert f"i32[{MANY}]" in program
    assert "concatenate" not in str(jax.make_jaxpr(optimised)(jnp.arange(size + 0.0), x[:-1]))
    mapped = jax.vmap(jnp.searchsorted, (None, 0))
    assert rules_fired(bits_with(mapped, [rule], jnp.arange(size + 0.0), x)) == [rule.name]


NEAR_MISSES: dict[str, tuple[Any, Any, tuple[Any, ...], str]] = {
    "before the end": (END, lambda x: jnp.cumsum(x)[-2], (X,), "start_indices"),
    "the others are needed": (END, lambda x: (jnp.cumsum(x)[-1], jnp.cumsum(x)), (X,), "in the middle"),
    "the wrong end": (END, lambda x: lax.cumsum(x, 1, reverse=True)[:, -1], (X,), "`"),
    "before the end of maxima": (HIGHEST, lambda x: lax.cummax(x)[-2], (X,), "start_indices"),
    "the other end of minima": (LOWEST, lambda x: lax.cummin(x, 1, reverse=True)[:, -1], (X,), "`"),
    "all maxima are needed": (HIGHEST, lambda x: (lax.cummax(x)[-1], lax.cummax(x)), (X,), "in the middle"),
    "a third": (POWER, lambda x: x ** (1 / 3), (abs(X),), "an exponent of 0.333"),
    "many roots": (POWER, lambda x: x**7.5, (abs(X),), "an exponent of 7.5"),
    "a root": (POWER, lambda x: x**0.5, (abs(X),), "an exponent of 0.5"),
    "a few numbers": (POWER, lambda x: x**1.5, (abs(X[0, :7]),), "fewer than 8 elements"),
    "a variable exponent": (POWER, lambda x, y: x**y, (abs(X), X), "no number"),
    "a long table": (
        SEARCH,
        jnp.searchsorted,
        (jnp.arange(129.0), spread_out(X, FEWEST)),
        "129 entries",
    ),
    "few numbers": (SEARCH, jnp.searchsorted, (TABLE, X), "600 numbers are fewer than 4096"),
    "few numbers for a longer table": (
        SEARCH,
        jnp.searchsorted,
        (jnp.arange(33.0), spread_out(X, FEWEST)),
        "4096 numbers are fewer than 16384",
    ),
    "complex numbers": (
        SEARCH,
        jnp.searchsorted,
        (TABLE + 1j * TABLE, spread_out(X, FEWEST) + 0j),
        "complex numbers",
    ),
    "many tables": (
        SEARCH,
        jax.vmap(jnp.searchsorted),
        (jnp.stack([TABLE] * 5), normal(3, 5, FEWEST)),
        "a table for each example",
    ),
    "a longer table": (AT_ONCE, jnp.searchsorted, (jnp.arange(1025.0), spread_out(X, MANY)), "1025 entries"),
    "not so many numbers": (AT_ONCE, jnp.searchsorted, (TABLE, spread_out(X, FEWEST)), "4096 numbers are fewer"),
    "few numbers for an even table": (EVENLY, jnp.searchsorted, (EVEN, X), "600 numbers are fewer than 8192"),
    "fewer numbers than a long table is worth": (
        EVENLY,
        jnp.searchsorted,
        (jnp.arange(4096.0), spread_out(X, FEWEST_EVENLY)),
        "8192 numbers are fewer than 16384",
    ),
    "a short even table": (EVENLY, jnp.searchsorted, (EVEN[:128], spread_out(X, FEWEST_EVENLY)), "128 entries"),
    "whole numbers": (EVENLY, jnp.searchsorted, (jnp.arange(200), integers(0, FEWEST_EVENLY)), "int32"),
    "an even table for each": (
        EVENLY,
        jax.vmap(jnp.searchsorted),
        (jnp.stack([EVEN] * 2), normal(3, 2, FEWEST_EVENLY)),
        "a table for each example",
    ),
    "another way": (SEARCH, lambda t, x: jnp.searchsorted(t, x, method="sort"), (TABLE, X), ""),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """Leaves alone what is another form, or would lose, and says why."""
    rule, f, args, reason = NEAR_MISSES[name]
    found = refusals(f, rule, *args)
    assert not reason or any(reason in one for one in found)


@pytest.mark.parametrize("exponent", POWERS)
def test_powers_are_close(exponent: float) -> None:
    """Within 4 units in the last place of float64's power, over all sizes of numbers, as large as float32 goes."""
    x = np.exp(np.linspace(-85, 85, 40_001)).astype(np.float32)
    ours = jax.jit(ag.optimize(lambda x: x ** float(exponent), rules=[POWER], passes=()))
    truth, got = x.astype(np.float64) ** exponent, np.asarray(ours(x), np.float64)
    inside = (truth > 1.2e-38) & (truth < 3.4e38)
    error = np.abs(got - truth)[inside] / np.spacing(truth[inside].astype(np.float32))
    assert error.max() < 4
    assert (got[truth >= 3.5e38] == np.inf).all()
    assert (got[truth < 1e-38] <= 1.2e-38).all()


@pytest.mark.parametrize("of", [lambda x: x, jnp.abs])
@pytest.mark.parametrize("exponent", POWERS)
def test_powers_of_what_is_no_ordinary_number(exponent: float, of: Any) -> None:
    """Zeros, infinities, nan and negative numbers have the powers that plain JAX gives, with their signs."""
    x = jnp.asarray([0.0, -0.0, jnp.inf, -jnp.inf, jnp.nan, -1.5, -1e30, 1.0], jnp.float32)
    ours = jax.jit(ag.optimize(lambda x: of(x) ** float(exponent), rules=[POWER], passes=()))
    got, want = np.asarray(ours(x)), np.asarray(jax.jit(lambda x: of(x) ** float(exponent))(x))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_powers_of_other_floats(dtype: str) -> None:
    """Numbers of 16 bits go through float32, and are rounded once; float64 stays float64."""
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.linspace(0.1, 9, 500), dtype)
        for exponent in POWERS:
            ours = ag.optimize(lambda x, e=exponent: x ** float(e), rules=[POWER], passes=())
            truth = np.asarray(x, np.float64) ** exponent
            got = ours(x)
            assert got.dtype == x.dtype
            np.testing.assert_allclose(np.asarray(got, np.float64), truth, rtol=2.01 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("exponent", [1.5, 0.25, 2.5])
def test_gradients_of_powers(exponent: float) -> None:
    """The derivative is a power, too: both are roots, and agree."""
    f = jax.grad(lambda x: jnp.sum(jnp.sin((x * x / 9 + 1) ** exponent)))
    report = ag.explain(f)(X)
    assert {d.rule for d in report.fired} >= {POWER.name}
    np.testing.assert_allclose(ag.optimize(f)(X), f(X), rtol=2e-4, atol=1e-5)


def test_claims() -> None:
    """`check_rule`: nan, infinities and the largest numbers, gradients and `vmap`."""
    for rule, name in ((END, "end of rows"), (POWER, "power")):
        _, f, _ = SPELLINGS[name]
        misses = [(lambda x: x**0.3, (abs(X),)), (jnp.cumsum, (X,))]
        ag.check_rule(rule, fires_on=[(f, (abs(normal(0, 5, 6)),))], leaves_alone=misses)
    misses = [(jnp.searchsorted, (jnp.arange(40.0), X)), (jnp.sort, (X,))]
    ag.check_rule(SEARCH, fires_on=[(jnp.searchsorted, (TABLE, normal(0, FEWEST)))], leaves_alone=misses)
    misses = [(jnp.searchsorted, (jnp.arange(2000.0), X)), (jnp.sort, (X,))]
    ag.check_rule(AT_ONCE, fires_on=[(jnp.searchsorted, (TABLE, normal(0, MANY)))], leaves_alone=misses)
