"""Facts about a loop's body, against running it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler.known.facts import Affine, body_facts, level_counters
from aerogel.compiler.loop import Loop
from compiler.programs_of import only_loop, scans, traced


def counted(n: int, start: int, by: int, reverse: bool) -> Any:
    """A counter and what arithmetic makes of it, in a loop over `arange`."""

    def f(x: Any) -> Any:
        def body(i: Any, j: Any) -> Any:
            wrapped = jnp.where(i < 0, i + 1000, i)
            back = jnp.int32(n - 1) - j
            made = (
                i,
                wrapped,
                back,
                j * 3 + i,
                jnp.full((2,), 1, jnp.int32) * i,
                lax.neg(lax.neg(j)),
                j * j,
                i.astype(jnp.int8),
                j % 2,
            )
            return i + by, made

        return lax.scan(body, jnp.int32(start), jnp.arange(n, dtype=jnp.int32), reverse=reverse)

    return f


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("n", "start", "by"), [(5, 0, 1), (7, 3, 2), (4, 9, -3), (2, 120, 10), (1, 0, 1)])
def test_facts_hold_in_every_step(n: int, start: int, by: int, reverse: bool) -> None:
    """Every value with a fact equals `scale * t + offset` in every step, and the counters and their like have one."""
    program = traced(counted(n, start, by, reverse), 0.0)
    (eqn,) = scans(program)
    loop = Loop(eqn)
    facts = body_facts(loop, level_counters(program.jaxpr))
    body = eqn.params["jaxpr"].jaxpr
    known = list(facts)
    probe = ClosedJaxpr(
        body.replace(outvars=[*body.outvars, *known], debug_info=body.debug_info.with_unknown_names()), ()
    )
    carry = jnp.int32(start)
    for t in reversed(range(n)) if reverse else range(n):
        outs = evaluate(probe, [carry, jnp.int32(t)])
        for var, value in zip(known, outs[len(body.outvars) :], strict=True):
            assert np.all(np.asarray(value) == facts[var].scale * t + facts[var].offset), (var, facts[var])
        carry = outs[0]
    # counter, index, the index backwards, and their sum
    assert {loop.body_carry[0], loop.body_xs[0]} <= set(known)
    assert len(known) >= 5


def test_what_wraps_has_no_fact() -> None:
    """An int8 that overflows is not affine."""

    def f():
        return lax.scan(lambda i, _: (i + 1, i.astype(jnp.int8)), 0, None, length=200)

    loop = only_loop(f)
    facts = body_facts(loop, {})
    assert loop.body_carry[0] in facts
    assert loop.body_ys[0] not in facts


def test_what_is_unknown_has_no_fact() -> None:
    """A counter from outside, a product of two, a float and a carry that is replaced have none."""

    def f(start: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            i, j, x = c
            return (i + 1, jnp.minimum(j + 1, 3), x + 1.0), (i, j * j, x)

        return lax.scan(body, (start, 0, 0.0), None, length=4)

    loop = only_loop(f, 3)
    assert body_facts(loop, {}) == {}


@pytest.mark.parametrize("reverse", [False, True])
def test_counters_of_a_level(reverse: bool) -> None:
    """Stacked values that have a fact hold it in every row."""

    def f() -> Any:
        t = jnp.arange(6)
        return (
            t,
            t * 2 + 1,
            5 - t,
            lax.broadcasted_iota(jnp.int32, (6, 3), 0),
            lax.broadcasted_iota(jnp.int32, (6, 3), 1),
            t * t,
            t[::-1],
        )

    program = traced(f)
    found = level_counters(program.jaxpr)
    values = evaluate(program, [])
    held = [(var, value) for var, value in zip(program.jaxpr.outvars, values, strict=True) if var in found]
    assert len(held) == 4
    for var, value in held:
        for t, row in enumerate(np.asarray(value)):
            assert np.all(row == found[var].scale * t + found[var].offset)


def test_bounds() -> None:
    """The smallest and the largest value of a loop, whichever way it counts."""
    assert Affine(2, 3).bounds(4) == (3, 9)
    assert Affine(-2, 3).bounds(4) == (-3, 3)
