"""Matrices of small rank: what a few vectors of weights make of as many rows, and sums of those.

The cotangent of a product `J @ v` is an outer product of that of its result and of v; of `J @ V` it is a product that
contracts a few numbers, and of several products a sum of such.
"""

from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel._jax import JaxprEqn, Var

from ..axes import Axis
from ..axes.rebind import shape_of
from ..known.linear_values import is_zero
from ..level import Level
from ..program import is_var
from ..record import record

MOST_OUTER = 8  # of a level that are looked at: gradients come last


@record
class Outer:
    """A value whose row b, along `dim`, is the sum over r of w[r, b] u[r].

    Attributes:
        rank: how many r there are.
        atoms: what `weights` and `rows` are made of.
        weights: w, of shape [rank, rows].
        rows: u, as a value with `rank` rows.
        vector: what the weights are, where that is one vector of the program.
    """

    dim: int
    rank: int
    atoms: tuple[Var, ...]
    weights: Callable[..., Any]
    rows: Callable[..., Any]
    vector: Var | None = None


def outer_products(level: Level, count: int, dtype: Any, rows: Container[Var]) -> Iterator[tuple[Var, Outer]]:
    """Values of a rank up to `count / 2` along a dimension of `count`, those of the least rank first, then the last.

    Not those that others are made of, and of nothing else; repeated weights only where they multiply one of `rows`.
    """
    found: dict[Var, list[Outer]] = {}
    for eqn in level.eqns:
        if len(eqn.outvars) == 1 and getattr(eqn.outvars[0].aval, "dtype", None) == dtype:
            outers = [o for o in _of(level, eqn, found, count) if 2 * o.rank <= count]
            if eqn.primitive.name == "broadcast_in_dim" and _multiplies(level, eqn.outvars[0], rows):
                outers = _repeated(eqn, count)
            if outers:
                found[eqn.outvars[0]] = outers

    def is_end(x: Var) -> bool:
        return not all(k >= 0 and level.eqns[k].outvars[0] in found for k in level.readers(x))

    ends = [(x, outer) for x, outers in found.items() if is_end(x) for outer in outers]
    yield from islice(sorted(reversed(ends), key=lambda end: end[1].rank), MOST_OUTER)


def _of(level: Level, eqn: JaxprEqn, found: dict[Var, list[Outer]], count: int) -> list[Outer]:
    name = eqn.primitive.name
    if name == "dot_general":
        return _of_product(eqn, count)
    operands = [found.get(x, []) if is_var(x) else [] for x in eqn.invars]
    if name in ("add", "add_any"):
        for x, others in zip(eqn.invars, reversed(operands), strict=True):
            if is_zero(level, x):  # what a loop starts from, that then adds up products
                return others
        return [_sum(a, b) for a in operands[0] for b in operands[1] if a.dim == b.dim]
    if name == "transpose":
        return [_turned(a, eqn.params["permutation"]) for a in operands[0]]
    return []


def _of_product(eqn: JaxprEqn, count: int) -> list[Outer]:
    """A product whose operand on one side is as many rows as there are, of the few numbers that are contracted."""
    (a, b), (contracted, batch) = eqn.invars, eqn.params["dimension_numbers"]
    if any(batch) or not (is_var(a) and is_var(b)) or a.aval.dtype != b.aval.dtype:
        return []
    outers = []
    for side, w, u in ((0, a, b), (1, b, a)):
        own, others = contracted[side], contracted[1 - side]
        free = [d for d in range(len(shape_of(w))) if d not in own]
        kept = [d for d in range(len(shape_of(u))) if d not in others]
        if len(free) != 1 or shape_of(w)[free[0]] != count or not kept:
            continue
        dim = 0 if side == 0 else len(kept)
        rank = w.aval.size // count

        def weights(w: Any, u: Any, order: tuple[int, ...] = (*own, *free)) -> Any:
            return lax.reshape(lax.transpose(w, order), (w.size // count, count))

        def rows(w: Any, u: Any, order: tuple[int, ...] = (*others, *kept), kept: Any = kept, dim: int = dim) -> Any:
            sizes = [u.shape[d] for d in kept]
            return jnp.moveaxis(lax.reshape(lax.transpose(u, order), (w.size // count, *sizes)), 0, dim)

        outers.append(Outer(dim, rank, (w, u), weights, rows, None if own else w))
    return outers


def _multiplies(level: Level, x: Var, rows: Container[Var]) -> bool:
    readers = (level.eqns[k] for k in level.readers(x) if k >= 0)
    return any(e.primitive.name == "mul" and any(is_var(y) and y in rows for y in e.invars) for e in readers)


def _repeated(eqn: JaxprEqn, count: int) -> list[Outer]:
    """Weights that are the same along all other dimensions: u is ones."""
    (w,), (out,) = eqn.invars, eqn.outvars
    if not is_var(w) or shape_of(w) != (count,) or shape_of(out)[eqn.params["broadcast_dimensions"][0]] != count:
        return []
    dim = int(eqn.params["broadcast_dimensions"][0])

    def ones(w: Any) -> Any:
        return lax.full(Axis(dim).resize(shape_of(out), 1), 1, w.dtype)

    return [Outer(dim, 1, (w,), lambda w: lax.reshape(w, (1, count)), ones, w)]


def _sum(a: Outer, b: Outer) -> Outer:
    n = len(a.atoms)

    def weights(*xs: Any) -> Any:
        return lax.concatenate([a.weights(*xs[:n]), b.weights(*xs[n:])], 0)

    def rows(*xs: Any) -> Any:
        return lax.concatenate([a.rows(*xs[:n]), b.rows(*xs[n:])], a.dim)

    return Outer(a.dim, a.rank + b.rank, (*a.atoms, *b.atoms), weights, rows)


def _turned(a: Outer, order: tuple[int, ...]) -> Outer:
    return Outer(
        order.index(a.dim), a.rank, a.atoms, a.weights, lambda *xs: lax.transpose(a.rows(*xs), order), a.vector
    )
