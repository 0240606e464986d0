"""Large sums that a loop carries, of which little is wanted: each step adds up what is wanted of its own share.

`total += g` over the steps, and `L(total)` after the loop, is `out += L(g)` where L is linear and makes little of much.
The backward loop of a gradient carries such totals: the cotangent of all distances of points that do not move, of which
only its sums over rows and columns are wanted. Each step then makes its share in blocks, and no step adds to all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import jax.numpy as jnp
from jax import lax

from aerogel._jax import Atom, DropVar, JaxprEqn, Var

from ..axes import is_linear
from ..cost import nbytes
from ..known.picks import is_zeros
from ..level import After, Edit, Level
from ..loop import Loop, as_loop
from ..loop_copy import LoopCopy
from ..program import Builder, copy_equation, is_var, users
from ..record import record
from .gathered import Gathered, gathered
from .sunk_constants import is_made_again

ADDS = ("add", "add_any")
NUMBER = 4  # bytes


@record
class Wanted:
    """What is wanted of a sum, and how it is made.

    Attributes:
        total: the sum.
        behind: the places of the equations, linear in what is made of the sum, in order.
        added: which operand of an equation at such a place is added to it, and is not made of the sum.
        moving: what is made of the sum, and is large.
        ends: what is made of these, and is small.
        again: the places of the equations that make what else these read; it is large, and cheap to make.
    """

    total: Var
    behind: tuple[int, ...]
    added: dict[int, Atom]
    moving: frozenset[Var]
    ends: tuple[Var, ...]
    again: tuple[int, ...]


def with_sum_inside(level: Level, place: int, least_bytes: int) -> Edit | None:
    """The edit that has a loop add up what is wanted of one of its large sums; None if there is no such sum."""
    loop = as_loop(level.eqns[place])
    if loop is None:
        return None
    readers, makers = users(loop.body), {v: eqn for eqn in loop.body.eqns for v in eqn.outvars}
    for k, total in enumerate(loop.finals):
        if isinstance(total, DropVar) or nbytes(total.aval) < least_bytes:
            continue
        if not jnp.issubdtype(total.aval.dtype, jnp.inexact):
            continue
        terms = gathered(loop, k, readers, makers)
        wanted = None if terms is None else _wanted(level, place, total, least_bytes)
        if terms is not None and wanted is not None:
            return _Inside(level, loop, k, terms, wanted).edit(place)
    return None


def _wanted(level: Level, loop_place: int, total: Var, least_bytes: int) -> Wanted | None:
    """What is wanted of a sum, if that is little, linear in it, and made of it and of what each step can have."""
    moving, ends, behind, added = {total}, list[Var](), list[int](), dict[int, Atom]()
    for place in sorted(_readers_behind(level, total, least_bytes)):
        eqn = level.eqns[place]
        own = [k for k, x in enumerate(eqn.invars) if is_var(x) and x in moving]
        if eqn.primitive.name in ADDS and len(own) == 1:
            added[place] = eqn.invars[1 - own[0]]
        elif not is_linear(eqn, own, [k for k, x in enumerate(eqn.invars) if k not in own and is_zeros(level, x)]):
            return None
        if any(isinstance(v, DropVar) or v.aval.dtype != total.aval.dtype for v in eqn.outvars):
            return None
        behind.append(place)
        for v in eqn.outvars:
            if nbytes(v.aval) < least_bytes:
                ends.append(v)
            elif -1 in level.readers(v):
                return None
            else:
                moving.add(v)
    if -1 in level.readers(total) or not ends:
        return None
    others = [x for k in behind if k not in added for x in level.eqns[k].invars if is_var(x) and x not in moving]
    again = _again(level, loop_place, others, least_bytes)
    return None if again is None else Wanted(total, tuple(behind), added, frozenset(moving), tuple(ends), again)


def _readers_behind(level: Level, total: Var, least_bytes: int) -> set[int]:
    """The places of the equations that read a value, or something large that is made of it."""
    found: set[int] = set()
    waiting = [total]
    while waiting:
        for place in set(level.readers(waiting.pop())) - found - {-1}:
            found.add(place)
            waiting += [v for v in level.eqns[place].outvars if nbytes(v.aval) >= least_bytes]
    return found


def _again(level: Level, loop_place: int, values: Sequence[Var], least_bytes: int) -> tuple[int, ...] | None:
    """The equations that make the large ones of some values, if all are cheap and of what is there before the loop."""
    after, found = After(level, loop_place), set[int]()
    waiting = list(values)
    while waiting:
        v = waiting.pop()
        if v in after:
            return None
        # A mask is small beside the numbers that it is made of.
        large = max(nbytes(v.aval), NUMBER * v.aval.size) >= least_bytes
        if not large or v not in level.made_by or level.made_by[v] in found:
            continue
        eqn = level.eqns[level.made_by[v]]
        if not is_made_again(eqn):
            return None
        found.add(level.made_by[v])
        waiting += [x for x in eqn.invars if is_var(x)]
    return tuple(sorted(found))


@dataclass
class _Inside:
    """A loop that adds up what is wanted of a sum."""

    level: Level
    loop: Loop
    carry: int
    terms: Gathered
    wanted: Wanted
    rest: dict[Var, Atom] = field(default_factory=dict)  # what is added after the loop, of what is made of the sum

    def edit(self, place: int) -> Edit:
        """The new loop in place of the old one, with what is made of its sum."""
        ends, eqns = self._loop()
        out = Builder(self.loop.eqn)
        results: dict[Var, Atom] = {}
        self._make_rest(out)
        for v in self.wanted.ends:
            parts = [ends[v], *([self.rest[v]] if v in self.rest else [])]
            results[v] = out.as_weak_as(v, out.call(lambda *a: reduce(lax.add, a), *parts)[0])
        gone = frozenset((place, *self.wanted.behind))
        return Edit(max(gone), gone, [*eqns, *out.eqns], results, gone)

    def _loop(self) -> tuple[dict[Var, Atom], list[JaxprEqn]]:
        """What stands for what is wanted, without what is added after the loop, and the loop."""
        copy = LoopCopy(self.loop, {self.carry})
        dead = {self.loop.body_carry[self.carry]}
        adds = {id(eqn) for eqn in self.terms.adds}
        for eqn in self.loop.body.eqns:
            if id(eqn) in adds or any(is_var(x) and x in dead for x in eqn.invars):
                dead.update(eqn.outvars)
            else:
                copy.new.body.eqns.append(copy_equation(eqn, copy.env))
        copy.finish()
        outside: dict[Var, Atom] = {}
        for k in self.wanted.again:
            self._read(copy, k, outside)
            copy.new.body.eqns.append(copy_equation(self.level.eqns[k], outside))
        shares = [self._share(copy, copy.env.get(term, term), dict(outside)) for term in self.terms.terms]
        ends: dict[Var, Atom] = {}
        for v in self.wanted.ends:
            (zero,) = copy.new.before.call(lambda aval=v.aval: lax.full(aval.shape, 0, aval.dtype))
            var, set_next, ends[v] = copy.new.carry(zero)
            set_next(copy.new.body.call(lambda *a: reduce(lax.add, a), var, *(share[v] for share in shares))[0])
        return ends, copy.new.equations()

    def _read(self, copy: LoopCopy, place: int, env: dict[Var, Atom]) -> None:
        """What an equation of the level reads, as constants of the loop."""
        for x in self.level.eqns[place].invars:
            if is_var(x) and x not in env and x not in self.wanted.moving:
                env[x] = copy.new.const(x)

    def _share(self, copy: LoopCopy, term: Atom, env: dict[Var, Atom]) -> dict[Var, Atom]:
        """What is wanted of what a step adds to the sum."""
        env[self.wanted.total] = copy.new.body.as_weak_as(self.wanted.total, term)
        for k in self.wanted.behind:
            eqn = self.level.eqns[k]
            if k in self.wanted.added:
                (own,) = (x for x in eqn.invars if is_var(x) and x in self.wanted.moving)
                env[eqn.outvars[0]] = copy.new.body.as_weak_as(eqn.outvars[0], env[own])
            else:
                self._read(copy, k, env)
                copy.new.body.eqns.append(copy_equation(eqn, env))
        return env

    def _make_rest(self, out: Builder) -> None:
        """What is made of what the sum begins with, and of what is added to it after the loop."""
        init = self.loop.init[self.carry]
        if not is_zeros(self.level, init):
            self.rest[self.wanted.total] = init
        for k in self.wanted.behind:
            eqn = self.level.eqns[k]
            own = [x for x in eqn.invars if is_var(x) and x in self.wanted.moving]
            kept = [x for x in own if x in self.rest]
            if k in self.wanted.added and not kept:
                self.rest[eqn.outvars[0]] = out.as_weak_as(eqn.outvars[0], self.wanted.added[k])
            elif kept:
                env = dict(self.rest)
                for x in own:
                    if x not in env:
                        (env[x],) = out.call(lambda aval=x.aval: lax.full(aval.shape, 0, aval.dtype))
                out.eqns.append(copy_equation(eqn, env))
                self.rest.update((v, env[v]) for v in eqn.outvars)
