"""The gradient of an optimised function is optimised wherever it is taken: the same memory, the same derivatives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import evaluate, traced
from aerogel.compiler.residuals.halves import halves

STEPS, STATE = 64, (8, 2048)


def trajectory(c: Any) -> Any:
    """A loop of which plain JAX stores three arrays for each step, and one is enough."""

    def step(c: Any, _: Any) -> Any:
        c = c - 0.05 * c * c
        return c, jnp.sum(jnp.square(c))

    return jnp.mean(lax.scan(step, c, None, length=STEPS)[1])


def planned(f: Callable[..., Any], *args: Any) -> int:
    """The bytes that XLA plans for temporary values."""
    plan: Any = jax.jit(f).lower(*args).compile().memory_analysis()
    return plan.temp_size_in_bytes


def test_a_gradient_from_outside_stores_as_little() -> None:
    """`grad` around `optimize`, around `ag.jit` and around a function called before: what `optimize(grad)` plans."""
    c = jnp.full(STATE, 0.5)
    compiled = ag.jit(trajectory)
    compiled(c)  # what was compiled for the value does not serve for the gradient
    want = planned(ag.optimize(jax.value_and_grad(trajectory)), c)
    assert want < planned(jax.value_and_grad(trajectory), c) / 2
    for f in (ag.optimize(trajectory), compiled):
        assert planned(jax.value_and_grad(f), c) <= want + 1024
    assert planned(lambda c: jax.vjp(ag.optimize(trajectory), c)[1](1.0), c) <= want + 1024


@ag.rule(stage="after", exactness="bitwise", reason="so that something fires")
def twice(x: Any) -> Any:
    """Fires in each of the programs below, behind all passes."""
    return x * 2


@twice.to
def _(x: Any) -> Any:
    return x + x


def several(w: Any, c: Any, steps: Any, key: Any) -> Any:
    """Results of all kinds; of the arguments some have no derivative."""

    def step(c: Any, x: Any) -> Any:
        c = jnp.tanh(w @ c + 2 * x) * steps
        return c, c[0]

    c, ys = lax.scan(step, c, jax.random.normal(key, (3,)))
    low = lax.cond(c[0] > 0, jnp.sin, jnp.cos, w * 2).astype(jnp.bfloat16)
    return {"sum": jnp.sum(c * ys[-1]), "low": low, "steps": steps + 1, "key": key, "none": None}


W, C = jnp.array([[0.5, 0.2], [-0.3, 0.8]]), jnp.array([0.3, -0.2])
KEY = jax.random.key(0)


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    """A number made of results; one of them is not used."""
    return lambda w, c, steps=3: f(w, c, jnp.int32(steps), KEY)["sum"] ** 2


def again(f: Callable[..., Any]) -> Callable[..., Any]:
    """A number made of first derivatives."""
    return lambda w, c: sum(jnp.sum(jnp.cos(x)) for x in jax.grad(loss(f), (0, 1))(w, c))


CS = jnp.stack([C, 2 * C, C + 1])
WAYS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "grad": lambda f: jax.grad(loss(f), (0, 1))(W, C),
    "by one": lambda f: jax.value_and_grad(loss(f), 1)(W, C),
    "integers": lambda f: jax.grad(lambda n, w: f(w, C, n, KEY)["sum"], (0, 1), allow_int=True)(3, W)[1],
    "aux": lambda f: jax.grad(lambda w: (lambda out: (out["sum"], out))(f(w, C, 3, KEY)), has_aux=True)(W)[0],
    "vjp of all": lambda f: (lambda out, back: back(jax.tree.map(cotangent, out)))(
        *jax.vjp(lambda w, c: f(w, c, jnp.int32(3), KEY), W, C)
    ),
    "jvp": lambda f: jax.jvp(loss(f), (W, C), (2 * W, C)),
    "linearize": lambda f: jax.linearize(loss(f), W, C)[1](W, C),
    "hessian": lambda f: jax.hessian(loss(f), (0, 1))(W, C),
    "reverse over reverse": lambda f: jax.grad(again(f), (0, 1))(W, C),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(loss(f), 1), 1)(W, C),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f), (0, 1)), (None, 0))(W, CS),
    "grad of vmap": lambda f: jax.grad(lambda w, c: jax.vmap(loss(f), (None, 0))(w, c).sum(), (0, 1))(W, CS),
    "closed over": lambda f: jax.grad(lambda s: jax.grad(lambda c: loss(lambda w, *xs: f(s * w, *xs))(W, c))(C)[0])(
        2.0
    ),
    "in checkpoint": lambda f: jax.grad(jax.checkpoint(loss(f)), (0, 1))(W, C),
    "in scan": lambda f: jax.grad(lambda c: lax.scan(lambda c, _: (c * loss(f)(W, c), None), c, None, 2)[0].sum())(C),
    "under its own name": lambda f: ag.grad(loss(f), (0, 1))(W, C),
}


def cotangent(x: Any) -> Any:
    """Ones, and zeros of the type that integers have."""
    smooth = jnp.issubdtype(x.dtype, np.inexact)
    return jnp.ones_like(x) if smooth else np.zeros(x.shape, jax.dtypes.float0)


@pytest.mark.parametrize("way", WAYS)
def test_derivatives_are_those_of_the_function(way: str) -> None:
    """In each way in which a derivative can be taken, of `optimize` and of `jit`."""
    want = WAYS[way](several)
    for f in (ag.optimize(several, rules=[twice]), ag.jit(several, rules=[twice])):
        got = WAYS[way](f)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_way_back_is_optimised() -> None:
    """What a rule writes stands in the gradient too, and the report says that it is the gradient's."""
    reports: list[ag.Report] = []
    f = ag.optimize(lambda x: jnp.sum(jnp.sin(x) * 2), rules=[twice], on_report=reports.append)
    jax.make_jaxpr(jax.grad(f))(C)
    assert [report.name for report in reports] == ["the gradient of <lambda>"]
    assert [d.rule for d in reports[0].fired] == ["twice", "twice"]


