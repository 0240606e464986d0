"""Loops and branches: the carry goes in and comes out with one type."""

from typing import Any, assert_type

import jax
from values import X

import aerogel as ag

Carry = tuple[jax.Array, str]


def step(carry: Carry, x: jax.Array) -> tuple[Carry, jax.Array]:
    return (carry[0] + x, carry[1]), x


def goes_on(carry: Carry) -> jax.Array:
    return carry[0] < 3


def double(carry: Carry) -> Carry:
    return 2 * carry[0], carry[1]


def count(i: Any, carry: Carry) -> Carry:
    return carry[0] + i, carry[1]


start: Carry = X, "name"
assert_type(ag.scan(step, start, X), tuple[Carry, jax.Array])
assert_type(ag.while_loop(goes_on, double, start), Carry)
assert_type(ag.fori_loop(0, 3, count, start), Carry)
ag.while_loop(goes_on, step, start)  # pyright: ignore[reportArgumentType]
ag.scan(step, 3, X)  # pyright: ignore[reportArgumentType]

assert_type(ag.cond(True, double, double, start), Carry)
assert_type(ag.switch(1, [double, double], start), Carry)
ag.cond(True, double, double)  # pyright: ignore[reportArgumentType]
ag.switch(1, double, start)  # pyright: ignore[reportArgumentType]
