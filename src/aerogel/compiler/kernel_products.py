"""Products of small matrices as sums, where XLA would call a library and must not: inside of one kernel."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn

from .cost.work import dot_shape
from .levels import rewrite_levels
from .program import Builder, with_equations

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
    one_type = {x.aval.dtype for x in (*eqn.invars, *eqn.outvars)}
    if calls_library(eqn) and (len(one_type) > 1 or eqn.params["precision"] is not None):
        return "it holds a product of matrices whose types or precision are chosen"
    return None


def with_sums(call: ClosedJaxpr) -> ClosedJaxpr:
    """The program with such products as sums, at all levels."""
    return rewrite_levels(call, _level)


def _level(jaxpr: Jaxpr) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    changed = False
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "dot_general" or not calls_library(eqn):
            eqns.append(eqn)
            continue
        changed = True
        numbers = eqn.params["dimension_numbers"]
        built = Builder(eqn)
        (out,) = built.call(lambda a, b, numbers=numbers: _summed(a, b, numbers), *eqn.invars)
        *before, last = built.eqns
        assert last.outvars == [out], "the sum is the last equation"
        eqns += [*before, last.replace(outvars=eqn.outvars)]
    return with_equations(jaxpr, eqns) if changed else jaxpr


def _summed(a: jax.Array, b: jax.Array, numbers: Any) -> jax.Array:
    """Batch, rows, terms, columns: the last are what a core's vector registers hold."""
    (a_terms, b_terms), (a_batch, b_batch) = numbers
    a = _ordered(a, a_batch, _free(a, a_terms, a_batch), a_terms)
    b = _ordered(b, b_batch, b_terms, _free(b, b_terms, b_batch))
    batch, terms = len(a_batch), len(a_terms)
    rows, columns = a.ndim - batch - terms, b.ndim - batch - terms
    a = lax.expand_dims(a, range(a.ndim, a.ndim + columns))
    b = lax.expand_dims(b, range(batch, batch + rows))
    product = jnp.multiply(*jnp.broadcast_arrays(a, b))
    return lax.reduce_sum(product, tuple(range(batch + rows, batch + rows + terms)))


def _free(x: jax.Array, terms: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [d for d in range(x.ndim) if d not in terms and d not in batch]


def _ordered(x: jax.Array, *dims: Sequence[int]) -> jax.Array:
    return lax.transpose(x, [d for some in dims for d in some])
