"""Loops are left as they are where fused ones would move more bytes and hold more at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes import loop_fusion
from aerogel.compiler.passes.loop_fusion import MORE, NAME, LoopFusion
from aerogel.compiler.report import Report
from compiler.loop_patterns import normal


def chunked(x: Any, a: Any, b: Any, c: Any) -> Any:
    """A state space model of `[batch, chunks, length, heads, width]` in its chunked form (Mamba-2)."""
    length = x.shape[2]
    sums = jnp.cumsum(a.transpose(0, 3, 1, 2), -1)
    below = jnp.tril(jnp.ones((length, length), bool))
    decay = jnp.where(below, jnp.exp(jnp.where(below, sums[..., :, None] - sums[..., None, :], 0.0)), 0.0)
    inside = jnp.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, decay, x)
    states = jnp.einsum("bcln,bhcl,bclhp->bchpn", b, jnp.exp(sums[..., -1:] - sums), x)

    def step(h: Any, row: Any) -> Any:
        return row[1][:, :, None, None] * h + row[0], h

    begin = jnp.zeros((states.shape[0], *states.shape[2:]), x.dtype)
    _, before = lax.scan(step, begin, (states.swapaxes(0, 1), jnp.exp(sums[..., -1]).transpose(2, 0, 1)))
    return inside + jnp.einsum("bcln,cbhpn,bhcl->bclhp", c, before, jnp.exp(sums))


def model(batch: int, chunks: int, heads: int, width: int, dtype: Any = jnp.float32) -> Any:
    """Arguments of `chunked`."""
    row = batch, chunks, 16
    shapes = (*row, heads, width), (*row, heads), (*row, width), (*row, width)
    x, a, b, c = (normal(k, *shape).astype(dtype) for k, shape in enumerate(shapes))
    return x, -0.1 * abs(a), b, c


def loss(*args: Any) -> Any:
    """What a user differentiates."""
    return (chunked(*args) ** 2).mean()


def decisions(f: Any, *args: Any) -> Report:
    """What loop fusion decides."""
    reports: list[Report] = []
    jax.make_jaxpr(ag.optimize(f, passes=(LoopFusion(),), rules=(), on_report=reports.append))(*args)
    (report,) = reports
    return report


@pytest.mark.parametrize("sizes", [(1, 2, 2, 8), (2, 80, 8, 32), (4, 64, 8, 32)])
def test_products_of_chunks_stay_outside(sizes: tuple[int, ...]) -> None:
    """In the loop, each makes a stack more."""
    report = decisions(jax.grad(loss), *model(*sizes))
    assert NAME not in {d.rule for d in report.fired}
    assert MORE in {d.reason for d in report.refused}


def test_it_fires_without_that_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what refuses them."""
    monkeypatch.setattr(loop_fusion, "_takes_more", lambda *_: False)
    assert NAME in {d.rule for d in decisions(jax.grad(loss), *model(4, 64, 8, 32)).fired}


def test_sums_of_outputs_are_fused() -> None:
    """Near miss: nothing is stacked any more."""

    def f(x: Any) -> Any:
        return lax.scan(lambda c, row: (0.9 * c + row,) * 2, jnp.zeros_like(x[0]), x)[1].sum(0)

    assert decisions(f, normal(0, 200, 4096)).fired


@pytest.mark.parametrize("chunks", [0, 1, 5])
def test_values(chunks: int) -> None:
    """Gradients in float64, mapped."""
    with jax.enable_x64(True):
        args = model(2, chunks, 2, 3, jnp.float64)
        f = jax.vmap(jax.grad(lambda s, *args: (chunked(s * args[0], *args[1:]) ** 2).sum()), (0, *[None] * 4))
        scales = jnp.array([1.0, 0.5])
        np.testing.assert_allclose(jax.jit(ag.optimize(f))(scales, *args), jax.jit(f)(scales, *args), rtol=1e-10)
