"""A condition that always holds, which XLA cannot know: what stands in its branch is compiled by itself."""

from typing import Any

import numpy as np
from jax import lax


def always(x: Any) -> Any:
    """True, of any array: two shifts leave no bit of 32, but only LLVM finds that out."""
    number = lax.convert_element_type(lax.reshape(lax.slice(x, (0,) * x.ndim, (1,) * x.ndim), ()), np.float32)
    bits = lax.bitcast_convert_type(number, np.uint32)
    none = lax.shift_right_logical(lax.shift_right_logical(bits, np.uint32(31)), np.uint32(1))
    return lax.eq(none, np.uint32(0))


def by_itself(x: Any) -> Any:
    """An array of numbers, made by a kernel of its own whatever reads it."""
    return lax.cond(always(x), lambda x: x, lambda x: lax.full_like(x, 0), x)
