import equinox as eqx
import jax
import jax.numpy as jnp


class Net(eqx.Module):
    weight: jax.Array
    act: callable
    power: int

    def __init__(self, key, power=2):
        self.weight = jax.random.normal(key, (2, 3))
        self.act = jnp.tanh
        self.power = power

    def __call__(self, x, how=None):
        return self.act(self.weight @ x) ** self.power


keys = jax.random.split(jax.random.key(0), 4)
ensemble = eqx.filter_vmap(Net)(keys)
print(ensemble.weight.shape, ensemble.power)


@eqx.filter_vmap(in_axes=(eqx.if_array(0), None))
def same_data(model, x):
    return model(x)


@eqx.filter_jit
@eqx.filter_vmap
def other_data(model, x, name):
    return {"out": model(x), "name": name}


print(same_data(ensemble, jnp.arange(3.0)).round(4))
found = other_data(ensemble, jnp.ones((4, 3)), "n")
print(found["out"].round(4), found["name"])
print(eqx.filter_vmap(lambda x, y: x * y, in_axes=(1, None), out_axes=1)(jnp.arange(6.0).reshape(2, 3), 3))
print(eqx.filter_vmap(lambda x, y: (x + y, y), in_axes={"y": None}, out_axes=(0, None))(jnp.arange(3), jnp.ones(2)))
print(eqx.filter_vmap(lambda: jnp.ones(2), axis_size=3)().shape)
try:
    eqx.filter_vmap(lambda x: x, in_axes={"z": 0})(jnp.ones(2))
except ValueError:
    print("no such argument")
