"""Bayesian Poisson regression of doctor visits, sampled with NumPyro's No-U-Turn sampler.

Data: the RAND health insurance experiment (statsmodels), 20,190 person-years: how often did a person see a doctor,
given co-payments, income, health and so on? Prints posterior means and deviations next to the maximum likelihood
estimates of statsmodels.

    python examples/numpyro_regression.py
    aerogel run examples/numpyro_regression.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import statsmodels.api as sm
from numpyro.infer import MCMC, NUTS


def model(covariates, visits=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([covariates.shape[1]]).to_event(1))
    with numpyro.plate("people", covariates.shape[0]):
        numpyro.sample("visits", dist.Poisson(jnp.exp(intercept + covariates @ slopes)), obs=visits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--people", type=int, default=20_190, help="how many rows of the data to use")
    args = parser.parse_args()

    data = sm.datasets.randhie.load_pandas()
    every = len(data.endog) // args.people
    raw = data.exog.to_numpy(np.float64)[::every][: args.people]
    visits = data.endog.to_numpy(np.int32)[::every][: args.people]
    covariates = (raw - raw.mean(0)) / raw.std(0)

    sampler = MCMC(NUTS(model), num_warmup=args.warmup, num_samples=args.samples, progress_bar=False)
    sampler.run(jax.random.key(0), jnp.asarray(covariates, jnp.float32), jnp.asarray(visits))
    draws = sampler.get_samples()
    samples = np.concatenate([np.asarray(draws["intercept"])[:, None], np.asarray(draws["slopes"])], axis=1)

    maximum = np.asarray(sm.GLM(visits, sm.add_constant(covariates), family=sm.families.Poisson()).fit().params)
    print(f"{len(visits)} person-years, {args.samples} draws")
    print(f"{'':<12}{'posterior mean':>16}{'deviation':>12}{'maximum likelihood':>20}")
    for i, name in enumerate(["intercept", *data.exog.columns]):
        print(f"{name:<12}{samples[:, i].mean():16.3f}{samples[:, i].std():12.3f}{maximum[i]:20.3f}")


if __name__ == "__main__":
    main()
