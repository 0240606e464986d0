"""Loop segments: a backward loop runs segments of the forward loop again instead of reading what all steps stored."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.loop_segments import LoopSegments
from compiler.loop_patterns import normal, stacked

SEGMENTS = LoopSegments(least_bytes=0)  # segments of segments, down to less than four steps
WIDTH = 5


def optimised(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with all loops in segments that can be."""
    return ag.optimize(f, passes=[SEGMENTS])


def trajectory(steps: int, reverse: bool) -> Callable[..., Any]:
    """A step with a parameter, an input and two carries, one of which no gradient needs; all states are returned."""

    def f(w: Any, c: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            c, count = carry
            c = jnp.sin(w * c + x)
            return (c, count + 1), (c, count)

        (last, count), (cs, counts) = lax.scan(step, (c, 0), xs, length=steps, reverse=reverse)
        return jnp.sum(cs**2) + jnp.sum(last), (cs, counts, count)

    return jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)


def arguments(steps: int, dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    """A parameter, a state, inputs."""
    return jnp.asarray(normal(0, WIDTH), dtype), jnp.asarray(normal(1, WIDTH), dtype), normal(2, steps, WIDTH)


def assert_same(got: Any, want: Any, rtol: float = 3e-6) -> None:
    """Leaves of the same types that agree."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [4, 16, 23])
def test_same_results(steps: int, reverse: bool) -> None:
    """Values, gradients and what else is returned are those of plain JAX, also where a segment would not be full."""
    f, args = trajectory(steps, reverse), arguments(steps)
    assert len(stacked(jax.make_jaxpr(optimised(f))(*args).jaxpr, steps * WIDTH)) < len(
        stacked(jax.make_jaxpr(f)(*args).jaxpr, steps * WIDTH)
    )
    assert_same(jax.jit(optimised(f))(*args), jax.jit(f)(*args))


def test_two_stacks_of_the_root() -> None:
    """Of 64 steps with equally large state and residual, 8 starts and 8 steps are stored."""

    def f(c: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.sin(c), None), c, None, length=64)[0].sum()

    once = ag.optimize(jax.grad(f), passes=[LoopSegments(least_bytes=8 * 4 * WIDTH)])
    jaxpr = jax.make_jaxpr(once)(jnp.ones(WIDTH)).jaxpr
    assert stacked(jax.make_jaxpr(jax.grad(f))(jnp.ones(WIDTH)).jaxpr, 64 * WIDTH)
    assert not stacked(jaxpr, 8 * WIDTH + 1)
    assert len(stacked(jaxpr, 8 * WIDTH)) == 2


SURROUNDINGS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "vmap": lambda f: jax.vmap(f, in_axes=(None, 0, 1)),
    "outer scan": lambda f: lambda w, c, xs: lax.scan(lambda w, _: (f(w, c, xs)[1][0], None), w, None, length=2),
    "cond": lambda f: lambda w, c, xs: lax.cond(w[0] > -9, f, lambda *a: jax.tree.map(jnp.zeros_like, f(*a)), w, c, xs),
    "derivative of it": lambda f: jax.grad(lambda w, c, xs: jnp.sum(f(w, c, xs)[1][0] ** 2)),
}


@pytest.mark.parametrize("where", SURROUNDINGS)
def test_wherever_it_stands(where: str) -> None:
    """Loops are found in other programs and differentiated once more."""
    w, c, xs = arguments(12)
    if where == "vmap":
        c, xs = jnp.stack([c, 2 * c]), jnp.stack([xs, -xs], 1)
    f = SURROUNDINGS[where](trajectory(12, False))
    assert [d for d in reports(f, w, c, xs) if d.fired]
    assert_same(jax.jit(optimised(f))(w, c, xs), jax.jit(f)(w, c, xs), 1e-5)


def reports(f: Callable[..., Any], *args: Any) -> list[Any]:
    """The decisions of the pass."""
    found: list[Any] = []
    jax.eval_shape(ag.optimize(f, passes=[SEGMENTS], on_report=found.append), *args)
    return [d for d in found[0].decisions if d.rule == SEGMENTS.name]


def test_keys_and_casts() -> None:
    """Random keys among the inputs, a draw in the step, a state of bfloat16: the same numbers are drawn again."""

    def f(c: Any, keys: Any) -> Any:
        def step(c: Any, key: Any) -> tuple[Any, Any]:
            c = jnp.tanh(c * jax.random.normal(key, c.shape, c.dtype))
            return c, c.astype(jnp.float32)

        return lax.scan(step, c, keys)[1].sum()

    args = jnp.ones(WIDTH, jnp.bfloat16), jax.random.split(jax.random.key(0), 16)
    g = jax.value_and_grad(f)
    assert [d for d in reports(g, *args) if d.fired]
    assert_same(jax.jit(optimised(g))(*args), jax.jit(g)(*args), 1e-2)


def test_what_two_loops_read_is_stored() -> None:
    """Two gradients of one loop read what it stored: neither runs it again."""

    def f(c: Any) -> Any:
        _, back = jax.vjp(lambda c: lax.scan(lambda c, _: (jnp.sin(c), None), c, None, length=16)[0], c)
        return back(c), lax.optimization_barrier(back(2 * c))

    assert not reports(f, jnp.ones(WIDTH))


def test_what_is_compared_is_stored() -> None:
    """Where a second loop looks for the place of a maximum, it is among the values that the maximum was found in."""

    def f(c: Any, compared: bool) -> Any:
        (c, largest), cs = lax.scan(lambda s, _: ((jnp.sin(s[0]), jnp.maximum(s[1], s[0])), s[0]), (c, c), None, 16)
        return lax.scan(lambda n, x: (n + (x == largest if compared else x > largest), None), jnp.zeros(WIDTH), cs)[0]

    c = jnp.ones(WIDTH)
    assert not reports(lambda c: f(jnp.sin(c), True), c)
    assert [d for d in reports(lambda c: f(jnp.sin(c), False), c) if d.fired]


def test_small_loops_are_left() -> None:
    """Without a size given, loops that store less than is slow to allocate stay as they are."""
    f, args = trajectory(16, False), arguments(16)
    assert not [d for d in ag.explain(f)(*args).decisions if d.rule == SEGMENTS.name]


def test_the_prediction_decides() -> None:
    """Large and cheap steps run again, in a tenth of the memory; products of matrices are not computed twice."""

    def f(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return jax.grad(lambda c: lax.scan(lambda c, _: (step(c), jnp.sum(c**2)), c, None, length=128)[1].sum())

    c = jnp.ones((300, 400))
    roll = f(lambda c: c + 0.1 * (jnp.roll(c, 1) - c) * c)
    assert [d.fired for d in ag.explain(roll)(c).decisions if d.rule == SEGMENTS.name] == [True]
    matrix = jnp.linspace(0.0, 0.01, 160_000).reshape(400, 400)
    product = f(lambda c: jnp.sin(c @ matrix))
    assert [d.fired for d in ag.explain(product)(c).decisions if d.rule == SEGMENTS.name] == [False]


def test_what_is_huge_may_take_longer() -> None:
    """A table of all pairs that is filled entry by entry, as time warping does, is made again from 4 GiB on."""

    def warping(x: Any, y: Any) -> Any:
        def row(above: Any, a: Any) -> tuple[Any, None]:
            def entry(left: Any, pair: Any) -> tuple[Any, Any]:
                now = (a - pair[0]) ** 2 + jax.nn.logsumexp(jnp.stack([left, pair[1]]))
                return now, now

            return lax.scan(entry, 1e9, (y, above))[1], None

        return lax.scan(row, y, x)[0][-1]

    for n, fires in ((8192, False), (1 << 16, True)):
        x = jax.ShapeDtypeStruct((n,), np.float32)
        found = ag.explain(jax.grad(warping))(x, x).decisions
        assert [d.fired for d in found if d.rule == SEGMENTS.name][:1] == [fires]


def test_what_is_made_of_the_state_is_not_stored_beside_it() -> None:
    """A force that is carried on is made again where a segment starts; one that begins otherwise is stored."""

    def trajectory(first: Callable[[Any], Any]) -> Callable[..., Any]:
        def f(q: Any, p: Any) -> Any:
            def step(carry: Any, _: Any) -> tuple[Any, Any]:
                q, p, force = carry
                p = p + 0.1 * force
                q = q + 0.1 * p
                return (q, p + 0.1 * jnp.sin(q), jnp.sin(q)), None

            q, p, _ = lax.scan(step, (q, p, first(q)), None, length=64)[0]
            return jnp.sum(q * p)

        return jax.value_and_grad(f, argnums=(0, 1))

    args = jnp.asarray(normal(0, WIDTH)), jnp.asarray(normal(1, WIDTH))

    def starts(first: Callable[[Any], Any]) -> int:
        f = trajectory(first)
        once = ag.optimize(f, passes=[LoopSegments(least_bytes=8 * 8 * WIDTH)])
        assert_same(jax.jit(once)(*args), jax.jit(f)(*args), 1e-5)
        loops = [eqn for eqn in jax.make_jaxpr(once)(*args).eqns if eqn.primitive.name == "scan"]
        return sum(v.aval.ndim == 2 for v in loops[0].outvars)

    assert starts(jnp.sin) + 1 == starts(jnp.cos)


def test_states_of_a_batch_run_in_segments() -> None:
    """Matrices that a batch of texts carries along are in segments of steps, not text by text in small steps."""

    def loss(q: Any, k: Any, v: Any, s: Any) -> Any:
        def step(s: Any, x: Any) -> tuple[Any, Any]:
            q, k, v = x
            s = 0.95 * s + k[..., None] * v[:, None]
            return s, jnp.einsum("bkv,bk->bv", s, q)

        return jnp.mean(lax.scan(step, s, (q, k, v))[1] ** 2)

    entries = jax.ShapeDtypeStruct((256, 8, 64), jnp.float32)
    args = entries, entries, entries, jax.ShapeDtypeStruct((8, 64, 64), jnp.float32)
    report = ag.explain(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*args)
    assert [d.reason for d in report.refused if d.rule == "streaming"] == [
        "the loop that makes it runs again in segments"
    ]
    assert {"streaming", SEGMENTS.name} & {d.rule for d in report.fired} == {SEGMENTS.name}
