"""`memory_limit`: a program that would take more computes values twice, and says by how much it misses the limit."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.cost import machine
from aerogel.compiler.cost.account import jaxpr_cost
from aerogel.compiler.passes.memory_limit import MemoryLimit
from aerogel.compiler.residuals.recompute import recomputed
from aerogel.transform._memory import bytes_of
from compiler.loop_patterns import normal
from compiler.programs_of import run

LAYERS, ROWS, WIDTH = 8, 512, 64
ARRAY = ROWS * WIDTH * 4


def stack(ws: Any, x: Any) -> Any:
    """Layers with a way around each, one after the other, as a user writes them."""
    for w in ws:
        x = x + 0.5 * jnp.tanh(jax.nn.gelu(x @ w))
    return jnp.mean(x**2)


GRADIENT = jax.value_and_grad(stack)


def arguments() -> tuple[Any, Any]:
    """Weights, a batch."""
    return [normal(k, WIDTH, WIDTH) / 8 for k in range(LAYERS)], normal(99, ROWS, WIDTH)


def temporary_bytes(f: Callable[..., Any], *args: Any) -> int:
    """What XLA plans."""
    planned = jax.jit(f).lower(*args).compile().memory_analysis()
    assert planned is not None
    return planned.temp_size_in_bytes


def reports(f: Callable[..., Any], limit: Any, *args: Any) -> list[Any]:
    """The decisions of the pass."""
    found: list[Any] = []
    jax.eval_shape(ag.optimize(f, memory_limit=limit, passes=[MemoryLimit()], on_report=found.append), *args)
    return list(found[0].decisions)


def test_the_limit_is_kept() -> None:
    """Temporary memory stays below the limit, half of what it was, as predicted; the numbers are the same."""
    args = arguments()
    limit = 15 * ARRAY
    f = ag.optimize(GRADIENT, memory_limit=limit)
    assert temporary_bytes(GRADIENT, *args) > 2 * limit
    planned = temporary_bytes(f, *args)
    assert 0.9 * planned < jaxpr_cost(jax.make_jaxpr(f)(*args).jaxpr).peak_bytes
    assert planned <= limit
    for a, b in zip(jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(jax.jit(GRADIENT)(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    (decision,) = reports(GRADIENT, limit, *args)
    assert decision.fired
    assert "still" not in decision.reason


def test_a_limit_that_cannot_be_kept() -> None:
    """The least is taken, and the decision says how much that is."""
    (decision,) = reports(GRADIENT, ARRAY, *arguments())
    assert "which is still more than the limit of 0.1 MB" in decision.reason


def test_within_the_limit_nothing_happens() -> None:
    """Neither where a program takes less, nor where no limit is given."""
    assert reports(GRADIENT, "1 GB", *arguments()) == []
    assert reports(GRADIENT, None, *arguments()) == []


def test_cheap_operations_first() -> None:
    """A limit that elementwise operations keep leaves products of matrices as many as there were."""
    args = arguments()

    def products(limit: int) -> int:
        f = ag.optimize(GRADIENT, memory_limit=limit, passes=[MemoryLimit()])
        return str(jax.make_jaxpr(f)(*args)).count("dot_general[")

    assert products(30 * ARRAY) == products(1000 * ARRAY)
    assert products(15 * ARRAY) > products(1000 * ARRAY)


def test_any_program() -> None:
    """Values of all kinds on both sides of the peak: keys, integers, booleans, results from the forward part."""

    def f(x: Any, key: Any) -> Any:
        kept = []
        for k in range(6):
            key, now = jax.random.split(key)
            mask = jax.random.bernoulli(now, 0.5, x.shape)
            order = jnp.argsort(x[:, 0])
            x = jnp.where(mask, jnp.sin(x @ x.T @ x), x[order].astype(jnp.bfloat16).astype(x.dtype)) * (k + 1)
            kept.append((x, mask, order, now))
        total = 0.0
        for y, mask, order, now in reversed(kept):
            total += jnp.sum(jnp.where(mask, y[order], 0) ** 2) + jax.random.normal(now, ())
        return total, kept[1][0], kept[2][1]

    args = normal(0, 96, 64), jax.random.key(0)
    traced = jax.make_jaxpr(f)(*args)
    for dear in (False, True):
        jaxpr = recomputed(traced.jaxpr, 4, dear, machine("cpu"))
        if jaxpr is None:
            assert not dear
            continue
        assert any(eqn.primitive.name == "cond" for eqn in jaxpr.eqns)
        got = run(ag.compiler.Program(jaxpr, traced.consts), *args)
        for a, b in zip(got, jax.tree.leaves(jax.jit(f)(*args)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_loops_under_a_limit() -> None:
    """A loop whose steps are dear runs them again, in segments, where the limit asks for it and not before."""

    def f(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (jnp.sin(x @ w), None), x, None, length=64)[0].sum()

    args = normal(0, WIDTH, WIDTH), normal(1, ROWS, WIDTH)
    g = jax.grad(f)
    limit = 40 * ARRAY
    assert temporary_bytes(ag.optimize(g), *args) > limit
    assert temporary_bytes(ag.optimize(g, memory_limit=limit), *args) < limit


def test_blocks_under_a_limit() -> None:
    """A formula over pairs that is small enough to be left goes block by block under a limit."""

    def f(x: Any, y: Any) -> Any:
        return jnp.exp(-((x[:, None] - y[None]) ** 2)) @ y

    args = normal(0, 512), normal(1, 512)
    limit = 1 << 19
    assert temporary_bytes(ag.optimize(f, memory_limit=limit), *args) < limit <= temporary_bytes(ag.optimize(f), *args)


@pytest.mark.parametrize(
    ("size", "number"), [(5, 5), ("4 GB", 4 * 10**9), ("512MiB", 512 << 20), (" 1.5 kb ", 1500), ("3 KiB", 3072)]
)
def test_sizes(size: Any, number: int) -> None:
    """Bytes, or a number with a unit: powers of 1000, or of 1024 with an i."""
    assert bytes_of(size, "optimize") == number


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "4", "GB", "4 XB", "1e3 MB", b"4 GB"])
def test_no_sizes(size: Any) -> None:
    """All else is an error, before anything is traced, of `jit` too."""
    with pytest.raises(ag.UsageError, match="memory_limit"):
        ag.optimize(stack, memory_limit=size)


def test_jit_takes_it() -> None:
    """`ag.jit` hands it on, and finds mistakes of its own."""
    jaxpr = ag.jit(GRADIENT, memory_limit=15 * ARRAY).trace(*arguments()).jaxpr
    assert "cond" in {eqn.primitive.name for eqn in jaxpr.eqns}
    with pytest.raises(ag.UsageError, match="memory_limit"):
        ag.jit(GRADIENT, memory_limit="much")
