"""Rules of loops see them by their parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler import LoopView, Reads, Site, on_loop
from rules.rules_under_test import fired, normal, refusals

X = normal(0, 3)


@on_loop(exactness="bitwise", reason="a few steps need no loop")
def unrolled(loop: LoopView, *, site: Site) -> Any:
    """Every step written out."""
    if loop.length is None or loop.length > 4 or site.in_loop:
        return f"{loop.kind} of {loop.length} steps" + (" in a loop" if site.in_loop else "")
    carry, outputs = loop.init, []
    for k in range(loop.length)[:: -1 if loop.reverse else 1]:
        carry, out = loop.step(carry, [x[k] for x in loop.xs])
        outputs.append(out)
    ordered = outputs[::-1] if loop.reverse else outputs
    return carry, [jnp.stack(row) for row in zip(*ordered, strict=True)]


def body(carry: Any, x: Any) -> Any:
    """A step with two carries, one of them unchanged."""
    c, kept = carry
    return (jnp.sin(c) * x + kept, kept), (c, x + 1)


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap], ids=["plain", "vmap"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_is_put_together_from_its_parts(transform: Any, reverse: bool) -> None:
    """Carries, inputs and outputs are where a loop has them, in either direction and under `vmap`."""
    f = lambda x, k: lax.scan(body, (x, k), jnp.stack([x, 2 * x, 3 * x]), reverse=reverse)  # noqa: E731
    assert fired(transform(f), unrolled, X, X + 1) == 1


def test_before_differentiation() -> None:
    """What a loop rule writes is differentiated."""
    f = lambda x: lax.scan(body, (x, x), jnp.stack([x, x]))[0][0].sum()  # noqa: E731
    g = jax.grad(ag.optimize(f, rules=[unrolled], passes=()))
    np.testing.assert_allclose(jax.jit(g)(X), jax.grad(f)(X), 1e-5)
    assert "scan" not in {eqn.primitive.name for eqn in jax.jit(g).trace(X).jaxpr.eqns}


def test_reasons() -> None:
    """A loop that stays says why; one in another is looked at as well."""
    f = lambda x: lax.fori_loop(0, 9, lambda _, c: lax.fori_loop(0, 2, lambda _, c: jnp.sin(c), c), x)  # noqa: E731
    assert refusals(f, unrolled, X) == ["scan of 9 steps", "scan of 2 steps in a loop"]
    assert refusals(lambda x: lax.while_loop(lambda c: c[0] > 1, jnp.sin, x), unrolled, X) == ["while of None steps"]


def test_what_depends_on_what() -> None:
    """For each result of a step: which constants, carries and inputs it is computed from."""
    seen: list[Any] = []

    @on_loop()
    def look(loop: LoopView) -> Any:
        seen.append((loop.reads, loop.unchanged, len(loop.consts)))
        return "only looked at"

    k = jnp.sin(X)
    f = lambda x: lax.scan(lambda c, x: (c * k, c + x), x, jnp.stack([x, x]))  # noqa: E731
    assert refusals(f, look, X) == ["only looked at"]
    nothing = frozenset[int]()
    one = frozenset((0,))
    assert seen[0] == ((Reads(one, one, nothing), Reads(nothing, one, one)), (), 1)


def test_a_while_by_its_parts() -> None:
    """The test and the step of a `while` are functions."""

    @on_loop(exactness="bitwise")
    def first_apart(loop: LoopView) -> Any:
        if loop.kind != "while":
            return "a scan"
        once, _ = loop.step(loop.init)
        start = [jnp.where(loop.goes_on(loop.init), a, b) for a, b in zip(once, loop.init, strict=True)]
        return lax.while_loop(loop.goes_on, lambda c: loop.step(c)[0], tuple(start)), ()

    limit = jnp.float32(1.5)
    f = lambda x: lax.while_loop(lambda c: jnp.abs(c).sum() > limit, lambda c: c / 2, x)  # noqa: E731
    assert fired(f, first_apart, 10 * X) == 1
