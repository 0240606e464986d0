"""`ag.vmap` keeps the arguments; its result is a tree of the same type, with an axis more."""

from typing import assert_type

import jax
from values import W

import aerogel as ag


def scale(x: jax.Array, factor: float) -> jax.Array:
    return factor * x


def batched(x: jax.Array) -> int | None:
    return 0 if x.ndim > 1 else None


xs = W
assert_type(ag.vmap(scale, in_axes=(0, None))(xs, 2.0), jax.Array)
assert_type(ag.vmap(scale, in_axes={"x": 0})(xs, 2.0), jax.Array)
assert_type(ag.vmap(scale, batched, axis_name="batch")(xs, 2.0), jax.Array)
ag.vmap(scale, axis_nam="batch")  # pyright: ignore[reportCallIssue]
ag.vmap(3)  # pyright: ignore[reportArgumentType]
assert_type(ag.eval_shape(scale, xs, 2.0), jax.Array)
program = ag.make_jaxpr(scale)(xs, 2.0)
