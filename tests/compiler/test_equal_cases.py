"""Selections between a value and itself: what `vmap` of a `cond` repeats for each lane is shared again."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import jaxprs_in_params
from aerogel.compiler.passes.equal_cases import EqualCases
from compiler.loop_patterns import normal
from compiler.programs_of import bits

LANES, N = 6, 16
W, X = jnp.asarray(normal(0, N, N)), jnp.asarray(normal(1, LANES, N))
TAKEN = jnp.array([True, False, False, True, False, True])


def alone(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(EqualCases(),))


def largest(f: Callable[..., Any], *args: Any) -> int:
    """The size of the largest value that a selection gives, in all of a program."""

    def walk(jaxpr: Any) -> list[int]:
        sizes = [v.aval.size for eqn in jaxpr.eqns if eqn.primitive.name == "select_n" for v in eqn.outvars]
        inner = (walk(getattr(j, "jaxpr", j)) for eqn in jaxpr.eqns for j in jaxprs_in_params(eqn.params))
        return sizes + [n for found in inner for n in found]

    return max(walk(jax.make_jaxpr(f)(*args).jaxpr), default=0)


def one(w: Any, p: Any, x: Any) -> Any:
    """A branch that closes over weights."""
    return lax.cond(p, lambda x: jnp.tanh(w @ x), lambda x: 2 * x, x)


def chosen(w: Any, p: Any, x: Any) -> Any:
    """Three branches."""
    branches = (lambda x: w @ x, lambda x: x, lambda x: jnp.sin(x) @ w)
    return lax.switch(p.astype(jnp.int32) + (x[0] > 0), branches, x)


def stepped(w: Any, p: Any, x: Any) -> Any:
    """A `cond` in a loop."""
    return lax.scan(lambda x, k: (one(w, p ^ (k == 1), x), x[0]), x, jnp.arange(3))


def within(w: Any, p: Any, x: Any) -> Any:
    """A branch in a branch, both with the weights."""
    return lax.cond(p, lambda x: lax.cond(x[0] > 0, lambda x: jnp.sin(w @ x), lambda x: x, x), lambda x: w @ x, x)


def by_two(w: Any, p: Any, x: Any) -> Any:
    """Lanes along two axes: the weights are repeated twice, with a wall for the gradient in between."""
    return jax.vmap(one, (None, 0, 0))(w, jnp.stack([p, ~p]), jnp.stack([x, 2 * x]))


SPELLINGS: dict[str, Callable[..., Any]] = {
    "cond": one,
    "switch": chosen,
    "in a loop": stepped,
    "nested": within,
    "two axes": by_two,
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_shared_weights_are_not_selected(name: str) -> None:
    """No selection holds the weights of all lanes; not a bit changes."""
    f = jax.vmap(SPELLINGS[name], (None, 0, 0))
    assert largest(f, W, TAKEN, X) >= LANES * N * N
    assert largest(alone(f), W, TAKEN, X) <= 2 * LANES * N
    assert bits(jax.tree.leaves(jax.jit(alone(f))(W, TAKEN, X))) == bits(jax.tree.leaves(jax.jit(f)(W, TAKEN, X)))


def test_the_product_is_one_product_again() -> None:
    """By default the weights are not repeated at all: nothing of the program is as large."""
    f = jax.vmap(one, (None, 0, 0))
    sizes = [v.aval.size for eqn in jax.make_jaxpr(ag.optimize(f))(W, TAKEN, X).eqns for v in eqn.outvars]
    assert max(sizes) <= N * N  # the weights themselves, in blocks
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(W, TAKEN, X), jax.jit(f)(W, TAKEN, X), rtol=1e-5, atol=1e-6)


def test_gradients_keep_their_walls() -> None:
    """A gradient that is wanted in some lanes only comes out the same, before differentiation and after."""

    def frozen(w: Any, p: Any, x: Any) -> Any:
        return jnp.where(p, w, lax.stop_gradient(w)) @ x

    for f in (jax.vmap(one, (None, 0, 0)), lambda w, p, x: frozen(w, p[1], x.T), lambda w, p, x: frozen(w, p[0], x.T)):
        g = lambda *args, f=f: jnp.sin(f(*args)).sum()  # noqa: E731
        want = jax.jit(jax.grad(g))(W, TAKEN, X)
        for h in (jax.grad(alone(g)), alone(jax.grad(g))):
            np.testing.assert_allclose(jax.jit(h)(W, TAKEN, X), want, rtol=1e-5, atol=1e-6)


def test_other_selections_are_left() -> None:
    """Cases that differ, if only in type, and cases that are constants."""
    for f in (lambda p, x: jnp.where(p[:, None], x, x + 0.0), lambda p, x: jnp.where(p, 1.0, 1.0) + x[:, 0]):
        assert str(jax.make_jaxpr(alone(f))(TAKEN, X)) == str(jax.make_jaxpr(f)(TAKEN, X))


def test_keys_are_selected_too() -> None:
    """Of any type."""
    keys = jax.random.split(jax.random.key(0), LANES)
    f = jax.vmap(lambda p, k: lax.cond(p, jax.random.fold_in, lambda k, _: k, k, 3))
    assert bits([jax.jit(alone(f))(TAKEN, keys)]) == bits([jax.jit(f)(TAKEN, keys)])
