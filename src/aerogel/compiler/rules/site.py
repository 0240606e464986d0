"""A site as a rule sees it: what is known of its operands, who reads its results, and where it stands."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ... import _jax
from ..._jax import Atom, JaxprEqn, Literal, Var
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, nbytes
from ..cost.work import is_outer_product
from ..known.counters import Counters
from ..levels import Around
from ..pipeline import Context
from ..program import inner_jaxprs, where
from ..record import record
from .facts import facts_at
from .graph import Graph
from .spelling import PLUMBING

CALLS = ("jit", "closed_call", "custom_jvp_call")
LOOPS = ("scan", "while")
REDUCTIONS = frozenset("reduce_sum reduce_max reduce_min reduce_prod argmax argmin".split())
MOVES = frozenset("concatenate pad slice rev transpose".split())  # which XLA computes where they are read
LARGEST_CONSTANT = 1 << 16  # entries of one that is looked at
JOINS = ("concatenate", "stack")
PARTS = ("slice", "gather")  # not `dynamic_slice`: for that XLA computes all where it is dear
LONGEST_CHAIN = 50  # of operations that are looked past


@dataclass(frozen=True)
class Enclosing:
    """What a site stands in.

    Attributes:
        name: of the primitive: "scan", "while", "cond", "jit", ...
        length: how many steps a scan takes; else None.
    """

    name: str
    length: int | None = None


@dataclass
class Site:
    """One place in a program, for the condition of a rule, its profit, or what `on` decorates.

    What a function asks is noted: what it made of one site serves for others of the same types where all answers are
    the same.
    """

    _graph: Graph
    _eqn: JaxprEqn
    _operands: Sequence[Atom]
    _results: Sequence[Atom]
    _context: Context
    _around: Around = ()
    _asked: dict[tuple[Hashable, ...], Hashable] = field(default_factory=dict)

    @property
    def primitive(self) -> str:
        """The name of the primitive; of a pattern, that of the operation that makes its first result."""
        return self._ask("primitive")

    @property
    def where(self) -> str:
        """The user's line, as "model.py:12 in attend"."""
        return self._ask("where")

    @property
    def platform(self) -> str:
        """The backend, as `jax.default_backend()` names it."""
        return self._ask("platform")

    @property
    def machine(self) -> Machine:
        """Its speeds."""
        return self._ask("machine")

    @property
    def before_differentiation(self) -> bool:
        """Whether the derivative of the program is still to be taken."""
        return self._ask("before_differentiation")

    @property
    def over_devices(self) -> bool:
        """Whether the values of the program may be spread over several devices."""
        return self._ask("over_devices")

    @property
    def around(self) -> tuple[Enclosing, ...]:
        """The loops, branches and calls that it stands in, from the outside."""
        return self._ask("around")

    @property
    def in_loop(self) -> bool:
        """Whether it is computed in each step of a loop."""
        return self._ask("in_loop")

    @property
    def loop_bytes(self) -> int:
        """The most that one of the loops around it takes and gives, in bytes; 0 in none."""
        return self._ask("loop_bytes")

    @property
    def steps(self) -> int:
        """How often it is computed, as far as that is known: the product of the lengths of the scans around it."""
        return self._ask("steps")

    @property
    def is_short(self) -> bool:
        """Whether the thread that calls runs the program, of which this is the outermost level: little is counted."""
        return self._ask("is_short")

    def entries_of(self, *names: str) -> int:
        """How many entries the primitives of these names make on its level."""
        return self._ask("entries_of", *names)

    def value(self, operand: int) -> Any:
        """The array or number that an operand is, where the program holds it as a constant; else None."""
        self._ask("value", operand)
        return self._value(operand)

    def numbers(self, operand: int) -> np.ndarray | None:
        """The numbers of an operand that is a constant, or made from counters and constants by common arithmetic.

        Of size 1 along the dimensions in which they repeat themselves. None where they are not known.
        """
        self._ask("numbers", operand)
        return self._numbers(operand)

    def facts(self, operand: int) -> frozenset[str]:
        """What is known of an operand: `Operand.facts` says what that may be."""
        return self._ask("facts", operand)

    def maker(self, operand: int) -> str | None:
        """The name of the primitive that makes an operand, what only moves or converts it looked past.

        None for arguments, constants and what a loop carries.
        """
        return self._ask("maker", operand)

    def computed(self, operand: int) -> frozenset[str]:
        """The names of what XLA computes entry by entry for an operand, where that is not stored."""
        return self._ask("computed", operand)

    def sources(self, operand: int) -> frozenset[str]:
        """The names of the primitives that make what an operand is computed of entry by entry; not what moves it."""
        return self._ask("sources", operand)

    def padding(self, operand: int) -> tuple[tuple[int, int, int], ...] | None:
        """How an operand was padded by zeros, as `lax.pad` takes it; None where it was not."""
        return self._ask("padding", operand)

    def is_repeated(self, operand: int) -> bool:
        """Whether an operand is what was broadcast from fewer entries, or computed entry by entry of such a value."""
        return self._ask("is_repeated", operand)

    def readers(self, result: int = 0) -> tuple[str, ...]:
        """The names of the primitives that read a result, sorted; "result" is the program's own, or its body's."""
        return self._ask("readers", result)

    def end(self, result: int = 0) -> str | None:
        """The name of the one equation that reads a result in the end, operations entry by entry looked past.

        None where there are several: the result, or one of these operations, is an array of its own then.
        """
        return self._ask("end", result)

    def is_reduced(self, result: int = 0) -> bool:
        """Whether reductions alone read a result, operations entry by entry and new shapes looked past."""
        return self._ask("is_reduced", result)

    def computed_before_rows_are_reduced(self, result: int = 0) -> frozenset[str]:
        """The names of what is computed of a result entry by entry, and then reduced along more than its last axis."""
        return self._ask("computed_before_rows_are_reduced", result)

    def spread(self, result: int = 0) -> int:
        """How many entries a result is repeated to at most, what is computed of it entry by entry or moved looked past.

        0 where it is repeated nowhere. XLA may compute what makes it for each of these entries.
        """
        return self._ask("spread", result)

    def joined(self, result: int = 0) -> int:
        """How many entries the largest array has into which a result is joined with others, looked past as `spread`.

        0 where it is joined with none. XLA makes such an array, and what is computed for it alone, in one kernel.
        """
        return self._ask("joined", result)

    def entries_read(self, result: int = 0) -> int:
        """How many entries of a result XLA computes: those of a slice or a gather that alone reads it in the end.

        Operations entry by entry are looked past. All of them where anything else reads it.
        """
        return self._ask("entries_read", result)

    def anew(self) -> "Site":
        """The same site, of which nothing has been asked yet."""
        return replace(self, _asked={})

    # --- what is asked, and what was answered ---------------------------------------------------------------------

    def _ask(self, question: str, *args: Hashable) -> Any:
        key = (question, *args)
        if key not in self._asked:
            self._asked[key] = _ANSWERS[question](self, *args)
        return self._asked[key]

    def answers(self) -> tuple[tuple[tuple[Hashable, ...], Hashable], ...]:
        """All that was asked so far, with the answers."""
        return tuple(self._asked.items())

    def agrees(self, answers: Sequence[tuple[tuple[Hashable, ...], Hashable]]) -> bool:
        """Whether the answers would be the same here."""
        return all(self._ask(*key) == answer for key, answer in answers)  # pyright: ignore[reportArgumentType]

    def _value(self, operand: int) -> Any:
        x = self._operands[operand]
        return np.asarray(x.val, x.aval.dtype)[()] if isinstance(x, Literal) else self._graph.held(x)

    def _numbers(self, operand: int) -> np.ndarray | None:
        return Counters(_Makers(self._graph), self._constant).of(self._operands[operand])

    def _constant(self, x: Var) -> np.ndarray | None:
        value = self._graph.value(x)
        few = value is not None and isinstance(value.dtype, np.dtype) and value.size <= LARGEST_CONSTANT
        return np.asarray(value) if few else None

    def _numbers_key(self, operand: int) -> Hashable:
        found = self._numbers(operand)
        return None if found is None else (found.shape, str(found.dtype), found.tobytes())

    def _value_key(self, operand: int) -> Hashable:
        value = self._value(operand)
        if value is None or not isinstance(value.dtype, np.dtype):
            return id(value)
        array = np.asarray(value)
        return array.shape, str(array.dtype), array.tobytes()

    def _maker(self, operand: int) -> str | None:
        makers = [self._graph.maker(x) for x in self._graph.stripped(self._operands[operand])]
        names = [one.eqn.primitive.name for one in makers if one is not None]
        return next((name for name in names if name not in PLUMBING), names[-1] if names else None)

    def _computed(self, operand: int) -> frozenset[str]:
        return frozenset().union(*(names for _, names in self._made(operand) if names))

    def _sources(self, operand: int) -> frozenset[str]:
        return frozenset(eqn.primitive.name for eqn, names in self._made(operand) if names is None)

    def _made(self, operand: int) -> Iterator[tuple[JaxprEqn, frozenset[str] | None]]:
        """What makes an operand, with what it computes entry by entry; None for anything else, where this ends."""
        waiting, seen = [self._operands[operand]], set[Atom]()
        while waiting and len(seen) <= LONGEST_CHAIN:
            made = self._graph.maker(waiting.pop())
            if made is None:
                continue
            eqn = made.eqn
            names = frozenset[str]() if eqn.primitive.name in MOVES else _entrywise(eqn)
            yield eqn, names
            if names is not None:
                waiting += [y for y in eqn.invars if isinstance(y, Var) and y not in seen]
                seen.update(y for y in eqn.invars if isinstance(y, Var))

    def _padding(self, operand: int) -> tuple[tuple[int, int, int], ...] | None:
        made = self._graph.maker(self._operands[operand])
        if made is None or made.eqn.primitive.name != "pad":
            return None
        by = made.eqn.invars[1]
        zeros = isinstance(by, Literal) and not by.val
        return tuple((int(a), int(b), int(c)) for a, b, c in made.eqn.params["padding_config"]) if zeros else None

    def _is_repeated(self, operand: int) -> bool:
        x = self._operands[operand]
        for _ in range(LONGEST_CHAIN):
            made = self._graph.maker(x)
            if made is None:
                return False
            eqn = made.eqn
            if eqn.primitive.name == "broadcast_in_dim":
                return eqn.invars[0].aval.size < eqn.outvars[0].aval.size
            large = [x for x in eqn.invars if isinstance(x, Var) and x.aval.shape]
            if eqn.primitive.name not in ELEMENTWISE or len(large) != 1:
                return False
            (x,) = large
        return False

    def _readers(self, result: int) -> tuple[str, ...]:
        found = self._reading(self._results[result])
        return tuple(sorted("result" if eqn is None else eqn.primitive.name for eqn in found))

    def _reading(self, x: Atom) -> list[JaxprEqn | None]:
        if not isinstance(x, Var) or isinstance(x, _jax.DropVar):
            return []
        found = (one and one.eqn for one in self._graph.readers(x))
        return list({id(eqn): eqn for eqn in found}.values())

    def _end(self, result: int) -> str | None:
        waiting, seen = [self._results[result]], set[Var]()
        ends: dict[int, str] = {}
        while waiting:
            for eqn in self._reading(waiting.pop()):
                if eqn is None or eqn.primitive.name not in ELEMENTWISE:
                    ends[id(eqn)] = "result" if eqn is None else eqn.primitive.name
                elif eqn.outvars[0] not in seen:
                    seen.add(eqn.outvars[0])
                    waiting.append(eqn.outvars[0])
            if len(ends) > 1 or len(seen) > LONGEST_CHAIN:
                return None
        return next(iter(ends.values()), None)

    def _is_reduced(self, result: int) -> bool:
        waiting, seen, found = [self._results[result]], set[Var](), False
        while waiting:
            for eqn in self._reading(waiting.pop()):
                name = "result" if eqn is None else eqn.primitive.name
                if eqn is not None and _entrywise(eqn) is not None:
                    if eqn.outvars[0] not in seen:
                        seen.add(eqn.outvars[0])
                        waiting.append(eqn.outvars[0])
                elif name not in REDUCTIONS:
                    return False
                else:
                    found = True
            if len(seen) > LONGEST_CHAIN:
                return False
        return found

    def _computed_before_rows_are_reduced(self, result: int) -> frozenset[str]:
        waiting = [(self._results[result], frozenset[str]())]
        columns = math.prod(self._results[result].aval.shape[-1:])
        seen, found = set[Var](), frozenset[str]()
        while waiting and len(seen) <= LONGEST_CHAIN:
            x, names = waiting.pop()
            for eqn in self._reading(x):
                computed = None if eqn is None else _entrywise(eqn)
                if eqn is not None and computed is not None:
                    if eqn.outvars[0] not in seen:
                        seen.add(eqn.outvars[0])
                        waiting.append((eqn.outvars[0], names | computed))
                elif eqn and eqn.primitive.name in REDUCTIONS and x.aval.size > columns * eqn.outvars[0].aval.size:
                    found |= names
        return found

    def _spread(self, result: int) -> int:
        waiting, seen, most = [self._results[result]], set[Var](), 0
        while waiting and len(seen) <= LONGEST_CHAIN:
            x = waiting.pop()
            for eqn in self._reading(x):
                name = None if eqn is None else eqn.primitive.name
                if eqn is None or not (
                    name in ELEMENTWISE or name in PLUMBING or name in MOVES or name == "tile" or is_outer_product(eqn)
                ):
                    continue
                out = eqn.outvars[0]
                if name not in MOVES and out.aval.size > x.aval.size:  # operations repeat dimensions of length one
                    most = max(most, out.aval.size)
                elif out not in seen:
                    seen.add(out)
                    waiting.append(out)
        return most

    def _joined(self, result: int) -> int:
        waiting, seen, most = [self._results[result]], set[Var](), 0
        while waiting and len(seen) <= LONGEST_CHAIN:
            x = waiting.pop()
            for eqn in self._reading(x):
                name = None if eqn is None else eqn.primitive.name
                if eqn is None or not (name in ELEMENTWISE or name in PLUMBING or name in MOVES or name in JOINS):
                    continue
                out = eqn.outvars[0]
                joins = name in JOINS or (name == "pad" and out.aval.size >= 2 * x.aval.size)  # a column of several
                most = max(most, out.aval.size) if joins else most
                if out not in seen:
                    seen.add(out)
                    waiting.append(out)
        return most

    def _entries_read(self, result: int) -> int:
        x = self._results[result]
        least = x.aval.size
        for _ in range(LONGEST_CHAIN):
            (eqn, *others) = self._reading(x) or [None]
            if eqn is None or others or len(eqn.outvars) != 1:
                break
            name, out = eqn.primitive.name, eqn.outvars[0]
            if name in PARTS and all(y is not x for y in eqn.invars[1:]):
                least = min(least, out.aval.size)
            elif out.aval.size != x.aval.size or not (name in ELEMENTWISE or name in PLUMBING or name in MOVES):
                break
            x = out
        return least

    def _is_short(self) -> bool:
        return self._context.outermost and not self._around and self._graph.is_short

    def _entries_of(self, *names: str) -> int:
        return sum(eqn.outvars[0].aval.size for eqn in self._graph.jaxpr.eqns if eqn.primitive.name in names)

    def _loop_bytes(self) -> int:
        loops = [eqn for eqn in self._around if eqn.primitive.name in LOOPS]
        return max((sum(nbytes(x.aval) for x in (*eqn.invars, *eqn.outvars)) for eqn in loops), default=0)

    def _enclosing(self) -> tuple[Enclosing, ...]:
        found = [(eqn.primitive.name, eqn.params.get("length")) for eqn in self._around]
        return tuple(Enclosing(name, n if name == "scan" and isinstance(n, int) else None) for name, n in found)


