"""State: `ag.stateful` gives the result and a model of the same type."""

from typing import assert_type

import jax
from values import X

import aerogel as ag


class Counter(ag.Module):
    count: ag.Variable

    def __call__(self, x: jax.Array) -> jax.Array:
        self.count.set(self.count + 1)
        return x * self.count.value


def run(model: Counter, x: jax.Array) -> jax.Array:
    return model(x)


model = Counter(ag.Variable(0))
assert_type(ag.stateful(run)(model, X), tuple[jax.Array, Counter])
ag.stateful(run)(X, X)  # pyright: ignore[reportArgumentType]
ag.stateful(run)(model)  # pyright: ignore[reportCallIssue]
ag.assign(model, model)
model.count.set()  # pyright: ignore[reportCallIssue]
