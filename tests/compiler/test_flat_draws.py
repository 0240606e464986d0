"""Random numbers in short rows are drawn as one row, an odd number of them with one more; they are the same bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.flat_draws import FEWEST_OF_A_KEY, LONG, NAME, SHARED
from aerogel.compiler.program import inner_jaxprs

KEY = jax.random.key(5)
ODD = SHARED + 1


def drawn_shapes(f: Callable[..., Any], *args: Any) -> list[tuple[int, ...]]:
    """The shapes of all draws of a program, those of its loops and calls too."""
    waiting, found = [jax.make_jaxpr(f)(*args).jaxpr], list[tuple[int, ...]]()
    while waiting:
        for eqn in waiting.pop().eqns:
            waiting += inner_jaxprs(eqn)
            if eqn.primitive.name == "random_bits":
                found.append(tuple(eqn.params["shape"]))
    return sorted(found)


def refusals(f: Callable[..., Any], *args: Any) -> list[str]:
    """Why the pass left the draws of a program, all of them."""
    own = [d for d in ag.explain(f)(*args).decisions if d.rule == NAME]
    assert not any(d.fired for d in own)
    return [d.reason for d in own]


def check_bits(f: Callable[..., Any], *args: Any) -> None:
    """The same bits as plain JAX."""
    for got, want in zip(jax.tree.leaves(ag.jit(f)(*args)), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got, float), np.asarray(want, float))


CASES: dict[str, tuple[Callable[..., Any], Any, list[tuple[int, ...]]]] = {
    "short rows": (lambda k: jax.random.bits(k, (31, 6)), KEY, [(186,)]),
    "normal numbers": (lambda k: jax.random.normal(k, (40, 10)), KEY, [(400,)]),
    "three axes": (lambda k: jax.random.uniform(k, (4, 5, 7)), KEY, [(140,)]),
    "an odd number": (lambda k: jax.random.bits(k, (ODD,)), KEY, [(ODD + 1,)]),
    "a column": (lambda k: jax.random.bits(k, (ODD, 1)), KEY, [(ODD + 1,)]),
    "odd short rows": (lambda k: jax.random.bits(k, (ODD, 3)), KEY, [(3 * ODD + 1,)]),
    "an odd number that one thread draws": (lambda k: jax.random.bits(k, (33, 3)), KEY, [(99,)]),
    "several keys": (jax.vmap(lambda k: jax.random.bits(k, (7, 11))), jax.random.split(KEY, 5), [(77,)]),
    "one key in a list": (jax.vmap(lambda k: jax.random.bits(k, (ODD,))), jax.random.split(KEY, 1), [(ODD + 1,)]),
    "rows of keys": (
        jax.vmap(jax.vmap(lambda k: jax.random.bits(k, (9, 2)))),
        jax.random.split(KEY, (3, 2)),
        [(18,)],
    ),
    "words of 8 bits": (lambda k: jax.random.bits(k, (31, 6), jnp.uint8), KEY, [(186,)]),
    "words of 16 bits, odd": (lambda k: jax.random.bits(k, (ODD, 3), jnp.uint16), KEY, [(3 * ODD + 1,)]),
    "bfloat16": (lambda k: jax.random.uniform(k, (31, 6), jnp.bfloat16), KEY, [(186,)]),
    "a key of words": (lambda k: jax.random.normal(k, (40, 10)), jax.random.PRNGKey(2), [(400,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_drawn_in_one_row(name: str) -> None:
    """Of all shapes and widths, one key or several; to the bit the same."""
    f, key, shapes = CASES[name]
    assert drawn_shapes(f, key) != shapes
    assert drawn_shapes(ag.optimize(f), key) == shapes
    check_bits(f, key)


def test_wide_words() -> None:
    """Words of 64 bits."""
    with jax.enable_x64(True):
        f = lambda k: jax.random.normal(k, (ODD, 3), jnp.float64)  # noqa: E731
        assert drawn_shapes(ag.optimize(f), KEY) == [(3 * ODD + 1,)]
        check_bits(f, KEY)


def test_in_a_loop_and_under_a_gradient() -> None:
    """A walk whose step hangs on what came before, and what it gives for a gradient."""

    def walk(x: Any, key: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, key = state
            key, now = jax.random.split(key)
            return (x + 0.1 * jnp.tanh(x) * jax.random.normal(now, x.shape), key), None

        return lax.scan(step, (x, key), None, length=3)[0][0].sum()

    f = jax.value_and_grad(walk)
    x = jnp.ones((20, 6))
    assert (120,) in drawn_shapes(ag.optimize(f), x, KEY)
    for got, want in zip(ag.jit(f)(x, KEY), jax.jit(f)(x, KEY), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("f", "key", "reasons"),
    [
        (lambda k: jax.random.bits(k, (8, LONG)), KEY, []),
        (lambda k: jax.random.bits(k, (ODD, LONG + 1)), KEY, []),
        (lambda k: jax.random.bits(k, (SHARED,)), KEY, []),
        (lambda k: jax.random.bits(k, (SHARED - 1,)), KEY, []),
        (lambda k: jax.random.bits(k, ()), KEY, []),
        (lambda k: jax.random.bits(k, (0, 5)), KEY, []),
        (lambda k: jax.random.bits(k, (1, 5, 1)), KEY, []),
        (jax.vmap(lambda k: jax.random.bits(k, (ODD,))), jax.random.split(KEY, 3), []),
        (jax.vmap(lambda k: jax.random.bits(k, (7, 5))), jax.random.split(KEY, 2)[:0], []),
        (
            jax.vmap(lambda k: jax.random.bits(k, (3, 5))),
            jax.random.split(KEY, 3),
            [f"15 entries of each key, fewer than {FEWEST_OF_A_KEY}"],
        ),
        (
            lambda k: jax.random.bits(k, (31, 6)),
            jax.random.key(0, impl="rbg"),
            ["its words hang on how many there are"],
        ),
    ],
)
def test_near_misses(f: Callable[..., Any], key: Any, reasons: list[str]) -> None:
    """Long rows, few words, none, few for each of several keys, another generator."""
    assert refusals(f, key) == reasons
    check_bits(f, key)


def test_words_that_hang_on_their_number() -> None:
    """Threefry as it was before JAX 0.5."""
    with jax.threefry_partitionable(False):
        f = lambda k: jax.random.bits(k, (ODD, 3))  # noqa: E731
        assert refusals(f, KEY) == ["its words hang on how many there are"]
        check_bits(f, KEY)
