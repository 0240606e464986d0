"""Whether XLA's code for an odd number of entries that two threads share is scalar on a processor that masks vectors.

Without masks (before AVX-512) it always is. With them LLVM leaves out of the last vector what is behind the end, but
not where a function is written out that chooses between two formulas: found by timing 60 functions of 100,003 and
1,000,003 numbers as they are and in two parts (jaxlib 0.10.2). In two parts took 0.14 to 0.6 of the time where this
says so (an exponential with two more operations 0.9), and 1.0 to 1.7 elsewhere.
"""

from collections.abc import Set

from aerogel import _jax

from ..cost.primitives import DEAR

# Nothing is chosen.
PLAIN = frozenset("div sqrt integer_pow gather concatenate".split())
# They become scalar code beside a sum or a selection only: `tanh(x) * x` is vector code, `tanh(x) + 1` is none.
CHOOSING = frozenset("tanh log1p expm1 erf erfc".split())
SUMMING = frozenset("add add_any sub select_n max min clamp".split())


def is_scalar(names: Set[str]) -> bool:
    """Whether the code of one kernel is, by the names of what it does to each entry."""
    if names & CHOOSING:
        return bool(names & SUMMING)
    return names != {"exp"} and is_called(names)


def is_called(names: Set[str]) -> bool:
    """Whether it does more than arithmetic, in XLA's own code: Aerogel's functions are vector code as they are."""
    return bool((names & DEAR) - PLAIN) and not names & _jax.OURS.keys()
