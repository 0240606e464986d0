"""The loose match: where in a program a rule could apply, whatever the types are.

Finding the graph of operations of a pattern (`skeleton.py`) in a program tells which values could be the operands;
whether they are is for the exact match.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..._jax import Atom, JaxprEqn, Literal, Var
from ..program import is_var
from ..record import record
from ..same import literal_key
from .graph import Graph, Node, Readers, shown, told
from .skeleton import Climb, Skeleton, result_index
from .spelling import COMMUTATIVE, orders

MOST_STEPS = 2000  # of one attempt, orders of operands tried included
MOST_WAYS = 4


@record
class Candidate:
    """Where a pattern could stand.

    Attributes:
        tops: for each result the equation that makes it, but for plumbing, and which of its results.
        operands: for each operand, what it could be: the nearest to the operation that reads it first.
        eqns: the equations that are laid over the pattern, without plumbing.
    """

    tops: tuple[tuple[Node, int], ...]
    operands: tuple[tuple[Atom, ...], ...]
    eqns: tuple[JaxprEqn, ...]


class NoMatch(NamedTuple):  # made a hundred thousand times: a frozen dataclass takes four times as long
    """Why a pattern is not there, and how much of it was."""

    reason: str
    depth: int = 0


NOT_TRIED = NoMatch("", -1)


def candidates(
    graph: Graph, skeleton: Skeleton, start: Node, parameters: Collection[Any] = ()
) -> list[Candidate] | NoMatch:
    """Where the pattern could stand whose rarest operation is `start`; numbers among `parameters` stand for any."""
    at = _climbed(graph, skeleton, [start], skeleton.path[1:], 1)
    if isinstance(at, NoMatch):
        return at
    made, worst = [], NOT_TRIED
    for node in at:
        matched = _Search(graph, skeleton, parameters).run(node)
        if isinstance(matched, NoMatch):
            worst = max(worst, matched, key=_depth)
            continue
        for state in matched:
            chains = tuple(state.operands[v] for v in skeleton.pattern.jaxpr.invars)
            tops = tuple((state.tops[k], index) for k, index in enumerate(skeleton.indices))
            if any(k >= len(node.eqn.outvars) for node, k in tops):  # results that nobody reads are gone from it
                worst = max(worst, NoMatch("not all of its results are read", 0), key=lambda one: one.depth)
                continue
            made.append(Candidate(tops, chains, tuple(state.made.values())))
    return made or NoMatch(worst.reason, len(skeleton.path) + worst.depth)


def missing(graph: Graph, skeleton: Skeleton, start: Node) -> NoMatch | None:
    """What most attempts fail by, told without a search: `start` is read by, or made of, none of what the pattern has.

    None says nothing.
    """
    if skeleton.above is not None:
        readers = graph.readers_behind(start, skeleton.plumbing)
        if skeleton.above not in readers.operations:
            return NoMatch(f"expected `{skeleton.path[1].primitive.name}`, found {readers.told}", 1)
    makers = graph.makers_behind(start, skeleton.plumbing) if skeleton.under else ()
    for k, eqn in skeleton.under:
        maker, found = makers[k] if k < len(makers) else (None, "nothing")
        if maker is None or maker.operation != skeleton.operation(eqn):
            return NoMatch(f"expected `{eqn.primitive.name}`, found {found}", 2 * len(skeleton.path))
    return None


def _climbed(
    graph: Graph, skeleton: Skeleton, at: list[Node], path: Sequence[JaxprEqn], depth: int
) -> list[Node] | NoMatch:
    """The equations that the operations of `path`, each a reader of the one before, lead to from those `at`."""
    for further, eqn in enumerate(path, depth):
        readers = [graph.readers_behind(node, skeleton.plumbing) for node in at]
        found = _like(skeleton, eqn, readers, further)
        if isinstance(found, NoMatch):
            return found
        at = found
    return at


def _like(skeleton: Skeleton, eqn: JaxprEqn, readers: Sequence[Readers], depth: int) -> list[Node] | NoMatch:
    """Those of some readers that are of the operation of `eqn`."""
    wanted = skeleton.operation(eqn)
    found = [node for one in readers for node in one.of(wanted)]
    if found:
        return found if len(readers) == 1 else list({id(node.eqn): node for node in found}.values())
    names = " and ".join(dict.fromkeys(one.told for one in readers)) or "nothing"
    return NoMatch(f"expected `{eqn.primitive.name}`, found {names}", depth)


def _depth(one: NoMatch) -> int:
    return one.depth


class _State(NamedTuple):
    """Operands with what they could be, equations of the pattern with those of the program, and what makes results."""

    operands: dict[Var, tuple[Atom, ...]]
    made: dict[int, JaxprEqn]
    tops: dict[int, Node]


class _Search:
    """One attempt to lay the graph of a pattern over a program, from the results down."""

    def __init__(self, graph: Graph, skeleton: Skeleton, parameters: Collection[Any]):
        self.graph, self.skeleton, self.parameters = graph, skeleton, parameters
        self.steps, self.worst = 0, NoMatch("it is too large", -1)

    def run(self, node: Node) -> list[_State] | NoMatch:
        """What stands for what, if `node` makes the first result: several ways where operands could be exchanged."""
        skeleton = self.skeleton
        other = self._other_number(node)
        if other is not None:
            return other
        first = self._equations(skeleton.path[-1], node, _State({}, {}, {skeleton.result: node}))
        states = list(itertools.islice(self._with_others(first, skeleton.others), MOST_WAYS))
        if states and len(states[0].operands) != len(skeleton.pattern.jaxpr.invars):
            return NoMatch("`before` does not use all of its arguments")
        return states or self.worst

    def _other_number(self, node: Node) -> NoMatch | None:
        """Why `node` has another number than the last operation of the pattern, where each has one, told at once."""
        eqn = self.skeleton.path[-1]
        wanted, got = ([x for x in xs if isinstance(x, Literal)] for xs in (self.skeleton.operands(eqn), node.operands))
        if len(wanted) != 1 or len(got) != 1 or node.operation not in COMMUTATIVE:
            return None
        return None if self._is_number(wanted[0], got[0]) else NoMatch(_unequal(wanted[0], shown(got[0])), 1)

    def _with_others(self, states: Iterator[_State], others: Sequence[Climb]) -> Iterator[_State]:
        """The states that hold the other results too."""
        if not others:
            yield from states
            return
        for state in states:
            yield from self._with_others(self._other(others[0], state), others[1:])

    def _other(self, climb: Climb, state: _State) -> Iterator[_State]:
        depth = len(state.made)
        if isinstance(climb.start, Var):
            values = [x for x in state.operands[climb.start] if is_var(x)]
            reading = Readers(self.graph.reading(values, self.skeleton.plumbing))
            at = _like(self.skeleton, climb.path[0], [reading], depth)
        else:
            maker = self.graph.maker(state.made[id(climb.start)].outvars[0])
            at = [] if maker is None else [maker]
        if not isinstance(at, NoMatch):
            at = _climbed(self.graph, self.skeleton, at, climb.path[1:], depth)
        if isinstance(at, NoMatch):
            self._fail(at.reason, state)
            return
        for node in at:
            here = _State(state.operands, state.made, {**state.tops, climb.result: node})
            yield from self._equations(climb.path[-1], node, here)

    def _fail(self, reason: str, state: _State) -> None:
        self.worst = max(self.worst, NoMatch(reason, len(state.made)), key=_depth)

    def _equations(self, eqn: JaxprEqn, node: Node, state: _State) -> Iterator[_State]:
        """The ways in which `eqn` of the pattern can be `node`."""
        self.steps += 1
        if id(eqn) in state.made or self.steps > MOST_STEPS:
            if state.made.get(id(eqn)) is node.eqn:
                yield state
            return
        wanted = self.skeleton.operands(eqn)
        if self.skeleton.operation(eqn) != node.operation or len(wanted) != len(node.operands):
            self._fail(unlike(node, eqn).reason, state)
            return
        here = _State(state.operands, {**state.made, id(eqn): node.eqn}, state.tops)
        for xs in orders(wanted, node.eqn):
            yield from each(list(zip(wanted, xs, strict=True)), here, self._operand)

    def _operand(self, p: Atom, x: Atom, state: _State) -> Iterator[_State]:
        core = self.skeleton.stripped(p)
        chain = self.graph.stripped(x) if self.skeleton.plumbing else [self.graph.seen(x)]
        if isinstance(core, Literal):
            if self._is_number(core, chain[-1]):
                yield state
            else:
                self._fail(_unequal(core, self._what(chain[-1])), state)
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
        return told(x, self.graph.maker(x))

    def _bound(self, operand: Var, chain: list[Atom], state: _State) -> Iterator[_State]:
        old = state.operands.get(operand, tuple(chain))
        same = tuple(x for x in old if any(same_atom(x, y) for y in chain))
        if same:
            yield _State({**state.operands, operand: same}, state.made, state.tops)
        else:
            self._fail("one argument stands in two places, and two values were found there", state)


def unlike(node: Node, wanted: JaxprEqn) -> NoMatch:
    """That an equation is of another operation than is wanted, or of another number of operands."""
    name, found = wanted.primitive.name, node.eqn.primitive.name
    if found != name:
        return NoMatch(f"expected `{name}`, found `{found}`")
    few, many = len(wanted.invars), len(node.eqn.invars)
    return NoMatch(
        f"expected `{name}` of {few} operands, found one of {many}" if few != many else f"a `{name}` of another kind"
    )


def _unequal(wanted: Literal, found: str) -> str:
    return f"expected {shown(wanted)}, found {found}"


S = TypeVar("S")


def each(pairs: list[tuple[Atom, Atom]], state: S, step: Callable[[Atom, Atom, S], Iterator[S]]) -> Iterator[S]:
    """The ways to take all steps one after the other."""
    if not pairs:
        yield state
        return
    for after in step(*pairs[0], state):
        yield from each(pairs[1:], after, step)


def same_atom(a: Atom, b: Atom) -> bool:
    """Whether two atoms are one value for sure: one variable, or one number."""
    if is_var(a) or is_var(b):
        return a is b
    return literal_key(a) == literal_key(b)
