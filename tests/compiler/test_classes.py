"""Sums of the rows of each of several classes, written one by one, read all rows once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.excerpts.classes import FEWEST, FEWEST_SUMS, SPARSEST
from aerogel.compiler.passes.reroll import FEWEST as FEWEST_STEPS

K, D = 3, 4
N = FEWEST // D
WHAT = "rows are added where their classes say"
rng = np.random.default_rng(0)
Y = jnp.asarray(rng.integers(-1, K + 1, N), jnp.int32)
X = jnp.asarray(rng.normal(size=(N, D)), jnp.float32)


def groups(f: Any, *args: Any, **options: Any) -> int:
    """How many groups of sums became one; values stay."""
    decisions = ag.explain(f, **options)(*args).decisions
    optimised = jax.jit(ag.optimize(f, **options))(*args)
    for want, got in zip(jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(optimised), strict=True):
        assert jax.typeof(want) == jax.typeof(got)
        np.testing.assert_allclose(want, got, rtol=1e-4, atol=1e-4)
    return sum(one.fired and one.what == WHAT for one in decisions)


def by_masks(x: Any, y: Any, cases: Any = range(K)) -> Any:
    """Sums of rows."""
    return [jnp.sum(jnp.where((y == k)[:, None], x, 0), 0) for k in cases]


def loss(x: Any, y: Any) -> Any:
    """Of means."""
    return sum(jnp.sum(jnp.sin(jnp.mean(x, 0, where=(y == k)[:, None]))) for k in range(K))


SPELLINGS: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "sums": (by_masks, (X, Y), 1),
    "means": (lambda x, y: jnp.stack([jnp.mean(x, 0, where=(y == k)[:, None]) for k in range(K)]), (X, Y), 2),
    "products with masks": (lambda x, y: [jnp.sum(x * (y == k)[:, None], 0) for k in range(K)], (X, Y), 1),
    "value and gradient": (jax.value_and_grad(loss), (X, Y), 2),
    "not all cases, not in order": (lambda x, y: by_masks(x, y, (7, -1, 2)), (X, Y), 1),
    "one of them twice": (lambda x, y: by_masks(x, y, (0, 1, 0)), (X, Y), 1),
    "an index in a column": (lambda x, y: [jnp.sum(jnp.where(y == k, x, 0), 0) for k in range(K)], (X, Y[:, None]), 1),
    "of a matrix": (
        lambda x, y: [jnp.sum(jnp.where((y == k)[..., None], x, 0), (0, 1)) for k in range(K)],
        (X.reshape(-1, 8, D), Y.reshape(-1, 8)),
        1,
    ),
    "of two arrays": (lambda x, y: (by_masks(x, y), by_masks(jnp.sin(x), y)), (X, Y), 2),
    "unsigned": (by_masks, (X, Y.astype(jnp.uint32)), 1),
    "integers": (by_masks, ((10 * X).astype(jnp.int32), Y), 1),
    "in a loop": (lambda x, y: jax.lax.map(lambda s: by_masks(s * x, y), jnp.arange(3.0)), (X, Y), 1),
    "under vmap": (jax.vmap(by_masks, (0, None)), (jnp.stack([X, 2 * X]), Y), 0),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_sums_of_classes(name: str) -> None:
    """They are found, and are what they were."""
    f, args, many = SPELLINGS[name]
    assert groups(f, *args) == many


NEAR_MISSES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "one case": (lambda x, y: by_masks(x, y, (1,)), (X, Y)),
    "few entries": (by_masks, (X[:100], Y[:100])),
    "few numbers": (
        lambda x, y: by_masks(x, y, range(2)),
        (jnp.tile(X[:, : FEWEST_SUMS // 2 - 1], (4, 1)), jnp.tile(Y, 4)),
    ),
    "cases far apart": (lambda x, y: by_masks(x, y, (0, 2 * SPARSEST + 1)), (X, Y)),
    "classes along the columns": (
        lambda x, y: [jnp.sum(jnp.where(y == k, x, 0), 0) for k in range(K)],
        (jnp.tile(X, (4, 1)), Y[:D]),
    ),
    "otherwise one": (lambda x, y: [jnp.sum(jnp.where((y == k)[:, None], x, 1), 0) for k in range(K)], (X, Y)),
    "otherwise of each": (lambda x, y: [jnp.sum(jnp.where((y == k)[:, None], 0, x), 0) for k in range(K)], (X, Y)),
    "other comparisons": (lambda x, y: [jnp.sum(jnp.where((y > k)[:, None], x, 0), 0) for k in range(K)], (X, Y)),
    "of floats": (by_masks, (X, Y.astype(jnp.float32))),
    "summed along columns": (
        lambda x, y: [jnp.sum(jnp.where((y == k)[:, None], x, 0), 1) for k in range(K)],
        (X, Y),
    ),
    "all of it": (lambda x, y: [jnp.sum(jnp.where((y == k)[:, None], x, 0)) for k in range(K)], (X, Y)),
    "no rows": (by_masks, (X[:0], Y[:0])),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """What is no such group, or would lose, stays."""
    f, args = NEAR_MISSES[name]
    assert groups(f, *args) == 0


def test_nan_stays_out() -> None:
    """A nan in a row of no class, or of another one, does not reach the sums."""
    x, y = X.at[0].set(jnp.nan).at[1].set(jnp.nan), Y.at[0].set(K + 5).at[1].set(2)
    want, got = by_masks(x, y), jax.jit(ag.optimize(by_masks))(x, y)
    assert np.isnan(np.asarray(want)).sum() == D
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_masks_that_are_multiplied_under_strict_numerics() -> None:
    """They bring a nan from where they are zero, so that only masks are read as masks; strictly, none is."""
    products = SPELLINGS["products with masks"][0]
    assert groups(products, X, Y, numerics="strict") == 0
    assert groups(by_masks, X, Y, numerics="strict") == 0


def test_cases_at_the_end_of_integers() -> None:
    """No index is taken for another one where the difference does not fit."""
    ends = np.iinfo(np.int32)
    y = Y.at[:4].set(jnp.asarray([ends.min, ends.max, ends.min + 1, ends.max - 1], jnp.int32))
    f = lambda x, y: by_masks(x, y, (ends.min, ends.min + 1, ends.min + 2))  # noqa: E731
    assert groups(f, X, y) == 1
    f = lambda x, y: by_masks(x, y, (ends.max, ends.max - 1))  # noqa: E731
    assert groups(f, X, y) == 1


@pytest.mark.parametrize("gradient", [False, True])
def test_many_classes_are_no_loop(gradient: bool) -> None:
    """Steps that are all the same would be rolled up to a loop that reads all rows once for each class."""
    cases = range(2 * FEWEST_STEPS)
    rows = jnp.asarray(rng.integers(0, len(cases), N), jnp.int32)

    def means(x: Any, y: Any) -> Any:
        return jnp.stack([jnp.mean(x, 0, where=(y == k)[:, None]) for k in cases])

    f = jax.grad(lambda x, y: jnp.sum(jnp.sin(means(x, y)))) if gradient else means
    assert groups(f, X, rows)
    made = {eqn.primitive.name for eqn in jax.make_jaxpr(ag.optimize(f))(X, rows).eqns}
    assert "scatter-add" in made
    assert "scan" not in made
