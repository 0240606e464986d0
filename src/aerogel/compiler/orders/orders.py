"""Orders: in which sequence the dimensions of a value are stored.

An `Order` is a permutation: position k of the stored value holds dimension `order[k]` of the value that the program
names. `transpose(x, p)` is the same stored value under another order. Equations of one operand *carry* an order from
it to their result.
"""

import math
from typing import Any

from aerogel._jax import JaxprEqn

from ..cost import nbytes
from ..record import record

Order = tuple[int, ...]

REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split()
)
CARRIERS = REDUCTIONS | {"transpose", "squeeze", "reshape"}


def natural(rank: int) -> Order:
    """The order in which the program names the dimensions."""
    return tuple(range(rank))


def permute(values: Any, order: Order) -> tuple[Any, ...]:
    """One entry per dimension, as they are stored."""
    return tuple(values[d] for d in order)


def step(stored: Order, wanted: Order) -> Order:
    """The permutation that makes the value stored as `wanted` from the one stored as `stored`."""
    return tuple(stored.index(d) for d in wanted)


def restrict(order: Order, dims: tuple[int, ...]) -> Order:
    """`order` on some of the dimensions only, renumbered by their positions in `dims`."""
    return tuple(dims.index(d) for d in order if d in dims)


def moved_bytes(aval: Any, stored: Order, wanted: Order) -> int:
    """Bytes that a copy from one order to the other writes; 0 if only dimensions of size 1 move."""
    if stored == wanted:
        return 0
    shape = aval.shape
    return 0 if _large(stored, shape) == _large(wanted, shape) else nbytes(aval)


def copy_weight(aval: Any, stored: Order, wanted: Order) -> int:
    """`moved_bytes`, doubled where the last dimension moves: else whole rows are copied."""
    size = moved_bytes(aval, stored, wanted)
    if not size:
        return 0
    return size if _large(stored, aval.shape)[-1] == _large(wanted, aval.shape)[-1] else 2 * size


def last_large(aval: Any, order: Order) -> int | None:
    """The dimension that is stored last of those with several entries."""
    return next(reversed(_large(order, aval.shape)), None)


def _large(order: Order, shape: Any) -> list[int]:
    return [d for d in order if shape[d] != 1]


@record
class Carried:
    """The result of an equation whose operand is stored in another order: its order, and the equation's parameters."""

    order: Order
    params: dict[str, Any]


def carry(eqn: JaxprEqn, order: Order) -> Carried | None:
    """An equation of `CARRIERS` on its operand stored in `order`; None if it cannot be done there."""
    name, params = eqn.primitive.name, eqn.params
    if name == "transpose":
        to = params["permutation"]
        return Carried(tuple(to.index(d) for d in order), params)
    if name == "reshape":
        return _carry_reshape(eqn, order)
    key = "dimensions" if name == "squeeze" else "axes"
    gone = params[key]
    kept = tuple(d for d in range(len(order)) if d not in gone)
    return Carried(restrict(order, kept), {**params, key: tuple(sorted(order.index(d) for d in gone))})


def pull(eqn: JaxprEqn, order: Order) -> Order | None:
    """An order of the operand that carries to `order`; None if there is none."""
    name, params = eqn.primitive.name, eqn.params
    if name == "transpose":
        return tuple(params["permutation"][d] for d in order)
    if name == "reshape":
        return _pull_reshape(eqn, order)
    gone = tuple(params["dimensions" if name == "squeeze" else "axes"])
    rank = len(eqn.invars[0].aval.shape)
    kept = tuple(d for d in range(rank) if d not in gone)
    if order == natural(len(order)):
        return natural(rank)
    return tuple(kept[d] for d in order) + tuple(sorted(gone))


def operand_order(eqn: JaxprEqn, wanted: Order) -> Order:
    """The order of the operand with which a broadcast makes its result as `wanted`."""
    return restrict(wanted, tuple(eqn.params["broadcast_dimensions"]))


def result_order(eqn: JaxprEqn, order: Order) -> Order:
    """An order of a broadcast's result whose operand is stored in `order`: its own dimensions trade places only."""
    dims = tuple(eqn.params["broadcast_dimensions"])
    found = list(natural(len(eqn.params["shape"])))
    for place, d in zip(sorted(dims), order, strict=True):
        found[place] = dims[d]
    return tuple(found)


def _carry_reshape(eqn: JaxprEqn, order: Order) -> Carried | None:
    after = eqn.params["new_sizes"]
    if order == natural(len(order)):
        return Carried(natural(len(after)), eqn.params)
    found = _moved_groups(order, eqn.invars[0].aval.shape, after, *(_groups(eqn) or ((), ())))
    return None if found is None else Carried(found, {**eqn.params, "new_sizes": permute(after, found)})


def _pull_reshape(eqn: JaxprEqn, order: Order) -> Order | None:
    before = eqn.invars[0].aval.shape
    if order == natural(len(order)):
        return natural(len(before))
    ins, outs = _groups(eqn) or ((), ())
    return _moved_groups(order, eqn.params["new_sizes"], before, outs, ins)


def _moved_groups(order: Order, source: Any, target: Any, ins: Any, outs: Any) -> Order | None:
    """The order on the other side of a reshape that keeps each group of dimensions together."""
    large, result = _large(order, source), [d for d, size in enumerate(target) if size == 1]
    while large:
        found = next((k for k, group in enumerate(ins) if group[0] == large[0]), None)
        if found is None or tuple(large[: len(ins[found])]) != ins[found]:
            return None
        del large[: len(ins[found])]
        result += outs[found]
    return tuple(result)


def _groups(eqn: JaxprEqn) -> tuple[list[Order], list[Order]] | None:
    """The dimensions larger than 1 of both sides of a reshape, cut into the shortest runs of equal size."""
    before, after = eqn.invars[0].aval.shape, eqn.params["new_sizes"]
    if eqn.params.get("dimensions") is not None or math.prod(before) == 0:
        return None
    left, right = (iter([(d, n) for d, n in enumerate(shape) if n != 1]) for shape in (before, after))
    ins: list[Order] = []
    outs: list[Order] = []
    for d, n in left:
        e, m = next(right)
        a, b = [d], [e]
        while n != m:
            if n < m:
                d, factor = next(left)
                a.append(d)
                n *= factor
            else:
                e, factor = next(right)
                b.append(e)
                m *= factor
        ins.append(tuple(a))
        outs.append(tuple(b))
    return ins, outs
