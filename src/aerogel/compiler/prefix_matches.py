"""Which values of a program are prefixes of a tree, or the cotangents of its leaves."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import jax
import jax.numpy as jnp

from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from .level import Level
from .made_there import Made
from .normalize import normalize
from .prefix_trees import Tree
from .program import is_var, rename
from .small_traces import traced

MOST_COTANGENTS = 16  # arrays that are tried


@dataclass(frozen=True)
class Total:
    """A cotangent of a leaf, and what else the program adds to it."""

    var: Var
    others: tuple[Atom, ...] = ()


@dataclass(frozen=True)
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

    def find(self, tree: Tree) -> Found | str | None:
        """What the program has of a tree; why it cannot do without the levels; None if it is no such tree."""
        given = [*tree.elements, *tree.constants]
        n = len(tree.elements)
        pattern = _pattern(lambda *x: tree.prefixes(x[:n], x[n:]), given, tree.like)
        env = self._bind(pattern, given, tree)
        prefixes = {k: env[x] for k, x in enumerate(pattern.outvars) if is_var(x) and x in env}
        gone = self._behind(list(prefixes.values()), given)
        if prefixes and not self._left(gone, prefixes.values()):
            return Found(prefixes, gone)
        if 2 * sum(v in env for eqn in pattern.eqns for v in eqn.outvars) < len(pattern.eqns):
            return None
        return self._with_gradient(tree, prefixes, gone)

    def _with_gradient(self, tree: Tree, prefixes: dict[int, Var], forward: frozenset[int]) -> Found | str:
        n, m = len(tree.elements), len(tree.constants)
        wanted = [k for k in range(n) if jnp.issubdtype(tree.elements[k].aval.dtype, jnp.inexact)]

        def gradient(*x: Any) -> Sequence[Any]:
            def prefixes_of(*moving: Any) -> list[Any]:
                elements = list(x[:n])
                for k, v in zip(wanted, moving, strict=True):
                    elements[k] = v
                found = tree.prefixes(elements, x[n : n + m])
                return [found[k] for k in read]

            return jax.vjp(prefixes_of, *(x[k] for k in wanted))[1](list(x[n + m :]))

        for read, cotangents in islice(self._cotangents(tree, prefixes, forward), MOST_COTANGENTS):
            given = [*tree.elements, *tree.constants, *cotangents]
            pattern = _pattern(gradient, given, tree.like)
            env = self._bind(pattern, given, tree)
            totals = {k: self._total(pattern, x, env) for k, x in zip(wanted, pattern.outvars, strict=True)}
            totals = {k: one for k, one in totals.items() if one is not None}
            gone = forward | self._behind([one.var for one in totals.values()], [*given, *_others(totals)])
            if totals and not self._left(gone, [*prefixes.values(), *(one.var for one in totals.values())]):
                return Found(prefixes, gone, dict(zip(read, cotangents, strict=True)), totals)
        return "its levels are read by more than its gradient"

    def _cotangents(self, tree: Tree, prefixes: dict[int, Var], forward: frozenset[int]) -> Iterator[tuple[list[int], list[Var]]]:
        """What may be the cotangents of prefixes: for one of them first, then for several."""
        elements = [k for k in range(len(tree.elements)) if prefixes.get(k) is not None or not prefixes]
        candidates = {k: self._like(tree.elements[k], forward, prefixes.values()) for k in elements}
        for k, found in candidates.items():
            for v in found:
                yield [k], [v]
        if len(candidates) > 1:
            for several in product(*candidates.values()):
                yield list(candidates), list(several)

    def _like(self, leaves: Var, forward: frozenset[int], prefixes: Collection[Var]) -> list[Var]:
        """The arrays of the type of `leaves` that are padded or sliced outside of the tree, as a transposed pad is."""
        found = dict[Var, None]()
        for k, eqn in enumerate(self.level.eqns):
            if eqn.primitive.name in ("pad", "slice") and k not in forward:
                x = eqn.invars[0]
                aval = leaves.aval
                if is_var(x) and x is not leaves and x not in prefixes and (x.aval.shape, x.aval.dtype) == (aval.shape, aval.dtype):
                    found[x] = None
        return list(found)

    def _bind(self, pattern: Jaxpr, given: Sequence[Var], tree: Tree) -> dict[Var, Var]:
        """The variables of the program that compute what those of the pattern do."""
        env: dict[Var, Var] = dict(zip(pattern.invars, given, strict=True))
        for eqn in pattern.eqns:
            if all(not is_var(x) or x in env for x in eqn.invars):
                made = self.made.find(rename(eqn, env).replace(ctx=tree.like.ctx))
                env.update(zip(eqn.outvars, made, strict=False))
        return env

    def _total(self, pattern: Jaxpr, x: Atom, env: dict[Var, Var]) -> Total | None:
        """The sum of the terms of a pattern's result, with what else the program adds to some of them in between."""
        if not is_var(x):
            return None
        if x in env:
            return Total(env[x])
        makers = {v: eqn for eqn in pattern.eqns for v in eqn.outvars}
        terms = [env.get(v) for v in _terms(x, makers.get)]
        if None in terms:
            return None
        current = terms[0]
        while is_var(current):
            leaves = _terms(current, self.level.maker)
            if all(any(one is v for v in leaves) for one in terms):
                others = [v for v in leaves if not any(one is v for one in terms)]
                return Total(current, tuple(others))
            readers = self.level.readers(current)
            if len(readers) != 1 or readers[0] < 0 or not _adds(self.level.eqns[readers[0]]):
                return None
            (current,) = self.level.eqns[readers[0]].outvars
        return None

    def _behind(self, wanted: Sequence[Var], given: Sequence[Atom]) -> frozenset[int]:
        """The places of the equations that make `wanted` of `given`."""
        found, seen, todo = set[int](), set[Atom](given), list[Atom](wanted)
        while todo:
            v = todo.pop()
            if is_var(v) and v not in seen and v in self.level.made_by:
                seen.add(v)
                place = self.level.made_by[v]
                found.add(place)
                todo += self.level.eqns[place].invars
        return frozenset(found)

    def _left(self, gone: frozenset[int], results: Any) -> bool:
        """Whether other equations read what these make, but for their results."""
        made = {v for k in gone for v in self.level.eqns[k].outvars} - set(results)
        return any(place not in gone for v in made for place in self.level.readers(v))


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


def _others(totals: dict[int, Total]) -> list[Atom]:
    return [x for one in totals.values() for x in one.others]
