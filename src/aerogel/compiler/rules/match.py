"""Where the pattern of a rule is: the loose match, then the exact one."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..._jax import Atom, Var
from ..levels import Around
from ..pipeline import Context
from ..program import is_var
from ..record import record
from .exact import ExactSearch, Found
from .graph import Graph, Node
from .loose import Candidate, NoMatch, candidates
from .readings import batched_readings, bindings
from .rule import Rule
from .skeleton import Skeleton
from .spelling import PLUMBING, operation
from .traces import Pattern, Reading, Refused, pattern_of

# Comparisons of whole patterns at one site; each traces `before` at types that may be new.
MOST_PLAIN, MOST_BATCHED = 48, 24


@record
class Level:
    """Where a rule looks: one level of a program, what it stands in, and what is known of the whole."""

    graph: Graph
    context: Context
    around: Around = ()


@record
class Bound:
    """A pattern that is there.

    Attributes:
        before: the function that makes it.
        found: what it was found in.
        atoms: the operands.
        parameters: the Python values that it was found with.
        reading: how the operands are given to it.
    """

    before: Callable[..., Any]
    found: Found
    atoms: tuple[Atom, ...]
    parameters: dict[str, Any]
    reading: Reading


T = TypeVar("T")


def match_at(
    level: Level, rule: Rule, skeleton: Skeleton, start: Node, judged: Callable[[Level, Rule, Bound], T | NoMatch]
) -> T | NoMatch:
    """What is made of the rule where `start` is the first operation of its pattern; or why it does not fire."""
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
        outcome = matched if isinstance(matched, NoMatch) else judged(level, rule, matched)
        if not isinstance(outcome, NoMatch):
            return outcome
        if refused is None:
            best = max(best, outcome, key=lambda one: one.depth) if isinstance(matched, NoMatch) else outcome
        if not isinstance(matched, NoMatch):
            # the plainest way of reading the site decides, but for which operand is which: `a * b` is `b * a`
            refused = meant
    return NoMatch(best.reason, len(skeleton.path) + 1000 + best.depth)


def _matched(
    graph: Graph,
    rule: Rule,
    skeleton: Skeleton,
    candidate: Candidate,
    atoms: tuple[Atom, ...],
    parameters: dict[str, Any],
    reading: Reading,
) -> Bound | NoMatch:
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
            return Bound(skeleton.before, found, atoms, parameters, reading)
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
