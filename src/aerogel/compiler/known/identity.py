"""Identity matrices as programs make them: a comparison of two counters."""

from aerogel._jax import Atom, Literal, Var

from ..axes.rebind import shape_of
from ..level import Level


def identity_axes(level: Level, x: Atom) -> tuple[int, int] | None:
    """The two axes of `x` of which each index of the others holds an identity matrix; None if there are none."""
    eqn = level.maker(x)
    if eqn is None:
        return None
    name = eqn.primitive.name
    if name in ("transpose", "broadcast_in_dim"):
        inner = identity_axes(level, eqn.invars[0])
        if inner is None:
            return None
        dims = eqn.params["permutation" if name == "transpose" else "broadcast_dimensions"]
        places = tuple((list(dims).index(i) if name == "transpose" else dims[i]) for i in inner)
        return min(places), max(places)
    if name in ("copy", "stop_gradient") or (name == "convert_element_type" and shape_of(x)):
        return identity_axes(level, eqn.invars[0])
    if name != "eq":
        return None
    counted = [_counter(level, y) for y in eqn.invars]
    shape = shape_of(x)
    if sorted(c for c in counted if c is not None) == [0, 1] and len(shape) == 2 and shape[0] == shape[1]:
        return 0, 1
    return None


def _counter(level: Level, x: Atom) -> int | None:
    """The axis that `x` counts along, from 0."""
    eqn = level.maker(x)
    if eqn is None:
        return None
    if eqn.primitive.name == "add":  # jnp.eye adds its offset, 0
        zeros = [y for y in eqn.invars if isinstance(y, Literal) and not shape_of(y) and y.val == 0]
        rest = [y for y in eqn.invars if isinstance(y, Var)]
        return _counter(level, rest[0]) if len(zeros) == len(rest) == 1 else None
    return eqn.params["dimension"] if eqn.primitive.name == "iota" else None
