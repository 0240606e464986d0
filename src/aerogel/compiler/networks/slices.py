"""Slices of a product as products of slices, where one of them is summed up: that sum then needs no product.

The gradient of `concatenate([broadcast(a), b]) @ W` is such: JAX makes the product for all pieces together, cuts it,
and sums up the piece of what was repeated.
"""

from itertools import pairwise

from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..level import Edit, Level, apply_edits
from ..program import Builder, is_var


def sliced_apart(jaxpr: Jaxpr) -> Jaxpr:
    """One level with such products made slice by slice; the same object if there is none."""
    if not any(eqn.primitive.name == "slice" for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(jaxpr)
    edits = [_apart(level, k) for k, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "dot_general"]
    found = [edit for edit in edits if edit is not None]
    return apply_edits(jaxpr, found)[0] if found else jaxpr


def _apart(level: Level, place: int) -> Edit | None:
    eqn = level.eqns[place]
    (product,) = eqn.outvars
    readers = level.readers(product)
    if len(readers) < 2 or -1 in readers or any(level.eqns[k].primitive.name != "slice" for k in readers):
        return None
    slices = [level.eqns[k] for k in readers]
    dims = {d for one in slices for d in _cut(one)}
    if len(dims) != 1 or not any(_is_summed(level, one.outvars[0]) for one in slices):
        return None
    dim = dims.pop()
    rows = sorted((one.params["start_indices"][dim], one.params["limit_indices"][dim]) for one in slices)
    operand = _operand(eqn, dim)
    if operand is None or any(a[1] > b[0] for a, b in pairwise(rows)):
        return None
    side, at = operand
    builder = Builder(eqn)
    for one in slices:
        start, stop = one.params["start_indices"][dim], one.params["limit_indices"][dim]
        invars = list(eqn.invars)
        starts, limits = [0] * len(invars[side].aval.shape), list(invars[side].aval.shape)
        starts[at], limits[at] = start, stop
        invars[side] = builder.call(lambda x, a=tuple(starts), b=tuple(limits): lax.slice(x, a, b), invars[side])[0]
        builder.eqns.append(eqn.replace(invars=invars, outvars=one.outvars))
    gone = frozenset({place, *readers})
    return Edit(place, gone, builder.eqns, {}, gone)


def _cut(eqn: JaxprEqn) -> list[int]:
    """The dimensions that a slice cuts; two of them if it leaves any out with strides."""
    p, shape = eqn.params, eqn.invars[0].aval.shape
    if p["strides"] is not None and any(n != 1 for n in p["strides"]):
        return [-1, -2]
    return [d for d, n in enumerate(shape) if (p["start_indices"][d], p["limit_indices"][d]) != (0, n)]


def _is_summed(level: Level, var: Var) -> bool:
    """Whether nobody needs a value but sums of it, of other dimensions or not."""
    readers = [level.eqns[k] if k >= 0 else None for k in level.readers(var)]
    return bool(readers) and all(
        eqn is not None
        and (
            eqn.primitive.name == "reduce_sum"
            or (eqn.primitive.name == "reshape" and _is_summed(level, eqn.outvars[0]))
        )
        for eqn in readers
    )


def _operand(eqn: JaxprEqn, dim: int) -> tuple[int, int] | None:
    """The operand, and its dimension, that a dimension of a product is; None for one of its batch dimensions."""
    contract, batch = eqn.params["dimension_numbers"]
    place = len(batch[0])
    for side, x in enumerate(eqn.invars):
        for d in range(len(x.aval.shape)):
            if d in contract[side] or d in batch[side]:
                continue
            if place == dim:
                return (side, d) if is_var(x) else None
            place += 1
    return None
