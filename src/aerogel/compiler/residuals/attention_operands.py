"""What a loop of layers stores of its attentions for the gradient: queries, keys and values, and nothing between.

JAX stores the scores of all queries and keys, exponentials and weights, of each layer.
"""

from collections.abc import Sequence

from aerogel import _jax
from aerogel._jax import Atom, Var

from ..cost import nbytes
from ..level import Level
from ..loop import Loop, all_steps
from ..networks.attention import Attention
from ..program import is_var
from .residuals import Residuals, needed_by_loops


def operands_alone(level: Level, place: int, loop: Loop, found: Sequence[Attention]) -> Residuals | None:
    """What a loop then stores, and what its readers make again; None where they read nothing between.

    The attentions stand in a step of the loop, and their operands are what is multiplied.
    """
    needed, readers = needed_by_loops(level, loop)
    operands = [x.atom for one in found for x in (one.q, one.k, one.v, one.bias) if x is not None and is_var(x.atom)]
    between = _between(loop, operands, found)
    again: dict[Var, Atom] = {y: v for y, v in needed.items() if is_var(v) and v in between}
    if not again:
        return None
    there: dict[Atom, Var] = {v: y for y, v in zip(loop.ys, loop.body_ys, strict=True) if y not in again}
    given = {*loop.body_consts, *loop.body_xs}
    stored = {
        v: there.get(v) or _jax.new_var(all_steps(v.aval, loop.length))
        for v in dict.fromkeys(operands)
        if v not in given
    }
    new = sum(nbytes(y.aval) for v, y in stored.items() if v not in there)
    return Residuals(place, loop, readers, again, stored, {}, sum(nbytes(y.aval) for y in again) - new)


def _between(loop: Loop, operands: Sequence[Var], found: Sequence[Attention]) -> set[Var]:
    """What is made of operands and of what no step changes, by way of an attention; and what no step changes."""
    body = loop.body
    results = {v for one in found for v in body.eqns[one.place].outvars}
    inside = {v for one in found for k in one.places for v in body.eqns[k].outvars} - results
    same, between = set(loop.body_consts), set[Var]()
    known = same.union(operands)
    for eqn in body.eqns:
        read = [x for x in eqn.invars if is_var(x)]
        if eqn.effects or not known.issuperset(read) or not results.isdisjoint(eqn.outvars):
            continue
        known.update(eqn.outvars)
        if same.issuperset(read):
            same.update(eqn.outvars)
        if not inside.isdisjoint(eqn.outvars) or not between.isdisjoint(read):
            between.update(eqn.outvars)
    return between | (same - {*loop.body_consts}) if between else between
