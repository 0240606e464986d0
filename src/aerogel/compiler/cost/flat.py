"""A jaxpr with its calls inlined and its values numbered, as the fusion analysis wants it."""

from collections.abc import Sequence
from typing import Any

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from ..late import lowered
from .primitives import CALL_PARAMETER, KIND, Kind
from .sizes import nbytes
from .work import is_outer_product, is_sum_of_products

# A call of a program with more equations than this (once its own calls are inlined) is costed as one box, so that
# calls of calls take no longer than they are long.
INLINE_LIMIT = 200


def open_jaxpr(program: Any) -> Jaxpr:
    """The jaxpr without its constants."""
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program


def kind_of(eqn: JaxprEqn) -> Kind | None:
    """What kind of work an equation is; None if its primitive is in no table."""
    kind = KIND.get(eqn.primitive.name)
    if kind is Kind.OPAQUE and is_sum_of_products(eqn):
        return Kind.REDUCE
    if kind is Kind.OPAQUE and is_outer_product(eqn):
        return Kind.CHEAP
    return Kind.CALL if kind is None and lowered(eqn) is not None else kind


def called(eqn: JaxprEqn) -> Jaxpr | None:
    """The program that a call runs when it is evaluated (not its derivative's programs); None if it holds none."""
    parameter = CALL_PARAMETER.get(eqn.primitive.name)
    if parameter is None:
        return lowered(eqn)
    inner = eqn.params.get(parameter)
    inner = getattr(inner, "solve", inner)  # custom_linear_solve holds four programs and runs this one
    inner = open_jaxpr(inner)
    return inner if isinstance(inner, Jaxpr) else None


def call_operands(eqn: JaxprEqn) -> list[Any]:
    """What a call hands to the program that `called` gives."""
    lengths = eqn.params.get("const_lengths")
    if lengths is None:
        return list(eqn.invars)
    first = lengths.matvec + lengths.vecmat
    return [*eqn.invars[first : first + lengths.solve], *eqn.invars[sum(lengths) :]]


def inlined_length(jaxpr: Jaxpr) -> int:
    """Number of equations once calls are inlined, or more than `INLINE_LIMIT` if there are more than that."""
    total = 0
    stack = [jaxpr]
    while stack and total <= INLINE_LIMIT:
        current = stack.pop()
        total += len(current.eqns)
        if total > INLINE_LIMIT:
            break
        for eqn in current.eqns:
            if kind_of(eqn) is Kind.CALL:
                inner = called(eqn)
                if inner is not None:
                    stack.append(inner)
    return total


class Flat:
    """Equations with calls inlined and variables numbered."""

    def __init__(self, inputs: Sequence[Any], owned: Sequence[Any]):
        self.ids: dict[Any, int] = {}
        self.size: list[int] = []
        self.producer: list[int] = []
        # Parallel lists, and tuples of numbers, as the garbage collector looks at anything else again and again.
        self.eqns: list[JaxprEqn] = []
        self.kinds: list[Kind] = []
        self.ins: list[tuple[int, ...]] = []
        self.outs: list[tuple[int, ...]] = []
        for var in inputs:
            self.ids[var] = self._input(var.aval)
        self.owned = frozenset(self.ids[var] for var in owned)

    def append(self, eqns: Sequence[JaxprEqn], ids: dict[Any, int]) -> None:
        """Adds equations whose variables are numbered in `ids`, which grows."""
        size, producer = self.size, self.producer
        for eqn in eqns:
            known = kind_of(eqn)
            kind = Kind.OPAQUE if known is None else known
            if kind is Kind.CALL:
                inner = called(eqn)
                if inner is not None and len(inner.eqns) <= INLINE_LIMIT and inlined_length(inner) <= INLINE_LIMIT:
                    self._inline(eqn, inner, ids)
                    continue
                kind = Kind.OPAQUE
            # A variable that is nowhere defined is an argument of the equation alone.
            ins = [ids[v] if v in ids else self._read(ids, v) for v in eqn.invars if type(v) is not Literal]
            number = len(self.eqns)
            first = len(size)
            for var in eqn.outvars:
                ids[var] = len(size)
                size.append(nbytes(var.aval))
                producer.append(number)
            self.eqns.append(eqn)
            self.kinds.append(kind)
            self.ins.append(tuple(ins))
            self.outs.append(tuple(range(first, len(size))))

    def _input(self, aval: Any) -> int:
        self.size.append(nbytes(aval))
        self.producer.append(-1)
        return len(self.size) - 1

    def _read(self, ids: dict[Any, int], atom: Any) -> int:
        if isinstance(atom, Literal):
            return self._input(atom.aval)
        if atom not in ids:
            ids[atom] = self._input(atom.aval)
        return ids[atom]

    def _inline(self, eqn: JaxprEqn, inner: Jaxpr, ids: dict[Any, int]) -> None:
        scope: dict[Any, int] = {}
        operands = call_operands(eqn)
        for var, atom in zip(inner.invars, operands, strict=True):
            scope[var] = self._read(ids, atom)
        for var in inner.constvars:
            scope[var] = self._input(var.aval)
        self.append(inner.eqns, scope)
        for var, atom in zip(eqn.outvars, inner.outvars, strict=False):
            ids[var] = self._read(scope, atom)
