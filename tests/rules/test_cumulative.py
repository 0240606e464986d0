"""Cumulative operations by rows and by trees agree with JAX's, and stay as they are where that is faster."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules.cumulative import in_a_tree, row_by_row
from rules.rules_under_test import fired, normal, refusals
from rules.specials import bits_with, integers, rules_fired, specials

NATURAL = {
    "cumsum": lax.cumsum,
    "cumprod": lax.cumprod,
    "cummax": lax.cummax,
    "cummin": lax.cummin,
    "cumlogsumexp": lax.cumlogsumexp,
}
SUM = ag.rules.cumsum_by_rows
EXTREMA = [ag.rules.cummax_by_rows, ag.rules.cummin_by_rows]

SPELLINGS: dict[str, tuple[Any, Any]] = {
    "one axis": (jnp.cumsum, normal(0, 1500)),
    "last axis": (lambda x: jnp.cumsum(x, -1), normal(1, 40, 70)),
    "short rows": (lambda x: jnp.cumsum(x, -1), normal(1, 64, 7)),
    "long rows": (lambda x: jnp.cumsum(x, 0), normal(2, 40, 300)),
    "flat": (lambda x: jnp.cumsum(x), normal(3, 40, 30)),
    "backward": (lambda x: lax.cumsum(x, 1, reverse=True), normal(4, 5, 101, 3)),
    "of bfloat16": (lambda x: jnp.cumsum(x, 0), abs(normal(5, 40, 300, dtype="bfloat16"))),
    "complex": (lambda x: jnp.cumsum(x.real, 0), normal(6, 40, 300).astype(complex)),
    "few columns": (lambda x: jnp.cumsum(x, 0), normal(10, 600, 2, 3)),
    "vmap": (jax.vmap(jnp.cumsum, 1, 1), normal(7, 64, 20)),
    "gradient": (jax.grad(lambda x: jnp.sum(jnp.cumsum(x) ** 2)), normal(8, 1500)),
    "scan": (lambda x: lax.scan(lambda c, row: (c + jnp.cumsum(row), None), 0 * x[0], x)[0], normal(9, 3, 1200)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_sums(name: str) -> None:
    """Fires, and agrees up to the order of the sums."""
    f, x = SPELLINGS[name]
    assert fired(f, SUM, x) == 1 + (name == "gradient")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("make", "is_stored"), [(lax.erf_inv, True), (jnp.tanh, False), (lambda x: x * x, False)])
def test_much_arithmetic_is_done_once(make: Any, is_stored: bool, axis: int) -> None:
    """A tree reads its entries in each branch: sums of normal numbers took 1.1 to 3 of JAX's time."""

    def f(x: Any) -> Any:
        return jnp.cumsum(0.06 * make(x) - 0.002, axis)

    x = jax.random.uniform(jax.random.key(0), (20, 20), minval=-0.9, maxval=0.9)
    text = str(jax.make_jaxpr(ag.optimize(f, rules=[SUM], passes=()))(x))
    assert "cumsum" not in text
    assert ("bitcast_convert_type" in text) == is_stored
    np.testing.assert_allclose(ag.optimize(f)(x), f(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(40, 300), (64, 33), (300, 5), (1000, 1)])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extrema(name: str, shape: tuple[int, int]) -> None:
    """Extrema are the same numbers, in both directions, nan and infinities too."""
    x = specials(0, *shape)
    for reverse in (False, True):
        ours = jax.jit(ag.optimize(lambda x, r=reverse: NATURAL[name](x, 0, reverse=r), rules=EXTREMA, passes=()))
        np.testing.assert_array_equal(ours(x), NATURAL[name](x, 0, reverse=reverse))
    assert rules_fired(bits_with(lambda x: NATURAL[name](x, 0), EXTREMA, integers(1, *shape)))


def test_integers_are_exact() -> None:
    """Sums of integers are the same numbers, also where they overflow."""
    assert rules_fired(bits_with(lambda x: lax.cumsum(x, 1), [SUM], integers(0, 30, 77)))
    assert rules_fired(bits_with(lambda x: lax.cumprod(x, 0), [ag.rules.cumprod_by_rows], integers(1, 77, 300)))


