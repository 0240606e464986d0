# ruff: noqa: D103, T201
"""NumPyro: NUTS through `MCMC.run`, which jits inside the library."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


mcmc = MCMC(NUTS(model), num_warmup=20, num_samples=20, progress_bar=False)
mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]))
print(mcmc.get_samples()["mu"].shape)
