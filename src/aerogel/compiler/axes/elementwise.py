"""Primitives that work entry by entry on equal shapes.

In the programs of jax 0.10.2 an operand may also have rank 0, or a unit dimension where the result has a larger one
(`vmap` of a binary operation makes them): such an operand does not vary along the axis.
"""

from collections.abc import Mapping

from ..._jax import JaxprEqn
from .answer import Axis, Mapped, No
from .entry import Entry
from .rebind import rebind, shape_of

NAMES = (
    # arithmetic
    "abs add add_any ceil clamp div floor integer_pow max min mul mulhi neg nextafter one_minus_square pow rem round "
    "sign square sub "
    # roots, exponentials, trigonometry
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh exp exp2 expm1 log log1p log2 logistic rsqrt sin sinh sqrt "
    "tan tanh "
    # special functions
    "bessel_i0e bessel_i1e digamma erf erf_inv erfc igamma igamma_grad_a igammac lgamma polygamma "
    "regularized_incomplete_beta zeta "
    # comparison, choice, logic, bits
    "eq eq_to ge gt is_finite le le_to lt lt_to ne select_n and not or xor clz population_count shift_left "
    "shift_right_arithmetic shift_right_logical "
    # types and complex numbers
    "complex conj convert_element_type imag real reduce_precision "
    # identities (`name` is jax.ad_checkpoint.checkpoint_name)
    "copy name stop_gradient "
    # counter-based random bits: four words in, two words out
    "threefry2x32"
).split()


def _along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int) -> Mapped | No:
    axis = _only(ins)
    if axis is None:
        return No(f"the axis stands in two different places of `{eqn.primitive.name}`")
    answer = _mapped(eqn, axis)
    for position in ins:
        if answer.ins[position] is None:
            return No(f"`{eqn.primitive.name}` broadcasts the unit dimension {axis.dim} that holds the axis")
    return answer


def _along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    axis = _only(outs)
    if axis is None:
        return No(f"the axis stands in two different places of `{eqn.primitive.name}`")
    return _mapped(eqn, axis)


def _only(axes: Mapping[int, Axis]) -> Axis | None:
    first, *others = axes.values()
    return None if any(other != first for other in others) else first


def _mapped(eqn: JaxprEqn, axis: Axis) -> Mapped:
    size = shape_of(eqn.outvars[0])[axis.dim]
    ins = []
    for atom in eqn.invars:
        shape = shape_of(atom)
        # A unit dimension beside a larger one is broadcast; beside another unit dimension it is the axis itself.
        ins.append(axis if shape and shape[axis.dim] == size else None)
    return Mapped(tuple(ins), (axis,) * len(eqn.outvars), rebind(eqn))


ELEMENTWISE = Entry(_along, _along_output)
ENTRIES = dict.fromkeys(NAMES, ELEMENTWISE)
