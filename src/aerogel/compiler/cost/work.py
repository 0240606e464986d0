"""Flops of one equation by itself, from its types and parameters.

A multiply-add counts as 2, a transcendental by its weight in `primitives.ELEMENTWISE_FLOPS`; complex arithmetic
counts 4 times; moving data counts nothing. Nested programs are not looked into here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aerogel._jax import JaxprEqn

from .primitives import CUMULATIVE, ELEMENTWISE_FLOPS, LINALG, RANDOM, REDUCE, UPDATE, WINDOWS
from .sizes import elements

# Threefry: 20 rounds of add, rotate, xor and 5 key injections make two words; so much for each word.
RANDOM_FLOPS = 60


def equation_flops(eqn: JaxprEqn) -> int:
    """Flops of a first-order equation; 0 for primitives that are not in the tables."""
    name = eqn.primitive.name
    weight = ELEMENTWISE_FLOPS.get(name)
    if weight is not None:
        if not weight:
            return 0
        aval = eqn.outvars[0].aval
        if name == "integer_pow":
            weight = _multiplications(eqn.params["y"])
        flops = weight * elements(aval)
    else:
        count = _SPECIAL.get(name)
        if count is None:
            return 0
        flops = count(eqn)
        aval = eqn.outvars[0].aval if eqn.outvars else None
    dtype = getattr(aval, "dtype", None)
    return 4 * flops if getattr(dtype, "kind", "") == "c" else flops


def dot_shape(eqn: JaxprEqn) -> tuple[int, int, int, int]:
    """(batch, M, N, K) of a `dot_general` or `ragged_dot_general`."""
    params = eqn.params
    numbers = params.get("dimension_numbers") or params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    (lhs_contract, _), (lhs_batch, _) = numbers
    lhs = eqn.invars[0].aval.shape
    k = math.prod(lhs[d] for d in lhs_contract)
    batch = math.prod(lhs[d] for d in lhs_batch)
    m = math.prod(lhs) // max(1, k * batch) if k and batch else 0
    n = elements(eqn.outvars[0].aval) // max(1, m * batch)
    return batch, m, n, k


def is_sum_of_products(eqn: JaxprEqn) -> bool:
    """Whether XLA makes a reduction of a `dot_general`: each entry of an operand is read for one of the result's."""
    if eqn.primitive.name != "dot_general":
        return False
    (contract, _), (batch, _) = eqn.params["dimension_numbers"]
    return all(len(x.aval.shape) == len(contract) + len(batch) for x in eqn.invars)


def is_outer_product(eqn: JaxprEqn) -> bool:
    """Whether XLA makes a multiplication of a `dot_general`: nothing is summed up."""
    return eqn.primitive.name == "dot_general" and dot_shape(eqn)[3] == 1


def copied_operands(eqn: JaxprEqn) -> list[Any]:
    """The types of the operands that XLA copies for a `dot_general`."""
    if is_outer_product(eqn):
        return []
    contract, batch = eqn.params["dimension_numbers"]
    sides = zip((x.aval for x in eqn.invars), batch, contract, (True, False), strict=True)
    return [aval for aval, b, c, is_left in sides if _copies(aval.shape, b, c, is_left)]


def _copies(shape: Sequence[int], batch: Sequence[int], contracted: Sequence[int], is_left: bool) -> bool:
    summed = [d for d in contracted if shape[d] > 1]
    roles = [(d in batch, d in contracted) for d in range(len(shape))]
    return is_copied(shape, roles, is_left) or (len(summed) < len(shape) - len(batch) and summed != sorted(summed))


def is_copied(sizes: Sequence[int], roles: Iterable[tuple[bool, bool]], is_left: bool) -> bool:
    """Whether XLA copies an operand of a product, whose dimensions are batched or contracted as `roles` says.

    It reads batched dimensions first. A matrix behind them it reads either way; where several dimensions are
    contracted, or several are not, the left operand has those last that are contracted, the right one has them first.
    (120 products, drawn, jaxlib 0.10.2: right but for vectors, and for batches in another order.)
    """
    lies = [role for size, role in zip(sizes, roles, strict=True) if size > 1]
    batched = sum(batch for batch, _ in lies)
    if not all(batch for batch, _ in lies[:batched]):
        return True
    terms = [contracted for _, contracted in lies[batched:]]
    if sum(terms) <= 1 and len(terms) - sum(terms) <= 1:
        return False
    return terms != sorted(terms, reverse=not is_left)


def matrices(eqn: JaxprEqn) -> tuple[int, int, int]:
    """(number, rows, columns) of the matrices that a linear algebra equation works on."""
    shape = eqn.invars[0].aval.shape
    if len(shape) < 2:
        return 1, shape[-1] if shape else 1, 1
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def update_operand(name: str) -> int:
    """Which operand of an `UPDATE` primitive holds the new elements."""
    return 2 if name.startswith("scatter") else 1


def _multiplications(power: int) -> int:
    power = abs(power)
    return max(1, power.bit_length() + power.bit_count() - 2)


def _dot(eqn: JaxprEqn) -> int:
    if "ragged_dot_dimension_numbers" in eqn.params:
        return 2 * elements(eqn.outvars[0].aval) * _ragged_contraction(eqn)
    batch, m, n, k = dot_shape(eqn)
    return batch * m * n * k * (1 + (k > 1))


