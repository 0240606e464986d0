"""A program of a function and its gradient in two halves: what runs before the cotangents are there, and after.

Passes look at both together; but a caller that takes a gradient wants the results first, and the gradient later or
never. What the second half reads of the first is what has to be kept in between.
"""

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..program import Program, is_var
from ..record import record

# Made again where they are read, they cost nothing; kept, they are as large as what they are spread to.
FREE = frozenset({"broadcast_in_dim", "iota"})


@record
class Halves:
    """The two halves of a program.

    Attributes:
        first: arguments -> results, then what is kept.
        second: arguments, what is kept, cotangents -> cotangents of arguments.
    """

    first: ClosedJaxpr
    second: ClosedJaxpr


def halves(program: Program, cotangents: int, results: int) -> Halves | None:
    """The halves of a program; None if its results cannot be had without the cotangents.

    Each half has no more than it needs: a loop that makes something for both is run in both.

    Args:
        program: arguments, cotangents -> results, cotangents of arguments.
        cotangents: how many it takes.
        results: how many there are before the cotangents of arguments.
    """
    jaxpr = program.jaxpr
    given = len(jaxpr.invars) - cotangents
    args, cts = jaxpr.invars[:given], jaxpr.invars[given:]
    back = _jax.drop_dead(_jax.new_jaxpr(jaxpr, jaxpr.invars, jaxpr.outvars[results:], jaxpr.eqns, jaxpr.constvars))
    late = _late(back, set(cts))
    made = {v for eqn in late for v in eqn.outvars} | set(cts)
    there = {*args, *jaxpr.constvars}
    read = (x for x in (*(x for eqn in late for x in eqn.invars), *back.outvars) if is_var(x))
    kept = list(dict.fromkeys(x for x in read if x not in made and x not in there))
    first = _jax.new_jaxpr(jaxpr, jaxpr.invars, [*jaxpr.outvars[:results], *kept], jaxpr.eqns, jaxpr.constvars)
    first = _jax.drop_dead(first)
    if _reads(first, set(cts)):
        return None
    first = _jax.new_jaxpr(jaxpr, args, first.outvars, first.eqns, jaxpr.constvars)
    second = _jax.new_jaxpr(jaxpr, [*args, *kept, *cts], back.outvars, late, jaxpr.constvars)
    return Halves(ClosedJaxpr(first, program.consts), ClosedJaxpr(second, program.consts))


def _late(jaxpr: Jaxpr, cotangents: set[Var]) -> list[JaxprEqn]:
    """The equations that need cotangents, and what is free and only made for these."""
    dependent, found = set(cotangents), set[int]()
    for i, eqn in enumerate(jaxpr.eqns):
        if any(is_var(x) and x in dependent for x in eqn.invars):
            dependent.update(eqn.outvars)
            found.add(i)
    read: set[Var] = set()
    for i in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[i]
        if i in found or (eqn.primitive.name in FREE and any(v in read for v in eqn.outvars)):
            found.add(i)
            read.update(filter(is_var, eqn.invars))
    return [jaxpr.eqns[i] for i in sorted(found)]


def _reads(jaxpr: Jaxpr, values: set[Var]) -> bool:
    atoms = (*jaxpr.outvars, *(x for eqn in jaxpr.eqns for x in eqn.invars))
    return any(is_var(x) and x in values for x in atoms)
