"""Labels as sets of bits, and the orders in which a product of two values has them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from .network import Labels

LANES = 16
MOST_TERMS = 1 << 12


def bits(labels: Iterable[int]) -> int:
    """Labels as the bits of a number."""
    return sum(1 << one for one in set(labels))


def product_labels(left: Labels, right: Labels, kept: int) -> Labels:
    """The labels of a product in the order of its dimensions: those of both, then those of either."""
    batch = [one for one in left if one in right and kept >> one & 1]
    free = [one for one in (*left, *right) if (one in left) != (one in right)]
    return (*batch, *free)


def mixed(sides: Sequence[str]) -> bool:
    """Whether free dimensions that come from the "left" and the "right" operand of a product are not so by groups."""
    return len(list(groupby(sides))) > 2


def is_swapped(left: Labels, right: Labels, contracted: int, sizes: Mapping[int, int] | Sequence[int]) -> bool:
    """Whether the factors of a product change places: a vector does, if the matrix is then read as it is stored.

    XLA reads a matrix on the left whose last dimension is summed over, and else one on the right: `einsum` may put it
    anywhere (300 of 2 x 8 x 93 with as many pairs on the right 1.1 ms, on the left 0.25; 64 x 64 terms of 64 columns
    0.26 and 0.03). One of few columns takes as long either way, and adds up many terms one by one on the right.
    """
    sides = [{one for one in own if one not in other} for own, other in ((left, right), (right, left))]
    if all(sides) or not any(sides):  # the result would have its dimensions in another order
        return False
    matrix, free = (left, sides[0]) if sides[0] else (right, sides[1])
    columns, terms = (
        math.prod(sizes[one] for one in some) for some in (free, (k for k in matrix if contracted >> k & 1))
    )
    is_batch = any(one not in free and not contracted >> one & 1 for one in matrix)
    if terms > MOST_TERMS or not (is_batch or columns >= LANES):
        return False
    return bool(contracted >> matrix[-1] & 1) != bool(sides[0])
