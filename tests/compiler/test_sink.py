"""Carries that gather several terms: a weight that a step uses more than once has such a gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import Var
from aerogel.compiler.hoisting.gathered import MOST_TERMS
from aerogel.compiler.hoisting.sink import find_sums, sink
from aerogel.compiler.loop import Loop, as_loop
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes.loop_hoist import LoopHoist

T, N, B = 60, 96, 4


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    """Normal numbers from a seed."""
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def carried(f: Any, *args: Any) -> list[tuple[int, ...]]:
    """The shapes that the loops of a function carry."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    loops = [loop for eqn in jaxpr.eqns if (loop := as_loop(eqn)) is not None]
    return [v.aval.shape for loop in loops for v in loop.body_carry]


def twice(w: jax.Array, xs: jax.Array, start: jax.Array) -> jax.Array:
    """A weight that stands in a step three times."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h @ w + jnp.tanh(x @ w) @ w)
        return h, h

    return lax.scan(step, start, xs)[1]


def runge_kutta(w: jax.Array, xs: jax.Array, start: jax.Array) -> jax.Array:
    """Four stages of one network, with a forcing."""

    def step(y: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        f = lambda y: jnp.tanh(y @ w) - x  # noqa: E731
        a = f(y)
        b = f(y + 0.05 * a)
        c = f(y + 0.05 * b)
        y = y + 0.1 / 6 * (a + 2 * b + 2 * c + f(y + 0.1 * c))
        return y, y

    return lax.scan(step, start, xs)[1]


def tied(w: jax.Array, xs: jax.Array, start: jax.Array) -> jax.Array:
    """A weight and its transpose."""
    return lax.scan(lambda h, x: ((h := jnp.tanh((jnp.tanh(h @ w) + x) @ w.T)), h), start, xs)[1]


PROGRAMS = {"three uses": twice, "four stages": runge_kutta, "tied": tied}


def args_of(dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
    """A weight, what the steps read, and where they begin."""
    return normal(0, N, N, dtype=dtype) / 10, normal(1, T, B, N, dtype=dtype), normal(2, B, N, dtype=dtype)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_step_adds_to_the_gradient_of_a_weight(name: str) -> None:
    """Each use of the weight is one product after the loop; plain JAX carries a matrix through the steps."""
    args, f = args_of(), PROGRAMS[name]
    gradient = jax.grad(lambda *a: jnp.mean(f(*a) ** 2), (0, 1, 2))
    rewritten = ag.optimize(gradient, passes=(LoopHoist(),))
    assert (N, N) in carried(gradient, *args)
    assert (N, N) not in carried(rewritten, *args)
    for got, want in zip(jax.jit(rewritten)(*args), jax.jit(gradient)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("transform", [jax.vmap, jax.jit, jax.checkpoint])
def test_under_transformations(transform: Any) -> None:
    """All passes, a batch of gradients and a second derivative: the numbers of plain JAX at float64."""
    with jax.enable_x64(True):
        w, xs, start = (x[None] if transform is jax.vmap else x for x in args_of(jnp.float64))
        xs = xs[..., :9, :, :] if transform is not jax.vmap else xs[:, :9]

        def loss(w: Any, xs: Any, start: Any) -> Any:
            return jnp.sum(transform(twice)(w, xs, start) ** 2)

        def second(*args: Any) -> Any:
            return jax.grad(lambda *a: jnp.sum(jax.grad(loss)(*a) ** 2))(*args)

        for f in (jax.grad(loss, (0, 1, 2)), second):
            got, want = jax.jit(ag.optimize(f))(w, xs, start), jax.jit(f)(w, xs, start)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), got, want)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_floats_keep_their_type(dtype: Any) -> None:
    """The gradient has the weight's type, and is as near to float32's as plain JAX's."""
    args = args_of(dtype)
    gradient = jax.grad(lambda *a: jnp.sum(twice(*a).astype(jnp.float32) ** 2) / B)
    got, plain = jax.jit(ag.optimize(gradient, passes=(LoopHoist(),)))(*args), jax.jit(gradient)(*args)
    want = jax.jit(gradient)(*(x.astype(jnp.float32) for x in args))
    off, off_plain = (float(jnp.linalg.norm(x.astype(jnp.float32) - want)) for x in (got, plain))
    assert got.dtype == plain.dtype == dtype
    assert off <= 1.1 * off_plain


def cast_in_each_step(w: jax.Array, xs: jax.Array, start: jax.Array) -> jax.Array:
    """A weight that a step turns into its own short type: mixed precision, written the natural way."""
    return lax.scan(lambda h, x: ((h := jnp.tanh(h @ w.astype(h.dtype) + x)), h), start, xs)[1]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_terms_made_longer_are_summed_up_longer(dtype: Any) -> None:
    """The gradient of a float32 weight: products of short floats, no sum of which is rounded to their type."""
    w, xs, start = args_of()
    args = (w, xs.astype(dtype), start.astype(dtype))
    gradient = jax.grad(lambda *a: jnp.sum(cast_in_each_step(*a).astype(jnp.float32) ** 2) / B)
    rewritten = ag.optimize(gradient, passes=(LoopHoist(),))
    assert (N, N) in carried(gradient, *args)
    assert (N, N) not in carried(rewritten, *args)
    got, plain = jax.jit(rewritten)(*args), jax.jit(gradient)(*args)
    want = jax.jit(gradient)(w, *(x.astype(jnp.float32) for x in args[1:]))
    off, off_plain = (float(jnp.linalg.norm(x - want)) for x in (got, plain))
    assert got.dtype == plain.dtype == jnp.float32
    assert off <= 1.05 * off_plain


