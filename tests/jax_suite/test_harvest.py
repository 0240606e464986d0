"""Claims about the harvest of JAX's programs: it looks at what it should, and sees what is wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from aerogel import _jax
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.report import Decision
from jax_suite import harvest


class OffByALittle:
    """A pass that makes the first float result a thousandth larger."""

    name, exactness = "wrong", Exactness.BITWISE

    def __call__(self, program: Any, context: Any) -> tuple[Any, list[Decision]]:
        first = next((i for i, v in enumerate(program.jaxpr.outvars) if harvest.is_float(v.aval)), None)

        def f(*xs: Any) -> list[Any]:
            outs = jax.core.eval_jaxpr(program.jaxpr, program.consts, *xs)
            return [y * jnp.asarray(1.001, y.dtype) if i == first else y for i, y in enumerate(outs)]

        changed = jax.make_jaxpr(f)(*(v.aval for v in program.jaxpr.invars))
        return changed, [Decision(self.name, "a result", "", True, "on purpose")]


def loop(x: jax.Array, xs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A small program with a loop."""
    return lax.scan(lambda c, row: (jnp.sin(c) + row, c * row), x, xs)


PROGRAM = jax.make_jaxpr(loop)(jnp.ones(3), jnp.ones((8, 3)))


def test_a_wrong_pass_is_seen_and_the_real_ones_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same program and numbers: no difference with the real passes, one in each form with a wrong one."""
    assert harvest.examine(PROGRAM, 0) == []
    monkeypatch.setattr(harvest, "PASSES", {"wrong": (OffByALittle(),)})
    forms = {line.split(",")[0] for line in harvest.examine(PROGRAM, 0)}
    assert forms == {"forward", "gradient", "batched"}


def test_what_cannot_run_on_drawn_numbers_is_left_out() -> None:
    """Loops and products are looked at; effects, callbacks, and programs without either are not."""
    assert harvest.is_suitable(PROGRAM.jaxpr)
    assert not harvest.is_suitable(jax.make_jaxpr(jnp.sin)(1.0).jaxpr)
    for effect in (lambda x: jax.debug.print("{}", x), lambda x: jax.pure_callback(lambda y: y, x, x)):
        noisy = jax.make_jaxpr(lambda x, effect=effect: (effect(x), x @ x)[1])(jnp.ones((2, 2)))
        assert not harvest.is_suitable(noisy.jaxpr)


def test_each_program_is_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass gives back the program that it got; a difference is an error, and a second look is not taken."""
    seen = []
    monkeypatch.setattr(harvest, "examine", lambda program, draw: seen.append(draw) or ["it differs"])
    one = harvest.Harvest()
    with pytest.raises(AssertionError, match="it differs"):
        one(PROGRAM, None)
    assert one(PROGRAM, None) == (PROGRAM, [])
    assert seen == list(range(harvest.DRAWS))
    assert _jax.trace_state_clean()
