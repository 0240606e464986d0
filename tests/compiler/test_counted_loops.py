"""A `while` whose condition counts its steps is a `scan`; one that asks for more, or does not know, stays."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import Jaxpr, jaxprs_in_params
from aerogel.compiler.passes.counted_loops import CountedLoops
from compiler.programs_of import traced

X = jax.random.normal(jax.random.key(0), (7, 13))
State = Any


def steps(
    goes_on: Callable[[State], Any], start: Any = 0, by: Any = 1, extra: tuple[Any, ...] = ()
) -> Callable[[Any], Any]:
    """A loop that reads its counter; all of its carries."""

    def body(s: State) -> State:
        i, x, *rest = s
        return i + by, jnp.sin(x) + 0.1 * i, *rest

    return lambda x: lax.while_loop(goes_on, body, (start, x, *extra))


def nested(x: Any) -> Any:
    """A counted loop in a counted loop, and what the inner one ends with."""
    inner = steps(lambda s: s[0] < 3)
    return lax.while_loop(lambda s: s[0] <= 4, lambda s: (s[0] + 2, inner(s[1])[1]), (1, x))


FIRES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "below a number": (steps(lambda s: s[0] < 9), 9),
    "a number above": (steps(lambda s: jnp.greater(9, s[0])), 9),
    "up to a number": (steps(lambda s: s[0] <= 9), 10),
    "by threes": (steps(lambda s: s[0] < 10, 2, 3), 3),
    "down": (steps(lambda s: s[0] > 0, 5, -1), 5),
    "down to a number, by twos": (steps(lambda s: s[0] >= -1, 5, -2), 4),
    "by a number taken off": (
        lambda x: lax.while_loop(lambda s: jnp.less(0, s[0]), lambda s: (s[0] - 2, jnp.sin(s[1])), (9, x)),
        5,
    ),
    "a carry that stays": (steps(lambda s: s[0] < s[2], 0, 1, (6,)), 6),
    "an unsigned counter": (steps(lambda s: s[0] < 7, np.uint8(3), np.uint8(1)), 4),
    "up to the largest number": (
        steps(lambda s: s[0] < np.int8(127), np.int8(100), np.int8(27)),
        1,
    ),
    "in many lanes": (jax.vmap(steps(lambda s: s[0] < 9)), 9),
    "along another axis": (jax.vmap(steps(lambda s: s[0] < 9), 1, (None, 1)), 9),
    "no rows": (lambda x: steps(lambda s: s[0] < 9)(x[:0]), 9),
}
STAYS: dict[str, Callable[[Any], Any]] = {
    "until it is small": steps(lambda s: (s[0] < 9) & (jnp.sum(s[1]) < 10.0)),
    "or is large": steps(lambda s: (s[0] < 9) | (jnp.sum(s[1]) < 0.0)),
    "a number that the program is given": lambda x: steps(lambda s: s[0] < jnp.int32(x[0, 0] * 0 + 5))(x),
    "from a number that it is given": lambda x: steps(lambda s: s[0] < 9, (x[0, 0] * 0).astype(int))(x),
    "steps that differ": lambda x: lax.while_loop(
        lambda s: s[0] < 9, lambda s: (s[0] + 1 + s[0] // 2, s[1] * 2), (0, x)
    ),
    "a bound that moves": lambda x: lax.while_loop(
        lambda s: s[0] < s[2], lambda s: (s[0] + 2, jnp.sin(s[1]), s[2] + 1), (0, x, 9)
    ),
    "a counter of floats": steps(lambda s: s[0] < 1.0, 0.0, 0.1),
    "that never runs": steps(lambda s: s[0] < 0),
    "other than a number": steps(lambda s: s[0] != 4),
    "that runs over": lambda x: lax.while_loop(
        lambda s: s[0] < np.int8(120), lambda s: (s[0] + np.int8(100), s[1] + 1), (np.int8(50), x)
    ),
    "lanes with their own counters": lambda x: (
        jax.vmap(steps(lambda s: s[0] < 9), (0,))(x)
        and jax.vmap(lambda i, x: steps(lambda s: s[0] < 9, i)(x))(jnp.arange(7) + (x[0, 0] * 0).astype(int), x)
    ),
    "with prints": lambda x: lax.while_loop(
        lambda s: s[0] < 2, lambda s: (jax.debug.print("{}", s[0]), (s[0] + 1, s[1] * 2))[1], (0, x)
    ),
}


def loops(f: Callable[..., Any], *args: Any, kind: str = "while") -> int:
    """How many loops of a kind there are, at any depth."""

    def within(jaxpr: Jaxpr) -> int:
        inner = [getattr(j, "jaxpr", j) for eqn in jaxpr.eqns for j in jaxprs_in_params(eqn.params)]
        return sum(eqn.primitive.name == kind for eqn in jaxpr.eqns) + sum(map(within, inner))

    return within(traced(f, *args).jaxpr)


def alone(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(CountedLoops(),))


@pytest.mark.parametrize("form", FIRES)
def test_a_counted_loop_is_a_scan_of_as_many_steps(form: str) -> None:
    """Bit by bit what JAX gives, and the same type of every result, the counter's too."""
    f, length = FIRES[form]
    assert (loops(f, X), loops(f, X, kind="scan")) == (1, 0)
    jaxpr = jax.make_jaxpr(alone(f))(X)
    assert [e.params["length"] for e in jaxpr.eqns if e.primitive.name == "scan"] == [length]
    assert jaxpr.out_avals == jax.make_jaxpr(f)(X).out_avals
    jax.tree.map(np.testing.assert_array_equal, jax.jit(alone(f))(X), jax.jit(f)(X))