def outer_then(kind: Any) -> Any:
    """A step that adds an outer product of short floats, made longer, transposed and negated."""
    return lambda c, x: (c + -jnp.outer(x, x[::-1] + 1).T.astype(kind), None)


@pytest.mark.parametrize(("low", "high"), [(jnp.bfloat16, jnp.float32), (jnp.float16, jnp.float32)])
def test_outer_products_made_longer(low: Any, high: Any) -> None:
    """800 of them that all have one sign: sums in bfloat16 would be 8 % off."""
    xs = jax.random.uniform(jax.random.key(5), (800, 70)).astype(low)

    def f(xs: Any) -> Any:
        return lax.scan(outer_then(high), jnp.zeros((70, 70), high), xs)[0]

    rewritten = ag.optimize(f, passes=(LoopHoist(),))
    assert (70, 70) not in carried(rewritten, xs)
    exact = jnp.einsum("ti,tj->ji", xs.astype(high), (xs[:, ::-1] + 1).astype(high), precision="highest")
    np.testing.assert_allclose(jax.jit(rewritten)(xs), -exact, rtol=3e-3)
    np.testing.assert_allclose(jax.jit(f)(xs), -exact, rtol=3e-3)


@pytest.mark.parametrize(
    ("low", "high"), [(jnp.float32, jnp.bfloat16), (jnp.bfloat16, jnp.float16), (jnp.int8, jnp.int32)]
)
def test_terms_made_shorter_are_no_products(low: Any, high: Any) -> None:
    """Nor what is neither longer nor shorter, nor whole numbers: the term is what the conversion makes."""
    found = find_sums(loop_of(outer_then(high), jnp.zeros((5, 5), high), jnp.ones((9, 5), low))[0])
    assert [one.eqn for one in found] in ([], [None])


# --- terms by themselves ---------------------------------------------------------------------------------------------


def loop_of(step: Any, init: Any, xs: Any) -> tuple[Loop, Any]:
    """A scan and the level that it stands in."""
    closed = jax.make_jaxpr(lambda init, xs: lax.scan(step, init, xs))(init, xs)
    jaxpr = normalize(closed)[0].jaxpr
    place = next(i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "scan")
    loop = as_loop(jaxpr.eqns[place])
    assert loop is not None
    return loop, (jaxpr, place)


def two_products(c: Any, x: Any) -> Any:
    """A sum of two products and of what is none."""
    a, b = x
    return (c[0] + jnp.outer(a, b) + (jnp.outer(b, a) + jnp.sin(a[:, None] + b)), c[1] + a), jnp.sum(a)


X = normal(3, T, 5), normal(4, T, 5)
INIT = jnp.ones((5, 5)), jnp.zeros(5)


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1], [2], [0, 1, 2], [0, 1, 2, 3], [3]])
def test_any_of_the_terms_may_leave(chosen: list[int]) -> None:
    """What leaves is added after the loop; a carry stays while it gathers anything."""
    loop, (jaxpr, place) = loop_of(two_products, INIT, X)
    sums = find_sums(loop)
    assert [(one.carry, one.count) for one in sums] == [(0, 3)] * 3 + [(1, 1)]
    assert sum(one.eqn is not None for one in sums) == 2
    new = sink(loop, [sums[k] for k in chosen]).apply(jaxpr, place)
    rest = next((loop for eqn in new.eqns if (loop := as_loop(eqn)) is not None), None)
    left = {one.carry for k, one in enumerate(sums) if k not in chosen}
    assert rest is not None
    assert len(rest.init) == len(left)
    got = jax.core.eval_jaxpr(new, (), *jax.tree.leaves((INIT, X)))
    want = jax.tree.leaves(lax.scan(two_products, INIT, X))
    for a, b in zip(got, want, strict=True):
        assert a.aval == b.aval
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "step",
    [
        lambda c, x: (c + x + c, None),
        lambda c, x: (c + x * c, None),
        lambda c, x: (c + x, c + x),
        lambda c, x: (c + x, c),
        lambda c, x: (x + jnp.sin(x), None),
        lambda c, x: (c + x + 1.0, None),
        lambda c, x: (c - x, None),
        lambda c, x: ((y := c + x) + y, None),
        lambda c, x: (sum((x * k for k in range(2, MOST_TERMS + 3)), start=c), None),
    ],
)
def test_what_gathers_no_terms(step: Any) -> None:
    """A carry that is read elsewhere, twice or not at all, and one of too many terms."""
    assert find_sums(loop_of(step, jnp.ones(5), X[0])[0]) == []


def test_a_term_that_stands_there_twice_counts_twice() -> None:
    """`c + x + x`, of integers: the same bits."""
    xs = jnp.arange(3 * T).reshape(T, 3)
    loop, (jaxpr, place) = loop_of(lambda c, x: (c + x + x, None), xs[0], xs)
    sums = find_sums(loop)
    assert [one.operands for one in sums] == [(x,) for x in (sums[0].operands[0],) * 2]
    assert all(isinstance(one.operands[0], Var) for one in sums)
    for chosen in (sums, sums[:1]):
        (got,) = jax.core.eval_jaxpr(sink(loop, chosen).apply(jaxpr, place), (), xs[0], xs)
        np.testing.assert_array_equal(got, xs[0] + 2 * xs.sum(0))
