"""What has no derivative is written where a program is compiled, and never where a derivative may yet be taken."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from compiler.loop_patterns import normal

STEPS, WIDTH = 40, 256
BF16 = jnp.bfloat16
F = Callable[[Any], Any]
IS_WIDENED = _jax.WIDENS_BFLOAT16_STACKS  # by the jaxlib of this machine


pytestmark = pytest.mark.usefixtures("widens_bfloat16")


def decayed(x: Any) -> Any:
    """All states of a recurrence: `loop-words` stacks their bits."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h * jnp.asarray(0.9, h.dtype)) + x
        return h, h

    return lax.scan(step, x[0], x)[1]


def told(f: F) -> F:
    """A function with an effect."""

    def function(x: Any) -> Any:
        jax.debug.callback(lambda x: None, x[0, 0])
        return f(x)

    return function


SURROUNDINGS: dict[str, Callable[[F], F]] = {
    "alone": lambda f: ag.optimize(f),
    "in a jit": lambda f: jax.jit(ag.optimize(f)),
    "by ag.jit": lambda f: ag.jit(f),
    "in a loop": lambda f: jax.jit(
        lambda x: lax.scan(lambda c, _: (ag.optimize(f)(c) * BF16(0.5), None), x, None, length=2)[0]
    ),
    "in a branch": lambda f: jax.jit(lambda x: lax.cond(x[0, 0] > -99, ag.optimize(f), lambda x: x, x)),
    "under checkpoint": lambda f: jax.jit(jax.checkpoint(ag.optimize(f))),
    "with an effect": lambda f: jax.jit(ag.optimize(told(f))),
}
PLAIN: dict[str, Callable[[F], F]] = {
    "in a loop": lambda f: lambda x: lax.scan(lambda c, _: (f(c) * BF16(0.5), None), x, None, length=2)[0]
}


def loss(f: F) -> F:
    """A number that hangs on all states."""
    return lambda x: jnp.sum(f(x) * normal(1, STEPS, WIDTH).astype(BF16))


def directional(f: F) -> F:
    """The derivative in one direction."""
    return lambda x: jax.jvp(f, (x,), (normal(2, *x.shape).astype(x.dtype),))[1]


DERIVATIVES: dict[str, Callable[[F], F]] = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(loss(f)),
    "jvp": directional,
    "jvp of grad": lambda f: directional(jax.grad(loss(f))),
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss(f))(x)))),
    "grad of jvp": lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(directional(f)(x)))),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](normal(2, *x.shape).astype(x.dtype)),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(loss(f)))(jnp.stack([x, -x])),
}


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_derivatives_of_what_was_called_before(surroundings: str, derivative: Callable[[F], F]) -> None:
    """Wherever `optimize` stands, and though the function was called first: JAX's derivatives, not zeros."""
    x = jnp.asarray(normal(0, STEPS, WIDTH), BF16)
    plain = PLAIN.get(surroundings, lambda f: f)(decayed)
    better = SURROUNDINGS[surroundings](decayed)
    better(x)
    want, got = derivative(plain)(x), derivative(better)(x)
    assert np.any(np.asarray(want, np.float32))
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("derivative", ["value", "grad", "jvp of grad"])
def test_it_is_written_in_the_end(derivative: str) -> None:
    """What is compiled has the words, in a gradient and a derivative of one too."""
    x = jnp.asarray(normal(0, STEPS, WIDTH), BF16)
    stack = f"[{STEPS},{WIDTH}]"

    def stored(f: F) -> list[str]:
        text = jax.jit(DERIVATIVES[derivative](f)).lower(x).compile().as_text()
        assert text is not None
        lines = text.splitlines()
        updates = [line for line in lines if "dynamic-update-slice(" in line and stack in line]
        return [line.split(" = ")[1].split(stack)[0].strip() for line in updates]

    # A function of its own: JAX keeps what it traced for a value, and a gradient of that is JAX's.
    plain, better = stored(decayed), stored(jax.jit(ag.optimize(lambda x: decayed(x))))
    assert ("f32" in plain) == IS_WIDENED
    assert better
    assert "f32" not in better


def test_effects_are_a_reason() -> None:
    """A program with effects is left without such rewrites, and the report says so."""
    x = jnp.asarray(normal(0, STEPS, WIDTH), BF16)
    decisions = [d for d in ag.explain(told(decayed))(x).decisions if d.rule == "loop-words"]
    assert not any(d.fired for d in decisions)
    assert any("effects" in d.reason for d in decisions)
