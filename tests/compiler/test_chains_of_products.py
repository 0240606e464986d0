"""What XLA's library takes with a chain of products is not made entry by entry: rows that it holds in no memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler import Report

ROWS, WIDE, CLASSES = 4096, 64, 3
REASON = "XLA's library takes it with the products in front of it, whose rows are then in no memory"


def normal(*shape: int) -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape) / shape[0] ** 0.5, "float32")


X, V, W, U = normal(ROWS, 8), normal(8, WIDE), normal(WIDE, CLASSES), normal(8, CLASSES)


def report_of(f: Callable[..., Any], *args: Any) -> Report:
    """What all passes do; results stay what they were."""
    reports: list[Report] = []
    got, want = jax.jit(ag.optimize(f, on_report=reports.append))(*args), jax.jit(f)(*args)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)
    return reports[-1]


def held(f: Callable[..., Any], *args: Any) -> int:
    """Bytes besides arguments and results."""
    plan = jax.jit(f).lower(*args).compile().memory_analysis()
    assert plan is not None
    return plan.temp_size_in_bytes


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "square": lambda x: x * x,
}
ENDS: dict[str, Callable[[Any], Any]] = {
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "norm": lambda y: y / jnp.linalg.norm(y, axis=-1, keepdims=True),
    "maximum": lambda y: y.max(-1),
    "with a bias": lambda y: jax.nn.softmax(y + 0.5),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_end_of_a_chain_is_left(activation: str, end: str) -> None:
    """Nothing is held for it that plain JAX does not hold: 16 MB of 64,000 rows in front of a softmax of 3."""

    def f(x: Any) -> Any:
        return ENDS[end](ACTIVATIONS[activation](x @ V) @ W)

    report = report_of(f, X)
    assert not [d for d in report.fired if d.rule == "small-axes"]
    assert held(ag.optimize(f), X) <= held(f, X) + (1 << 15)
    assert REASON in {d.reason for d in report.refused}


CHAINS: dict[str, Callable[[Any], Any]] = {
    "one layer": lambda x: jax.nn.softmax(x @ U),
    "a narrow layer": lambda x: jax.nn.softmax(jax.nn.relu(x @ V[:, :8]) @ W[:8]),
    "rows that are a result": lambda x: (jax.nn.softmax((h := jnp.tanh(x @ V)) @ W), h),
    "rows that another product reads": lambda x: (jax.nn.softmax((h := jnp.tanh(x @ V)) @ W), h.T @ x),
    "two layers that are one": lambda x: jax.nn.softmax(x @ V @ W),
    "no product": lambda x: jax.nn.softmax(jnp.tanh(x[:, :3])),
}


@pytest.mark.parametrize("name", CHAINS)
def test_near_misses_are_made_entry_by_entry(name: str) -> None:
    """A softmax of 3 behind one layer takes 0.3 to 0.5 of plain JAX's time, behind rows that are there 0.8."""
    assert [d for d in report_of(CHAINS[name], X).fired if d.rule == "small-axes"]


def test_in_a_gradient_rows_are_in_memory() -> None:
    """The derivative reads them."""

    def loss(v: Any, w: Any) -> Any:
        return -jnp.mean(jax.nn.log_softmax(jnp.tanh(X @ v) @ w)[:, 0])

    assert [d for d in report_of(jax.grad(loss, (0, 1)), V, W).fired if d.rule == "small-axes"]
