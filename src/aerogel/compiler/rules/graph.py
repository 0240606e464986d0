"""A level as the matcher sees it: who makes and who reads a value, also inside of calls that were not inlined.

A function that is called from several places stays one (`normalize`), so a pattern may end in the middle of a call.
Its equations are then looked at as if they stood at the place of the call; an edit that relies on them puts them there.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..._jax import Atom, DropVar, Jaxpr, JaxprEqn, Literal, Var, explicit_mesh
from ..cost.short import is_surely_short
from ..known.assume import assume_p
from ..known.records import Known
from ..level import Edit, Level
from ..normalize import inline_call, is_plain_call
from ..program import inner_jaxprs, is_var, substitute
from .keys import key_of
from .knowledge import Knowledge
from .spelling import PLUMBING, operands, operation

LARGEST_CALL = 400  # equations of a call that is looked into


@dataclass(frozen=True, eq=False)
class Node:
    """An equation, where it stands, and the place of the call that it stands in, if any.

    What many rules ask of one equation is found once.
    """

    eqn: JaxprEqn
    place: int
    call: int | None = None

    @cached_property
    def operation(self) -> str:
        """What it computes, by the name that all spellings share."""
        return operation(self.eqn)

    @cached_property
    def operands(self) -> Sequence[Atom]:
        """What it is computed from."""
        return operands(self.eqn)

    @cached_property
    def key(self) -> Hashable | None:
        """Equal for equations that a function of one equation cannot tell apart; None if that cannot be told."""
        return key_of(self.eqn)

    @cached_property
    def is_sharded(self) -> bool:
        """Whether the type of a value that it reads or makes says where it lies."""
        return any(explicit_mesh(x.aval) for x in (*self.eqn.invars, *self.eqn.outvars))


class Readers:
    """The equations that read some values, by their operations; None stands for the level's results."""

    def __init__(self, nodes: Iterable[Node | None]):
        self.operations: dict[str, dict[int, Node]] = {}  # the nodes by the identity of the equation
        self._is_result = False
        for node in nodes:
            if node is None:
                self._is_result = True
            else:
                self.operations.setdefault(node.operation, {})[id(node.eqn)] = node

    def of(self, operation: str) -> list[Node]:
        """Those of one operation."""
        return list(self.operations.get(operation, {}).values())

    @cached_property
    def told(self) -> str:
        """All of them in words."""
        names = {f"`{node.eqn.primitive.name}`" for nodes in self.operations.values() for node in nodes.values()}
        return " and ".join(sorted(names | ({"a result"} if self._is_result else set()))) or "nothing"


@dataclass
class _Entered:
    eqns: list[JaxprEqn]
    results: dict[Var, Atom]


