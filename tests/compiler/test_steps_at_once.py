"""Several steps of a loop of few numbers stand one after the other in its kernel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import aerogel as ag
from aerogel._jax import KNOWS_KERNELS
from aerogel.compiler.kernels.steps_at_once import FEWEST_STEPS, steps_at_once
from compiler.loop_patterns import normal

pytestmark = pytest.mark.skipif(not KNOWS_KERNELS, reason="of this jaxlib it is not known what it makes of the mark")
SAID = "stand one after the other"
X = normal(0, FEWEST_STEPS + 501)


def average(x: Any, **options: Any) -> Any:
    """All values of a moving average."""
    return lax.scan(lambda s, x: ((s := 0.9 * s + 0.1 * x), s), 0.0, x, **options)[1]


def controlled(x: Any, **options: Any) -> Any:
    """What a controller makes of a plant: three numbers of state."""

    def step(c: Any, r: Any) -> Any:
        y, i, before = c
        e = r - y
        i = i + 0.01 * e
        y = y + 0.01 * (1.2 * e + 0.5 * i + (e - before) - y)
        return (y, i, e), (y, jnp.sin(i))

    return lax.scan(step, (0.0, 0.0, 0.0), x, **options)


def turned(x: Any, **options: Any) -> Any:
    """A rotation of two numbers, and which is larger."""
    a = jnp.array([[0.8, -0.6], [0.6, 0.8]])
    return lax.scan(lambda s, x: ((s := jnp.tanh(a @ s + x)), (s[0], s[0] > s[1])), jnp.ones(2), x, **options)[1]


def generator(x: Any, **options: Any) -> Any:
    """Integers without inputs, of `x`'s length."""
    step = lambda s, _: ((s := s * jnp.uint32(1664525) + jnp.uint32(1013904223)), s >> 8)  # noqa: E731
    return lax.scan(step, jnp.uint32(len(x)), None, length=len(x), **options)[1]


def bounded(x: Any, **options: Any) -> Any:
    """A sum that is never negative, and where it was nothing."""
    return lax.scan(lambda s, x: ((s := jnp.maximum(0.0, s + x)), s == 0), 0.0, x, **options)


LOOPS = (average, controlled, turned, generator, bounded)


def said(f: Any, *args: Any) -> bool:
    """Whether the report names it."""
    return any(SAID in d.reason for d in ag.explain(f)(*args).fired)


def close(got: Any, want: Any) -> None:
    """The same, but for the last digits."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)


@pytest.mark.parametrize("f", LOOPS)
@settings(max_examples=6, deadline=None)
@given(length=st.integers(FEWEST_STEPS, FEWEST_STEPS + 500), reverse=st.booleans())
def test_the_results_are_the_same(f: Any, length: int, reverse: bool) -> None:
    """Of all lengths, in both directions: what is left over by four or eight steps is not lost."""
    x = X[:length]
    close(jax.jit(ag.optimize(lambda x: f(x, reverse=reverse)))(x), jax.jit(lambda x: f(x, reverse=reverse))(x))


@pytest.mark.parametrize("f", LOOPS[:3])
def test_so_are_gradients(f: Any) -> None:
    """Taken inside and outside, under `vmap` and twice."""

    def loss(x: Any) -> Any:
        return sum(jnp.mean(y.astype(x.dtype) ** 2) for y in jax.tree.leaves(f(x)))

    want = jax.jit(jax.grad(loss))(X)
    close(jax.jit(ag.optimize(jax.grad(loss)))(X), want)
    close(jax.jit(jax.grad(ag.optimize(loss)))(X), want)
    both = jnp.stack([X, -X])
    close(jax.jit(jax.vmap(ag.optimize(f)))(both), jax.jit(jax.vmap(f))(both))
    second = [jax.jit(lambda x, g=g: jax.jvp(jax.grad(g), (x,), (x,))[1]) for g in (ag.optimize(loss), loss)]
    close(second[0](X), second[1](X))


@pytest.mark.parametrize("f", LOOPS)
def test_several_steps_are_one(f: Any) -> None:
    """The report says it, and the compiled loop makes a fourth or an eighth of the steps."""
    x = X[: FEWEST_STEPS // 8 * 8]
    assert said(f, x)
    text = jax.jit(ag.optimize(f)).lower(x).as_text()
    assert any(f"dense<{len(x) // steps}> : tensor<i32>" in text for steps in (4, 8))


def table(x: Any) -> Any:
    """A walk through a table."""
    t = jnp.linspace(0, 1, 64)
    return lax.scan(lambda i, z: ((i * 5 + (z > 0)) % 64, t[i]), jnp.int32(1), x)[1]


def wide(x: Any) -> Any:
    """Of eight numbers a step."""
    return lax.scan(lambda s, x: ((s := jnp.tanh(0.9 * jnp.roll(s, 1) + x)), s), jnp.zeros(8), x)[1]


def nested(x: Any) -> Any:
    """A loop in the step."""
    return lax.scan(lambda s, x: ((s := lax.fori_loop(0, 9, lambda _, s: 0.5 * jnp.sin(s) + x, s)), s), 0.0, x)[1]


def pair(x: Any) -> Any:
    """The sine and the cosine of one number, which are one call of the C library in a step that stands alone."""
    return lax.scan(lambda s, x: (s + jnp.sin(x), jnp.cos(x)), 0.0, x)


@pytest.mark.parametrize("f", [table, wide, nested, pair, lambda x: average(x, unroll=2), lambda x: average(x[:999])])
def test_near_misses(f: Any) -> None:
    """What would gain nothing stays, and what the user has unrolled."""
    assert not said(f, X)


def test_sines_and_cosines_of_two_numbers_stand_one_after_the_other() -> None:
    """They are two calls anyway."""
    assert said(lambda x: lax.scan(lambda s, x: (s + jnp.sin(x), jnp.cos(2 * x)), 0.0, x), X)


def test_elsewhere_it_is_the_loop() -> None:
    """Over several devices XLA makes no kernel, and steps that are written out would each be some."""
    mesh = Mesh(np.array(jax.devices()[:2]), "d")
    x = jax.device_put(jnp.stack([X, X]), NamedSharding(mesh, P("d")))
    f = lambda x: jnp.stack([average(x[0]), average(x[1])])  # noqa: E731
    text = jax.jit(ag.optimize(f)).lower(x).as_text()
    assert "xla_cpu_small_call" not in text
    assert f"dense<{len(X)}> : tensor<i32>" in text
    close(jax.jit(ag.optimize(f))(x), jax.jit(f)(x))


def test_a_short_loop_or_another_is_left() -> None:
    """`while` has no number of steps."""
    program = jax.make_jaxpr(lambda x: lax.while_loop(lambda s: s < 9, lambda s: s + x, 0.0))(1.0)
    assert [steps_at_once(eqn) for eqn in program.jaxpr.eqns if eqn.primitive.name == "while"] == [1]
