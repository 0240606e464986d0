"""Weighted sums over the rows of square arrays, which XLA's library mistakes for a product of matrices.

XLA's CPU backend hands a sum, with what is computed entry by entry before it, to a library (`__ynn_fusion`, jaxlib
0.10.2). A sum of products with one weight a row, `(jnp.exp(-d) * w[:, None]).sum(0)`, takes it as long as a plain sum,
but for arrays with as many rows as columns: 5 times as long for 1,000, 15 for 1,500, 150 for 3,000. With any operation
behind the product it is as fast as others. -0.0 is what may be added to any number, and to nan, without changing it;
it stands behind a barrier, as XLA would drop it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import JaxprEqn, Var

from ..axes.rebind import dtype_name
from ..level import Edit, Level
from ..program import Builder, is_var
from .own_broadcasts import TAKEN, TYPES
from .sums_of_rows import missing

# Of less there is nothing to gain: 400 x 400 takes 0.6 of the time, batches of 500 x 500 1.04, of 1,000 x 1,000 0.2.
LEAST_SIDE = 512
# What the library sees as a product, and what it looks through.
PRODUCTS = ("mul", "div")
THROUGH = ("convert_element_type", "neg")
VIEWS = frozenset("broadcast_in_dim reshape squeeze expand_dims".split())


def square_sums(level: Level) -> Iterator[int]:
    """The places of such sums. Float32 and bfloat16: in float64 the library takes no longer for them."""
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name == "reduce_sum" and dtype_name(eqn.invars[0]) in TYPES and _is_square(eqn):
            product = _product(level, eqn)
            if product is not None and _is_weighted(level, product, eqn.params["axes"][0]):
                yield place


def _is_square(eqn: JaxprEqn) -> bool:
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    if aval.dtype.itemsize > 4 or tuple(axes) != (aval.ndim - 2,):
        return False
    return LEAST_SIDE <= aval.shape[-2] == aval.shape[-1]


def _product(level: Level, eqn: JaxprEqn) -> JaxprEqn | None:
    """The product that a sum is of, if nobody else reads it."""
    while True:
        x = eqn.invars[0]
        if not is_var(x) or len(level.readers(x)) != 1 or (maker := level.maker(x)) is None:
            return None
        if maker.primitive.name in PRODUCTS:
            return maker
        if maker.primitive.name not in THROUGH:
            return None
        eqn = maker


def _is_weighted(level: Level, product: JaxprEqn, axis: int) -> bool:
    """Whether one factor is a number for each row, and the other is computed within the sum."""
    last = product.outvars[0].aval.ndim - 1
    for x, repeats in zip((x for x in product.invars if x.aval.shape), missing(level, product), strict=True):
        other = next((y for y in product.invars if y is not x), None)
        if last in repeats and axis not in repeats and isinstance(other, Var) and len(level.readers(other)) == 1:
            maker = level.maker(other)
            return maker is not None and maker.primitive.name in TAKEN - VIEWS
    return False


def with_zero(level: Level, place: int) -> Edit:
    """The sum of the same numbers, to each of which -0.0 is added."""
    eqn = level.eqns[place]
    builder = Builder(eqn)

    def added(x: Any) -> Any:
        zero = lax.optimization_barrier(np.asarray(-0.0, eqn.invars[0].aval.dtype))
        return lax.reduce_sum_p.bind(lax.add(x, lax.broadcast(zero, eqn.invars[0].aval.shape)), **eqn.params)

    (total,) = builder.call(added, eqn.invars[0])
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: total}, here)
