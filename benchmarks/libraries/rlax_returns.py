"""rlax: advantages, V-trace and distributional double Q-learning, over 32 trajectories."""

import jax
import jax.numpy as jnp
import rlax

rewards = jax.random.normal(jax.random.key(0), (32, 64))
discounts = jnp.full((32, 64), 0.99)
values = jax.random.normal(jax.random.key(1), (32, 65))
atoms = jnp.linspace(-1, 1, 51)
logits = jax.random.normal(jax.random.key(2), (32, 4, 51))
selectors = jax.random.normal(jax.random.key(3), (32, 4))


@jax.jit
def advantages(rewards, discounts, values):
    one = lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, 0.95, v)  # noqa: E731
    return jax.vmap(one)(rewards, discounts, values)


@jax.jit
def v_trace(rewards, discounts, values):
    one = lambda r, d, v: rlax.vtrace(v[:-1], v[1:], r, d, jnp.exp(0.1 * r))  # noqa: E731
    return jax.vmap(one)(rewards, discounts, values)


@jax.jit
def double_q(logits, selectors):
    one = lambda q, s: rlax.categorical_double_q_learning(atoms, q, 1, 0.3, 0.99, atoms, q, s)  # noqa: E731
    return jax.vmap(one)(logits, selectors)


print("advantages", advantages(rewards, discounts, values).sum())
print("V-trace", v_trace(rewards, discounts, values).sum())
print("double Q", double_q(logits, selectors).mean())
