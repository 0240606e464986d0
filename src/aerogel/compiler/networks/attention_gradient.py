"""The gradient of an attention, where JAX has written it: in the level that the attention stands in.

However an attention is spelt, JAX differentiates it by the same rules. So it is differentiated anew, and what comes out
is looked for in the level, equation by equation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import jax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, JaxprEqn, Var

from ..kept import Kept
from ..level import Level
from ..normalize import equation_key, normalize
from ..program import depends_on, is_var, rename
from ..same import Body
from .attention import NotAttention

_known = Kept[ClosedJaxpr](64)  # layers are alike


@dataclass(frozen=True)
class Written:
    """A gradient in a level.

    Attributes:
        cotangent: of the result.
        results: what the cotangents of the arguments are sums of, where there are such; by number of the argument.
        places: of the equations between the operands, the cotangent and these.
    """

    cotangent: Atom
    results: dict[int, list[Var]]
    places: frozenset[int]


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


@dataclass(frozen=True)
class Differentiated:
    """The cotangents of a function's first `count` inputs.

    Attributes:
        program: a program of `inputs` and the cotangent of its result.
    """

    program: ClosedJaxpr
    inputs: list[Var]
    count: int


def differentiated(plain: ClosedJaxpr, count: int) -> Differentiated:
    """The gradient of what a function makes of its first `count` arguments, as JAX writes it.

    What it makes without them, masks say, comes from outside: JAX would compute that at once.
    """
    jaxpr = plain.jaxpr
    moved = depends_on(jaxpr, jaxpr.invars[:count])
    inside = [eqn for eqn in jaxpr.eqns if any(v in moved for v in eqn.outvars)]
    read = [x for eqn in inside for x in eqn.invars if is_var(x) and x not in moved]
    inputs = [*jaxpr.invars[:count], *dict.fromkeys(read)]
    function = ClosedJaxpr(_jax.new_jaxpr(jaxpr, inputs, jaxpr.outvars, inside), ())
    like = inside[-1]
    key = (Body(function), count, like.ctx, _jax.trace_key())
    program = _known.get(key)
    if program is None:
        with _jax.equation_context(like):
            program = _known.put(key, _gradient(function, count))
    return Differentiated(program, inputs, count)


def _gradient(function: ClosedJaxpr, count: int) -> ClosedJaxpr:
    run = _jax.jaxpr_as_fun(function)

    def back(*given: Any) -> tuple[Any, ...]:
        args, cotangent = given[:-1], given[-1]
        return jax.vjp(lambda *some: run(*some, *args[count:])[0], *args[:count])[1](cotangent)

    return normalize(_jax.trace_small(back, [*function.in_avals, function.out_avals[0]]))[0]


def written_gradient(equations: Equations, gradient: Differentiated, result: Var, between: frozenset[int]) -> Written:
    """The gradient of an attention, as a level has it; `between` are the places of what makes the result.

    Raises:
        NotAttention: what stands between the inputs and the result is read by something else, too.
    """
    match = _Match(equations, gradient, dict(zip(gradient.program.jaxpr.invars, gradient.inputs, strict=False)))
    found = None if gradient.program.consts else match.found()
    level = equations.level
    whole = between if found is None else between | found.places
    final = {result} if found is None else {result, *chain.from_iterable(found.results.values())}
    for place in whole:
        for v in level.eqns[place].outvars:
            if v not in final and any(k not in whole for k in level.readers(v)):
                raise NotAttention("what it computes on the way is read elsewhere, too")
    if found is None:
        raise NotAttention("it has no gradient")
    return found


def _are_one_sum(level: Level, terms: Sequence[Var]) -> bool:
    """Whether values are added up, and read by nothing else on the way."""
    ways = [_sums(level, term) for term in terms]
    return len(set(terms)) == len(terms) and bool(set(ways[0]).intersection(*ways[1:]))


def _sums(level: Level, term: Var) -> list[Var]:
    """What a value is added to, as long as that is all that reads it."""
    found: list[Var] = []
    while len(readers := level.readers(term)) == 1 and readers[0] >= 0:
        eqn = level.eqns[readers[0]]
        if eqn.primitive.name != "add_any" or eqn.invars[0] is eqn.invars[1]:
            break
        (term,) = eqn.outvars
        found.append(term)
    return found


@dataclass
class _Match:
    """Equations of a gradient, looked for in a level; `names` has what its variables are called there."""

    equations: Equations
    gradient: Differentiated
    names: dict[Var, Atom]

    @cached_property
    def makers(self) -> dict[Var, JaxprEqn]:
        """The equations of the gradient by what they make."""
        return {v: eqn for eqn in self.gradient.program.jaxpr.eqns for v in eqn.outvars}

    def found(self) -> Written | None:
        """The gradient of which most is there; None where nothing is."""
        jaxpr = self.gradient.program.jaxpr
        cotangent = jaxpr.invars[-1]
        behind = depends_on(jaxpr, [cotangent])
        moved = depends_on(jaxpr, jaxpr.invars[: self.gradient.count])
        forward = [eqn for eqn in jaxpr.eqns if behind.isdisjoint(eqn.outvars)]
        backward = [eqn for eqn in jaxpr.eqns if not behind.isdisjoint(eqn.outvars)]
        self._find([eqn for eqn in forward if moved.isdisjoint(eqn.outvars)])  # which others may read as well
        places = self._find([eqn for eqn in forward if not moved.isdisjoint(eqn.outvars)])
        best: Written | None = None
        for atom in dict.fromkeys(self._cotangents(backward, cotangent)):
            match = _Match(self.equations, self.gradient, {**self.names, cotangent: atom})
            there = places | match._find(backward)
            results = {k: terms for k, v in enumerate(jaxpr.outvars) if v in behind and (terms := match._terms(v))}
            if results and (best is None or len(results) > len(best.results)):
                best = Written(atom, results, there)
        return best

    def _terms(self, v: Var) -> list[Var]:
        """What the level adds up to a value, in whatever order; nothing where it has not all of it."""
        name = self.names.get(v)
        if name is not None:
            return [name] if is_var(name) else []
        eqn = self.makers.get(v)
        if eqn is None or eqn.primitive.name != "add_any":
            return []
        parts = [self._terms(x) if is_var(x) else [] for x in eqn.invars]
        terms = [x for part in parts for x in part]
        return terms if all(parts) and _are_one_sum(self.equations.level, terms) else []

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

    def _cotangents(self, eqns: Sequence[JaxprEqn], cotangent: Var) -> Iterator[Atom]:
        """What may be the cotangent of the result, by what else the first equations read that read it."""
        made = {cotangent: list[JaxprEqn]()}  # what is made of it alone, by which equations
        level = self.equations.level
        for eqn in eqns:
            read = [x for x in eqn.invars if is_var(x)]
            (new, *more) = [x for x in read if x not in self.names]
            way = made.get(new)
            if way is None or more:
                continue
            others = [self.names[x] for x in read if x is not new]
            if not others:
                made[eqn.outvars[0]] = [*way, eqn]
                continue
            for place in level.readers(others[0]) if is_var(others[0]) else ():
                there = level.eqns[place] if place >= 0 else None
                if there is None or there.primitive is not eqn.primitive or len(there.invars) != len(eqn.invars):
                    continue
                atom: Atom | None = there.invars[eqn.invars.index(new)]
                for one in reversed(way):
                    atom = self._read_by(atom, one)
                if atom is not None and atom.aval == cotangent.aval:
                    yield atom

    def _read_by(self, x: Atom | None, like: JaxprEqn) -> Atom | None:
        """What the equation reads that makes a value, if it is one like another that reads one."""
        eqn = None if x is None else self.equations.level.maker(x)
        alike = eqn is not None and eqn.primitive is like.primitive and len(eqn.invars) == 1
        return eqn.invars[0] if alike and eqn is not None else None
