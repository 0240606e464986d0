"""A neural ODE as a density: a continuous normalising flow (Chen et al. 2018) of iris petals, solved by Diffrax.

Points are moved from the data to a normal distribution by an ODE whose right side is a small network; how much they
were squeezed on the way gives their density. Held-out log-likelihood, against that of the best normal distribution,
which cannot have two heaps.

    python examples/neural_ode.py
"""

import argparse

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_iris

import aerogel as ag
from aerogel import nn

CENTRE, SCALE = np.array([3.76, 1.2]), np.array([1.76, 0.76])  # of the petals, in centimetres


class Flow(ag.Module):
    field: nn.MLP

    def __call__(self, points):
        """The log-density of each of `points` `[n, 2]`."""

        def moved(time, state, _):
            point, _ = state

            def velocity(point):
                return self.field(jnp.append(point, time))

            return velocity(point), jnp.trace(jax.jacfwd(velocity)(point))

        def one(point):
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(moved), diffrax.Heun(), 0.0, 1.0, 0.1, (point, jnp.zeros(())), max_steps=16
            )
            end, squeezed = (each[0] for each in solution.ys)
            return jax.scipy.stats.norm.logpdf(end).sum() + squeezed

        return jax.vmap(one)(points)


def loss(model, points):
    return -model(points).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    petals = load_iris().data[:, 2:]
    points = jax.random.permutation(jax.random.key(0), jnp.asarray((petals - CENTRE) / SCALE, jnp.float32))
    test, train = points[:50], points[50:]

    model = Flow(nn.MLP(3, 2, args.hidden, 2, jnp.tanh, key=jax.random.key(1)))
    optimizer = ag.Optimizer(optax.adamw(optax.cosine_decay_schedule(1e-2, args.steps), weight_decay=1e-2)).init(model)

    def step(state, key):
        model, optimizer = state
        # Petals were measured to the millimetre: what lies between two marks is as likely.
        noise = jax.random.uniform(key, train.shape, minval=-0.05, maxval=0.05) / SCALE
        value, model, optimizer = optimizer.step(loss)(model, train + noise)
        return (model, optimizer), value

    keys = jax.random.split(jax.random.key(2), args.steps)
    running = ag.loop(step, (model, optimizer), keys, steps_per_call=50)
    for losses in running:
        print(f"step {running.step:4d}  {float(losses.mean()):.3f} nats per flower")

    flow = float(jax.jit(running.state[0])(test).mean())
    normal = jax.scipy.stats.multivariate_normal.logpdf(test, train.mean(0), jnp.cov(train.T))
    print(f"held-out flowers, log-likelihood  {flow:.3f}")
    print(f"the best normal distribution      {float(normal.mean()):.3f}")


if __name__ == "__main__":
    main()
