"""Which sums over other axes, beside a short last one, are faster entry by entry than as XLA makes them."""

from typing import Any

from aerogel._jax import JaxprEqn

from ..windows.components import Components

# Of sums of all rows at once: XLA's own loop over integers is as good below, and up to 8 of them a row.
FEWEST_INTEGERS = 1 << 19
LONG_OF_DOUBLES = 16
VECTOR_FUNCTIONS = frozenset("exp exp2 expm1 log log1p tanh logistic".split())
FEW_ENTRIES, MANY_ROWS = 4, 256


def fills_registers(wide: Any) -> bool:
    """Whether a row is several registers: sums of 16 numbers of float64 take 0.9 to 1.9 of the time entry by entry."""
    return wide.dtype.itemsize > 4 and wide.shape[-1] >= LONG_OF_DOUBLES


def sums_matrices(eqn: JaxprEqn, found: Components) -> bool:
    """Whether what is summed up are whole matrices, one behind the other, with functions that have vector code.

    XLA adds them in a loop of its own then. Entry by entry 500 to 2,000 matrices of 16 or 64 short rows took 1.1 to 3.2
    times as long, of 400 rows of 8 numbers 1.2 to 1.7 times, of 2 and 3 0.5 to 0.9.
    """
    entries, axes = eqn.invars[0].aval.shape[-1], eqn.params["axes"]
    rows = eqn.outvars[0].aval.size // entries
    leads = tuple(axes) == tuple(range(len(axes)))
    functions = any(one.primitive.name in VECTOR_FUNCTIONS for one in found.inside.values())
    return rows > 1 and leads and functions and (entries > FEW_ENTRIES or rows < MANY_ROWS)


def pays_at_once(wide: Any, longest: int) -> bool:
    """Whether a sum of all rows, of which nothing but a short row is left, pays entry by entry.

    Of 6 and 8 floats 1.2 to 2.5 times as fast, of 16 and 32 0.5 to 0.95; of integers, comparisons that are counted, 0.3
    to 0.9 for 3 to 8, and 1.2 to 5 for 12 to 32 in 30,000 to 500,000 rows (two cores of an AMD EPYC, jaxlib 0.10.2).
    """
    is_long = wide.shape[-1] > longest
    return is_long == (wide.dtype.kind in "iu") and (not is_long or wide.size >= FEWEST_INTEGERS)
