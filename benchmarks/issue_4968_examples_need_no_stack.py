"""Claim: the examples of JAX issue 4968 cost what its author's fused form costs.

The issue sums (or averages) the stacked output of a scan whose carry is elementwise, over several lengths and batch
sizes. Its author reduces inside the loop by hand. Bounds: at least twice as fast as plain JAX (three times at
`length=16, batch=1_000_000`), memory smaller by `length / 4` at least.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case


def natural(length: int, reduce):
    """Reduce over scan, as in the issue."""

    def f(x):
        return reduce(lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=length)[1])

    return f


def partials(length: int, reduce):
    """Scan over reduction, the issue's own fast form: one partial result per step, then those are reduced."""

    def f(x):
        def body(c, _):
            c = jnp.sin(c)
            return c, reduce(c)

        return reduce(lax.scan(body, x, None, length=length)[1])

    return f


def blocks(length: int, reduce):
    """Sixteen partial results per step: XLA's CPU backend spreads a reduction over cores only where an axis is left."""

    def f(x):
        def body(c, _):
            c = jnp.sin(c)
            return c, reduce(c.reshape(16, -1), axis=1)

        return reduce(lax.scan(body, x, None, length=length)[1])

    return f


def scalar_carry(length: int, reduce):
    """The partial result of each step is added to a scalar carry."""

    def f(x):
        def body(state, _):
            c, total = state
            c = jnp.sin(c)
            return (c, total + jnp.sum(c)), None

        (_, total), _ = lax.scan(body, (x, jnp.zeros((), x.dtype)), None, length=length)
        return total / (length * x.size) if reduce is jnp.mean else total

    return f


def array_carry(length: int, reduce):
    """An accumulator of the carry's shape, reduced once after the loop."""

    def f(x):
        def body(state, _):
            c, total = state
            c = jnp.sin(c)
            return (c, total + c), None

        (_, total), _ = lax.scan(body, (x, jnp.zeros_like(x)), None, length=length)
        return jnp.sum(total) / (length * x.size) if reduce is jnp.mean else jnp.sum(total)

    return f


def case(name: str, length: int, batch: int, reduce, speedup: float) -> Case:
    return Case(
        f"{name}, length {length}, batch {batch}",
        natural(length, reduce),
        {
            "partial per step": partials(length, reduce),
            "16 partials per step": blocks(length, reduce),
            "scalar carry": scalar_carry(length, reduce),
            "array carry": array_carry(length, reduce),
        },
        lambda: (jax.random.uniform(jax.random.key(0), (batch,), minval=0.5, maxval=1.5),),
        grad=(0,),
        bounds=Bounds(speedup=speedup, memory_saving=length / 4),
        notes="jax-ml/jax#4968",
    )


CASES = (
    case("mean", 10, 1_048_576, jnp.mean, 2.0),
    case("sum", 16, 1_000_000, jnp.sum, 3.0),
    case("mean", 100, 131_072, jnp.mean, 2.0),
    case("sum", 1000, 10_000, jnp.sum, 2.0),
)
