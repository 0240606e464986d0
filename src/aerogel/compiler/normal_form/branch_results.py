"""Results of branches that are known in front of them, or twice.

What JAX stores of one branch for its derivative is a result of the `cond`, and nothing in particular in the others
(`empty2`): it is what the one branch gives, which often is an operand, such as weights, or another result.
"""

from collections.abc import Mapping, Sequence

from aerogel import _jax
from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Literal, Var

from ..cost import nbytes
from ..program import is_var, where
from ..report import Decision
from ..same import literal_key
from .tidy import SMALLEST_SAVING, same_type

UNDEFINED = frozenset(("empty", "empty2"))
VIEWS = frozenset("broadcast_in_dim pvary reshape".split())


def known_results(eqn: JaxprEqn) -> dict[Var, Atom]:
    """The results of a `cond` that are, whatever branch is taken, an operand, a number or an earlier result."""
    if eqn.effects or any(branch.consts for branch in eqn.params["branches"]):
        return {}
    known: dict[Var, Atom] = {}
    kept: list[tuple[Var, tuple[Atom | None, ...]]] = []
    for out, values in zip(eqn.outvars, given_by_branches(eqn), strict=True):
        if isinstance(out, DropVar) or _jax.explicit_mesh(out.aval):
            continue
        same = _outside(values, eqn) or next((one for one, others in kept if _are(values, others)), None)
        if same is not None and same_type(same, out):
            known[out] = same
        else:
            kept.append((out, values))
    return known


def given_once(eqn: JaxprEqn, known: Mapping[Var, Atom]) -> list[Decision]:
    """A decision if branches give less, enough to matter."""
    saved = sum(nbytes(v.aval) for v in known)
    if saved < SMALLEST_SAVING:
        return []
    what, reason = "results of branches are not copied", "each branch that gives them gives the same"
    return [Decision("branch-results", what, where(eqn), True, reason, 0, 2 * saved, saved)]


def given_by_branches(eqn: JaxprEqn) -> list[tuple[Atom | None, ...]]:
    """For each result of a `cond`, what each branch gives: an operand of it, a number, or a variable of its own.

    None stands for what may be anything.
    """
    given = [_given(branch.jaxpr, eqn.invars[1:]) for branch in eqn.params["branches"]]
    return list(zip(*given, strict=True))


def given_by_one(eqn: JaxprEqn) -> list[set[Var]]:
    """For each branch, what it makes and gives as results that no other gives anything for."""
    found: list[set[Var]] = [set() for _ in eqn.params["branches"]]
    for values in given_by_branches(eqn):
        one = [(k, x) for k, x in enumerate(values) if x is not None]
        if len(one) == 1 and is_var(one[0][1]):
            found[one[0][0]].add(one[0][1])
    return found


def _given(branch: Jaxpr, operands: Sequence[Atom]) -> list[Atom | None]:
    """What a branch gives: an operand of the `cond`, a number, a variable of its own; None of what may be anything."""
    names: Mapping[Atom, Atom] = dict(zip(branch.invars, operands, strict=True))
    makers = {v: one for one in branch.eqns for v in one.outvars}
    return [None if _is_undefined(x, makers) else names.get(x, x) if is_var(x) else x for x in branch.outvars]


def _is_undefined(x: Atom, makers: Mapping[Var, JaxprEqn]) -> bool:
    maker = makers.get(x) if is_var(x) else None
    while maker is not None and maker.primitive.name in VIEWS:
        x = maker.invars[0]
        maker = makers.get(x) if is_var(x) else None
    return maker is not None and maker.primitive.name in UNDEFINED


def _outside(values: Sequence[Atom | None], eqn: JaxprEqn) -> Atom | None:
    """What all branches give that give anything, if it is made outside."""
    found = {_key(x): x for x in values if x is not None}
    if len(found) != 1:
        return None
    (x,) = found.values()
    return x if isinstance(x, Literal) or any(x is operand for operand in eqn.invars[1:]) else None


def _are(values: Sequence[Atom | None], others: Sequence[Atom | None]) -> bool:
    """Whether what each branch gives, if it gives anything, is what it gives as another result."""
    pairs = zip(values, others, strict=True)
    return all(a is None or (b is not None and _key(a) == _key(b)) for a, b in pairs)


def _key(x: Atom) -> object:
    return literal_key(x) if isinstance(x, Literal) else id(x)
