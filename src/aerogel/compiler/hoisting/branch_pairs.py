"""What a branch of a derivative reads is what the same branch gave before: a constant among that need not be stored.

JAX stores what branches leave for the backward loop in places that they share: one weight, or another, of each step.
"""

from collections.abc import Mapping, Sequence

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, JaxprEqn, Literal, Var

from ..level import Level
from ..loop import Loop
from ..loop_copy import LoopCopy
from ..normal_form.branch_results import given_by_branches
from ..program import copy_equation, is_var, producers, rename, substitute
from .hoist import Replacement


def with_constants_of_branches(level: Level, loop: Loop) -> tuple[Replacement, list[JaxprEqn]] | None:
    """The loop with branches that read constants of another loop for what its branches stored; None if none does.

    Args:
        level: where the loop stands.
        loop: a loop of as many steps as the other one.
    """
    stored = {v: found for v, x in zip(loop.body_xs, loop.xs, strict=True) if (found := _stored(level, loop, x))}
    given = {
        id(eqn): found
        for eqn in loop.body.eqns
        if eqn.primitive.name == "cond" and not eqn.effects and (found := _given(eqn, stored))
    }
    if not given:
        return None
    copy = LoopCopy(loop)
    for eqn in loop.body.eqns:
        new = copy_equation(eqn, copy.env)
        copy.new.body.eqns.append(_reading(new, given[id(eqn)], copy) if id(eqn) in given else new)
    copy.finish()
    return Replacement(copy.new.equations()), [eqn for eqn in loop.body.eqns if id(eqn) in given]


def _stored(level: Level, loop: Loop, x: Atom) -> tuple[Loop, Atom] | None:
    """The loop that stacked an input, and what that is in its body."""
    maker = level.maker(x)
    other = Loop(maker) if maker is not None and maker.primitive.name == "scan" else None
    if other is None or other.length != loop.length or x not in other.ys:
        return None
    return other, other.body_ys[other.ys.index(x)]


def _given(eqn: JaxprEqn, stored: Mapping[Var, tuple[Loop, Atom]]) -> dict[int, list[Atom | None]]:
    """For each operand of a `cond`, the constant that it is in each branch, if it is one.

    It was a result of a `cond` of the other loop, which took the same branch.
    """
    found: dict[int, list[Atom | None]] = {}
    index = stored.get(eqn.invars[0]) if is_var(eqn.invars[0]) else None
    if index is None:
        return found
    other, taken = index
    consts: Mapping[Atom, Atom] = dict(zip(other.body_consts, other.consts, strict=True))
    makers = producers(other.body)
    for k, x in enumerate(eqn.invars[1:]):
        here = stored.get(x) if is_var(x) else None
        place = makers.get(here[1]) if here is not None and here[0].eqn is other.eqn and is_var(here[1]) else None
        if here is None or place is None:
            continue
        maker = other.body.eqns[place]
        if maker.primitive.name != "cond" or maker.invars[0] is not taken or maker.effects:
            continue
        if len(maker.params["branches"]) != len(eqn.params["branches"]):
            continue
        values = given_by_branches(maker)[maker.outvars.index(here[1])]  # pyright: ignore[reportArgumentType]
        known = [v if isinstance(v, Literal) else None if v is None else consts.get(v) for v in values]
        if any(v is not None for v in known):
            found[k] = known
    return found


def _reading(eqn: JaxprEqn, given: Mapping[int, Sequence[Atom | None]], copy: LoopCopy) -> JaxprEqn:
    """A `cond` whose branches read constants in place of some operands."""
    consts = list(dict.fromkeys(v for values in given.values() for v in values if v is not None and is_var(v)))
    branches: list[ClosedJaxpr] = []
    for b, closed in enumerate(eqn.params["branches"]):
        branch = closed.jaxpr
        extra = {v: _jax.new_var(v.aval) for v in consts}
        env: dict[Var, Atom] = {}
        for k, values in given.items():
            v = values[b]
            if v is not None:
                env[branch.invars[k]] = extra[v] if is_var(v) else v
        eqns = [rename(one, env) for one in branch.eqns]
        outs = [substitute(x, env) for x in branch.outvars]
        branches.append(ClosedJaxpr(_jax.new_jaxpr(branch, [*branch.invars, *extra.values()], outs, eqns), ()))
    invars = [*eqn.invars, *(copy.new.const(v) for v in consts)]
    return eqn.replace(invars=invars, params=dict(eqn.params, branches=tuple(branches)))