@pytest.mark.parametrize("form", STAYS)
def test_other_loops_stay(form: str) -> None:
    """A loop that other things end, or that starts or steps by what the program is given."""
    f = STAYS[form]
    assert loops(f, X)
    assert loops(alone(f), X) == loops(f, X)
    assert not [d for d in ag.explain(alone(f))(X).fired if d.rule == "counted-loops"]


def test_loops_in_loops() -> None:
    """The inner loop is found in the steps of the outer one."""
    fired = [d.what for d in ag.explain(nested)(X).fired if d.rule == "counted-loops"]
    assert sorted(fired) == ["a `while` of 2 steps is a `scan`", "a `while` of 3 steps is a `scan`"]
    jax.tree.map(np.testing.assert_array_equal, jax.jit(alone(nested))(X), jax.jit(nested)(X))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float64])
def test_what_scans_gain_is_gained(dtype: Any) -> None:
    """Products of a step are one product of all, as those of a `fori_loop` are; 64-bit numbers and derivatives too."""
    with jax.enable_x64(dtype == jnp.float64):
        k, v = (jnp.asarray(np.random.default_rng(n).normal(size=(301, 48 - 15 * n)), dtype) for n in range(2))

        def outers(k: Any, v: Any) -> Any:
            add = lambda s: (s[0] + 1, s[1] + jnp.outer(k[s[0]], v[s[0]]))  # noqa: E731
            return lax.while_loop(lambda s: s[0] < 301, add, (0, jnp.zeros((48, 33), dtype)))[1]

        got = jax.jit(ag.optimize(outers))(k, v)
        eps = float(jnp.finfo(dtype).eps)
        exact = np.asarray(k, np.float64).T @ np.asarray(v, np.float64)
        np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=0, atol=600 * eps)
        if dtype != jnp.bfloat16:
            assert not any(loops(ag.optimize(outers), k, v, kind=kind) for kind in ("while", "scan"))
        got = jax.jvp(ag.optimize(outers), (k, v), (k, v))[1]
        np.testing.assert_allclose(np.asarray(got, np.float64), 2 * exact, rtol=0, atol=1200 * eps)


def test_reverse_derivatives_are_refused_as_by_jax() -> None:
    """JAX has none of a `while`; what it says does not depend on Aerogel."""
    f = lambda x: FIRES["below a number"][0](x)[1].sum()  # noqa: E731
    for form in (f, ag.optimize(f), jax.jit(ag.optimize(f))):
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
            jax.grad(form)(X)


def test_branches_of_counted_loops_compute_nothing_again() -> None:
    """What a branch makes of constants is made once, before the loop."""

    def f(a: Any, x: Any) -> Any:
        def body(s: State) -> State:
            i, x = s
            return i + 1, lax.cond(i % 3 == 0, lambda x: jax.nn.softmax(a @ a.T, -1) @ x, jnp.tanh, x)

        return lax.while_loop(lambda s: s[0] < 50, body, (0, x))[1]

    a = jax.random.normal(jax.random.key(1), (60, 60))
    what = "`dot_general` in a branch is computed before the loop"
    assert what in [d.what for d in ag.explain(f)(a, a[0]).fired]
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(a, a[0]), jax.jit(f)(a, a[0]), rtol=1e-4, atol=1e-5)