@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 21, 66])
def test_any_length(n: int) -> None:
    """All ways agree with NumPy for every length and direction, along the first, a middle and the last axis."""
    cases = list(itertools.product((in_a_tree, row_by_row), (0, 1, 2), (False, True)))
    shapes = [tuple(n if a == axis else 2 for a in range(3)) for axis in range(3)]
    xs = [normal(n, *shape) for shape in shapes]
    ours = jax.jit(lambda xs: [way("cumsum", xs[axis], axis, reverse) for way, axis, reverse in cases])(xs)
    for got, (_, axis, reverse) in zip(ours, cases, strict=True):
        x = np.flip(xs[axis], axis) if reverse else np.asarray(xs[axis])
        want = np.cumsum(x, axis)
        np.testing.assert_allclose(got, np.flip(want, axis) if reverse else want, rtol=2e-5, atol=1e-5)


def test_long_sums_keep_their_digits() -> None:
    """A tree adds numbers of one size: the rounding errors of 40,000 additions do not pile up."""
    x = jnp.full((40_000, 2), 0.1, jnp.float32)
    got = jax.jit(ag.optimize(lambda x: jnp.cumsum(x, 0), rules=[SUM], passes=()))(x)
    truth = np.cumsum(np.asarray(x, np.float64), 0)
    assert np.max(np.abs(got - truth) / truth) < 1e-6


