"""Sums over the axis of a `vmap` that has a name: `vmap(lambda x: lax.psum(x, "batch"), axis_name="batch")`.

Under `vmap` such a `psum` is a sum over a dimension, and no device takes part; JAX writes it as a collective all the
same, through which no pass sees.
"""

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import JaxprEqn

from ..program import Builder

REDUCTIONS = {"psum": lax.reduce_sum, "pmax": lax.reduce_max, "pmin": lax.reduce_min}


def reduced_here(eqn: JaxprEqn) -> JaxprEqn:
    """A collective over dimensions alone as the reduction that JAX lowers it to; others as they are."""
    reduction = REDUCTIONS.get(eqn.primitive.name)
    if reduction is None or len(eqn.invars) != 1 or eqn.params.get("axis_index_groups") is not None:
        return eqn
    axes, aval = eqn.params["axes"], eqn.outvars[0].aval
    if not all(isinstance(axis, int | np.integer) for axis in axes) or aval.dtype == np.bool_:
        return eqn
    if _jax.explicit_mesh(aval):
        return eqn
    builder = Builder(eqn)
    builder.call(lambda x: reduction(x, [int(axis) for axis in axes]), eqn.invars[0])
    (one,) = builder.eqns or [eqn]
    return one.replace(outvars=eqn.outvars)
