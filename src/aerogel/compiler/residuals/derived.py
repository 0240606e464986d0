"""Carries of a loop that are functions of others: what commoning carries on need not be stored beside what it is of.

Where a step ends, such a carry is made of other carries; and it begins as the same function of what these begin with.
So it is that function of them before every step.
"""

from collections.abc import Sequence

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..level import Level
from ..loop import Loop
from ..normalize import equation_key
from ..program import is_var, producers
from ..same import KEPT_APART, literal_key
from .residuals import is_light

Pairs = dict[Var, Atom]  # values of a step, each with what it is before the first one


def derived_carries(level: Level, loop: Loop) -> dict[int, list[JaxprEqn]]:
    """By place, the carries that are light functions of others; each with the equations of the body that make it.

    These read what other carries become in the step, and constants of the loop.
    """
    ends: Pairs = {}
    twice: set[Var] = set()
    for x, init in zip(loop.next_carry, loop.init, strict=True):
        if is_var(x):
            twice |= {x} & ends.keys()
            ends[x] = init
    known = {x: init for x, init in ends.items() if x not in twice}
    known.update(zip(loop.body_consts, loop.consts, strict=True))
    found: dict[int, list[JaxprEqn]] = {}
    for place, x in enumerate(loop.next_carry):
        if is_var(x) and x not in twice:
            eqns = _made_alike(level, loop, x, {v: init for v, init in known.items() if v is not x}, known[x])
            if eqns:
                found[place] = eqns
    return found


def _made_alike(level: Level, loop: Loop, x: Var, known: Pairs, init: Atom) -> list[JaxprEqn]:
    """The equations that make `x` of what is known, if those that make `init` are the same; else none."""
    makers, taken = producers(loop.body), set[int]()
    pairs: Pairs = dict(known)
    todo: list[tuple[Atom, Atom]] = [(x, init)]
    while todo:
        v, atom = todo.pop()
        if not is_var(v) or v in pairs:
            if not _is_same(pairs[v] if is_var(v) else v, atom):
                return []
            continue
        if v not in makers or not is_var(atom) or atom not in level.made_by:
            return []
        eqn, outside = loop.body.eqns[makers[v]], level.eqns[level.made_by[atom]]
        if not _is_alike(eqn, outside) or eqn.outvars.index(v) != outside.outvars.index(atom):
            return []
        taken.add(makers[v])
        pairs.update(zip(eqn.outvars, outside.outvars, strict=True))
        todo += zip(eqn.invars, outside.invars, strict=True)
    return [loop.body.eqns[k] for k in sorted(taken)]


def _is_same(a: Atom, b: Atom) -> bool:
    if isinstance(a, Literal) and isinstance(b, Literal):
        return literal_key(a) == literal_key(b)
    return a is b


def _is_alike(eqn: JaxprEqn, other: JaxprEqn) -> bool:
    """Whether both do the same with their operands, and it is cheap to do once more."""
    if eqn.effects or eqn.primitive.name in KEPT_APART or not is_light(eqn):
        return False
    if eqn.primitive is not other.primitive or len(eqn.invars) != len(other.invars):
        return False
    key = equation_key(other)
    return key is not None and equation_key(eqn.replace(invars=other.invars)) == key


def in_order(derived: dict[int, list[JaxprEqn]], carries: Sequence[Atom]) -> list[int]:
    """The places of derived carries, those that others are made of first."""
    order: list[int] = []

    def visit(place: int) -> None:
        if place not in order:
            read = {x for eqn in derived[place] for x in eqn.invars if is_var(x)}
            for other in derived:
                if other != place and carries[other] in read:
                    visit(other)
            order.append(place)

    for place in derived:
        visit(place)
    return order
