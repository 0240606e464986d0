"""Values that a gradient's forward part makes and its backward part makes again, in the kernels that read them.

What a level's first half hands on to the second is chosen as for loops (`residuals.py`): of what is made entry by
entry, the backward part needs `x - mean`, what the norm makes of it, the `tanh` of a `gelu` and the `gelu` itself; the
input of the norm and that of the `gelu` are enough. A minimum cut says what is kept.

XLA merges equal operations wherever it finds them. So what is read again is read behind a wall: its bits are combined
with a zero that XLA does not know to be one, and that waits for a value of the backward part. It is fused into the
kernels that read it, and costs nothing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.words import WORDS
from ..cost import Machine, nbytes
from ..cost.primitives import DEAR
from ..cut import SINK, SOURCE, Graph
from ..orders.orders import REDUCTIONS
from ..program import Builder, is_var, rename, with_equations
from ..record import record
from ..short_axes.short_sums import VECTOR
from .recompute import Lives, is_true
from .residuals import AGAIN, DRIVEN_OUT, arithmetic

ENTRYWISE = AGAIN | {"bitcast_convert_type"}  # of as many bits: elementary functions hold it
# Bytes of a value that is worth a look: the least, and the share of the largest's, up to a size that always is.
SMALLEST, SMALL_SHARE, LARGE = 1 << 16, 1 / 16, 1 << 18
# Bytes that must be saved in all, and of what is stored: what XLA computes again by itself is not known to the byte.
LEAST_SAVED, LEAST_SHARE = 1 << 22, 0.2
# What asks which entry is the larger one must see the same bits as what found the largest: a product and a sum are one
# instruction in one kernel and two in another.
TESTS = frozenset("eq ne lt le gt ge".split())
CHOOSES = frozenset(
    "select_and_scatter_add select_and_gather_add sort argmax argmin top_k reduce_max reduce_min".split()
)
VIEWS = frozenset("slice pad reshape squeeze expand_dims transpose rev broadcast_in_dim concatenate".split())

LIGHT = ENTRYWISE | VIEWS | REDUCTIONS  # between products, a layer's own equations


@record
class MadeAgain:
    """What is computed again.

    Attributes:
        values: those that the backward part makes.
        places: of the equations that it needs for them.
        bytes_saved: by which it is handed less.
    """

    values: frozenset[Var]
    places: frozenset[int]
    bytes_saved: int


def made_again(lives: Lives, machine: Machine) -> MadeAgain | None:
    """What a level is best to compute again; None if that is not worth another program."""
    late = [v for v in lives.late() if nbytes(v.aval) >= SMALLEST and _is_handed_on(lives, v)]
    least = min(LARGE, SMALL_SHARE * max((nbytes(v.aval) for v in late), default=0))
    late = [v for v in late if nbytes(v.aval) >= least]
    made = (v for eqn in lives.jaxpr.eqns[: lives.peak + 1] for v in eqn.outvars)
    if sum(nbytes(v.aval) for v in late) < LEAST_SAVED or not any(map(_can_be_waited_for, made)):
        return None
    fused = _fused(lives)
    graph, places = _graph(lives, late, fused, machine)
    taken: Any = graph.taken()
    kept = {v for kind, v in taken if kind == "kept"}
    again = {i for i in places if ("run", i) in taken and kept.isdisjoint(lives.jaxpr.eqns[i].outvars)}
    handed = kept | {v for kind, v in taken if kind == "need" and lives.made[v] not in again}
    stored = _stored(lives, late, fused)
    before = sum(nbytes(v.aval) for v in stored)
    saved = before - sum(nbytes(v.aval) for v in handed - fused)
    if saved < max(LEAST_SAVED, LEAST_SHARE * before):
        return None
    return MadeAgain(frozenset(v for v in late if lives.made[v] in again), frozenset(again), saved)


def _is_handed_on(lives: Lives, v: Var) -> bool:
    """Whether who reads a value stands behind another layer: else it may be in no memory, but fused with that."""
    eqns = lives.jaxpr.eqns
    readers = lives.readers.get(v, [])
    between = eqns[lives.made[v] + 1 : max(readers, default=len(eqns)) + 1]
    return v in lives.jaxpr.outvars or any(map(_is_layer, between))


def _is_layer(eqn: JaxprEqn) -> bool:
    """Whether an equation does more to something large than what fuses: sums that are stacked are none."""
    large = any(nbytes(x.aval) >= SMALLEST for x in (*eqn.invars, *eqn.outvars))
    return eqn.primitive.name not in LIGHT and large


def _fused(lives: Lives) -> set[Var]:
    """The values that XLA computes again in each kernel that reads them, by itself."""
    results = set(filter(is_var, lives.jaxpr.outvars))
    found: set[Var] = set()
    for eqn in lives.jaxpr.eqns[: lives.peak + 1]:
        if _is_entrywise(eqn):
            (v,) = eqn.outvars
            readers = [lives.jaxpr.eqns[k].primitive.name for k in lives.readers.get(v, [])]
            once = eqn.primitive.name not in DEAR or len(readers) == 1
            if once and v not in results and all(name in ENTRYWISE or name in VIEWS for name in readers):
                found.add(v)
    return found


def _stored(lives: Lives, late: Sequence[Var], fused: set[Var]) -> set[Var]:
    """What is in memory for the backward part now: what is fused is made of that."""
    wanted, found = list(late), set(late)
    while wanted:
        v = wanted.pop()
        if v in fused:
            reads = {x for x in lives.jaxpr.eqns[lives.made[v]].invars if is_var(x) and x in lives.made} - found
            found |= reads
            wanted += reads
    return found - fused


def _graph(lives: Lives, late: Sequence[Var], fused: set[Var], machine: Machine) -> tuple[Graph, list[int]]:
    """Three kinds of nodes: a value is needed late; the equation that makes it runs again; a value is kept.

    The backward part goes the other way: what is made again for a value that it wants early stays until it is wanted
    itself. So an equation runs again on what is kept, and on what was made since the last product.
    """
    graph, eqns = Graph(), lives.jaxpr.eqns
    results = set(filter(is_var, lives.jaxpr.outvars))
    tested = _tested(lives)
    dear = [i for i, eqn in enumerate(eqns[: lives.peak + 1]) if eqn.primitive.name not in LIGHT]
    for v in late:
        graph.edge(SOURCE, ("need", v), float("inf"))
    wanted, seen, places = list(late), set(late), list[int]()
    while wanted:
        v = wanted.pop()
        i = lives.made[v]
        eqn = eqns[i]
        reads = [x for x in dict.fromkeys(filter(is_var, eqn.invars)) if x in lives.made]
        seconds = 0.0 if v in results or not reads else _kept_seconds(v, machine)
        graph.edge(("kept", v), SINK, seconds)
        moves = _is_entrywise(eqn) and not _goes_by_rows(lives, eqn)
        if not reads or not moves or not tested.isdisjoint(eqn.outvars):
            graph.implies(("need", v), ("kept", v))
            continue
        places.append(i)
        graph.edge(("need", v), ("run", i), float("inf") if v in fused else seconds)
        graph.edge(("run", i), SINK, 0.0 if v in fused else arithmetic(eqn, machine))
        for x in reads:
            is_near = x in fused or bisect_left(dear, i) == bisect_right(dear, lives.made[x])
            graph.implies(("run", i), ("need" if is_near else "kept", x))
        wanted += [x for x in reads if x not in seen]
        seen.update(reads)
    return graph, places


def _is_entrywise(eqn: JaxprEqn) -> bool:
    """Whether an equation is fused into what reads it, and is the same for bits behind a wall."""
    if eqn.primitive.name not in ENTRYWISE or eqn.effects:
        return False
    values = [x for x in (*eqn.invars, *eqn.outvars) if is_var(x)]
    same = eqn.primitive.name in AGAIN or values[0].aval.shape == values[-1].aval.shape
    return same and all(_has_bits(x) for x in values)


def _goes_by_rows(lives: Lives, eqn: JaxprEqn) -> bool:
    """Whether a row of few entries is spread over the others: scalar code, row by row, in any kernel but a reduction's.

    What is less its mean (2,000 x 100 points) is made with that in one kernel; made again as well it is made in kernels
    of its own, both times, and took 1.2 of the time of the whole, singular values included.
    """
    (v,) = eqn.outvars
    shape = v.aval.shape
    if eqn.primitive.name == "broadcast_in_dim" or len(shape) < 2 or not 2 <= shape[-1] < VECTOR:
        return False
    reads = [x for x in eqn.invars if is_var(x)]
    makers = (lives.jaxpr.eqns[lives.made[x]] for x in reads if x in lives.made)
    reads += [x for maker in makers if maker.primitive.name == "broadcast_in_dim" for x in maker.invars if is_var(x)]
    return any(x.aval.shape and x.aval.size < v.aval.size for x in reads)


def _kept_seconds(v: Var, machine: Machine) -> float:
    """Time to write a value and to read it back, and to read again what it drives out of the caches."""
    return (2 + 2 * DRIVEN_OUT) * nbytes(v.aval) / machine.bytes_per_second


def _tested(lives: Lives) -> set[Var]:
    """The values that the backward part compares with each other, or chooses among, and what they are made of."""
    found: set[Var] = set()
    for eqn in reversed(lives.jaxpr.eqns):
        name, reads = eqn.primitive.name, [x for x in eqn.invars if is_var(x)]
        floats = [x for x in reads if jnp.issubdtype(x.aval.dtype, jnp.floating)]
        if name in CHOOSES or (name in TESTS and len(floats) > 1):
            found.update(floats)
        elif (name in ENTRYWISE or name in VIEWS) and not found.isdisjoint(eqn.outvars):
            found.update(reads)
    return found


def _has_bits(v: Var) -> bool:
    """Whether a value's bits can be combined with others: not those of a weak type, nor of what is spread."""
    aval = v.aval
    plain = isinstance(aval, _jax.ShapedArray) and not _jax.explicit_mesh(aval)
    if not plain or aval.weak_type:
        return False
    return aval.dtype == bool or _bits(aval.dtype) in WORDS


