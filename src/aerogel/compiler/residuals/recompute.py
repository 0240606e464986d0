"""A program that computes large values again when they are wanted late, in place of keeping them.

A gradient's forward part makes what its backward part reads in the opposite order. At the place where most memory is
in use, what was made before and is read after is *late*. The equations up to there are divided into segments, of about
as many late bytes each. For each segment but the last, a minimum cut says which values are kept; the late ones that are
not are computed again, all at once, right before the first of them is read.

XLA merges equal operations wherever it finds them (on CPU also behind an optimization barrier: products of matrices,
in jaxlib 0.10.2). So what is computed again stands in a branch, under a condition that is always true, which XLA does
not know, and which waits for a value of the backward part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Var

from ..cost import Machine, equation_seconds, nbytes
from ..cut import SINK, SOURCE, Graph
from ..normalize import drop_dead
from ..program import Builder, copy_equation, is_var, rename, with_equations
from ..record import record
from .residuals import AGAIN

# What is smaller is kept.
SMALLEST = 1 << 14
# What a byte that is kept counts beside the time to compute it again: bytes come first.
SECONDS_PER_BYTE = 1e-7


@record
class Lives:
    """Where the values of a level are made and read, and the place at which most bytes are in use."""

    jaxpr: Jaxpr
    made: dict[Var, int]
    readers: dict[Var, list[int]]
    peak: int

    @classmethod
    def of(cls, jaxpr: Jaxpr) -> "Lives":
        """Those of a level. Arguments and constants do not count, results do to the end."""
        made = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
        readers: dict[Var, list[int]] = {}
        for i, eqn in enumerate(jaxpr.eqns):
            for x in set(filter(is_var, eqn.invars)):
                readers.setdefault(x, []).append(i)
        results = set(filter(is_var, jaxpr.outvars))
        change = np.zeros(len(jaxpr.eqns) + 1, np.int64)
        for v, i in made.items():
            change[i] += nbytes(v.aval)
            if v not in results:
                change[readers[v][-1] + 1 if v in readers else i + 1] -= nbytes(v.aval)
        return cls(jaxpr, made, readers, int(np.argmax(np.cumsum(change)[:-1])) if jaxpr.eqns else 0)

    def late(self) -> list[Var]:
        """The values that are made up to the peak and read after it, in order."""
        results = set(filter(is_var, self.jaxpr.outvars))
        return [v for v, i in self.made.items() if i <= self.peak and v not in results and self._last(v) > self.peak]

    def _last(self, v: Var) -> int:
        return self.readers[v][-1] if v in self.readers else -1

    def segments(self, count: int) -> list[int]:
        """For each equation up to the peak the number of its segment.

        Each has about as many late bytes, and ends where, nearby, the least is handed on to the next.
        """
        late = np.zeros(self.peak + 2, np.int64)
        handed = np.zeros(self.peak + 2, np.int64)
        for v, i in self.made.items():
            if i <= self.peak:
                late[i + 1] += nbytes(v.aval) * (self._last(v) > self.peak)
                handed[i + 1] += nbytes(v.aval)
                handed[max((k for k in self.readers.get(v, []) if k <= self.peak), default=i) + 1] -= nbytes(v.aval)
        before, handed = np.cumsum(late) * count / max(1, late.sum()), np.cumsum(handed)
        ends = []
        for k in range(1, count):
            near = np.flatnonzero(np.abs(before - k) <= 0.5)
            ends.append(min(near, key=lambda p: (handed[p], abs(before[p] - k)), default=self.peak + 1))
        return np.searchsorted(np.array(sorted(ends)), np.arange(self.peak + 1), side="right").tolist()


@dataclass
class _Segment:
    """What is computed again in one place.

    Attributes:
        gives: late values.
        handed: the values of a branch from which elementwise operations, which fuse with what reads them, lead there.
        in_branch: the equations from what is kept to `handed`.
        fused: those from there to `gives`.
        first_read: the place where the first of `gives` is read.
    """

    gives: list[Var] = field(default_factory=list)
    handed: list[Var] = field(default_factory=list)
    in_branch: list[JaxprEqn] = field(default_factory=list)
    fused: list[JaxprEqn] = field(default_factory=list)
    first_read: int = 0


def recomputed(jaxpr: Jaxpr, count: int, dear: bool, machine: Machine) -> Jaxpr | None:
    """A level whose forward part is in `count` segments that are computed again; None if nothing can be.

    Unless `dear`, only elementwise equations are.
    """
    lives = Lives.of(jaxpr)
    late = [v for v in lives.late() if nbytes(v.aval) >= SMALLEST and _has_zero(v)]
    found = _chosen(lives, late, lives.segments(count), count, dear, machine)
    if not found:
        return None
    at: dict[int, list[_Segment]] = {}
    for segment in found:
        at.setdefault(segment.first_read, []).append(segment)
    eqns: list[JaxprEqn] = []
    env: dict[Var, Atom] = {}
    wait: Var | None = None
    for i, eqn in enumerate(jaxpr.eqns):
        if wait is not None:
            for segment in at.get(i, []):
                env.update(_again(jaxpr, segment, eqns, wait, machine))
        eqn = rename(eqn, env) if i > lives.peak else eqn
        eqns.append(eqn)
        wait = next((v for v in eqn.outvars if _can_be_waited_for(v)), wait)
    return drop_dead(with_equations(jaxpr, eqns))


def _has_zero(v: Var) -> bool:
    """Whether the other branch can give something of the same type: what is large is seldom weak."""
    plain = _is_array(v) and _jax.is_number(v.aval.dtype)
    return plain and not v.aval.weak_type and not _jax.explicit_mesh(v.aval)


def _can_be_waited_for(v: Var) -> bool:
    floating = _is_array(v) and jnp.issubdtype(v.aval.dtype, jnp.floating)
    return floating and not isinstance(v, DropVar) and v.aval.size > 0


def _is_array(v: Var) -> bool:
    """Whether a variable holds neither a token nor a reference."""
    return isinstance(v.aval, _jax.ShapedArray)


def _chosen(
    lives: Lives, late: Sequence[Var], segment_of: Sequence[int], count: int, dear: bool, machine: Machine
) -> list[_Segment]:
    """What is computed again in each segment: a minimum cut over all of them."""
    taken = _graph(lives, late, segment_of, count, dear, machine).taken()
    places = range(lives.peak + 1)
    made = {v: i for i in places for v in lives.jaxpr.eqns[i].outvars}
    kept = {v for v, i in made.items() if ("kept", v) in taken or (("need", v) in taken and ("run", i) not in taken)}
    found = [_Segment() for _ in range(count)]
    for v in late:
        if v not in kept:
            found[segment_of[made[v]]].gives.append(v)
    found = [segment for segment in found if segment.gives]
    for segment in found:
        segment.handed = _handed(lives, segment.gives, kept)
        segment.in_branch = _leading_to(lives, segment.handed, kept)
        segment.fused = _leading_to(lives, segment.gives, kept.union(segment.handed))
        segment.first_read = min(k for v in segment.gives for k in lives.readers[v] if k > lives.peak)
    return found


def _graph(
    lives: Lives, late: Sequence[Var], segment_of: Sequence[int], count: int, dear: bool, machine: Machine
) -> Graph:
    """Two nodes for each value: it is needed late; it is kept. One for each equation: it runs again.

    The first without the third means that it is kept, too. What another segment makes must be.
    """
    graph = Graph()
    for v in late:
        graph.edge(SOURCE, ("need", v), float("inf"))
    for i, segment in enumerate(segment_of):
        eqn = lives.jaxpr.eqns[i]
        again = segment < count - 1 and not eqn.effects and (dear or eqn.primitive.name in AGAIN)
        for v in eqn.outvars:
            graph.edge(("kept", v), SINK, nbytes(v.aval) * SECONDS_PER_BYTE)
            if again:
                graph.edge(("need", v), ("run", i), nbytes(v.aval) * SECONDS_PER_BYTE)
            else:
                graph.implies(("need", v), ("kept", v))
        if again:
            graph.edge(("run", i), SINK, equation_seconds(eqn, machine))
            for x in (x for x in eqn.invars if is_var(x) and x in lives.made):
                graph.implies(("run", i), ("need" if segment_of[lives.made[x]] == segment else "kept", x))
    return graph


def _handed(lives: Lives, gives: Sequence[Var], kept: set[Var]) -> list[Var]:
    """The fewest bytes from which, and from what is kept, elementwise operations lead to these values.

    What reads nothing but kept values stays in the branch: outside, XLA would merge it with what was computed first.
    """
    graph = Graph()
    for v in gives:
        graph.edge(SOURCE, ("need", v), float("inf"))
    eqns = _leading_to(lives, gives, kept)
    for eqn in eqns:
        inside = [x for x in eqn.invars if is_var(x) and x in lives.made and x not in kept]
        fuses = inside and eqn.primitive.name in AGAIN
        for v in eqn.outvars:
            size = nbytes(v.aval) if _has_zero(v) else float("inf")
            graph.edge(("need", v), ("fuse", id(eqn)) if fuses else SINK, size)
        for x in inside if fuses else ():
            graph.implies(("fuse", id(eqn)), ("need", x))
    taken = graph.taken()
    return [v for e in eqns for v in e.outvars if ("need", v) in taken and ("fuse", id(e)) not in taken]


def _leading_to(lives: Lives, gives: Sequence[Var], kept: set[Var]) -> list[JaxprEqn]:
    """The equations that lead from what is kept to these values, in order."""
    wanted, found = [v for v in gives if v not in kept], set[int]()
    while wanted:
        i = lives.made[wanted.pop()]
        if i not in found:
            found.add(i)
            wanted += [x for x in lives.jaxpr.eqns[i].invars if is_var(x) and x in lives.made and x not in kept]
    return [lives.jaxpr.eqns[i] for i in sorted(found)]


def _again(jaxpr: Jaxpr, segment: _Segment, eqns: list[JaxprEqn], wait: Var, machine: Machine) -> dict[Var, Atom]:
    """Appends what computes a segment again when `wait` is there; gives what then stands for its values."""
    made = {v for eqn in segment.in_branch for v in eqn.outvars}
    reads = list(dict.fromkeys(x for e in segment.in_branch for x in e.invars if is_var(x) and x not in made))
    run = ClosedJaxpr(_jax.new_jaxpr(jaxpr, reads, segment.handed, segment.in_branch, ()), ())

    def in_a_branch(wait: Any, *values: Any) -> list[Any]:
        return lax.cond(is_true(wait), lambda *xs: _jax.evaluate(run, xs), lambda *_: _zeros(segment.handed), *values)

    def behind_a_barrier(*values: Any) -> list[Any]:
        return _jax.evaluate(run, lax.optimization_barrier(values)[1:])

    builder = Builder(segment.in_branch[-1])
    outs = builder.call(in_a_branch if machine.name == "cpu" else behind_a_barrier, wait, *reads)
    env: dict[Var, Atom] = dict(zip(segment.handed, outs, strict=True))
    eqns += [*builder.eqns, *(copy_equation(eqn, env) for eqn in segment.fused)]
    return {v: env[v] for v in segment.gives}


def is_true(wait: Any) -> Any:
    """A condition that always holds, once an array is there: its first number is below 1, above 0 or nan.

    XLA does not put these three together.
    """
    x = lax.reshape(lax.slice(wait, (0,) * wait.ndim, (1,) * wait.ndim), ())
    one, zero = np.ones((), x.dtype), np.zeros((), x.dtype)
    return lax.bitwise_or(lax.bitwise_or(lax.lt(x, one), lax.gt(x, zero)), lax.ne(x, x))


def _zeros(values: Sequence[Var]) -> list[Any]:
    return [lax.full(v.aval.shape, 0, v.aval.dtype) for v in values]
