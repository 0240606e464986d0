"""What loops stack of bfloat16 is stacked as words, and each number keeps its bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel._jax import ClosedJaxpr
from aerogel.compiler import Context
from aerogel.compiler.exactness import allowed
from aerogel.compiler.loop import Loop
from aerogel.compiler.passes.loop_words import LoopWords
from aerogel.compiler.pipeline import run_passes
from compiler.loop_patterns import normal
from compiler.programs_of import STRICT, traced

STEPS, WIDTH = 40, 256
BF16 = jnp.bfloat16
WORDS = {"bfloat16": "uint16", "float8_e5m2": "uint8"}
IS_WIDENED = _jax.WIDENS_BFLOAT16_STACKS  # by the jaxlib of this machine


pytestmark = pytest.mark.usefixtures("widens_bfloat16")


def decayed(x: Any) -> Any:
    """All states of a recurrence."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h * jnp.asarray(0.9, h.dtype)) + x
        return h, h

    return lax.scan(step, x[0], x)[1]


def loss(x: Any) -> Any:
    """The mean square of these states."""
    return jnp.mean(decayed(x).astype(jnp.float32) ** 2)


def nested(x: Any) -> Any:
    """A loop in each step of another, and the last states beside."""
    return lax.scan(lambda c, row: (c + decayed(row)[-1], decayed(row)), x[0, 0], x)


def rows(x: Any) -> Any:
    """States of several series at once."""
    return jax.vmap(decayed)(x)


def reversed_and_read_twice(x: Any) -> Any:
    """What another loop and something else read."""
    h = decayed(x)
    return lax.scan(lambda c, v: (c + v, c * v), jnp.zeros_like(x[0]), h, reverse=True)[1], h.sum(0)


def numbers(*shape: int) -> Any:
    """Some that are not numbers among them, and of both signs of zero."""
    x = np.array(normal(0, *shape))
    x[0, ..., :4] = [np.inf, np.nan, -0.0, 1e-40]
    return jnp.asarray(x, BF16)


PROGRAMS = {
    "value": (decayed, numbers(STEPS, WIDTH)),
    "gradient": (jax.value_and_grad(loss), numbers(STEPS, WIDTH)),
    "twice": (reversed_and_read_twice, numbers(STEPS, WIDTH)),
    "nested": (nested, numbers(3, STEPS, WIDTH)),
    "small floats": (
        lambda x: lax.scan(lambda c, x: (c + x,) * 2, x[0], x),
        numbers(STEPS, WIDTH).astype("float8_e5m2"),
    ),
    "vmap": (rows, numbers(3, STEPS, WIDTH)),
}


def stacked(program: ClosedJaxpr) -> list[str]:
    """The types of what the loops of a program stack, nested ones included."""
    loops = [Loop(eqn) for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan"]
    inner = [name for loop in loops for name in stacked(ClosedJaxpr(loop.body, ()))]
    return inner + [y.aval.dtype.name for loop in loops for y in loop.ys]


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_kept(name: str) -> None:
    """Nothing of bfloat16 is stacked, nothing else is stacked than before, and results are the same, bit by bit."""
    f, x = PROGRAMS[name]
    before = traced(f, x)
    after, decisions = LoopWords()(before, STRICT)
    assert WORDS.keys() & stacked(before)
    assert [d.fired for d in decisions] == [True] * len(decisions) != []
    assert stacked(after) == [WORDS.get(dtype, dtype) for dtype in stacked(before)]
    got = jax.jit(ag.optimize(f, passes=(LoopWords(),)))(x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(f)(x)), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_second_loop_reads_words() -> None:
    """The numbers of which only a second loop reads entries are in no other place."""
    program = LoopWords()(traced(jax.grad(loss), PROGRAMS["gradient"][1]), STRICT)[0]
    forward, backward = (Loop(eqn) for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan")
    assert {x.aval.dtype.name for x in backward.xs if x in forward.ys} == {"uint16"}
    twice, _ = LoopWords()(program, STRICT)
    assert twice is program


def test_an_entry_costs_what_it_holds() -> None:
    """XLA computes on no whole stack in float32 any more, nor keeps one."""
    x = numbers(STEPS, 4096)
    plain, ours = (jax.jit(f).lower(x).compile() for f in (jax.grad(loss), ag.optimize(jax.grad(loss))))
    widened = f"f32[{STEPS},4096]"

    def is_written(compiled: Any) -> bool:
        return any(widened in line and "dynamic-update-slice(" in line for line in compiled.as_text().splitlines())

    assert is_written(plain) == IS_WIDENED
    assert not is_written(ours)


def test_what_is_not_widened_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an entry of bfloat16 is written as it is, words take 1.4 of the time. Floats of 8 bits are widened."""
    monkeypatch.setattr(_jax, "WIDENS_BFLOAT16_STACKS", False)
    program = traced(decayed, numbers(STEPS, WIDTH))
    after, decisions = LoopWords()(program, STRICT)
    assert after is program
    assert decisions == []
    small = traced(decayed, numbers(STEPS, WIDTH).astype(jnp.float8_e5m2))
    assert stacked(LoopWords()(small, STRICT)[0]) == ["uint8"]


LEFT = {
    "another type": (numbers(STEPS, WIDTH).astype(jnp.float16), Context(allowed("fast"), "cpu")),
    "two steps": (numbers(2, WIDTH), Context(allowed("fast"), "cpu")),
    "no entries": (jnp.zeros((STEPS, 0), BF16), Context(allowed("fast"), "cpu")),
    "another device": (numbers(STEPS, WIDTH), Context(allowed("fast"), "gpu")),
    "before its gradient is taken": (numbers(STEPS, WIDTH), Context(allowed("fast"), "cpu", True)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    """Other types, other devices, and what would save nothing stay as they are."""
    x, context = LEFT[name]
    program = traced(decayed, x)
    assert run_passes(program, [LoopWords()], context, "f").after is program
