"""What can leave a sum of products, if the products are then cheaper: other terms of the sum, and what divides rows.

`sum(A @ B + c)` is `sum(A @ B) + n * sum(c)`, and needs no product then; `(a / a.sum(1)[:, None]) @ v` is `(a @ v) /
a.sum(1)[:, None]`, and where `a` is `q @ k.T`, none of the n x n numbers need be made. What divides the terms of a
sum cannot leave it, but can be a factor: the mean of the gradients of examples, each divided by its norm, is one
product of matrices. A mask on the terms goes behind the sum, or to both factors (`masked_sums.py`). None of these
forms is for the better by itself: it is tried, and kept where the products around it find a cheaper order.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.rebind import bind
from ..known.records import Constant, Facts, Identity, Repeated, the
from ..level import Edit, Level, apply_edits
from ..pipeline import Context
from ..program import Builder, is_var
from ..record import record
from .contractions import sites_of
from .masked_sums import with_mask_behind
from .network_reader import VIEWS, is_plain

# Terms are summed up one by one: in fewer bits, each sum would be rounded.
FLOATS = frozenset("float32 float64 complex64 complex128".split())
MOST_TERMS = 8


@record
class _Released:
    """An edit, and the products or sums that it is for; or factors, which must then go into one."""

    edit: Edit
    made: frozenset[Var]
    is_factor: bool = False


def released(level: Level, facts: Facts, facts_of: Callable[[Jaxpr], Facts], context: Context) -> list[Edit]:
    """The edits with which a sum of products is cheaper; `facts_of` says what is known of an edited level."""
    found = [one for place in range(len(level.eqns)) for one in _found(level, facts, place)]
    if not found:
        return []
    tried = Level(apply_edits(level.jaxpr, [one.edit for one in found])[0])
    sites, _ = sites_of(tried, facts_of(tried.jaxpr), context)
    roots = {v for site in sites for v in tried.eqns[site.root].outvars}
    gone = {v for site in sites for k in site.dying for v in tried.eqns[k].outvars}
    # A sum may be a part of a larger one: a gradient adds up once more, over a dimension of size 1.
    return [one.edit for one in found if not (gone if one.is_factor else gone | roots).isdisjoint(one.made)]


def _found(level: Level, facts: Facts, place: int) -> list[_Released]:
    eqn = level.eqns[place]
    if eqn.primitive.name not in ("dot_general", "reduce_sum") or not eqn.outvars[0].aval.size:
        return []
    if not is_plain(eqn) or str(eqn.outvars[0].aval.dtype) not in FLOATS or eqn.outvars[0].aval.weak_type:
        return []
    if eqn.primitive.name == "reduce_sum":
        made = _apart(level, facts, place) or _unmasked(level, facts, place)
    else:
        made = _undivided(level, facts, place)
    return _multiplied(level, facts, eqn) if made is None else [made]


def _unmasked(level: Level, facts: Facts, place: int) -> _Released | None:
    """A sum with its masks behind it, or in both of its factors."""
    eqn, here = level.eqns[place], frozenset({place})
    builder = Builder(eqn)
    found = with_mask_behind(level, facts, eqn, builder)
    if found is None:
        return None
    result, made = found
    return _Released(Edit(place, here, builder.eqns, {eqn.outvars[0]: result}, here), frozenset(made))


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
    """The sum of a sum, or of what a mask leaves of one: term by term."""
    eqn = level.eqns[place]
    (x,), (out,), axes = eqn.invars, eqn.outvars, [int(d) for d in eqn.params["axes"]]
    terms: list[tuple[Atom, bool]] = []
    mask = _alone(level, x)
    masked = None if mask is None else _masked(facts, mask)
    _collect(level, x if mask is None or masked is None else mask.invars[masked], False, terms)
    if not 2 <= len(terms) <= MOST_TERMS or not any(_is_product(level, term) for term, _ in terms):
        return None
    builder, shape = Builder(eqn), x.aval.shape
    total, made = None, set[Var]()
    for term, minus in terms:
        start = len(builder.eqns)
        once = [d for d in axes if Repeated(d) in facts.of(term)] if term.aval.shape == shape else []
        if mask is not None and masked is not None:
            if term.aval.shape != shape:
                return None
            cases = [term if k == masked else case for k, case in enumerate(mask.invars)]
            term, once = builder.call(lambda *cases: bind(mask, cases, mask.params), *cases)[0], []
        (y,) = builder.call(lambda v, once=once: _summed(v, shape, axes, once), term)
        made.update(v for new in builder.eqns[start:] if new.primitive.name == "reduce_sum" for v in new.outvars)
        if total is None:
            total = builder.call(lax.neg, y)[0] if minus else y
        else:
            total = builder.call(lax.sub if minus else lax.add, total, y)[0]
    assert total is not None
    here = frozenset({place})
    return _Released(Edit(place, here, builder.eqns, {out: total}, here), frozenset(made))


def _masked(facts: Facts, eqn: JaxprEqn) -> int | None:
    """Which operand an equation leaves as it is on a diagonal, and makes zero elsewhere."""
    if eqn.primitive.name != "select_n" or the(Identity, facts.of(eqn.invars[0])) is None:
        return None
    zeros = [k for k, x in enumerate(eqn.invars[1:], 1) if (c := the(Constant, facts.of(x))) and c.value == 0]
    return 3 - zeros[0] if len(zeros) == 1 else None


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
    """A product of which an operand is divided by what varies along its rows, or its columns, alone.

    Where that is what is summed over, the other operand is divided; where it is not, the result is.
    """
    eqn = level.eqns[place]
    (contract, _), (product,) = eqn.params["dimension_numbers"], eqn.outvars
    for side, x in enumerate(eqn.invars):
        order, made = tuple(range(len(x.aval.shape))), level.maker(x)
        while made is not None and made.primitive.name == "transpose":
            order = tuple(made.params["permutation"][d] for d in order)
            made = level.maker(made.invars[0])
        if made is None or made.primitive.name != "div" or not is_plain(made) or not _is_network(level, made.invars[0]):
            continue
        core, divisor = made.invars
        if core.aval.shape != made.outvars[0].aval.shape or len(divisor.aval.shape) != len(order):
            continue
        varies = [d for d, n in enumerate(divisor.aval.shape) if n != 1 and Repeated(d) not in facts.of(divisor)]
        summed = [order[d] for d in contract[side]]
        builder, operands, out = Builder(eqn), list(eqn.invars), _jax.new_var(product.aval)
        operands[side] = builder.call(lambda v, order=order: _moved(v, order), core)[0]
        line = partial(_line, kept=[d for d in order if d in varies])
        if not set(varies) & set(summed):
            to = _places(eqn, side)
            divided = partial(_divided, line=line, to=[to[k] for k, d in enumerate(order) if d in varies])
            builder.eqns.append(eqn.replace(invars=operands, outvars=[out]))
            (result,) = builder.call(divided, out, divisor)
        elif all(order[k] not in varies for k in _free(eqn, side)):
            to = _places_of_other(eqn, side)
            divided = partial(_divided, line=line, to=[to[k] for k, d in enumerate(order) if d in varies])
            operands[1 - side] = builder.call(divided, operands[1 - side], divisor)[0]
            builder.eqns.append(eqn.replace(invars=operands, outvars=[out]))
            result = out
        else:
            continue
        here = frozenset({place})
        return _Released(Edit(place, here, builder.eqns, {product: result}, here), frozenset({out}))
    return None


def _multiplied(level: Level, facts: Facts, eqn: JaxprEqn) -> list[_Released]:
    """Operands that are products, divided by what repeats fewer numbers: multiplied by one over these."""
    found: list[_Released] = []
    for x in eqn.invars:
        made = _alone(level, x)
        while made is not None and made.primitive.name in VIEWS:
            x, made = made.invars[0], _alone(level, made.invars[0])
        if made is None or made.primitive.name != "div" or not is_plain(made):
            continue
        (core, divisor), shape = made.invars, made.outvars[0].aval.shape
        if not (_is_network(level, core) or _is_outer(level, facts, core)):
            continue
        if core.aval.shape != shape or len(divisor.aval.shape) != len(shape):
            continue
        once = [d for d, n in enumerate(shape) if n > 1 and _is_once(facts, divisor, d)]
        if not once:
            continue
        builder, place = Builder(made), level.made_by[made.outvars[0]]
        (factor,) = builder.call(partial(_inverse, once=once, shape=shape), divisor)
        (out,) = builder.call(lax.mul, core, factor)
        assert is_var(out), "what a call makes is a variable"
        here = frozenset({place})
        edit = Edit(place, here, builder.eqns, {made.outvars[0]: out}, here)
        found.append(_Released(edit, frozenset({out}), is_factor=True))
    return found


def _inverse(d: Any, once: Sequence[int], shape: Sequence[int]) -> Any:
    """One over the numbers that a divisor repeats along `once`, repeated."""
    for axis in once:
        d = lax.slice_in_dim(d, 0, 1, axis=axis) if d.shape[axis] > 1 else d
    kept = [k for k, n in enumerate(d.shape) if n > 1]
    inverse = lax.div(np.ones((), d.dtype), lax.reshape(d, [d.shape[k] for k in kept]))
    return lax.broadcast_in_dim(inverse, shape, kept)


def _moved(v: Any, order: Sequence[int]) -> Any:
    return v if list(order) == list(range(v.ndim)) else lax.transpose(v, order)


def _line(d: Any, kept: Sequence[int]) -> Any:
    """A value without the dimensions along which it does not vary, those that are kept in their order."""
    for axis in set(range(d.ndim)) - set(kept):
        d = lax.slice_in_dim(d, 0, 1, axis=axis)
    d = lax.transpose(d, [*kept, *(k for k in range(d.ndim) if k not in kept)])
    return lax.reshape(d, d.shape[: len(kept)])


def _divided(y: Any, d: Any, line: Callable[[Any], Any], to: Sequence[int]) -> Any:
    """A value divided by a line whose dimensions are those of its own at places `to`."""
    order = sorted(range(len(to)), key=lambda k: to[k])
    return lax.div(y, lax.broadcast_in_dim(_moved(line(d), order), y.shape, [to[k] for k in order]))


def _is_network(level: Level, x: Atom) -> bool:
    """Whether a value is a product, however it is moved: others may read that, too."""
    made = level.maker(x)
    while made is not None and made.primitive.name in VIEWS:
        made = level.maker(made.invars[0])
    return made is not None and made.primitive.name == "dot_general"


def _is_outer(level: Level, facts: Facts, x: Atom) -> bool:
    """Whether a value is made of fewer numbers: each of two factors repeats its own."""
    made = level.maker(x)
    while made is not None and made.primitive.name in VIEWS:
        made = level.maker(made.invars[0])
    if made is None or made.primitive.name != "mul":
        return False
    shape = made.outvars[0].aval.shape
    return all(any(n > 1 and _is_once(facts, y, d) for d, n in enumerate(shape)) for y in made.invars)


def _is_once(facts: Facts, y: Atom, d: int) -> bool:
    """Whether an operand does not vary along a dimension of what it is multiplied to."""
    return not y.aval.shape or y.aval.shape[d] == 1 or Repeated(d) in facts.of(y)


def _places(eqn: JaxprEqn, side: int) -> list[int]:
    """For each dimension of an operand the one of the product that it is; -1 if it is summed over."""
    _, batch = eqn.params["dimension_numbers"]
    start = len(batch[0]) + (len(_free(eqn, 0)) if side else 0)
    to = [-1] * len(eqn.invars[side].aval.shape)
    for k, d in enumerate(batch[side]):
        to[d] = k
    for k, d in enumerate(_free(eqn, side)):
        to[d] = start + k
    return to


def _free(eqn: JaxprEqn, side: int) -> list[int]:
    """The dimensions of an operand that are the result's alone."""
    contract, batch = eqn.params["dimension_numbers"]
    return [d for d in range(len(eqn.invars[side].aval.shape)) if d not in contract[side] and d not in batch[side]]


def _places_of_other(eqn: JaxprEqn, side: int) -> list[int]:
    """For each dimension of an operand the one of the other operand that it meets; -1 if it meets none."""
    to = [-1] * len(eqn.invars[side].aval.shape)
    for dims in eqn.params["dimension_numbers"]:
        for mine, other in zip(dims[side], dims[1 - side], strict=True):
            to[mine] = other
    return to
