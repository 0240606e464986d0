"""Scatters that write a function of what stands there, as `x.at[i].apply(f)` does: a `scatter` like others by name.

They are linear in nothing, zeros do not stay zeros, and what is given to them as an update is not read.
"""

from aerogel._jax import JaxprEqn


def applies_function(eqn: JaxprEqn) -> bool:
    """Whether a `scatter` applies a function to entries of its first operand, and writes no update."""
    return eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is not None
