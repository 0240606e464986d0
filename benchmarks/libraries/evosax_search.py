"""evosax: a hundred generations of CMA-ES and of differential evolution, in one scan each."""

import jax
import jax.numpy as jnp
from evosax.algorithms import CMA_ES, DifferentialEvolution


def rastrigin(x):
    return jnp.sum((x - 0.5) ** 2 + 10 * (1 - jnp.cos(2 * jnp.pi * (x - 0.5))), -1)


def search(strategy, state):
    params = strategy.default_params

    @jax.jit
    def run(key, state):
        def generation(state, key):
            ask, tell = jax.random.split(key)
            x, state = strategy.ask(ask, state, params)
            state, _ = strategy.tell(tell, x, rastrigin(x), state, params)
            return state, rastrigin(x).min()

        return jax.lax.scan(generation, state, jax.random.split(key, 100))[1]

    return run(jax.random.key(1), state)[-1]


key = jax.random.key(0)
adapting = CMA_ES(population_size=64, solution=jnp.zeros(10))
print("CMA-ES", search(adapting, adapting.init(key, jnp.zeros(10), adapting.default_params)))
evolving = DifferentialEvolution(population_size=64, solution=jnp.zeros(10))
population = jax.random.normal(key, (64, 10))
start = evolving.init(key, population, rastrigin(population), evolving.default_params)
print("differential evolution", search(evolving, start))
