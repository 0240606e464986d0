"""The loose match: where in a program a rule could apply, whatever the types are.

`before` is traced at small example arrays. What is left of it when moves, copies, conversions and constants are looked
past is a graph of operations that hardly depends on ranks and dtypes. Finding it in a program tells which values could
be the operands; whether they are is for the exact match.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ..._jax import Atom, JaxprEqn, Literal, Var
from ..program import is_var
from ..same import literal_key
from .graph import Graph, Node
from .rule import Rule
from .spelling import PLUMBING, operands, operation, orders, rarity
from .traces import SIZE, Pattern, at_size, examples

MOST_STEPS = 2000  # of one attempt, orders of operands tried included
MOST_WAYS = 4


class Skeleton:
    """The graph of operations of one pattern.

    Attributes:
        plumbing: the operations that it looks past; none, if it consists of nothing else.
        path: from the operation that the search begins at to the one that makes the result.
    """

    def __init__(self, rule: Rule, pattern: Pattern):
        self.rule, self.pattern = rule, pattern
        self.depends = _depends(pattern)
        live = [eqn for eqn in pattern.jaxpr.eqns if not self.depends.isdisjoint(eqn.outvars)]
        core = [eqn for eqn in live if eqn.primitive.name not in PLUMBING]
        self.plumbing = PLUMBING if core else frozenset[str]()
        self.top = self.maker(pattern.result)
        self.path = self._path(core or live) if self.top is not None else []

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

    def _path(self, core: Sequence[JaxprEqn]) -> list[JaxprEqn]:
        """From the first of the rarest operations to the result."""
        readers: dict[int, JaxprEqn] = {}
        below = self._below(readers)
        start = max((eqn for eqn in core if id(eqn) in below), key=rarity)  # the first of equals
        path = [start]
        while path[-1] is not self.top:
            path.append(readers[id(path[-1])])
        return path

    def _below(self, readers: dict[int, JaxprEqn]) -> set[int]:
        """The operations that the result is made of; `readers` gets one reader of each."""
        assert self.top is not None
        seen, stack = {id(self.top)}, [self.top]
        while stack:
            eqn = stack.pop()
            for x in eqn.invars:
                below = self.maker(x)
                if below is not None and id(below) not in seen:
                    seen.add(id(below))
                    readers[id(below)] = eqn
                    stack.append(below)
        return seen

    @cached_property
    def numbers(self) -> set[int]:
        """The literals, by identity, that are the same for arrays of another size: not, say, the count of a mean."""
        larger = at_size(self.rule, self.pattern, SIZE + 1)
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

        return said(self.pattern.result)


def _depends(pattern: Pattern) -> set[Var]:
    late = set(pattern.jaxpr.invars)
    for eqn in pattern.jaxpr.eqns:
        if any(is_var(x) and x in late for x in eqn.invars):
            late.update(eqn.outvars)
    return late


def skeletons(rule: Rule) -> list[Skeleton]:
    """The different graphs of a rule, which are found once; in the order of the examples."""
    if "skeletons" not in rule.kept:
        found: dict[object, Skeleton] = {}
        for pattern in examples(rule):
            one = Skeleton(rule, pattern)
            if one.path:
                found.setdefault(one.key(), one)
        rule.kept["skeletons"] = list(found.values())
    return rule.kept["skeletons"]


@dataclass(frozen=True)
class Candidate:
    """Where a pattern could stand.

    Attributes:
        top: the equation that makes the result, but for plumbing, and which of its results.
        operands: for each operand, what it could be: the nearest to the operation that reads it first.
        eqns: the equations that are laid over the pattern, without plumbing.
    """

    top: Node
    index: int
    operands: tuple[tuple[Atom, ...], ...]
    eqns: tuple[JaxprEqn, ...]


@dataclass(frozen=True)
class NoMatch:
    """Why a pattern is not there, and how much of it was."""

    reason: str
    depth: int = 0


def candidates(
    graph: Graph, skeleton: Skeleton, start: Node, parameters: Collection[Any] = ()
) -> list[Candidate] | NoMatch:
    """Where the pattern could stand whose rarest operation is `start`; numbers among `parameters` stand for any."""
    at = [start]
    for depth, eqn in enumerate(skeleton.path[1:], 1):
        found: dict[int, Node] = {}
        others: list[str] = []
        for node in at:
            for reader in _readers(graph, skeleton, node):
                if reader is None:
                    others.append("a result")
                elif operation(reader.eqn) == operation(eqn):
                    found[id(reader.eqn)] = reader
                else:
                    others.append(f"`{reader.eqn.primitive.name}`")
        if not found:
            seen = " and ".join(sorted(set(others))) or "nothing"
            return NoMatch(f"expected `{eqn.primitive.name}`, found {seen}", depth)
        at = list(found.values())
    made, worst = [], NoMatch("", -1)
    top = skeleton.path[-1]
    index = result_index(top, skeleton.stripped(skeleton.pattern.result))
    for node in at:
        matched = _Search(graph, skeleton, parameters).run(top, node)
        if isinstance(matched, NoMatch):
            worst = max(worst, matched, key=_depth)
            continue
        for state in matched:
            chains = tuple(state.operands[v] for v in skeleton.pattern.jaxpr.invars)
            made.append(Candidate(node, index, chains, tuple(state.made.values())))
    return made or NoMatch(worst.reason, len(skeleton.path) + worst.depth)


def _depth(one: NoMatch) -> int:
    return one.depth


def _readers(graph: Graph, skeleton: Skeleton, node: Node) -> Iterator[Node | None]:
    """The equations that read the results of one, plumbing looked past; None for the level's results."""
    stack, seen = list(node.eqn.outvars), set[Var]()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        for reader in graph.readers(v):
            if reader is not None and reader.eqn.primitive.name in skeleton.plumbing:
                stack += reader.eqn.outvars
            else:
                yield reader


