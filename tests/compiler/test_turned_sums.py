"""Sums of products over the steps of a loop are made as their transposes where less has to be turned so."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.orientation import Orientation
from aerogel.compiler.passes.turned_sums import TurnedSums
from compiler.loop_patterns import normal

STEPS, ROWS, WIDE, NARROW = 5, 16, 256, 28
A, B = normal(0, STEPS, ROWS, WIDE), normal(1, STEPS, ROWS, NARROW)
START = normal(2, WIDE, NARROW)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The function with this pass, and the one that moves transposes into products."""
    on_report = [].append if reports is None else reports.append
    return ag.optimize(f, passes=(Orientation(), TurnedSums()), rules=(), on_report=on_report, **options)


def decided(f: Callable[..., Any], *args: Any, **options: Any) -> list[bool]:
    """For each sum of which the transpose has less to turn, whether it is made."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports, **options))(*args)
    return [d.fired for d in reports[-1].decisions if d.rule == "turned-sums"]


def summed(start: Any, a: Any, b: Any, **options: Any) -> Any:
    """What flows back to a weight of a loop, beside a carry and an output."""

    def step(carry: Any, each: Any) -> Any:
        total, other = carry
        left, right = jnp.tanh(each[0] + other), each[1]
        return (total + left.T @ right, other * 0.5 + left.mean()), right * 2

    return lax.scan(step, (start, jnp.float32(1)), (a, b), **options)


def between(turn: Callable[[Any], Any], start: Any, a: Any, b: Any) -> Any:
    """A sum with transposes between it and its product."""

    def step(total: Any, each: Any) -> Any:
        product = lax.dot_general(*each, (((0,), (0,)), ((), ())))
        return total + turn(product), None

    return lax.scan(step, start, (a, b))


def gates(weights: Any, x: Any) -> Any:
    """A recurrent layer."""
    into, back = weights

    def step(h: Any, x: Any) -> Any:
        return jnp.tanh((x @ into.T + h @ back.T).reshape(*h.shape, 4).sum(-1)), None

    return jnp.sum(lax.scan(step, jnp.zeros((ROWS, 64)), x)[0] ** 2)


GATES = (normal(3, 256, NARROW) / 8, normal(4, 256, 64) / 16)

FIRES: dict[str, tuple[int, Callable[..., Any], tuple[Any, ...]]] = {
    "forwards": (1, summed, (START, A, B)),
    "backwards": (1, lambda *args: summed(*args, reverse=True), (START, A, B)),
    "the sum before the product": (
        1,
        lambda s, a, b: lax.scan(lambda c, x: (x[0].T @ x[1] + c, x[1]), s, (a, b)),
        (START, A, B),
    ),
    "two sums": (2, jax.grad(gates), (GATES, B)),
    "in a branch": (
        2,
        lambda *args: lax.cond(args[0][0, 0] > 0, summed, lambda *a: summed(*a, reverse=True), *args)[0],
        (abs(START), A, B),
    ),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    """On sums of which the left operand is the wider one; results and their types stay."""
    count, f, args = FIRES[name]
    made = decided(f, *args)
    assert made == [True] * count
    got, want = jax.jit(optimised(f))(*args), jax.jit(f)(*args)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(other).max()))


def also_read(start: Any, a: Any, b: Any) -> Any:
    """A sum that the steps read."""
    return lax.scan(lambda c, x: (c + x[0].T @ x[1], c[0, 0]), start, (a, b))


def alone(start: Any, a: Any, b: Any) -> Any:
    """A sum and nothing else."""
    return lax.scan(lambda c, x: (c + x[0].T @ x[1], None), start, (a, b))


def with_transposes(start: Any, a: Any, b: Any) -> Any:
    """A sum of which the steps read one of the transposes, too."""

    def step(total: Any, each: Any) -> Any:
        product = (each[0].T @ each[1]).T
        return total + product.T, product[0]

    return lax.scan(step, start, (a, b))


@pytest.mark.parametrize(("turn", "args"), [(lambda x: x.T.T, (A, B)), (jnp.transpose, (B, A))])
def test_sees_through_transposes(turn: Callable[[Any], Any], args: tuple[Any, ...]) -> None:
    """Transposes that another pass has left between a product and its sum are part of how the product is made."""
    natural, reports = partial(between, turn), list[Any]()
    made = ag.optimize(natural, passes=(TurnedSums(),), rules=(), on_report=reports.append)
    got, want = made(START, *args)[0], natural(START, *args)[0]
    assert [d.fired for d in reports[-1].decisions if d.rule == "turned-sums"] == [True]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    (scan,) = (e for e in jax.make_jaxpr(made)(START, *args).eqns if e.primitive.name == "scan")
    assert [e.primitive.name for e in scan.params["jaxpr"].jaxpr.eqns] == ["dot_general", "add"]


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "the right operand is wider": (summed, (START.T, B, A[:, :, :WIDE])),
    "as wide": (summed, (normal(5, NARROW, NARROW), B, B)),
    "few entries": (summed, (START, A[:, :2], B[:, :2])),
    "the steps read it": (also_read, (START, A, B)),
    "the steps read a transpose": (with_transposes, (START, A, B)),
    "half precision": (alone, tuple(x.astype(jnp.bfloat16) for x in (START, A, B))),
    "a product of its own": (lambda s, a, b: lax.scan(lambda c, x: (c, c + x[0].T @ x[1]), s, (a, b)), (START, A, B)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What has no less to turn as its transpose, and what is no sum alone."""
    f, args = NEAR_MISSES[name]
    assert decided(f, *args) == []


def test_says_that_large_sums_stay() -> None:
    """A sum beyond the cache is not turned, and the report says so; in strict numerics none is."""
    assert decided(summed, normal(6, 2048, 512), normal(7, 2, 16, 2048), normal(8, 2, 16, 512)) == [False]
    assert decided(summed, START, A, B, numerics="strict") == []


def test_nothing_is_turned_in_a_step() -> None:
    """The loop's body holds the product of the transpose alone, and the sum is turned behind the loop."""

    def body_shapes(f: Callable[..., Any]) -> set[tuple[int, ...]]:
        (scan,) = (eqn for eqn in jax.make_jaxpr(f)(START, A, B).eqns if eqn.primitive.name == "scan")
        inner = scan.params["jaxpr"].jaxpr.eqns
        return {eqn.outvars[0].aval.shape for eqn in inner if eqn.primitive.name == "dot_general"}

    assert body_shapes(summed) == {(WIDE, NARROW)}
    assert body_shapes(optimised(summed)) == {(NARROW, WIDE)}
