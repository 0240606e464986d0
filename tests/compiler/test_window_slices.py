"""What is sliced of windows is sliced of the array that they are windows of, in loops as well."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.windows import NAME, SLICES


def normal(*shape: int, dtype: str = "float32") -> Any:
    """Normal numbers, 100 of them in one for integers."""
    return jnp.asarray(100 * np.random.default_rng(0).standard_normal(shape), dtype)


def windows(x: Any, width: int, step: int = 1) -> Any:
    """Neighbours in `x`, for each place that has so many."""
    places = jnp.arange((x.shape[0] - width) // step + 1) * step
    return x[places[:, None] + jnp.arange(width)]


def backwards(x: Any, width: int) -> Any:
    """The same, the last place first and each window from its end."""
    return x[jnp.arange(x.shape[0] - 1, width - 2, -1)[:, None] - jnp.arange(width)]


def summed(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Every place of windows times its number, added up in a loop."""

    def f(x: Any) -> Any:
        w = make(x)
        entry = lambda k: lax.dynamic_index_in_dim(w, k, 1, keepdims=False)  # noqa: E731
        add = lambda k, total: total + entry(k) * (k + 1).astype(w.dtype)  # noqa: E731
        return lax.fori_loop(0, w.shape[1], add, jnp.zeros_like(entry(0)))

    return f


def beyond(x: Any) -> Any:
    """Indices beyond both ends, which are moved to them."""
    w = windows(x, 8)
    take = lambda total, k: (total + lax.dynamic_slice_in_dim(w, k, 1, 1)[:, 0], None)  # noqa: E731
    return lax.scan(take, jnp.zeros_like(w[:, 0]), jnp.array([-3, 0, 7, 8, 20]))[0]


def gaps(x: Any) -> Any:
    """Some windows, some places of them, and one of each."""
    w = windows(x, 8)
    return w[::3, 2], w[5:90:7, 1], w[4], w[:, :1], w[7, ::3], w[2, 3]


SLICED: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "places": (lambda x: (lambda w: w[:, 0] * w[:, 3] + w[:, 7])(windows(x, 8)), (3007,)),
    "windows": (lambda x: (lambda w: w[0] - w[-1])(windows(x, 500)), (3007,)),
    "gaps": (gaps, (3007,)),
    "apart": (lambda x: (lambda w: w[:, 0] - w[:, 7])(windows(x, 8, 3)), (3007,)),
    "backwards": (lambda x: (lambda w: w[:, 0] - w[:, 7])(backwards(x, 8)), (3007,)),
    "rows": (lambda x: (lambda w: w[:, 0] + w[:, 4] - w[:, 2])(windows(x, 5)), (900, 3)),
    "in a batch": (jax.vmap(lambda x: (lambda w: w[:, 0] - w[:, 4])(windows(x, 5))), (4, 900)),
    "in a loop": (summed(lambda x: windows(x, 8)), (6007,)),
    "rows in a loop": (summed(lambda x: windows(x, 8)), (1800, 3)),
    "beyond the ends": (beyond, (6007,)),
}


def fired(f: Callable[..., Any], *args: Any) -> bool:
    """Whether slices are read from the array."""
    return any(d.rule == NAME and d.what == SLICES for d in ag.explain(f)(*args).fired)


def gathers(f: Callable[..., Any], *args: Any) -> int:
    """How many there are in a program."""
    return sum(eqn.primitive.name == "gather" for eqn in jax.make_jaxpr(f)(*args).eqns)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
@pytest.mark.parametrize("name", SLICED)
def test_slices(name: str, dtype: str) -> None:
    """The windows are gone, and what was read of them is the same to the bit."""
    f, shape = SLICED[name]
    x = normal(*shape, dtype=dtype)
    assert gathers(f, x)
    assert fired(f, x)
    assert not gathers(ag.optimize(f), x)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(ag.optimize(f))(x), jax.jit(f)(x))


def test_gradients() -> None:
    """Those of what is sliced, and slices of a gradient's program, are the same."""
    x = normal(3007)

    def f(x: Any) -> Any:
        w = windows(x, 8)
        return jnp.sum(jnp.sin(w[:, 0]) * w[:, 5])

    for g in (jax.grad(ag.optimize(f)), ag.optimize(jax.grad(f))):
        np.testing.assert_allclose(jax.jit(g)(x), jax.jit(jax.grad(f))(x), rtol=1e-5, atol=1e-4)


def dilated(x: Any) -> Any:
    """A loop that reads places which lie apart: no `dynamic_slice` has gaps."""
    return summed(lambda x: windows(x, 8, 3))(x)


def read_whole(x: Any) -> Any:
    """Windows that a sort reads as well."""
    w = windows(x, 8)
    return w[:, 0], jnp.sort(w, axis=1)


def two_at_once(x: Any) -> Any:
    """Two places in each step."""
    w = windows(x, 8)
    take = lambda total, k: (total + lax.dynamic_slice_in_dim(w, k, 2, 1).sum(1), None)  # noqa: E731
    return lax.scan(take, jnp.zeros_like(w[:, 0]), jnp.arange(7))[0]


def by_data(x: Any) -> Any:
    """Places that depend on data."""
    places = (jnp.abs(x[:100]) * 10).astype(int) % 3000
    return x[places[:, None] + jnp.arange(8)][:, 2]


def patches(x: Any) -> Any:
    """A slice across windows which is none of the array: every second window from another place."""
    return windows(x, 8).reshape(-1)[::3]


@pytest.mark.parametrize("f", [dilated, read_whole, two_at_once, by_data, patches])
def test_other_windows_are_left(f: Callable[[Any], Any]) -> None:
    """Where windows are read otherwise they are made."""
    x = normal(3007)
    assert not fired(f, x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3), jax.jit(ag.optimize(f))(x), jax.jit(f)(x)
    )


def test_nothing_is_read() -> None:
    """Arrays without entries, and windows of which none is kept."""
    for f in (lambda x: windows(x, 8)[:0, 1], lambda x: x[jnp.arange(0)[:, None] + jnp.arange(4)][:, 1]):
        x = normal(3007)
        assert jax.jit(ag.optimize(f))(x).shape == (0,)


def test_indices_of_eight_bits() -> None:
    """An index of the loop that could not hold a place in the array."""

    def f(x: Any) -> Any:
        w = windows(x, 200)
        take = lambda total, k: (total + lax.dynamic_slice_in_dim(w, k, 1, 1)[:, 0], None)  # noqa: E731
        return lax.scan(take, jnp.zeros_like(w[:, 0]), jnp.arange(0, 200, 9, dtype=jnp.uint8))[0]

    x = normal(3007)
    assert fired(f, x)
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(x), jax.jit(f)(x))
