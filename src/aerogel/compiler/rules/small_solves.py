"""Solves and factors of many matrices of at most 4 x 4, written out."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ... import _jax
from ..._jax import ClosedJaxpr, Literal
from ..axes.rebind import bind
from ..known.solves import DenseSolve, dense_solve
from . import small_linalg as small
from .on import on
from .site import Site

# From 3 x 3 on, fewer matrices are no slower in LAPACK, of which a call costs about 0.2 us: the written-out form has
# several loops, which cost a few us each where XLA runs them in parallel.
FEWEST = 64
MOST_COLUMNS = 8  # of right-hand sides that become arrays of their own
_REASON = "LAPACK is called once for each matrix; written out, the whole batch takes a few loops"


def _refusal(x: Any, n: int, batch: int, site: Site) -> str | None:
    """Why matrices like these stay as they are."""
    if x.dtype not in (jnp.float32, jnp.float64):
        return f"{x.dtype.name} numbers"
    if n > small.LARGEST:
        return f"larger than {small.LARGEST} x {small.LARGEST}"
    if x.size == 0:
        return "it has no elements"
    if n > 2 and batch < FEWEST:
        return f"fewer than {FEWEST} matrices: LAPACK is no slower"
    return "its values may be spread over devices" if site.over_devices else None


@on("custom_linear_solve", stage="after", platforms=("cpu",), exactness="finite", reason=_REASON)
def small_solve(*operands: Any, site: Site, **params: Any) -> Any:
    """`jnp.linalg.solve` and `inv`, and the solves of their derivatives."""
    found = dense_solve(params)
    if found is None:
        return "it is no solve with a dense matrix by its factors"
    lengths = params["const_lengths"]
    A, b = operands[0], operands[-1]
    n = A.shape[found.rows]
    reason = _refusal(A, n, A.size // max(n * n, 1), site)
    if reason:
        return reason
    if site.maker(lengths.matvec + lengths.vecmat) == "lu":
        return _solved(found, A, b)
    # Other factors know what the matrix does not: which of its triangles is meant, and whether it is definite.
    return _by_its_factors(operands, site, **params)


def _solved(found: DenseSolve, A: Any, b: Any) -> Any:
    axes = [j for _, j in found.batch]
    others = [j for j in range(b.ndim) if j not in axes and j != found.along]
    order = [*axes, found.along, *others]
    columns = math.prod(b.shape[j] for j in others)
    moved = lax.transpose(b, order)
    M = small.entries(lax.transpose(A, [*(i for i, _ in found.batch), found.rows, found.columns]))
    B = moved.reshape(*(b.shape[j] for j in axes), b.shape[found.along], columns)
    x = _columnwise(lambda M, B: small.solve(M, B), M, B)
    back = [order.index(j) for j in range(b.ndim)]
    return lax.transpose(x.reshape(moved.shape), back)


def _by_its_factors(operands: Sequence[Any], site: Site, *, jaxprs: Any, const_lengths: Any, **params: Any) -> Any:
    """The same solve, its substitutions written out; its derivative is JAX's, by the product that it inverts."""
    constants, at = dict[str, Sequence[Any]](), 0
    for name in const_lengths._fields:
        constants[name] = operands[at : at + getattr(const_lengths, name)]
        at += getattr(const_lengths, name)

    def product(name: str) -> Any:
        whole = getattr(jaxprs, name)
        return lambda x: _jax.jaxpr_as_fun(whole)(*constants[name], x)[0]

    def solve(name: str) -> Any:
        whole = getattr(jaxprs, name)
        return None if whole is None else lambda _, b: _substituted(whole, (*constants[name], b), site)[0]

    return lax.custom_linear_solve(product("matvec"), operands[-1], solve("solve"), solve("transpose_solve"))


def _substituted(program: ClosedJaxpr, args: Sequence[Any], site: Site) -> list[Any]:
    """What a program makes, its substitutions written out where they are small."""
    values = dict(zip([*program.jaxpr.constvars, *program.jaxpr.invars], [*program.consts, *args], strict=True))

    def read(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else values[x]

    for eqn in program.jaxpr.eqns:
        given, outs = list(map(read, eqn.invars)), None
        if eqn.primitive.name == "jit":
            outs = _substituted(eqn.params["jaxpr"], given, site)
        elif eqn.primitive.name == "triangular_solve":
            written = small_triangular_solve.function(*given, site=site, **eqn.params)
            outs = None if isinstance(written, str) else [written]
        if outs is None:
            outs = bind(eqn, given, eqn.params)
        values.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, program.jaxpr.outvars))


def _columnwise(solve: Any, M: Any, B: Any) -> Any:
    """The solution for right-hand sides of shape [batch, n, columns]: few columns are arrays of their own."""
    if B.shape[-1] <= MOST_COLUMNS:
        return small.assembled(solve(M, small.entries(B)))
    wide = [[x[..., None] for x in row] for row in M]
    rows = [[lax.index_in_dim(B, i, B.ndim - 2, False)] for i in range(B.shape[-2])]
    return jnp.stack([row[0] for row in solve(wide, rows)], -2)


@on("triangular_solve", stage="after", platforms=("cpu",), exactness="finite", reason=_REASON)
def small_triangular_solve(
    a: Any,
    b: Any,
    *,
    site: Site,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Any:
    """Substitution, for Cholesky factors and the like."""
    n = a.shape[-1]
    reason = _refusal(a, n, a.size // max(n * n, 1), site)
    if reason:
        return reason
    transposed = transpose_a == left_side  # X A = B is A' X' = B'
    T = small.entries(jnp.matrix_transpose(a) if transposed else a)
    down = lower != transposed

    def solve(T: Any, B: Any) -> Any:
        return small.substitute(T, B, lower=down, unit=unit_diagonal)

    return (
        _columnwise(solve, T, b) if left_side else jnp.matrix_transpose(_columnwise(solve, T, jnp.matrix_transpose(b)))
    )


@on("cholesky", stage="after", platforms=("cpu",), exactness="finite", reason=_REASON)
def small_cholesky(x: Any, *, site: Site) -> Any:
    """Factors of positive definite matrices."""
    n = x.shape[-1]
    return _refusal(x, n, x.size // max(n * n, 1), site) or small.assembled(small.cholesky(small.entries(x)))


@on("lu", stage="after", platforms=("cpu",), exactness="finite", reason=_REASON)
def small_lu(x: Any, *, site: Site) -> Any:
    """Factors of square matrices, for determinants."""
    rows, n = x.shape[-2:]
    if rows != n:
        return "not square"
    reason = _refusal(x, n, x.size // max(n * n, 1), site)
    if reason:
        return reason
    factors, pivots, order = small.lu(small.entries(x))
    return [small.assembled(factors), jnp.stack(pivots, -1), jnp.stack(order, -1)]
