"""Key chains: carries that depend on no other carry are advanced by a small loop of their own.

`key, sub = split(key)` in a body makes every draw depend on the carry. The chain of keys alone is cheap; with all of it
known before the loop, the draws are not bound to the steps. Counters need no loop at all.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Var

from ..cost import nbytes
from ..cost.primitives import RANDOM
from ..known.facts import Affine, body_facts
from ..loop import Loop, LoopBuilder, named
from ..program import Builder, copy_equation, is_var, substitute
from ..record import record
from .hoist import Replacement
from .hoistable import KEYS_FROM_KEYS, is_heavy

# Bytes per step of a chain's carries, and of what its steps hand over.
LARGEST_CARRY, LARGEST_CROSSING = 64, 256


@record
class Chain:
    """Carries (by position) that only they themselves, constants and inputs advance.

    Attributes:
        carries: those that need a loop.
        counters: those that are affine in the number of the step, with the fact.
        eqns: the equations of the body that advance `carries`.
    """

    carries: tuple[int, ...]
    counters: dict[int, Affine]
    eqns: frozenset[int]


def find_chain(loop: Loop) -> Chain | None:
    """The chain of a loop: integers and keys only; None if there is none."""
    makers = {v: i for i, eqn in enumerate(loop.body.eqns) for v in eqn.outvars}
    place = {v: k for k, v in enumerate(loop.body_carry)}
    facts = body_facts(loop, {})
    counters = {k: facts[v] for v, k in place.items() if v in facts and _in_range(facts[v], v, loop)}
    needs = {k: _needs(loop, [x], makers, place) for k, x in enumerate(loop.next_carry)}
    small = {k for k, v in enumerate(loop.body_carry) if _is_small(v) and k not in counters}
    while True:
        closed = {k for k in small if needs[k][0] - counters.keys() <= small and _is_cheap(loop, needs[k][1])}
        if closed == small:
            break
        small = closed
    if not small and not counters:
        return None
    eqns = frozenset(i for k in small for i in needs[k][1])
    return Chain(tuple(sorted(small)), counters, eqns)


def _needs(
    loop: Loop, roots: Iterable[Atom], makers: dict[Var, int], place: dict[Var, int]
) -> tuple[set[int], set[int]]:
    """The carries and equations that `roots` are computed from."""
    carries: set[int] = set()
    eqns: set[int] = set()
    stack = list(roots)
    while stack:
        x = stack.pop()
        if not is_var(x):
            continue
        if x in place:
            carries.add(place[x])
        elif x in makers and makers[x] not in eqns:
            eqns.add(makers[x])
            stack += loop.body.eqns[makers[x]].invars
    return carries, eqns


def _is_small(v: Var) -> bool:
    dtype = v.aval.dtype
    exact = _jax.prng_name(v.aval) is not None or (isinstance(dtype, np.dtype) and dtype.kind in "iub")
    return exact and nbytes(v.aval) <= LARGEST_CARRY


def _is_cheap(loop: Loop, eqns: set[int]) -> bool:
    chosen = [loop.body.eqns[i] for i in eqns]
    others = [eqn for eqn in chosen if eqn.primitive.name not in KEYS_FROM_KEYS]
    if any(is_heavy(eqn) or eqn.primitive.name in RANDOM for eqn in others):
        return False
    return max((nbytes(v.aval) for eqn in chosen for v in eqn.outvars), default=0) <= LARGEST_CROSSING


def _in_range(fact: Affine, v: Var, loop: Loop) -> bool:
    info = np.iinfo(v.aval.dtype)
    lowest, highest = Affine(fact.scale, fact.offset - fact.scale).bounds(loop.length + 2)
    return info.min <= lowest and highest <= info.max


def split_chain(loop: Loop, chain: Chain) -> Replacement | None:
    """The loop with its chain advanced before it; None if the steps would have to be handed too much."""
    return _Split(loop, chain).run()


class _Split:
    def __init__(self, loop: Loop, chain: Chain):
        self.loop, self.chain = loop, chain
        self.first = LoopBuilder(loop.eqn, loop.length, loop.reverse)
        self.rest = LoopBuilder(loop.eqn, loop.length, loop.reverse)
        self.counted = Builder(loop.eqn)
        self.results: dict[Var, Atom] = {}
        self.env: dict[Var, Atom] = {}  # inside the first loop
        self.handed: dict[Var, Var] = {}

    def run(self) -> Replacement | None:
        loop, chain = self.loop, self.chain
        mine = {loop.body_carry[k] for k in (*chain.carries, *chain.counters)}
        mine |= {v for i in chain.eqns for v in loop.body.eqns[i].outvars}
        others = [i for i in range(len(loop.body.eqns)) if i not in chain.eqns]
        kept = [k for k in range(len(loop.init)) if k not in chain.carries and k not in chain.counters]
        reads = [x for i in others for x in loop.body.eqns[i].invars]
        reads += [loop.next_carry[k] for k in kept] + loop.body_ys
        crossing = list(dict.fromkeys(x for x in reads if is_var(x) and x in mine))
        if sum(nbytes(v.aval) for v in crossing) > LARGEST_CROSSING:
            return None
        self._count()
        self._advance(crossing)
        self._rest(others, kept, set(crossing))
        first = self.first.equations() if chain.carries else []
        return Replacement([*self.counted.eqns, *first, *self.rest.equations()], self.results)

    def _count(self) -> None:
        loop = self.loop
        for k, fact in self.chain.counters.items():
            var, final = loop.body_carry[k], loop.finals[k]
            (steps,) = self.counted.call(partial(_count, fact, var.aval.dtype, loop.length))
            assert is_var(steps)
            self.handed[var] = steps
            last = fact.offset - fact.scale if loop.reverse else fact.offset + fact.scale * loop.length
            if not isinstance(final, _jax.DropVar):
                (self.results[final],) = self.counted.call(partial(_last, last, final.aval))

    def _advance(self, crossing: list[Var]) -> None:
        loop, new, env = self.loop, self.first, self.env
        setters = []
        for k in self.chain.carries:
            env[loop.body_carry[k]], set_next = new.keep_carry(loop.init[k], named(loop.finals[k]))
            setters.append(set_next)
        eqns = [loop.body.eqns[i] for i in sorted(self.chain.eqns)]
        self._read(new, env, [x for eqn in eqns for x in eqn.invars] + [loop.next_carry[k] for k in self.chain.carries])
        for eqn in eqns:
            new.body.eqns.append(copy_equation(eqn, env))
        for set_next, k in zip(setters, self.chain.carries, strict=True):
            set_next(substitute(loop.next_carry[k], env))
        for v in crossing:
            if v not in self.handed:
                self.handed[v] = new.y(env[v])

    def _rest(self, others: list[int], kept: list[int], crossing: set[Var]) -> None:
        loop, new = self.loop, self.rest
        env: dict[Var, Atom] = {}
        setters = []
        for k in kept:
            env[loop.body_carry[k]], set_next = new.keep_carry(loop.init[k], named(loop.finals[k]))
            setters.append(set_next)
        eqns = [loop.body.eqns[i] for i in others]
        self._read(new, env, [x for eqn in eqns for x in eqn.invars] + loop.body.outvars)
        for v in crossing:
            env[v] = new.x(self.handed[v])
        for eqn in eqns:
            new.body.eqns.append(copy_equation(eqn, env))
        for set_next, k in zip(setters, kept, strict=True):
            set_next(substitute(loop.next_carry[k], env))
        for y, v in zip(loop.ys, loop.body_ys, strict=True):
            if is_var(v) and v in crossing and v.aval == y.aval:
                self.results[y] = self.handed[v]
            else:
                new.y(substitute(v, env), named(y))

    def _read(self, new: LoopBuilder, env: dict[Var, Atom], reads: Iterable[Atom]) -> None:
        """What a loop reads of the old loop's inputs."""
        consts = dict(zip(self.loop.body_consts, self.loop.consts, strict=True))
        xs = dict(zip(self.loop.body_xs, self.loop.xs, strict=True))
        for x in reads:
            if not is_var(x) or x in env:
                continue
            if x in consts:
                env[x] = new.const(consts[x])
            elif x in xs:
                atom = xs[x]
                env[x] = new.x(atom) if is_var(atom) else atom
            elif x in self.handed and new is self.first:
                env[x] = new.x(self.handed[x])  # a counter


def _last(value: int, aval: Any) -> Any:
    """The last value of a counter; one that began as a Python number is as weak as that."""
    return _jax.convert_element_type(lax.full((), value, aval.dtype), aval.dtype, aval.weak_type)


def _count(fact: Affine, dtype: Any, length: int) -> Any:
    return lax.iota(dtype, length) * np.asarray(fact.scale, dtype) + np.asarray(fact.offset, dtype)
