"""What XLA would store for a sum alone is made in blocks, and comes out the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax
from aerogel._jax import evaluate
from aerogel.compiler.passes.stored_sums import NAME

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the pass is for CPUs")
SIZE = 524_288 + 16_384 + 16  # whole blocks, and a rest behind them
ROWS = 700, 801


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several cores the pass asks how much they would share."""
    monkeypatch.setattr(_jax, "usable_cores", lambda: 1)


def decisions(f: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What the pass decided."""
    return [d for d in ag.explain(f, **options)(*args).decisions if d.rule == NAME]


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How many loops the pass made."""
    return sum(d.fired for d in decisions(f, *args, **options))


def huber(x: Any) -> Any:
    """A Huber loss, entry by entry."""
    return jnp.where(jnp.abs(x) <= 1, 0.5 * x * x, jnp.abs(x) - 0.5)


def masked(x: Any, y: Any) -> Any:
    """Squared errors where y says so."""
    return jnp.where(y > 0, (x - y) ** 2, 0)


def error(x: Any, y: Any) -> Any:
    """Their mean."""
    return masked(x, y).sum() / (y > 0).astype(x.dtype).sum()


def largest(x: Any, y: Any) -> Any:
    """The largest entry where y says so."""
    return jnp.max(jnp.where(y > 0, x, -jnp.inf))


# With the number of loops.
STORED: dict[str, tuple[Callable[..., Any], int]] = {
    "a Huber loss": (lambda x, y: huber(x).sum(), 1),
    "and its gradient": (lambda x, y: jax.value_and_grad(lambda x: huber(x).sum())(x), 1),
    "a count": (lambda x, y: jnp.mean(x > 0), 1),
    "a masked error: two sums in one loop": (error, 1),
    "its gradient": (lambda x, y: jax.value_and_grad(error)(x, y), 1),
    "the largest of some": (largest, 1),
    "the largest and the smallest of some": (lambda x, y: (largest(x, y), jnp.min(jnp.where(y > 0, x, 9.0))), 1),
    "a mean that another sum gave": (lambda x, y: (lambda d: jnp.where(d > 0, d, 0).sum())(x - y.mean()), 1),
    "pinball": (lambda x, y: (lambda d: jnp.where(d > 0, 0.9 * d, -0.1 * d).mean())(x - y), 1),
    "how many are the largest of some: two loops": (lambda x, y: jax.grad(lambda x: largest(x, y))(x), 2),
    "where each of two exists": (lambda x, y: jnp.where(x > y, x, y).sum(), 1),
}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_made_in_blocks(name: str, dtype: str) -> None:
    """In one loop, with the results of plain JAX."""
    f, loops = STORED[name]
    with jax.enable_x64(dtype == "float64"):
        args = normal(0, SIZE, dtype=dtype), normal(1, SIZE, dtype=dtype)
        assert fired(f, *args) == loops
        agree(f, args, 1e-5 if dtype == "float32" else 1e-12)


def agree(f: Callable[..., Any], args: Any, rtol: float) -> None:
    """Results are those of plain JAX in float64, to what the type allows."""
    got = jax.jit(ag.optimize(f))(*args)
    with jax.enable_x64(True):
        want = jax.jit(f)(*(jnp.asarray(x, "float64") for x in args))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a, "float64"), b, rtol=rtol, atol=rtol * np.max(np.abs(b)))


def test_no_array_is_stored() -> None:
    """A Huber loss and its gradient take no memory beside the result."""
    x = normal(0, SIZE)
    f = jax.value_and_grad(lambda x: huber(x).sum())
    temporary = [jax.jit(g).lower(x).compile().memory_analysis().temp_size_in_bytes for g in (f, ag.optimize(f))]
    assert temporary[0] >= x.nbytes > 8 * temporary[1]


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: jnp.where(x > 0, x, 0).sum(),
        lambda x, y: jnp.where(x > y[0], x, 0).sum(),
        lambda x, y: jnp.where(x > y[:, :1], x, 0).sum(),
        lambda x, y: jnp.where(x[None] > 0, x[None], 0).sum((0, 1, 2)),
    ],
    ids=["whole", "a row", "a column", "a leading axis of one"],
)
def test_rows_and_columns(f: Callable[..., Any]) -> None:
    """What is repeated along an axis, a block takes its part of."""
    args = normal(0, *ROWS), normal(1, *ROWS)
    assert fired(f, *args) == 1
    agree(f, args, 1e-5)


