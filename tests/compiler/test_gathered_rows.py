"""Rows that indices pick from fewer rows are multiplied before, and added up before a product; the numbers stay."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax
from aerogel._jax import ClosedJaxpr
from aerogel.compiler.cost import program_cost
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes.contraction import ContractionOrder
from compiler.programs_of import FAST, STRICT, run, traced

PICKED, ADDED = "rows are multiplied, and picked then", "rows are added up, and multiplied then"
NODES, EDGES = 40, 3000


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


def indices(*shape: int, seed: int = 0, below: int = NODES) -> Any:
    """Places of nodes."""
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(0, below, shape), jnp.int32)


def passed(f: Callable[..., Any], *args: Any, context: Any = FAST) -> tuple[ClosedJaxpr, ClosedJaxpr, list[str]]:
    """The program, what the pass makes of it, and what it did."""
    before = normalize(traced(f, *args))[0]
    after, decisions = ContractionOrder()(before, context)
    return before, after, [d.what for d in decisions if d.fired]


def layer(h: Any, s: Any, r: Any, e: Any, w: Any) -> Any:
    """What is computed on each edge of a graph."""
    return jnp.tanh(jnp.concatenate([h[s], h[r], e], -1) @ w)


H, S, R, E, W = values(NODES, 32), indices(EDGES), indices(EDGES, seed=1), values(EDGES, 4), values(68, 48)


def close(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    """Equal types, and values up to rounding."""
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        x, y = np.asarray(a, float), np.asarray(b, float)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, np.nanmax(np.abs(y), initial=0)))


@pytest.mark.parametrize(
    "f",
    [
        layer,
        lambda h, s, r, e, w: jnp.einsum("ni,io->no", jnp.hstack([e, h[r], h[s]]), w),
        lambda h, s, r, e, w: jnp.concatenate([jnp.take(h, s, 0), h.at[r].get(mode="clip"), e], 1) @ w,
        lambda h, s, r, e, w: jnp.concatenate([h[s.reshape(30, 100)], e.reshape(30, 100, 4)], -1) @ w[:36],
        lambda h, s, r, e, w: h[s] @ w[:32],
    ],
)
def test_nodes_are_multiplied_not_edges(f: Callable[..., Any]) -> None:
    """However the pieces are joined and where they stand; of several axes of indices too."""
    before, after, did = passed(f, H, S, R, E, W)
    assert did == [PICKED]
    assert program_cost(before.jaxpr).flops > 4 * program_cost(after.jaxpr).flops
    close(run(after, H, S, R, E, W), run(before, H, S, R, E, W))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_gradients_add_up_before_they_multiply(dtype: str) -> None:
    """By the nodes, the edges and the weights."""
    with jax.enable_x64(dtype == "float64"):
        h, e, w = (jnp.asarray(x, dtype) for x in (H, E, W))
        f = jax.grad(lambda h, e, w: (layer(h, S, R, e, w) ** 2).sum(), (0, 1, 2))
        before, after, did = passed(f, h, e, w)
        assert {*did} >= {PICKED, ADDED}
        assert program_cost(before.jaxpr).flops > 4 * program_cost(after.jaxpr).flops
        tolerance = {"float32": 1e-4, "float64": 1e-12, "bfloat16": 0.05}[dtype]
        close(run(after, h, e, w), run(before, h, e, w), tolerance)


def test_places_out_of_bounds_are_filled_as_before() -> None:
    """With nan, as `jnp.take` has it, or with numbers."""
    s = S.at[:5].set(NODES + 3)
    for f in (
        lambda h, s, w: jnp.take(h, s, axis=0, mode="fill") @ w,
        lambda h, s, w: jnp.take(h, s, axis=0, mode="clip") @ w,
    ):
        before, after, did = passed(f, H, s, W[:32])
        assert did == [PICKED]
        close(run(after, H, s, W[:32]), run(before, H, s, W[:32]))


@pytest.mark.parametrize(
    "f",
    [
        lambda h, s, r, e, w: (lambda x: (x @ w, x))(jnp.concatenate([h[s], h[r], e], -1)),  # the edges are wanted
        lambda h, s, r, e, w: jnp.concatenate([h[s[:20]], h[r[:20]], e[:20]], -1) @ w,  # fewer edges than nodes
        lambda h, s, r, e, w: jnp.einsum("nsf,sfo->no", h[s.reshape(30, 100)], jnp.broadcast_to(w[:32], (100, 32, 48))),
        lambda h, s, r, e, w: jnp.take(h, s, 0, mode="fill").T @ e,  # nan would be lost
    ],
)
def test_near_misses_are_left(f: Callable[..., Any]) -> None:
    """What is read elsewhere, what is not fewer, and what is summed along the indices alone or in part."""
    _, _, did = passed(f, H, S, R, E, W)
    assert PICKED not in did


def test_of_few_rows_each_is_scaled_by_sums() -> None:
    """`h[s].T @ g` is `h.T @ segment_sum(g, s)` where the indices are promised to be in bounds; strict: nothing."""
    f = lambda h, s, g: h[s].T @ g  # noqa: E731
    g = values(EDGES, 48)
    before, after, did = passed(f, H, S, g)
    assert did == [PICKED]
    close(run(after, H, S, g), run(before, H, S, g))
    assert passed(f, H, S, g, context=STRICT)[2] == []
    assert ag.explain(f)(H, S, g).fired


@pytest.mark.parametrize(
    ("edges", "width", "cpus", "act", "fires"),
    [
        (703, 16, 2, jax.nn.silu, False),
        (703, 16, 2, lambda y: jax.nn.sigmoid(y + 1.0), False),
        (703, 16, 2, jnp.tanh, True),  # scalar code as it stands
        (704, 16, 2, jax.nn.silu, True),  # two like halves
        (703, 32, 2, jax.nn.silu, True),  # longer rows
        (703, 16, 1, jax.nn.silu, True),  # one thread
    ],
)
def test_logistic_functions_of_an_odd_number_of_short_rows(
    monkeypatch: pytest.MonkeyPatch, edges: int, width: int, cpus: int, act: Callable[..., Any], fires: bool
) -> None:
    """They would become scalar code in one kernel with the rows that are picked, on two threads."""
    monkeypatch.setattr(_jax, "usable_cores", lambda: cpus)
    args = values(NODES, width), indices(edges), indices(edges, seed=1), values(edges, 1), values(2 * width + 1, width)
    f = lambda h, s, r, e, w: act(jnp.concatenate([h[s], h[r], e], -1) @ w)  # noqa: E731
    before, after, did = passed(f, *args)
    assert (PICKED in did) == fires
    close(run(after, args), run(before, args))
    gradient = jax.grad(lambda h, s, r, e, w: f(h, s, r, e, w).sum(), (0, 4))
    assert PICKED in passed(gradient, *args)[2]
