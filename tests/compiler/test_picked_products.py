"""Entries of a product that indices pick are made from the rows and columns that they need."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.passes.contraction import ContractionOrder
from compiler.loop_patterns import normal


def indices(seed: int, bound: int, *shape: int) -> Any:
    """Also negative ones, and such as are out of bounds on either side."""
    return np.random.default_rng(seed).integers(-bound - 9, bound + 9, shape).astype(np.int32)


A, B = normal(0, 300, 256), normal(1, 256, 280)
MANY_A, MANY_B = normal(2, 6, 128, 96), normal(3, 6, 96, 130)
TABLE, W = normal(4, 2000, 32), normal(5, 32, 512)
ROWS, COLUMNS, FEW = indices(6, 300, 200), indices(7, 280, 200), indices(8, 280, 40)
EACH = indices(9, 280, 300)

# fmt: off
PICKED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda a, b, i: (a @ b)[i], (A, B, FEW)),
    "rows, of two dimensions": (lambda a, b, i: (a @ b)[i], (A, B, FEW.reshape(5, 8))),
    "columns": (lambda a, b, i: (a @ b)[:, i], (A, B, FEW)),
    "turned": (lambda a, b, i: (a @ b).T[i], (A, B, FEW)),
    "filled": (lambda a, b, i: jnp.take(a @ b, i, axis=0), (A, B, FEW)),
    "filled columns": (lambda a, b, i: jnp.take(a @ b, i, axis=1), (A, B, FEW)),
    "clipped": (lambda a, b, i: jnp.take(a @ b, i, axis=1, mode="clip"), (A, B, FEW)),
    "entries": (lambda a, b, i, j: (a @ b)[i, j], (A, B, ROWS, COLUMNS)),
    "one of each row": (lambda a, b, i: (a @ b)[jnp.arange(300), i], (A, B, EACH)),
    "one of each column": (lambda a, b, i: (a @ b)[i, jnp.arange(280)], (A, B, indices(1, 300, 280))),
    "along an axis": (lambda a, b, i: jnp.take_along_axis(a @ b, i[:, None], 1)[:, 0], (A, B, EACH)),
    "vmap": (jax.vmap(lambda a, b, i: (a @ b)[i], (0, None, 0)), (A, B, EACH)),
    "rows of examples": (jax.vmap(lambda a, b, i: (a @ b)[i]), (MANY_A, MANY_B, indices(1, 128, 6, 9))),
    "entries of examples": (
        jax.vmap(lambda a, b, i, j: (a @ b)[i, j]),
        (MANY_A, MANY_B, indices(1, 128, 6, 9), indices(2, 130, 6, 9)),
    ),
    "embeddings in factors": (lambda t, w, i: (t @ w)[i], (TABLE, W, indices(3, 2000, 4, 16))),
    "einsum": (lambda t, w, i: jnp.einsum("vk,kd->dv", t, w)[:, i], (TABLE, W, indices(3, 2000, 64))),
}
LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "most rows": (lambda a, b, i: (a @ b)[i], (A, B, indices(1, 300, 290))),
    "the product is read, too": (lambda a, b, i: (lambda p: (p, p[i]))(a @ b), (A, B, FEW)),
    "small": (lambda a, b, i: (a @ b)[i], (A[:8, :8], B[:8, :8], FEW[:4] % 8)),
    "a function of it": (lambda a, b, i: jnp.tanh(a @ b)[i], (A, B, FEW)),
    "filled with zeros": (lambda a, b, i: (a @ b).at[i].get(mode="fill", fill_value=0), (A, B, FEW)),
    "16 bits of integers": (lambda a, b, i: (a @ b)[i], (A.astype(np.int16), B.astype(np.int16), FEW)),
}
# fmt: on


PICKS, SPREADS = "entries of a product are picked from its factors", "what indices spread in zeros is multiplied before"
ONE_HOT = "a sum of products: rows are picked, not multiplied by one-hot rows"


def fired(f: Callable[..., Any], args: tuple[Any, ...], what: str = PICKS, **options: Any) -> bool:
    """Whether entries of a product were picked from its factors, or what is said."""
    reports: list[Any] = []
    jax.eval_shape(ag.optimize(f, passes=(ContractionOrder(),), on_report=reports.append, **options), *args)
    return any(one.what == what for one in reports[0].fired)


@pytest.mark.parametrize("name", PICKED)
def test_entries_come_from_the_factors(name: str) -> None:
    """With the product's numbers; where an index is out of bounds, the nearest row or nan, as before."""
    f, args = PICKED[name]
    assert fired(f, args)
    got, want = (np.asarray(jax.jit(g)(*args)) for g in (ag.optimize(f, passes=(ContractionOrder(),)), f))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    loss: Any = lambda g: lambda x, y: jnp.nansum(jnp.sin(g(x, y, *args[2:])))  # noqa: E731
    made = jax.jit(jax.grad(loss(ag.optimize(f)), (0, 1)))(*args[:2])
    plain = jax.jit(jax.grad(loss(f), (0, 1)))(*args[:2])
    for x, y in zip(made, plain, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", LEFT)
def test_the_product_is_made_where_that_is_no_more(name: str) -> None:
    """Most of it is wanted, or somebody wants it whole, or what fills would be another number."""
    f, args = LEFT[name]
    assert not fired(f, args)


def test_settings() -> None:
    """A product of other rows may add up in another order: not under `strict`."""
    f, args = PICKED["rows"]
    assert not fired(f, args, numerics="strict")


def gradient(f: Callable[..., Any], more: tuple[Any, ...]) -> Callable[..., Any]:
    """By both factors."""
    return jax.grad(lambda x, y: jnp.nansum(jnp.sin(f(x, y, *more))), (0, 1))


@pytest.mark.parametrize("name", [name for name in PICKED if name != "vmap"])
def test_gradients_multiply_what_is_spread(name: str) -> None:
    """And none of the zeros: with JAX's numbers, and its nan where an index is out of bounds.

    One entry of each row makes rows of zeros that are one-hot rows.
    """
    f, args = PICKED[name]
    plain = gradient(f, args[2:])
    assert fired(plain, args[:2], ONE_HOT if name.startswith("one of each") else SPREADS)
    made = ag.optimize(plain, passes=(ContractionOrder(),))
    for x, y in zip(jax.jit(made)(*args[:2]), jax.jit(plain)(*args[:2]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)


def test_what_is_dropped_may_be_nan() -> None:
    """A scatter adds nothing out of bounds; a product with zeros would add nan."""
    at = jnp.asarray([3, 300, -301, 299])
    updates = jnp.ones((4, 280)).at[1:3].set(jnp.nan)

    def spread(a: Any, b: Any) -> Any:
        zeros = jnp.zeros((300, 280)).at[at].add(updates, mode="drop")
        return a.T @ zeros, zeros @ b.T

    assert fired(spread, (A, B), SPREADS)
    got, want = (jax.jit(g)(A, B) for g in (ag.optimize(spread, passes=(ContractionOrder(),)), spread))
    for x, y in zip(got, want, strict=True):
        assert np.isfinite(y).all()
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("added", ["zeros", "what was there"])
def test_what_is_spread_stays_where_all_of_it_is_read(added: str) -> None:
    """By something else than a product, or because it is added to other numbers."""

    def read(a: Any, b: Any, u: Any) -> Any:
        x = (jnp.zeros((300, 280)) if added == "zeros" else a @ b).at[FEW].add(u)
        return (a.T @ x, jnp.tanh(x)) if added == "zeros" else a.T @ x

    assert not fired(read, (A, B, normal(1, 40, 280)), SPREADS)
