"""Sums over a loop's steps of what is linear in something smaller or cheaper: that is summed, and the rest done once.

`carry += L(v)` with L the same in every step is `L(sum of v)` after the loop. The backward loop of a gradient holds
such L: the derivative of what its forward loop computed from constants, an inverse or a softmax of the weights, which
XLA had moved out of the forward loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import inf
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes import is_linear
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, equation_cost, equation_seconds, nbytes
from ..cut import SINK, SOURCE, Graph
from ..loop import Loop, holds
from ..loop_copy import LoopCopy
from ..program import Readers, copy_equation, is_var, substitute, users
from ..record import record
from ..streams.stream_plan import sizes_of
from .gathered import gathered
from .hoist import Replacement, constant_equations

# A sum of what is so many times larger than the sum that it replaces may be all that keeps it in memory.
MUCH_SMALLER = 8
SHAPING = frozenset("broadcast_in_dim reshape squeeze expand_dims transpose copy neg convert_element_type pad".split())


@record
class LinearSum:
    """A carry to which each step adds, and nothing else.

    Attributes:
        carry: its position.
        terms: what each step adds.
        after: the equations, by place, that make the terms of `summed` and can be done once, after the loop.
        summed: what the steps sum up instead.
        seconds_saved: predicted, for all steps.
    """

    carry: int
    terms: tuple[Var, ...]
    after: tuple[int, ...]
    summed: tuple[Var, ...]
    seconds_saved: float


@dataclass
class Values:
    """The equations of a loop's body, or of a branch in it, and which values are the same in every step (`fixed`)."""

    jaxpr: Jaxpr
    fixed: set[Var]
    readers: Readers = field(init=False)
    makers: dict[Var, int] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = users(self.jaxpr)
        self.makers = {v: i for i, eqn in enumerate(self.jaxpr.eqns) for v in eqn.outvars}

    def moving(self, eqn: JaxprEqn) -> list[int]:
        """The positions of the inputs that differ from step to step."""
        return [k for k, x in enumerate(eqn.invars) if is_var(x) and x not in self.fixed]

    def is_linear(self, eqn: JaxprEqn) -> bool:
        """Whether an equation is linear in all that differs from step to step, and loses no digits if it comes last."""
        moving = self.moving(eqn)
        if eqn.effects or not moving or any(_is_shorter(eqn.invars[k], eqn) for k in moving):
            return False
        # Some that are the same in every step may be zeros.
        zeros = [k for k, x in enumerate(eqn.invars) if k not in moving and self.is_zero(x)]
        return is_linear(eqn, moving, zeros)

    def is_zero(self, x: Atom) -> bool:
        """Whether a value is zeros, a literal or repeated."""
        while is_var(x):
            eqn = self.jaxpr.eqns[self.makers[x]] if x in self.makers else None
            if eqn is None or eqn.primitive.name != "broadcast_in_dim":
                return False
            x = eqn.invars[0]
        return not np.any(x.val)


class Body(Values):
    """The body of a loop."""

    def __init__(self, loop: Loop, machine: Machine):
        made = (v for i in constant_equations(loop) for v in loop.body.eqns[i].outvars)
        super().__init__(loop.body, {*loop.body_consts, *made})
        self.loop, self.machine = loop, machine
        self.equations = {v: eqn for eqn in loop.body.eqns for v in eqn.outvars}


def _is_shorter(x: Atom, eqn: JaxprEqn) -> bool:
    """Whether a value's type holds fewer digits, or smaller whole numbers, than that of what an equation makes of it.

    Who adds up bfloat16 products in a float32 carry wants float32's digits, and int8 ones in int32 no overflow.
    """
    return any(not holds(x.aval.dtype, v.aval.dtype) for v in eqn.outvars)