def test_an_odd_number_of_entries() -> None:
    """Such are worked on as rows, in a branch."""
    args = normal(0, SIZE - 3), normal(1, SIZE - 3)
    for f in (error, largest, lambda x, y: jax.value_and_grad(largest)(x, y)):
        assert fired(f, *args)
        agree(f, args, 1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities(value: float) -> None:
    """They come out as they do of one array."""
    x, y = normal(0, SIZE).at[SIZE // 3].set(value), normal(1, SIZE).at[SIZE - 2].set(value)
    for f in (error, largest, lambda x, y: huber(x).sum()):
        assert fired(f, x, y) == 1
        np.testing.assert_allclose(ag.jit(f)(x, y), jax.jit(f)(x, y), rtol=1e-5)


def test_under_grad_vmap_and_scan() -> None:
    """The function may be transformed, and stand in a loop."""
    x, y = normal(0, 3, SIZE), normal(1, SIZE)
    f = lambda x: error(x, y)  # noqa: E731
    for g in (jax.vmap, lambda f: jax.vmap(jax.grad(f)), lambda f: lambda x: jax.lax.map(f, x)):
        got, want = (jax.jit(g(one))(x) for one in (ag.optimize(f), f))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-9)
    in_steps = lambda x: jax.lax.scan(lambda c, row: (c + f(row), None), jnp.float32(0), x)[0]  # noqa: E731
    np.testing.assert_allclose(ag.jit(in_steps)(x), jax.jit(in_steps)(x), rtol=1e-5)


LEFT: dict[str, Callable[..., Any]] = {
    "the library takes it along": lambda x, y: ((x - y) ** 2).sum(),
    "it is a result": lambda x, y: (huber(x), huber(x).sum()),
    "a product reads it": lambda x, y: (lambda h: h.sum() + h @ y)(huber(x)),
    "a function is dear": lambda x, y: jnp.where(y > 0, jnp.exp(x), 0).sum(),
    "a dear function is before it": lambda x, y: (lambda e: jnp.where(e > 1, e, 0).sum())(jnp.tanh(x)),
    "a derivative looks for the largest of what is rounded": lambda x, y: jax.grad(lambda x: jnp.max(masked(x, y)))(x),
    "the largest of what is rounded": lambda x, y: masked(x, y).max(),
    "it counts what is near the largest": lambda x, y: (lambda d: jnp.where(d >= d.max(), d, 0).sum())(x * y + 1),
    "it is turned": lambda x, y: jnp.where(x > 0, x[::-1], 0).sum(),
    "rows are summed up": lambda x, y: huber(x[: 524_288 + 16_384].reshape(-1, 64)).sum(1),
    "short rows": lambda x, y: jnp.where(x > 0, x, y)[:540_672].reshape(-1, 3).sum(),
    "it is small": lambda x, y: huber(x[:100_000]).sum(),
    "rows are too long": lambda x, y: huber(jnp.stack([x, y, x])).sum(),
    "half precision": lambda x, y: huber(x.astype("bfloat16")).sum(),
}


@pytest.mark.parametrize("name", LEFT)
def test_it_is_left(name: str) -> None:
    """Near misses."""
    assert not fired(LEFT[name], normal(0, SIZE), normal(1, SIZE))


def test_why_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says it."""
    x = normal(0, SIZE)
    loss = lambda x: huber(x).sum()  # noqa: E731
    arrays = [normal(k, SIZE) for k in range(5)]
    wide = lambda *xs: jnp.where(xs[0] > xs[1], xs[2] * xs[3], xs[4]).sum()  # noqa: E731
    assert fired(wide, *arrays) == 1
    found = decisions(loss, x, numerics="strict")
    monkeypatch.setattr(_jax, "usable_cores", lambda: 2)
    found += decisions(wide, *arrays)
    found += decisions(lambda x, y: jnp.mean(jnp.isclose(x, y)), x, arrays[1])
    found += decisions(largest, x, arrays[1])
    assert fired(loss, x) == 1
    monkeypatch.setattr(_jax, "usable_cores", lambda: 8)
    found += decisions(loss, x)
    assert not any(d.fired for d in found)
    for d, why in zip(
        found,
        ('numerics="fast"', "which 2 share", "2 cores share the work", "2 cores share the work", "8 cores"),
        strict=True,
    ):
        assert why in d.reason


def test_under_strict_an_extremum_is_made_in_blocks() -> None:
    """An extremum has no order."""
    x, y = normal(0, SIZE), normal(1, SIZE)
    assert fired(largest, x, y, numerics="strict") == 1
    assert ag.jit(largest, numerics="strict")(x, y) == jax.jit(largest)(x, y)


def test_it_is_at_rest_on_its_own_result() -> None:
    """Blocks are no such sums again."""
    x, y = normal(0, SIZE), normal(1, SIZE)
    made = jax.make_jaxpr(ag.optimize(error))(x, y)
    assert not fired(lambda *args: evaluate(made, args), x, y)


def test_no_entries() -> None:
    """Nothing to sum up."""
    assert ag.jit(lambda x: huber(x).sum())(jnp.zeros(0)) == 0
