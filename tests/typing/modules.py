"""Modules: constructors, fields and methods keep their types.

To checkers every class of a `dataclass_transform` has an `__init__` of its fields unless it writes one: a subclass of a
class with its own `__init__` inherits that in Python, but must repeat it for them.
"""

from collections.abc import Callable
from typing import assert_type

import jax
import jax.numpy as jnp
from values import KEY, W, X

import aerogel as ag


class Linear(ag.Module):
    weight: jax.Array
    bias: jax.Array | None = None
    name: str = ag.field(static=True, default="linear")

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.weight @ x
        return y if self.bias is None else y + self.bias


class Block(ag.Module):
    first: Linear
    layers: list[Linear]
    activation: Callable[[jax.Array], jax.Array]

    def __init__(self, key: jax.Array, *, width: int) -> None:
        self.first = Linear(jax.random.normal(key, (width, width)))
        self.layers = [self.first]
        self.activation = jnp.tanh

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(self.first(x))


class Wide(Block):
    def __init__(self, key: jax.Array, *, width: int) -> None:
        super().__init__(key, width=2 * width)

    def double(self, x: jax.Array) -> jax.Array:
        return 2 * self(x)


linear = Linear(W)
assert_type(linear, Linear)
assert_type(linear.weight, jax.Array)
assert_type(linear.bias, jax.Array | None)
assert_type(linear.name, str)
assert_type(linear(X), jax.Array)
Linear(weight=X, bias=None, name="head")
Linear()  # pyright: ignore[reportCallIssue]
Linear("weight")  # pyright: ignore[reportArgumentType]
Linear(X, wieght=1)  # pyright: ignore[reportCallIssue]

wide = Wide(KEY, width=3)
assert_type(wide, Wide)
assert_type(wide.layers[0].weight, jax.Array)
assert_type(wide.double(X), jax.Array)
Wide(KEY)  # pyright: ignore[reportCallIssue]
assert wide.nothing  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class Shape(ag.Module):
    rank: ag.AbstractField[int]


class Square(Shape):
    rank: int = 2


assert_type(Square().rank, int)

assert_type(ag.tie(wide, "first.bias", "first.weight"), Wide)
assert_type(ag.untie(wide, "first.bias"), Wide)
assert_type(ag.ties(wide), tuple[ag.Tie, ...])
assert_type(ag.count_params(wide), int)


class Inherits(Block):
    pass


Inherits(KEY, width=3)  # pyright: ignore[reportCallIssue]
