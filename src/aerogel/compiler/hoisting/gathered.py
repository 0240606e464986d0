"""What the steps of a loop add to a carry."""

from collections.abc import Mapping

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..loop import Loop
from ..program import Readers, is_var
from ..record import record

# A carry of more terms than these is not looked through.
MOST_TERMS = 16


@record
class Gathered:
    """What a carry gathers in a step.

    Attributes:
        own: the carry, as the additions read it.
        terms: what is added to it.
        adds: the additions, the one that makes the next carry first.
    """

    own: Var
    terms: list[Var]
    adds: list[JaxprEqn]


def gathered(loop: Loop, carry: int, readers: Readers, makers: Mapping[Var, JaxprEqn]) -> Gathered | None:
    """What a carry gathers in a step; None if anything else is done with it.

    Args:
        loop: the loop.
        carry: its position.
        readers: who reads what in its body.
        makers: the equation of the body that makes a value.
    """
    aval, nxt = loop.finals[carry].aval, loop.next_carry[carry]
    if not _jax.is_number(aval.dtype):  # an extended type has an addition of its own
        return None
    own = _through_weak_type(loop, loop.body_carry[carry], readers)
    if own is None or not is_var(nxt) or readers[nxt] != [-1] or sum(x is nxt for x in loop.body.outvars) != 1:
        return None
    leaves: list[Var] = []
    adds: list[JaxprEqn] = []
    stack: list[Atom] = [nxt]
    while stack:
        x = stack.pop()
        if not is_var(x) or x.aval.shape != aval.shape or x.aval.dtype != aval.dtype:
            return None
        eqn = makers.get(x)
        if eqn is not None and eqn.primitive.name in ("add", "add_any") and len(readers[x]) == 1:
            adds.append(eqn)
            stack += eqn.invars
        else:
            leaves.append(x)
    terms = [x for x in leaves if x is not own]
    fixed = any(x in loop.body_consts or x in loop.body_carry for x in terms)
    if fixed or len(terms) != len(leaves) - 1 or not 0 < len(terms) <= MOST_TERMS:
        return None
    return Gathered(own, terms, adds)


def _through_weak_type(loop: Loop, carry: Var, readers: Readers) -> Var | None:
    """The one value that stands for a carry in its addition: itself, or itself without weakness of its type."""
    if len(readers.get(carry, ())) != 1 or readers[carry] == [-1]:
        return None
    eqn = loop.body.eqns[readers[carry][0]]
    if eqn.primitive.name != "convert_element_type":
        return carry
    out = eqn.outvars[0]
    only = len(readers.get(out, ())) == 1 and readers[out] != [-1]
    return out if only and out.aval.dtype == carry.aval.dtype else None
