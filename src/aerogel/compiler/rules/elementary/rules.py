"""The rules of this family: one for each primitive, final, for the CPU."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

from ...cost.vector_code import FEWEST_JOINED, FEWEST_SINES, SHARED_SINES, is_branch_of_sines
from ..on import PrimitiveRule, on
from ..ruleset import RuleSet
from ..site import Site
from .arctangent import acos, asin, atan, atan2
from .double import log
from .power import cbrt, power
from .sine import cos, cos_of_many, sin, sin_of_many, tan, tan_of_many
from .whole_power import EASY, is_written_out, whole_power

# Below so many elements the calls are as fast (measured in loops with vectors of 32 bytes: at half as many 0.7 to 2 of
# the time; with 64 bytes they are slower from 16 elements on).
FEWEST = 64
FEWEST_POWERS = 128  # also roots and tangents
# Rows of bfloat16 so long LLVM writes out whole, and leaves each entry's code for itself: powers of rows of 4, 7 to 12
# and 15 took 0.3 to 0.8 of the time, of 5, 6 and 13 1.9, arctangents 4.6 (`tan`, `cbrt` and the others 0.2 to 0.8).
WRITTEN_OUT = (5, 6, 13)
_DEAR_WRITTEN_OUT = (lax.pow_p, lax.atan_p, lax.atan2_p)
# Outside of loops XLA starts a program of more than 1,000 operations on another thread, and calls of the C
# library are none. That takes as long as these many calls of a sine or a power, or of the dearer others (measured with
# two busy cores, alone and in small formulas: 1.2 to 2.3 of the time at half as many, 0.4 to 0.9 at twice as many).
FEWEST_ALONE = 1 << 12
FEWEST_SINES_ALONE = 1 << 13
FEWEST_POWERS_ALONE = 1 << 14
# So many in all where nothing else is counted, and vector code would be the first (on two cores: 1.3 to 2.9 of the time
# at 8,192 to 24,576, 0.7 at 32,768).
FEWEST_SINES_IN_SHORT = 1 << 15
# Of what is read by a slice or a gather alone XLA computes what is read; of a branch, all.
SMALLER_PART = 2
# XLA takes a sine for cheap, and calls the library for each entry that it is repeated to: a rotation of 32,896 pairs by
# the 4,112 angles of their places took 0.9 ms, as the few sines alone 0.2 ms. Of vector code it makes an array.
_SINES = (lax.sin_p, lax.cos_p, lax.tan_p)
_FLOATS = frozenset(map(np.dtype, (np.float16, jnp.bfloat16, np.float32, np.float64)))
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min"))
# XLA looks for a place one entry after the other, and computes so what feeds it: there the C library's logarithm is the
# faster one (draws of a mixture's parts, `argmax(logits - log(-log(u)))`, took 1.3 to 2.5 of the time with ours).
_SEARCHES = frozenset(("argmax", "argmin"))
# What is vector code in a sum or an extremum where `_jax.HAS_VECTOR_SUMS` says so; of float16 it is not.
_IN_SUMS = (*_SINES, lax.atan_p)
_REASON = "XLA calls the C library for it, one element at a time"


def _refusal(xs: tuple[Any, ...], accuracy: Any, site: Site, few: int, alone: int) -> str | None:
    dtypes = {x.dtype for x in xs}
    if len(dtypes) > 1 or not dtypes <= _FLOATS:
        return "its operands are not floats of one type"
    if xs[0].dtype.itemsize > 4:
        return "it is of float64"
    return _fewest(xs[0], site, few, alone) or (None if accuracy is None else "its accuracy is chosen by hand")


def _rule(primitive: Any, function: Callable[..., Any], of_many: Callable[..., Any] | None = None) -> PrimitiveRule:
    """The rule that writes `function`; or `of_many`, for large arrays on one device, unless a loop has little else."""
    name = f"vector-{primitive.name}"

    @on(primitive, stage="final", platforms=("cpu",), exactness="no_worse", reason=_REASON, name=name)
    def vectorised(*xs: Any, accuracy: Any = None, site: Site) -> Any:
        within = site.loop_bytes if site.in_loop else None
        branch = not site.over_devices and is_branch_of_sines(xs[0], within)
        branch = branch and xs[0].size < SMALLER_PART * site.entries_read()
        chosen = of_many if branch and of_many is not None else function
        few = FEWEST_SINES if primitive in (lax.sin_p, lax.cos_p) else FEWEST
        few = FEWEST_POWERS if primitive in (lax.tan_p, lax.cbrt_p) else few
        alone = FEWEST_SINES_ALONE if primitive in _SINES else FEWEST_ALONE
        if primitive in (lax.sin_p, lax.cos_p) and xs[0].size >= alone and _are_all(site):
            alone = FEWEST_SINES_IN_SHORT
        if primitive in _SINES and site.spread() >= FEWEST_SINES_ALONE:
            few = alone = 1
        shared = _shared(xs[0].size, site) if primitive in (lax.sin_p, lax.cos_p) else 0
        if shared:
            return f"XLA would share a step's {shared} elements between cores, which takes as long as it saves"
        return (
            _refusal(xs, accuracy, site, few, alone)
            or _written_out(primitive, xs[0])
            or _repeated(xs, site)
            or (_vector_code(primitive, xs[0].dtype, site) if _jax.HAS_VECTOR_SUMS else None)
            or chosen(*xs)
        )

    return vectorised


def _shared(size: int, site: Site) -> int:
    """How many entries a kernel has that XLA would share for few sines of a step; 0 if it does not, or that pays.

    Of what is joined it shares smaller ones: two sines and a cosine of 300 and of 500 entries, joined to four times as
    many, took 1.7 and 1.3 of the time (a pendulum on a cart).
    """
    if not site.in_loop or size >= SHARED_SINES.stop:
        return 0
    if size in SHARED_SINES:
        return size
    joined = site.joined()
    return joined if joined >= FEWEST_JOINED else 0


def _are_all(site: Site) -> bool:
    """Whether so few sines are all that a program does, or nearly, that the thread that calls makes them."""
    return site.is_short and site.entries_of("sin", "cos") < FEWEST_SINES_IN_SHORT


def _vector_code(primitive: Any, dtype: Any, site: Site) -> str | None:
    """Why an operation is faster as it stands, by a version of XLA that has vector code for sums."""
    if primitive is lax.atan_p and not site.in_loop:
        return "XLA has vector code for it"
    if primitive in _IN_SUMS and dtype != np.float16 and site.end() in _REDUCTIONS:
        return "a reduction is all that reads it: they are one loop, of vector code"
    return None


def _written_out(primitive: Any, x: Any) -> str | None:
    """Why an operation on short rows is faster as it stands."""
    short = x.dtype == jnp.bfloat16 and x.shape[-1:] and x.shape[-1] in WRITTEN_OUT
    return f"rows of {x.shape[-1]} are no vector code" if short and primitive in _DEAR_WRITTEN_OUT else None


def _repeated(xs: tuple[Any, ...], site: Site) -> str | None:
    """Of what is repeated and then reduced, XLA takes functions that it knows before it repeats."""
    repeated = all(not x.shape or site.is_repeated(k) for k, x in enumerate(xs))
    return "XLA computes it before it repeats it" if repeated and site.end() in _REDUCTIONS else None


def _power(x: Any, y: Any, *, site: Site) -> Any:
    exponent = site.value(1)
    if exponent is not None and np.ndim(exponent) == 0 and exponent in EASY:
        return f"XLA writes a power of {float(exponent):g} without the C library"
    repeated = _repeated((x, y), site)
    known = site.numbers(1)
    if known is not None and is_written_out(known, site):
        return f"LLVM writes out rows of {known.shape[-1]} powers that it knows"
    x, y = jnp.broadcast_arrays(x, y)  # either may be a scalar
    refusal = _refusal((x, y), None, site, FEWEST_POWERS, FEWEST_POWERS_ALONE) or _written_out(lax.pow_p, x)
    return refusal or repeated or power(x, y)


def _fewest(x: Any, site: Site, few: int, alone: int) -> str | None:
    fewest = few if site.in_loop else alone
    if x.size < fewest:
        return f"it has fewer than {fewest} elements"
    read = site.entries_read()
    return f"only {read} of its elements are read, and XLA computes no others" if read < fewest else None


@on(
    lax.log_p,
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="XLA calls the C library for float64, one element at a time",
)
def vector_log(x: Any, *, accuracy: Any, site: Site) -> Any:
    """The logarithm of float64. That of float32 is vector code anyway, and so is any that one sum reads in the end."""
    if x.dtype != np.float64:
        return f"it is of {x.dtype}, not of float64"
    if accuracy is not None:
        return "its accuracy is chosen by hand"
    if site.end() in _REDUCTIONS:
        return "a reduction is all that reads it: they are one loop, of vector code"
    if site.end() in _SEARCHES:
        return "the place of an extremum is all that reads it: they are one loop, of scalar code"
    return _fewest(x, site, FEWEST, FEWEST_ALONE) or log(x)


rules = RuleSet(
    (
        *(
            _rule(primitive, *functions)
            for primitive, *functions in (
                (lax.sin_p, sin, sin_of_many),
                (lax.cos_p, cos, cos_of_many),
                (lax.tan_p, tan, tan_of_many),
                (lax.atan_p, atan),
                (lax.atan2_p, atan2),
                (lax.asin_p, asin),
                (lax.acos_p, acos),
                (lax.cbrt_p, cbrt),
            )
        ),
        whole_power,
        on(lax.pow_p, stage="final", platforms=("cpu",), exactness="no_worse", reason=_REASON, name="vector-pow")(
            _power
        ),
        vector_log,
    )
)
