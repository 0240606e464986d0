"""One level of a program, with its tables, and edits of it.

A pass looks at all sites of a level on one set of tables and changes them together: that keeps it linear in the size
of the level.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from .normalize import drop_dead
from .program import (
    Cyclic,
    Makers,
    Readers,
    is_var,
    producers,
    remembered,
    rename,
    schedule,
    substitute,
    users,
    with_equations,
)


class Level:
    """The equations of a jaxpr, who reads and who makes each variable."""

    def __init__(self, jaxpr: Jaxpr, over_devices: bool = False):
        self.jaxpr = jaxpr
        self.over_devices = over_devices  # as in `Context`
        self.eqns = jaxpr.eqns

    @cached_property
    def read_by(self) -> Readers:
        """The places of the equations that read a variable; -1 stands for the results."""
        return users(self.jaxpr)

    @cached_property
    def made_by(self) -> Makers:
        """The place of the equation that makes a variable."""
        return producers(self.jaxpr)

    def readers(self, var: Var) -> list[int]:
        """The places of the equations that read `var`; -1 stands for the results."""
        return self.read_by.get(var, [])

    def maker(self, x: Atom) -> JaxprEqn | None:
        """The equation that makes a value; None of literals, and of what comes from outside."""
        place = self.made_by.get(x) if is_var(x) else None
        return None if place is None else self.eqns[place]

    def read_through(self, value: Var, through: Collection[str], most: int) -> Iterator[JaxprEqn]:
        """The equations that read a value, or what those named in `through` make of it: of `most` values and a few."""
        waiting, seen = [value], {value}
        while waiting and len(seen) <= most:
            for place in self.readers(waiting.pop()):
                if place < 0:
                    continue
                eqn = self.eqns[place]
                yield eqn
                if eqn.primitive.name in through:
                    waiting += [v for v in eqn.outvars if v not in seen]
                    seen.update(eqn.outvars)


@remembered
def loops_behind(jaxpr: Jaxpr) -> Mapping[Var, int]:
    """The loops that a variable is computed from, as bits: of the first `scan`, of the second, ...; none: no key."""
    behind: dict[Var, int] = {}
    own = 1
    for eqn in jaxpr.eqns:
        bits = 0
        for x in eqn.invars:
            bits |= behind.get(x, 0) if is_var(x) else 0
        if eqn.primitive.name == "scan":
            bits |= own
            own <<= 1
        if bits:
            behind.update(dict.fromkeys(eqn.outvars, bits))
    return behind


class After:
    """The set of variables that are computed from the results of one loop."""

    def __init__(self, level: Level, place: int):
        self.level = level
        self._behind = loops_behind(level.jaxpr)
        bits = self._behind[level.eqns[place].outvars[0]]
        self._own = 1 << (bits.bit_length() - 1)  # those before it have lower bits

    def __contains__(self, var: Var) -> bool:
        return bool(self._behind.get(var, 0) & self._own)


@dataclass(frozen=True)
class Edit:
    """Equations in place of others.

    Attributes:
        place: where `eqns` stand.
        gone: the places of the equations that go.
        eqns: what comes.
        results: for variables that are made no more, what stands for them.
        touched: the places of all equations that the edit relies on; edits that share one are not made together.
    """

    place: int
    gone: frozenset[int]
    eqns: Sequence[JaxprEqn]
    results: dict[Var, Atom]
    touched: frozenset[int]


def apply_edits(jaxpr: Jaxpr, edits: Sequence[Edit]) -> tuple[Jaxpr, int]:
    """`jaxpr` with edits made, and how many: the first one only, where all together would wait for each other."""
    gone = frozenset().union(*(edit.gone for edit in edits))
    at = {edit.place: edit for edit in edits}
    results = _settled({var: atom for edit in edits for var, atom in edit.results.items()})
    eqns: list[JaxprEqn] = []
    for i, eqn in enumerate(jaxpr.eqns):
        if i not in gone:
            eqns.append(eqn)
        if i in at:
            eqns += at[i].eqns
    eqns = [rename(eqn, results) for eqn in eqns]
    outs = [substitute(x, results) for x in jaxpr.outvars]
    try:
        ordered = schedule(eqns)
    except Cyclic:
        if len(edits) == 1:
            raise
        return apply_edits(jaxpr, edits[:1])
    return drop_dead(with_equations(jaxpr, ordered, outs)), len(edits)


def _settled(results: dict[Var, Atom]) -> dict[Var, Atom]:
    """What stands for each variable in the end: what one edit puts in its place, another may replace."""

    def final(x: Atom) -> Atom:
        while is_var(x) and x in results:
            x = results[x]
        return x

    return {var: final(x) for var, x in results.items()}
