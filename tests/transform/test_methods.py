"""Methods of modules in the arguments of transformations: pytrees, with the arrays of their modules."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel.compat import equinox as eqx
from aerogel.module import BoundMethod


class Scale(ag.Module):
    weight: jax.Array

    def scaled(self, x: Any) -> Any:
        return self.weight * x

    def __call__(self, x: Any) -> Any:
        return self.scaled(x)


X = jnp.ones(2)
MODEL = Scale(jnp.array([2.0, 3.0]))


def called(method: Any, x: Any) -> Any:
    """The sum of what a method gives."""
    return method(x).sum()


def test_a_compiled_function_takes_a_method_as_data() -> None:
    """Its arrays are arguments of the program: other ones trace nothing, and its gradient is known outside."""
    traces = []

    @ag.jit
    def total(method: Any, x: Any) -> Any:
        traces.append(method)
        return called(method, x)

    assert total(MODEL, X) == 5.0  # nothing but arrays: later calls are not looked at before JAX refuses one
    assert [total(Scale(w * X).scaled, X) for w in (1.0, 2.0)] == [2.0, 4.0]
    assert len(traces) == 2
    assert jax.grad(lambda w: total(Scale(w).scaled, X))(X).tolist() == [1.0, 1.0]
    assert total.lower(MODEL.scaled, X).compile()(Scale(4 * X).scaled, X) == 8.0


@pytest.mark.parametrize("grad", [ag.grad, eqx.filter_grad])
def test_the_gradient_of_a_method(grad: Callable[..., Any]) -> None:
    """It is a method of the module of gradients."""
    grads = grad(called)(MODEL.scaled, X)
    assert isinstance(grads, BoundMethod)
    assert grads.__self__.weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("compiled", [ag.jit, eqx.filter_jit])
def test_a_method_comes_out_with_arrays(compiled: Callable[..., Any]) -> None:
    """A result that is a method holds the computed arrays, and no tracers."""
    doubled = compiled(lambda model: jax.tree.map(lambda w: 2 * w, model).scaled)(MODEL)
    assert doubled(X).tolist() == [4.0, 6.0]


@pytest.mark.parametrize("batched", [ag.vmap, eqx.filter_vmap])
def test_a_method_of_a_batch_of_modules(batched: Callable[..., Any]) -> None:
    """Its arrays are mapped as those of its module would be."""
    many = Scale(jnp.array([[2.0, 3.0], [4.0, 5.0]]))
    assert batched(called)(many.scaled, jnp.ones((2, 2))).tolist() == [5.0, 9.0]


def test_a_loop_carries_a_method() -> None:
    """Through `ag.scan`, as its module."""

    def step(method: Any, x: Any) -> Any:
        return Scale(method.__self__.weight * x).scaled, None

    last, _ = ag.scan(step, MODEL.scaled, jnp.array([2.0, 5.0]))
    assert last(X).tolist() == [20.0, 30.0]
