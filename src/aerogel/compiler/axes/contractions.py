"""`dot_general` and convolutions: batch and free dimensions carry an axis, contracted ones are summed over."""

from typing import Any

import numpy as np
from jax import lax

from ..._jax import JaxprEqn
from . import monoid
from .accumulate import accumulated, exactly
from .answer import Reduced
from .entry import Entry
from .labels import Axes, Labels, labelled
from .rebind import bind, shape_of


def _dot_general(eqn: JaxprEqn) -> Labels:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    lhs_rank, rhs_rank = len(shape_of(eqn.invars[0])), len(shape_of(eqn.invars[1]))
    # A dimension of the left operand is its own label; those of the right come after.
    rhs = {right: left for left, right in zip((*lhs_contract, *lhs_batch), (*rhs_contract, *rhs_batch), strict=True)}
    rhs_dims = tuple(rhs.get(d, lhs_rank + d) for d in range(rhs_rank))
    lhs_free = [d for d in range(lhs_rank) if d not in lhs_contract and d not in lhs_batch]
    rhs_free = [lhs_rank + d for d in range(rhs_rank) if d not in rhs]
    return Labels((tuple(range(lhs_rank)), rhs_dims), ((*lhs_batch, *lhs_free, *rhs_free),))


def _conv_general_dilated(eqn: JaxprEqn) -> Labels:
    numbers, rank = eqn.params["dimension_numbers"], len(shape_of(eqn.invars[0]))
    batch_label, feature_label, contracted = 0, 1, 2
    lhs: list[int | None] = [None] * rank
    rhs: list[int | None] = [None] * rank
    out: list[int | None] = [None] * rank
    grouped, batched = eqn.params["feature_group_count"] != 1, eqn.params["batch_group_count"] != 1
    if not batched:
        lhs[numbers.lhs_spec[0]] = out[numbers.out_spec[0]] = batch_label
    if not batched and not grouped:
        rhs[numbers.rhs_spec[0]] = out[numbers.out_spec[1]] = feature_label
        lhs[numbers.lhs_spec[1]] = rhs[numbers.rhs_spec[1]] = contracted
    return Labels((tuple(lhs), tuple(rhs)), (tuple(out),))


def _contracted(eqn: JaxprEqn, ins: Axes) -> Reduced:
    # A dot algorithm fixes its own accumulator, and its result type with it.
    if isinstance(eqn.params["precision"], lax.DotAlgorithm | lax.DotAlgorithmPreset):
        return exactly(eqn, ins, monoid.ADD)
    # The products of booleans are ands, their sum is an or.
    over = monoid.OR if eqn.outvars[0].aval.dtype == np.bool_ else monoid.ADD

    def partial(inputs: list[Any], dtype: Any) -> Any:
        params = eqn.params | {"preferred_element_type": dtype}
        if eqn.primitive.name == "dot_general":
            inputs, params = _without_one_step(inputs, params, ins)
        return bind(eqn, inputs, params)[0]

    return accumulated(eqn, ins, over, partial)


def _without_one_step(inputs: list[Any], params: dict[str, Any], ins: Axes) -> tuple[list[Any], dict[str, Any]]:
    """The product without its mapped dimension, where that is of length one and others are contracted too.

    With two contracted dimensions XLA transposes an operand that one product could read as it is.
    """
    contract, batch = params["dimension_numbers"]
    dims = [axis.dim for axis in ins if axis is not None and axis.is_plain]
    if len(dims) != 2 or len(contract[0]) < 2 or any(x.shape[d] != 1 for x, d in zip(inputs, dims, strict=True)):
        return inputs, params

    def without(kept: Any) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(d - (d > gone) for d in ds if d != gone) for ds, gone in zip(kept, dims, strict=True))

    numbers = without(contract), without(batch)
    return [lax.squeeze(x, [d]) for x, d in zip(inputs, dims, strict=True)], params | {"dimension_numbers": numbers}


ENTRIES: dict[str, Entry] = {
    "dot_general": labelled(_dot_general, reduced=_contracted),
    "conv_general_dilated": labelled(_conv_general_dilated, reduced=_contracted),
}
