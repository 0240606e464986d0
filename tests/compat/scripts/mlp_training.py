import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Linear(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    out_size: int = eqx.field(static=True)

    def __init__(self, in_size, out_size, key):
        self.weight = jax.random.normal(key, (out_size, in_size)) / in_size**0.5
        self.bias = jnp.zeros(out_size)
        self.out_size = out_size

    def __call__(self, x):
        return self.weight @ x + self.bias


class MLP(eqx.Module):
    layers: list
    activation: callable
    scale: float = 2.0

    def __init__(self, sizes, key, activation=jax.nn.relu):
        keys = jax.random.split(key, len(sizes))
        self.layers = [Linear(a, b, k) for a, b, k in zip(sizes, sizes[1:], keys, strict=False)]
        self.activation = activation

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.scale * self.layers[-1](x)


@eqx.filter_value_and_grad(has_aux=True)
def loss_fn(model, x, y):
    prediction = jax.vmap(model)(x)
    return jnp.mean((prediction - y) ** 2), {"largest": jnp.max(prediction), "name": "mse"}


@eqx.filter_jit
def make_step(model, opt_state, x, y, verbose):
    if verbose:  # a number of Python's stays one
        print("traced")
    (loss, aux), grads = loss_fn(model, x, y)
    updates, opt_state = optimizer.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss, aux, 3


model = MLP([2, 8, 8, 1], jax.random.key(0))
optimizer = optax.adam(1e-2)
opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
x = jax.random.normal(jax.random.key(1), (16, 2))
y = jnp.sum(x, axis=1, keepdims=True)
for step in range(5):
    model, opt_state, loss, aux, three = make_step(model, opt_state, x, y, True)
    print(step, f"{loss:.5f} {aux['largest']:.5f}", aux["name"], type(three).__name__)

model, *_ = make_step(model, opt_state, x, y, False)
print([tuple(leaf.shape) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array))])
print(eqx.filter_jit(model.__call__)(x[0]).round(4), eqx.filter_jit(model.layers[0].__call__)(x[0]).shape)
grads = eqx.filter_grad(lambda m: m(x[0]).sum())(model)
print(f"{grads.layers[0].weight.sum():.4f}")
