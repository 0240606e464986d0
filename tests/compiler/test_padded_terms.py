"""Terms that are padded in one way are added up before."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.padded_terms import PaddedTerms
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
    """Each entry three times, cut anew."""
    return jnp.sum(jnp.sin(x[:, 0]) * x[:, 1] + x[:, 0] ** 2 * jnp.cos(x[:, 1]) - x[:, 0] * x[:, 2])


APART: dict[str, tuple[Function, Any, int]] = {
    "determinants": (jax.grad(lambda m: jnp.sum(jnp.linalg.det(m) ** 2)), M, 9),
    "determinants of examples": (jax.grad(lambda m: jnp.sum(jax.vmap(jnp.linalg.det)(m) ** 2)), M, 9),
    "one determinant": (jax.grad(jnp.linalg.det), M[0], 9),
    "columns": (jax.grad(in_turn), normal(1, 11, 3), 3),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda _, x: x + 0.1 * jax.grad(in_turn)(x), x), normal(1, 11, 3), 3),
}
OVERLAPPING: dict[str, tuple[Function, Any, int]] = {
    "a number for all": (jax.grad(lambda x: in_turn(x) + jnp.sum(x**3)), normal(1, 11, 3), 3),
    "shifted": (jax.grad(lambda x: jnp.sum(x[1:] * x[:-1] + x[1:] ** 3 - jnp.exp(x[:-1]))), normal(2, 19), 2),
}
LEFT: dict[str, tuple[Function, Any]] = {
    "each once": (jax.grad(lambda x: jnp.sum(x[:, 0] * x[:, 1])), normal(1, 11, 3)),
    "other numbers around": (lambda x: lax.pad(x, 0.0, [(1, 1, 0)]) + lax.pad(2 * x, 1.0, [(1, 1, 0)]), normal(3, 9)),
    "minus zero around": (lambda x: lax.pad(x, -0.0, [(1, 1, 0)]) + lax.pad(2 * x, -0.0, [(1, 1, 0)]), normal(3, 9)),
    "cut": (lambda x: lax.pad(x, 0.0, [(-1, 2, 0)]) + lax.pad(2 * x, 0.0, [(-1, 2, 0)]), normal(3, 9)),
    "read elsewhere": (
        lambda x: (lambda a, b: (a + b, jnp.sin(a)))(*(lax.pad(k * x, 0.0, [(1, 0, 0)]) for k in (1, 2))),
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
    """Of a neo-Hookean solid, whose energy has a logarithm of a determinant."""

    def energy(f: Any) -> Any:
        volume = jnp.linalg.det(f)
        return jnp.sum(jnp.sum(f * f, (-1, -2)) / 2 - jnp.log(volume) + jnp.log(volume) ** 2 / 2)

    return jax.grad(energy)(f)


def stores(f: Function, x: Any) -> bool:
    """Whether XLA is made to store something: it is divided by a one that is made of bits."""
    return "bitcast_convert_type" in str(jax.make_jaxpr(alone(f))(x))


def test_what_is_dear_and_goes_into_several_entries_is_stored() -> None:
    """Of matrices; columns are unrolled, and what is not dear is left to XLA, and so is all before differentiation."""
    x = jnp.eye(3) + 0.1 * M
    assert stores(stress, x)
    np.testing.assert_allclose(jax.jit(alone(stress))(x), jax.jit(stress)(x), rtol=1e-4, atol=1e-5)
    assert not stores(jax.grad(in_turn), normal(1, 11, 3))
    assert not stores(APART["determinants"][0], M)
