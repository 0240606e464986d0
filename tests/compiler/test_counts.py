"""Sums and products of one-hot rows that only count how often indices take each value."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.excerpts.counts import FEWEST, FEWEST_PLACES

K, L = 7, 5
N = FEWEST // L + 50
WHAT = "indices are counted"
rng = np.random.default_rng(0)
Y = jnp.asarray(rng.integers(-2, K + 2, N), jnp.int32)  # some out of bounds, on both sides
P = jnp.asarray(rng.integers(-1, L + 1, N), jnp.int32)
ROWS, OTHERS = Y[:250].reshape(50, 5), P[:250].reshape(50, 5)
hot = jax.nn.one_hot


def counted(f: Any, *args: Any) -> int:
    """How many sums and products became counts."""
    decisions = ag.explain(f)(*args).decisions
    return sum(one.fired and one.what == WHAT for one in decisions)


def check(f: Any, *args: Any) -> None:
    """The same bits and types."""
    want, got = jax.jit(f)(*args), jax.jit(ag.optimize(f))(*args)
    assert jax.tree.map(lambda x: (x.dtype, x.weak_type), want) == jax.tree.map(lambda x: (x.dtype, x.weak_type), got)
    jax.tree.map(np.testing.assert_array_equal, want, got)


SPELLINGS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "classes": (lambda y: hot(y, K).sum(0), (Y,)),
    "classes by columns": (lambda y: hot(y, K, axis=0).sum(1), (Y,)),
    "a comparison": (lambda y: (y[:, None] == jnp.arange(K)).sum(0), (Y,)),
    "each class under vmap": (lambda y: jax.vmap(lambda k: jnp.sum(y == k))(jnp.arange(K)), (Y,)),
    "shares": (lambda y: hot(y, K).mean(0), (Y,)),
    "in bfloat16": (lambda y: hot(y, K, dtype=jnp.bfloat16).sum(0), (Y,)),
    "unsigned": (lambda y: hot(y, K).sum(0), (Y.astype(jnp.uint32),)),
    "bags of words": (lambda y: hot(y, K).sum(1), (ROWS,)),
    "bags, places in the middle": (lambda y: hot(y, K, axis=1).sum(2), (ROWS,)),
    "bags, places in front": (lambda y: hot(y, K, axis=0).sum(2), (ROWS,)),
    "all of a matrix": (lambda y: hot(y, K).sum((0, 1)), (ROWS,)),
    "a unit dimension": (lambda y: hot(y[None], K).sum((0, 1)), (Y,)),
    "confusion": (lambda y, p: hot(y, K).T @ hot(p, L), (Y, P)),
    "confusion in integers": (lambda y, p: hot(y, K, dtype=int).T @ hot(p, L, dtype=int), (Y, P)),
    "confusion by einsum": (lambda y, p: jnp.einsum("nk,nl->lk", hot(y, K), hot(p, L)), (Y, P)),
    "confusions": (jax.vmap(lambda y, p: hot(y, K).T @ hot(p, L)), (ROWS, OTHERS)),
    "confusions, turned": (lambda y, p: jnp.einsum("bnk,nbl->nlk", hot(y, K), hot(p, L)), (ROWS, OTHERS.T)),
    "of a matrix": (lambda y, p: jnp.einsum("bnk,nbl->kl", hot(y, K), hot(p, L)), (ROWS, OTHERS.T)),
    "with itself": (lambda y: hot(y, K).T @ hot(y, K), (Y,)),
    "repeated, summed": (lambda y: jnp.broadcast_to(hot(y, K)[:, None], (N, 2, K)).sum((0, 1)), (Y,)),
    "repeated, kept": (lambda y: jnp.broadcast_to(hot(y, K)[:, None], (N, 2, K)).sum(0), (Y,)),
    "beside each number": (
        lambda y: jax.vmap(lambda k: jnp.sum(jnp.broadcast_to((y == k)[:, None], (N, 3)), 0))(jnp.arange(K)),
        (Y,),
    ),
    "bags, repeated": (lambda y: jnp.broadcast_to(hot(y, K)[:, :, None], (50, 5, 2, K)).sum(1), (ROWS,)),
    "in a loop": (lambda y: jax.lax.map(lambda y: hot(y, K).sum(0), jnp.stack([y, y + 1])), (Y,)),
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", SPELLINGS)
def test_counts(name: str, wide: bool) -> None:
    """They are found, out of bounds nothing is counted, and the result is the same to the bit."""
    f, args = SPELLINGS[name]
    with jax.enable_x64(wide):
        assert counted(f, *args) == 1
        check(f, *args)


NEAR_MISSES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "weighted": (lambda y: (hot(y, K) * jnp.arange(1.0, N + 1)[:, None]).sum(0), (Y,)),
    "of each row": (lambda y: hot(y, K).sum(1), (Y,)),
    "few places": (lambda y: hot(y, FEWEST_PLACES - 1).sum(0), (jnp.tile(Y, 4),)),
    "few rows": (lambda y: hot(y, K).sum(0), (Y[:100],)),
    "summed over classes": (lambda y, p: hot(y, K) @ hot(p, K).T, (Y, P)),
    "rows that agree": (lambda y, p: jnp.einsum("nk,nk->n", hot(y, K), hot(p, K)), (Y, P)),
    "one side is no index": (lambda y, p: hot(y, K).T @ (hot(p, L) * 2.0), (Y, P)),
    "summed along what repeats them": (lambda y: jnp.broadcast_to(hot(y, K)[:, None], (N, 2, K)).sum(1), (Y,)),
    "no rows": (lambda y: hot(y, K).sum(0), (Y[:0],)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """What counts nothing, or would lose, is no count; its values stay."""
    f, args = NEAR_MISSES[name]
    assert counted(f, *args) == 0
    want, got = jax.jit(f)(*args), jax.jit(ag.optimize(f))(*args)
    np.testing.assert_allclose(want, got, rtol=1e-6)


def test_more_ones_than_a_float_counts() -> None:
    """More than 2^24 of one value are counted, and rounded once."""
    n = (1 << 24) + 5
    f = lambda y: hot(y, 4).sum(0)  # noqa: E731
    y = jnp.full(n, 2, jnp.int32)
    assert counted(f, y) == 1
    assert float(jax.jit(ag.optimize(f))(y)[2]) == np.float32(n)


def test_rows_are_added_where_they_go_if_the_one_hot_matrix_is_made_for_that_alone() -> None:
    """Of few classes the product alone would cost as much; what else reads the matrix keeps the product."""
    x = jnp.asarray(rng.normal(size=(10_000, 8)), jnp.float32)
    y = jnp.asarray(rng.integers(-1, 11, 10_000), jnp.int32)

    def sums(x: Any, y: Any) -> Any:
        return hot(y, 10).T @ x

    def and_matrix(x: Any, y: Any) -> Any:
        h = hot(y, 10)
        return h.T @ x, h

    for f, fires in ((sums, True), (and_matrix, False)):
        decisions = [d for d in ag.explain(f)(x, y).decisions if d.rule == "contraction" and d.fired]
        assert any("added where they go" in d.what for d in decisions) == fires
        for want, got in zip(jax.tree.leaves(f(x, y)), jax.tree.leaves(jax.jit(ag.optimize(f))(x, y)), strict=True):
            np.testing.assert_allclose(want, got, rtol=1e-4, atol=1e-4)


def test_masks_beside_the_numbers_that_they_mask() -> None:
    """Means of classes by masks under `vmap`: rows are added where they go, for values and gradients, nan stays out."""
    y = jnp.tile(Y, 20)
    x = jnp.asarray(rng.normal(size=(y.size, 4)), jnp.float32).at[jnp.argmax(y > K)].set(jnp.nan)

    def means(x: Any, y: Any) -> Any:
        return jax.vmap(lambda k: jnp.mean(x, 0, where=(y == k)[:, None]))(jnp.arange(K))

    def loss(x: Any, y: Any) -> Any:
        return jnp.sum(jnp.sin(means(x, y)))

    for f in (means, jax.value_and_grad(loss)):
        decisions = [d for d in ag.explain(f)(x, y).decisions if d.fired]
        assert any(d.what == WHAT for d in decisions)
        assert any("added where they go" in d.what for d in decisions)
        pairs = zip(jax.tree.leaves(f(x, y)), jax.tree.leaves(jax.jit(ag.optimize(f))(x, y)), strict=True)
        for want, got in pairs:
            np.testing.assert_allclose(want, got, rtol=1e-4, atol=1e-4)


def test_what_a_mask_keeps_out_is_not_multiplied() -> None:
    """Where adding rows does not pay, masked sums stay: in a product a nan would reach all classes."""
    x = jnp.asarray(rng.normal(size=(30, 200)), jnp.float32).at[0].set(jnp.nan)
    y = jnp.arange(30) % K - 1

    def sums(x: Any, y: Any) -> Any:
        return jax.vmap(lambda k: jnp.sum(jnp.where((y == k)[:, None], x, 0), 0))(jnp.arange(K))

    want, got = sums(x, y), jax.jit(ag.optimize(sums))(x, y)
    assert not np.isnan(np.asarray(want)).any()
    np.testing.assert_allclose(want, got, rtol=1e-5, atol=1e-5)
