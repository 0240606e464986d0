"""Whether a rule fires where its pattern is: all that may be said against it, and what it writes."""

from collections.abc import Sequence

from ... import _jax
from ..._jax import Atom, Var
from ..known.spread import is_entrywise
from ..program import is_var
from ..record import record
from .errors import RuleError
from .exact import ExactSearch, Found
from .graph import Graph, Node
from .loose import NOT_TRIED, NoMatch, missing, unlike
from .match import Bound, Level, match_at
from .on import PrimitiveRule
from .operand import operands_of
from .place import place_of
from .profit import loss
from .rule import Rule
from .site import Site
from .skeleton import starts_of
from .spelling import PLUMBING
from .stage import not_allowed
from .traces import REFUSALS, Pattern, Refused, mistake, pattern_of


@record
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


def best_match(level: Level, rule: Rule, start: Node) -> Match | NoMatch:
    """The first match, or what came nearest to one."""
    is_likely = None if rule.begins is None else rule.begins[start.operation]
    if is_likely is not None and not is_likely(start.eqn):
        return unlike(start, start.eqn)
    best = NOT_TRIED
    for skeleton in starts_of(rule).get(start.operation, ()):
        found = missing(level.graph, skeleton, start) or match_at(level, rule, skeleton, start, judged)
        if isinstance(found, Match):
            return found
        if found.depth > best.depth:
            best = found
    return best


def judged(level: Level, rule: Rule, bound: Bound) -> Match | NoMatch:
    """A pattern that is there as a match; or what forbids it."""
    graph, found, atoms = level.graph, bound.found, bound.atoms
    calls = {node.call for node in found.nodes}
    if len(calls) == 1 and None not in calls:
        return NoMatch("all of it is in a function that is called from several places, where it is looked for too")
    shared = None if rule.shared else other_user(graph, found, atoms)
    forbidden = refusal(level, rule, bound, shared)
    if forbidden is not None:
        return NoMatch(forbidden)
    after = what_comes(rule, bound, found.results)
    forbidden = why_not(level, rule, bound, after)
    return NoMatch(forbidden) if forbidden else Match(rule, found, atoms, after, bool(bound.reading.maps))


def why_not(level: Level, rule: Rule, bound: Bound, after: Pattern) -> str | None:
    """What speaks against what a rule writes; None where nothing does."""
    graph, found = level.graph, bound.found
    if isinstance(ExactSearch(graph, after, bound.atoms, as_spelt=True).run(found.results), Found):
        return "it has the form that the rule writes"
    site = _site(level, bound)
    return _scattered(level, rule, after) or loss(rule.profit, site, graph, found.nodes, found.results, after.jaxpr)


def refusal(level: Level, rule: Rule, bound: Bound, shared: str | None) -> str | None:
    """What forbids a rule where its pattern is; None where nothing does. `shared` says who else reads its middle."""
    graph, found, atoms = level.graph, bound.found, bound.atoms
    if any(_jax.explicit_mesh(x.aval) for x in (*atoms, *found.results)):
        return "its values are sharded by their types"
    forbidden = not_allowed(rule, level.context.allowed) or shared
    if forbidden is None and len(found.results) > 1:
        forbidden = own_operand(graph, found, atoms)
    return forbidden or condition(graph, rule, bound, _site(level, bound))


def _site(level: Level, bound: Bound) -> Site:
    found = bound.found
    return Site(level.graph, found.nodes[0].eqn, bound.atoms, found.results, level.context, level.around)


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
    moved = moved_operands(graph, found, atoms)
    for node in found.nodes:
        for v in node.eqn.outvars:
            if v in found.results or v in moved:
                continue
            for reader in graph.readers(v):
                if reader is None or id(reader.eqn) not in own:
                    by = "is a result of its own" if reader is None else f"is read by `{reader.eqn.primitive.name}` too"
                    return f"what `{_core(graph, v)}` makes, in the middle of the pattern, {by}"
    return None


def moved_operands(graph: Graph, found: Found, atoms: tuple[Atom, ...]) -> set[Atom]:
    """The operands of a pattern, and what only moves or converts them in it."""
    moved: set[Atom] = {graph.seen(x) for x in atoms if is_var(x)}
    for node in reversed(found.nodes):
        eqn = node.eqn
        if eqn.primitive.name in PLUMBING and graph.seen(eqn.invars[0]) in moved:
            moved.update(eqn.outvars)
    return moved


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


def condition(graph: Graph, rule: Rule, bound: Bound, site: Site) -> str | None:
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


def what_comes(rule: Rule, bound: Bound, results: Sequence[Atom]) -> Pattern:
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
    got, wanted = ([(x.aval.shape, x.aval.dtype) for x in xs] for xs in (after.results, results))
    if got != wanted:
        raise RuleError(
            rule=rule.name,
            what="changed the type of a result.",
            where=line,
            got=", ".join(x.aval.str_short(True) for x in after.results),
            wanted=", ".join(x.aval.str_short(True) for x in results),
            to_fix="convert inside `after`, or refuse these types with `when`",
        )
    return after
