import io
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


class Linear(eqx.Module):
    weight: jax.Array
    bias: Any
    activation: Any = jax.nn.relu
    inference: bool = False

    def __call__(self, x):
        y = self.weight @ x
        return self.activation(y if self.bias is None else y + self.bias)


class Net(eqx.Module):
    first: Linear
    layers: tuple
    table: dict

    def __call__(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x * self.table["gain"]


def linear(i):
    return Linear(jax.random.normal(jax.random.key(i), (3, 3)), None if i % 2 else jnp.ones(3))


def show(net):
    print(net(jnp.arange(3.0)).round(4), len(jax.tree.leaves(eqx.filter(net, eqx.is_array))))


net = Net(linear(0), (linear(1), linear(2)), {"gain": jnp.array(2.0)})
show(net)
show(eqx.tree_at(lambda n: n.first.weight, net, jnp.eye(3)))
show(eqx.tree_at(lambda n: (n.first.weight, n.layers[1].bias), net, (jnp.eye(3), jnp.zeros(3))))
show(eqx.tree_at(lambda n: n.layers[0], net, linear(4)))
show(eqx.tree_at(lambda n: n.layers[0].bias, net, jnp.ones(3), is_leaf=lambda x: x is None))
show(eqx.tree_at(lambda n: n.first.bias, net, None))
show(eqx.tree_at(lambda n: n.layers[1].activation, net, jnp.tanh))
show(eqx.tree_at(lambda n: n.table["gain"], net, replace_fn=lambda g: 3 * g))
show(
    eqx.tree_at(lambda n: [x.weight for x in (n.first, *n.layers) if x.bias is not None], net, replace_fn=jnp.negative)
)


def is_linear(x):
    return isinstance(x, Linear)


def weights(n):
    return [x.weight for x in jax.tree.leaves(n, is_leaf=is_linear) if is_linear(x)]


show(eqx.tree_at(weights, net, [0.5 * w for w in weights(net)]))
print(eqx.tree_at(lambda t: t[1]["a"], [1, {"a": 3, "b": (4, 5)}], "new"))
print([layer.inference for layer in eqx.tree_inference(net, True).layers])
try:
    eqx.tree_at(lambda n: jnp.ones(3), net, 1)
except (ValueError, TypeError):
    print("refused")

mask = jax.tree.map(lambda _: False, net)
mask = eqx.tree_at(lambda n: n.layers[0].weight, mask, replace=True)
trained, fixed = eqx.partition(net, mask)
print(len(jax.tree.leaves(eqx.filter(trained, eqx.is_array))), len(jax.tree.leaves(eqx.filter(fixed, eqx.is_array))))
show(eqx.combine(trained, fixed))


@eqx.filter_jit
@eqx.filter_grad
def loss(trained, fixed, x):
    return jnp.sum(eqx.combine(trained, fixed)(x) ** 2)


grads = loss(trained, fixed, jnp.arange(3.0))
print(f"{grads.layers[0].weight.sum():.3f}", grads.first.weight)
print(eqx.tree_equal(net, eqx.combine(trained, fixed)), eqx.tree_equal(net, trained))
print(eqx.filter([1, jnp.ones(2), "a"], eqx.is_array_like, inverse=True, replace="gone"))
print(eqx.partition((1.0, jnp.arange(2), [None]), [True, eqx.is_inexact_array, True][:2] and eqx.is_inexact_array_like))

file = io.BytesIO()
file.write(b"header\n")
eqx.tree_serialise_leaves(file, eqx.filter(net, eqx.is_array))
file.seek(0)
print(file.readline())
like = eqx.filter_eval_shape(lambda: net)
loaded = eqx.tree_deserialise_leaves(file, eqx.filter(net, eqx.is_array))
show(eqx.combine(loaded, net))
try:
    file.seek(7)
    eqx.tree_deserialise_leaves(file, eqx.filter(eqx.tree_at(lambda n: n.first.weight, net, jnp.ones(2)), eqx.is_array))
except RuntimeError:
    print("other shapes")
