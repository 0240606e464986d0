"""Which matrix a `custom_linear_solve` solves with, and along which axis.

JAX states a solve by the product that it inverts, `matvec`. For dense matrices that is one `dot_general` with a
transpose or two behind it; after differentiation it is the product with the transpose, and under `vmap` it has batch
axes. Reading it off the product covers all of them.
"""

from collections.abc import Sequence
from typing import Any

from ..._jax import Jaxpr, Var
from ..program import is_var
from ..record import record

# What a solve by factors consists of. One that iterates, or that calls another solve, is left to its author.
_BY_FACTORS = frozenset(
    "triangular_solve gather sort iota lt add select_n broadcast_in_dim reshape transpose squeeze convert_element_type "
    "copy jit concatenate stop_gradient".split()
)
_MOVES = frozenset(("transpose", "copy", "reduce_sum"))


@record
class DenseSolve:
    """The solve of M x = b, where M is `matrix` read with its axes `rows` and `columns`.

    Attributes:
        rows, columns: axes of the matrix.
        batch: its other axes, each with the axis of `b` that it goes with.
        along: the axis of `b`, and of the result, that the matrix works on.
    """

    rows: int
    columns: int
    batch: tuple[tuple[int, int], ...]
    along: int


def dense_solve(params: dict[str, Any]) -> DenseSolve | None:
    """What a `custom_linear_solve` of one right-hand side solves, by its params; the matrix is its first operand.

    None where that is not one dense matrix, or where the solve is not one by triangular factors.
    """
    jaxprs, lengths = params["jaxprs"], params["const_lengths"]
    matvec, solve = jaxprs.matvec, jaxprs.solve
    if solve is None or lengths.matvec != 1 or len(matvec.jaxpr.invars) != 2 or matvec.consts:
        return None
    names = set(_names(solve.jaxpr))
    if "triangular_solve" not in names or not names <= _BY_FACTORS:
        return None
    return _read(matvec.jaxpr)


def _names(jaxpr: Jaxpr) -> Sequence[str]:
    inner = [one.jaxpr for eqn in jaxpr.eqns for one in (eqn.params.get("jaxpr"),) if one is not None]
    return [eqn.primitive.name for eqn in jaxpr.eqns] + [name for one in inner for name in _names(one)]


# Where an axis of a value comes from: the operand it belongs to (0 the matrix, 1 the vector), and which axis of it.
Origin = tuple[int, int]


def _read(jaxpr: Jaxpr) -> DenseSolve | None:
    matrix, vector = jaxpr.invars
    origins: dict[Var, list[Origin]] = {v: [(k, i) for i in range(v.aval.ndim)] for k, v in enumerate((matrix, vector))}
    product: DenseSolve | None = None
    for eqn in jaxpr.eqns:
        name, xs = eqn.primitive.name, eqn.invars
        if not all(is_var(x) and x in origins for x in xs):
            return None
        found = [origins[x] for x in xs if is_var(x)]
        if name == "dot_general" and product is None and {o for axes in found for o, _ in axes} == {0, 1}:
            product, origin = _product(eqn.params["dimension_numbers"], found)
            if product is None:
                return None
        elif name not in _MOVES or (name == "reduce_sum" and eqn.params["axes"]):
            return None
        elif name == "transpose":
            origin = [found[0][i] for i in eqn.params["permutation"]]
        else:
            origin = found[0]
        origins[eqn.outvars[0]] = origin
    out = jaxpr.outvars[0]
    if product is None or not is_var(out):
        return None
    wanted = [(0, product.rows) if i == product.along else (1, i) for i in range(vector.aval.ndim)]
    return product if origins[out] == wanted else None


def _product(numbers: Any, found: list[list[Origin]]) -> tuple[DenseSolve | None, list[Origin]]:
    """The contraction of a matrix with a vector, and where the axes of its result come from."""
    contract, batch = numbers
    if len(contract[0]) != 1 or len({o for o, _ in found[0]}) != 1 or len({o for o, _ in found[1]}) != 1:
        return None, []
    m = 0 if found[0][0][0] == 0 else 1  # which operand of the product is the matrix
    at, other = found[m], found[1 - m]
    columns, along = at[contract[m][0]][1], other[contract[1 - m][0]][1]
    pairs = tuple((at[i][1], other[j][1]) for i, j in zip(batch[m], batch[1 - m], strict=True))
    rows = set(range(len(at))) - {columns} - {i for i, _ in pairs}
    if len(rows) != 1:
        return None, []
    free = [[o for i, o in enumerate(axes) if i not in (*contract[k], *batch[k])] for k, axes in enumerate(found)]
    origin = [(1, j) for _, j in pairs] + free[0] + free[1]
    return DenseSolve(rows.pop(), columns, pairs, along), origin
