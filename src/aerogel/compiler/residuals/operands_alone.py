"""What a loop stores of formulas in its steps for their derivatives: the operands, and nothing between.

Of a layer's attention, JAX stores the scores of all queries and keys, exponentials and weights. A derivative that is
not JAX's own reads none of these.
"""

from collections.abc import Sequence

from aerogel import _jax
from aerogel._jax import Atom, Var

from ..cost import nbytes
from ..level import Level
from ..loop import Loop, all_steps
from ..program import is_var
from ..record import record
from .residuals import Residuals, needed_by_loops


@record
class Formula:
    """What a step computes of some values.

    Attributes:
        operands: the values.
        places: where it is computed.
        apart: results that are stored where they are needed.
        onward: whether what is made of it and of what no step changes is computed again as well.
    """

    operands: tuple[Var, ...]
    places: frozenset[int]
    apart: frozenset[Var] = frozenset()
    onward: bool = True


def operands_alone(level: Level, place: int, loop: Loop, found: Sequence[Formula]) -> Residuals | None:
    """What a loop then stores, and what its readers make again; None where they read nothing between.

    The formulas stand in a step of the loop.
    """
    needed, readers = needed_by_loops(level, loop)
    operands = [x for one in found for x in one.operands]
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


def _between(loop: Loop, operands: Sequence[Var], found: Sequence[Formula]) -> set[Var]:
    """What is made of operands and of what no step changes, by way of a formula; and what no step changes."""
    body = loop.body
    results = {v for one in found for v in one.apart}
    inside = {v for one in found for k in one.places for v in body.eqns[k].outvars} - results
    onward = any(one.onward for one in found)
    same, between = set(loop.body_consts), set[Var]()
    known = same.union(operands)
    for eqn in body.eqns:
        read = [x for x in eqn.invars if is_var(x)]
        if eqn.effects or not known.issuperset(read) or not results.isdisjoint(eqn.outvars):
            continue
        known.update(eqn.outvars)
        if same.issuperset(read):
            same.update(eqn.outvars)
        if not inside.isdisjoint(eqn.outvars) or (onward and not between.isdisjoint(read)):
            between.update(eqn.outvars)
    return between | (same - {*loop.body_consts}) if between else between