def _bits(dtype: Any) -> int:
    """The bits of a real number that fills its bytes; else 0."""
    kind = (
        jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else None
    )
    bits = kind(dtype).bits if kind is not None else 0
    return bits if bits == 8 * dtype.itemsize else 0


def with_made_again(lives: Lives, found: MadeAgain) -> Jaxpr:
    """The level in which these values are made again where the backward part first reads them."""
    eqns = list(lives.jaxpr.eqns[: lives.peak + 1])
    wait = next(v for eqn in reversed(eqns) for v in eqn.outvars if _can_be_waited_for(v))
    env: dict[Var, Atom] = {}
    again = _Again(lives, found, eqns)
    for eqn in lives.jaxpr.eqns[lives.peak + 1 :]:
        for x in dict.fromkeys(filter(is_var, eqn.invars)):
            if x in found.values and x not in env:
                env[x] = again.value(x, wait)
        eqns.append(rename(eqn, env))
        wait = next((v for v in eqn.outvars if _can_be_waited_for(v)), wait)
    return with_equations(lives.jaxpr, eqns)


def _can_be_waited_for(v: Var) -> bool:
    floating = _has_bits(v) and jnp.issubdtype(v.aval.dtype, jnp.floating)
    return floating and v.aval.size > 0 and not isinstance(v, _jax.DropVar)


