"""Fused attention: on GPUs, a softmax of scores between products is cuDNN's attention, which stores no scores.

XLA makes the scores of all queries and keys, their exponentials and the weights in memory, each as large as the number
of queries times that of keys. cuDNN's kernel makes them block by block, in registers, and so does its gradient.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..known.structure import structure
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..loops.inner_constants import with_constants_inside
from ..networks.attention import Attention, NotAttention, read_attention
from ..networks.attention_call import Call, edits_of, score_bytes
from ..networks.unread_results import with_unread_results
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, inner_jaxprs, is_var, where, with_equations
from ..record import record
from ..report import Decision
from ..residuals.operands_alone import Formula, operands_alone
from ..residuals.residuals import rebuilt
from ..written_derivatives import Equations

NAME = "fused-attention"
WHAT = "a softmax between two products is cuDNN's attention"
BOTH = f"{WHAT}, and so is its gradient"
EXACTNESS = Exactness.REASSOCIATES
NAMES = frozenset(("dot_general", "exp", "div"))


@record
class FusedAttention:
    """The pass. Bound: each product is looked at once, in loops of layers and their gradients twice."""

    platforms: ClassVar = ("gpu",)
    early: ClassVar = True  # the gradient is cuDNN's, too
    in_time_on: ClassVar = ("gpu",)

    name: str = NAME
    exactness: Exactness = EXACTNESS

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with cuDNN's attention in it, and a decision for each product with a softmax."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            return _level(_with_operands_stored(jaxpr, decisions), decisions)

        new = rewrite_levels(program, level)
        return (new if any(d.fired for d in decisions) else program), decisions


def _holds_attention(jaxpr: Jaxpr) -> bool:
    return {eqn.primitive.name for eqn in jaxpr.eqns} >= NAMES


def _with_operands_stored(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    """A level whose loops of layers store queries, keys and values for gradients that are cuDNN's then.

    What they make of nothing but numbers, masks, they make in their steps.
    """
    if not any(map(_has_attention_in_it, jaxpr.eqns)):
        return jaxpr
    level = Level(jaxpr)
    inside = with_equations(jaxpr, [with_constants_inside(level, eqn) for eqn in jaxpr.eqns])
    level = Level(inside)
    new: dict[int, list[JaxprEqn]] = {}
    for place, eqn in enumerate(inside.eqns):
        loop = as_loop(eqn)
        if loop is None or not _holds_attention(loop.body):
            continue
        attentions = _attentions(loop.body)
        found = operands_alone(level, place, loop, [_formula(loop, one) for one in attentions])
        if found is None or not new.keys().isdisjoint((place, *found.readers)):
            continue
        built = rebuilt(level, found)
        gradients = sum(_gradients(one) for k in found.readers for one in built[k])
        if gradients < len(attentions):
            continue
        new.update(built)
        what = f"{len(found.needed)} values of attentions that a loop stores for its gradient are not stored"
        reason = "cuDNN makes them of queries, keys and values"
        saved = (0, 2 * found.bytes_saved, found.bytes_saved)
        decisions.append(Decision(NAME, what, where(eqn), True, reason, *saved, exactness=EXACTNESS))
    if not new:
        return inside
    return drop_dead(with_equations(inside, [one for k, eqn in enumerate(inside.eqns) for one in new.get(k, [eqn])]))


def _has_attention_in_it(eqn: JaxprEqn) -> bool:
    return any(_holds_attention(inner) or any(map(_has_attention_in_it, inner.eqns)) for inner in inner_jaxprs(eqn))


def _attentions(jaxpr: Jaxpr) -> list[Attention]:
    """The attentions of a level that cuDNN takes, with what is multiplied for operands."""
    level, facts, found = Level(jaxpr), structure(jaxpr), list[Attention]()
    for place in range(len(jaxpr.eqns)):
        try:
            one = read_attention(level, facts, place, near=True)
            if one is not None:
                Call.of(level, one)
                found.append(one)
        except NotAttention:
            continue
    return found


def _formula(loop: Loop, found: Attention) -> Formula:
    """An attention in a step of a loop: its gradient does not read its result."""
    operands = tuple(x.atom for x in (found.q, found.k, found.v, found.bias) if x is not None and is_var(x.atom))
    return Formula(operands, found.places, frozenset(loop.body.eqns[found.place].outvars))


def _gradients(eqn: JaxprEqn) -> int:
    """How many gradients of attentions there are in the steps of a loop."""
    loop, decisions = as_loop(eqn), list[Decision]()
    if loop is not None:
        _level(loop.body, decisions)
    return sum(decision.what == BOTH for decision in decisions)


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    if not _holds_attention(jaxpr):
        return jaxpr
    search = _Search(Level(jaxpr))
    search.run(range(len(jaxpr.eqns)))
    jaxpr, declined = search.rewritten(), search.declined
    if declined:  # perhaps as products of the weights with cotangents, where nothing reads what they weigh
        more = _Search(Level(with_unread_results(Level(jaxpr))))
        more.run(range(len(jaxpr.eqns), len(more.level.eqns)))
        if more.edits:
            jaxpr = more.rewritten()
            touched = {v for place in more.touched for v in more.level.eqns[place].outvars}
            declined = {v: decision for v, decision in declined.items() if v not in touched}
            search.fired += more.fired
    decisions += [*search.fired, *declined.values()]
    return jaxpr


@dataclass
class _Search:
    """The attentions of a level.

    Attributes:
        touched: the places of what is replaced.
        declined: for what stays, by its result, why.
    """

    level: Level
    edits: list[Edit] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    fired: list[Decision] = field(default_factory=list)
    declined: dict[Var, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.equations, self.facts = Equations(self.level), structure(self.level.jaxpr)

    def run(self, places: Iterable[int]) -> None:
        """Looks for attentions whose results are made at places."""
        for place in places:
            eqn = self.level.eqns[place]
            if place in self.touched:  # the weights are multiplied in the gradient, too
                continue
            try:
                found = read_attention(self.level, self.facts, place)
                if found is None:
                    continue
                new = edits_of(self.equations, self.facts, found)
            except NotAttention as refused:
                decision = Decision(NAME, WHAT, where(eqn), False, str(refused), exactness=EXACTNESS)
                self.declined[eqn.outvars[0]] = decision
            else:
                self.edits += new
                self.touched.update(*(edit.touched for edit in new))
                taken = score_bytes(found)
                reason = f"{taken / 2**20:.3g} MiB of scores, and as many exponentials and weights, are in no memory"
                what, times = (WHAT, 4) if len(new) == 1 else (BOTH, 12)
                saved = (0, times * taken, 2 * taken)
                self.fired.append(Decision(NAME, what, where(eqn), True, reason, *saved, exactness=EXACTNESS))

    def rewritten(self) -> Jaxpr:
        """The level's program with what was found replaced."""
        return apply_edits(self.level.jaxpr, self.edits)[0] if self.edits else self.level.jaxpr
