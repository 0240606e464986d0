"""Powers whose exponents are known whole numbers: products of squares, chosen by the digits of the exponent.

`x[:, None] ** jnp.arange(8)` has an exponent for each column. Squares of x are multiplied where the exponent has that
binary digit, and ones elsewhere: that goes entry by entry, with whatever stands around it.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..on import on
from ..site import Site
from .wide import Narrow, Wide, elementary, float64, like, narrow, widen

MOST_DIGITS = 8
# As of other powers (`rules.py`).
FEWEST = 128
FEWEST_ALONE = 1 << 14
# Exponents that XLA writes as products, quotients and roots.
EASY = (-1, 0, 0.5, 1, 2, 3)
# Rows of so many exponents are unrolled whole, and each is known then (50,000 rows of 2 and 3 took 24 and 48 us, and as
# squares 120 to 220; of 4, 593 and 154). Not in a sum.
SHORTEST_ROWS = 4
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min"))


def is_written_out(exponents: np.ndarray, site: Site) -> bool:
    """Whether known exponents of a power are few to a row, and LLVM does what they say."""
    few = bool(exponents.shape) and 1 < exponents.shape[-1] < SHORTEST_ROWS
    return few and site.end() not in _REDUCTIONS


def _of_digits(digits: int, down: bool) -> Callable[[Any, Any], Any]:
    """`lax.pow` for exponents of so many binary digits; where `down`, also for less than zero."""

    def power(x: Any, y: Any) -> Any:
        base: Wide = widen(x)
        exponent = lax.convert_element_type(lax.abs(y), np.int32)
        product = like(base, 1.0)
        for digit in range(digits):
            has = lax.ne(lax.bitwise_and(exponent, like(exponent, 1 << digit)), like(exponent, 0))
            product = lax.select(has, product * base, product)
            base = base * base if digit < digits - 1 else base
        if down:
            product = lax.select(lax.lt(y, like(y, 0)), float64(1) / product, product)
        result: Narrow = narrow(product)
        return result

    power.__name__ = f"power_of_{digits}_digits{'_down' * down}"
    return elementary(lax.pow)(power)


NAMES = [f"vector_power_of_{n}_digits{down}" for n in range(1, MOST_DIGITS + 1) for down in ("", "_down")]
POWERS = {(n, down): _of_digits(n, down) for n in range(1, MOST_DIGITS + 1) for down in (False, True)}


@on(
    lax.pow_p,
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="the exponents are whole numbers: squares are multiplied, a power takes a logarithm and an exponential",
)
def whole_power(x: Any, y: Any, *, site: Site) -> Any:
    """Powers of floats of up to 32 bits; a subnormal number is 0, as in XLA's own products."""
    exponents = site.numbers(1)
    if exponents is None or not exponents.size:
        return "its exponents are not known"
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize > 4:
        return f"it is of {x.dtype}"
    exponents = np.asarray(exponents, np.float64)
    if not np.array_equal(exponents, np.round(exponents)):
        return "its exponents are no whole numbers"
    most = int(np.abs(exponents).max())
    if most >= 1 << MOST_DIGITS:
        return f"an exponent of {most}"
    if exponents.size == 1 and exponents.item() in EASY:
        if site.value(1) is not None:
            return f"XLA writes a power of {exponents.item():g} without the C library"
        return lax.integer_pow(jnp.broadcast_arrays(x, y)[0], int(exponents.item()))
    x, y = jnp.broadcast_arrays(x, y)
    few = FEWEST if site.in_loop else FEWEST_ALONE
    if x.size < FEWEST or site.entries_of("pow", *NAMES) < few:
        return f"it has fewer than {few} elements"
    if is_written_out(exponents, site):
        return f"LLVM writes out rows of {exponents.shape[-1]} powers that it knows"
    return POWERS[max(most.bit_length(), 1), bool(exponents.min() < 0)](x, y)
