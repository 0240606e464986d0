"""Rules where JAX has differentiated their pattern already.

`jax.grad` inside of what is optimised writes its own derivative of a formula before any rule sees the formula. That
derivative is found, and the derivative of what the rule writes put in its place: its own, if the rule brings one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeGuard

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..level import Edit, apply_edits
from ..level import Level as Tables
from ..levels import Around, rewrite_nested
from ..loop import Loop, as_loop
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, is_var, substitute, where, with_equations
from ..record import record
from ..report import Decision
from ..residuals.operands_alone import Formula, operands_alone
from ..residuals.residuals import needed_by_loops, rebuilt
from ..rules.driver import Rules, listed
from ..rules.graph import Graph, Node
from ..rules.judge import moved_operands, refusal, what_comes, why_not
from ..rules.kept_values import kept_values
from ..rules.knowledge import Knowledge
from ..rules.loose import NoMatch, missing
from ..rules.match import Bound, Level, match_at
from ..rules.new_derivative import Differentiable
from ..rules.rule import Rule
from ..rules.ruleset import AnyRule, RuleSet
from ..rules.skeleton import skeletons, starts_of
from ..rules.spelling import operation, rarity
from ..rules.stage import Stage, elsewhere
from ..rules.traces import Refused, of_arrays, pattern_of
from ..written_derivatives import Equations, NotWritten, ReadElsewhere

FEW = 8  # rules without a derivative: what theirs keep takes a tenth of a second to find out for each


def is_differentiated(rule: AnyRule) -> TypeGuard[Rule]:
    """Whether a rule is looked for in derivatives; of ours, only those that bring one of their own."""
    if not isinstance(rule, Rule) or rule.stage is not Stage.BEFORE:
        return False
    return rule.derivative is not None or (rule.after is not None and not rule.is_shipped)


@record
class _Rules:
    """The rules that are looked for."""

    all: Sequence[Rule]

    @property
    def few(self) -> bool:
        """Whether there is time to look for what the derivatives of those keep that bring none."""
        return sum(rule.derivative is None for rule in self.all) <= FEW


@record
class Derivatives:
    """The pass. Bound: each site of a rule is looked at twice, of one of many without a derivative once."""

    keeps_devices: ClassVar = True
    after_differentiation: ClassVar = True

    rules: RuleSet
    name: str = "derivatives"

    @property
    def exactness(self) -> Exactness:
        """The loosest promise of the rules."""
        return Rules(self.rules).exactness

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with derivatives of rules in the place of JAX's own, and a decision for each."""
        decisions: list[Decision] = []
        rules = _Rules([rule for rule in self.rules if is_differentiated(rule) and elsewhere(rule, context) is None])
        knowledge = Knowledge(program)

        def level(jaxpr: Jaxpr, around: Around) -> Jaxpr:
            if all(_jax.derivative_of(eqn) is None for eqn in (*around, *jaxpr.eqns)):
                return jaxpr
            jaxpr = _with_operands_stored(Level(Graph(jaxpr, knowledge), context, around), rules)
            own = set[Var]()
            while True:  # two derivatives whose sums are one wait for each other
                search = _Search(Level(Graph(jaxpr, knowledge), context, around), rules, own)
                search.run()
                decisions.extend(search.fired)
                if not search.edits:
                    decisions.extend(search.refused.values())
                    return jaxpr
                jaxpr, _ = apply_edits(jaxpr, search.edits)
                own.update(v for edit in search.edits for eqn in edit.eqns for v in eqn.outvars)

        return rewrite_nested(program, level), decisions


