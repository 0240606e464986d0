"""Whether a rule fires at a site: the loose match, the exact one, and all that may be said against it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ... import _jax
from ..._jax import Atom, Var
from ..exactness import Exactness
from ..program import is_var
from .errors import RuleError
from .exact import ExactSearch, Found
from .graph import Graph, Node
from .loose import Candidate, NoMatch, Skeleton, candidates
from .operand import operands_of
from .readings import batched_readings, bindings
from .rule import Rule, place_of
from .spelling import PLUMBING, operation
from .traces import Pattern, Reading, Refused, pattern_of

# Comparisons of whole patterns at one site; each traces `before` at types that may be new.
MOST_PLAIN, MOST_BATCHED = 48, 24


@dataclass(frozen=True)
class Match:
    """A rule that fires.

    Attributes:
        found: what it was found in.
        atoms: the operands.
        after: what it writes, as a program of those operands that are no numbers.
    """

    rule: Rule
    found: Found
    atoms: tuple[Atom, ...]
    parameters: dict[str, Any]
    reading: Reading
    after: Pattern

    @property
    def result(self) -> Var:
        """The variable in whose place the new value stands."""
        assert is_var(self.found.result)
        return self.found.result


def match_at(
    graph: Graph, rule: Rule, skeleton: Skeleton, start: Node, allowed: frozenset[Exactness]
) -> Match | NoMatch:
    """The rule where `start` is the first operation of its pattern; or why it does not fire."""
    found = candidates(graph, skeleton, start, tuple(rule.parameters.values()))
    if isinstance(found, NoMatch):
        return found
    plain = ((one, *way) for one in found for way in _ways(rule, one, False))
    batched = ((one, *way) for one in found for way in _ways(rule, one, True))
    best = NoMatch("`before` cannot be traced at the types of this site", -2)
    for way in itertools.chain(itertools.islice(plain, MOST_PLAIN), itertools.islice(batched, MOST_BATCHED)):
        matched = _matched(graph, rule, *way)
        outcome = matched if isinstance(matched, NoMatch) else _judged(graph, rule, matched, allowed)
        if isinstance(outcome, Match):
            return outcome
        if not isinstance(matched, NoMatch):  # the plainest way of reading the site decides
            best = outcome
            break
        best = max(best, outcome, key=lambda one: one.depth)
    return NoMatch(best.reason, len(skeleton.path) + 1000 + best.depth)


@dataclass(frozen=True)
class _Bound:
    found: Found
    atoms: tuple[Atom, ...]
    parameters: dict[str, Any]
    reading: Reading


def _matched(
    graph: Graph,
    rule: Rule,
    candidate: Candidate,
    atoms: tuple[Atom, ...],
    parameters: dict[str, Any],
    reading: Reading,
) -> _Bound | NoMatch:
    """The site, if `before` is what stands there when it is read so."""
    try:
        pattern = pattern_of(rule, "before", atoms, parameters, reading)
    except Refused as error:
        return NoMatch(f"`before` cannot be traced at these types: {error}", -1)
    best = NoMatch("it has another form at these types", -1)
    for result in _results(graph, pattern, candidate):
        found = ExactSearch(graph, pattern, atoms).run(result)
        if isinstance(found, Found):
            return _Bound(found, atoms, parameters, reading)
        best = max(best, found, key=lambda one: one.depth)
    return best


def _ways(
    rule: Rule, candidate: Candidate, batched: bool
) -> Iterator[tuple[tuple[Atom, ...], dict[str, Any], Reading]]:
    """Operands and parameters that could be meant; with the axes that could be mapped, if those are asked for."""
    shape = tuple(candidate.top.eqn.outvars[candidate.index].aval.shape)
    for atoms in itertools.product(*candidate.operands):
        for reading in batched_readings(atoms, shape) if batched else [Reading()]:
            for parameters in bindings(rule, candidate.eqns, atoms):
                yield atoms, parameters, reading


def _results(graph: Graph, pattern: Pattern, candidate: Candidate) -> list[Var]:
    """The values that could be the result of a pattern: that of its last operation, after the plumbing behind it."""
    names: list[str] = []
    p, top = pattern.result, operation(candidate.top.eqn)
    while is_var(p) and p in pattern.makers:
        eqn = pattern.jaxpr.eqns[pattern.makers[p]]
        if eqn.primitive.name not in PLUMBING or operation(eqn) == top:
            break
        names.append(eqn.primitive.name)
        p = eqn.invars[0]
    at = [candidate.top.eqn.outvars[candidate.index]]
    for name in reversed(names):
        readers = [one for v in at for one in graph.readers(v) if one is not None]
        at = [one.eqn.outvars[0] for one in readers if one.eqn.primitive.name == name]
    return at


def _judged(graph: Graph, rule: Rule, bound: _Bound, allowed: frozenset[Exactness]) -> Match | NoMatch:
    """A pattern that is there as a match; or what forbids it."""
    found, atoms = bound.found, bound.atoms
    assert is_var(found.result)
    calls = {node.call for node in found.nodes}
    if len(calls) == 1 and None not in calls:
        return NoMatch("all of it is in a function that is called from several places, where it is looked for too")
    if any(_jax.explicit_mesh(x.aval) for x in (*atoms, found.result)):
        return NoMatch("its values are sharded by their types")
    if not may_fire(rule, allowed):
        return NoMatch(f"it is `{rule.exactness}`, which this setting of `numerics` does not allow")
    other = None if rule.shared else other_user(graph, found, atoms)
    if other is not None:
        return NoMatch(other)
    said = condition(graph, rule, bound)
    if said is not None:
        return NoMatch(said)
    after = _after(rule, bound, found.result)
    if isinstance(ExactSearch(graph, after, atoms, as_spelt=True).run(found.result), Found):
        return NoMatch("it has the form that the rule writes")
    return Match(rule, found, atoms, bound.parameters, bound.reading, after)


def may_fire(rule: Rule, allowed: frozenset[Exactness]) -> bool:
    """Whether a setting of `numerics` lets a rule fire that the user named; promises and draws come with "fast"."""
    by_name = rule.exactness in (Exactness.ASSUMES, Exactness.OTHER_BITS)
    return rule.exactness in allowed or (by_name and Exactness.FINITE in allowed)


def other_user(graph: Graph, found: Found, atoms: tuple[Atom, ...]) -> str | None:
    """Who else reads a value from the middle of a pattern; None if nobody does.

    What only moves or converts an operand is no such value: to have it twice costs next to nothing.
    """
    own = {id(node.eqn) for node in found.nodes}
    moved: set[Any] = {graph.seen(x) for x in atoms if is_var(x)}
    for node in reversed(found.nodes):
        eqn = node.eqn
        if eqn.primitive.name in PLUMBING and graph.seen(eqn.invars[0]) in moved:
            moved.update(eqn.outvars)
    for node in found.nodes:
        for v in node.eqn.outvars:
            if v is found.result or v in moved:
                continue
            for reader in graph.readers(v):
                if reader is None or id(reader.eqn) not in own:
                    by = "is a result of its own" if reader is None else f"is read by `{reader.eqn.primitive.name}` too"
                    return f"what `{_core(graph, v)}` makes, in the middle of the pattern, {by}"
    return None


def _core(graph: Graph, v: Var) -> str:
    """The operation that makes a value, plumbing looked past."""
    makers = [graph.maker(x) for x in graph.stripped(v)]
    return next(m.eqn.primitive.name for m in reversed(makers) if m is not None)


def condition(graph: Graph, rule: Rule, bound: _Bound) -> str | None:
    """The reason of the rule's own condition against this site; None where it holds."""
    if rule.condition is None:
        return None
    said = rule.condition(*operands_of(graph, bound.atoms, bound.reading), **bound.parameters)
    if isinstance(said, str):
        return said
    return None if said else "its condition does not hold"


def _after(rule: Rule, bound: _Bound, result: Var) -> Pattern:
    """What the rule writes.

    Raises:
        RuleError: it cannot be traced, or is of another type.
    """
    assert rule.after is not None
    line = place_of(rule.after)
    try:
        after = pattern_of(rule, "after", bound.atoms, bound.parameters, bound.reading)
    except Refused as error:
        types = ", ".join(x.aval.str_short(True) for x in bound.atoms)
        fix = "make `after` work there, or refuse these types with `when`"
        raise RuleError(
            rule=rule.name, what=f"cannot trace `after` at {types}.", where=line, got=str(error), to_fix=fix
        ) from None
    got, wanted = after.result.aval, result.aval
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        raise RuleError(
            rule=rule.name,
            what="changed the type of a result.",
            where=line,
            got=got.str_short(True),
            wanted=wanted.str_short(True),
            to_fix="convert inside `after`, or refuse these types with `when`",
        )
    return after