def test_nothing_is_computed_of_a_result_without_a_cotangent() -> None:
    """Of two results one is used: the loop back over the other is not in the program."""

    def two(x: Any) -> Any:
        return tuple(jnp.sum(lax.scan(lambda c, _: (jnp.sin(c) * 2, None), k * x, None, length=3)[0]) for k in (1, 2))

    def loops(f: Any) -> int:
        return str(jax.make_jaxpr(jax.grad(lambda x: f(x)[0]))(C)).count("scan[")

    natural = str(jax.make_jaxpr(jax.grad(lambda x: sum(two(x))))(C)).count("scan[")
    assert natural == 4
    assert loops(ag.optimize(two, rules=[twice])) == 3


def test_effects_happen_once() -> None:
    """A function that prints is differentiated by JAX: its effects would be in both halves."""
    seen: list[float] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return jnp.sin(x) * 2

    jax.block_until_ready(jax.jit(jax.grad(ag.optimize(f, rules=[twice])))(1.0))
    jax.effects_barrier()
    assert seen == [1.0]


def test_effects_of_a_backward_rule_wait_for_it() -> None:
    """One that reads no cotangent could run with the value; but the gradient may never be asked for."""
    seen: list[str] = []

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x) * 2

    def backward(x: Any, ct: Any) -> Any:
        jax.debug.callback(lambda: seen.append("backward"))
        return (ct * jnp.cos(x) * 2,)

    f.defvjp(lambda x: (f(x), x), backward)
    _, back = jax.vjp(ag.optimize(f, rules=[twice]), 1.0)
    jax.effects_barrier()
    assert seen == []
    back(1.0)
    jax.effects_barrier()
    assert seen == ["backward"]


def test_halves_make_the_whole() -> None:
    """The first half gives results without cotangents, the second the rest; a loop that serves both is in both."""

    def whole(x: Any, ct: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            y = jnp.exp(x)
            return carry + y, (ct * y, y * y)

        total, (back, squares) = lax.scan(step, 0.0, x)
        return jnp.sum(squares), back * jnp.broadcast_to(jnp.max(x), x.shape) * total

    x = jnp.arange(3.0)
    parts = halves(traced(whole, [jax.typeof(x), jax.typeof(2.0)]), 1, 1)
    assert parts is not None
    out, *kept = evaluate(parts.first, [x])
    assert [value.shape for value in kept] == [()]  # the maximum, and not what it is spread to
    (back,) = evaluate(parts.second, [x, *kept, 2.0])
    np.testing.assert_allclose(out, whole(x, 2.0)[0])
    np.testing.assert_allclose(back, whole(x, 2.0)[1])
    mixed = traced(lambda x, ct: (x * ct, ct), [jax.typeof(1.0)] * 2)
    assert halves(mixed, 1, 1) is None


def test_a_second_derivative_of_what_was_called_before() -> None:
    """What `jit` compiled for the value, with polynomials for sines, is not what is differentiated."""

    def f(x: Any) -> Any:
        return jnp.sum(lax.scan(lambda c, _: (jnp.sin(1.3 * c), jnp.cos(c)), x, None, length=4)[1] ** 2)

    x, compiled = jnp.linspace(0.1, 1.0, 512), ag.jit(f)
    compiled(x)
    assert [d.rule for d in ag.explain(f)(x).fired if d.rule.startswith("vector")]
    second = [jax.grad(lambda x, g=g: jnp.sum(jax.grad(g)(x)))(x) for g in (f, compiled)]
    np.testing.assert_allclose(second[1], second[0], rtol=1e-4, atol=1e-4)
