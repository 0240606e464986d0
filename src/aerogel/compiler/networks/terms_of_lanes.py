"""Sums over lanes of masked sums of products, as sums of products over the lanes.

What all lanes share, the weights of a branch that `vmap` of a `cond` maps, gets a gradient from each lane: an outer
product, another one for each time that the branch uses them, and zeros where the lane took the other branch. JAX makes
them all for each lane, and sums them up. A mask that varies with lanes alone may stand at the factors of a product
instead, and a sum of products over their batch dimension is one product. It stands at both factors: what a lane
computes in a branch that it did not take may be infinite or no number, and zero times that is no number.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.rebind import bind
from ..known.picks import is_zeros
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record

DEEPEST = 30
MOST_TERMS = 16

Dims = tuple[int, ...]  # for each dimension of a value, the one of what is summed


@record
class _Mask:
    """Where `which` is `kept`, entries are left; `dims` are its dimensions, None for one of size 1 that is repeated."""

    which: Var
    dims: tuple[int | None, ...]
    kept: bool

    @property
    def along(self) -> Dims:
        """The dimensions along which it may vary."""
        return tuple(d for d in self.dims if d is not None)


@record
class _Term:
    """A product, with the dimensions of its result, a sign, and the masks that it is under."""

    product: JaxprEqn
    dims: Dims
    negative: bool
    masks: tuple[_Mask, ...]


@record
class Lanes:
    """A sum that can be made so.

    Attributes:
        edit: that makes it.
        terms: how many products it has.
        masked: whether any of them is under a mask.
        entries: of all products of all lanes, which need not be made.
    """

    edit: Edit
    terms: int
    masked: bool
    entries: int


def terms_of_lanes(level: Level, place: int) -> Lanes | None:
    """The sum at `place` as products over its lanes; None where it is none of several terms, or of a masked one."""
    eqn = level.eqns[place]
    if eqn.primitive.name != "reduce_sum" or eqn.params.get("out_sharding") is not None:
        return None
    (x,), (out,) = eqn.invars, eqn.outvars
    axes = frozenset(int(d) for d in eqn.params["axes"])
    if not is_var(x) or not jnp.issubdtype(x.aval.dtype, jnp.floating) or out.aval.weak_type:
        return None
    terms = list[_Term]()
    if not _collect(level, x, tuple(range(x.aval.ndim)), False, (), terms, 0):
        return None
    if not terms or (len(terms) == 1 and not terms[0].masks) or not all(_is_over(one, axes) for one in terms):
        return None
    entries = sum(one.product.outvars[0].aval.size for one in terms)
    if entries < 2 * sum(v.aval.size for one in terms for v in (*one.product.invars, out)):
        return None
    builder = Builder(eqn)
    made = [_made(builder, one, axes) for one in terms]
    signed = lambda *xs: [-x if one.negative else x for x, one in zip(xs, terms, strict=True)]  # noqa: E731
    (total,) = builder.call(lambda *xs: reduce(lax.add, signed(*xs)), *made)
    here = frozenset({place})
    edit = Edit(place, here, builder.eqns, {out: total}, here)
    return Lanes(edit, len(terms), any(one.masks for one in terms), entries)


def _collect(
    level: Level, x: Atom, dims: Dims, negative: bool, masks: tuple[_Mask, ...], terms: list[_Term], depth: int
) -> bool:
    """Adds the terms that a value is the sum of; whether all of them are products that nobody else reads."""
    eqn = level.maker(x)
    if eqn is None or not is_var(x) or len(level.readers(x)) != 1 or depth > DEEPEST or len(terms) >= MOST_TERMS:
        return False
    name = eqn.primitive.name
    if name in ("add", "add_any", "sub") and all(v.aval.shape == x.aval.shape for v in eqn.invars):
        signs = negative, negative != (name == "sub")
        pairs = zip(eqn.invars, signs, strict=True)
        return all(_collect(level, v, dims, sign, masks, terms, depth + 1) for v, sign in pairs)
    if name == "neg":
        return _collect(level, eqn.invars[0], dims, not negative, masks, terms, depth + 1)
    if name == "transpose":
        order = list(eqn.params["permutation"])
        before = tuple(dims[order.index(d)] for d in range(len(order)))
        return _collect(level, eqn.invars[0], before, negative, masks, terms, depth + 1)
    if name == "select_n":
        found = _mask(level, eqn, dims)
        return found is not None and _collect(level, found[1], dims, negative, (*masks, found[0]), terms, depth + 1)
    if name != "dot_general" or any(v.aval.dtype != x.aval.dtype for v in eqn.invars):
        return False
    if eqn.params.get("out_sharding") is not None:
        return False
    terms.append(_Term(eqn, dims, negative, masks))
    return True


def _mask(level: Level, eqn: JaxprEqn, dims: Dims) -> tuple[_Mask, Atom] | None:
    """The mask of a selection between a value and zeros, before it is repeated, and the value."""
    which, *cases = eqn.invars
    if len(cases) != 2 or not is_var(which) or which.aval.dtype != bool or which.aval.ndim != len(dims):
        return None
    kept = next((k for k in (0, 1) if is_zeros(level, cases[1 - k])), None)
    if kept is None:
        return None
    found, maker = _Mask(which, dims, bool(kept)), level.maker(which)
    while maker is not None and maker.primitive.name == "broadcast_in_dim":
        (inner, *_), to, shape = maker.invars, maker.params["broadcast_dimensions"], found.which.aval.shape
        same = [n == shape[d] for n, d in zip(inner.aval.shape, to, strict=True)]
        if not is_var(inner):
            break
        within = tuple(found.dims[int(d)] if k else None for d, k in zip(to, same, strict=True))
        found = _Mask(inner, within, found.kept)
        maker = level.maker(inner)
    return found, cases[kept]


def _sides(term: _Term) -> tuple[tuple[dict[int, int], dict[int, int]], Dims]:
    """For each operand, which of its dimensions are which of what is summed; and those of the batch."""
    _, (batch, other) = term.product.params["dimension_numbers"]
    labels = iter(term.dims)
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    shared = tuple(next(labels) for _ in batch)
    for side, own in enumerate((batch, other)):
        found[side].update(zip(own, shared, strict=True))
    for side, contracted in enumerate(term.product.params["dimension_numbers"][0]):
        for d in range(term.product.invars[side].aval.ndim):
            if d not in contracted and d not in (batch, other)[side]:
                found[side][d] = next(labels)
    return found, shared


def _is_over(term: _Term, axes: frozenset[int]) -> bool:
    """Whether what is summed over are batch dimensions, and the masks vary along batch dimensions alone."""
    _, shared = _sides(term)
    return axes <= set(shared) and all(set(one.along) <= set(shared) for one in term.masks)


def _made(builder: Builder, term: _Term, axes: frozenset[int]) -> Atom:
    """The sum of a term over the lanes."""
    eqn, (sides, shared) = term.product, _sides(term)
    operands = list(eqn.invars)
    for mask, side in product(term.masks, (0, 1)):
        place = {label: d for d, label in sides[side].items()}
        to = [place[label] for label in mask.along]

        def masked(which: Any, v: Any, to: Sequence[int] = to, mask: _Mask = mask) -> Any:
            which = lax.squeeze(which, [k for k, d in enumerate(mask.dims) if d is None])
            order = sorted(range(len(to)), key=to.__getitem__)
            which = lax.broadcast_in_dim(lax.transpose(which, order), v.shape, [to[k] for k in order])
            return lax.select(which, *((v, lax.full_like(v, 0))[:: 1 if mask.kept else -1]))

        (operands[side],) = builder.call(masked, mask.which, operands[side])
    contracted, batched = eqn.params["dimension_numbers"]
    gone = [k for k, label in enumerate(shared) if label in axes]
    numbers = (
        tuple((*own, *(batch[k] for k in gone)) for own, batch in zip(contracted, batched, strict=True)),
        tuple(tuple(d for k, d in enumerate(batch) if k not in gone) for batch in batched),
    )
    kept = [label for label in term.dims if label not in axes]
    order = sorted(range(len(kept)), key=kept.__getitem__)

    def summed(a: Any, b: Any) -> Any:
        (made,) = bind(eqn, (a, b), dict(eqn.params, dimension_numbers=numbers))
        return made if order == list(range(len(order))) else lax.transpose(made, order)

    return builder.call(summed, *operands)[0]
