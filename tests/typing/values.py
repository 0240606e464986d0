"""Arrays for the other files: the types of `jax.numpy`'s functions are partly unknown, which is not what is tested."""

import jax

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2,))
W = jax.random.normal(KEY, (2, 2))
