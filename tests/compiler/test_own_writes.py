"""Writes into what they read keep the transposes before them where XLA computes them wrongly without."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax
from compiler.loop_patterns import normal


def circuit(angles: Any) -> Any:
    """Rotations of four qubits, each of which then turns the next one where it is set."""
    state = jnp.zeros((2,) * 4).at[0, 0, 0, 0].set(1.0)
    for of_layer in angles:
        for i, angle in enumerate(of_layer):
            c, s = jnp.cos(angle), jnp.sin(angle)
            state = jnp.moveaxis(jnp.tensordot(jnp.array([[c, -s], [s, c]]), state, (1, i)), 0, i)
        for i in range(3):
            at = (slice(None),) * i + (1,)
            state = state.at[at].set(jnp.flip(state[at], i))
    return state


def reached_through_a_kernel(x: Any, w: Any) -> Any:
    """What is written is made of the operand by a product, which reads it before."""
    y = (w @ x.T).T
    return y.at[0].set((y @ w)[0])


def other_write(x: Any, w: Any) -> Any:
    """What is written is another value's."""
    y = (w @ x.T).T
    return y.at[0].set(jnp.flip(x[0]))


ANGLES, X, W = map(jnp.asarray, (normal(0, 3, 4), normal(1, 40, 24), normal(2, 24, 24) / 5))


def turned(f: Any, *args: Any) -> list[str]:
    """Reasons of products that keep their order for a write."""
    return [d.reason for d in ag.explain(f)(*args).decisions if d.rule == "orientation" and "written" in d.reason]


def orders_fired(f: Any, *args: Any) -> int:
    """How many orders were chosen."""
    return sum(d.rule == "orientation" for d in ag.explain(f)(*args).fired)


def test_a_circuit_computes_the_same() -> None:
    """On every version, against what runs operation by operation."""
    got = jax.jit(ag.optimize(circuit))(ANGLES)
    np.testing.assert_allclose(got, circuit(ANGLES), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda angles: jnp.sum(circuit(angles) ** 3))
    np.testing.assert_allclose(jax.jit(ag.optimize(gradient))(ANGLES), gradient(ANGLES), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_such_writes_are_a_reason(monkeypatch: pytest.MonkeyPatch, is_wrong: bool) -> None:
    """Products keep their order where XLA may write before it has read, and the report says so."""
    monkeypatch.setattr(_jax, "WRITES_WHERE_IT_READS", is_wrong)
    assert bool(turned(circuit, ANGLES)) == is_wrong
    assert bool(orders_fired(circuit, ANGLES)) != is_wrong


@pytest.mark.parametrize("f", [reached_through_a_kernel, other_write])
def test_other_writes_are_none(monkeypatch: pytest.MonkeyPatch, f: Any) -> None:
    """What reads the operand in a kernel of its own, or does not read it."""
    monkeypatch.setattr(_jax, "WRITES_WHERE_IT_READS", True)
    assert turned(f, X, W) == []
    assert orders_fired(f, X, W) >= 1
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(X, W), f(X, W), rtol=1e-5, atol=1e-5)