def find_linear(loop: Loop, machine: Machine, at_least: bool = False) -> list[LinearSum]:
    """For each of a loop's sums what of it is best done after the loop, where that is anything.

    Where products may still be taken in another order, the steps are priced by what they take `at_least`.
    """
    body = Body(loop, machine)
    found = (_find(body, k, at_least) for k in range(len(loop.init)))
    return [one for one in found if one is not None]


def _find(body: Body, carry: int, at_least: bool) -> LinearSum | None:
    found = added(body, carry)
    if found is None:
        return None
    terms, adds = found
    eqns, cone = body.loop.body.eqns, _cone(body, terms, adds)
    graph = Graph()
    for term in terms:
        graph.implies(SOURCE, term)
    for i in cone:
        once = step_seconds(eqns[i], body.machine)
        saved = body.loop.length * (_least_seconds(body, eqns[i]) if at_least else once) - once
        graph.edge(SOURCE, i, saved)
        graph.edge(i, SINK, -saved)
        for k in body.moving(eqns[i]):
            graph.implies(i, eqns[i].invars[k])
        for reader in {reader for v in eqns[i].outvars for reader in body.readers.get(v, ())} - adds:
            graph.implies(i, reader)
    reads = (eqns[i].invars[k] for i in cone for k in body.moving(eqns[i]))
    for v in dict.fromkeys((*terms, *reads)):
        assert is_var(v)
        maker = body.makers.get(v)
        seconds = 0.0 if at_least and _is_outer(body, v) else body.loop.length * _add_seconds(v, body.machine)
        seconds = inf if _is_written_for(v, terms, body.machine) else seconds
        graph.edge(v, maker if maker in cone else SINK, seconds)
    taken = graph.taken()
    after = tuple(sorted(i for i in cone if i in taken))
    if not after:
        return None
    made = {v for i in after for v in eqns[i].outvars}
    reads = (eqns[i].invars[k] for i in after for k in body.moving(eqns[i]))
    summed = tuple(x for x in dict.fromkeys((*terms, *reads)) if is_var(x) and x not in made)
    return LinearSum(carry, terms, after, summed, graph.cost(set(terms)) - graph.cost(taken))


def added(body: Body, carry: int) -> tuple[tuple[Var, ...], set[int]] | None:
    """What each step adds to a carry, all different from step to step, and the places of the additions."""
    whole = gathered(body.loop, carry, body.readers, body.equations)
    if whole is None or not body.fixed.isdisjoint(whole.terms):
        return None
    return tuple(whole.terms), {body.makers[add.outvars[0]] for add in whole.adds}


def _cone(body: Body, terms: Sequence[Var], adds: set[int]) -> set[int]:
    """The equations, linear in what differs from step to step, that make terms and nothing else."""
    cone: set[int] = set()
    wanted: set[Atom] = set(terms)
    for i in reversed(range(len(body.loop.body.eqns))):
        eqn = body.loop.body.eqns[i]
        if wanted.isdisjoint(eqn.outvars) or not body.is_linear(eqn):
            continue
        if all(reader in cone or reader in adds for v in eqn.outvars for reader in body.readers.get(v, ())):
            cone.add(i)
            wanted.update(eqn.invars[k] for k in body.moving(eqn))
    return cone


def step_seconds(eqn: JaxprEqn, machine: Machine) -> float:
    """What an equation takes in a step: elementwise work and zeros around a value are part of another kernel."""
    if eqn.primitive.name in SHAPING:
        return 0.0
    if eqn.primitive.name in ELEMENTWISE:
        return equation_cost(eqn).flops / machine.vector_flops_per_second
    return equation_seconds(eqn, machine)


def _least_seconds(body: Body, eqn: JaxprEqn) -> float:
    """What an equation takes in a step, however products are ordered: it reads what is the same in all of them.

    `(u * v[:, None]) @ A` is a product of matrices, and `u * (v @ A)` one of a vector: that is the least, one column.
    """
    once = step_seconds(eqn, body.machine)
    fixed = dict.fromkeys(x for x in eqn.invars if is_var(x) and x in body.fixed)
    reading = sum(nbytes(x.aval) for x in fixed) / body.machine.cache_bytes_per_second
    columns = max((1, *(n for k in body.moving(eqn) for n in eqn.invars[k].aval.shape)))
    return min(once, max(reading, once / columns if fixed else 0.0))


