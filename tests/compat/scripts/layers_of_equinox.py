import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from equinox import nn


class Net(eqx.Module):
    mlp: nn.MLP
    norm: nn.LayerNorm
    drop: nn.Dropout

    def __init__(self, key):
        self.mlp = nn.MLP(3, 2, 4, 1, key=key)
        self.norm = nn.LayerNorm(3)
        self.drop = nn.Dropout(0.5)

    def __call__(self, x, key=None):
        return self.drop(self.mlp(self.norm(x)), key=key)


@eqx.filter_jit
def step(model, state, x):
    loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
    updates, state = optimizer.update(grads, state, model)
    return eqx.apply_updates(model, updates), state, loss


model = eqx.tree_inference(Net(jax.random.key(0)), True)
optimizer = optax.sgd(0.1)
state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
x = jax.random.normal(jax.random.key(1), (5, 3))
for _ in range(3):
    model, state, loss = step(model, state, x)
    print(f"{loss:.5f}")
model = eqx.tree_at(lambda m: m.mlp.layers[0].weight, model, replace_fn=jnp.zeros_like)
print(model(x[0]).round(4))
