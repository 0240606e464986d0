"""Reductions over the short rows of which there is an odd number: the last row is worked on by itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler.kernels import long_rows
from aerogel.compiler.passes.small_axes import SmallAxes
from aerogel.compiler.short_axes import short_axes
from compiler.loop_patterns import normal

N = 1_367
X, Y = normal(0, N, 3), normal(1, N, 3)
X[-1] *= 100  # so that a sum without the last row shows
LABELS = np.arange(N) % 3


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads, whatever the machine has, that share what is this small."""
    monkeypatch.setattr(long_rows, "_cpus", lambda: 2)
    monkeypatch.setattr(long_rows, "PART_BYTES", 1 << 12)
    monkeypatch.setattr(short_axes, "FEWEST", 1)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None) -> Callable[..., Any]:
    """The function with this pass alone."""
    return ag.optimize(f, passes=(SmallAxes(),), rules=(), on_report=[].append if reports is None else reports.append)


def apart(f: Callable[..., Any], *args: Any) -> list[str]:
    """What was done to the last row."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports))(*args)
    return [d.what for d in reports[-1].fired if "by itself" in d.what]


def assert_same(f: Callable[..., Any], *args: Any, tolerance: float = 2e-5) -> None:
    """Types, weak ones too, and values of the results are those of the function."""
    got, want = jax.jit(optimised(f))(*args), jax.jit(f)(*args)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
    if any(x.dtype == jnp.bfloat16 for x in args):
        tolerance = 2**-6
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(*(np.asarray(z).astype(float) for z in (a, b)), rtol=tolerance, atol=tolerance)


def batch_norm(x: Any) -> Any:
    """Means over the rows, which all rows read, between two sums along them."""
    s = jnp.exp(x - x.sum(-1, keepdims=True))
    return ((s - s.mean(0)) / (s.std(0) + 1)).sum(-1)


def shifted(x: Any) -> Any:
    """Reads the rows, and the rows before them."""
    s = jax.nn.logsumexp(x, -1)
    return s[1:] - s[:-1]


FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), (X,)),
    "entropy": (lambda x: -(jax.nn.softmax(x) * jax.nn.log_softmax(x)).sum(-1), (X,)),
    "softmax": (lambda x: jax.nn.softmax(x, -1), (X,)),
    "of bfloat16": (lambda x: jax.nn.softmax(x, -1).astype(jnp.float32), (jnp.asarray(Y, jnp.bfloat16),)),
    "a loss": (lambda x: -jax.nn.log_softmax(x, -1)[jnp.arange(N), LABELS].mean(), (X,)),
    "a loss's gradient": (jax.grad(lambda x: -jax.nn.log_softmax(x, -1)[jnp.arange(N), LABELS].mean()), (X,)),
    "a norm's gradient": (jax.grad(lambda x, y: jnp.linalg.norm(x - y, axis=-1).sum(), (0, 1)), (X, Y)),
    "unit vectors": (lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), (X,)),
    "two results": (lambda x, y: ((x * y).sum(-1), (x * y).sum(0), (x - y).max()), (X, Y)),
    "means between": (batch_norm, (X,)),
    "a whole result besides": (shifted, (X,)),
    "with one row for all": (lambda x, y: jnp.tanh((x * y[0]).sum(-1)), (X, Y)),
    "under vmap": (jax.vmap(lambda x: jax.nn.softmax(x)), (X,)),
    "behind an axis of one": (lambda x: jax.nn.softmax(x[None], -1), (X,)),
    "quaternions": (lambda x: (x.reshape(-1, 1, 4) ** 2).sum(-1), (normal(3, N * 4),)),
    "integers": (lambda x: (x * x).sum(-1), (np.arange(3 * N, dtype=np.int32).reshape(N, 3),)),
}


@pytest.mark.parametrize("name", FIRES)
def test_the_last_row_is_worked_on_by_itself(name: str) -> None:
    """No array has an odd number of rows inside, and the results are the same."""
    f, args = FIRES[name]
    assert apart(f, *args) == ["the last of 1,367 rows is worked on by itself"]
    assert_same(f, *args)


NEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "an even number": (lambda x: jax.nn.softmax(x, -1), (X[:-1],)),
    "few rows": (lambda x: jax.nn.softmax(x, -1), (X[:301],)),
    "longer rows": (lambda x: jax.nn.softmax(x, -1), (normal(4, N, 12),)),
    "rows of rows": (lambda x: (x**2).sum(-1), (normal(5, N, 4, 3),)),
    "an extremum's gradient": (jax.grad(lambda x, y: jnp.linalg.norm(x - y, axis=-1).max()), (X, Y)),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_stay(name: str) -> None:
    """Two threads get like parts, or XLA has an inner loop, or something is compared with what all rows made."""
    f, args = NEAR[name]
    assert not apart(f, *args)
    assert_same(f, *args)


def test_entropies_have_a_kernel_of_their_own() -> None:
    """Joined where they are made, a value was made anew for each that reads it; a logsumexp has few."""
    primitives = {}
    for name in ("entropy", "logsumexp"):
        f, args = FIRES[name]
        primitives[name] = [eqn.primitive.name for eqn in jax.make_jaxpr(optimised(f))(*args).jaxpr.eqns]
    assert primitives["entropy"].count("cond") == 1
    assert "cond" not in primitives["logsumexp"]


def test_other_numbers_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """With eight CPUs there are three parts and more, whose code is as good for odd numbers."""
    monkeypatch.setattr(long_rows, "_cpus", lambda: 8)
    assert not apart(lambda x: jax.nn.softmax(x, -1), X)


def test_in_a_loop_and_differentiated_behind() -> None:
    """In the steps of a loop; and where a derivative is to come, the rows stay until it has come."""

    def steps(x: Any) -> Any:
        return lax.scan(lambda c, _: (c + 0.1 * jax.nn.softmax(c, -1), c.sum()), x, None, length=3)

    assert len(apart(steps, X)) == 1
    assert_same(steps, X)
    got = jax.grad(lambda x: (optimised(lambda x: jax.nn.softmax(x, -1))(x) ** 2).sum())(X)
    np.testing.assert_allclose(got, jax.grad(lambda x: (jax.nn.softmax(x, -1) ** 2).sum())(X), rtol=2e-5, atol=1e-6)


def test_an_infinity_and_nan_stay_in_their_rows() -> None:
    """What is not finite, in the last row or in another, is where it was."""
    x = X.copy()
    x[5], x[-1], x[7, 1] = np.nan, np.inf, -np.inf
    for name in ("softmax", "logsumexp", "unit vectors"):
        assert_same(FIRES[name][0], x)


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(400, 900), width=st.integers(2, 4), wrt=st.booleans())
def test_any_number_of_rows(rows: int, width: int, wrt: bool) -> None:
    """Losses of any number of rows of 2 to 4 entries, and their gradients."""

    def loss(x: Any, w: Any) -> Any:
        p = jax.nn.log_softmax(x * w, -1)
        return -(p[:, 0] * jnp.cos(x).sum(-1)).mean() + jnp.linalg.norm(x + 2, axis=-1).sum() / rows

    x, w = (
        normal(6, rows, width),
        normal(
            7,
            width,
        ),
    )
    assert_same(jax.value_and_grad(loss, (0, 1)) if wrt else loss, x, w, tolerance=1e-4)