@pytest.mark.parametrize(
    ("shape", "loops"), [((40, 17), 1), ((1000, 200), 1), ((300,), 1), ((31, 100), 0), ((40, 4), 0)]
)
def test_rows_are_looped_over(shape: tuple[int, ...], loops: int) -> None:
    """Along the first axis it is one loop, from 32 steps and 200 numbers on; fewer are a tree."""
    rules = [SUM, ag.rules.cumprod_by_rows]
    for f in (lambda x: jnp.cumsum(x, 0), lambda x: jnp.cumprod(1 + 0.01 * x, 0)):
        program = jax.make_jaxpr(ag.optimize(f, rules=rules, passes=()))(normal(0, *shape))
        assert [eqn.primitive.name for eqn in program.eqns].count("scan") == loops


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "loops"),
    [
        ((40, 65), 1, "float32", 1),
        ((90, 200), 1, "int32", 1),
        ((3, 5, 40), 2, "float32", 1),
        ((40, 1025), 1, "float32", 0),  # more steps than a sum may take
        ((40, 1000), 1, "float32", 0),  # more bytes than the nearest cache has
        ((40, 65), 1, "float64", 0),
        ((8, 40, 9), 1, "float32", 0),  # an axis in the middle
        ((100, 31), 1, "float32", 0),
        ((6, 33), 1, "float32", 0),
    ],
)
def test_columns_of_little_are_looped_over(shape: tuple[int, ...], axis: int, dtype: str, loops: int) -> None:
    """Along the last axis too, where the matrix lies in the nearest cache, in both directions and for extrema."""
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(10 * normal(0, *shape), dtype)
        for name, reverse in (("cumsum", False), ("cumsum", True), ("cummax", False)):
            natural = lambda x, name=name, reverse=reverse: NATURAL[name](x, axis, reverse=reverse)  # noqa: E731
            if reverse and (not loops and x.size // shape[axis] > 64):
                continue  # left alone
            written = ag.optimize(natural, rules=[SUM, *EXTREMA], passes=())
            assert [eqn.primitive.name for eqn in jax.make_jaxpr(written)(x).eqns].count("scan") == loops
            np.testing.assert_allclose(jax.jit(written)(x), natural(x), rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("shape", "axis", "at"), [((50, 7), 0, 49), ((7, 50), 1, 20), ((3, 40, 5), 1, 0), ((9,), 0, 8)]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_one_entry_are_repeated(shape: Any, axis: int, at: int, dtype: str, reverse: bool) -> None:
    """What one entry of a sum passes back is no sum of zeros; nan and infinities stay on their side."""
    with jax.enable_x64(dtype == "float64"):
        n = shape[axis]
        one = tuple(1 if a == axis else m for a, m in enumerate(shape))
        number = jnp.asarray(10 * normal(0, *one), dtype)
        if dtype != "int32" and number.size > 2:
            number = number.at[(0,) * len(one)].set(np.nan)
        config = [(at, n - 1 - at, 0) if a == axis else (0, 0, 0) for a in range(len(one))]

        def natural(x: Any) -> Any:
            return lax.cumsum(lax.pad(x * 2, jnp.zeros((), dtype), config), axis, reverse=reverse)

        for f in (natural, jax.vmap(natural)):
            x = number if f is natural else jnp.stack([number, number + 1])
            written = ag.optimize(f, rules=[SUM], passes=())
            made = {eqn.primitive.name for eqn in jax.make_jaxpr(written)(x).eqns}
            assert made.isdisjoint({"cumsum", "scan", "concatenate", "add_any"})
            np.testing.assert_array_equal(jax.jit(written)(x), jax.jit(f)(x))


def test_gradient_of_the_end_of_a_sum() -> None:
    """Twice: the end is a sum, and what it passes back a copy of it for each term."""
    x = normal(0, 30, 40)
    natural = jax.grad(lambda x: (jnp.cumsum(jnp.tanh(x), 0)[-1] ** 2).sum())
    rules = [SUM, ag.rules.last_of_cumsum]
    text = str(jax.make_jaxpr(ag.optimize(natural, rules=rules, passes=()))(x))
    assert "cumsum" in str(jax.make_jaxpr(natural)(x))
    assert "cumsum" not in text
    assert "scan" not in text
    np.testing.assert_allclose(jax.jit(ag.optimize(natural))(x), jax.jit(natural)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ([(38, 0, 0), (0, 0, 0)], 0.0),  # two numbers
        ([(39, 0, 0), (0, 0, 0)], 1.0),  # no zeros
        ([(0, 0, 0), (39, 0, 0)], 0.0),  # another axis
    ],
)
def test_other_padded_sums_are_sums(config: Any, number: float) -> None:
    """Near misses of what one entry passes back."""
    x = normal(0, 40 - config[0][0], 40 - config[1][0])
    natural = lambda x: lax.cumsum(lax.pad(x, jnp.float32(number), config), 0)  # noqa: E731
    written = ag.optimize(natural, rules=[SUM], passes=())
    assert "scan" in str(jax.make_jaxpr(written)(x))
    np.testing.assert_allclose(jax.jit(written)(x), natural(x), rtol=1e-5, atol=1e-5)


LOGS = [ag.rules.cumlogsumexp_in_a_loop, ag.rules.cumlogsumexp_by_rows]


def test_exponentials() -> None:
    """A loop where it has rows, which is differentiated as one, and a tree where it has none."""
    x = normal(0, 40, 33)
    loss = ag.optimize(lambda x: jnp.sum(jnp.sin(lax.cumlogsumexp(x, 0))), rules=LOGS, passes=())
    want = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.log(jnp.cumsum(jnp.exp(x), 0))))))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), want, rtol=1e-4, atol=1e-5)
    loop, tree = LOGS
    assert fired(lambda x: lax.cumlogsumexp(x, 1, reverse=True), loop, normal(0, 30, 33)) == 1
    assert fired(lambda x: lax.cumlogsumexp(x), tree, normal(1, 1300)) == 1
    assert "1 elements each" in refusals(lambda x: lax.cumlogsumexp(x), loop, normal(1, 1300))[0]


NEAR_MISSES: dict[str, tuple[Any, Any, str]] = {
    "short": (lambda x: jnp.cumsum(x, -1), normal(0, 4000, 2), "2 elements along the axis"),
    "small": (jnp.cumsum, normal(0, 60), "60 elements, fewer than 64"),
    "backward over rows": (lambda x: lax.cumsum(x, 1, reverse=True), normal(0, 700, 70), "runs backward"),
    "complex": (jnp.cumsum, normal(0, 2000).astype(complex), "complex"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """Leaves alone what it would make slower, and says why."""
    f, x, reason = NEAR_MISSES[name]
    found = refusals(f, SUM, x)
    assert found
    assert all(reason in one for one in found)


@pytest.mark.parametrize("name", ["cumsum", "cummin"])
def test_claim(name: str) -> None:
    """`check_rule`: nan, infinities and the largest numbers, gradients and `vmap`."""
    ag.check_rule(
        getattr(ag.rules, f"{name}_by_rows"),
        fires_on=[(lambda x: NATURAL[name](x, 0), (normal(0, 35, 30),))],
        leaves_alone=[(lambda x: NATURAL[name](x, 1), (normal(0, 40, 2),)), (jnp.sort, (normal(0, 40),))],
    )
