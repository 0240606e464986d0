"""Values that XLA computes once, however often they are read."""

from typing import Any

import numpy as np
from jax import lax

_BITS = {np.dtype(np.float32): np.uint32, np.dtype(np.float64): np.uint64}


def once(x: Any) -> Any:
    """x, an array of float32 or float64, divided by one.

    XLA fuses what makes a value into those who read it, and so computes it again for each element that a broadcast or
    a shifted slice reads, unless it holds an operation that XLA knows to be dear. It takes `sin` for one, and the
    fifty cheap operations that stand for it for none. A quotient is; that this divisor is one (no bit is left after
    two shifts) only LLVM finds out, when all is fused, and drops the division.
    """
    unsigned = _BITS[x.dtype]
    bits = lax.bitcast_convert_type(x, unsigned)
    last, one = lax.full_like(bits, 8 * x.dtype.itemsize - 1), lax.full_like(bits, 1)
    none = lax.shift_right_logical(lax.shift_right_logical(bits, last), one)
    return lax.div(x, lax.bitcast_convert_type(none + x.dtype.type(1).view(unsigned), x.dtype))
