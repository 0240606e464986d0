"""Large constants of loops are made in the blocks of the steps that read them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import scan_counts
from aerogel.compiler.passes.streaming import Streaming
from aerogel.compiler.program import inner_jaxprs
from aerogel.compiler.streams.stream_plan import Sizes
from compiler.loop_patterns import normal
from compiler.programs_of import traced

SIZES = Sizes(1 << 12, at_any_price=True)  # 4 KiB are large
N, M = 96, 80


def distances(x: Any, y: Any) -> Any:
    """Of all pairs."""
    return jnp.sum((x[:, None] - y) ** 2, -1) / 2.0


def repeated(step: Callable[[Any, Any], Any], outside: bool) -> Callable[[Any, Any], Any]:
    """A loop whose steps read the distances, made before it or in it."""

    def f(x: Any, y: Any) -> Any:
        d = distances(x, y)
        body = lambda h, _: (step(d if outside else distances(x, y), h), None)  # noqa: E731
        return lax.scan(body, jnp.zeros(len(x)), None, length=3)[0].sum()

    return f


def softmin(d: Any, h: Any) -> Any:
    """A step of Sinkhorn's, both ways."""
    g = -jax.nn.logsumexp(h[:, None] - d, axis=0)
    return -jax.nn.logsumexp(g - d, axis=1)


def nearest(d: Any, h: Any) -> Any:
    """Its gradient looks for what is equal to a minimum."""
    return jnp.min(d + 0.1 * jnp.min(d + 0.1 * h[:, None], axis=0), axis=1)


def thresholded(d: Any, h: Any) -> Any:
    """Compares with what the steps before made."""
    return jnp.sum(jnp.where(d < h[:, None] + h.mean(), d, 0.1 * d), axis=1) / M


def large_constants(program: Any) -> int:
    """How many constants of loops hold as many numbers as there are pairs."""
    found = 0
    for eqn in program.eqns:
        if eqn.primitive.name == "scan":
            found += sum(v.aval.size >= N * M for v in eqn.invars[: scan_counts(eqn.params)[0]])
        found += sum(map(large_constants, inner_jaxprs(eqn)))
    return found


def streamed(f: Callable[..., Any]) -> Callable[..., Any]:
    """By this pass alone."""
    return ag.optimize(f, rules=[], passes=(Streaming(SIZES),))


POINTS = normal(0, N, 2), normal(1, M, 2)


def test_distances_of_constant_points_are_made_in_the_steps() -> None:
    """The program holds no large constant, and its result is as exact."""
    f = repeated(softmin, outside=True)
    assert large_constants(traced(f, *POINTS).jaxpr)
    assert not large_constants(traced(streamed(f), *POINTS).jaxpr)
    close(streamed(f), f, POINTS)


def close(got: Callable[..., Any], want: Callable[..., Any], args: Any) -> None:
    """`got` is as near to the results in float64 as `want` is, or within a few ulp of the largest."""
    with jax.enable_x64(True):
        exact = [np.asarray(x) for x in jax.tree.leaves(jax.jit(want)(*(np.asarray(x, np.float64) for x in args)))]
    for a, b, ideal in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (got, want)), exact, strict=True):
        error, plain = (float(np.abs(np.asarray(x) - ideal).max()) for x in (a, b))
        assert error <= max(4 * plain, 1e-5 * float(np.abs(ideal).max()))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_what_jax_computes_before_the_loops_of_a_gradient(dimensions: int) -> None:
    """By the points: their distances, and what the derivative of each is made of."""
    f = jax.value_and_grad(repeated(softmin, outside=False), (0, 1))
    points = normal(0, 2064, dimensions), normal(1, 2048, dimensions)  # just large enough
    assert max(sizes_in(traced(f, *points).jaxpr)) >= 2048 * 2064
    assert max(sizes_in(traced(ag.optimize(f), *points).jaxpr)) < 2048 * 2064 // 3
    close(ag.optimize(f), f, points)


def sizes_in(jaxpr: Any) -> list[int]:
    """The numbers of elements of all values, nested ones included."""
    own = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
    return own + [n for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn) for n in sizes_in(inner)]


@pytest.mark.parametrize("step", [nearest, thresholded])
def test_what_is_compared_is_read_from_memory(step: Callable[[Any, Any], Any]) -> None:
    """In another kernel the last bit may be another."""
    f = jax.value_and_grad(repeated(step, outside=True), (0, 1))
    before, after = (large_constants(traced(g, *POINTS).jaxpr) for g in (f, streamed(f)))
    assert before
    assert after
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*POINTS)) for g in (streamed(f), f)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def kept(x: Any, y: Any) -> Any:
    """The distances are a result, too."""
    d = distances(x, y)
    return lax.scan(lambda h, _: (softmin(d, h), None), jnp.zeros(len(x)), None, length=3)[0], d


def dear(x: Any, y: Any) -> Any:
    """Every step would compute exponentials again."""
    d = jnp.exp(-distances(x, y))
    return lax.scan(lambda h, _: (softmin(d, h), None), jnp.zeros(len(x)), None, length=3)[0]


def whole(x: Any, y: Any) -> Any:
    """Each step needs all of it."""
    d = distances(x, y)
    step = lambda h, _: (jnp.sort((d + h[:, None]).ravel())[: len(x)], None)  # noqa: E731
    return lax.scan(step, jnp.zeros(len(x)), None, length=3)[0]


@pytest.mark.parametrize("f", [kept, dear, whole])
def test_others_stay(f: Callable[..., Any]) -> None:
    """What is needed besides, dear, or would be large in the steps."""
    assert large_constants(traced(streamed(f), *POINTS).jaxpr) == large_constants(traced(f, *POINTS).jaxpr) > 0
