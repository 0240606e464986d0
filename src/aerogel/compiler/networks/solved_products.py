"""Solves for a product of few terms: `solve(A, u @ v) = solve(A, u) @ v`, which solves for fewer columns.

JAX's derivative of `inv(A) @ b` solves for an outer product, all n columns of it; that of `inv(X.T @ X) @ X.T @ y` for
a product with one, which is one when contraction has taken it in its cheaper order.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..known.solves import DenseSolve, dense_solve
from ..level import Edit, Level
from ..program import Builder
from .network_reader import is_plain

# Multiplications that it must save: less is done while another kernel starts. (Gradients of a loop of inverses,
# 100 steps: 3 to 6 rows took 1.1 of the time with the solve for one column and a product, 12 took 1.03, 16 take 0.96.)
LEAST_SAVED = 2048


def solved_products(level: Level) -> list[Edit]:
    """An edit for each solve of one matrix for a product with less than half as many terms as columns."""
    places = (k for k, eqn in enumerate(level.eqns) if eqn.primitive.name == "custom_linear_solve")
    return [edit for place in places for edit in _edits(level, place)]


def _edits(level: Level, place: int) -> list[Edit]:
    eqn = level.eqns[place]
    solve, b = dense_solve(eqn.params), eqn.invars[-1]
    lengths = eqn.params["const_lengths"]
    if solve is None or solve.batch or len(b.aval.shape) != 2 or len(eqn.invars) != sum(lengths) + 1:
        return []
    product, own = level.maker(b), solve.along
    while product is not None and product.primitive.name == "transpose":
        product, own = level.maker(product.invars[0]), 1 - own
    rows, columns = b.aval.shape[solve.along], b.aval.shape[1 - solve.along]
    if rows * rows * (columns - 1) < LEAST_SAVED:
        return []
    outer = _outer(level, product)
    if outer is not None and columns > 1:
        builder = Builder(eqn)
        given = {k: x for k, x in enumerate((outer[own], outer[1 - own])) if x is not None}

        def turned(A: Any, *vectors: Any) -> Any:
            known = dict(zip(given, vectors, strict=True))
            u, v = (known[k] if k in known else jnp.ones(b.aval.shape[1 - k], A.dtype) for k in (0, 1))
            return _turned(A, u, v, solve)

        (out,) = builder.call(turned, eqn.invars[0], *given.values())
        here = frozenset({place})
        return [Edit(place, here, builder.eqns, {eqn.outvars[0]: out}, here)]
    if product is None or product.primitive.name != "dot_general" or not is_plain(product):
        return []
    contract, _ = product.params["dimension_numbers"]
    terms = 1
    for d in contract[0]:
        terms *= product.invars[0].aval.shape[d]
    if any(len(x.aval.shape) - len(dims) != 1 for x, dims in zip(product.invars, contract, strict=True)):
        return []
    if len(contract[0]) > 1 or 2 * terms > columns or rows * rows * (columns - terms) < LEAST_SAVED:
        return []
    builder = Builder(eqn)
    (out,) = builder.call(lambda A, x, y: _solved(A, x, y, solve, product, own), eqn.invars[0], *product.invars)
    here = frozenset({place})
    return [Edit(place, here, builder.eqns, {eqn.outvars[0]: out}, here)]


def _solved(A: Any, x: Any, y: Any, solve: DenseSolve, product: JaxprEqn, own: int) -> Any:
    """The solve of A for the factor on its side, which is the `own` one of the product, times the other factor."""
    contract, _ = product.params["dimension_numbers"]
    inner, other = ((x, y), (y, x))[own]
    terms = [list(contract[own]), list(contract[1 - own])]
    inner = inner[:, None] if inner.ndim == 1 else jnp.moveaxis(inner, terms[0], [1])
    other = other[None] if other.ndim == 1 else jnp.moveaxis(other, terms[1], [0])
    return _turned(A, inner, other, solve, product.params["precision"])


def _turned(A: Any, inner: Any, other: Any, solve: DenseSolve, precision: Any = None) -> Any:
    """The solve of A for columns, or for one vector, times another factor, with the axes of the solve for all of it."""

    def solved(u: Any) -> Any:
        return jnp.linalg.solve(A, u)

    # The transposed solve takes the factors of A itself, as the first one does.
    (z,) = (solved(inner),) if solve.rows == 0 else jax.linear_transpose(solved, inner)(inner)
    summed = ((1,), (0,)) if z.ndim == 2 else ((), ())
    z = lax.dot_general(z, other, (summed, ((), ())), precision=precision, preferred_element_type=inner.dtype)
    return z if solve.along == 0 else z.T


def _outer(level: Level, product: JaxprEqn | None) -> tuple[Atom | None, Atom | None] | None:
    """The factors of an outer product of two vectors that is written as one of their repetitions, row by column.

    One factor is None where it is ones: a vector that is repeated.
    """
    if product is None or product.primitive.name not in ("mul", "broadcast_in_dim"):
        return None
    found: dict[int, Atom] = {}
    for maker in [product] if product.primitive.name != "mul" else map(level.maker, product.invars):
        if maker is None or maker.primitive.name != "broadcast_in_dim" or len(maker.invars[0].aval.shape) != 1:
            return None
        if maker.params["sharding"] is not None:
            return None
        found[int(maker.params["broadcast_dimensions"][0])] = maker.invars[0]
    lengths = [x.aval.shape[0] for x in found.values()]
    shape = product.outvars[0].aval.shape
    if len(shape) != 2 or len(found) != len(product.invars) or lengths != [shape[d] for d in found]:
        return None
    return found.get(0), found.get(1)
