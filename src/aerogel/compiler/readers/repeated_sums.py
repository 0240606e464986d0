"""Sums along what is repeated: one entry, times their number.

XLA's CPU library adds some numbers up too often, others in each run, where it sums over a repeated axis and another one
at once, as of `jnp.sum(jnp.broadcast_to(x, (5, 200, 150)), (0, 2))` (jaxlib 0.10.2, two cores: wrong in half of the
runs, by up to 0.8 of the sum).
"""

from aerogel._jax import Atom, JaxprEqn

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import shape_of
from ..level import Level
from ..program import is_var

DEEPEST = 32  # equations that are seen through


def repeated_axes(level: Level, eqn: JaxprEqn) -> tuple[int, ...]:
    """The axes of a sum along which what it adds up is repeated, if it goes along others, too."""
    if eqn.primitive.name != "reduce_sum" or eqn.params.get("out_sharding") is not None:
        return ()
    (x,), shape = eqn.invars, shape_of(eqn.invars[0])
    axes = [axis for axis in eqn.params["axes"] if shape[axis] > 1]
    repeated = [axis for axis in axes if _repeats(level, x, axis, [DEEPEST])] if len(axes) > 1 else []
    return tuple(repeated) if len(repeated) < len(axes) else ()


def _repeats(level: Level, x: Atom, axis: int, left: list[int]) -> bool:
    """Whether a value is the same at each index of an axis: made of broadcasts, entry by entry."""
    left[0] -= 1
    eqn = level.maker(x)
    if not is_var(x) or eqn is None or left[0] < 0:
        return not shape_of(x)
    if eqn.primitive.name == "broadcast_in_dim":
        (source,), dims = eqn.invars, list(eqn.params["broadcast_dimensions"])
        if axis not in dims or shape_of(source)[dims.index(axis)] == 1:
            return True
        return _repeats(level, source, dims.index(axis), left)
    if eqn.primitive.name not in ELEMENTWISE or eqn.effects or len(eqn.outvars) != 1:
        return False
    return all(not shape_of(y) or _repeats(level, y, axis, left) for y in eqn.invars)
