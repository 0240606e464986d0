"""The optimiser: `ag.optimize` keeps the function's type, `ag.explain` gives a report."""

from typing import assert_type

import jax
from values import X

import aerogel as ag
from aerogel.compiler import Report


@ag.optimize
def double(x: jax.Array, times: int = 1) -> jax.Array:
    return 2 * times * x


x = X
assert_type(double(x, times=2), jax.Array)
double("x")  # pyright: ignore[reportArgumentType]
assert_type(ag.explain(double)(x), Report)
ag.explain(double, static_argnums=1)(x, 2)
assert_type(ag.verify(double)(x), jax.Array)
ag.optimize(3)  # pyright: ignore[reportArgumentType]
assert_type(str(ag.summary({"x": x})), str)