@dataclass
class Graph:
    """The equations of a jaxpr, and those in its calls once somebody asks for them."""

    jaxpr: Jaxpr
    knowledge: Knowledge  # of the whole program

    def __post_init__(self) -> None:
        self.level = Level(self.jaxpr)
        self._entered: dict[int, _Entered] = {}
        self._inside: dict[Var, Node] = {}
        self._read_inside: dict[Var, list[Node]] = {}
        self._alias: dict[Var, Atom] = {}
        self._outer: dict[Var, list[Var]] = {}
        self._nodes: dict[int, Node] = {}
        self._learned: set[int] = set()
        self._found: dict[frozenset[str], list[Node]] = {}
        self._under: dict[tuple[int, bool], list[tuple[Node | None, str]]] = {}  # by identity of the equation
        self._behind: dict[tuple[int, bool], Readers] = {}  # by identity of the equation

    @cached_property
    def is_short(self) -> bool:
        """Whether few operations are counted in the level."""
        return is_surely_short(self.jaxpr)

    def node(self, place: int) -> Node:
        """The equation at a place of the level."""
        if place not in self._nodes:
            self._nodes[place] = Node(self.jaxpr.eqns[place], place)
        return self._nodes[place]

    def maker(self, x: Atom) -> Node | None:
        """The equation that makes a value; None for arguments, constants and literals."""
        x = self.seen(x)
        if not is_var(x):
            return None
        if x in self._inside:
            return self._inside[x]
        place = self.level.made_by.get(x)
        return None if place is None else self.node(place)

    def seen(self, x: Atom) -> Atom:
        """The value inside a call that `x` is the result of, or that something is assumed of; else `x`."""
        while is_var(x):
            place = self.level.made_by.get(x)
            if place is not None and self._can_enter(place):
                self._enter(place)
            under = self._alias.get(x, x)
            maker = self._made(under)
            under = maker.invars[0] if maker is not None and maker.primitive is assume_p else under
            if under is x:
                break
            x = under
        return x

    def _made(self, x: Atom) -> JaxprEqn | None:
        if not is_var(x):
            return None
        if x in self._inside:
            return self._inside[x].eqn
        place = self.level.made_by.get(x)
        return None if place is None else self.jaxpr.eqns[place]

    def value(self, x: Atom) -> Any:
        """The array that a value is, where the program holds it as a constant; else None."""
        x = self.seen(x)
        return self.knowledge.value(x) if is_var(x) else None

    def held(self, x: Atom) -> Any:
        """The same as NumPy's array or number: what is asked of JAX's (`x > 0`) would be traced, and no answer."""
        value = self.value(x)
        return np.asarray(value)[()] if value is not None and isinstance(value.dtype, np.dtype) else value

    def known(self, x: Atom) -> Known:
        """What is known of a value, by whatever name it goes."""
        x = self.seen(x)
        call = self.call_of(x)
        if call is not None and call not in self._learned:
            self._learned.add(call)
            self.knowledge.learn(self._entered[call].eqns)
        return self.knowledge.of(x)

    def readers(self, x: Var) -> Iterator[Node | None]:
        """The equations that read a value, calls looked into; None stands for the level's results."""
        for place in self.level.readers(x):
            if place < 0:
                yield None
            elif self._can_enter(place):
                self._enter(place)
            else:
                yield from self._reader(self.node(place))
        for node in self._read_inside.get(x, ()):
            yield from self._reader(node)
        for outer in self._outer.get(x, ()):
            yield from self.readers(outer)

    def _reader(self, node: Node) -> Iterator[Node | None]:
        """An equation; of one that only says something of a value, those that read it."""
        if node.eqn.primitive is assume_p:
            yield from self.readers(node.eqn.outvars[0])
        else:
            yield node

    def readers_behind(self, node: Node, plumbing: frozenset[str]) -> Readers:
        """What reads the results of an equation, `plumbing` looked past.

        Remembered: the rules of a set ask it of one equation again and again.
        """
        key = (id(node.eqn), bool(plumbing))
        if key not in self._behind:
            self._behind[key] = Readers(self.reading(node.eqn.outvars, plumbing))
        return self._behind[key]

    def makers_behind(self, node: Node, plumbing: frozenset[str]) -> list[tuple[Node | None, str]]:
        """What makes the operands of an equation, `plumbing` looked past, and what it is in words. Remembered."""
        key = (id(node.eqn), bool(plumbing))
        if key not in self._under:
            cores = [self.stripped(x)[-1] if plumbing else self.seen(x) for x in node.operands]
            self._under[key] = [(maker, told(x, maker)) for x, maker in zip(cores, map(self.maker, cores), strict=True)]
        return self._under[key]

    def reading(self, values: Iterable[Var], plumbing: frozenset[str]) -> Iterator[Node | None]:
        """The equations that read some values, `plumbing` looked past; None for the level's results."""
        stack, seen = list(values), set[Var]()
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            seen.add(v)
            for reader in self.readers(v):
                if reader is not None and reader.eqn.primitive.name in plumbing:
                    stack += reader.eqn.outvars
                else:
                    yield reader

    def _can_enter(self, place: int) -> bool:
        return place in self._calls

    @cached_property
    def _calls(self) -> frozenset[int]:
        return frozenset(
            i for i, eqn in enumerate(self.jaxpr.eqns) if is_plain_call(eqn) and _size(eqn) <= LARGEST_CALL
        )

    def _enter(self, place: int) -> None:
        if place in self._entered:
            return
        eqns, results = _inlined(self.jaxpr.eqns[place])
        self._entered[place] = _Entered(eqns, results)
        for eqn in eqns:
            node = Node(eqn, place, place)
            self._inside.update(dict.fromkeys(eqn.outvars, node))
            for x in {x for x in eqn.invars if is_var(x)}:
                self._read_inside.setdefault(x, []).append(node)
        self._alias.update(results)
        for outer, inner in results.items():
            if is_var(inner):
                self._outer.setdefault(inner, []).append(outer)

    def nodes(self, operations: frozenset[str]) -> list[Node]:
        """All equations of some operations, in order, those in calls included."""
        if operations not in self._found:
            self._found[operations] = self._find(operations)
        return self._found[operations]

    def _find(self, operations: frozenset[str]) -> list[Node]:
        found: list[Node] = []
        if self._places.keys().isdisjoint(operations):
            return found
        for place in sorted({place for name in operations for place in self._places.get(name, ())}):
            if self._can_enter(place):
                self._enter(place)
                inside = (self._inside[eqn.outvars[0]] for eqn in self._entered[place].eqns if eqn.outvars)
                found += (node for node in inside if node.operation in operations)
            else:
                found.append(self.node(place))
        return found

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Where each operation stands, or a call that holds it."""
        found: dict[str, list[int]] = {}
        for place, eqn in enumerate(self.jaxpr.eqns):
            for name in _operations(eqn) if self._can_enter(place) else (operation(eqn),):
                found.setdefault(name, []).append(place)
        return found

    @cached_property
    def by_primitive(self) -> dict[str, list[int]]:
        """Where the equations of each primitive stand, calls not looked into."""
        found: dict[str, list[int]] = {}
        for place, eqn in enumerate(self.jaxpr.eqns):
            found.setdefault(eqn.primitive.name, []).append(place)
        return found

    def inlining(self, call: int) -> Edit:
        """The edit that puts the equations of a call in its place."""
        entered = self._entered[call]
        here = frozenset((call,))
        return Edit(call, here, entered.eqns, dict(entered.results), here)

    def call_of(self, x: Atom) -> int | None:
        """The place of the call that a value is made in, if it is in one."""
        node = self._inside.get(x) if is_var(x) else None
        return None if node is None else node.call

    def stripped(self, x: Atom) -> list[Atom]:
        """`x`, and what it is made of by moving, copying and converting alone, step by step."""
        chain = [self.seen(x)]
        while (maker := self.maker(chain[-1])) is not None and maker.eqn.primitive.name in PLUMBING:
            chain.append(self.seen(maker.eqn.invars[0]))
        return chain


def shown(x: Atom) -> str:
    """An atom that no equation makes, in words."""
    if not isinstance(x, Literal) or np.shape(x.val):
        return "an argument or a constant"
    return f"the number {np.asarray(x.val).item()!r}"


def told(x: Atom, maker: Node | None) -> str:
    """A value in words: by what makes it, if anything does."""
    return shown(x) if maker is None else f"`{maker.eqn.primitive.name}`"


def _size(eqn: JaxprEqn) -> int:
    return sum(1 + _size(one) for inner in inner_jaxprs(eqn) for one in inner.eqns)


def _operations(eqn: JaxprEqn) -> set[str]:
    found: set[str] = set()
    for inner in inner_jaxprs(eqn):
        for one in inner.eqns:
            found |= _operations(one) if is_plain_call(one) else {operation(one)}
    return found


def _inlined(call: JaxprEqn) -> tuple[list[JaxprEqn], dict[Var, Atom]]:
    """The equations of a call, those of calls in it too, and what stands for its results."""
    eqns: list[JaxprEqn] = []
    env: dict[Var, Atom] = {}
    todo: list[JaxprEqn] = []
    inline_call(call, todo, env)
    while todo:
        eqn = todo.pop(0)
        if is_plain_call(eqn):
            first: list[JaxprEqn] = []
            inner: dict[Var, Atom] = {}
            inline_call(eqn, first, inner)
            todo = first + [_renamed(one, inner) for one in todo]
            env = {v: substitute(x, inner) for v, x in env.items()} | inner
        else:
            eqns.append(eqn)
    return eqns, {v: env[v] for v in call.outvars if not isinstance(v, DropVar)}


def _renamed(eqn: JaxprEqn, env: dict[Var, Atom]) -> JaxprEqn:
    return eqn.replace(invars=[substitute(x, env) for x in eqn.invars])
