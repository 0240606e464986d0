"""Constants of a loop that every step reads against their rows are turned once, before the loop."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.turned_constants import TurnedConstants
from compiler.loop_patterns import normal

STEPS, ROWS, WIDTH = 100, 8, 64
W, B = normal(0, WIDTH, WIDTH) / 8, normal(1, ROWS, WIDTH)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The function with this pass alone."""
    on_report = [].append if reports is None else reports.append
    return ag.optimize(f, passes=(TurnedConstants(),), rules=(), on_report=on_report, **options)


def decided(f: Callable[..., Any], *args: Any, **options: Any) -> list[bool]:
    """For each constant that is read against its rows, whether it is turned."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports, **options))(*args)
    return [d.fired for d in reports[-1].decisions if d.rule == "turned-constants"]


def settled(w: Any, b: Any, steps: int = STEPS) -> Any:
    """An iteration that multiplies with the transpose of a matrix."""
    return lax.scan(lambda z, _: (jnp.tanh(z @ w.T + b), None), jnp.zeros_like(b), None, length=steps)[0]


def contracted(w: Any, b: Any) -> Any:
    """The same, the product spelled with two last axes."""
    return lax.fori_loop(0, STEPS, lambda _, z: jnp.tanh(jnp.einsum("bi,oi->bo", z, w) + b), jnp.zeros_like(b))


def one_by_one(w: Any, b: Any) -> Any:
    """The same for one row, under `vmap`."""

    def of(row: Any) -> Any:
        return lax.scan(lambda z, _: (jnp.tanh(z[None] @ w.T + row)[0], None), row, None, length=STEPS)[0]

    return jax.vmap(of)(b)


def backwards(w: Any, b: Any) -> Any:
    """A gradient whose backward loop is the one that reads the matrix so."""
    return jax.grad(lambda w: lax.scan(lambda z, _: (jnp.tanh(z @ w + b), None), b, None, length=STEPS)[0].sum())(w)


def read_both_ways(w: Any, b: Any) -> Any:
    """A table of which a step reads rows, and products."""

    def step(z: Any, _: Any) -> Any:
        return jnp.tanh(jax.nn.softmax(z @ w.T) @ w + b), w[0, 0] + z[0, 0]

    return lax.scan(step, b, None, length=STEPS)


FIRES: dict[str, tuple[int, Callable[..., Any], tuple[Any, ...]]] = {
    "a transpose in the step": (1, settled, (W, B)),
    "two last axes": (1, contracted, (W, B)),
    "under vmap": (1, one_by_one, (W, B)),
    "a gradient": (1, backwards, (W, B)),
    "read both ways": (1, read_both_ways, (W, B)),
    "three axes": (1, settled, (W, B.reshape(2, 4, WIDTH))),
    "in a branch": (2, lambda w, b: lax.cond(b[0, 0] > 0, settled, lambda w, b: settled(w, -b), w, b), (W, B)),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    """On constants of 2 to 32 rows' products; results and their types stay."""
    count, f, args = FIRES[name]
    assert decided(f, *args) == [True] * count
    got, want = jax.jit(optimised(f))(*args), jax.jit(f)(*args)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(other).max()))


def growing(w: Any, b: Any) -> Any:
    """The matrix is a carry, another one in each step."""
    return lax.scan(lambda c, _: ((c[0] * 0.9, jnp.tanh(c[1] @ c[0].T)), None), (w, b), None, length=STEPS)[0]


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one row": (settled, (W, B[:1])),
    "many rows": (settled, (W, normal(2, 64, WIDTH))),
    "along its rows": (
        lambda w, b: lax.scan(lambda z, _: (jnp.tanh(z @ w + b), None), b, None, length=STEPS)[0],
        (W, B),
    ),
    "half precision": (settled, (W.astype(jnp.bfloat16), B.astype(jnp.bfloat16))),
    "a carry": (growing, (W, B)),
    "a precision": (
        lambda w, b: lax.fori_loop(0, STEPS, lambda _, z: jnp.matmul(z, w.T, precision="highest"), b),
        (W, B),
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What costs nothing as it is, or is no constant."""
    f, args = NEAR_MISSES[name]
    assert decided(f, *args) == []


def test_says_that_few_steps_do_not_pay() -> None:
    """To turn a constant costs what a few steps save, and the report says so; in strict numerics none is turned."""
    assert decided(lambda w, b: settled(w, b, steps=10), W, B) == [False]
    assert decided(settled, W, B, numerics="strict") == []


def test_takes_what_is_the_transpose_already() -> None:
    """Of a constant that is a transpose, what it is made of is read: nothing is turned, and the transpose goes."""

    def given_turned(w: Any, b: Any) -> Any:
        turned = w.T
        return lax.scan(lambda z, _: (jnp.tanh(jnp.einsum("bi,oi->bo", z, turned) + b), None), b, None, length=STEPS)[0]

    def transposes(f: Callable[..., Any]) -> int:
        return sum(eqn.primitive.name == "transpose" for eqn in jax.make_jaxpr(f)(W, B).eqns)

    assert decided(given_turned, W, B) == [True]
    assert transposes(given_turned) == 1
    assert transposes(optimised(given_turned)) == 0
    np.testing.assert_allclose(jax.jit(optimised(given_turned))(W, B), given_turned(W, B), rtol=1e-5, atol=1e-5)


def test_nothing_is_turned_in_a_step() -> None:
    """The loop reads the turned matrix alone, and no step holds a transpose."""

    def loops(f: Callable[..., Any]) -> list[Any]:
        return [eqn for eqn in jax.make_jaxpr(f)(W, B).eqns if eqn.primitive.name == "scan"]

    (before,), (after,) = loops(settled), loops(optimised(settled))

    def names(scan: Any) -> list[str]:
        return [eqn.primitive.name for eqn in scan.params["jaxpr"].jaxpr.eqns]

    assert "transpose" in names(before)
    assert "transpose" not in names(after)
    assert len(after.invars) == len(before.invars)
