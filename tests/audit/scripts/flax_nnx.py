# ruff: noqa: D103, T201
"""Flax NNX: `nnx.jit` as a decorator and with arguments, `nnx.value_and_grad`, a state that is updated in place."""

import jax.numpy as jnp
import optax
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(4, 8, rngs=rngs)
        self.outer = nnx.Linear(8, 1, rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.outer(nnx.relu(self.inner(x)))


@nnx.jit
def train_step(model, optimiser, x):
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
    optimiser.update(model, grads)
    return loss


@nnx.jit(static_argnames="scale")
def predict(model, x, scale):
    return model(x) * scale


model = Model(nnx.Rngs(0))
optimiser = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
x = jnp.ones((5, 4))
for _ in range(3):
    print(f"{train_step(model, optimiser, x):.4f}")
print(predict(model, x, scale=2).shape, int(model.calls[...]))
