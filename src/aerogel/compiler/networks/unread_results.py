"""Attentions whose results nothing reads, in a level that holds their gradients.

A gradient makes the weights of an attention again, where they are not kept, and their product with the values only if
that is read. `gradient_of_weights` is the product by which JAX's gradient begins; from its dimensions those of the
product with the values follow (`jax.lax.dot_general` is transposed by one rule).
"""

from collections.abc import Iterator

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn

from ..level import Level
from ..program import Builder, is_var, with_equations
from .attention import is_softmax


def with_unread_results(level: Level) -> Jaxpr:
    """The level's program with the results of attentions whose weights are multiplied by what may be a cotangent.

    They stand at the end; the same object if there are none.
    """
    products = [eqn for eqn in level.eqns if eqn.primitive.name == "dot_general"]
    new = [result for eqn in products for result in _results(level, eqn)]
    return with_equations(level.jaxpr, [*level.eqns, *new]) if new else level.jaxpr


def _results(level: Level, product: JaxprEqn) -> Iterator[JaxprEqn]:
    """Products of the weights that one reads with what may be the values, if its other operand is a cotangent."""
    for weights, cotangent in (product.invars, product.invars[::-1]):
        if not is_var(cotangent) or not is_softmax(level, weights):
            continue
        for place in level.readers(cotangent):
            eqn = level.eqns[place] if place >= 0 else None
            if eqn is None or eqn is product or eqn.primitive.name != "dot_general" or eqn.invars[0] is not cotangent:
                continue
            found = _result(level, weights, eqn)
            if found is not None:
                yield found
                break


def _result(level: Level, weights: Atom, gradient_of_weights: JaxprEqn) -> JaxprEqn | None:
    """The product of weights and values of which a product of a cotangent and the values is the gradient."""
    eqn = gradient_of_weights
    cotangent, values = eqn.invars
    (inner, of_values), (batch, values_batch) = eqn.params["dimension_numbers"]
    summed = [d for d in range(len(values.aval.shape)) if d not in (*of_values, *values_batch)]
    order = _order(level, eqn)
    if len(order) != len(weights.aval.shape) or tuple(batch) != tuple(range(len(batch))) or not summed:
        return None
    mine = (order[-len(summed) :], order[: len(batch)])
    theirs = (summed, list(values_batch))
    values_first = tuple(inner) == tuple(range(len(batch), len(batch) + len(inner)))
    first, second = (theirs, mine) if values_first else (mine, theirs)
    numbers = ((first[0], second[0]), (first[1], second[1]))
    how = {"precision": eqn.params["precision"], "preferred_element_type": cotangent.aval.dtype}
    builder = Builder(eqn)
    try:
        builder.call(
            lambda x, y: lax.dot_general(x, y, numbers, **how),
            *((values, weights) if values_first else (weights, values)),
        )
    except TypeError:  # its dimensions are others
        return None
    (result,) = builder.eqns
    return result if result.outvars[0].aval == cotangent.aval else None


def _order(level: Level, eqn: JaxprEqn) -> list[int]:
    """Which dimension of the weights each dimension of their gradient's product is."""
    readers = level.readers(eqn.outvars[0])
    reader = level.eqns[readers[0]] if len(readers) == 1 and readers[0] >= 0 else None
    if reader is None or reader.primitive.name != "transpose":
        return list(range(len(eqn.outvars[0].aval.shape)))
    return [int(d) for d in np.argsort(reader.params["permutation"])]
