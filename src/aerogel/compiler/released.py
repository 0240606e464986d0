"""What can leave a sum of products, if the products are then cheaper: other terms of the sum, and what divides rows.

`sum(A @ B + c)` is `sum(A @ B) + n * sum(c)`, and needs no product then; `(a / a.sum(1)[:, None]) @ v` is `(a @ v) /
a.sum(1)[:, None]`, and where `a` is `q @ k.T`, none of the n x n numbers need be made. Neither form is for the better
by itself: it is tried, and kept where the products around it find a cheaper order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from .contractions import sites_of
from .level import Edit, Level, apply_edits
from .networks import VIEWS, is_plain
from .pipeline import Context
from .program import Builder, is_var
from .records import Facts, Repeated

# Terms are summed up one by one: in fewer bits, each sum would be rounded.
FLOATS = frozenset("float32 float64 complex64 complex128".split())
MOST_TERMS = 8


@dataclass(frozen=True)
class _Released:
    """An edit, and the products or sums that it is for."""

    edit: Edit
    made: frozenset[Var]


def released(level: Level, facts: Facts, facts_of: Callable[[Jaxpr], Facts], context: Context) -> list[Edit]:
    """The edits with which a sum of products is cheaper; `facts_of` says what is known of an edited level."""
    found = [one for place in range(len(level.eqns)) for one in _found(level, facts, place)]
    if not found:
        return []
    tried = Level(apply_edits(level.jaxpr, [one.edit for one in found])[0])
    sites, _ = sites_of(tried, facts_of(tried.jaxpr), context)
    roots = {v for site in sites for v in tried.eqns[site.root].outvars}
    return [one.edit for one in found if not roots.isdisjoint(one.made)]


def _found(level: Level, facts: Facts, place: int) -> list[_Released]:
    eqn = level.eqns[place]
    if eqn.primitive.name not in ("dot_general", "reduce_sum") or not eqn.outvars[0].aval.size:
        return []
    if not is_plain(eqn) or str(eqn.outvars[0].aval.dtype) not in FLOATS or eqn.outvars[0].aval.weak_type:
        return []
    made = _apart(level, facts, place) if eqn.primitive.name == "reduce_sum" else _undivided(level, facts, place)
    return [] if made is None else [made]


def _alone(level: Level, x: Atom) -> JaxprEqn | None:
    """The equation that makes a value for one reader."""
    return level.maker(x) if is_var(x) and len(level.readers(x)) == 1 else None


def _is_product(level: Level, x: Atom) -> bool:
    """Whether a value is a product that is moved and scaled, and nobody else reads it."""
    while (made := _alone(level, x)) is not None and made.primitive.name != "dot_general":
        if made.primitive.name in ("mul", "div") and made.invars[1].aval.size == 1:
            x = made.invars[0]
        elif made.primitive.name == "mul" and made.invars[0].aval.size == 1:
            x = made.invars[1]
        elif made.primitive.name in ("transpose", "reshape", "squeeze", "neg"):
            x = made.invars[0]
        else:
            return False
    return made is not None


def _apart(level: Level, facts: Facts, place: int) -> _Released | None:
    """The sum of a sum: term by term."""
    eqn = level.eqns[place]
    (x,), (out,), axes = eqn.invars, eqn.outvars, [int(d) for d in eqn.params["axes"]]
    terms: list[tuple[Atom, bool]] = []
    _collect(level, x, False, terms)
    if not 2 <= len(terms) <= MOST_TERMS or not any(_is_product(level, term) for term, _ in terms):
        return None
    builder, shape = Builder(eqn), x.aval.shape
    total, made = None, set[Var]()
    for term, minus in terms:
        start = len(builder.eqns)
        once = [d for d in axes if Repeated(d) in facts.of(term)] if term.aval.shape == shape else []
        (y,) = builder.call(lambda v, once=once: _summed(v, shape, axes, once), term)
        made.update(v for new in builder.eqns[start:] if new.primitive.name == "reduce_sum" for v in new.outvars)
        if total is None:
            total = builder.call(lax.neg, y)[0] if minus else y
        else:
            total = builder.call(lax.sub if minus else lax.add, total, y)[0]
    assert total is not None
    here = frozenset({place})
    return _Released(Edit(place, here, builder.eqns, {out: total}, here), frozenset(made))


def _collect(level: Level, x: Atom, minus: bool, terms: list[tuple[Atom, bool]]) -> None:
    made = _alone(level, x)
    if made is None or made.primitive.name not in ("add", "add_any", "sub", "neg") or not is_plain(made):
        terms.append((x, minus))
        return
    for k, operand in enumerate(made.invars):
        turned = made.primitive.name == "neg" or (made.primitive.name == "sub" and k == 1)
        if operand.aval.shape == made.outvars[0].aval.shape:
            _collect(level, operand, minus != turned, terms)
        else:
            terms.append((operand, minus != turned))


def _summed(v: Any, shape: Sequence[int], axes: Sequence[int], once: Sequence[int]) -> Any:
    """The sum over `axes` of a term, stretched to `shape`, that does not vary along `once`."""
    v = lax.reshape(v, (1,) * len(shape)) if v.ndim != len(shape) else v
    for d in once:
        v = lax.slice_in_dim(v, 0, 1, axis=d)
    count = math.prod(shape[d] for d in axes if v.shape[d] == 1)
    v = lax.reduce_sum(v, axes)
    v = v if count == 1 else v * np.asarray(count, v.dtype)
    kept = [n for d, n in enumerate(shape) if d not in axes]
    return v if v.shape == tuple(kept) else lax.broadcast_in_dim(v, kept, range(v.ndim))


def _undivided(level: Level, facts: Facts, place: int) -> _Released | None:
    """A product whose operand is divided by what does not vary along what is summed over: the result is divided."""
    eqn = level.eqns[place]
    (contract, _), (product,) = eqn.params["dimension_numbers"], eqn.outvars
    for side, x in enumerate(eqn.invars):
        order, made = tuple(range(len(x.aval.shape))), _alone(level, x)
        while made is not None and made.primitive.name == "transpose":
            order = tuple(made.params["permutation"][d] for d in order)
            made = _alone(level, made.invars[0])
        if made is None or made.primitive.name != "div" or not is_plain(made) or not _is_network(level, made.invars[0]):
            continue
        core, divisor = made.invars
        summed = [order[d] for d in contract[side]]
        same = core.aval.shape == made.outvars[0].aval.shape and len(divisor.aval.shape) == len(order)
        if not same or not all(divisor.aval.shape[d] == 1 or Repeated(d) in facts.of(divisor) for d in summed):
            continue
        builder, operands = Builder(eqn), list(eqn.invars)
        operands[side] = builder.call(lambda v, order=order: _moved(v, order), core)[0]
        out = _jax.new_var(product.aval)
        builder.eqns.append(eqn.replace(invars=operands, outvars=[out]))
        divided = partial(_divided, order=order, summed=summed, to=_places(eqn, side))
        (quotient,) = builder.call(divided, out, divisor)
        here = frozenset({place})
        return _Released(Edit(place, here, builder.eqns, {product: quotient}, here), frozenset({out}))
    return None


def _moved(v: Any, order: Sequence[int]) -> Any:
    return v if list(order) == list(range(v.ndim)) else lax.transpose(v, order)


def _divided(y: Any, d: Any, order: Sequence[int], summed: Sequence[int], to: Sequence[int]) -> Any:
    """A product divided by what an operand was divided by."""
    for axis in summed:
        d = lax.slice_in_dim(d, 0, 1, axis=axis)
    d = _moved(d, order)
    kept = sorted((k for k in range(d.ndim) if to[k] >= 0), key=lambda k: to[k])
    d = lax.transpose(d, [*kept, *(k for k in range(d.ndim) if to[k] < 0)])
    d = lax.reshape(d, d.shape[: len(kept)])
    return lax.div(y, lax.broadcast_in_dim(d, y.shape, [to[k] for k in kept]))


def _is_network(level: Level, x: Atom) -> bool:
    """Whether a value is a product, however it is moved: others may read that, too."""
    made = level.maker(x)
    while made is not None and made.primitive.name in VIEWS:
        made = level.maker(made.invars[0])
    return made is not None and made.primitive.name == "dot_general"


def _places(eqn: JaxprEqn, side: int) -> list[int]:
    """For each dimension of an operand the one of the product that it is; -1 if it is summed over."""
    contract, batch = eqn.params["dimension_numbers"]
    ranks = [len(x.aval.shape) for x in eqn.invars]
    free = [[d for d in range(n) if d not in c and d not in b] for n, c, b in zip(ranks, contract, batch, strict=True)]
    start = len(batch[0]) + (len(free[0]) if side else 0)
    to = [-1] * ranks[side]
    for k, d in enumerate(batch[side]):
        to[d] = k
    for k, d in enumerate(free[side]):
        to[d] = start + k
    return to
