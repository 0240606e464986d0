"""Weighted sums that XLA's library mistakes for products of matrices.

XLA's CPU backend hands a sum, with what is computed entry by entry before it, to a library (`__ynn_fusion`, jaxlib
0.10.2). A sum of products takes it as long as a plain sum, but in two cases, where it computes the products of
matrices of one column:

* Over the rows of arrays with as many rows as columns, with one weight a row, `(jnp.exp(-d) * w[:, None]).sum(0)`:
  5 times as long for 1,000, 15 for 1,500, 150 for 3,000.
* Along the last of three or more axes, with weights that repeat along one of the others,
  `(w * abs(x[:, None] - y)).sum(-1)`: 2 to 20 times as long.

With any operation behind the product it is as fast as others.
"""

import math
from collections.abc import Iterator

from aerogel._jax import Atom, JaxprEqn, Var

from ..level import Level
from ..program import is_var
from .own_broadcasts import TAKEN, TRIVIAL
from .sums_of_rows import missing

# Of less there is nothing to gain: 400 x 400 takes 0.6 of the time, batches of 500 x 500 1.04, of 1,000 x 1,000 0.2.
LEAST_SIDE = 512
# Along the last axis: 100 x 120 x 40 takes 0.4 of the time, 30 x 40 x 300 0.5, 20 x 30 x 50 up to 1.6.
LEAST_ENTRIES = 1 << 18
# What the library sees as a product, and what it looks through.
PRODUCTS = ("mul", "div")
THROUGH = ("convert_element_type", "neg")


def is_product(level: Level, eqn: JaxprEqn) -> bool:
    """Whether the library takes a sum for a product. Float32 and bfloat16: in float64 it takes no longer for them."""
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    if eqn.primitive.name != "reduce_sum" or aval.dtype.itemsize > 4 or len(axes) != 1:
        return False
    product = _product(level, eqn)
    if product is None:
        return False
    if _is_square(aval.shape, axes[0]):
        return _weighs_rows(level, product, axes[0])
    return _has_columns(aval.shape, axes[0]) and _weighs_entries(level, product)


def _is_square(shape: tuple[int, ...], axis: int) -> bool:
    return axis == len(shape) - 2 and LEAST_SIDE <= shape[-2] == shape[-1]


def _has_columns(shape: tuple[int, ...], axis: int) -> bool:
    """Whether a sum goes along the last axis of an array with two others, and is large."""
    return axis == len(shape) - 1 and len(_others(shape)) > 1 and math.prod(shape) >= LEAST_ENTRIES


def _others(shape: tuple[int, ...]) -> frozenset[int]:
    """The axes but the last that have more than one entry."""
    return frozenset(d for d, size in enumerate(shape[:-1]) if size > 1)


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


def _factors(level: Level, product: JaxprEqn) -> Iterator[tuple[frozenset[int], Atom | None]]:
    """For each factor that is no number: the axes along which it repeats, and the other one."""
    for x, repeats in zip((x for x in product.invars if x.aval.shape), missing(level, product), strict=True):
        yield repeats, next((y for y in product.invars if y is not x), None)


def _weighs_rows(level: Level, product: JaxprEqn, axis: int) -> bool:
    """Whether one factor is a number for each row, and the other is computed within the sum."""
    last = product.outvars[0].aval.ndim - 1
    for repeats, other in _factors(level, product):
        if last in repeats and axis not in repeats and isinstance(other, Var) and len(level.readers(other)) == 1:
            maker = level.maker(other)
            return maker is not None and maker.primitive.name in TAKEN - TRIVIAL
    return False


def _weighs_entries(level: Level, product: JaxprEqn) -> bool:
    """Whether a factor has numbers along the last axis that repeat along another, and the other factor has all.

    What is divided is no factor: `w / (1 + d * d)` takes 0.85 of the time as it is.
    """
    shape = product.outvars[0].aval.shape
    repeated = [repeats for repeats, _ in _factors(level, product)]
    if len(repeated) != 2 or frozenset() not in repeated:
        return False
    weights = repeated[1:] if product.primitive.name == "div" else repeated
    return any(axes & _others(shape) and len(shape) - 1 not in axes for axes in weights)
