"""The driver: every rule at every site, in rounds, until nothing fires."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from ... import _jax
from ..._jax import Atom, Jaxpr, JaxprEqn, Var
from ..exactness import Exactness
from ..level import Edit, apply_edits
from ..levels import rewrite_levels
from ..normalize import normalize
from ..pipeline import Context
from ..program import Builder, Program, is_var, where
from ..report import Decision
from ..same import Body
from .errors import RewriteCycle, RuleError
from .graph import Graph, Node
from .loose import NoMatch, Skeleton, skeletons
from .match import Match, match_at
from .rule import Rule, place_of
from .ruleset import RuleSet
from .spelling import PLUMBING, operation
from .traces import Pattern

MOST_ROUNDS = 24
LARGEST_CONSTANT = 64  # elements of an array that `after` may close over
_ORDER = list(Exactness)


@dataclass(frozen=True)
class Rules:
    """The pass that applies rules.

    Each round looks at every site of every rule once, in the order of the rules, then of the program; sites that
    overlap wait for the next round. Bound: 24 rounds.

    Raises:
        RewriteCycle: rules undo each other, or fire without end.
        RuleError: an `after` cannot be traced at a site, or returns another type.
    """

    rules: RuleSet
    name: str = "rules"

    @property
    def exactness(self) -> Exactness:
        """The loosest promise of the rules."""
        return max((rule.exactness for rule in self.rules), key=_ORDER.index, default=Exactness.BITWISE)

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with the rules applied, and a decision for each site."""
        decisions: list[Decision] = []
        written: dict[Var, Rule] = {}
        current, seen = program, [(Body(program.jaxpr), len(decisions))]
        for _ in range(MOST_ROUNDS):
            values = dict(zip(current.jaxpr.constvars, current.consts, strict=True))
            one = _Round(self.rules, context, values, written)
            new = rewrite_levels(current, one.level)
            decisions += one.fired
            if new is current:
                return current, [*decisions, *one.refused, *_useless(self.rules)]
            current, tidied = normalize(new)
            decisions += tidied
            body = Body(current.jaxpr)
            since = next((count for old, count in seen if old == body), None)
            if since is not None:
                raise _cycle(decisions[since:], None)
            seen.append((body, len(decisions)))
        raise _cycle(decisions[seen[-2][1] :], MOST_ROUNDS)


def _useless(rules: RuleSet) -> Iterator[Decision]:
    """A decision for each rule that nothing is known of that could be looked for."""
    for rule in rules:
        if not skeletons(rule):
            why = rule.kept.get("untraceable")
            reason = f"`before` cannot be traced at small arrays: {why}" if why else "`before` returns what it is given"
            yield Decision(rule.name, "its pattern", place_of(rule.before), False, reason)


def _cycle(decisions: list[Decision], rounds: int | None) -> RewriteCycle:
    fired = [d for d in decisions if d.fired]
    names = list(dict.fromkeys(d.rule for d in fired))
    return RewriteCycle(rules=names, where=fired[-1].where or None, rounds=rounds)


@dataclass
class _Round:
    """All rules at all sites, once."""

    rules: RuleSet
    context: Context
    values: dict[Var, Any]
    written: dict[Var, Rule]  # by which rule
    fired: list[Decision] = field(default_factory=list)
    refused: list[Decision] = field(default_factory=list)

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        """One level with the rules applied; the same object where none fires."""
        graph = Graph(jaxpr, self.values)
        taken: set[int] = set()
        matches: list[Match] = []
        for rule in self.rules:
            for start, found in sites(graph, rule, self.context.allowed):
                if isinstance(found, NoMatch):
                    own = any(self.written.get(v) is rule for v in start.eqn.outvars)
                    if own or start.call is not None:
                        continue  # it is no site of the user's, or is looked at in the body of the function as well
                    self.refused.append(_refused(rule, start, found))
                    continue
                touched = {id(node.eqn) for node in found.found.nodes}
                if taken.isdisjoint(touched):
                    taken |= touched
                    matches.append(found)
        if not matches:
            return jaxpr
        written = [_written(match) for match in matches]
        for match, (_, eqns, _) in zip(matches, written, strict=True):
            self.written.update((v, match.rule) for eqn in eqns for v in eqn.outvars)
        new, _ = apply_edits(jaxpr, _edits(graph, matches, written))
        self.fired += [_fired(match) for match in matches]
        return new


