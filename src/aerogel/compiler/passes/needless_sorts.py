"""Needless sorts: what sums up a sort, or takes few entries of it, needs no order (see `in_order.py`)."""

from collections.abc import Callable, Mapping, Sequence
from math import log2, prod
from typing import Any, ClassVar

import numpy as np

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.rebind import shape_of
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import Normalizer, inline_call, is_plain_call, normalize
from ..pipeline import Context
from ..program import (
    Program,
    bodies,
    count_equations,
    inner_jaxprs,
    is_var,
    remembered,
    rename,
    substitute,
    where,
    with_equations,
)
from ..record import record
from ..report import Decision
from ..sorts.in_order import InOrder
from ..sorts.order_plan import FEWEST, FEWEST_OF_ENDS, FEWEST_OF_LONG, LONG, SEARCH, SORT, Plan, is_selected, plan_of
from ..sorts.without_order import key_refusal, without_order

NAME = "needless-sorts"
WHAT = "a sort whose order nobody needs"
MOST = 64  # sorts of a level
LARGEST = 4000  # equations of a level, of which calls are written out


@record
class NeedlessSorts:
    """The pass. Bound: each equation is looked at once for each sort before it, of which 64 are looked at."""

    early: ClassVar = True  # the gradient then needs no order either

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without such sorts, and a decision for each sort."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        held = zip(program.jaxpr.constvars, program.consts, strict=True)
        constants = {v: value for v, value in held if _jax.is_known_array(value)}

        def rewritten(jaxpr: Jaxpr) -> Jaxpr:
            place, given, fired, refused = 0, jaxpr, list[Decision](), dict[int, Decision]()
            jaxpr = joined_sorts(with_open(jaxpr, _holds_sort))
            for _ in range(MOST):
                sorts = (k for k, eqn in enumerate(jaxpr.eqns) if k >= place and eqn.primitive.name == "sort")
                place = next(sorts, -1)
                if place < 0:
                    break
                level = Level(jaxpr)
                opened = with_open(jaxpr, _reads(level, place))
                if opened is not jaxpr:
                    jaxpr, place = joined_sorts(opened), 0
                    continue
                found = _plan(level, place, constants, context)
                decision = _decision(level, place, found)
                if isinstance(found, str):
                    refused[place], place = decision, place + 1
                    continue
                fired.append(decision)
                jaxpr, place, refused = apply_edits(jaxpr, [without_order(found)])[0], 0, {}
            decisions.extend((*fired, *refused.values()))
            return jaxpr if fired else given

        new = rewrite_levels(program, rewritten)
        return (program if new is program else normalize(new)[0]), decisions


def with_open(jaxpr: Jaxpr, wanted: Callable[[JaxprEqn], bool]) -> Jaxpr:
    """A level with some of its calls written out, which stand in several places; the same object if there are none."""
    eqns, env, done = list[JaxprEqn](), dict[Var, Atom](), False
    for old in jaxpr.eqns:
        eqn = rename(old, env)
        if old.primitive.name == "jit" and is_plain_call(eqn) and count_equations(jaxpr) < LARGEST and wanted(old):
            inline_call(eqn, eqns, env)
            done = True
        else:
            eqns.append(eqn)
    if not done:
        return jaxpr
    opened = with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])
    return with_open(Normalizer(opened).run(opened), wanted)


def joined_sorts(jaxpr: Jaxpr) -> Jaxpr:
    """A level with one sort for all that are by the same key: what they sort stands in one order."""
    groups: dict[object, list[int]] = {}
    for k, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name != "sort" or eqn.params["num_keys"] != 1 or not is_var(eqn.invars[0]):
            continue
        if eqn.params["is_stable"] or len(eqn.invars) == 1:
            groups.setdefault((eqn.invars[0], eqn.params["dimension"]), []).append(k)
    edits = [_joined([jaxpr.eqns[k] for k in places], places) for places in groups.values() if len(places) > 1]
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _joined(sorts: Sequence[JaxprEqn], places: Sequence[int]) -> Edit:
    operands = list(dict.fromkeys((x, sort.outvars[k]) for sort in sorts for k, x in enumerate(sort.invars)))
    keys = [(x, v) for x, v in operands if x is sorts[0].invars[0]]
    others = [(x, v) for x, v in operands if x is not sorts[0].invars[0]]
    (_, key), *_ = keys
    params = {**sorts[0].params, "is_stable": True}
    eqn = sorts[0].replace(
        invars=[keys[0][0], *(x for x, _ in others)], outvars=[key, *(v for _, v in others)], params=params
    )
    gone = frozenset(places)
    return Edit(places[-1], gone, [eqn], {v: key for _, v in keys[1:]}, gone)


