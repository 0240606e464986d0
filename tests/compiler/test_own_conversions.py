"""Parts of bfloat16 numbers that a sum reads are made float32 by themselves."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.own_broadcasts import NAME

WHAT = "is converted by itself"


def normal(seed: int, *shape: int, dtype: str = "bfloat16") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How often parts were set apart."""
    found = ag.explain(f, **options)(*args).fired
    return sum(d.rule == NAME and d.what.endswith(WHAT) for d in found)


def temporary_bytes(f: Callable[..., Any], *args: Any) -> int:
    """What XLA plans to hold."""
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


def cross_entropy(z: Any, t: Any) -> Any:
    """Of classes."""
    return -jnp.mean(jax.nn.log_softmax(z)[jnp.arange(len(t)), t])


Z, T = normal(0, 500, 130), jnp.arange(500) * 7 % 130
ONE = jnp.int32(3)
PICKED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a loss of classes": (cross_entropy, (Z, T)),
    "the first class": (lambda z: jax.nn.logsumexp(z, -1) - z[:, 0], (Z,)),
    "a traced class": (lambda z, i: jax.nn.logsumexp(z, -1) - z[:, i], (Z, ONE)),
    "rows": (lambda z, t: (jnp.sum(jnp.exp(z), 1), z[t[:20]]), (Z, T)),
    "of a product": (lambda h, w, t: cross_entropy(h @ w, t), (normal(1, 500, 40), normal(2, 40, 130), T)),
    "maxima": (lambda z: jnp.max(jnp.abs(z), 1) - z[:, 5], (Z,)),
    "in a loop": (
        lambda z: lax.scan(lambda c, x: (c + jnp.sum(jnp.exp(x), 1) - x[:, 2], None), 0 * z[:, 0], z[None, :] * 1)[0],
        (Z,),
    ),
    "vmap": (jax.vmap(cross_entropy), (normal(3, 3, 100, 60), jnp.stack([T[:100] % 60] * 3))),
}
LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "float32": (cross_entropy, (Z.astype("float32"), T)),
    "float16": (cross_entropy, (Z.astype("float16"), T)),
    "few numbers": (cross_entropy, (Z[:30], T[:30])),
    "most of it": (lambda z: (jnp.sum(jnp.exp(z), 1), z[:, 10:]), (Z,)),
    "no sum": (lambda z: (jnp.exp(z), z[:, 0]), (Z,)),
    "a sum of the numbers": (lambda z: jnp.max(z, 1) - z[:, 0], (Z,)),
    "a sum of the part": (lambda z: jnp.sum(jnp.exp(z[:, :3]), 1), (Z,)),
    "what is computed": (lambda z: (lambda y: (jnp.sum(jnp.exp(y), 1), y[:, 0]))(jnp.tanh(z) * 2), (Z,)),
    "nothing": (cross_entropy, (Z[:0], T[:0])),
}


@pytest.mark.parametrize("name", PICKED)
def test_a_part_is_converted_by_itself(name: str) -> None:
    """The numbers are those of the natural form."""
    f, args = PICKED[name]
    assert fired(f, *args) == 1
    for g in (f, jax.value_and_grad(lambda *xs: sum(jnp.sum(y) ** 2 for y in jax.tree.leaves(f(*xs))))):
        got, want = (jax.tree.leaves(jax.jit(h)(*args)) for h in (ag.optimize(g), g))
        for one, other in zip(got, want, strict=True):
            assert one.dtype == other.dtype
            one, other = np.asarray(one, "float32"), np.asarray(other, "float32")
            np.testing.assert_allclose(one, other, rtol=3e-2, atol=3e-2 * float(np.max(np.abs(other))))


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left(name: str) -> None:
    """What nothing is written for."""
    f, args = LEFT[name]
    assert fired(f, *args) == 0


def test_nothing_is_written_for_a_part() -> None:
    """XLA writes all logits as float32 for the sake of one of each row."""
    f = PICKED["the first class"][0]
    z = normal(0, 1000, 200)
    assert temporary_bytes(f, z) >= 800_000 or jax.__version_info__ >= (0, 12)  # which does not any more
    assert temporary_bytes(ag.optimize(f), z) < 100_000


def test_infinities_and_nan_are_where_they_were() -> None:
    """A conversion changes no number."""
    f = PICKED["the first class"][0]
    z = Z.at[3, 0].set(jnp.inf).at[4, 6].set(jnp.nan).at[5].set(-jnp.inf)
    np.testing.assert_array_equal(np.isnan(jax.jit(ag.optimize(f))(z)), np.isnan(jax.jit(f)(z)))
