"""On a GPU several steps of a loop stand in one, with the results that were there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel._jax import ClosedJaxpr
from aerogel.compiler.cost import machine, step_launches
from aerogel.compiler.exactness import allowed
from aerogel.compiler.judging.agree import compare
from aerogel.compiler.judging.check import check_program
from aerogel.compiler.passes.loop_unroll import LoopUnroll
from aerogel.compiler.pipeline import Context, run_passes
from compiler.loop_patterns import normal
from compiler.programs_of import FAST, only_loop, run, scans, traced

GPU = Context(allowed("fast"), "gpu")


def decayed(x: Any, unroll: int = 1) -> Any:
    """All states of a recurrence, and the last one."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.asarray(0.9, h.dtype) * h + x
        return h, h

    return lax.scan(step, x[0], x, unroll=unroll)


def recurrent(w: Any, x: Any) -> Any:
    """The gradient of a layer with a product in each step."""

    def loss(w: Any) -> Any:
        return jnp.mean(lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, x[0], x)[1] ** 2)

    return jax.value_and_grad(loss)(w)


def walk(key: Any) -> Any:
    """A loop that splits a key in each step."""

    def step(state: Any, _: Any) -> tuple[Any, Any]:
        key, sub = jax.random.split(state[0])
        x = state[1] + jax.random.normal(sub, (5,))
        return (key, x), (x > 0).astype(jnp.int8)

    return lax.scan(step, (key, jnp.zeros(5)), None, length=21)[1]


def nested(x: Any) -> Any:
    """A loop in each step of another."""
    return lax.scan(lambda c, row: (c + decayed(row)[0], decayed(row)[1]), x[0, 0], x)


PROGRAMS = {
    "recurrence": (decayed, (normal(0, 40, 64),)),
    "prime length": (decayed, (normal(0, 37, 64),)),
    "backwards": (lambda x: lax.scan(lambda c, x: (c * x + 1, c), x[0], x, reverse=True), (normal(0, 45, 8),)),
    "bfloat16": (decayed, (normal(0, 40, 64).astype(jnp.bfloat16),)),
    "integers": (lambda x: lax.scan(lambda c, x: (c * 3 + x, c ^ x), x[0], x), (jnp.arange(60).reshape(20, 3),)),
    "gradient": (recurrent, (normal(0, 16, 16) / 4, normal(1, 30, 4, 16))),
    "keys": (walk, (jax.random.key(3),)),
    "a sum beside": (lambda x: lax.scan(lambda c, x: (c + x, jnp.sum(c)), x[0], x), (normal(0, 40, 64),)),
    "a sum in a carry": (
        lambda x: lax.scan(lambda c, x: ((0.9 * c[0] + x, c[1] + jnp.sum(c[0] ** 2)), None), (x[0], 0.0), x),
        (normal(0, 40, 64),),
    ),
    "an exponential between": (
        lambda a, x: lax.scan(lambda c, x: (jnp.tanh(a @ c) + x, None), x[0], x),
        (normal(0, 12, 12), normal(1, 40, 12)),
    ),
    "large products": (
        lambda a, x: lax.scan(lambda c, _: (a @ c, None), x, None, length=40),
        (normal(0, 64, 64) / 8, normal(1, 64, 64)),
    ),
    "nested": (nested, (normal(0, 6, 20, 8),)),
    "in a branch": (lambda x: lax.cond(x[0, 0] > 0, lambda: decayed(x), lambda: decayed(-x)), (normal(0, 40, 64),)),
    "under vmap": (jax.vmap(decayed), (normal(0, 3, 40, 8),)),
    "no carry": (lambda x: lax.map(lambda x: jnp.sort(x), x), (normal(0, 40, 64),)),
    "no entries": (decayed, (normal(0, 40, 0),)),
}


def factors(program: ClosedJaxpr) -> list[int]:
    """How many steps stand in one, of each loop of a level and the levels in it."""
    found = []
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name == "scan":
            found.append(eqn.params["unroll"])
        for inner in jax.tree.leaves(dict(eqn.params), is_leaf=lambda x: hasattr(x, "jaxpr")):
            found += factors(inner) if hasattr(inner, "jaxpr") else []
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_single_steps(name: str) -> None:
    """Every kind of loop gets several steps in one, is well typed, and computes the same."""
    f, args = PROGRAMS[name]
    before = traced(f, *args)
    after, decisions = LoopUnroll()(before, GPU)
    assert max(factors(before)) == 1 < max(factors(after))
    assert any(d.fired for d in decisions)
    check_program(after, before)
    got, want = ([*map(_data, run(program, *args))] for program in (after, before))
    assert compare(got, want, inputs=[*map(_data, jax.tree.leaves(args))]) == []


