"""The exact match: whether a pattern, traced at the very types of its operands, is what stands in a program."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..._jax import Atom, JaxprEqn, Literal, Var
from ..program import is_var
from ..record import record
from .graph import Graph, Node, shown, told
from .loose import NoMatch, each, same_atom
from .spelling import different_param, operands, operation, orders
from .traces import Pattern

MOST_STEPS = 5000


@record
class Found:
    """A pattern that is there.

    Attributes:
        nodes: its equations in the program, that of the first result first; those that depend on no operand are left
            out.
        results: the values that it makes.
    """

    nodes: tuple[Node, ...]
    results: tuple[Var, ...]


@record
class _State:
    made: dict[int, JaxprEqn]
    nodes: tuple[Node, ...]


class ExactSearch:
    """One comparison of a pattern with a program.

    Args:
        graph: the program's level.
        pattern: at the types of `atoms`.
        atoms: the operands at the site.
        as_spelt: whether one operation must be spelt in one way: no `x * x` for a square, no `b * a` for `a * b`.
    """

    def __init__(self, graph: Graph, pattern: Pattern, atoms: Sequence[Atom], as_spelt: bool = False):
        self.graph, self.pattern, self.as_spelt = graph, pattern, as_spelt
        self.operands = {v: graph.seen(atoms[i]) for v, i in zip(pattern.jaxpr.invars, pattern.inputs, strict=True)}
        self.depends = self._depends()
        self.steps, self.worst = 0, NoMatch("it is too large", -1)

    def _depends(self) -> set[Var]:
        late = set(self.pattern.jaxpr.invars)
        for eqn in self.pattern.jaxpr.eqns:
            if any(is_var(x) and x in late for x in eqn.invars):
                late.update(eqn.outvars)
        return late

    def run(self, results: Sequence[Var]) -> Found | NoMatch:
        """The pattern, if its results are `results`."""
        pairs: list[tuple[Atom, Atom]] = list(zip(self.pattern.results, results, strict=True))
        state = next(each(pairs, _State({}, ()), self._atoms), None)
        return self.worst if state is None else Found(state.nodes, tuple(results))

    def _fail(self, reason: str, state: _State) -> None:
        self.worst = max(self.worst, NoMatch(reason, len(state.made)), key=lambda one: one.depth)

    def _atoms(self, p: Atom, x: Atom, state: _State) -> Iterator[_State]:
        self.steps += 1
        x = self.graph.seen(x)
        if self.steps > MOST_STEPS:
            return
        if not is_var(p):
            if _same_number(p, x):
                yield state
            else:
                self._fail(f"expected {shown(p)}, found {self._what(x)}", state)
        elif p in self.operands:
            if same_atom(self.operands[p], x):
                yield state
            else:
                self._fail("one argument stands in two places, and two values were found there", state)
        elif p in self.pattern.consts:
            if self._same_constant(p, x):
                yield state
            else:
                self._fail(f"expected a constant {p.aval.str_short(True)}, found {self._what(x)}", state)
        else:
            yield from self._made(p, x, state)

    def _made(self, p: Var, x: Atom, state: _State) -> Iterator[_State]:
        eqn = self.pattern.jaxpr.eqns[self.pattern.makers[p]]
        node = self.graph.maker(x)
        if id(eqn) in state.made and p in self.depends:  # a constant may be made twice, in two calls
            if node is not None and state.made[id(eqn)] is node.eqn and _same_place(eqn, p, node.eqn, x):
                yield state
            return
        reason = self._difference(eqn, p, node, x)
        if reason is not None or node is None:
            self._fail(str(reason), state)
            return
        nodes = (*state.nodes, node) if p in self.depends else state.nodes
        here = _State({**state.made, id(eqn): node.eqn}, nodes)
        wanted = eqn.invars if self.as_spelt else operands(eqn)
        for xs in [node.eqn.invars] if self.as_spelt else orders(wanted, node.eqn):
            yield from each(list(zip(wanted, xs, strict=True)), here, self._atoms)

    def _difference(self, eqn: JaxprEqn, p: Var, node: Node | None, x: Atom) -> str | None:
        if node is None:
            return f"expected `{eqn.primitive.name}`, found {self._what(x)}"
        other = node.eqn
        same = eqn.primitive is other.primitive if self.as_spelt else operation(eqn) == operation(other)
        if not same or len(operands(eqn)) != len(operands(other)):
            return f"expected `{eqn.primitive.name}`, found `{other.primitive.name}`"
        if p.aval.shape != x.aval.shape or p.aval.dtype != x.aval.dtype:
            return f"expected `{eqn.primitive.name}` of {p.aval.str_short(True)}, found {x.aval.str_short(True)}"
        if not _same_place(eqn, p, other, x):
            return f"expected another result of `{eqn.primitive.name}`"
        if eqn.effects or other.effects:
            return f"`{eqn.primitive.name}` has effects"
        name = different_param(eqn, other)
        if name is not None:
            return f"`{eqn.primitive.name}` has another `{name}`"
        return None

    def _same_constant(self, p: Var, x: Atom) -> bool:
        want, got = self.pattern.consts[p], self.graph.value(x)
        if got is None or p.aval.shape != x.aval.shape or p.aval.dtype != x.aval.dtype:
            return False
        return got is want or np.asarray(got).tobytes() == np.asarray(want).tobytes()

    def _what(self, x: Atom) -> str:
        return told(x, self.graph.maker(x))


def _same_place(eqn: JaxprEqn, p: Var, other: JaxprEqn, x: Atom) -> bool:
    return is_var(x) and eqn.outvars.index(p) == other.outvars.index(x)


def _same_number(p: Atom, x: Atom) -> bool:
    """The same literal; one that gives way to other types is no other."""
    if is_var(p) or not isinstance(x, Literal) or p.aval.dtype != x.aval.dtype:
        return False
    a, b = np.asarray(p.val, p.aval.dtype), np.asarray(x.val, x.aval.dtype)
    return a.shape == b.shape and a.tobytes() == b.tobytes()  # 0.0 == -0.0, and nan != nan
