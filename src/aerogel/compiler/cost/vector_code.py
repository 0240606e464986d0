"""What operations cost that rules make vector code of at the very end, when all passes are done."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax.numpy as jnp

from aerogel._jax import JaxprEqn

from .machine import Machine
from .primitives import ELEMENTWISE_FLOPS
from .seconds import equation_seconds
from .sizes import nbytes

# By entry of float32: rules/elementary, and for the places of extrema rules/extrema.
VECTOR_SECONDS = {
    **dict.fromkeys(("sin", "tan"), 1.4e-9),
    **dict.fromkeys(("cos", "atan", "asin", "acos"), 9e-10),
    **dict.fromkeys(("atan2", "cbrt", "pow"), 1.9e-9),
    **dict.fromkeys(("argmax", "argmin"), 8e-10),
}

# The operations that LLVM is given for an entry of float32, by XLA or by rules/elementary. Fits to where sums of padded
# columns are no vector code any more (passes/padded_terms.py).
OPERATIONS = {
    **dict.fromkeys("eq ne lt le gt ge select_n is_finite abs and or not".split(), 0),
    "exp": 8,
    "logistic": 12,
    "log": 20,
    "erf": 25,
    "tanh": 30,
    "atan": 30,
    **dict.fromkeys(("asin", "acos"), 35),
    **dict.fromkeys(("atan2", "cbrt"), 40),
    "log1p": 40,
    **dict.fromkeys(("sin", "cos"), 50),
    "expm1": 55,
    **dict.fromkeys(("tan", "pow", "sinh", "cosh"), 60),
    **dict.fromkeys(("asinh", "acosh", "atanh"), 95),
}

# The place of an extremum, from so many elements along its axis and in all on (docs/reference/catalogue-order.md).
SHORTEST_SEARCH = 64
FEWEST_SEARCHED = 4096

# Sines, cosines and tangents of so many elements look for large ones first, in a branch: twice as many as it takes for
# that to cost what it saves. In a loop the branch keeps one array more. That is as much as the state of a loop that
# does little else; it is done where the loop takes and gives so many times as much.
SINES = ("sin", "cos", "tan")
# Of one dear operation, for an entry, where a condition in the innermost loop (a seam of what is joined or padded)
# makes scalar code of it: 1 to 2.2 ns were measured.
SCALAR_SECONDS = 2e-9
FEWEST_SINES = 256  # of small numbers a sine and a cosine are dear to beat
# XLA shares a kernel that has more operations than bytes between cores: vector code of a sine from about 1,400 elements
# on, calls from 131,072 on. In a loop that took 12 us a step on one day, which is what one or two sines of so many
# elements save (pendulums, Newton's method: 0.6 to 0.8 of the time at 1,000, 1.1 to 1.3 at 1,500 to 3,500), and 1 to 2
# us on another (0.2 to 0.5 at 1,500 to 4,096, also beside one busy core).
SHARED_SINES = range(1400, 2048)
FEWEST_JOINED = 1_000  # of an array that fewer sines are joined into: those are not made vector code
MANY_SINES = 1 << 15
FEW_OF_LOOP = 4


def is_branch_of_sines(aval: Any, loop_bytes: int | None) -> bool:
    """Whether sines of so many numbers become a branch, whose result is in memory.

    Args:
        aval: their type.
        loop_bytes: what the loop that they stand in takes and gives; None in no loop.
    """
    large = loop_bytes is None or FEW_OF_LOOP * nbytes(aval) <= loop_bytes
    return large and aval.size >= MANY_SINES and jnp.issubdtype(aval.dtype, jnp.floating) and aval.dtype.itemsize <= 4


def is_vector_search(dtype: Any, size: int, length: int) -> bool:
    """Whether an `argmax` of `size` elements, `length` of them along its axis, becomes vector code on a CPU."""
    return jnp.issubdtype(dtype, jnp.floating) and length >= SHORTEST_SEARCH and size >= FEWEST_SEARCHED


@lru_cache(maxsize=8)
def with_vector_code(machine: Machine) -> Machine:
    """The machine with these operations as they are when all passes and rules are done."""
    vector = VECTOR_SECONDS if machine.name == "cpu" else {}
    return replace(machine, element_seconds={**machine.element_seconds, **vector})


def seconds_at_last(eqn: JaxprEqn, machine: Machine) -> float:
    """Seconds that one equation of a loop's step takes as it is when all passes and rules are done."""
    out = eqn.outvars[0].aval
    is_call = eqn.primitive.name in ("sin", "cos") and (out.size < FEWEST_SINES or out.size in SHARED_SINES)
    narrow = jnp.issubdtype(out.dtype, jnp.floating) and out.dtype.itemsize <= 4
    return equation_seconds(eqn, with_vector_code(machine) if narrow and not is_call else machine)


def operations(eqn: JaxprEqn) -> int:
    """How much code one elementwise equation is for an entry."""
    return OPERATIONS.get(eqn.primitive.name, ELEMENTWISE_FLOPS.get(eqn.primitive.name, 0))