@dataclass(frozen=True)
class _State:
    """Operands with what they could be, and equations of the pattern with those of the program."""

    operands: dict[Var, tuple[Atom, ...]]
    made: dict[int, JaxprEqn]


class _Search:
    """One attempt to lay the graph of a pattern over a program, from the result down."""

    def __init__(self, graph: Graph, skeleton: Skeleton, parameters: Collection[Any]):
        self.graph, self.skeleton, self.parameters = graph, skeleton, parameters
        self.steps, self.worst = 0, NoMatch("it is too large", -1)

    def run(self, top: JaxprEqn, node: Node) -> list[_State] | NoMatch:
        """What stands for what, if `node` makes the result: several ways where operands could be exchanged."""
        invars = self.skeleton.pattern.jaxpr.invars
        states = list(itertools.islice(self._equations(top, node, _State({}, {})), MOST_WAYS))
        if states and len(states[0].operands) != len(invars):
            return NoMatch("`before` does not use all of its arguments")
        return states or self.worst

    def _fail(self, reason: str, state: _State) -> None:
        self.worst = max(self.worst, NoMatch(reason, len(state.made)), key=_depth)

    def _equations(self, eqn: JaxprEqn, node: Node, state: _State) -> Iterator[_State]:
        """The ways in which `eqn` of the pattern can be `node`."""
        self.steps += 1
        if id(eqn) in state.made or self.steps > MOST_STEPS:
            if state.made.get(id(eqn)) is node.eqn:
                yield state
            return
        wanted = operands(eqn)
        if operation(eqn) != operation(node.eqn) or len(wanted) != len(operands(node.eqn)):
            self._fail(f"expected `{eqn.primitive.name}`, found `{node.eqn.primitive.name}`", state)
            return
        here = _State(state.operands, {**state.made, id(eqn): node.eqn})
        for xs in orders(wanted, node.eqn):
            yield from each(list(zip(wanted, xs, strict=True)), here, self._operand)

    def _operand(self, p: Atom, x: Atom, state: _State) -> Iterator[_State]:
        core = self.skeleton.stripped(p)
        chain = self.graph.stripped(x) if self.skeleton.plumbing else [self.graph.seen(x)]
        if isinstance(core, Literal):
            if self._is_number(core, chain[-1]):
                yield state
            else:
                self._fail(f"expected {shown(core)}, found {self._what(chain[-1])}", state)
            return
        if core not in self.skeleton.depends:
            yield state  # a constant: the exact match looks at it
            return
        eqn = self.skeleton.maker(core)
        if eqn is None:
            yield from self._bound(core, chain, state)
            return
        maker = self.graph.maker(chain[-1])
        if maker is None:
            self._fail(f"expected `{eqn.primitive.name}`, found {shown(chain[-1])}", state)
        elif result_index(eqn, core) == result_index(maker.eqn, chain[-1]):
            yield from self._equations(eqn, maker, state)
        else:
            self._fail(f"expected another result of `{eqn.primitive.name}`", state)

    def _is_number(self, wanted: Literal, x: Atom) -> bool:
        if not isinstance(x, Literal) or np.shape(x.val) or np.shape(wanted.val):
            return isinstance(x, Literal)
        value = np.asarray(wanted.val).item()
        if value == np.asarray(x.val).item() or value != value or any(value == p for p in self.parameters):
            return True
        return id(wanted) not in self.skeleton.numbers

    def _what(self, x: Atom) -> str:
        maker = self.graph.maker(x)
        return shown(x) if maker is None else f"`{maker.eqn.primitive.name}`"

    def _bound(self, operand: Var, chain: list[Atom], state: _State) -> Iterator[_State]:
        old = state.operands.get(operand, tuple(chain))
        same = tuple(x for x in old if any(same_atom(x, y) for y in chain))
        if same:
            yield _State({**state.operands, operand: same}, state.made)
        else:
            self._fail("one argument stands in two places, and two values were found there", state)


def shown(x: Atom) -> str:
    """An atom that no equation makes, in words."""
    if not isinstance(x, Literal) or np.shape(x.val):
        return "an argument or a constant"
    return f"the number {np.asarray(x.val).item()!r}"


S = TypeVar("S")


def each(pairs: list[tuple[Atom, Atom]], state: S, step: Callable[[Atom, Atom, S], Iterator[S]]) -> Iterator[S]:
    """The ways to take all steps one after the other."""
    if not pairs:
        yield state
        return
    for after in step(*pairs[0], state):
        yield from each(pairs[1:], after, step)


def result_index(eqn: JaxprEqn, x: Atom) -> int:
    """Which result of an equation a variable is."""
    return next(k for k, v in enumerate(eqn.outvars) if v is x)


def same_atom(a: Atom, b: Atom) -> bool:
    """Whether two atoms are one value for sure: one variable, or one number."""
    if is_var(a) or is_var(b):
        return a is b
    return literal_key(a) == literal_key(b)
