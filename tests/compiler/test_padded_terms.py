"""Terms that are padded in one way are added up before."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.padded_terms import PaddedTerms
from aerogel.compiler.rules import elementary
from compiler.loop_patterns import normal
from compiler.programs_of import bits

Function = Callable[[Any], Any]
M = normal(0, 7, 3, 3)


def alone(f: Function, **options: Any) -> Function:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(PaddedTerms(),), **options)


def pads(f: Function, x: Any) -> int:
    """How many equations pad."""
    return sum(eqn.primitive.name == "pad" for eqn in jax.make_jaxpr(jax.jit(f, inline=True))(x).jaxpr.eqns)


def in_turn(x: Any) -> Any:
    """Each column four times, cut anew."""

    def of_three(i: int) -> Any:
        a, b, c = x[:, i], x[:, (i + 1) % 6], x[:, (i + 2) % 6]
        return jnp.sum(jnp.sin(a) * b - c * a**2)

    return sum(map(of_three, range(6)))


def minors(m: Any) -> Any:
    """Determinants, each from three minors."""

    def minor(p: int, q: int) -> Any:
        return m[:, 1, p] * m[:, 2, q] - m[:, 1, q] * m[:, 2, p]

    return m[:, 0, 0] * minor(1, 2) - m[:, 0, 1] * minor(0, 2) + m[:, 0, 2] * minor(0, 1)


def von_mises(s: Any) -> Any:
    """Equivalent stresses: each diagonal entry is cut twice."""
    off = s[:, 0, 1] ** 2 + s[:, 1, 2] ** 2 + s[:, 2, 0] ** 2
    apart = (s[:, k, k] - s[:, k - 1, k - 1] for k in range(3))
    return jnp.sqrt(sum(x**2 for x in apart) / 2 + 3 * off)


APART: dict[str, tuple[Function, Any, int]] = {
    "determinants": (jax.grad(lambda m: jnp.sum(jnp.linalg.det(m) ** 2)), M, 9),
    "determinants of examples": (jax.grad(lambda m: jnp.sum(jax.vmap(jnp.linalg.det)(m) ** 2)), M, 9),
    "one determinant": (jax.grad(jnp.linalg.det), M[0], 9),
    "columns": (jax.grad(in_turn), normal(1, 11, 6), 6),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda _, x: x + 0.1 * jax.grad(in_turn)(x), x), normal(1, 11, 6), 6),
}
OVERLAPPING: dict[str, tuple[Function, Any, int]] = {
    "a number for all": (jax.grad(lambda x: in_turn(x) + jnp.sum(x**3)), normal(1, 11, 6), 6),
    "shifted": (
        jax.grad(lambda x: sum(jnp.sum(jnp.sin(k * x[1:]) * x[:-1]) for k in range(1, 9))),
        normal(2, 19),
        2,
    ),
}
LEFT: dict[str, tuple[Function, Any]] = {
    "each once": (jax.grad(lambda x: jnp.sum(x[:, 0] * x[:, 1])), normal(1, 11, 3)),
    "few of cheap work": (jax.grad(lambda m: jnp.sum(minors(m))), M),
    "few of dear work": (
        jax.grad(
            lambda m: jnp.sum(jnp.sqrt(m[:, 0, 0] ** 2 + m[:, 1, 1] ** 2) * (m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1]))
        ),
        M,
    ),
    "other numbers around": (lambda x: lax.pad(x, 0.0, [(1, 1, 0)]) + lax.pad(2 * x, 1.0, [(1, 1, 0)]), normal(3, 9)),
    "minus zero around": (lambda x: lax.pad(x, -0.0, [(1, 1, 0)]) + lax.pad(2 * x, -0.0, [(1, 1, 0)]), normal(3, 9)),
    "cut": (lambda x: lax.pad(x, 0.0, [(-1, 2, 0)]) + lax.pad(2 * x, 0.0, [(-1, 2, 0)]), normal(3, 9)),
    "read elsewhere": (
        lambda x: (lambda a, b: (a + b, jnp.sin(a)))(lax.pad(x, 0.0, [(1, 0, 0)]), lax.pad(2 * x, 0.0, [(1, 0, 0)])),
        M[0, 0],
    ),
    "a difference": (lambda x: lax.pad(x, 0.0, [(1, 1, 0)]) - lax.pad(2 * x, 0.0, [(1, 1, 0)]), normal(3, 9)),
}


@pytest.mark.parametrize("name", [*APART, *OVERLAPPING])
def test_each_place_is_padded_once(name: str) -> None:
    """As many pads as places; values of doubles agree, and those of what does not overlap in every bit."""
    f, x, after = {**APART, **OVERLAPPING}[name]
    assert str(jax.make_jaxpr(f)(x)).count("= pad[") > after
    assert str(jax.make_jaxpr(alone(f))(x)).count("= pad[") == after
    with jax.enable_x64(True):
        wide = jnp.asarray(np.asarray(x, np.float64))
        np.testing.assert_allclose(jax.jit(alone(f))(wide), jax.jit(f)(wide), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in APART if name != "in a loop"])
def test_no_bit_changes_where_places_do_not_overlap(name: str) -> None:
    """Run one by one, nan, infinities and signs of zeros included; so `strict` numerics have it."""
    f, x, after = APART[name]
    x = jnp.asarray(x).ravel().at[3].set(jnp.nan).at[5].set(jnp.inf).at[0].set(-0.0).reshape(x.shape)
    with jax.disable_jit():
        assert bits([alone(f)(x)]) == bits([f(x)])
    assert str(jax.make_jaxpr(alone(f, numerics="strict"))(x)).count("= pad[") == after


@pytest.mark.parametrize("name", OVERLAPPING)
def test_another_order_is_not_strict(name: str) -> None:
    """What several terms add to one number stays as it is."""
    f, x, _ = OVERLAPPING[name]
    assert str(jax.make_jaxpr(alone(f, numerics="strict"))(x)) == str(jax.make_jaxpr(f)(x))


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left(name: str) -> None:
    """The same program."""
    f, x = LEFT[name]
    assert str(jax.make_jaxpr(alone(f))(x)) == str(jax.make_jaxpr(f)(x))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int32, jnp.complex64])
def test_types_and_no_entries(dtype: Any) -> None:
    """All numbers, of a weak type not; and arrays of none."""
    f = jax.jit(lambda x: sum(lax.pad(k * x, np.zeros((), dtype), [(k % 2, 1 - k % 2, 0)]) for k in range(1, 5)))
    for n in (0, 9):
        x = jnp.arange(n).astype(dtype)
        np.testing.assert_array_equal(np.asarray(jax.jit(alone(f))(x)), np.asarray(f(x)))


@pytest.mark.parametrize("first", [True, False])
def test_under_vmap_and_grad(first: bool) -> None:
    """Before and after them."""
    f = APART["determinants"][0]
    examples = jax.vmap, jnp.stack([M, 2 * M])
    derivative = (lambda h: jax.grad(lambda m: jnp.sum(h(m) ** 2))), M
    for change, x in (examples, derivative):
        g = change(alone(f)) if first else alone(change(f))
        np.testing.assert_allclose(jax.jit(g)(x), jax.jit(change(f))(x), rtol=2e-4, atol=1e-3)


def stress(f: Any) -> Any:
    """Of a neo-Hookean solid, whose energy has a logarithm of a determinant, and a sum over whole matrices."""

    def energy(f: Any) -> Any:
        volume = jnp.linalg.det(f)
        return jnp.sum(jnp.sum(f * f, (-1, -2)) / 2 - jnp.log(volume) + jnp.log(volume) ** 2 / 2)

    return jax.grad(energy)(f)


def of_columns(op: Function, x: Any) -> Any:
    """The gradient of each column's function times the next column."""
    number = x.shape[-1]
    return jax.grad(lambda x: sum(jnp.sum(op(x[..., i]) * x[..., (i + 1) % number]) for i in range(number)))(x)


