"""Cost of a whole program: the figures that do not depend on the machine, and the time that does."""

from dataclasses import replace
from typing import Any

import jax

from .account import Cost, jaxpr_cost
from .calibrated import machine
from .seconds import jaxpr_seconds


def program_cost(jaxpr: Any, *, seconds: bool = False) -> Cost:
    """Cost of a jaxpr, open or closed. Linear in its size; remembered (weakly) for as long as the jaxpr lives.

    With `seconds`, also the estimated time on the platform that JAX uses by default.

    >>> import jax, jax.numpy as jnp
    >>> program_cost(jax.make_jaxpr(lambda x: jnp.sum(x * 2.0 + 1.0))(jnp.ones(1000)))
    Cost(flops=2999, bytes_moved=4004, peak_bytes=4, seconds=None)
    """
    cost = jaxpr_cost(jaxpr)
    return replace(cost, seconds=jaxpr_seconds(jaxpr, machine(jax.default_backend()))) if seconds else cost
