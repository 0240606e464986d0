"""What is made of a basis, made without it: a sum of its rows is a push, and a value of short rows a few pulls."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from aerogel._jax import Atom, Literal, Var

from .axes import Axis
from .basis_rows import BasisRows
from .level import Edit
from .program import Builder, is_var


def pushed(rows: BasisRows, place: int) -> Edit:
    """A weighted sum of rows as the map of the weights: L(t)."""
    eqn, k = rows.level.eqns[place], rows.sums[place]
    builder, (out,) = Builder(eqn), eqn.outvars
    summed = eqn.invars[k]
    assert is_var(summed)
    weights, free, c = [], (), 0
    if eqn.primitive.name == "dot_general":
        weights = [eqn.invars[1 - k]]
        (c,) = eqn.params["dimension_numbers"][0][1 - k]
        free = tuple(n for d, n in enumerate(weights[0].aval.shape) if d != c)
    size, count, dtype = prod(free), rows.count, rows.root.aval.dtype
    places, precision = behind(rows, [summed]), eqn.params.get("precision")
    read = reads(rows, places)

    def push(matrix: Any, *atoms: Any) -> Any:
        given, consts = atoms[: len(weights)], atoms[len(weights) :]
        t = lax.reshape(jnp.moveaxis(given[0], c, -1), (size, count)) if given else lax.full((1, count), 1, dtype)
        if rows.entry is not None:
            t = lax.dot_general(t, matrix, (((1,), (rows.dim,)), ((), ())), precision=precision)
        total = through(
            rows, places, {rows.root: t if rows.dim == 0 else t.T}, size, dict(zip(read, consts, strict=True))
        )[summed]
        axis = rows.axes[summed].dim
        rest = [n for d, n in enumerate(total.shape) if d != axis]
        moved = jnp.moveaxis(total, axis, 0 if k else -1)
        shape = (*free, *rest) if k else (*rest, *free)
        return lax.convert_element_type(lax.reshape(moved, shape), out.aval.dtype)

    (result,) = builder.call(push, rows.root, *weights, *read)
    return Edit(place, frozenset((place,)), builder.eqns, {out: builder.as_weak_as(out, result)}, frozenset((place,)))


def pulled(rows: BasisRows, place: int) -> Edit:
    """A value with rows of few entries, made of the transpose of the map."""
    eqn = rows.level.eqns[place]
    builder, (out,) = Builder(eqn), eqn.outvars
    places = behind(rows, [out])
    read = reads(rows, places)
    dim, width, count = rows.axes[out].dim, rows.width(out), rows.count
    entries = tuple(n for d, n in enumerate(out.aval.shape) if d != dim)
    cotangent = rows.axes[out].resize(out.aval.shape, 1)

    def pull(*consts: Any) -> Any:
        # Of a linear map the derivative anywhere; JAX's transposes want what is linear in equations of its own.
        env = dict(zip(read, consts, strict=True))
        zeros = lax.full((1, count) if rows.dim == 0 else (count, 1), 0, rows.root.aval.dtype)
        _, back = jax.vjp(lambda e: through(rows, places, {rows.root: e}, 1, env)[out], zeros)
        if width == 1:
            (columns,) = back(lax.full(cotangent, 1, out.aval.dtype))
        else:
            basis = lax.reshape(jnp.eye(width, dtype=out.aval.dtype), (width, *cotangent))
            columns = jax.vmap(lambda ct: back(ct)[0])(basis)
        whole = jnp.moveaxis(lax.reshape(columns, (*entries, count)), -1, dim)
        return lax.convert_element_type(whole, out.aval.dtype)

    (result,) = builder.call(pull, *read)
    return Edit(place, frozenset((place,)), builder.eqns, {out: builder.as_weak_as(out, result)}, frozenset((place,)))


def behind(rows: BasisRows, xs: Iterable[Atom], others: Collection[Var] = ()) -> tuple[int, ...]:
    """The places that make `xs` of the matrix, and of other values with rows."""
    roots = {*others, rows.root} if rows.entry is None else {*others}
    found: set[int] = set()
    stack = [*xs]
    while stack:
        y = stack.pop()
        if not is_var(y) or y not in rows.axes or y in roots:
            continue
        place = rows.level.made_by[y]
        if place not in found:
            found.add(place)
            stack += rows.level.eqns[place].invars
    return tuple(sorted(found))


def reads(rows: BasisRows, places: Iterable[int]) -> list[Var]:
    """What the equations at `places` read besides rows."""
    read = (x for place in places for x in rows.level.eqns[place].invars)
    return list(dict.fromkeys(x for x in read if is_var(x) and x not in rows.axes))


def through(
    rows: BasisRows, places: Sequence[int], starts: Mapping[Var, Any], size: int, consts: Mapping[Var, Any]
) -> dict[Var, Any]:
    """`size` rows of what the equations at `places` make of as many in place of the matrix's.

    Args:
        starts: the rows of the matrix, and of other values that are not made here.
        consts: the values of `reads(rows, places)`.
    """
    env = {**consts, **starts} if rows.entry is None else {**consts}
    for place in places:
        eqn, answer = rows.level.eqns[place], rows.made[place]
        inputs = operands(rows, place, answer.ins, env, size)
        if rows.entry is not None and rows.entry[0] == place:
            inputs[rows.entry[1]] = starts[rows.root]
        env.update(zip(eqn.outvars, answer.block(0, size, *inputs), strict=True))
    return env


def operands(rows: BasisRows, place: int, ins: Sequence[Axis | None], env: Mapping[Any, Any], size: int) -> list[Any]:
    """The operands of an equation for `size` rows; `ins` is where it wants rows."""
    found = [x.val if isinstance(x, Literal) else env[x] for x in rows.level.eqns[place].invars]
    known = rows.read(place)
    for k, axis in enumerate(ins):
        if axis is not None and k not in known:  # of such a value all rows are the same
            one = lax.slice_in_dim(found[k], 0, 1, axis=axis.dim)
            found[k] = lax.broadcast_in_dim(one, axis.resize(found[k].shape, size), range(found[k].ndim))
    return found
