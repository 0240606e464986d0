"""The driver: every rule at every site, in rounds, until nothing fires."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var
from ..exactness import Exactness
from ..level import Edit, apply_edits
from ..levels import Around, rewrite_nested
from ..normalize import normalize
from ..pipeline import Context
from ..program import Builder, Program, inner_jaxprs, where
from ..report import Decision
from ..same import Body
from .errors import RewriteCycle
from .graph import Graph, Node
from .judge import Match, best_match, primitive_match
from .knowledge import Knowledge
from .loose import NOT_TRIED, NoMatch
from .match import Level
from .on import PrimitiveRule, nodes_of
from .rule import Rule
from .ruleset import AnyRule, RuleSet
from .skeleton import skeletons, starts_of
from .spelling import PLUMBING
from .stage import Stage, elsewhere
from .written import fitted, inlined

MOST_ROUNDS = 24
_ORDER = list(Exactness)


@dataclass(frozen=True)
class Rules:
    """The pass that applies the rules of one stage.

    Each round looks at every site of every rule once, in the order of the rules, then of the program; sites that
    overlap wait for the next round. What a rule of the last stage writes is no site for any. Bound: 24 rounds.

    Raises:
        RewriteCycle: rules undo each other, or fire without end.
        RuleError: an `after` cannot be traced at a site, or returns another type.
    """

    keeps_devices: ClassVar = True

    rules: RuleSet
    stage: Stage = Stage.BEFORE

    @property
    def name(self) -> str:
        """The name in reports."""
        return "rules" if self.stage is Stage.BEFORE else f"rules-{self.stage}"

    @property
    def exactness(self) -> Exactness:
        """The loosest promise of the rules."""
        return max((rule.exactness for rule in self.rules), key=_ORDER.index, default=Exactness.BITWISE)

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with the rules applied, and a decision for each site."""
        decisions: list[Decision] = []
        written: dict[Var, AnyRule] = {}
        rules = self.rules.at(self.stage)
        current, seen = program, [(Body(program.jaxpr), len(decisions))]
        for _ in range(MOST_ROUNDS):
            one = _Round(rules, context, Knowledge(current), written, self.stage is not Stage.FINAL)
            new = rewrite_nested(current, one.level)
            decisions += one.fired
            if new is current:
                return current, [*decisions, *one.refused, *_useless(rules)]
            current, tidied = normalize(new, context.over_devices)
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
        if isinstance(rule, Rule) and not _has_place(rule):
            why = rule.kept.get("untraceable")
            reason = f"`before` cannot be traced at small arrays: {why}" if why else "`before` returns what it is given"
            if why and "Concretization" in why:
                reason += " (Python values, as axes are, are keyword-only arguments)"
            elif why and rule.shapes is None:
                reason += " (name others: ag.rule(..., shapes=...))"
            yield Decision(rule.name, "its pattern", rule.line, False, reason)


def _has_place(rule: Rule) -> bool:
    """Whether something is known that could be looked for; taken on trust where there was nothing to look at."""
    untried = rule.begins is not None and rule.kept.get("skeletons") is None
    return untried or bool(skeletons(rule))


def _cycle(decisions: list[Decision], rounds: int | None) -> RewriteCycle:
    fired = [d for d in decisions if d.fired]
    names = list(dict.fromkeys(d.rule for d in fired))
    return RewriteCycle(rules=names, where=fired[-1].where or None, rounds=rounds)


