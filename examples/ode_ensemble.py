"""The climate of the Lorenz-63 system: statistics over the trajectories of an ensemble.

Integrates the chaotic Lorenz equations from many initial states with a Runge-Kutta scheme (`lax.scan` collects the
trajectory), then asks for statistics over members and time: mean, variance and maximum of `z`, the share of time in
the right lobe, the spread of the members' own time means, and the mean of an observable (the rate of dissipation).
One compiled function, called for several values of the Rayleigh number `rho`.

    python examples/ode_ensemble.py
    aerogel run --compare examples/ode_ensemble.py
"""

import argparse
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

SIGMA, BETA = 10.0, 8.0 / 3.0


class State(NamedTuple):
    x: jax.Array
    y: jax.Array
    z: jax.Array


def lorenz(state, rho):
    x, y, z = state
    return State(SIGMA * (y - x), x * (rho - z) - y, x * y - BETA * z)


def rk4_step(state, rho, dt):
    def shifted(slope, h):
        return jax.tree.map(lambda s, k: s + h * k, state, slope)

    k1 = lorenz(state, rho)
    k2 = lorenz(shifted(k1, dt / 2), rho)
    k3 = lorenz(shifted(k2, dt / 2), rho)
    k4 = lorenz(shifted(k3, dt), rho)
    return jax.tree.map(lambda s, a, b, c, d: s + dt / 6 * (a + 2 * b + 2 * c + d), state, k1, k2, k3, k4)


def simulate(initial, rho, dt, steps):
    """States after each step, stacked over time: arrays of shape `[steps, members]`."""

    def step(state, _):
        state = rk4_step(state, rho, dt)
        return state, state

    return lax.scan(step, initial, None, length=steps)


def spin_up(initial, rho, dt, steps):
    """The state after `steps` steps, on the attractor whatever `initial` was."""
    final, _ = simulate(initial, rho, dt, steps)
    return final


@partial(jax.jit, static_argnames="steps")
def climate(initial, rho, dt, steps):
    _, path = simulate(spin_up(initial, rho, dt, steps // 4), rho, dt, steps)
    x, y, z = path
    return {
        "mean z": jnp.mean(z),
        "variance of z": jnp.var(z),
        "largest z": jnp.max(z),
        "share of time with x > 0": jnp.mean(x > 0),
        "spread of the members' mean z": jnp.std(jnp.mean(z, axis=0)),
        "mean dissipation": jnp.mean(SIGMA * x**2 + y**2 + BETA * z**2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--dt", type=float, default=0.01)
    parser.add_argument("--rho", type=float, nargs="+", default=[26.0, 28.0, 32.0, 40.0])
    args = parser.parse_args()

    keys = jax.random.split(jax.random.key(0), 3)
    initial = State(*(10 * jax.random.normal(key, (args.members,)) for key in keys))
    initial = initial._replace(z=initial.z + 25)

    print(f"{args.members} members, {args.steps} steps of {args.dt}")
    for rho in args.rho:
        print(f"rho = {rho:g}")
        for name, value in climate(initial, rho, args.dt, args.steps).items():
            print(f"  {name:<30} {float(value):10.4f}")


if __name__ == "__main__":
    main()
