"""Forms of the catalogue in spellings that nobody wrote rules for: what must act on them does, near misses are left."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from benchmarks._case import Case, value_and_grad
from benchmarks.other_spellings_cost_the_same import CASES, FIRES


def shape(*sizes: int) -> Any:
    """Numbers that are not there: nothing runs here."""
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def fired(f: Callable[..., Any], args: tuple[Any, ...]) -> set[str]:
    """What acts on a program."""
    reports: list[Any] = []
    jax.eval_shape(ag.optimize(f, on_report=reports.append), *args)
    return {decision.rule for decision in reports[-1].fired}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_spelling_is_understood(case: Case) -> None:
    """In its value and in its gradient, as JAX writes that."""
    args = jax.eval_shape(case.args)
    assert FIRES[case.name] in fired(case.natural, args)
    if case.grad:
        assert FIRES[case.name] in fired(value_and_grad(case.natural, case.grad), args)


SQUARE, ROWS = shape(800, 800), shape(200_000, 3)
NEAR: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "contraction": [
        (lambda a, b, x: jnp.tanh(a @ b) @ x, (SQUARE, SQUARE, shape(800))),
        (lambda d, a: (d + jnp.tri(800)) @ a, (shape(800), SQUARE)),
        (lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, (shape(800, 64), shape(800, 64), shape(800, 64))),
    ],
    "excerpts": [
        (lambda a, b: jax.nn.softmax(a @ b, 0)[17], (SQUARE, SQUARE)),
        (lambda a, b: (a @ b)[:790], (SQUARE, SQUARE)),
    ],
    "loop-slots": [
        (lambda x: lax.fori_loop(1, 2000, lambda i, y: y.at[i].set(y[i // 2] + x[i]), x), (shape(2000, 64),)),
        (lambda x: lax.fori_loop(1, 2000, lambda i, y: y.at[i].set(y.mean(0) + x[i]), x), (shape(2000, 64),)),
    ],
    "loop-fusion": [
        (lambda x: jnp.sort(lax.scan(lambda c, _: (jnp.sin(c),) * 2, x, None, length=20)[1], 0), (shape(5000),)),
        (lambda x: lax.scan(lambda c, _: (jnp.sin(c),) * 2, x, None, length=20)[1], (shape(5000),)),
    ],
    "half-spectra": [
        (lambda x: jnp.abs(jnp.fft.ifft(jnp.fft.fft(x) * 2)), (shape(64, 4096),)),
        (lambda x: jnp.fft.ifft((jnp.fft.fft(x) * jnp.arange(4096)) ** 2).real, (shape(64, 4096),)),
    ],
    "small-axes": [
        (lambda x: jnp.sum(x, 0), (ROWS,)),
        (lambda x: jnp.linalg.norm(x, axis=-1), (shape(200_000, 32),)),
    ],
    "early-picks": [
        (lambda z: (z * z[::-1])[jnp.arange(800), jnp.arange(800) % 7], (SQUARE,)),
        (lambda z: jnp.cumsum(z, 1)[jnp.arange(800), jnp.arange(800) % 7], (SQUARE,)),
    ],
    "diagonal-sum": [
        (lambda x: jnp.sum(x * jnp.tri(800)), (SQUARE,)),
        (lambda x: jnp.sum(jnp.where(jnp.eye(800, k=1, dtype=bool), x, 1.0)), (SQUARE,)),
    ],
    "small-product": [
        (jnp.matmul, (shape(20_000, 2, 2), shape(20_000, 2, 2))),
        (jnp.matmul, (shape(20_000, 32, 32), shape(20_000, 32, 32))),
    ],
    "padded-terms": [
        (lambda x: jnp.pad(x[1:], ((0, 1), (0, 0))) + jnp.pad(x[:-1], ((1, 0), (0, 0))), (ROWS,)),
        (lambda x: jnp.pad(x, 1) * jnp.pad(x + 1, 1), (ROWS,)),
        (jax.grad(lambda x: jnp.sum(jnp.exp(x[:, 0]) * jnp.exp(x[:, 1]) * x[:, 2])), (shape(30_000, 3),)),
    ],
    "long-convolution": [
        (jnp.convolve, (shape(3000), shape(30))),
        (lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), "SAME"), (shape(2, 1, 8000), shape(16, 1, 128))),
    ],
    "terms-as-stored": [
        (lambda x, w: jnp.einsum("btd,do->bto", x, w), (shape(8, 128, 384), shape(384, 320))),
        (lambda x, w: jnp.tensordot(x, w, 2), (shape(1024, 8, 48), shape(8, 48, 320))),
    ],
}


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_is_left(name: str) -> None:
    """Two programs for each that look alike."""
    assert set(FIRES.values()) == set(NEAR)
    for f, args in NEAR[name]:
        assert name not in fired(f, args)
