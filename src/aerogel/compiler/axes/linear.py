"""Linearity: in which inputs an equation is linear.

Two questions, because they differ: `mul` is linear in each input while the other stays fixed, but not in both at once;
`add` is linear in both at once, but with one fixed it is only affine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._jax import JaxprEqn, Primitive, primitives
from ..applied import applies_function

# Linear in the one input that holds numbers (the others, if any, are indices).
_ALONE = (
    "neg real imag conj copy name transpose reshape broadcast_in_dim squeeze rev slice dynamic_slice split unstack "
    "tile reduce_sum cumsum reduce_window_sum fft gather select_and_scatter_add select_and_gather_add "
    "convert_element_type"
).split()
# (in each, the others fixed), by input position.
_EACH = {
    "mul": (0, 1),
    "dot_general": (0, 1),
    "conv_general_dilated": (0, 1),
    "div": (0,),
    "triangular_solve": (1,),
    "tridiagonal_solve": (3,),
}
_TOGETHER = {
    "add": (0, 1),
    "sub": (0, 1),
    "add_any": (0, 1),
    "complex": (0, 1),
    "pad": (0, 1),
    "dynamic_update_slice": (0, 1),
    "scatter": (0, 2),
    "scatter-add": (0, 2),
    "scatter-sub": (0, 2),
}
_ALL_TOGETHER = ("concatenate", "stack", "optimization_barrier")


def _by_primitive(names: Mapping[str, tuple[int, ...]]) -> dict[Primitive, tuple[int, ...]]:
    return {primitives[name]: positions for name, positions in names.items() if name in primitives}


_each = _by_primitive({name: (0,) for name in _ALONE} | _EACH)
_together = _by_primitive(_TOGETHER)
_declared: dict[Primitive, tuple[int, ...]] = {}


def linear_in(eqn: JaxprEqn) -> tuple[int, ...]:
    """The positions of the inputs in each of which the equation is linear while all others stay fixed.

    Complex conjugation counts (it is linear over the reals). Integer arithmetic that wraps around counts; rounding to
    a narrower float does too, conversions between floats and integers do not.
    """
    if eqn.primitive in _declared:
        return _declared[eqn.primitive]
    return _each.get(eqn.primitive, ()) if _keeps_linearity(eqn) else ()


def linear_together(eqn: JaxprEqn) -> tuple[int, ...]:
    """The positions of the inputs in which, taken all at once, the equation is linear while the others stay fixed.

    `add` gives (0, 1), `mul` gives () (see `linear_in`), an operation on one input gives what `linear_in` gives.
    """
    if eqn.primitive in _together:
        return () if applies_function(eqn) else _together[eqn.primitive]
    if eqn.primitive.name in _ALL_TOGETHER:
        return tuple(range(len(eqn.invars)))
    if eqn.primitive.name == "select_n":
        return tuple(range(1, len(eqn.invars)))
    if eqn.primitive.name == "custom_linear_solve":  # in its right-hand sides, behind what states the matrix
        return tuple(range(sum(eqn.params["const_lengths"]), len(eqn.invars)))
    alone = linear_in(eqn)
    return alone if len(alone) == 1 else ()


def declare_linear(primitive: Primitive, positions: Sequence[int]) -> None:
    """State that a primitive is linear in each of these inputs."""
    _declared[primitive] = tuple(positions)


def _keeps_linearity(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name == "div":
        return _is_inexact(eqn.outvars[0].aval.dtype)
    if eqn.primitive.name == "convert_element_type":
        before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
        return before == after or (_is_inexact(before) and _is_inexact(after))
    return True


def _is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, np.inexact)
