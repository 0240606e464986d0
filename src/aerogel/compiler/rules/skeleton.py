"""The graph of operations of a pattern, whatever the types: what a search in a program begins with.

`before` is traced at small example arrays. What is left of it when moves, copies, conversions and constants are looked
past is a graph of operations that hardly depends on ranks and dtypes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..._jax import Atom, JaxprEqn, Literal, Var
from ..program import depends_on, is_var
from ..same import literal_key
from .rule import Rule
from .spelling import COMMUTATIVE, PLUMBING, operands, operation, rarity
from .traces import SIZE, Pattern, at_size, examples

MOST_STALE = 3  # arrays of mixed ranks that show no new graph: broadcasting is looked past


@dataclass(frozen=True, eq=False)
class Climb:
    """The way to one result of a pattern.

    Attributes:
        result: which one.
        start: the operation or the operand that it begins at, which another result is made of too.
        path: the operations from there to the one that makes the result, which comes last.
    """

    result: int
    start: JaxprEqn | Var
    path: tuple[JaxprEqn, ...]


class Skeleton:
    """The graph of operations of one pattern.

    Attributes:
        before: the function that it was made of.
        plumbing: the operations that it looks past; none, if it consists of nothing else.
        path: from the operation that the search begins at to the one that makes a result.
        result: which result that is.
        others: the ways to the other results.
    """

    def __init__(self, rule: Rule, before: Callable[..., Any], pattern: Pattern):
        self.rule, self.before, self.pattern = rule, before, pattern
        self.depends = depends_on(pattern.jaxpr, pattern.jaxpr.invars)
        live = [eqn for eqn in pattern.jaxpr.eqns if not self.depends.isdisjoint(eqn.outvars)]
        core = [eqn for eqn in live if eqn.primitive.name not in PLUMBING]
        self.plumbing = PLUMBING if core else frozenset[str]()
        self.tops = [self.maker(x) for x in pattern.results]
        self.path: list[JaxprEqn] = []
        self.result, self.others = 0, list[Climb]()
        self._spelt = {id(eqn): (operation(eqn), operands(eqn)) for eqn in pattern.jaxpr.eqns}
        if self.tops and None not in self.tops:
            self._find_paths(core or live)

    @cached_property
    def indices(self) -> list[int]:
        """Which result of the operation that makes it each result of the pattern is."""
        pairs = zip(self.tops, self.pattern.results, strict=True)
        return [result_index(top, self.stripped(x)) for top, x in pairs if top is not None]

    @cached_property
    def above(self) -> str | None:
        """The operation that reads the first one of `path`; None if that makes the result itself."""
        return self.operation(self.path[1]) if len(self.path) > 1 else None

    @cached_property
    def under(self) -> list[tuple[int, JaxprEqn]]:
        """What makes the operands of the first operation of `path`, by their places; nothing if they can be swapped."""
        start = self.path[0]
        if self.operation(start) in COMMUTATIVE:
            return []
        makers = [(k, self.maker(x)) for k, x in enumerate(self.operands(start))]
        return [(k, eqn) for k, eqn in makers if eqn is not None]

    def operation(self, eqn: JaxprEqn) -> str:
        """What an equation of the pattern computes."""
        return self._spelt[id(eqn)][0]

    def operands(self, eqn: JaxprEqn) -> Sequence[Atom]:
        """What an equation of the pattern is computed from."""
        return self._spelt[id(eqn)][1]

    def stripped(self, x: Atom) -> Atom:
        """`x`, or what it is made of by plumbing alone."""
        while (eqn := self._made(x)) is not None and eqn.primitive.name in self.plumbing:
            x = eqn.invars[0]
        return x

    def _made(self, x: Atom) -> JaxprEqn | None:
        if not is_var(x) or x not in self.depends or x not in self.pattern.makers:
            return None
        return self.pattern.jaxpr.eqns[self.pattern.makers[x]]

    def maker(self, x: Atom) -> JaxprEqn | None:
        """The operation that makes a value, plumbing looked past; None for operands and what depends on none."""
        return self._made(self.stripped(x))

    def _find_paths(self, core: Sequence[JaxprEqn]) -> None:
        """From the first of the rarest operations to a result that it stands in, then to the others from there."""
        below = [self._below(k) for k in range(len(self.tops))]
        found = [eqn for eqn in core if any(id(eqn) in readers for readers in below)]
        start = max(found, key=rarity)  # the first of equals
        self.result = next(k for k, readers in enumerate(below) if id(start) in readers)
        self.path = _up(start, below[self.result])
        seen = set(below[self.result])
        for k, readers in enumerate(below):
            if k != self.result:
                climb = self._climb(k, readers, seen)
                if climb is None:
                    self.path = []  # two patterns that have nothing in common
                    return
                self.others.append(climb)
                seen |= set(readers)

    def _climb(self, k: int, readers: dict[int, JaxprEqn | None], seen: set[int]) -> Climb | None:
        """The way to result `k` from what was found already, the nearest to the result."""
        eqns = [eqn for eqn in reversed(self.pattern.jaxpr.eqns) if id(eqn) in readers]
        shared = next((eqn for eqn in eqns if id(eqn) in seen), None)
        if shared is not None:
            return Climb(k, shared, tuple(_up(shared, readers)))
        known = {
            self.stripped(x) for eqn in self.pattern.jaxpr.eqns if id(eqn) in seen for x in eqn.invars if is_var(x)
        }
        for eqn in eqns:
            for x in map(self.stripped, eqn.invars):
                if is_var(x) and x in known and self.maker(x) is None and x in self.depends:
                    return Climb(k, x, tuple(_up(eqn, readers)))
        return None

    def _below(self, k: int) -> dict[int, JaxprEqn | None]:
        """The operations that result `k` is made of, by identity, each with one reader; the last has none."""
        top = self.tops[k]
        assert top is not None
        readers: dict[int, JaxprEqn | None] = {id(top): None}
        stack = [top]
        while stack:
            eqn = stack.pop()
            for x in eqn.invars:
                below = self.maker(x)
                if below is not None and id(below) not in readers:
                    readers[id(below)] = eqn
                    stack.append(below)
        return readers

    @cached_property
    def numbers(self) -> set[int]:
        """The literals, by identity, that are the same for arrays of another size: not, say, the count of a mean."""
        larger = at_size(self.rule, self.before, self.pattern, SIZE + 1)
        ours, theirs = self.pattern.jaxpr.eqns, [] if larger is None else larger.jaxpr.eqns
        if [eqn.primitive for eqn in ours] != [eqn.primitive for eqn in theirs]:
            return set()
        pairs = ((a, b) for p, q in zip(ours, theirs, strict=True) for a, b in zip(p.invars, q.invars, strict=False))
        return {id(a) for a, b in pairs if isinstance(a, Literal) and literal_key(a) == literal_key(b)}

    def key(self) -> object:
        """Equal for graphs that are found in the same places."""
        known: dict[int, int] = {}

        def said(x: Atom) -> object:
            x = self.stripped(x)
            eqn = self._made(x)
            if eqn is None:
                return next((k for k, v in enumerate(self.pattern.jaxpr.invars) if v is x), "const")
            if id(eqn) not in known:
                known[id(eqn)] = len(known)
                return (known[id(eqn)], operation(eqn), result_index(eqn, x), *map(said, operands(eqn)))
            return (known[id(eqn)], result_index(eqn, x))

        return tuple(map(said, self.pattern.results))


def _up(start: JaxprEqn, readers: dict[int, JaxprEqn | None]) -> list[JaxprEqn]:
    path = [start]
    while (reader := readers[id(path[-1])]) is not None:
        path.append(reader)
    return path


def result_index(eqn: JaxprEqn, x: Atom) -> int:
    """Which result of an equation a variable is."""
    return next(k for k, v in enumerate(eqn.outvars) if v is x)


def skeletons(rule: Rule) -> list[Skeleton]:
    """The different graphs of a rule, which are found once; in the order of its spellings, then of the examples."""
    known = rule.kept.get("skeletons")
    if known is not None:
        return known
    found: dict[object, Skeleton] = {}
    for before in rule.spellings:
        stale = 0
        for ranks, pattern in examples(rule, before):
            one = Skeleton(rule, before, pattern)
            is_new = bool(one.path) and found.setdefault(one.key(), one) is one
            stale = 0 if is_new else stale + (len(set(ranks)) > 1)
            if stale == MOST_STALE:
                break
    return rule.kept.put("skeletons", list(found.values()))


def starts_of(rule: Rule) -> dict[str, list[Skeleton]]:
    """The graphs of a rule by the operation that a search for them begins at."""
    known = rule.kept.get("starts")
    if known is not None:
        return known
    found: dict[str, list[Skeleton]] = {}
    for one in skeletons(rule):
        found.setdefault(operation(one.path[0]), []).append(one)
    return rule.kept.put("starts", found)
