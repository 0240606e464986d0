"""Branches in loops: work on constants in front of them, terms of sums behind them, and what JAX stores of them."""

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
from aerogel._jax import jaxprs_in_params
from aerogel.compiler.passes.loop_branches import LoopBranches
from aerogel.compiler.passes.loop_linear import LoopLinear
from compiler.loop_patterns import normal

T, N = 48, 72
A = jnp.asarray(normal(0, N, N)) / 8
B = jnp.asarray(normal(1, N, N)) / 8
XS = jnp.asarray(normal(2, T, N))


def branched(f: Callable[..., Any], *others: Callable[..., Any], least: float = 0.0) -> Callable[..., Any]:
    """A loop whose steps take one of several branches, of a weight and another one."""

    def loss(a: Any, b: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            if len(others) == 1:
                c = lax.cond(x[0] > least, lambda: f(a, b, c, x), lambda: others[0](a, b, c, x))
            else:
                index = jnp.int32(3 * x[0])  # out of range, too
                c = lax.switch(index, [lambda g=g: g(a, b, c, x) for g in (f, *others)])
            return c, c * c

        c, ys = lax.scan(body, xs[0], xs)
        return (c * ys).sum()

    return loss


def step(a: Any, b: Any, c: Any, x: Any) -> Any:
    """A product with the first weight."""
    return jnp.tanh(a @ c + x)


def other(a: Any, b: Any, c: Any, x: Any) -> Any:
    """One with the second."""
    return jnp.sin(b.T @ c - x)


def plain(a: Any, b: Any, c: Any, x: Any) -> Any:
    """None."""
    return c * 0.9 + x


def normed(a: Any, b: Any, c: Any, x: Any) -> Any:
    """A product with rows of length one."""
    return jnp.tanh((a / jnp.linalg.norm(a, axis=1, keepdims=True)) @ c + x)


def inverse(a: Any, b: Any, c: Any, x: Any) -> Any:
    """One with an inverse."""
    return jnp.tanh(jnp.linalg.inv(a @ a.T + jnp.eye(len(a))) @ c + x)


def orthogonal(a: Any, b: Any, c: Any, x: Any) -> Any:
    """One with an orthogonal factor."""
    return jnp.tanh(jnp.linalg.qr(a + 4 * jnp.eye(len(a)))[0] @ c + x)


PROGRAMS = {
    "one weight": branched(step, plain),
    "a weight in each": branched(step, other),
    "one weight in both": branched(step, lambda a, b, c, x: jnp.sin(a.T @ c)),
    "three branches": branched(step, other, plain),
    "normed": branched(normed, plain),
    "inverse": branched(inverse, other),
    "orthogonal": branched(orthogonal, plain),
    "part of a weight": branched(lambda a, b, c, x: c.at[:60].add(jnp.sin(a[3:63] @ c)), plain),
    "bias, too": branched(lambda a, b, c, x: jnp.tanh(a @ c + b[0]), plain),
    "never taken": branched(step, plain, least=100.0),
}


def both(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient by weights and inputs, with the two passes that belong together."""
    return ag.optimize(jax.grad(f, (0, 1, 2)), passes=(LoopBranches(), LoopLinear()))


def in_branches(f: Callable[..., Any], *args: Any, size: int) -> list[str]:
    """The names of the primitives that make as much inside a `cond`."""

    def walk(jaxpr: Any, inside: bool) -> list[str]:
        names = []
        for eqn in jaxpr.eqns:
            names += [eqn.primitive.name] if inside and eqn.outvars[0].aval.size >= size else []
            for inner in jaxprs_in_params(eqn.params):
                names += walk(getattr(inner, "jaxpr", inner), inside or eqn.primitive.name == "cond")
        return names

    return walk(jax.make_jaxpr(f)(*args).jaxpr, False)


def stacked(f: Callable[..., Any], *args: Any) -> int:
    """The most numbers that a loop stacks in an output."""
    loops = [e for e in jax.make_jaxpr(f)(*args).jaxpr.eqns if e.primitive.name == "scan"]
    return max((v.aval.size for e in loops for v in e.outvars if v.aval.shape[:1] == (T,)), default=0)


def same(f: Callable[..., Any], g: Callable[..., Any], *args: Any, rtol: float = 2e-5) -> None:
    """Both have the same results."""
    for x, y in zip(jax.tree.leaves(f(*args)), jax.tree.leaves(g(*args)), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * (1e-6 + float(jnp.max(jnp.abs(y)))))


@pytest.mark.parametrize("name", PROGRAMS)
def test_branches_of_a_gradient_make_no_matrices(name: str) -> None:
    """No branch makes a matrix of its own for a weight's gradient, or one of what is the same in all steps."""
    f = PROGRAMS[name]
    before = in_branches(jax.grad(f, (0, 1, 2)), A, B, XS, size=N * N)
    after = in_branches(both(f), A, B, XS, size=N * N)
    assert len(before) > 1
    assert not after, after
    assert stacked(both(f), A, B, XS) <= T * N
    same(jax.jit(both(f)), jax.jit(jax.grad(f, (0, 1, 2))), A, B, XS, rtol=2e-4)


@pytest.mark.parametrize("name", ["one weight", "a weight in each", "normed", "orthogonal"])
def test_gradients_agree_in_float64(name: str) -> None:
    """With all passes, under vmap and jit."""
    with jax.enable_x64(True):
        args = [jnp.asarray(np.asarray(x, np.float64)) for x in (A[:36, :36], B[:36, :36], XS[:, :36])]
        grad = jax.grad(PROGRAMS[name], (0, 1, 2))
        same(ag.jit(grad), jax.jit(grad), *args, rtol=1e-10)
        many = [jnp.stack([x, 0.5 * x, x[::-1]]) for x in args]
        same(ag.jit(jax.vmap(grad)), jax.jit(jax.vmap(grad)), *many, rtol=1e-10)


@pytest.mark.parametrize("name", ["one weight", "normed"])
def test_second_derivatives_agree(name: str) -> None:
    """Forward over reverse, and reverse over it."""
    with jax.enable_x64(True):
        args = [jnp.asarray(np.asarray(x, np.float64)) for x in (A[:12, :12], B[:12, :12], XS[:20, :12])]
        f = PROGRAMS[name]
        twice = lambda *a: jax.jvp(jax.grad(f), a, a)[1]  # noqa: E731
        same(ag.jit(twice), jax.jit(twice), *args, rtol=1e-10)
        again = jax.grad(lambda *a: (jax.grad(f)(*a) ** 2).sum())
        same(ag.jit(again), jax.jit(again), *args, rtol=1e-9)


def test_a_branch_that_no_step_takes_may_hold_what_is_infinite() -> None:
    """Zeros times infinite weights are no numbers: they count only if a step took the branch."""

    def guarded(a: Any, b: Any, c: Any, x: Any) -> Any:
        return jnp.tanh((a / b.sum(1, keepdims=True)) @ c + x)

    f, none = branched(guarded, plain, least=100.0), jnp.zeros_like(B)
    want = jax.grad(f, (0, 2))(A, none, XS)
    assert all(bool(jnp.isfinite(x).all()) for x in want)
    got = ag.optimize(jax.grad(f, (0, 2)), passes=(LoopBranches(), LoopLinear()))(A, none, XS)
    same(lambda: got, lambda: want)
    taken = jax.grad(branched(guarded, plain), 0)(A, none, XS)
    ours = ag.jit(jax.grad(branched(guarded, plain), 0))(A, none, XS)
    assert bool(jnp.isnan(taken).any()) == bool(jnp.isnan(ours).any())


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from([step, other, plain, normed, inverse]), min_size=2, max_size=3),
    st.integers(0, 99),
    st.booleans(),
)
def test_branches_agree_with_plain_jax(branches: list[Callable[..., Any]], seed: int, strict: bool) -> None:
    """Any branches, values and gradients."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        args = [jnp.asarray(rng.normal(size=shape)) for shape in ((20, 20), (20, 20), (18, 20))]
        f = jax.value_and_grad(branched(*branches), (0, 1, 2))
        ours = ag.jit(f, numerics="strict") if strict else ag.jit(f)
        same(ours, jax.jit(f), *args, rtol=1e-9)


def fired(f: Callable[..., Any], *args: Any) -> list[str]:
    """What the pass says that it did."""
    return [d.what for d in ag.explain(f)(*args).fired if d.rule == "loop-branches" and "branch" in d.what]


@pytest.mark.parametrize(
    ("f", "wanted"),
    [
        (jax.grad(branched(step, plain), 0), True),
        (jax.grad(lambda v: branched(lambda a, b, c, x: jnp.tanh(v * c + x), plain)(A, B, XS)), False),  # a vector's
        (jax.grad(branched(step, plain), 2), False),  # no weight's
        (branched(step, plain), False),  # no gradient, and nothing of constants
        (branched(lambda a, b, c, x: jnp.tanh((2 * a[:2, :2]).sum() * c), plain), False),  # little work
        (branched(inverse, plain), True),
    ],
)
def test_what_leaves_branches_and_what_does_not(f: Callable[..., Any], wanted: bool) -> None:
    """Gradients of matrices, and work on constants that takes time."""
    args = (A[0],) if f.__name__ == "<lambda>" else (A, B, XS)
    assert bool(fired(f, *args)) == wanted


def test_few_steps_are_left() -> None:
    """A branch that none of a few steps takes would cost more than it saves."""
    assert not fired(jax.grad(branched(inverse, plain)), A, B, XS[:8])


def test_a_term_that_is_read_elsewhere_stays() -> None:
    """What a step adds to a sum, and stacks as well, is made in the branch."""

    def f(a: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            term = lax.cond(x[0] > 0, lambda: jnp.outer(x, x[::-1]) @ a, lambda: jnp.zeros_like(a))
            return c + term, term[0]

        return lax.scan(body, a, xs)

    ours = ag.optimize(f, passes=(LoopBranches(), LoopLinear()))
    assert "dot_general" in in_branches(ours, A, XS, size=N * N)
    same(ours, f, A, XS)


def test_sums_of_branches_need_no_gradient() -> None:
    """A covariance of some of the steps, and a product with a constant that is done once."""

    def f(a: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            return c + lax.cond(x[0] > 0, lambda: jnp.outer(x, x) @ a, lambda: jnp.zeros_like(a)), None

        return lax.scan(body, a, xs)[0]

    ours = ag.optimize(f, passes=(LoopBranches(), LoopLinear()))
    assert not in_branches(ours, A, XS, size=N * N)
    same(ours, f, A, XS)
    same(jax.grad(lambda *x: ours(*x).sum(), (0, 1)), jax.grad(lambda *x: f(*x).sum(), (0, 1)), A, XS)


def test_results_that_are_known_are_no_results() -> None:
    """An operand or a number that all branches give, and what is given twice."""

    def f(flag: Any, x: Any, y: Any) -> Any:
        return lax.cond(flag, lambda: (x, y + 1, 2.0, y + 1), lambda: (x, y * 2, 2.0, y * 2))

    x, y = jnp.arange(4096.0), jnp.ones(4096)
    closed = jax.make_jaxpr(ag.optimize(f))(True, x, y)
    operand, first, number, second = closed.jaxpr.outvars
    assert operand is closed.jaxpr.invars[1]
    assert first is second
    assert number.val == 2.0
    for flag in (True, False):
        same(ag.jit(f), f, flag, x, y)


def test_what_one_branch_gives_of_its_operands_is_that_operand() -> None:
    """What JAX stores of one branch is a result of the `cond`; weights among it are not copied."""

    def f(flag: Any, a: Any, x: Any) -> Any:
        return lax.cond(flag, lambda x: jnp.tanh(a @ x), lambda x: 2 * x, x).sum()

    closed = jax.make_jaxpr(ag.optimize(jax.grad(f, (1, 2))))(True, A, XS[0])
    first, _ = (e for e in closed.jaxpr.eqns if e.primitive.name == "cond")
    assert max(v.aval.size for v in first.outvars) == N
    for flag in (True, False):
        same(ag.jit(jax.grad(f, (1, 2))), jax.grad(f, (1, 2)), flag, A, XS[0])


@pytest.mark.parametrize(
    "f",
    [
        lambda flag, x, y: lax.cond(flag, lambda: (x, y), lambda: (y, x)),  # another operand in each
        lambda flag, x, y: lax.cond(flag, lambda: (x, x), lambda: (y, x + 1)),
        lambda flag, x, y: lax.switch(flag + 2, [lambda: (x, 1.0), lambda: (x, 2.0), lambda: (y, 1.0)]),
    ],
)
def test_results_that_depend_on_the_branch_stay(f: Callable[..., Any]) -> None:
    """Both branches are asked for."""
    for flag in (0, 1):
        ours, want = ag.jit(f)(flag, XS[0], XS[1]), f(flag, XS[0], XS[1])
        for x, y in zip(ours, want, strict=True):
            np.testing.assert_array_equal(x, y)
