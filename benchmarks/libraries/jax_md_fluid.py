"""jax-md: energies, forces and fifty steps of a thermostat for 256 soft spheres in a periodic box."""

import jax
import jax.numpy as jnp
from jax_md import energy, simulate, space

displacement, shift = space.periodic(8.0)
spheres = energy.soft_sphere_pair(displacement)
fluid = jax.random.uniform(jax.random.key(0), (256, 3)) * 8
crystal = jnp.stack(jnp.meshgrid(*[jnp.arange(6) * 1.3] * 3), -1).reshape(-1, 3)

print("energy", jax.jit(spheres)(fluid))
print("forces", jnp.linalg.norm(jax.jit(jax.grad(spheres))(fluid)))
print("Lennard-Jones", jax.jit(energy.lennard_jones_pair(displacement))(crystal))

init, apply = simulate.nvt_nose_hoover(spheres, shift, 1e-3, 0.5)
state = jax.jit(init)(jax.random.key(1), fluid, mass=1.0)


@jax.jit
def run(state):
    return jax.lax.fori_loop(0, 50, lambda _, state: apply(state), state)


print("momenta", run(state).momentum.std())
