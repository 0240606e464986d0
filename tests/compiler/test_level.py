"""Levels and edits: who comes after whom, several edits at once, and the order of equations."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, JaxprEqn, Var
from aerogel.compiler.judging.check import check_program
from aerogel.compiler.level import After, Edit, Level, apply_edits
from aerogel.compiler.program import Builder, Cyclic, depends_on, inner_jaxprs, is_var, schedule, with_equations
from compiler.programs_of import bits, run, traced

X = np.arange(6, dtype=np.float32)


def random_program(seed: int) -> ClosedJaxpr:
    """Twenty sums and products of random earlier values."""
    rng = random.Random(seed)

    def f(x: Any, y: Any) -> Any:
        values = [x, y]
        for _ in range(20):
            a, b = rng.choice(values), rng.choice(values)
            values.append(a * b if rng.random() < 0.5 else a + b)
        return values[-3:]

    return traced(f, X, X + 1)


@pytest.mark.parametrize("seed", range(5))
def test_after_is_reachability(seed: int) -> None:
    """`After` holds just the variables that are computed from a loop's results."""
    rng = random.Random(seed)

    def f(x: Any, y: Any) -> Any:
        values = [x, y]
        for _ in range(20):
            a, b = rng.choice(values), rng.choice(values)
            values.append(a + b if rng.random() < 0.5 else lax.scan(lambda c, v: (c * v[0], v[1]), a, (a, b))[0])
        return values[-3:]

    jaxpr = traced(f, X, X + 1).jaxpr
    variables = [*jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    loops = [place for place, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "scan"]
    assert len(loops) > 3
    for place in loops:
        after = After(Level(jaxpr), place)
        assert {v for v in variables if v in after} == depends_on(jaxpr, jaxpr.eqns[place].outvars)


def test_readers_and_makers() -> None:
    """The tables name the places of equations; -1 stands for the results."""
    jaxpr = traced(lambda x: (x + x, x * 2), X).jaxpr
    level = Level(jaxpr)
    assert sorted(level.readers(jaxpr.invars[0])) == [0, 1]
    assert [level.made_by[v] for v in jaxpr.outvars] == [0, 1]
    assert level.readers(jaxpr.outvars[0]) == [-1]


@pytest.mark.parametrize("seed", range(30))
def test_schedule_puts_equations_after_what_they_read(seed: int) -> None:
    """Shuffled equations come back whole, each after what it reads; a good order stays as it is."""
    eqns = list(random_program(seed).jaxpr.eqns)
    assert schedule(eqns) == eqns
    shuffled = list(eqns)
    random.Random(seed).shuffle(shuffled)
    ordered = schedule(shuffled)
    assert sorted(map(id, ordered)) == sorted(map(id, eqns))
    seen: set[Var] = set()
    mine = {v for eqn in eqns for v in eqn.outvars}
    for eqn in ordered:
        assert all(x in seen for x in eqn.invars if is_var(x) and x in mine)
        seen.update(eqn.outvars)
    assert schedule(ordered) == ordered


def test_schedule_keeps_the_order_of_effects() -> None:
    """A print that stands before a call with a result stays before it, also where the result is wanted first."""

    def f(x: Any) -> Any:
        jax.debug.print("a {}", x[0])
        y = io_callback(np.negative, x, x)
        return y * 2

    eqns = list(traced(f, X).jaxpr.eqns)
    loud = [eqn for eqn in eqns if eqn.effects]
    assert len(loud) == 2
    assert [eqn for eqn in schedule([eqns[-1], *eqns[:-1]]) if eqn.effects] == loud


def test_schedule_refuses_a_circle() -> None:
    """Equations that wait for each other, or for themselves, are an error."""
    a, b = traced(lambda x: (x + 1) * 2, X).jaxpr.eqns
    circle = [a.replace(invars=[b.outvars[0], a.invars[1]]), b]
    with pytest.raises(Cyclic):
        schedule(circle)
    with pytest.raises(Cyclic):
        schedule([a.replace(invars=[a.outvars[0], a.invars[1]])])


def replacing(jaxpr: Any, place: int, at: int, fun: Any, *inputs: Any) -> Edit:
    """The equation at `place` replaced by `fun(*inputs)`, which stands at `at`."""
    eqn: JaxprEqn = jaxpr.eqns[place]
    builder = Builder(eqn)
    (out,) = builder.call(fun, *inputs)
    return Edit(at, frozenset({place}), builder.eqns, {eqn.outvars[0]: out}, frozenset({place}))


def test_edits_are_made_together() -> None:
    """Two edits, the first of which stands before what it reads of the second: both are made, in a good order."""
    program = traced(lambda x: jnp.sin(x + x) * (x * 3), X)  # add, sin, mul, mul
    jaxpr = program.jaxpr
    x = jaxpr.invars[0]
    edits = [
        replacing(jaxpr, 1, 0, jnp.sin, jaxpr.eqns[0].outvars[0]),
        replacing(jaxpr, 0, 3, lambda v: v * np.float32(2), x),
    ]
    after, count = apply_edits(jaxpr, edits)
    assert count == 2
    new = ClosedJaxpr(after, ())
    check_program(new, program)
    assert [e.primitive.name for e in after.eqns].count("add") == 0
    assert bits(run(new, X)) == bits(run(program, X))


def test_edits_that_would_wait_for_each_other_are_not_made_together() -> None:
    """Each edit alone is good, both together are a circle: the first one is made, and said to be the only one."""
    program = traced(lambda x: (x + 1, x + 2), X)
    jaxpr = program.jaxpr
    first, second = (eqn.outvars[0] for eqn in jaxpr.eqns)
    edits = [
        replacing(jaxpr, 0, 0, lambda v: v - np.float32(1), second),
        replacing(jaxpr, 1, 1, lambda v: v + np.float32(1), first),
    ]
    after, count = apply_edits(jaxpr, edits)
    assert count == 1
    new = ClosedJaxpr(after, ())
    check_program(new, program)
    np.testing.assert_array_equal(run(new, X)[0], run(program, X)[0])
    with pytest.raises(Cyclic):
        apply_edits(with_equations(jaxpr, jaxpr.eqns), [replacing(jaxpr, 0, 0, lambda v: v * np.float32(1), first)])


def test_an_edit_drops_what_nobody_reads() -> None:
    """The equations behind a result that is replaced are gone."""
    jaxpr = traced(lambda x: jnp.sin(jnp.cos(x)) + x, X).jaxpr
    after, _ = apply_edits(jaxpr, [replacing(jaxpr, 1, 1, lambda v: v * np.float32(2), jaxpr.invars[0])])
    assert [eqn.primitive.name for eqn in after.eqns] == ["mul", "add"]


def test_what_one_edit_writes_may_be_replaced_by_another() -> None:
    """Edits that hand a value on from one to the next are all made."""
    jaxpr = traced(lambda x: jnp.exp(jnp.cos(jnp.sin(x))), X).jaxpr
    (x,), values = jaxpr.invars, [eqn.outvars[0] for eqn in jaxpr.eqns]
    befores = zip(values, [x, *values], strict=False)
    edits = [Edit(k, frozenset((k,)), [], {v: y}, frozenset((k,))) for k, (v, y) in enumerate(befores)]
    new, made = apply_edits(jaxpr, edits)
    assert made == 3
    assert not new.eqns
    assert new.outvars == [x]


def test_simple_primitives_hold_no_programs() -> None:
    """What is told by a primitive's name alone is what a look at its parameters tells; one of a user's is looked at."""
    looked: set[str] = set()

    def look(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            held = list(_jax.jaxprs_in_params(eqn.params))
            assert not (held and _jax.is_simple(eqn.primitive)), eqn
            assert [id(x) for x in inner_jaxprs(eqn)] == [id(getattr(x, "jaxpr", x)) for x in held]
            looked.add(eqn.primitive.name)
            for inner in held:
                look(inner)

    def f(x: Any) -> Any:
        y = jnp.where(x > 0, jax.nn.relu(x @ x), jnp.sort(x)) + lax.reduce(x, 0.0, lax.add, (0,))
        return lax.scan(lambda c, r: (jnp.tanh(c + r), c.at[0].add(1.0)), y[0], y)

    look(traced(jax.grad(lambda x: f(x)[0].sum()), jnp.ones((3, 3))).jaxpr)
    assert {"scan", "mul", "dot_general"} <= looked
    own = _jax.Primitive("mul")
    own.is_high = lambda *_, **__: True
    assert _jax.is_simple(lax.mul_p)
    assert not _jax.is_simple(own)
    assert not _jax.is_simple(lax.sort_p)
