"""Products of small matrices as sums, where XLA would call a library and must not: inside of one kernel."""

from math import prod

from jax import lax

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn

from ..cost.work import dot_shape
from ..level import Edit, apply_edits
from ..levels import rewrite_levels
from ..program import Builder
from ..rules.written_out import as_sum

# XLA gives a library products of two matrices where one side has 8 rows or columns; not products with a vector.
LARGEST_SIDE = 7
# Multiplications; 12 x 12 matrices were 2.5 times faster than with calls of the library, 8 x 8 ones 8 times.
MOST_MULTIPLICATIONS = 2048


def calls_library(eqn: JaxprEqn) -> bool:
    """Whether a `dot_general` is one that XLA gives to a library."""
    _, *sides = dot_shape(eqn)
    return min(sides) > 1 and max(sides) > LARGEST_SIDE


def why_not(eqn: JaxprEqn) -> str | None:
    """Why a `dot_general` cannot stand in a kernel; None if it can, as it is or as a sum."""
    if prod(dot_shape(eqn)) > MOST_MULTIPLICATIONS:
        return f"it holds a product of more than {MOST_MULTIPLICATIONS:,} multiplications: XLA calls a library for it"
    if isinstance(eqn.params["precision"], lax.DotAlgorithm | lax.DotAlgorithmPreset):
        return "it holds a product of matrices by a chosen algorithm"
    return None


def with_sums(call: ClosedJaxpr) -> ClosedJaxpr:
    """The program with such products as sums, at all levels."""
    return rewrite_levels(call, _level)


def _level(jaxpr: Jaxpr) -> Jaxpr:
    found = ((k, eqn) for k, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "dot_general")
    edits = [_edit(k, eqn) for k, eqn in found if calls_library(eqn)]
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _edit(place: int, eqn: JaxprEqn) -> Edit:
    built = Builder(eqn)
    numbers = eqn.params["dimension_numbers"]
    dtype = eqn.outvars[0].aval.dtype  # that of the sums
    (out,) = built.call(lambda a, b: as_sum(a.astype(dtype), b.astype(dtype), numbers), *eqn.invars)
    return Edit(place, frozenset({place}), built.eqns, {eqn.outvars[0]: out}, frozenset({place}))