def _is_outer(body: Body, v: Var) -> bool:
    """Whether a value is an outer product: a sum of these is made in any case, for all steps at once if that pays.

    In whatever shape: the gradient of an LSTM, batch 64 and width 256, whose weights' cotangents were summed up before
    they were turned, took 1.14 of plain JAX's time, and takes 0.95.
    """
    maker = body.equations.get(v)
    while maker is not None and maker.primitive.name in SHAPING and is_var(maker.invars[0]):
        maker = body.equations.get(maker.invars[0])
    if maker is None or maker.primitive.name not in ("dot_general", "mul"):
        return False
    return all(is_var(x) and x not in body.fixed and 2 * x.aval.size <= v.aval.size for x in maker.invars)


def _add_seconds(v: Var, machine: Machine) -> float:
    """What it takes to add a value to a carry."""
    rate = machine.bytes_per_second if nbytes(v.aval) > machine.cache_bytes else machine.cache_bytes_per_second
    return 3 * nbytes(v.aval) / rate + machine.seconds_per_small_kernel


def _is_written_for(v: Var, terms: Sequence[Var], machine: Machine) -> bool:
    """Whether a value is large, and small what becomes of it: in blocks (`streaming`) a step never makes all of it.

    A sum of it would: of the distances of all pairs, in the gradient of a loop that looks at them in each step.
    """
    most = max(nbytes(term.aval) for term in terms)
    return nbytes(v.aval) >= max(sizes_of(machine).least_bytes, MUCH_SMALLER * most)


def summed_first(loop: Loop, sums: Sequence[LinearSum]) -> Replacement:
    """The loop with other sums, and after it what the old ones are."""
    copy = LoopCopy(loop, {one.carry for one in sums})
    new, env = copy.new, copy.env
    eqns = loop.body.eqns
    dead = {loop.body_carry[one.carry] for one in sums}
    moved = {i for one in sums for i in one.after}
    for i, eqn in enumerate(eqns):
        if i in moved or any(is_var(x) and x in dead for x in eqn.invars):
            dead.update(eqn.outvars)
        else:
            new.body.eqns.append(copy_equation(eqn, env))
    copy.finish()
    outside: dict[Var, Atom] = dict(zip(loop.body_consts, loop.consts, strict=True))
    for v in dict.fromkeys(v for one in sums for v in one.summed):
        here = substitute(v, env)
        (start,) = new.before.call(lambda aval=v.aval: lax.full(aval.shape, 0, aval.dtype))
        total, set_next, final = new.carry(start)
        set_next(*new.body.call(_plus, total, here))
        outside[v] = new.after.as_weak_as(v, final)
    for i in sorted(moved | _ancestors(loop, moved, constant_equations(loop))):
        new.after.eqns.append(copy_equation(eqns[i], outside))
    results: dict[Var, Atom] = {}
    for one in sums:
        final = loop.finals[one.carry]
        terms = (substitute(term, outside) for term in one.terms)
        (out,) = new.after.call(_plus, loop.init[one.carry], *terms)
        results[final] = new.after.as_weak_as(final, out)
    return Replacement(new.equations(), results)


def _plus(first: Any, *others: Any) -> Any:
    return reduce(lax.add, others, first)


def _ancestors(loop: Loop, places: set[int], among: set[int]) -> set[int]:
    """The equations of `among` that those at `places` need."""
    makers = {v: i for i, eqn in enumerate(loop.body.eqns) for v in eqn.outvars}
    found: set[int] = set()
    waiting = list(places)
    while waiting:
        for x in loop.body.eqns[waiting.pop()].invars:
            maker = makers.get(x) if is_var(x) else None
            if maker in among and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found
