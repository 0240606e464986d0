"""Whether a rule fires at a site: the loose match, the exact one, and all that may be said against it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ... import _jax
from ..._jax import Atom, Var
from ..known.spread import is_entrywise
from ..levels import Around
from ..pipeline import Context
from ..program import is_var
from .errors import RuleError
from .exact import ExactSearch, Found
from .graph import Graph, Node
from .loose import Candidate, NoMatch, candidates
from .on import PrimitiveRule
from .operand import operands_of
from .place import place_of
from .profit import loss
from .readings import batched_readings, bindings
from .rule import Rule
from .site import Site
from .skeleton import Skeleton
from .spelling import PLUMBING, operation
from .stage import not_allowed
from .traces import REFUSALS, Pattern, Reading, Refused, mistake, pattern_of

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

    rule: Rule | PrimitiveRule
    found: Found
    atoms: tuple[Atom, ...]
    after: Pattern
    batched: bool = False


@dataclass(frozen=True)
class Level:
    """Where a rule looks: one level of a program, what it stands in, and what is known of the whole."""

    graph: Graph
    context: Context
    around: Around = ()


def match_at(level: Level, rule: Rule, skeleton: Skeleton, start: Node) -> Match | NoMatch:
    """The rule where `start` is the first operation of its pattern; or why it does not fire."""
    graph = level.graph
    found = candidates(graph, skeleton, start, tuple(rule.parameters.values()))
    if isinstance(found, NoMatch):
        return found
    plain = ((one, *way) for one in found for way in _ways(rule, one, False))
    batched = ((one, *way) for one in found for way in _ways(rule, one, True))
    best = NoMatch("`before` cannot be traced at the types of this site", -2)
    refused: tuple[Reading, set[int]] | None = None
    for way in itertools.chain(itertools.islice(plain, MOST_PLAIN), itertools.islice(batched, MOST_BATCHED)):
        _, atoms, _, reading = way
        meant = reading, set(map(id, atoms))
        if refused is not None and meant != refused:
            continue
        matched = _matched(graph, rule, skeleton, *way)
        outcome = matched if isinstance(matched, NoMatch) else _judged(level, rule, matched)
        if isinstance(outcome, Match):
            return outcome
        if refused is None:
            best = max(best, outcome, key=lambda one: one.depth) if isinstance(matched, NoMatch) else outcome
        if not isinstance(matched, NoMatch):
            # the plainest way of reading the site decides, but for which operand is which: `a * b` is `b * a`
            refused = meant
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
    skeleton: Skeleton,
    candidate: Candidate,
    atoms: tuple[Atom, ...],
    parameters: dict[str, Any],
    reading: Reading,
) -> _Bound | NoMatch:
    """The site, if `before` is what stands there when it is read so."""
    try:
        pattern = pattern_of(rule, skeleton.before, atoms, parameters, reading)
    except Refused as error:
        return NoMatch(f"`before` cannot be traced at these types: {error}", -1)
    best = NoMatch("it has another form at these types", -1)
    if len(pattern.results) != len(candidate.tops):
        return best
    for results in _results(graph, pattern, candidate):
        found = ExactSearch(graph, pattern, atoms).run(results)
        if isinstance(found, Found):
            return _Bound(found, atoms, parameters, reading)
        best = max(best, found, key=lambda one: one.depth)
    return best


def _ways(
    rule: Rule, candidate: Candidate, batched: bool
) -> Iterator[tuple[tuple[Atom, ...], dict[str, Any], Reading]]:
    """Operands and parameters that could be meant; with the axes that could be mapped, if those are asked for."""
    shapes = [tuple(top.eqn.outvars[index].aval.shape) for top, index in candidate.tops]
    for atoms in itertools.product(*candidate.operands):
        for reading in batched_readings(atoms, shapes) if batched else [Reading()]:
            for parameters in bindings(rule, candidate.eqns, atoms):
                yield atoms, parameters, reading


def _results(graph: Graph, pattern: Pattern, candidate: Candidate) -> Iterator[tuple[Var, ...]]:
    """The values that could be the results of a pattern: those of its last operations, after the plumbing behind."""
    found = (_behind(graph, pattern, p, *top) for p, top in zip(pattern.results, candidate.tops, strict=True))
    return itertools.product(*found)


def _behind(graph: Graph, pattern: Pattern, p: Atom, top: Node, index: int) -> list[Var]:
    names: list[str] = []
    while is_var(p) and p in pattern.makers:
        eqn = pattern.jaxpr.eqns[pattern.makers[p]]
        if eqn.primitive.name not in PLUMBING or operation(eqn) == operation(top.eqn):
            break
        names.append(eqn.primitive.name)
        p = eqn.invars[0]
    at = [top.eqn.outvars[index]]
    for name in reversed(names):
        readers = [one for v in at for one in graph.readers(v) if one is not None]
        at = [one.eqn.outvars[0] for one in readers if one.eqn.primitive.name == name]
    return at


def _judged(level: Level, rule: Rule, bound: _Bound) -> Match | NoMatch:
    """A pattern that is there as a match; or what forbids it."""
    graph, found, atoms = level.graph, bound.found, bound.atoms
    calls = {node.call for node in found.nodes}
    if len(calls) == 1 and None not in calls:
        return NoMatch("all of it is in a function that is called from several places, where it is looked for too")
    if any(_jax.explicit_mesh(x.aval) for x in (*atoms, *found.results)):
        return NoMatch("its values are sharded by their types")
    forbidden = not_allowed(rule, level.context.allowed)
    if forbidden is None and not rule.shared:
        forbidden = other_user(graph, found, atoms)
    if forbidden is None and len(found.results) > 1:
        forbidden = own_operand(graph, found, atoms)
    site = Site(graph, found.nodes[0].eqn, atoms, found.results, level.context, level.around)
    if forbidden is None:
        forbidden = condition(graph, rule, bound, site)
    if forbidden is not None:
        return NoMatch(forbidden)
    after = _after(rule, bound)
    if isinstance(ExactSearch(graph, after, atoms, as_spelt=True).run(found.results), Found):
        return NoMatch("it has the form that the rule writes")
    lost = _scattered(level, rule, after) or loss(rule.profit, site, graph, found.nodes, found.results, after.jaxpr)
    return Match(rule, found, atoms, after, bool(bound.reading.maps)) if lost is None else NoMatch(lost)


def primitive_match(level: Level, rule: PrimitiveRule, node: Node) -> Match | NoMatch:
    """The rule of one primitive at an equation; or why it does not fire."""
    eqn = node.eqn
    if eqn.effects:
        return NoMatch(f"`{eqn.primitive.name}` has effects")
    if node.is_sharded:
        return NoMatch("its values are sharded by their types")
    forbidden = not_allowed(rule, level.context.allowed)
    if forbidden is not None:
        return NoMatch(forbidden)
    site = Site(level.graph, eqn, eqn.invars, eqn.outvars, level.context, level.around)
    after = rule.replacement(node, site)
    if isinstance(after, str):
        return NoMatch(after)
    lost = _scattered(level, rule, after) or loss(rule.profit, site, level.graph, [node], eqn.outvars, after.jaxpr)
    return Match(rule, Found((node,), tuple(eqn.outvars)), tuple(eqn.invars), after) if lost is None else NoMatch(lost)


def _scattered(level: Level, rule: Rule | PrimitiveRule, after: Pattern) -> str | None:
    """The reason against a rule of ours that could move values between devices; a user's rule does what it says."""
    if not level.context.over_devices or not rule.is_shipped or is_entrywise(after.jaxpr):
        return None
    return "its values may be spread over devices"


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
            if v in found.results or v in moved:
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