@remembered
def _sorts(jaxpr: Jaxpr) -> bool:
    own = any(eqn.primitive.name == "sort" for eqn in jaxpr.eqns)
    return own or any(_sorts(body) for eqn, held in bodies(jaxpr) if eqn.primitive.name == "jit" for body in held)


def _holds_sort(eqn: JaxprEqn) -> bool:
    return any(map(_sorts, inner_jaxprs(eqn)))


def _reads(level: Level, place: int) -> Callable[[JaxprEqn], bool]:
    """Whether a call reads what stands in the order of a sort."""
    if not any(eqn.primitive.name == "jit" for eqn in level.eqns):
        return lambda eqn: False
    exits = InOrder.of(level, place, lambda start, stop: False).exits
    calls = {id(level.eqns[k]) for k in exits if k >= 0}
    return lambda eqn: id(eqn) in calls


def _decision(level: Level, place: int, found: Plan | str) -> Decision:
    eqn = level.eqns[place]
    if isinstance(found, str):
        return Decision(NAME, WHAT, where(eqn), False, found)
    reason = "what reads it is the same in any order"
    if found.needs_ranks:
        reason = f"{found.searches} searches for ranks take the place of the sort"
    rounds = any(np.dtype(level.eqns[k].outvars[0].aval.dtype).kind not in "iub" for k in found.sums)
    exact = Exactness.REASSOCIATES if rounds else Exactness.NO_WORSE if found.returns else Exactness.BITWISE
    return Decision(NAME, WHAT, where(eqn), True, reason, exactness=exact)


def _plan(level: Level, place: int, constants: Mapping[Var, Any], context: Context) -> Plan | str:
    """How the readers of a sort are served; or why it stays."""
    eqn = level.eqns[place]
    shape = shape_of(eqn.invars[0])
    size, n = prod(shape), shape[eqn.params["dimension"]]
    if size == 0 or n < 2:
        return "there is nothing to sort"
    if any(_jax.explicit_mesh(x.aval) for x in (*eqn.invars, *eqn.outvars)):
        return "its type says how it is spread over devices"
    unsorted = InOrder(level, place, lambda start, stop: False)
    refused = key_refusal(unsorted)
    if context.platform != "cpu":
        refused = "ranks are found faster than by a sort on CPU alone"
    elif context.before_differentiation:
        refused = "ranks are found after differentiation"

    def is_few(start: int, stop: int) -> bool:
        return refused is None and (stop - start == 1 or is_selected(unsorted, start, stop))

    found = InOrder.of(level, place, is_few)
    if not found.exits:
        return "nothing reads it"
    plan = plan_of(found, constants)
    if isinstance(plan, str) or not plan.needs_ranks:
        return plan
    return refused or _loss(plan, size, n) or plan


def _loss(plan: Plan, size: int, n: int) -> str | None:
    """Why a search for ranks does not pay; None if it does."""
    least = FEWEST if plan.searches else FEWEST_OF_LONG if n >= LONG else FEWEST_OF_ENDS
    if size < least:
        return f"{size} entries, fewer than {least}"
    if (plan.searches + plan.steps / 2) * SEARCH > SORT * log2(n):
        return f"{plan.searches} searches for ranks among {n} entries take as long as a sort"
    if _is_a_rule_for_it(plan, n):
        return "one part of its result alone is selected by a rule"
    return None


def _is_a_rule_for_it(plan: Plan, n: int) -> bool:
    """Whether a selection of the lowest or the highest entries (`rules/selection.py`) is all that is needed."""
    found, eqns = plan.found, plan.found.level.eqns
    if plan.sums or plan.returns or plan.picks or plan.whole or len(plan.parts) != 1:
        return False
    eqn = eqns[plan.parts[0]]
    if eqn.invars[0] not in found.sort.outvars or found.sort.invars[0].aval.dtype != np.float32:
        return False
    start, stop = (int(eqn.params[side][found.axis]) for side in ("start_indices", "limit_indices"))
    return 16 * (stop if start < n - stop else n - start) <= n
