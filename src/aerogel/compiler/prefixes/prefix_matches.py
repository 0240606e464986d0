"""Which values of a program are prefixes of a tree, or the cotangents of its leaves."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice, product
from typing import Any

import jax
import jax.numpy as jnp

from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..level import Level
from ..normalize import normalize
from ..program import is_var, rename
from ..record import record
from ..residuals.made_there import Made
from ..small_traces import traced
from ..views import simplest_slice
from .prefix_trees import Tree

MOST_COTANGENTS = 16  # arrays that are tried


@record
class Total:
    """A cotangent of a leaf in the program, the terms of it that the tree makes, and what else is added to these."""

    var: Var
    terms: tuple[Atom, ...]
    others: tuple[Atom, ...] = ()


@record
class Found:
    """What a program computes of a tree.

    Attributes:
        prefixes: the variable of each element's prefixes that the program has, by element.
        cotangents: those of the prefixes, by element, where the program has a gradient of the tree.
        totals: the cotangents of the leaves that it computes, by element.
        gone: the places of the equations that make these of the leaves and the cotangents.
    """

    prefixes: dict[int, Var]
    gone: frozenset[int]
    cotangents: dict[int, Var] = field(default_factory=dict)
    totals: dict[int, Total] = field(default_factory=dict)


class Matches:
    """Looks for trees among the equations of a level."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.made = Made(level.eqns)

    def find(self, tree: Tree) -> Found | None:
        """What the program has of a tree; None if it is no such tree."""
        for squeezes in (False, True)[: 1 + tree.combine.multiplies]:
            found = self._find(tree, squeezes)
            if found is not None:
                return found
        return None

    def _find(self, tree: Tree, squeezes: bool) -> Found | None:
        given, n = [*tree.elements, *tree.constants], len(tree.elements)
        pattern = _pattern(lambda *x: tree.prefixes(x[:n], x[n:], squeezes), given, tree.like)
        env = self._bind(pattern, given, tree)
        prefixes = {k: env[x] for k, x in enumerate(pattern.outvars) if is_var(x) and x in env}
        found = Found(prefixes, self._behind(prefixes.values(), env, given))
        if prefixes and not self.left([found]):
            return found
        if 2 * sum(v in env for eqn in pattern.eqns for v in eqn.outvars) < len(pattern.eqns):
            return None
        return self._with_gradient(tree, found, squeezes)

    def _with_gradient(self, tree: Tree, found: Found, squeezes: bool) -> Found | None:
        """The tree with the gradient that the program has of it, if that is known to be one."""
        n, m = len(tree.elements), len(tree.constants)
        wanted = [k for k in range(n) if jnp.issubdtype(tree.elements[k].aval.dtype, jnp.inexact)]
        best = found if found.prefixes else None

        def gradient(*x: Any) -> Sequence[Any]:
            def prefixes_of(*moving: Any) -> list[Any]:
                given = list(x[:n])
                for k, v in zip(wanted, moving, strict=True):
                    given[k] = v
                prefixes = tree.prefixes(given, x[n : n + m], squeezes)
                return [prefixes[k] for k in read]

            return jax.vjp(prefixes_of, *(x[k] for k in wanted))[1](list(x[n + m :]))

        for read, cotangents in islice(self._cotangents(tree, found.prefixes, found.gone), MOST_COTANGENTS):
            given = [*tree.elements, *tree.constants, *cotangents]
            pattern = _pattern(gradient, given, tree.like)
            env = self._bind(pattern, given, tree)
            sums = {k: self._total(pattern, x, env) for k, x in zip(wanted, pattern.outvars, strict=True)}
            totals = {k: one for k, one in sums.items() if one is not None}
            gone = (
                found.gone
                | self._sums(totals.values())
                | self._behind((x for one in totals.values() for x in one.terms), env, given)
            )
            whole = Found(found.prefixes, gone, dict(zip(read, cotangents, strict=True)), totals)
            if totals and not self.left([whole]):
                return whole
            if totals and (best is None or len(totals) > len(best.totals)):
                best = whole
        return best

    def _cotangents(
        self, tree: Tree, prefixes: dict[int, Var], forward: frozenset[int]
    ) -> Iterator[tuple[list[int], list[Var]]]:
        """What may be the cotangents of prefixes: for one of them first, then for several."""
        elements = [k for k in range(len(tree.elements)) if prefixes.get(k) is not None or not prefixes]
        candidates = {
            k: self._like(tree.elements[k].aval, forward, {*tree.elements, *prefixes.values()}) for k in elements
        }
        for k, found in candidates.items():
            for v in found:
                yield [k], [v]
        if len(candidates) > 1:
            for several in product(*candidates.values()):
                yield list(candidates), list(several)

    def _like(self, aval: Any, forward: frozenset[int], known: Collection[Var]) -> list[Var]:
        """The arrays of this type that are padded or sliced outside of the tree, as a transposed pad is."""
        found = dict[Var, None]()
        for k, eqn in enumerate(self.level.eqns):
            if eqn.primitive.name in ("pad", "slice") and k not in forward:
                x = eqn.invars[0]
                if is_var(x) and x not in known and (x.aval.shape, x.aval.dtype) == (aval.shape, aval.dtype):
                    found[x] = None
        return list(found)

    def _bind(self, pattern: Jaxpr, given: Sequence[Var], tree: Tree) -> dict[Var, Var]:
        """The variables of the program that compute what those of the pattern do."""
        env: dict[Var, Any] = dict(zip(pattern.invars, given, strict=True))
        for eqn in pattern.eqns:
            if all(not is_var(x) or x in env for x in eqn.invars):
                env.update(zip(eqn.outvars, self._made(rename(eqn, env).replace(ctx=tree.like.ctx)), strict=False))
        return env

    def _made(self, eqn: JaxprEqn) -> Sequence[Var]:
        """The variables of the program that are what an equation makes."""
        found = self.made.find(eqn)
        maker = self.level.maker(eqn.invars[0]) if eqn.primitive.name == "slice" and not found else None
        if maker is None:
            return found
        env: dict[Var, Atom] = {}
        for one in simplest_slice(eqn, maker):  # of an array that was not known when the tree was traced
            found = self.made.find(rename(one, env))
            env.update(zip(one.outvars, found, strict=False))
        return found

    def _total(self, pattern: Jaxpr, x: Atom, env: dict[Var, Var]) -> Total | None:
        """The sum of the terms of a pattern's result, with what else the program adds to some of them in between."""
        if not is_var(x):
            return None
        if x in env:
            return Total(env[x], tuple(_terms(env[x], self.level.maker)))
        makers: dict[Atom, JaxprEqn] = {v: eqn for eqn in pattern.eqns for v in eqn.outvars}
        summed = _terms(x, makers.get)
        terms = [env[v] for v in summed if is_var(v) and v in env]
        if len(terms) < len(summed):
            return None
        current = terms[0]
        while True:
            leaves = _terms(current, self.level.maker)
            if all(any(one is v for v in leaves) for one in terms):
                others = [v for v in leaves if not any(one is v for one in terms)]
                return Total(current, tuple(terms), tuple(others))
            readers = self.level.readers(current)
            if len(readers) != 1 or readers[0] < 0 or not _adds(self.level.eqns[readers[0]]):
                return None
            (current,) = self.level.eqns[readers[0]].outvars

    def _behind(self, wanted: Iterable[Atom], env: Mapping[Var, Var], given: Sequence[Var]) -> frozenset[int]:
        """The places of the equations that make `wanted`, among those that stand for a pattern's of `given`."""
        known = set(env.values()) - set(given)
        found, seen, todo = set[int](), set[Atom](), [v for v in wanted if is_var(v)]
        while todo:
            v = todo.pop()
            if v not in seen and v in known and v in self.level.made_by:
                seen.add(v)
                place = self.level.made_by[v]
                found.add(place)
                todo += (x for x in self.level.eqns[place].invars if is_var(x))
        return frozenset(found)

    def _sums(self, totals: Iterable[Total]) -> frozenset[int]:
        """The places of the equations that add up terms to cotangents."""
        found = set[int]()
        for one in totals:
            leaves, todo = [*one.terms, *one.others], [one.var]
            while todo:
                v = todo.pop()
                if not any(v is x for x in leaves):
                    place = self.level.made_by[v]
                    found.add(place)
                    todo += (x for x in self.level.eqns[place].invars if is_var(x))
        return frozenset(found)

    def left(self, found: Collection[Found]) -> list[Found]:
        """Those whose levels are read by other equations, too, so that they would be computed all the same."""
        gone = frozenset[int]().union(*(one.gone for one in found))
        results = {v for one in found for v in (*one.prefixes.values(), *(x.var for x in one.totals.values()))}
        return [one for one in found if self._is_read(one.gone, results, gone)]

    def _is_read(self, places: frozenset[int], results: Collection[Var], gone: frozenset[int]) -> bool:
        made = {
            v for k in places for v in self.level.eqns[k].outvars if v not in results and not self._is_view(k, gone)
        }
        return any(place not in gone for v in made for place in self.level.readers(v))

    def _is_view(self, place: int, gone: frozenset[int]) -> bool:
        """Whether an equation only cuts out of what is there anyway."""
        eqn = self.level.eqns[place]
        if eqn.primitive.name not in ("slice", "rev"):
            return False
        (x,) = eqn.invars
        before = self.level.made_by.get(x) if is_var(x) else None
        return before is None or before not in gone or self._is_view(before, gone)


def _pattern(fun: Callable[..., Any], given: Sequence[Var], like: JaxprEqn) -> Jaxpr:
    closed = traced(fun, [x.aval for x in given], like)
    return normalize(ClosedJaxpr(closed.jaxpr, closed.consts))[0].jaxpr


def _adds(eqn: JaxprEqn | None) -> bool:
    return eqn is not None and eqn.primitive.name in ("add", "add_any")


def _terms(x: Atom, maker: Callable[[Any], JaxprEqn | None]) -> list[Atom]:
    """What is added up to `x`."""
    eqn = maker(x) if is_var(x) else None
    if eqn is None or not _adds(eqn):
        return [x]
    return [term for y in eqn.invars for term in _terms(y, maker)]