def own_operand(graph: Graph, found: Found, atoms: tuple[Atom, ...]) -> str | None:
    """Whether an operand is computed from a result, which then cannot be computed from it; None if none is."""
    first = min(node.place for node in found.nodes)
    stack, seen = [x for x in atoms if is_var(x)], set[Var]()
    while stack:
        x = graph.seen(stack.pop())
        if not is_var(x) or x in seen:
            continue
        if x in found.results:
            return "an argument is computed from one of the results"
        seen.add(x)
        maker = graph.maker(x)
        if maker is not None and maker.place >= first:
            stack += [y for y in maker.eqn.invars if is_var(y)]
    return None


def condition(graph: Graph, rule: Rule, bound: _Bound, site: Site) -> str | None:
    """The reason of the rule's own condition against this site; None where it holds.

    Raises:
        RuleError: the condition raises an error.
    """
    if rule.condition is None:
        return None
    more = {"site": site} if rule.asks_site else {}
    try:
        said = rule.condition(*operands_of(graph, bound.atoms, bound.reading), **bound.parameters, **more)
    except REFUSALS as error:
        fix = "mend it; it is given what is known of the operands (`aerogel.compiler.Operand`), not their entries"
        raise mistake(rule, error, "condition", fix) from error
    if isinstance(said, str):
        return said
    return None if said else "its condition does not hold"


def _after(rule: Rule, bound: _Bound) -> Pattern:
    """What the rule writes.

    Raises:
        RuleError: it cannot be traced, or is of another type.
    """
    assert rule.written is not None
    line = place_of(rule.after or rule.before)
    try:
        after = pattern_of(rule, rule.written, bound.atoms, bound.parameters, bound.reading)
    except Refused as error:
        types = ", ".join(x.aval.str_short(True) for x in bound.atoms)
        fix = "make `after` work there, or refuse these types with `when`"
        raise RuleError(
            rule=rule.name, what=f"cannot trace `after` at {types}.", where=line, got=str(error), to_fix=fix
        ) from None
    got, wanted = ([(x.aval.shape, x.aval.dtype) for x in xs] for xs in (after.results, bound.found.results))
    if got != wanted:
        raise RuleError(
            rule=rule.name,
            what="changed the type of a result.",
            where=line,
            got=", ".join(x.aval.str_short(True) for x in after.results),
            wanted=", ".join(x.aval.str_short(True) for x in bound.found.results),
            to_fix="convert inside `after`, or refuse these types with `when`",
        )
    return after
