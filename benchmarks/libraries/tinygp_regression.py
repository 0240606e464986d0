"""tinygp: the likelihood of 400 points fitted by Adam, and a prediction."""

import jax
import jax.numpy as jnp
import optax
from tinygp import GaussianProcess, kernels

jax.config.update("jax_enable_x64", True)
x = jnp.linspace(0, 10, 400)
y = jnp.sin(x) + 0.1 * jax.random.normal(jax.random.key(0), x.shape)
optimizer = optax.adam(0.05)


def process(p):
    smooth = jnp.exp(p["smooth"]) * kernels.ExpSquared(jnp.exp(p["length"]))
    rough = jnp.exp(p["rough"]) * kernels.Matern32(jnp.exp(p["rough_length"]))
    return GaussianProcess(smooth + rough, x, diag=jnp.exp(p["noise"]))


@jax.jit
def step(p, state):
    loss, grads = jax.value_and_grad(lambda p: -process(p).log_probability(y))(p)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(p, updates), state, loss


@jax.jit
def predict(p, at):
    found = process(p).condition(y, at).gp
    return found.mean, found.variance


p = {name: jnp.array(0.1) for name in ("smooth", "length", "rough", "rough_length")} | {"noise": jnp.array(-3.0)}
state = optimizer.init(p)
for _ in range(20):
    p, state, loss = step(p, state)
print("loss", loss)
print("mean", predict(p, jnp.linspace(0, 12, 200))[0].mean())
