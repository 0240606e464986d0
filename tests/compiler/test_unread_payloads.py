"""What a sort carries along and nobody reads is left out; keys, unstable sorts, and what is read stay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import evaluate
from aerogel.compiler.normalize import normalize
from compiler.programs_of import bits, traced

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 200)), "float32").at[2:4, ::7].set(0.0).at[3, ::5].set(-0.0)
ODD = X.at[1, 3].set(jnp.nan)
W = jnp.arange(200.0) % 7


def operands(f: Any, *args: Any) -> list[int]:
    """How many each sort of the normal form of a function has."""
    eqns = normalize(traced(f, *args))[0].jaxpr.eqns
    return [len(eqn.invars) for eqn in eqns if eqn.primitive.name == "sort"]


LOSSES = {
    "the largest": lambda x: jnp.sin(x[jnp.argsort(-x)[:4]]).sum(),
    "those at places": lambda x: (W[jnp.argsort(x)[-3:]] * x[:3]).sum(),
    "rows": lambda x: jnp.sin(jnp.stack([x, 2 * x], 1)[jnp.argsort(x)[:5]]).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mapped", [False, True])
def test_gradients_do_not_ask_for_places_twice(name: str, mapped: bool) -> None:
    """The derivative of `argsort` is a sort with a second array of places: without it the rules find it."""
    f = LOSSES[name]
    g = jax.value_and_grad((lambda x: jax.vmap(f)(x).sum()) if mapped else f)
    for x in (X, ODD) if mapped else (X[0], X[2], X[3], ODD[1]):
        assert operands(g, x) == [2]
        with ag.rules.use(ag.rules.default):
            assert any("argsorted" in decision.rule for decision in ag.explain(g)(x).fired)
        ours = ag.optimize(g, rules=ag.rules.default)
        got, want = (jax.tree.leaves(jax.jit(h)(x)) for h in (ours, g))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


def several(x: Any, *, keys: int = 1, stable: bool = True, read: tuple[int, ...] = (0, 2)) -> Any:
    """Some of three sorted arrays."""
    places = lax.broadcasted_iota("int32", x.shape, 1)
    out = lax.sort((x, places, jnp.round(x)), num_keys=keys, is_stable=stable)
    return tuple(out[k] for k in read)


def test_what_is_left_has_the_same_bits() -> None:
    """Signs of zeros and nan included."""
    for read, count in (((2,), 2), ((0,), 1), ((1, 2), 3)):
        f = lambda x, read=read: several(x, read=read)  # noqa: E731
        program = traced(f, ODD)
        assert operands(f, ODD) == [count]
        assert bits(evaluate(normalize(program)[0], [ODD])) == bits(evaluate(program, [ODD]))


@pytest.mark.parametrize("options", [{"keys": 3}, {"stable": False}, {"read": (0, 1, 2)}])
def test_others_stay(options: dict[str, Any]) -> None:
    """Keys that nobody reads, too; where equal keys have no order, another sort may give another one."""
    assert operands(lambda x: several(x, **options), X) == [3]


def test_in_a_loop_and_of_nothing() -> None:
    """In the body of a scan; sorts of no entries."""
    g = jax.grad(lambda x: lax.scan(lambda c, _: (c + c[jnp.argsort(c)[:4]].sum(), None), x, None, length=3)[0].sum())
    want = jax.jit(g)(X[0])
    np.testing.assert_allclose(jax.jit(ag.optimize(g))(X[0]), want, rtol=1e-5)
    assert operands(lambda x: several(x, read=(0,)), X[:0]) == [1]
