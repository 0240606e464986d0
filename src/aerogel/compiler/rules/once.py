"""Values that XLA computes once, however often they are read."""

from typing import Any

import numpy as np
from jax import lax

_ONE = np.float32(1).view(np.uint32)


def once(x: Any) -> Any:
    """x, an array of float32, divided by one.

    XLA fuses what makes a value into those who read it, and so computes it again for each element that a broadcast or
    a shifted slice reads, unless it holds an operation that XLA knows to be dear. It takes `sin` for one, and the
    fifty cheap operations that stand for it for none. A quotient is; that this divisor is one (no bit is left of 32
    after two shifts) only LLVM finds out, when all is fused, and drops the division.
    """
    bits = lax.bitcast_convert_type(x, np.uint32)
    none = lax.shift_right_logical(lax.shift_right_logical(bits, lax.full_like(bits, 31)), lax.full_like(bits, 1))
    return lax.div(x, lax.bitcast_convert_type(none + _ONE, np.float32))