def stepped(f: Function, x: Any) -> Any:
    """Three steps along a gradient."""
    return lax.fori_loop(0, 3, lambda _, x: x - 0.01 * f(x), x)


def green(f: Any) -> Any:
    """The squares of a strain, of which entries ij and ji are the same."""

    def entry(i: int, j: int) -> Any:
        return jnp.sum((sum(f[:, k, i] * f[:, k, j] for k in range(3)) - (i == j)) ** 2)

    return sum(entry(i, j) for i in range(3) for j in range(3))


MATRICES = jnp.eye(3) + 0.1 * normal(1, 1024, 3, 3)
COLUMNS = normal(2, 1024, 3)
BESIDE: dict[str, tuple[Function, Any]] = {
    "columns": (partial(of_columns, jax.nn.gelu), COLUMNS),
    "first columns": (lambda x: partial(of_columns, jax.nn.gelu)(x.T).T, COLUMNS.T),
    "columns of a function that is called": (partial(of_columns, jax.nn.softplus), COLUMNS),
    "columns of sines": (partial(of_columns, jnp.sin), normal(2, 8192, 3)),
    "in a loop, of few": (partial(stepped, partial(of_columns, jnp.tan)), 0.1 * normal(2, 300, 3)),
    "each once": (jax.grad(lambda x: jnp.sum(jnp.expm1(x[:, 0]) * jnp.expm1(x[:, 1]) * jnp.sinh(x[:, 2]))), COLUMNS),
    "not all of them": (lambda x: partial(of_columns, jax.nn.gelu)(jnp.pad(x, ((0, 0), (1, 2)))[:, 1:5]), COLUMNS),
    "of several widths": (
        jax.grad(lambda x: jnp.sum(jnp.sinh(x[:, :2]) * jnp.sinh(x[:, 4:]) * jnp.expm1(x[:, 2:3]))),
        normal(3, 1024, 6),
    ),
    "entries, and whole matrices": (stress, MATRICES),
    "entries, not all of them": (jax.grad(lambda s: jnp.sum(jnp.log1p(von_mises(s)))), MATRICES),
    "entries that are added twice": (jax.grad(green), MATRICES),
    "many entries of cheap work": (jax.grad(lambda m: jnp.sum(jnp.linalg.det(m) ** 2)), MATRICES),
}
NOT_BESIDE: dict[str, tuple[Function, Any]] = {
    "short code": (partial(of_columns, jnp.exp), COLUMNS),
    "few rows": (partial(of_columns, jax.nn.gelu), COLUMNS[:1000]),
    "calls of the C library": (partial(of_columns, jnp.sin), COLUMNS),
    "few sines of a loop": (partial(stepped, partial(of_columns, jnp.sin)), normal(2, 1024, 3)),
    "float64": (partial(of_columns, jax.nn.gelu), np.asarray(COLUMNS, np.float64)),
    "over each other": (
        jax.grad(lambda x: jnp.sum(jnp.sinh(x[:, :2]) * jnp.sinh(x[:, 1:3]) * jnp.expm1(x[:, 2:]))),
        normal(3, 1024, 4),
    ),
    "no rows": (
        jax.grad(
            lambda m: (
                jnp.sum(jnp.sinh(m[:, :2, :2]) + jnp.sinh(m[:, :1, 2:]) * jnp.sinh(m[:, 1:2, 2:]))
                + jnp.sum(jnp.sinh(m[:, 2:, :1]) * jnp.sinh(m[:, 2:, 1:2]) * jnp.sinh(m[:, 2:, 2:]))
            )
        ),
        MATRICES,
    ),
}