@dataclass
class _Again:
    """Appends to `eqns` what makes values again.

    Attributes:
        done: what stands for the values that were asked for.
        flags: by value that was waited for, what is false once it is there.
    """

    lives: Lives
    found: MadeAgain
    eqns: list[JaxprEqn]
    done: dict[Var, Atom] = field(default_factory=dict)
    flags: dict[Var, Atom] = field(default_factory=dict)

    def value(self, v: Var, wait: Var) -> Atom:
        """What stands for a value in the backward part."""
        stack = [v]
        while stack:
            x = stack[-1]
            i = self.lives.made[x]
            eqn = self.lives.jaxpr.eqns[i]
            if x in self.done:
                stack.pop()
            elif i not in self.found.places:
                builder = Builder(eqn)
                if wait not in self.flags:
                    (self.flags[wait],) = builder.call(is_never, wait)
                (self.done[x],) = builder.call(behind_a_wall, x, self.flags[wait])
                self.eqns += builder.eqns
            else:
                reads = [y for y in eqn.invars if is_var(y) and y in self.lives.made and y not in self.done]
                stack += reads
                if not reads:
                    outs = [_jax.new_var(y.aval) for y in eqn.outvars]
                    self.eqns.append(rename(eqn, self.done).replace(outvars=outs))
                    self.done.update(zip(eqn.outvars, outs, strict=True))
        return self.done[v]


def is_never(wait: Any) -> Any:
    """False, which XLA does not know, once an array is there."""
    return lax.bitwise_not(is_true(wait))


def behind_a_wall(x: Any, never: Any) -> Any:
    """`x`, which XLA does not know to be it."""
    if x.dtype == bool:
        return lax.bitwise_or(x, lax.broadcast(never, x.shape))
    word = np.dtype(WORDS[8 * x.dtype.itemsize])
    zero = lax.broadcast(lax.convert_element_type(never, word), x.shape)
    return lax.bitcast_convert_type(lax.bitwise_or(lax.bitcast_convert_type(x, word), zero), x.dtype)
