"""Rows that are put together one by one: XLA makes them in the kernel that reads them."""

from aerogel._jax import JaxprEqn

AXES = {"concatenate": "dimension", "stack": "axis"}  # each with the parameter that says along which axis


def joined_axis(eqn: JaxprEqn) -> int | None:
    """The axis along which an equation puts its operands together, each a single row; None for any other.

    Of operands with several rows XLA finds each entry by a search: a minimum of 20 in two took 15 times as long as one
    that reads them from memory.
    """
    if eqn.primitive.name not in AXES:
        return None
    axis = eqn.params[AXES[eqn.primitive.name]]
    single = eqn.primitive.name == "stack" or all(x.aval.shape[axis] == 1 for x in eqn.invars)
    return axis if single else None
