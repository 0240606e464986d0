"""The cotangent of a matrix that a loop multiplies with, summed up after the loop: a product of what its steps stack.

Each step of a backward loop adds outer products to the cotangent, one for each use of the matrix. Taken one by one and
after the loop they are an outer product of small rank.
"""

from functools import reduce

from jax import lax

from aerogel._jax import Jaxpr, Var

from ..hoisting.hoist import LoopCopy, Replacement
from ..hoisting.sink import Sum, contracted, find_sums, sink
from ..loop import Loop, as_loop
from ..program import copy_equation, is_var, producers, substitute, users

MOST_TERMS = 16
LARGEST_RANK = 4  # of what one step adds: that of all steps is then small, too


def with_sums_after(jaxpr: Jaxpr, place: int, smallest: int) -> Jaxpr:
    """The level with the sums of at least so many numbers, that the loop at `place` carries, after the loop.

    The same object if it carries none that are sums of products.
    """
    loop = as_loop(jaxpr.eqns[place])
    if loop is None:
        return jaxpr
    for k, final in enumerate(loop.finals):
        terms = _terms(loop, k) if final.aval.size >= smallest else []
        if 1 < len(terms) <= MOST_TERMS:
            return _one_by_one(loop, k, terms).apply(jaxpr, place)
    sums = [one for one in find_sums(loop) if loop.finals[one.carry].aval.size >= smallest and _is_thin(one)]
    return sink(loop, sums).apply(jaxpr, place) if sums else jaxpr


def _is_thin(one: Sum) -> bool:
    return one.eqn is not None and contracted(one) <= LARGEST_RANK


def _terms(loop: Loop, k: int) -> list[Var]:
    """What a step adds to a carry, one by one; none if it does anything else with it."""
    eqns, makers, readers = loop.body.eqns, producers(loop.body), users(loop.body)
    carry, found, stack = loop.body_carry[k], list[Var](), [loop.next_carry[k]]
    while stack:
        x = stack.pop()
        if not is_var(x) or x.aval.dtype != carry.aval.dtype or x.aval.shape != carry.aval.shape:
            return []
        eqn = eqns[makers[x]] if x in makers and len(readers[x]) == 1 else None
        if eqn is not None and eqn.primitive.name in ("add", "add_any"):
            stack += eqn.invars
        else:
            found.append(x)
    terms = [x for x in found if x is not carry]
    return terms if len(terms) == len(found) - 1 and len(readers.get(carry, ())) == 1 else []


def _one_by_one(loop: Loop, k: int, terms: list[Var]) -> Replacement:
    """The loop with a carry for each of the terms of one."""
    copy = LoopCopy(loop, {k})
    new, env = copy.new, copy.env
    dead = {loop.body_carry[k]}
    for eqn in loop.body.eqns:
        if any(is_var(x) and x in dead for x in eqn.invars):
            dead.update(eqn.outvars)
        else:
            new.body.eqns.append(copy_equation(eqn, env))
    init, final = loop.init[k], loop.finals[k]
    (zeros,) = new.before.call(lambda: lax.full(final.aval.shape, 0, final.aval.dtype))
    finals: list[Var] = []
    for j, term in enumerate(terms):
        before, set_next, after = new.carry(zeros if j else init)
        (added,) = new.body.call(lax.add, before, substitute(term, env))
        set_next(added)
        finals.append(after)
    copy.finish()
    (total,) = new.after.call(lambda *xs: reduce(lax.add, xs), *finals)
    return Replacement(new.equations(), {final: new.after.as_weak_as(final, total)})
