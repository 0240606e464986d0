# ruff: noqa: D103, T201
"""BlackJAX: the kernel's step under `jax.jit`, and a scan over steps."""

import blackjax
import jax
import jax.numpy as jnp


def log_density(x):
    return -0.5 * jnp.sum(x**2)


hmc = blackjax.hmc(log_density, step_size=0.3, inverse_mass_matrix=jnp.ones(2), num_integration_steps=5)
step = jax.jit(hmc.step)
state = hmc.init(jnp.ones(2))
for key in jax.random.split(jax.random.key(0), 3):
    state, info = step(key, state)
print(state.position.shape, bool(info.is_accepted))


@jax.jit
def sample(key, state):
    _, states = jax.lax.scan(lambda s, k: (hmc.step(k, s)[0],) * 2, state, jax.random.split(key, 20))
    return states.position.mean(0)


print(sample(jax.random.key(1), state).shape)
