"""Loops whose outputs are compared with their first one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import LENGTH, made, normal, step

SHAPE = (16, 512)
SIZE = (LENGTH - 2) * SHAPE[0] * SHAPE[1]
X0, XS = normal(0, *SHAPE), normal(1, LENGTH, *SHAPE)


def trajectory(x0: Any, xs: Any, reverse: bool) -> Any:
    """All states, something of each state and input, and a number for each step."""

    def body(c: Any, x: Any) -> Any:
        c = step(c, 0.1 * x[:1])
        return c, (c, jnp.tanh(c) + x, c.sum())

    return lax.scan(body, x0, xs, reverse=reverse)[1]


def first(ys: Any, reverse: bool) -> Any:
    """The output of the step that runs first."""
    return ys[-1] if reverse else ys[0]


Consume = Callable[[Any, Any, Any, bool], Any]
KNOTTED: dict[str, Consume] = {
    "largest drift": lambda ys, zs, ns, r: jnp.abs(ys / first(ys, r) - 1).max(),
    "mean drift of each": lambda ys, zs, ns, r: (ys - first(ys, r)).mean(0),
    "equal to the first": lambda ys, zs, ns, r: (ys == first(ys, r)).sum(0),
    "outputs of the inputs": lambda ys, zs, ns, r: jnp.square(zs - first(zs, r)).sum((0, 2)),
    "both outputs": lambda ys, zs, ns, r: ((ys - first(ys, r)) * (zs - first(zs, r))).sum(),
    "part of the first": lambda ys, zs, ns, r: (ys - first(ys, r)[:, 3:4]).max(0),
    "with the numbers": lambda ys, zs, ns, r: ((ys - first(ys, r)).mean(0), ns - first(ns, r)),
    "beside another reduction": lambda ys, zs, ns, r: ((ys - first(ys, r)).max(0), zs.mean(0)),
}


def large(f: Callable[..., Any]) -> int:
    """How many values of all steps a function makes, anywhere."""
    return len(made(jax.make_jaxpr(f)(X0, XS).jaxpr, SIZE))


def program(consume: Consume, reverse: bool) -> Callable[..., Any]:
    """A reduction of a trajectory."""
    return lambda x0, xs: consume(*trajectory(x0, xs, reverse), reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", KNOTTED)
def test_no_stack_is_made(name: str, reverse: bool) -> None:
    """The natural form stacks its outputs, the other does not, and computes the same, also in a batch."""
    f = program(KNOTTED[name], reverse)
    assert large(f) > 0
    assert large(ag.optimize(f)) == 0
    wanted, found = (jax.tree.leaves(jax.jit(g)(X0, XS)) for g in (f, ag.optimize(f)))
    for want, got in zip(wanted, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_output_meets_itself(reverse: bool) -> None:
    """What the first step is compared with is the value that it stacks, bit for bit: all its differences are 0."""

    def f(x0: Any, xs: Any) -> Any:
        ys, _, _ = trajectory(x0, xs, reverse)
        return (ys == first(ys, reverse)).any(0), jnp.abs(ys - first(ys, reverse)).min()

    equal, least = jax.jit(ag.optimize(f))(X0, XS)
    assert large(ag.optimize(f)) == 0
    assert equal.all()
    assert least == 0


LEFT: dict[str, Consume] = {
    "the stack is returned": lambda ys, zs, ns, r: (jnp.abs(ys - first(ys, r)).max(), ys),
    "another stack is returned": lambda ys, zs, ns, r: (jnp.abs(ys - first(ys, r)).max(), zs),
    "sorted": lambda ys, zs, ns, r: jnp.sort(ys - first(ys, r), 0)[3],
    "never met": lambda ys, zs, ns, r: (ys.mean(0), first(ys, r)),
    "the last": lambda ys, zs, ns, r: jnp.abs(ys - first(ys, not r)).max(),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_gains_nothing_is_left(name: str) -> None:
    """One loop of all steps stays where the whole is needed anyway, where nothing waits, or where the last is meant."""
    f = program(LEFT[name], False)
    loops = [e for e in jax.make_jaxpr(ag.optimize(f))(X0, XS).eqns if e.primitive.name == "scan"]
    assert loops
    assert all(e.params["length"] == LENGTH for e in loops)


def test_gradients_keep_their_loops() -> None:
    """A backward loop reads what the forward one stacks: the program that JAX differentiated keeps all steps in one."""
    f = jax.grad(lambda x0, xs: program(KNOTTED["largest drift"], False)(x0, xs))
    loops = [e for e in jax.make_jaxpr(ag.optimize(f))(X0, XS).eqns if e.primitive.name == "scan"]
    assert [e.params["length"] for e in loops] == [LENGTH, LENGTH]


def test_the_report_says_so() -> None:
    """The report tells what was done, and why where it was not."""
    fired = ag.explain(program(KNOTTED["largest drift"], False))(X0, XS).fired
    assert any("first step" in d.what for d in fired)
    refused = ag.explain(program(LEFT["sorted"], False))(X0, XS).refused
    assert any("first step" in d.what and d.reason for d in refused)
