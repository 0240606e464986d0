"""Loops without what they carry, read or stack twice: fewer arrays, the same bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel.compiler.judging.check import check_program
from aerogel.compiler.loop import Loop
from aerogel.compiler.normal_form.tidy import tidy_loop
from aerogel.compiler.normalize import normalize
from compiler.programs_of import bits, run, scans, traced

X = np.linspace(-2, 2, 5 * 300, dtype=np.float32).reshape(5, 300)


def same(v: Any) -> Any:
    """`v`, in a form that JAX does not see through when it traces a loop."""
    return lax.select(v > 0, v, v)


def with_constant(a: Any) -> Callable[[Any, Any], Any]:
    """A step that reads a value of the whole loop."""
    return lambda c, y: (c + y * a, c * 2)


Shape = tuple[int, int, int, int]  # constants, carries, inputs, outputs of the loop
LOOPS: dict[str, tuple[Callable[..., Any], Shape, Shape]] = {
    "unchanged carry": (
        lambda x: lax.scan(lambda c, y: ((c[0] + y * c[1], same(c[1])), c[0]), (x[0], x[1]), x),
        (0, 2, 1, 1),
        (1, 1, 1, 1),
    ),
    "input read twice": (
        lambda x: lax.scan(lambda c, y: (c + y[0] * y[1], c), x[0], (x, x)),
        (0, 1, 2, 1),
        (0, 1, 1, 1),
    ),
    "equal outputs": (lambda x: lax.scan(lambda c, y: (c + y, (c, y * 2, c)), x[0], x), (0, 1, 1, 3), (0, 1, 1, 2)),
    "output that is an input": (
        lambda x: lax.scan(lambda c, y: (c + y, (c, same(y))), x[0], x),
        (0, 1, 1, 2),
        (0, 1, 1, 1),
    ),
    "all at once": (
        lambda x: lax.scan(
            lambda c, y: ((c[0] + y[0] * c[1], same(c[1])), (same(y[1]), c[0], c[0])), (x[0], x[1]), (x, x)
        ),
        (0, 2, 2, 3),
        (1, 1, 1, 1),
    ),
    "read whole and by steps": (
        lambda x: lax.scan(lambda c, y: (c + y * x[1], c * 2), x[0], x),
        (1, 1, 1, 1),
        (1, 1, 1, 1),
    ),
    "a constant of one number": (
        lambda x: lax.scan(with_constant(lax.full(x.shape[1:], 0.5, x.dtype)), x[0], x),
        (1, 1, 1, 1),
        (0, 1, 1, 1),
    ),
    "a constant of one value": (
        lambda x: lax.scan(with_constant(lax.broadcast(x[0, 0], x.shape[1:])), x[0], x),
        (1, 1, 1, 1),
        (1, 1, 1, 1),
    ),
    "tidy": (lambda x: lax.scan(lambda c, y: (c + y, c * 2), x[0], x), (0, 1, 1, 1), (0, 1, 1, 1)),
}


def shape(loop: Loop) -> Shape:
    """How many constants, carries, inputs and outputs a loop has."""
    return len(loop.consts), len(loop.init), len(loop.xs), len(loop.ys)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_each_thing_is_there_once(name: str, reverse: bool) -> None:
    """The loop has the constants, carries, inputs and outputs that it needs; results keep their bits."""
    f, before, after = LOOPS[name]

    def directed(x: Any) -> Any:
        scan = lax.scan
        lax.scan = lambda *a, **k: scan(*a, **k, reverse=reverse)
        try:
            return f(x)
        finally:
            lax.scan = scan

    program = traced(directed, X)
    (eqn,) = scans(program)
    assert shape(Loop(eqn)) == before
    normal, _ = normalize(program)
    check_program(normal, program)
    (eqn,) = scans(normal)
    assert shape(Loop(eqn)) == after
    assert eqn.params["reverse"] == reverse
    assert bits(run(normal, X)) == bits(run(program, X))


def test_a_tidy_loop_is_left() -> None:
    """What tidying gives has nothing to tidy."""
    for f, _, _ in LOOPS.values():
        (eqn,) = scans(normalize(traced(f, X))[0])
        assert tidy_loop(eqn, {}) is None


def test_weak_types_stay() -> None:
    """A weak carry that no step changes is a weak result."""

    def f(x):
        return lax.scan(lambda c, y: ((c[0] + y, same(c[1])), None), (x[0], 2.0), x)[0]

    want, got = jax.jit(f)(X), run(normalize(traced(f, X))[0], X)
    assert [v.weak_type for v in jax.tree.leaves(want)] == [v.weak_type for v in got] == [False, True]


def test_empty_and_effectful_loops_are_left() -> None:
    """A loop without steps, and one that prints, stay as they are."""
    (empty,) = scans(traced(lambda x: lax.scan(lambda c, y: (c, y), x[0], x[:0]), X))
    assert tidy_loop(empty, {}) is None

    def printing(c: Any, y: Any) -> Any:
        jax.debug.print("{}", y[0])
        return c, y

    (loud,) = scans(traced(lambda x: lax.scan(printing, x[0], x), X))
    assert tidy_loop(loud, {}) is None


def test_a_saving_is_reported_where_it_is_large() -> None:
    """An output of 6 kB less is a decision with its bytes; a few numbers less are none."""
    large = normalize(traced(LOOPS["equal outputs"][0], X))[1]
    assert [(d.rule, d.fired, d.bytes_saved) for d in large] == [("loop-tidy", True, 5 * 300 * 4)]
    assert normalize(traced(LOOPS["equal outputs"][0], X[:, :3]))[1] == []


def test_an_index_of_several_places_is_made_in_the_step() -> None:
    """An interior is a slice there, in the gradient as well."""

    def f(u: Any) -> Any:
        def step(u: Any, _: Any) -> tuple[Any, None]:
            return u.at[1:-1, 2:-1].add(0.1 * jnp.sin(u[1:-1, 1:-2])), None

        return jnp.sum(lax.scan(step, u, None, length=3)[0] ** 2)

    natural = jax.make_jaxpr(jax.grad(f))(jnp.ones((5, 7)))
    *_, before = [eqn for eqn in natural.jaxpr.eqns if eqn.primitive.name == "scan"]
    *_, after = [eqn for eqn in normalize(natural)[0].jaxpr.eqns if eqn.primitive.name == "scan"]
    assert "gather" in str(before.params["jaxpr"])
    assert "gather" not in str(after.params["jaxpr"])
