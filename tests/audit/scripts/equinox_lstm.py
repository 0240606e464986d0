# ruff: noqa: D103, T201
"""An Equinox cell under `filter_jit`, with `filter_value_and_grad` inside and Optax around it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Model(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(3, 8, key=a)
        self.head = eqx.nn.Linear(8, 1, key=b)

    def __call__(self, xs):
        _, hs = jax.lax.scan(lambda h, x: (self.cell(x, h),) * 2, jnp.zeros(8), xs)
        return jax.vmap(self.head)(hs).mean()


def loss_of(model, xs):
    return jnp.mean(jax.vmap(model)(xs) ** 2)


optimiser = optax.adam(1e-2)


@eqx.filter_jit
def train_step(model, state, xs):
    loss, grads = eqx.filter_value_and_grad(loss_of)(model, xs)
    updates, state = optimiser.update(grads, state)
    return eqx.apply_updates(model, updates), state, loss


@eqx.filter_jit(donate="all")
def predict(xs, model):
    return jax.vmap(model)(xs)


model = Model(jax.random.key(0))
state = optimiser.init(eqx.filter(model, eqx.is_array))
xs = jax.random.normal(jax.random.key(1), (4, 12, 3))
for _ in range(3):
    model, state, loss = train_step(model, state, xs)
    print(f"{loss:.4f}")
print(predict(jnp.copy(xs), model).shape)
