"""Work on a loop's constants is taken out of the branches in its body: XLA leaves what stands there in the loop.

It then runs once, also if no step takes the branch.
"""

from collections.abc import Iterable

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..loop import Loop
from ..program import copy_equation, is_var, substitute
from .hoist import LoopCopy, Replacement, constant_equations
from .hoistable import is_heavy

# With this many steps, the one evaluation is a small price for a branch that no step takes.
LEAST_STEPS = 16


def lift(loop: Loop) -> tuple[Replacement, list[JaxprEqn]] | None:
    """The loop with the heavy work on constants in front of the branches it stood in, and that work; None if none."""
    eqns = loop.body.eqns
    if loop.length < LEAST_STEPS or not any(eqn.primitive.name == "cond" for eqn in eqns):
        return None
    fixed: set[Var] = {*loop.body_consts, *(v for i in constant_equations(loop) for v in eqns[i].outvars)}
    roots = {id(eqn): _roots(eqn, fixed) for eqn in eqns if eqn.primitive.name == "cond" and not eqn.effects}
    if not any(any(found) for found in roots.values()):
        return None
    copy = LoopCopy(loop)
    lifted: list[JaxprEqn] = []
    for eqn in eqns:
        found = roots.get(id(eqn), [])
        if any(found):
            lifted += [branch.eqns[i] for branch, mine in zip(_branches(eqn), found, strict=True) for i in mine]
            eqn = _lifted(eqn, found, copy.env, copy.new.body.eqns)
        copy.new.body.eqns.append(copy_equation(eqn, copy.env))
    copy.finish()
    return Replacement(copy.new.equations()), lifted


def _branches(eqn: JaxprEqn) -> list[Jaxpr]:
    return [branch.jaxpr for branch in eqn.params["branches"]]


def _roots(eqn: JaxprEqn, fixed: set[Var]) -> list[list[int]]:
    """For each branch, the heavy equations that depend on the loop's constants only, and what follows of them alone."""
    if any(branch.consts for branch in eqn.params["branches"]):
        return []
    found: list[list[int]] = []
    for branch in _branches(eqn):
        moving = {v for v, x in zip(branch.invars, eqn.invars[1:], strict=True) if is_var(x) and x not in fixed}
        mine: list[int] = []
        made: set[Var] = set()
        for i, one in enumerate(branch.eqns):
            if one.effects or any(is_var(x) and x in moving for x in one.invars):
                moving.update(one.outvars)
            elif is_heavy(one) or _follows(one, made):
                mine.append(i)
                made.update(one.outvars)
        found.append(mine)
    return found


def _follows(eqn: JaxprEqn, made: set[Var]) -> bool:
    """Whether it works on what leaves, and makes no more of it: it costs little next to that, if no step needs it."""
    read = [nbytes(x.aval) for x in eqn.invars if is_var(x) and x in made]
    return bool(read) and sum(nbytes(v.aval) for v in eqn.outvars) <= max(read)


def _lifted(eqn: JaxprEqn, roots: list[list[int]], env: dict[Var, Atom], body: list[JaxprEqn]) -> JaxprEqn:
    """Copies the roots in front of the branches, and gives them to the branches as further operands."""
    given: list[tuple[int, Var, Var]] = []  # branch, variable in it, operand
    for k, branch in enumerate(_branches(eqn)):
        inner = {v: substitute(x, env) for v, x in zip(branch.invars, eqn.invars[1:], strict=True)}
        kept = [one for i, one in enumerate(branch.eqns) if i not in roots[k]]
        needed = {x for x in (*branch.outvars, *(x for one in kept for x in one.invars)) if is_var(x)}
        for i in sorted(_with_ancestors(branch, roots[k])):
            body.append(copy_equation(branch.eqns[i], inner))
            if i in roots[k]:
                for v in branch.eqns[i].outvars:
                    operand = inner.get(v)
                    if v in needed and operand is not None and is_var(operand):
                        env[operand] = operand
                        given.append((k, v, operand))
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
