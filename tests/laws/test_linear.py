"""The time of rewriting grows as the program does: calls of Python functions are counted, which repeat exactly."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel._jax import ClosedJaxpr
from aerogel.compiler import pipeline
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.exactness import allowed
from aerogel.compiler.pipeline import Context, run_passes
from aerogel.compiler.rules import default as default_rules
from aerogel.transform.tune import with_rules
from compiler.programs_of import traced

FEW, MANY = 32, 96
SLACK = 1.25  # over the growth of the program
SMALLEST = 10_000  # calls: a pass that takes fewer for many parts is not looked at
W, B, X = np.ones((8, 8), np.float32) / 8, np.ones(8, np.float32), np.ones((4, 8), np.float32)


def layers(parts: int) -> Callable[..., Any]:
    """Of a network, no two alike, each with a function that has a derivative of its own."""

    def f(w: Any, b: Any, x: Any) -> Any:
        for i in range(parts):
            x = jax.nn.relu(x @ w + b * (0.5 + i))
            x = x / (1.0 + jnp.max(x, axis=-1, keepdims=True))
        return jnp.mean(x)

    return f


def loops(parts: int) -> Callable[..., Any]:
    """Scans whose outputs are reduced, one after the other."""

    def f(w: Any, b: Any, x: Any) -> Any:
        total = jnp.zeros(())
        for i in range(parts // 2):

            def body(c: Any, _: Any, i: int = i) -> Any:
                c = jnp.tanh(c @ w + b * (0.5 + i))
                return c, c * c

            x, ys = lax.scan(body, x, None, length=8)
            total = total + jnp.mean(ys) - jnp.max(x)
        return total

    return f


def gradients(parts: int) -> Callable[..., Any]:
    """Those of a residual network with a loop in each layer."""

    def loss(w: Any, b: Any, x: Any) -> Any:
        for i in range(parts // 4):
            x = x + lax.scan(lambda c, _, i=i: (jnp.tanh(c @ w + b * (0.5 + i)), None), x, None, length=8)[0]
        return jnp.mean(x)

    return jax.grad(loss, argnums=(0, 1))


def products(parts: int) -> Callable[..., Any]:
    """Of matrices with vectors under two `vmap`s, batches in another order every time."""

    def f(w: Any, b: Any, x: Any) -> Any:
        x = jnp.stack([x, x + 1.0, x + 2.0], 1)
        for i in range(parts):
            inner = jax.vmap(lambda w, x: w @ x, (None, 0))
            x = jnp.tanh(jax.vmap(inner, (None, i % 2), i % 2)(w, x) + b * (0.5 + i))
        return jnp.mean(x)

    return f


def bodies(parts: int) -> Callable[..., Any]:
    """One loop of a long body."""

    def f(w: Any, b: Any, x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            for i in range(parts):
                c = jnp.tanh(c @ w + b * (0.5 + i)) * (0.3 + i)
            return c, c * c

        return jnp.mean(lax.scan(body, x, None, length=8)[1])

    return f


def depths(parts: int) -> Callable[..., Any]:
    """Branches in branches."""

    def f(w: Any, b: Any, x: Any) -> Any:
        def level(x: Any, k: int) -> Any:
            if k == parts // 8:
                return jnp.sin(x)
            y = jnp.tanh(x @ w + b * k)
            return lax.cond(y.sum() > 0, lambda y: level(y, k + 1) + 1.0, lambda y: jnp.cos(y) * k, y)

        return level(x, 0)

    return f


def calls(program: ClosedJaxpr, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many Python functions each pass calls."""
    found: Counter[str] = Counter()
    whole = pipeline.attempt

    def attempt(step: str, *rest: Any) -> Any:
        def count(_: Any, event: str, __: Any) -> None:
            if event == "call":
                found[step] += 1

        sys.setprofile(count)
        try:
            return whole(step, *rest)
        finally:
            sys.setprofile(None)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "attempt", attempt)
        patch.setenv("AEROGEL_PASS_SECONDS", "600")  # counting takes longer than what is counted
        run_passes(program, with_rules(default_rules, DEFAULT_PASSES), Context(allowed("fast"), "cpu"), "f")
    return found


@pytest.mark.parametrize("make", [layers, loops, gradients, products, bodies, depths], ids=lambda make: make.__name__)
def test_every_pass_is_linear(make: Callable[[int], Callable[..., Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the parts take no pass more than three times the calls, and a quarter."""
    programs = [traced(make(parts), W, B, X) for parts in (FEW, FEW, MANY)]
    _, few, many = (calls(program, monkeypatch) for program in programs)  # the first fills caches
    growth = MANY / FEW
    steep = {name: (few[name], n) for name, n in many.items() if n > SMALLEST and n > SLACK * growth * few[name]}
    assert not steep, "calls for few parts and for many"
