"""Powers that are products of roots."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .on import on
from .site import Site

# XLA itself writes products, quotients and roots for powers of -1, 0, 0.5, 1, 2 and 3. With more factors than these
# have the worst error is more than four units in the last place.
POWERS = (-3, -2.5, -2, -1.5, -1.25, -0.75, -0.5, -0.25, 0.25, 0.75, 1.25, 1.5, 1.75, 2.5, 3.5, 4)
FEWEST = 8  # in a loop over one number, a power of 1.5 takes 0.85 of the time of its roots


@on(
    lax.pow_p,
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="roots and products come from vector instructions, a power takes a logarithm and an exponential",
)
def root_power(x: Any, y: Any, *, site: Site) -> Any:
    """A number to the power of a few quarters, as C99 defines it; a subnormal number is 0, as in XLA's own roots."""
    exponent = site.value(1)
    if exponent is None or np.ndim(exponent) or not np.issubdtype(y.dtype, np.floating):
        return "its exponent is no number that is known"
    exponent = float(exponent)
    if exponent not in POWERS:
        return f"an exponent of {exponent:g}, which is no product of few roots"
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.size < FEWEST:
        return f"it has fewer than {FEWEST} elements" if x.size < FEWEST else f"it is of {x.dtype}"
    wide = lax.convert_element_type(x, np.float32) if x.dtype.itemsize < 4 else x
    if exponent == int(exponent):
        power = lax.integer_pow(1 / wide if exponent < 0 else wide, int(abs(exponent)))
    elif site.maker(0) == "abs":
        power = _fractional(wide, exponent)
    else:  # the power of -inf is that of inf, and no power of -0 is negative
        inf = lax.full_like(wide, np.inf)
        power = lax.abs(_fractional(lax.select(lax.eq(wide, -inf), inf, wide), exponent))
    return lax.convert_element_type(power, x.dtype)


def _fractional(x: Any, exponent: float) -> Any:
    whole, quarters = int(abs(exponent)), int(4 * abs(exponent)) % 4
    root = lax.sqrt(x)
    power = {1: lambda: lax.sqrt(root), 2: lambda: root, 3: lambda: root * lax.sqrt(root)}[quarters]()
    # One over the root alone: that of a whole product is inf where the product is too small for a float.
    power = 1 / power if exponent < 0 else power
    if whole:
        rest = lax.integer_pow(x, whole)
        power = power / rest if exponent < 0 else power * rest
    return power