@dataclass
class _Round:
    """All rules at all sites, once."""

    rules: RuleSet
    context: Context
    knowledge: Knowledge
    written: dict[Var, AnyRule]  # by which rule
    rewritable: bool  # whether what a rule wrote is a site for others
    fired: list[Decision] = field(default_factory=list)
    refused: list[Decision] = field(default_factory=list)
    lines: dict[int, tuple[str, str]] = field(default_factory=dict)  # what and where a site is, by its equation
    # A loop of Python's says one thing many times: one object for all equal lines, and for all equal decisions.
    lines_said: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    said: dict[tuple[str, str, int], Decision] = field(default_factory=dict)

    def level(self, jaxpr: Jaxpr, around: Around) -> Jaxpr:
        """One level with the rules applied; the same object where none fires."""
        graph = Graph(jaxpr, self.knowledge)
        level = Level(graph, self.context, around)
        taken: set[int] = set()
        matches: list[Match] = []
        for rule in self.rules:
            for start, found in self.sites(level, rule):
                if isinstance(found, NoMatch):
                    if start.call is None:  # else it is looked at in the body of the function as well
                        self.refused.append(self._refusal(rule, start, found))
                    continue
                touched = {id(node.eqn) for node in found.found.nodes}
                if taken.isdisjoint(touched) and self._may_touch(found):
                    taken |= touched
                    matches.append(found)
        if not matches:
            return jaxpr
        written = [_written(match) for match in matches]
        for match, (_, eqns, _) in zip(matches, written, strict=True):
            self._note(eqns, match.rule)
        edits = _edits(graph, matches, written)
        new, made = apply_edits(jaxpr, edits)
        places = {edit.place for edit in edits[:made]}  # the first only, where all together wait for each other
        self.fired += [_fired(match) for match, one in zip(matches, written, strict=True) if one[0] in places]
        return new

    def sites(self, level: Level, rule: AnyRule) -> Iterator[tuple[Node, Match | NoMatch]]:
        """The places of a rule's first operation, and what came of each; not what it wrote itself."""
        misplaced = elsewhere(rule, self.context)
        if isinstance(rule, PrimitiveRule):
            nodes = nodes_of(level.graph, rule)
        else:
            # Tracing what rules look for takes a fifth of a second in a fresh process: not before there is a place.
            nodes = level.graph.nodes(frozenset(starts_of(rule) if rule.begins is None else rule.begins))
        for start in nodes:
            own = self.written and any(self.written.get(v) is rule for v in start.eqn.outvars)
            if own and isinstance(rule, PrimitiveRule):
                continue
            if misplaced is not None:
                found = NoMatch(misplaced)
            elif isinstance(rule, PrimitiveRule):
                found = primitive_match(level, rule, start)
            else:
                found = best_match(level, rule, start)
            if found is not NOT_TRIED and not (own and isinstance(found, NoMatch)):
                yield start, found

    def _refusal(self, rule: AnyRule, start: Node, found: NoMatch) -> Decision:
        line = self.lines.get(id(start.eqn))
        if line is None:
            line = f"a site of `{start.eqn.primitive.name}`", where(start.eqn)
            line = self.lines[id(start.eqn)] = self.lines_said.setdefault(line, line)
        said = (rule.name, found.reason, id(line))
        decision = self.said.get(said)
        if decision is None:
            decision = Decision(rule.name, *line, False, found.reason, exactness=rule.exactness.value)
            self.said[said] = decision
        return decision

    def _may_touch(self, match: Match) -> bool:
        return self.rewritable or not any(v in self.written for node in match.found.nodes for v in node.eqn.outvars)

    def _note(self, eqns: Sequence[JaxprEqn], rule: AnyRule) -> None:
        """Remembers who wrote equations, and those in them."""
        for eqn in eqns:
            self.written.update(dict.fromkeys(eqn.outvars, rule))
            for inner in inner_jaxprs(eqn):
                self._note(inner.eqns, rule)


Written = tuple[int, list[JaxprEqn], list[Atom]]  # where it stands, its equations and its results


def _edits(graph: Graph, matches: list[Match], written: list[Written]) -> list[Edit]:
    """What the matches change, one edit for each place, and what they look into: its equations replace a call."""
    entered = {node.call for match in matches for node in match.found.nodes if node.call is not None}
    entered |= {call for match in matches for call in map(graph.call_of, match.atoms) if call is not None}
    found = {call: graph.inlining(call) for call in sorted(entered)}
    for match, (place, eqns, values) in zip(matches, written, strict=True):
        old = found.get(place, Edit(place, frozenset(), [], {}, frozenset((place,))))
        new = {v: x for v, x in zip(match.found.results, values, strict=True) if not isinstance(v, DropVar)}
        found[place] = replace(old, eqns=[*old.eqns, *eqns], results={**old.results, **new})
    return list(found.values())


def _written(match: Match) -> Written:
    """What `after` makes of the operands."""
    top, after = match.found.nodes[0], match.after
    builder = Builder(top.eqn)
    consts = [after.consts[v] for v in after.jaxpr.constvars]
    outs = inlined(builder, match.rule, after.jaxpr, consts, [match.atoms[i] for i in after.inputs])
    fitting = [fitted(builder, out, v.aval) for out, v in zip(outs, match.found.results, strict=True)]
    return top.place, builder.eqns, fitting


def _fired(match: Match) -> Decision:
    top = match.found.nodes[0].eqn
    old = listed([node.eqn for node in reversed(match.found.nodes)])
    what = f"{old} becomes {listed(match.after.jaxpr.eqns)}" + (" of each example" if match.batched else "")
    rule = match.rule
    return Decision(rule.name, what, where(top), True, rule.reason, exactness=rule.exactness.value)


def listed(eqns: list[JaxprEqn]) -> str:
    """The operations of equations, the most telling ones."""
    names = list(dict.fromkeys(eqn.primitive.name for eqn in eqns))
    told = [name for name in names if name not in PLUMBING] or names
    shown = ", ".join(f"`{name}`" for name in told[:4])
    return (shown + ", ..." if len(told) > 4 else shown) or "a value that is there"
