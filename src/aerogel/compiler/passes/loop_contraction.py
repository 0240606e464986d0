"""Loop contraction: a loop that only adds up or stacks products is one contraction of all its steps.

`S += w * outer(x, y)` is `(w * X).T @ Y`; the gradient of it, `cotangent` times each of the three, reads the rows of
all steps in a few products, too. Which products these are, contraction finds once all steps stand there at once; the
loop goes away if they then cost less and keep little more in memory.

It follows the choice of residuals: before it, the two loops of a gradient hand on what they both could make.
"""

from dataclasses import replace

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Var

from ..cost import equation_seconds, jaxpr_seconds, nbytes
from ..cost.account import jaxpr_cost
from ..exactness import Exactness
from ..hoisting.hoist import Outside, constant_equations, move_out
from ..hoisting.hoistable import refusal
from ..hoisting.sink import FREE_STACKS, SECONDS_AFTERWARDS, Sum, find_sums, sink
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, depends_on, is_var, rename, substitute, where, with_equations
from ..record import record
from ..report import Decision
from .contraction import ContractionOrder

NAME = "loop-contraction"
WHAT = "the loop is a contraction of all its steps"
# The share of the time of a loop that its contraction may take: products of thin factors gain less than is predicted.
LARGEST_SHARE = 0.8
PRODUCTS = frozenset(("mul", "dot_general"))


@record
class LoopContraction:
    """The pass. Bound: each loop is looked at once."""

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without such loops, and a decision for each loop that has only sums for its carries."""
        if Exactness.FINITE not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    results: dict[Var, Atom] = {}
    for eqn in (rename(one, results) for one in jaxpr.eqns):
        loop = as_loop(eqn)
        whole = None if loop is None or loop.length < 2 else all_steps_at_once(loop)
        found = None if loop is None or whole is None else _contracted(loop, whole, context)
        if found is not None:
            decisions.append(_decision(eqn, found))
        if isinstance(found, Jaxpr):
            ins: dict[Var, Atom] = dict(zip(found.invars, _inputs(eqn), strict=True))
            eqns += [rename(one, ins) for one in found.eqns]
            results |= zip(_outputs(eqn), (substitute(x, ins) for x in found.outvars), strict=True)
        else:
            eqns.append(eqn)
    if not results:
        return jaxpr
    return drop_dead(with_equations(jaxpr, eqns, [substitute(x, results) for x in jaxpr.outvars]))


def _inputs(eqn: JaxprEqn) -> list[Var]:
    return list(dict.fromkeys(x for x in eqn.invars if is_var(x)))


def _outputs(eqn: JaxprEqn) -> list[Var]:
    return [v for v in eqn.outvars if not isinstance(v, DropVar)]


def all_steps_at_once(loop: Loop) -> Jaxpr | None:
    """A loop without its loop, as a program of its inputs; None if a step needs another, or computes no product."""
    sums = find_sums(loop)
    if len({one.carry for one in sums}) < len(loop.init) or not _multiplies(loop):
        return None
    whole = _jax.new_jaxpr(loop.body, _inputs(loop.eqn), _outputs(loop.eqn), [loop.eqn])
    if sums:
        whole = sink(loop, [_of_terms(one) for one in sums]).apply(whole, 0)
    place = next((i for i, eqn in enumerate(whole.eqns) if eqn.primitive.name == "scan"), None)
    rest = None if place is None else as_loop(whole.eqns[place])
    if place is None or rest is None or rest.init:
        return None
    free = frozenset(range(len(rest.body.eqns))) - constant_equations(rest)
    made = {v for i in free for v in rest.body.eqns[i].outvars}
    if any(refusal(rest.body.eqns[i], strict=False) for i in free) or not all(
        is_var(y) and y in made for y in rest.body_ys
    ):
        return None
    return move_out(rest, Outside(before=free)).apply(whole, place)


def _of_terms(one: Sum) -> Sum:
    """The sum of its terms, whatever they are."""
    if one.eqn is None:
        return one
    (term,) = (one.shaping[-1] if one.shaping else one.eqn).outvars
    return replace(one, eqn=None, operands=(term,), shaping=(), dims=())


def _multiplies(loop: Loop) -> bool:
    """Whether a step multiplies what is its own."""
    moving = depends_on(loop.body, loop.body_xs)
    return any(
        eqn.primitive.name in PRODUCTS and any(is_var(x) and x in moving for x in eqn.invars) for eqn in loop.body.eqns
    )


def _contracted(loop: Loop, whole: Jaxpr, context: Context) -> Jaxpr | str | None:
    """All steps contracted; why that does not pay, or None where there is nothing to contract."""
    more = max(FREE_STACKS, sum(nbytes(x.aval) for x in loop.xs) // 2)
    new, made = ContractionOrder(more)(ClosedJaxpr(whole, ()), context)
    if new.consts or not any(one.fired for one in made):
        return None
    before, after = equation_seconds(loop.eqn, context.machine), jaxpr_seconds(new.jaxpr, context.machine)
    after += SECONDS_AFTERWARDS
    if after > LARGEST_SHARE * before:
        return f"{1e6 * before:.1f} us would become {1e6 * after:.1f} us"
    held = sum(nbytes(v.aval) for v in loop.eqn.outvars)
    peak = jaxpr_cost(new.jaxpr).peak_bytes
    if peak > held + more:
        return f"it would take {peak / 1e6:.1f} MB"
    return new.jaxpr


def _decision(eqn: JaxprEqn, found: Jaxpr | str) -> Decision:
    if isinstance(found, str):
        return Decision(NAME, WHAT, where(eqn), False, found)
    return Decision(NAME, WHAT, where(eqn), True, "products of all steps cost less", exactness=Exactness.FINITE)