def written(f: Function, x: Any, **options: Any) -> str:
    """The program with this pass alone."""
    with jax.enable_x64(np.asarray(x).dtype == np.float64):
        return str(jax.make_jaxpr(alone(f, **options))(x))


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_much_code_is_put_beside_each_other(name: str) -> None:
    """No padding is left of such a sum; the numbers are those of doubles, as near as plain JAX's."""
    f, x = BESIDE[name]
    assert any("beside each other" in one.reason for one in ag.explain(f)(x).fired if one.rule == "padded-terms")
    assert "= concatenate[" in written(f, x)
    assert written(f, x).count("= pad[") < 2
    assert written(f, x, numerics="strict").count("= concatenate[") == str(jax.make_jaxpr(f)(x)).count("= concatenate[")
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(f)(np.asarray(x, np.float64)))
    plain, ours = (np.asarray(jax.jit(g)(x)) for g in (f, ag.optimize(f)))
    scale = np.abs(exact).max()
    assert np.abs(ours - exact).max() <= 2 * np.abs(plain - exact).max() + 1e-6 * scale


@pytest.mark.parametrize("name", NOT_BESIDE)
def test_what_is_little_code_or_overlaps_is_not(name: str) -> None:
    """The numbers are plain JAX's."""
    f, x = NOT_BESIDE[name]
    with jax.enable_x64(np.asarray(x).dtype == np.float64):
        assert written(f, x).count("= concatenate[") == str(jax.make_jaxpr(f)(x)).count("= concatenate[")
        np.testing.assert_allclose(jax.jit(alone(f))(x), jax.jit(f)(x), rtol=1e-4, atol=1e-5)


def test_few_sines_under_paddings_stay_calls() -> None:
    """XLA would compute vector code for each number of each column."""
    f = partial(stepped, partial(of_columns, jnp.sin))
    explained = ag.explain(f, rules=elementary.rules)
    few, many = ({one.rule for one in explained(normal(2, n, 3)).fired} for n in (1024, 2048))
    assert "vector-sin" not in few
    assert "vector-sin" in many