def _ragged_contraction(eqn: JaxprEqn) -> int:
    numbers = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return math.prod(eqn.invars[0].aval.shape[d] for d in numbers[0][0])


def _scaled_dot(eqn: JaxprEqn) -> int:
    return 2 * elements(eqn.outvars[0].aval) * eqn.invars[0].aval.shape[-1]


def _conv(eqn: JaxprEqn) -> int:
    # Each output element sums over the filter's taps and input channels. A dilated input is mostly zeros, which
    # XLA neither stores nor multiplies.
    kernel = eqn.invars[1].aval
    features = kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
    taps = elements(kernel) // max(1, features)
    return 2 * elements(eqn.outvars[0].aval) * taps // math.prod(eqn.params["lhs_dilation"])


def _reduce(eqn: JaxprEqn) -> int:
    operand = elements(eqn.invars[0].aval)
    if eqn.primitive.name in ("argmax", "argmin"):
        return 2 * operand
    if eqn.primitive.name == "reduce":
        return operand * max(1, len(eqn.params["jaxpr"].eqns))
    return max(0, operand - elements(eqn.outvars[0].aval))


def _cumulative(eqn: JaxprEqn) -> int:
    return elements(eqn.invars[0].aval) * (30 if eqn.primitive.name == "cumlogsumexp" else 2)


def _window(eqn: JaxprEqn) -> int:
    # The gradients of pooling choose among a window's elements for each element of the smaller array.
    size = math.prod(eqn.params["window_dimensions"])
    smaller = min(elements(v.aval) for v in (*eqn.invars[:1], *eqn.outvars[:1]))
    return smaller * size


def _sort(eqn: JaxprEqn) -> int:
    length = eqn.invars[0].aval.shape[eqn.params["dimension"]]
    compares = elements(eqn.invars[0].aval) * max(1, math.ceil(math.log2(max(2, length))))
    return compares * eqn.params["num_keys"]


def _top_k(eqn: JaxprEqn) -> int:
    return elements(eqn.invars[0].aval) * max(1, math.ceil(math.log2(max(2, eqn.params["k"]))))


def _fft(eqn: JaxprEqn) -> int:
    # 5 n log2 n (Cooley-Tukey), half of it where one side is real. Complex already: undo the factor of 4.
    lengths = math.prod(eqn.params["fft_lengths"])
    size = max(elements(eqn.invars[0].aval), elements(eqn.outvars[0].aval))
    flops = 5 * size * max(1, math.ceil(math.log2(max(2, lengths))))
    kinds = {x.aval.dtype.kind for x in (eqn.invars[0], eqn.outvars[0])}
    if kinds != {"c"}:
        flops //= 2
    return flops // 4 if eqn.outvars[0].aval.dtype.kind == "c" else flops


def _update(eqn: JaxprEqn) -> int:
    name = eqn.primitive.name
    return 0 if name in _STORES else elements(eqn.invars[update_operand(name)].aval)


_STORES = ("dynamic_update_slice", "scatter", "swap")


def _random(eqn: JaxprEqn) -> int:
    return RANDOM_FLOPS * sum(elements(v.aval) for v in eqn.outvars)


def _collective(eqn: JaxprEqn) -> int:
    return sum(elements(v.aval) for v in eqn.invars)


# LAPACK working notes 41, appendix; the iterative ones (svd, eig) as measured on random matrices.
_CUBIC: dict[str, float] = {
    "cholesky": 1 / 3,
    "lu": 2 / 3,
    "qr": 4 / 3,
    "geqrf": 4 / 3,
    "geqp3": 4 / 3,
    "householder_product": 4 / 3,
    "hessenberg": 10 / 3,
    "tridiagonal": 4 / 3,
    "eigh": 5.0,
    "svd": 10.0,
    "eig": 25.0,
    "schur": 25.0,
}


def _linalg(eqn: JaxprEqn) -> int:
    name = eqn.primitive.name
    count, rows, columns = matrices(eqn)
    if name in _CUBIC:
        return int(_CUBIC[name] * count * rows * columns * min(rows, columns))
    if name == "triangular_solve":
        return rows * elements(eqn.invars[1].aval)
    if name == "tridiagonal_solve":
        return 8 * elements(eqn.invars[-1].aval)
    if name in ("symmetric_product", "ormqr"):
        return 2 * count * rows * rows * columns
    if name == "cholesky_update":
        return 4 * rows * rows
    return elements(eqn.invars[0].aval)  # lu_pivots_to_permutation


_SPECIAL: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "ragged_dot_general": _dot,
    "scaled_dot": _scaled_dot,
    "scaled_matmul": _scaled_dot,
    "scaled_matmul_wrapper": _scaled_dot,
    "conv_general_dilated": _conv,
    "sort": _sort,
    "top_k": _top_k,
    "approx_top_k": _top_k,
    "fft": _fft,
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin", "reduce_scatter", "unreduced_psum"), _collective),
    **dict.fromkeys(REDUCE, _reduce),
    **dict.fromkeys(CUMULATIVE, _cumulative),
    **dict.fromkeys(WINDOWS, _window),
    **dict.fromkeys(UPDATE, _update),
    **dict.fromkeys(RANDOM, _random),
    **dict.fromkeys(LINALG, _linalg),
}