def _with_operands_stored(level: Level, rules: _Rules) -> Jaxpr:
    """A level whose loops store the operands of patterns for derivatives that are the rules' then.

    JAX's derivative of a loop is another loop: it is given what its steps read, and no pattern is to be seen there.
    """
    tables = level.graph.level
    new: dict[int, list[JaxprEqn]] = {}
    for place, eqn in enumerate(tables.eqns):
        loop = as_loop(eqn)
        if loop is None or not needed_by_loops(tables, loop)[1]:
            continue
        step = _search(level, eqn, loop, rules)
        found = [
            one
            for rule in rules.all
            for one in step.formulas(rule)
            if any(_finds(level, again, rules) for again in _rebuilt(tables, place, loop, [one])[1])
        ]
        built, _ = _rebuilt(tables, place, loop, found)
        if new.keys().isdisjoint(built):
            new.update(built)
    if not new:
        return tables.jaxpr
    eqns = [one for k, eqn in enumerate(tables.eqns) for one in new.get(k, [eqn])]
    return drop_dead(with_equations(tables.jaxpr, eqns))


def _rebuilt(
    tables: Tables, place: int, loop: Loop, formulas: Sequence[Formula]
) -> tuple[dict[int, list[JaxprEqn]], list[JaxprEqn]]:
    """What stands for a loop that stores the operands of formulas alone, and for its readers; and these loops."""
    found = operands_alone(tables, place, loop, formulas) if formulas else None
    if found is None:
        return {}, []
    built = rebuilt(tables, found)
    return built, [one for k in found.readers for one in built[k] if as_loop(one) is not None]


def _search(level: Level, eqn: JaxprEqn, loop: Loop, rules: _Rules) -> "_Search":
    """What looks for derivatives in a step of a loop."""
    graph = Graph(loop.body, level.graph.knowledge)
    return _Search(Level(graph, level.context, (*level.around, eqn)), rules)


def _finds(level: Level, eqn: JaxprEqn, rules: _Rules) -> bool:
    """Whether a step of a loop holds a derivative for which there is another."""
    loop = as_loop(eqn)
    assert loop is not None
    search = _search(level, eqn, loop, rules)
    search.run()
    return bool(search.edits)


@record
class _Found:
    """What stands for a pattern and its derivative, and the equations that the pattern was found in."""

    edit: Edit
    old: list[JaxprEqn]


