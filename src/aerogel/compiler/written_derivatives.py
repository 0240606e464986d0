"""Derivatives that JAX has written: in the level in which what they are derivatives of stands.

However a formula is spelt, JAX differentiates it by the same rules. So it is differentiated anew, and what comes out is
looked for in the level, equation by equation.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from .differentiated import Differentiated
from .level import Level
from .normalize import COMMUTATIVE, equation_key
from .program import Builder, depends_on, is_var, rename
from .record import record
from .same import literal_key

READ_ELSEWHERE = "what it computes on the way is read elsewhere, too"


class NotWritten(Exception):
    """A derivative that a level does not hold."""


class ReadElsewhere(NotWritten):
    """One that it holds, but something else reads what stands between the operands and it."""


@record
class Total:
    """A value of a level that is a derivative, or a sum of it and of others."""

    value: Var
    others: tuple[Atom, ...] = ()
    places: frozenset[int] = frozenset()  # of the additions

    def with_derivative(self, builder: Builder, derivative: Atom) -> Atom:
        """What stands for it, where another derivative does."""
        for x in self.others:
            (derivative,) = builder.call(_jax.add_cotangents, derivative, x)
        return derivative


@record
class Written:
    """A derivative in a level.

    Attributes:
        given: the cotangents of the results, or the tangents of the arguments, some with one entry for all along an
            axis; None where they are ones.
        results: the cotangents of the arguments, or the tangents of the results, where there are such; by their number.
        terms: what is computed for them, before it is added up.
        places: of the equations between the operands, what is given and these.
    """

    given: tuple[Atom, ...] | None
    results: dict[int, Total]
    terms: frozenset[Var]
    places: frozenset[int]
    shapes: tuple[tuple[int, ...], ...]  # of what is given, in full

    def in_full(self, builder: Builder) -> list[Atom]:
        """What is given, with an entry for each; nothing where they are ones."""
        pairs = zip(self.given or (), self.shapes, strict=False)
        return [builder.call(lambda x, shape=shape: jnp.broadcast_to(x, shape), x)[0] for x, shape in pairs]


@dataclass
class Equations:
    """The equations of a level by what they compute."""

    level: Level

    @cached_property
    def _places(self) -> dict[Any, int]:
        keys = ((equation_key(eqn), place) for place, eqn in enumerate(self.level.eqns))
        return {key: place for key, place in keys if key is not None}

    def place(self, eqn: JaxprEqn) -> int | None:
        """Where the level has an equation."""
        return self._places.get(equation_key(eqn))

    def named(self, eqns: Sequence[JaxprEqn], names: dict[Var, Atom]) -> list[JaxprEqn]:
        """Equations with the names that the level has for what they compute, as far as it does; these join `names`."""
        found: dict[int, JaxprEqn] = {}
        for eqn in eqns:
            here = rename(eqn, names)
            place = self.place(here)
            if place is not None:
                here = self.level.eqns[place]
                names.update(zip(eqn.outvars, here.outvars, strict=True))
            found[id(here)] = here
        return list(found.values())


def written_derivative(
    equations: Equations,
    new: Differentiated,
    results: Sequence[Var],
    between: frozenset[int],
    free: frozenset[Var] = frozenset(),
) -> Written:
    """A derivative of what makes `results`, as a level has it.

    Args:
        between: the places of what makes the results.
        free: values on the way that others may read, too.

    Raises:
        NotWritten: it does not hold one.
        ReadElsewhere: something else reads what stands between the inputs and the results.
    """
    match = _Match(equations, new, dict(zip(new.program.jaxpr.invars, new.inputs, strict=False)))
    found = None if new.program.consts else match.found()
    if found is None:
        raise NotWritten("it has no gradient")
    level = equations.level
    whole, final = between | found.places, {*results, *free, *found.terms}
    for place in whole:
        for v in level.eqns[place].outvars:
            if v not in final and any(k not in whole for k in level.readers(v)):
                raise ReadElsewhere(READ_ELSEWHERE)
    return found


def places_before(equations: Equations, new: Differentiated) -> frozenset[int]:
    """Where a level computes what a derivative takes of the operands alone."""
    names: dict[Var, Atom] = dict(zip(new.program.jaxpr.invars, new.inputs, strict=False))
    return frozenset() if new.program.consts else _Match(equations, new, names).before()


def _total(level: Level, terms: Counter[Var]) -> Total | None:
    """The value in which values are added up, so many times each; None where they are read by anything else."""
    if len(terms) == 1 and terms.total() == 1:
        return Total(next(iter(terms)))
    counted, others, partial = Counter[Var](), list[Atom](), set[Var]()
    places, waiting = set[int](), sorted({place for v in terms for place in level.readers(v)})
    while waiting and waiting[0] >= 0:
        place = waiting.pop(0)
        eqn = level.eqns[place]
        if eqn.primitive.name != "add_any" or eqn.invars[0] is eqn.invars[1]:
            return None
        for x in eqn.invars:
            if is_var(x) and x in terms:
                counted[x] += 1
            elif not is_var(x) or x not in partial:
                others.append(x)
        places.add(place)
        (value,) = eqn.outvars
        if not waiting and counted == terms:
            return Total(value, tuple(others), frozenset(places))
        partial.add(value)
        readers = level.readers(value)
        if len(readers) != 1:
            return None
        waiting = sorted({*waiting, *readers})
    return None


@dataclass
class _Match:
    """Equations of a derivative, looked for in a level; `names` has what its variables are called there."""

    equations: Equations
    new: Differentiated
    names: dict[Var, Atom]

    @cached_property
    def makers(self) -> dict[Var, JaxprEqn]:
        """The equations of the derivative by what they make."""
        return {v: eqn for eqn in self.new.program.jaxpr.eqns for v in eqn.outvars}

    @cached_property
    def _moved(self) -> set[Var]:
        jaxpr = self.new.program.jaxpr
        return depends_on(jaxpr, jaxpr.invars[: self.new.count])

    @cached_property
    def _behind(self) -> set[Var]:
        """What depends on what is given; on the operands, where that are ones."""
        return depends_on(self.new.program.jaxpr, self.new.given) if self.new.given else self._moved

    def before(self) -> frozenset[int]:
        """Where the level has what does not depend on what is given."""
        forward = [eqn for eqn in self.new.program.jaxpr.eqns if self._behind.isdisjoint(eqn.outvars)]
        self._find([eqn for eqn in forward if self._moved.isdisjoint(eqn.outvars)])  # which others may read as well
        return self._find([eqn for eqn in forward if not self._moved.isdisjoint(eqn.outvars)])

    def found(self) -> Written | None:
        """The derivative of which most is there; None where nothing is."""
        jaxpr, given = self.new.program.jaxpr, self.new.given
        behind, places = self._behind, self.before()
        late = [eqn for eqn in jaxpr.eqns if not behind.isdisjoint(eqn.outvars)]
        best: Written | None = None
        for match, there in self._with(given, late, places):
            found = {k: match._terms(v) for k, v in enumerate(jaxpr.outvars) if v in behind}
            totals = {k: _total(self.equations.level, terms) for k, terms in found.items() if terms is not None}
            results = {k: total for k, total in totals.items() if total is not None}
            if results and (best is None or len(results) > len(best.results)):
                terms = frozenset(v for k in results for v in found[k] or ())
                names = tuple(match.names[v] for v in given) if given else None
                best = Written(names, results, terms, there, tuple(v.aval.shape for v in given))
        return best

    def _with(
        self, given: Sequence[Var], late: Sequence[JaxprEqn], places: frozenset[int]
    ) -> Iterator[tuple["_Match", frozenset[int]]]:
        """The match for all values that what is given may be, one after the other."""
        places |= self._find(late)
        if not given:
            yield self, places
            return
        first, *rest = given
        for atom in {id(x) if is_var(x) else literal_key(x): x for x in self._candidates(late, first)}.values():
            yield from _Match(self.equations, self.new, {**self.names, first: atom})._with(rest, late, places)

    def _terms(self, v: Any) -> Counter[Var] | None:
        """What a value is a sum of, and how often, by the names of the level; None where not all of it is there."""
        name = self.names.get(v)
        if name is not None:
            return Counter((name,)) if is_var(name) else None
        eqn = self.makers.get(v)
        if eqn is None:
            return None
        if eqn.primitive.name == "mul" and (times := _whole_number(eqn.invars[1])):  # x + x in normal form
            terms = self._terms(eqn.invars[0])
            return None if terms is None else Counter({x: times * n for x, n in terms.items()})
        if eqn.primitive.name != "add_any":
            return None
        first, second = (self._terms(x) if is_var(x) else None for x in eqn.invars)
        return None if first is None or second is None else first + second

    def _find(self, eqns: Sequence[JaxprEqn]) -> frozenset[int]:
        """Where the level has those equations that it has; their results get their names."""
        places = set[int]()
        for eqn in eqns:
            known = all(x in self.names for x in eqn.invars if is_var(x))
            place = self.equations.place(rename(eqn, self.names)) if known else None
            if place is not None:
                self.names.update(zip(eqn.outvars, self.equations.level.eqns[place].outvars, strict=True))
                places.add(place)
        return frozenset(places)

    def _candidates(self, eqns: Sequence[JaxprEqn], given: Var) -> Iterator[Atom]:
        """What may be given, by what else the first equations read that read it."""
        made = {given: list[JaxprEqn]()}  # what is made of it alone, by which equations
        level = self.equations.level
        for eqn in eqns:
            read = [x for x in eqn.invars if is_var(x)]
            unknown = [x for x in read if x not in self.names]
            way = made.get(unknown[0]) if len(unknown) == 1 else None
            if way is None:
                continue
            (new,) = unknown
            others = [self.names[x] for x in read if x is not new]
            if not others:
                made[eqn.outvars[0]] = [*way, eqn]
                continue
            for place in level.readers(others[0]) if is_var(others[0]) else ():
                there = level.eqns[place] if place >= 0 else None
                if there is None or there.primitive is not eqn.primitive or len(there.invars) != len(eqn.invars):
                    continue
                found = [there.invars[at] for at in _positions(eqn, new)]
                for one in reversed(way):
                    found = [y for x in found for y in self._read_by(x, one)]
                yield from (atom for atom in found if _may_be(atom, given))

    def _read_by(self, x: Atom, like: JaxprEqn) -> Sequence[Atom]:
        """What the equation reads that makes a value, if it is one like another that reads one."""
        eqn = self.equations.level.maker(x)
        if eqn is None or eqn.primitive is not like.primitive or len(eqn.invars) != len(like.invars):
            return ()
        return [eqn.invars[at] for at in _positions(like, next(y for y in like.invars if is_var(y)))]


def _may_be(atom: Atom, given: Var) -> bool:
    """Whether a value is of the type of another, or has one entry for all along some axes: one for all examples."""
    mine, theirs = atom.aval, given.aval
    if mine.dtype != theirs.dtype or _jax.explicit_mesh(mine):
        return False
    is_number = not is_var(atom) and not mine.shape
    along = zip(mine.shape, theirs.shape, strict=False)
    return is_number or (len(mine.shape) == len(theirs.shape) and all(n in (1, m) for n, m in along))


def _whole_number(x: Atom) -> int:
    """The number that a literal is, if it is a whole one; else 0."""
    value = None if is_var(x) or x.aval.shape else float(x.val)
    return int(value) if value is not None and value > 0 and value == int(value) else 0


def _positions(eqn: JaxprEqn, operand: Var) -> Sequence[int]:
    """Where an equation like another may have an operand of that."""
    return range(len(eqn.invars)) if eqn.primitive.name in COMMUTATIVE else (eqn.invars.index(operand),)
