"""What several read at the end of a long chain is computed once, bit by bit as before."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.shared_chains import SharedChains
from compiler.loop_patterns import normal

BLOCKS = 8
SIZES = (8, 64, 64)
W = normal(0, 64, 64) / 8
PARTS = normal(1, BLOCKS, *SIZES)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The function with this pass alone."""
    on_report = [].append if reports is None else reports.append
    return ag.optimize(f, passes=(SharedChains(),), rules=(), on_report=on_report, **options)


def decided(f: Callable[..., Any], *args: Any, **options: Any) -> list[bool]:
    """For each value that is computed once, that it is."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports, **options))(*args)
    return [d.fired for d in reports[-1].decisions if d.rule == "shared-chains"]


def stream(parts: Any, w: Any) -> Any:
    """What flows back through residual blocks: each adds to it, and each has a product with it."""
    total, found = parts[0], []
    for part in parts[1:]:
        total = total + part
        found.append(jnp.einsum("...i,...j->ij", total, part))
        found.append(total @ w)
    return found


def blocks(ws: Any, x: Any) -> Any:
    """The loss of a network of residual blocks that normalise first."""
    for up, down in ws:
        centred = x - x.mean(-1, keepdims=True)
        inside = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        x = x + jax.nn.relu(inside @ up) @ down
    return jnp.sum(x**2)


NETWORK = tuple((normal(2 + i, 64, 64) / 8, normal(20 + i, 64, 64) / 8) for i in range(BLOCKS))
X = normal(40, *SIZES)

FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a sum that goes on": (stream, (list(PARTS), W)),
    "the gradient of residual blocks": (jax.grad(blocks), (NETWORK, X)),
    "under vmap": (jax.vmap(stream, in_axes=(0, None)), (list(PARTS.swapaxes(0, 1)[:, :, None]), W)),
    "in a branch": (lambda p, w: lax.cond(w[0, 0] > 0, stream, stream, p, w), (list(PARTS), W)),
    "double precision": (stream, (list(PARTS.astype("float64")), W.astype("float64"))),
}


@pytest.mark.parametrize("name", FIRES)
@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_fires(name: str, numerics: str) -> None:
    """On values of such chains; types and all bits stay."""
    f, args = FIRES[name]
    with jax.enable_x64(name == "double precision"):
        assert any(decided(f, *args, numerics=numerics))
        got, want = (g(*args) for g in (optimised(f, numerics=numerics), ag.optimize(f, passes=(), rules=())))
        assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
        jax.tree.map(np.testing.assert_array_equal, got, want)
        for one, other in zip(*map(jax.tree.leaves, (jax.jit(optimised(f))(*args), want)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


def read_once(parts: Any, w: Any) -> Any:
    """A sum with one reader."""
    return sum(parts) @ w


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows, which XLA stores by itself": (stream, ([part[0] for part in PARTS], W)),
    "a short chain": (stream, (list(PARTS[:2]), W)),
    "one reader": (read_once, (list(PARTS), W)),
    "stored anyway": (lambda p, w: stream([jnp.sort(x) for x in p[:2]], w), (list(PARTS), W)),
    "few entries": (stream, (list(PARTS[:, :1, :4]), W)),
    "in a loop": (lambda p, w: lax.scan(lambda c, _: (c, stream(p, w)), 0, None, length=2)[1], (list(PARTS), W)),
    "half precision": (stream, (list(PARTS.astype(jnp.bfloat16)), W.astype(jnp.bfloat16))),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What is short, read once, stored by XLA itself, or what other passes see to."""
    f, args = NEAR_MISSES[name]
    assert decided(f, *args) == []


def test_one_value_for_a_few_blocks() -> None:
    """The cost of a chain is in proportion to its length: what is stored does not grow faster than it."""
    few, many = (decided(stream, list(PARTS)[:n] * 4, W) for n in (4, 8))
    assert len(few) < len(many) <= 2 * len(few) + 1


def test_xla_does_not_start_over() -> None:
    """The compiled gradient holds no kernel that adds up what all blocks have given; there was one, of many arrays."""

    def most_read(f: Callable[..., Any]) -> int:
        text = jax.jit(f).lower(NETWORK, X).compile().as_text()
        assert text is not None
        return max(line.count("param_") for line in text.splitlines() if line.startswith("%fused_computation"))

    assert most_read(jax.grad(blocks)) >= 2 * BLOCKS
    assert most_read(optimised(jax.grad(blocks))) < BLOCKS


def test_releases_what_each_block_gave() -> None:
    """Less is kept: sums are copied once each, and not once as they are and once turned."""

    def temp(f: Callable[..., Any]) -> int:
        plan = jax.jit(f).lower(list(PARTS), W).compile().memory_analysis()
        assert plan is not None
        return plan.temp_size_in_bytes

    assert temp(optimised(stream)) < 0.7 * temp(stream)