def _data(x: Any) -> Any:
    return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.mark.parametrize(("length", "steps"), [(1, 1), (3, 1), (4, 2), (40, 10), (64, 8), (37, 11), (1000, 10)])
def test_no_steps_are_left_over_where_that_is_near(length: int, steps: int) -> None:
    """As many steps of three launches stand in one as are launched at once, or a divisor of all that is nearly that."""
    after, decisions = LoopUnroll()(traced(lambda x: decayed(x)[0], normal(0, length, 8)), GPU)
    assert factors(after) == [steps]
    assert [d.fired for d in decisions] == [steps > 1]


def test_launches_are_kernels_and_copies() -> None:
    """A step launches its kernel, the copy of a carry that it stacks, and what counts the steps."""
    price = machine("gpu")
    x = normal(0, 40, 64)
    stacked = step_launches(only_loop(decayed, x).eqn, price)
    last = step_launches(only_loop(lambda x: lax.scan(lambda c, x: (0.9 * c + x, None), x[0], x), x).eqn, price)
    assert (last.count, stacked.count) == (2, 3)
    layer = only_loop(lambda w, x: lax.scan(lambda c, x: (jnp.tanh(c @ w) + x, None), x[0], x), normal(1, 64, 64), x)
    product = step_launches(layer.eqn, price)
    assert product.count == 3
    assert not stacked.nested


LEFT = {
    "on a CPU": (decayed, FAST, (normal(0, 40, 64),), None),
    "on another accelerator": (decayed, Context(allowed("fast"), "metal"), (normal(0, 40, 64),), None),
    "before differentiation": (decayed, Context(allowed("fast"), "gpu", True), (normal(0, 40, 64),), None),
    "unrolled by the user": (lambda x: decayed(x, unroll=4), GPU, (normal(0, 40, 64),), None),
    "short": (decayed, GPU, (normal(0, 3, 64),), "it is short"),
    "long kernels": (
        lambda w, x: lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=40),
        GPU,
        (jax.ShapeDtypeStruct((8192, 8192), "float32"),) * 2,
        "its kernels run longer than the launch of the next one takes",
    ),
    "another loop inside": (
        lambda x: lax.scan(lambda c, row: (lax.while_loop(lambda c: c[0] < 3, lambda c: c + row, c), None), x[0], x),
        GPU,
        (normal(0, 40, 64),),
        "a step of it holds another loop, or a branch",
    ),
    "sums of sums": (
        lambda a, xs: lax.scan(lambda c, x: (0.2 * (a @ c) + x,) * 2, xs[0], xs),
        GPU,
        (normal(0, 12, 12), normal(1, 500, 12)),
        "XLA would compute a step's sums again for each sum of the next one",
    ),
    "sums of all": (
        lambda x: lax.scan(lambda c, x: (c - jnp.sum(c) + x, None), x[0], x),
        GPU,
        (normal(0, 40, 64),),
        "XLA would compute a step's sums again for each sum of the next one",
    ),
    "sums by turns": (
        lambda x: lax.scan(lambda c, x: ((c[1] + x, 0.1 * c[0] + jnp.sum(c[0])), None), (x[0],) * 2, x),
        GPU,
        (normal(0, 40, 64),),
        "XLA would compute a step's sums again for each sum of the next one",
    ),
    "unknown number of steps": (
        lambda x: lax.while_loop(lambda x: x[0] < 3, lambda x: x + 1, x), GPU, (normal(0, 64),), None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_stays(name: str) -> None:
    """Each of these is the same object, and says why where it is a loop with a known number of steps."""
    f, context, args, reason = LEFT[name]
    program = traced(f, *args)
    outcome = run_passes(program, [LoopUnroll()], context, "f")
    decisions = [d for d in outcome.decisions if d.rule == LoopUnroll.name]
    assert outcome.after is program
    assert [d.reason for d in decisions if not d.fired] == ([reason] if reason else [])
    assert not any(d.fired for d in decisions)


def test_it_rests() -> None:
    """A loop with several steps in one is left as it is."""
    once, _ = LoopUnroll()(traced(decayed, normal(0, 40, 64)), GPU)
    twice, decisions = LoopUnroll()(once, GPU)
    assert twice is once
    assert decisions == []
    assert np.shape(scans(once)) == (1,)