@dataclass
class _Search:
    """The derivatives in a level for which rules have others."""

    level: Level
    rules: _Rules
    own: set[Var] = field(default_factory=set)  # what rules have written
    edits: list[Edit] = field(default_factory=list)
    fired: list[Decision] = field(default_factory=list)
    refused: dict[tuple[str, str], Decision] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.equations = Equations(self.level.graph.level)
        self.within = frozenset(map(_jax.derivative_of, self.level.around))

    def run(self) -> None:
        """Looks for the derivatives of all rules."""
        for rule in self.rules.all:
            self._run(rule)

    def _run(self, rule: Rule) -> None:
        """Looks for a rule's pattern, and where nothing reads its value, for what its derivative keeps."""
        for pattern in self._patterns(rule):
            for start in self.level.graph.nodes(frozenset(starts_of(pattern))):
                if not self.own.isdisjoint(start.eqn.outvars):
                    continue
                found, line = self._at(rule, pattern, start), where(start.eqn)
                if isinstance(found, str):
                    what = f"the derivative of `{start.eqn.primitive.name}`"
                    said = Decision(rule.name, what, line, False, found, exactness=rule.exactness.value)
                    self.refused[rule.name, line] = said
                elif found is not None and self.touched.isdisjoint(found.edit.touched):
                    self.refused.pop((rule.name, line), None)
                    self.edits.append(found.edit)
                    self.touched |= found.edit.touched
                    what = f"the derivative of {listed(found.old)} becomes the rule's"
                    said = Decision(rule.name, what, line, True, rule.reason, exactness=rule.exactness.value)
                    self.fired.append(said)

    def _patterns(self, rule: Rule) -> Iterator[Rule]:
        """What is looked for."""
        yield rule
        if rule.derivative is not None or (self.rules.few and self._holds_some_of(rule)):
            yield kept_values(rule)

    def _holds_some_of(self, rule: Rule) -> bool:
        """Whether the level has an operation of a rule's pattern that does not stand everywhere."""
        eqns = [eqn for one in skeletons(rule) for eqn in one.pattern.jaxpr.eqns if rarity(eqn)]
        return bool(self.level.graph.nodes(frozenset(map(operation, eqns))))

    def _at(self, rule: Rule, pattern: Rule, start: Node) -> _Found | str | None:
        """What stands for the derivative of a site; why it stays as it is; or None, where there is none."""
        reason: str | None = None

        def judged(level: Level, _: Rule, bound: Bound) -> _Found | NoMatch:
            nonlocal reason
            found = self._judged(rule, bound, pattern is rule)
            if isinstance(found, str):
                reason = found
            return NoMatch("JAX has not written its derivative") if found is None or isinstance(found, str) else found

        for skeleton in starts_of(pattern).get(start.operation, ()):
            if missing(self.level.graph, skeleton, start) is None:
                found = match_at(self.level, pattern, skeleton, start, judged)
                if isinstance(found, _Found):
                    return found
        return reason

    def formulas(self, rule: Rule) -> Iterator[Formula]:
        """Where the level computes a rule's pattern, or what its derivative keeps."""
        places = frozenset[int]()
        for pattern in self._patterns(rule):
            for start in self.level.graph.nodes(frozenset(starts_of(pattern))):
                for skeleton in starts_of(pattern).get(start.operation, ()):
                    if missing(self.level.graph, skeleton, start) is not None:
                        continue
                    bound = match_at(self.level, pattern, skeleton, start, lambda level, rule, bound: bound)
                    site = self._site(rule, bound, pattern is rule) if isinstance(bound, Bound) else None
                    if site is None or not places.isdisjoint(site.places):
                        continue
                    places |= site.places
                    yield Formula(tuple(site.operands), site.places_before(self.equations), onward=False)

    def _judged(self, rule: Rule, bound: Bound, with_value: bool) -> _Found | str | None:
        """What stands for the derivative of a pattern, or of one whose derivative keeps what was found."""
        site = self._site(rule, bound, with_value)
        if site is None:
            return None
        try:
            edit = site.edit(self.equations, bound.found.nodes[0].place)
        except ReadElsewhere as error:
            return str(error)
        except NotWritten:
            return None
        against = refusal(self.level, rule, bound, None)
        if against is None and with_value and rule.derivative is None:
            against = why_not(self.level, rule, bound, what_comes(rule, bound, bound.found.results))
        old = [self.equations.level.eqns[place] for place in sorted(site.places)]
        return against or _Found(edit, old)

    def _site(self, rule: Rule, bound: Bound, with_value: bool) -> Differentiable | None:
        graph, found = self.level.graph, bound.found
        nodes = sorted({node.place: node for node in found.nodes}.values(), key=lambda node: node.place)
        if any(node.call is not None for node in found.nodes) or any(map(graph.call_of, bound.atoms)):
            return None
        if with_value:
            plain, made = [node.eqn for node in nodes], list(found.results)
        else:
            before, count = vars(bound.before)["__wrapped__"], len(skeletons(rule)[0].pattern.results)
            bound = replace(bound, reading=bound.reading.with_results_first(count))
            try:
                pattern = pattern_of(rule, before, bound.atoms, bound.parameters, bound.reading)
            except Refused:
                return None
            env = {v: bound.atoms[k] for v, k in zip(pattern.jaxpr.invars, pattern.inputs, strict=True)}
            plain = self.equations.named(pattern.jaxpr.eqns, env)
            made = [v for v in (substitute(x, env) for x in pattern.results) if is_var(v)]
            if pattern.consts or len(made) < len(pattern.results):
                return None
        what_comes(rule, bound, made)  # raises if it cannot be traced, or is of other types
        assert rule.written is not None
        after = of_arrays(rule.written, bound.atoms, bound.parameters, bound.reading)
        free = frozenset(v for node in nodes for v in node.eqn.outvars if rule.shared)
        free |= {v for v in moved_operands(graph, found, bound.atoms) if is_var(v)}
        places = frozenset(node.place for node in nodes)
        return Differentiable(rule, bound.atoms, plain, made, after, places, free, self.within)
