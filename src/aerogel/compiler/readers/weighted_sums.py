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

from ..cost.primitives import DEAR
from ..level import Level
from ..program import is_var
from .own_broadcasts import LONGEST_CHAIN, TAKEN, TRIVIAL
from .sums_of_rows import missing

# Of less there is nothing to gain: 400 x 400 takes 0.6 of the time, batches of 500 x 500 1.04, of 1,000 x 1,000 0.2.
LEAST_SIDE = 512
# Along the last axis: 100 x 120 x 40 takes 0.4 of the time, 30 x 40 x 300 0.5, 20 x 30 x 50 up to 1.6.
LEAST_ENTRIES = 1 << 18
# Entries along the summed axis and those behind it, of bfloat16 and where functions are computed.
SHORT, SHORT_IF_DEAR = 1 << 15, 3 << 15
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


def is_product_of_matrices(level: Level, eqn: JaxprEqn) -> bool:
    """Whether a sum is of products of two factors each of which repeats along an axis of the other."""
    product = _product(level, eqn)
    if product is None or product.primitive.name != "mul":
        return False
    repeated = [axes for axes, _ in _factors(level, product)]
    return len(repeated) == 2 and all(repeated) and not any(axes & set(eqn.params["axes"]) for axes in repeated)


def is_weighted(level: Level, eqn: JaxprEqn) -> bool:
    """Whether a sum is of products, one factor of which repeats along an axis that is not summed up.

    By itself the library takes such a sum for products of matrices. (With what follows it does not.)
    """
    product = _product(level, eqn) if eqn.primitive.name == "reduce_sum" else None
    if product is None:
        return False
    repeated = [axes for axes, _ in _factors(level, product)]
    return any(axes - set(eqn.params["axes"]) for axes in repeated[product.primitive.name == "div" :])


def is_faster_apart(level: Level, eqn: JaxprEqn) -> bool:
    """Whether a weighted sum whose results are worked on takes less time by itself, as no product.

    Along the last of several axes it takes 0.1 to 0.9 of the time (as a product 3 to 6.5), along another one in float32
    0.3 to 0.9; where the axes from that one on are short, up to 1.3 in bfloat16, and 1.2 with a logarithm. Along rows
    with the same weights in all of them 1.15 to 1.5.
    """
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    product = _product(level, eqn)
    if len(axes) != 1 or product is None:
        return False
    (axis,) = axes
    if axis == aval.ndim - 1:
        return len(_others(aval.shape)) > 1
    least = SHORT if product.outvars[0].aval.dtype.itemsize < 4 else 0
    return math.prod(aval.shape[axis:]) >= (SHORT_IF_DEAR if _is_dear(level, product) else least)


def _is_dear(level: Level, product: JaxprEqn) -> bool:
    """Whether a factor is computed by functions within the sum."""
    waiting, seen = [product], 0
    while waiting and seen < LONGEST_CHAIN:
        seen += 1
        eqn = waiting.pop()
        if eqn is not product and eqn.primitive.name in DEAR:
            return True
        makers = (level.maker(x) for x in eqn.invars if x.aval.size == product.outvars[0].aval.size)
        waiting += [one for one in makers if one is not None and one.primitive.name in TAKEN]
    return False


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