@record
class _Makers:
    """Who makes a value, inside of calls too."""

    graph: Graph

    def maker(self, x: Atom) -> JaxprEqn | None:
        """The equation that makes a value; None where there is none."""
        made = self.graph.maker(x)
        return None if made is None else made.eqn


def _entrywise(eqn: JaxprEqn) -> frozenset[str] | None:
    """What an equation computes entry by entry, those of a call among them; None where it does anything else."""
    name = eqn.primitive.name
    if name in PLUMBING:
        return frozenset()
    if name in ELEMENTWISE:
        return frozenset((name,))
    if name not in CALLS or len(eqn.outvars) != 1:
        return None
    inner = [_entrywise(one) for body in inner_jaxprs(eqn) for one in body.eqns]
    return None if None in inner else frozenset().union(*filter(None, inner))


_ANSWERS: dict[str, Callable[..., Hashable]] = {
    "primitive": lambda site: site._eqn.primitive.name,
    "where": lambda site: where(site._eqn),
    "platform": lambda site: site._context.platform,
    "machine": lambda site: site._context.machine,
    "before_differentiation": lambda site: site._context.before_differentiation,
    "over_devices": lambda site: site._context.over_devices,
    "around": Site._enclosing,
    "in_loop": lambda site: any(eqn.primitive.name in LOOPS for eqn in site._around),
    "loop_bytes": Site._loop_bytes,
    "steps": lambda site: math.prod(one.length or 1 for one in site._enclosing()),
    "is_short": Site._is_short,
    "entries_of": Site._entries_of,
    "value": Site._value_key,
    "numbers": Site._numbers_key,
    "facts": lambda site, k: facts_at(site._graph, site._operands[k]),
    "maker": Site._maker,
    "computed": Site._computed,
    "sources": Site._sources,
    "padding": Site._padding,
    "is_repeated": Site._is_repeated,
    "readers": Site._readers,
    "end": Site._end,
    "is_reduced": Site._is_reduced,
    "computed_before_rows_are_reduced": Site._computed_before_rows_are_reduced,
    "spread": Site._spread,
    "joined": Site._joined,
    "entries_read": Site._entries_read,
}
