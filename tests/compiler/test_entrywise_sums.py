"""Sums and maxima over all entries of computed values are accumulated entry by entry."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.loop import Loop
from compiler.loop_patterns import normal

LENGTH, SHAPE = 40, (64, 512)
X, TARGET, WEIGHTS = normal(0, *SHAPE), normal(1, LENGTH, *SHAPE), normal(2, LENGTH)


def outputs(x: Any, reverse: bool = False) -> Any:
    """The states of a loop."""
    return lax.scan(lambda c, _: (0.9 * c - 0.05 * c * c * c,) * 2, x, None, length=LENGTH, reverse=reverse)[1]


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "squared error": lambda y: ((y - TARGET) ** 2).mean(),
    "distance": lambda y: jnp.abs(y - 0.5).sum(),
    "largest distance": lambda y: jnp.abs(y - TARGET).max(),
    "smallest square": lambda y: (y * y).min(),
    "Huber": lambda y: jnp.where(jnp.abs(y) < 0.3, 0.5 * y * y, 0.3 * (jnp.abs(y) - 0.15)).sum(),
    "of later steps": lambda y: ((y[3:] - TARGET[3:]) ** 2).sum(),
    "of every other step": lambda y: ((y[::2] - 0.5) ** 2).sum(),
    "half precision, summed in single": lambda y: ((y.astype(jnp.bfloat16) - 1) ** 2).sum(),
    "weighted": lambda y: (WEIGHTS[:, None, None] * (y - 0.5) ** 2).sum(),
}
AS_IT_IS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda y: y.sum(),
    "maximum": lambda y: y.max(),
    "squares": lambda y: (y * y).sum(),
    "hyperbolic tangents": lambda y: jnp.tanh(y).max(),
    "by row": lambda y: ((y - 0.5) ** 2).sum((0, 1)),
}


def reductions(f: Callable[[Any], Any]) -> list[str]:
    """The names of the reductions, to less than a step, in the bodies of the optimised program's loops."""
    eqns = jax.make_jaxpr(ag.optimize(f))(X).eqns
    bodies = [eqn.params["jaxpr"].jaxpr for eqn in eqns if eqn.primitive.name == "scan"]
    assert bodies
    inner = [eqn for body in bodies for eqn in body.eqns if eqn.primitive.name.startswith("reduce_")]
    return [eqn.primitive.name for eqn in inner if eqn.outvars[0].aval.size < X.size]


def agree(f: Callable[[Any], Any], tolerance: float = 1e-5) -> None:
    """The optimised program gives what plain JAX gives, up to rounding."""
    for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(X)), jax.tree.leaves(jax.jit(f)(X)), strict=True):
        assert got.dtype == want.dtype
        scale = float(jnp.abs(want).max())
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", COMPUTED)
def test_no_step_is_reduced(name: str, reverse: bool) -> None:
    """The loop reduces nothing; value and gradient are plain JAX's."""

    def f(x: Any) -> Any:
        return COMPUTED[name](outputs(x, reverse))

    assert reductions(f) == []
    tolerance = 1e-2 if "half" in name else 1e-5
    agree(f, tolerance)
    agree(jax.value_and_grad(f), 10 * tolerance)


@pytest.mark.parametrize("name", AS_IT_IS)
def test_what_gains_nothing_is_reduced_step_by_step(name: str) -> None:
    """XLA's kernels read what exists, and square it; what is dear or kept by row gains nothing."""

    def f(x: Any) -> Any:
        return AS_IT_IS[name](outputs(x))

    assert len(reductions(f)) == 1
    agree(f)


def test_before_differentiation_steps_are_summed() -> None:
    """Under a later derivative the loop has one number for all entries of a step, and one for its tangent."""

    def f(x: Any) -> Any:
        return COMPUTED["squared error"](outputs(x))

    agree(lambda x: jax.value_and_grad(ag.optimize(f))(x), 1e-4)
    program = jax.make_jaxpr(lambda x: jax.jvp(ag.optimize(f), (x,), (x,)))(X)
    loop = next(e for e in program.eqns if e.primitive.name == "scan")
    assert sorted(v.aval.shape for v in loop.outvars[: len(Loop(loop).init)]) == [(), (), SHAPE, SHAPE]


def test_what_a_step_computes_for_the_sum_alone() -> None:
    """An output that is no state, of one loop or of a second one over the first one's outputs, is computed too."""

    def energy(x: Any) -> Any:
        return lax.scan(lambda c, _: (0.9 * c, 0.5 * c - 0.1), x, None, length=LENGTH)[1].sum()

    def second(x: Any) -> Any:
        ys = lax.scan(lambda c, _: (0.9 * c, 0.9 * c), x, None, length=LENGTH)[1]
        return lax.scan(lambda c, y: (0.5 * c + y, 0.5 * c - y), x, ys)[1].sum()

    def dear(x: Any) -> Any:
        return lax.scan(lambda c, _: (0.9 * c, jnp.tanh(c)), x, None, length=LENGTH)[1].sum()

    def square(x: Any) -> Any:
        return lax.scan(lambda c, _: (v := 0.9 * c, v * v), x, None, length=LENGTH)[1].sum()

    for f, count in ((energy, 0), (second, 0), (dear, 1), (square, 1)):
        assert len(reductions(f)) == count
        agree(f)
