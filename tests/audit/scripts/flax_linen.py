# ruff: noqa: D103, T201
"""Flax Linen: `jax.jit` of bound methods and of closures, and the lifted `nn.jit`."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Block(nn.Module):
    features: int

    @nn.jit
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(self.features)(x))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(Block(8)(x))


net = Net()
x = jnp.ones((5, 4))
variables = jax.jit(net.init)(jax.random.key(0), x)


@jax.jit
def train_step(variables, x):
    grads = jax.grad(lambda v: jnp.mean(net.apply(v, x) ** 2))(variables)
    return jax.tree.map(lambda v, g: v - 0.1 * g, variables, grads)


for _ in range(3):
    variables = train_step(variables, x)
    print(f"{jnp.mean(net.apply(variables, x) ** 2):.4f}")