def sites(graph: Graph, rule: Rule, allowed: frozenset[Exactness]) -> Iterator[tuple[Node, Match | NoMatch]]:
    """The places of a rule's first operation, and what came of each."""
    starts: dict[str, list[Skeleton]] = {}
    for skeleton in skeletons(rule):
        starts.setdefault(operation(skeleton.path[0]), []).append(skeleton)
    for start in graph.nodes(frozenset(starts)):
        best = NoMatch("", -1)
        for skeleton in starts[operation(start.eqn)]:
            found = match_at(graph, rule, skeleton, start, allowed)
            if isinstance(found, Match):
                yield start, found
                break
            best = max(best, found, key=lambda one: one.depth)
        else:
            yield start, best


Written = tuple[int, list[JaxprEqn], Atom]  # where it stands, its equations and its result


def _edits(graph: Graph, matches: list[Match], written: list[Written]) -> list[Edit]:
    """What the matches change, one edit for each place, and what they look into: its equations replace a call."""
    entered = {node.call for match in matches for node in match.found.nodes if node.call is not None}
    entered |= {call for match in matches for call in map(graph.call_of, match.atoms) if call is not None}
    found = {call: graph.inlining(call) for call in sorted(entered)}
    for match, (place, eqns, value) in zip(matches, written, strict=True):
        old = found.get(place, Edit(place, frozenset(), [], {}, frozenset((place,))))
        found[place] = replace(old, eqns=[*old.eqns, *eqns], results={**old.results, match.result: value})
    return _resolved(list(found.values()))


def _resolved(edits: list[Edit]) -> list[Edit]:
    """The edits, where what stands for one result may itself be replaced by another."""
    every = {v: x for edit in edits for v, x in edit.results.items()}

    def final(x: Atom) -> Atom:
        while is_var(x) and x in every:
            x = every[x]
        return x

    return [replace(edit, results={v: final(x) for v, x in edit.results.items()}) for edit in edits]


def _written(match: Match) -> Written:
    """What `after` makes of the operands."""
    top, after = match.found.nodes[0], match.after
    builder = Builder(top.eqn)
    consts = [_constant(builder, match.rule, after, v) for v in after.jaxpr.constvars]
    whole = _jax.convert_constvars(after.jaxpr) if consts else after.jaxpr
    (out,) = builder.inline(whole, [*consts, *(match.atoms[i] for i in after.inputs)], like=builder.like)
    aval = match.result.aval
    if not _jax.same_type(out.aval, aval):  # one gives way to other types, the other does not
        weak = bool(getattr(aval, "weak_type", False))
        (out,) = builder.call(lambda x: _jax.convert_element_type(x, aval.dtype, weak), out)
    return top.place, builder.eqns, out


def _constant(builder: Builder, rule: Rule, after: Pattern, v: Var) -> Atom:
    """A small array that `after` closes over, written out.

    Raises:
        RuleError: it is large, or no array of numbers.
    """
    aval = v.aval
    if aval.size > LARGEST_CONSTANT or not isinstance(aval.dtype, np.dtype):
        raise RuleError(
            rule=rule.name,
            what="closes over an array in `after`.",
            where="" if rule.after is None else place_of(rule.after),
            got=aval.str_short(True),
            wanted=f"at most {LARGEST_CONSTANT} elements",
            to_fix="make it inside of `after`, from jnp.arange or jnp.eye say, or take it as an argument",
        )
    return builder.call(partial(_spelt, np.asarray(after.consts[v])))[0]


def _spelt(value: np.ndarray) -> Any:
    parts = [lax.full((1,), one, value.dtype) for one in value.reshape(-1)]
    flat = lax.concatenate(parts, 0) if parts else lax.full((0,), 0, value.dtype)
    return lax.reshape(flat, value.shape)


def _fired(match: Match) -> Decision:
    top = match.found.nodes[0].eqn
    old = _listed([node.eqn for node in reversed(match.found.nodes)])
    what = f"{old} becomes {_listed(match.after.jaxpr.eqns)}" + (" of each example" if match.reading.maps else "")
    rule = match.rule
    return Decision(rule.name, what, where(top), True, rule.reason, exactness=rule.exactness.value)


def _refused(rule: Rule, start: Node, found: NoMatch) -> Decision:
    what = f"a site of `{start.eqn.primitive.name}`"
    return Decision(rule.name, what, where(start.eqn), False, found.reason, exactness=rule.exactness.value)


def _listed(eqns: list[JaxprEqn]) -> str:
    """The operations of equations, the most telling ones."""
    names = list(dict.fromkeys(eqn.primitive.name for eqn in eqns))
    told = [name for name in names if name not in PLUMBING] or names
    shown = ", ".join(f"`{name}`" for name in told[:4])
    return (shown + ", ..." if len(told) > 4 else shown) or "a value that is there"
