"""Work on a loop's constants is taken out of the branches in its body: XLA leaves what stands there in the loop.

It then runs once, also if no step takes the branch. So does what a branch makes of constants for its derivative alone,
a mask, say: JAX would store that for each step.
"""

from collections.abc import Iterable

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..cost import Machine, equation_seconds, nbytes
from ..loop import Loop
from ..loop_copy import LoopCopy
from ..normal_form.branch_results import given_by_one, known_results
from ..program import copy_equation, is_var, substitute
from .hoist import Replacement, constant_equations
from .hoistable import is_heavy

# With this many steps, the one evaluation is a small price for a branch that no step takes.
LEAST_STEPS = 16
LEAST_SECONDS = 2e-6  # that light work on constants must take in a step


def lift(loop: Loop, machine: Machine) -> tuple[Replacement, list[JaxprEqn]] | None:
    """The loop with the work on constants in front of it, not in branches, and that work; None if it is little."""
    eqns = loop.body.eqns
    if loop.length < LEAST_STEPS or not any(eqn.primitive.name == "cond" for eqn in eqns):
        return None
    fixed: set[Var] = {*loop.body_consts, *(v for i in constant_equations(loop) for v in eqns[i].outvars)}
    roots = {id(eqn): _roots(eqn, fixed, machine) for eqn in eqns if eqn.primitive.name == "cond" and not eqn.effects}
    if not any(any(found) for found in roots.values()):
        return None
    copy = LoopCopy(loop)
    front = _Front(loop, copy)
    lifted: list[JaxprEqn] = []
    for eqn in eqns:
        found = roots.get(id(eqn), [])
        if not any(found):
            copy.new.body.eqns.append(copy_equation(eqn, copy.env))
            continue
        lifted += [branch.eqns[i] for branch, mine in zip(_branches(eqn), found, strict=True) for i in mine]
        new = copy_equation(_lifted(eqn, found, front), copy.env)
        copy.new.body.eqns.append(new)
        known = known_results(new)
        copy.env.update((old, known[v]) for old, v in zip(eqn.outvars, new.outvars, strict=True) if v in known)
    copy.finish()
    return Replacement(copy.new.equations()), lifted


class _Front:
    """What stands in front of a loop: its constants, and what is made of them there.

    Attributes:
        env: what stands there for what the body has of constants.
    """

    def __init__(self, loop: Loop, copy: LoopCopy):
        self.copy, self.body = copy, loop.body
        self.env: dict[Var, Atom] = dict(zip(loop.body_consts, loop.consts, strict=True))
        self.makers = {v: i for i in constant_equations(loop) for v in loop.body.eqns[i].outvars}

    def atom(self, x: Atom) -> Atom:
        """What stands there for a constant of the body, with what it is made of."""
        if not is_var(x) or x in self.env:
            return substitute(x, self.env)
        made = self.body.eqns[self.makers[x]]
        for operand in made.invars:
            self.atom(operand)
        self.add(made, self.env)
        return self.env[x]

    def add(self, eqn: JaxprEqn, env: dict[Var, Atom]) -> None:
        """An equation more, of what `env` has."""
        new = copy_equation(eqn, env)
        env.update(zip(eqn.outvars, new.outvars, strict=True))
        self.copy.new.before.eqns.append(new)

    def operand(self, atom: Atom) -> Var:
        """A variable for what stands there, that is to be an operand in the old body."""
        var = _jax.new_var(atom.aval)
        self.copy.env[var] = self.copy.new.const(atom)
        return var


def _branches(eqn: JaxprEqn) -> list[Jaxpr]:
    return [branch.jaxpr for branch in eqn.params["branches"]]


def _roots(eqn: JaxprEqn, fixed: set[Var], machine: Machine) -> list[list[int]]:
    """For each branch, the equations that take time on the loop's constants only, and what follows of them alone.

    So does what the branch gives, of constants, and no other one gives anything for.
    """
    if any(branch.consts for branch in eqn.params["branches"]):
        return []
    kept = given_by_one(eqn)
    found: list[list[int]] = []
    for branch, alone in zip(_branches(eqn), kept, strict=True):
        moving = {v for v, x in zip(branch.invars, eqn.invars[1:], strict=True) if is_var(x) and x not in fixed}
        mine: list[int] = []
        made: set[Var] = set()
        for i, one in enumerate(branch.eqns):
            if one.effects or any(is_var(x) and x in moving for x in one.invars):
                moving.update(one.outvars)
            elif _takes_time(one, machine) or _follows(one, made) or not alone.isdisjoint(one.outvars):
                mine.append(i)
                made.update(one.outvars)
        found.append(mine)
    return found


def _takes_time(eqn: JaxprEqn, machine: Machine) -> bool:
    """Whether an equation is worth leaving a branch: heavy, or work on much of which no more is made."""
    read = max((nbytes(x.aval) for x in eqn.invars if is_var(x)), default=0)
    is_smaller = sum(nbytes(v.aval) for v in eqn.outvars) <= read
    return is_heavy(eqn) or (is_smaller and equation_seconds(eqn, machine) >= LEAST_SECONDS)


def _follows(eqn: JaxprEqn, made: set[Var]) -> bool:
    """Whether it works on what leaves, and makes no more of it: it costs little next to that, if no step needs it."""
    read = [nbytes(x.aval) for x in eqn.invars if is_var(x) and x in made]
    return bool(read) and sum(nbytes(v.aval) for v in eqn.outvars) <= max(read)


def _lifted(eqn: JaxprEqn, roots: list[list[int]], front: _Front) -> JaxprEqn:
    """Copies the roots in front of the loop, and gives them to the branches as further operands."""
    given: list[tuple[int, Var, Var]] = []  # branch, variable in it, operand
    for k, branch in enumerate(_branches(eqn)):
        outside = dict(zip(branch.invars, eqn.invars[1:], strict=True))
        inner: dict[Var, Atom] = {}
        kept = [one for i, one in enumerate(branch.eqns) if i not in roots[k]]
        needed = {x for x in (*branch.outvars, *(x for one in kept for x in one.invars)) if is_var(x)}
        for i in sorted(_with_ancestors(branch, roots[k])):
            one = branch.eqns[i]
            inner |= {x: front.atom(outside[x]) for x in one.invars if is_var(x) and x in outside}
            front.add(one, inner)
            if i in roots[k]:
                given += ((k, v, front.operand(inner[v])) for v in one.outvars if v in needed)
    branches = []
    for k, branch in enumerate(_branches(eqn)):
        extra = [v if j == k else _jax.new_var(v.aval) for j, v, _ in given]
        kept = [one for i, one in enumerate(branch.eqns) if i not in roots[k]]
        jaxpr = _jax.new_jaxpr(branch, [*branch.invars, *extra], branch.outvars, kept)
        branches.append(ClosedJaxpr(jaxpr, ()))
    invars = [*eqn.invars, *(operand for _, _, operand in given)]
    return eqn.replace(invars=invars, params=dict(eqn.params, branches=tuple(branches)))


def _with_ancestors(branch: Jaxpr, roots: Iterable[int]) -> set[int]:
    makers = {v: i for i, eqn in enumerate(branch.eqns) for v in eqn.outvars}
    found: set[int] = set()
    stack = list(roots)
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            stack += [makers[x] for x in branch.eqns[i].invars if is_var(x) and x in makers]
    return found
