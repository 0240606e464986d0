"""Values of which only an excerpt is read: the last position of a sequence, one row of a product.

What makes such a value is asked, equation by equation from the reader up, whether it is the same computation for each
index (`axes`); then it is done for the excerpt alone, from excerpts of what it reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from aerogel._jax import Atom, ClosedJaxpr, JaxprEqn, Var

from ..axes import Axis, Mapped, along_output
from ..level import Edit, Level
from ..program import Builder, is_var
from .excerpt import Excerpt, Writer
from .groups import Group, joined
from .half_spectra import is_made_by_half, made_by_half

# Not of extrema: XLA drops what is no number from a large one at once, and keeps it in a cumulative one.
TOTALS: dict[str, Callable[..., Any]] = {
    "cumsum": jnp.sum,
    "cumprod": jnp.prod,
}


@dataclass
class _Asked:
    """What is wanted of the values of a level, found from its end."""

    level: Level
    excerpts: dict[Var, Excerpt] = field(default_factory=dict)
    whole: set[Var] = field(default_factory=set)
    by_half: bool = False  # whether transforms of real numbers may be made by half
    done: dict[int, Mapped | None] = field(default_factory=dict)  # how each equation makes its excerpt; None: it cuts
    halves: dict[int, Excerpt] = field(default_factory=dict)  # transforms of which only the first half is made
    ends: dict[int, Excerpt] = field(default_factory=dict)  # what is read of operands of which all is added up, say

    def walk(self) -> None:
        """From the last equation to the first."""
        self.whole.update(x for x in self.level.jaxpr.outvars if is_var(x))
        for place in reversed(range(len(self.level.eqns))):
            eqn = self.level.eqns[place]
            cut = cut_of(eqn)
            if cut is not None:
                self.done[place] = None
                self._ask(eqn.invars[0], cut)
                self.whole.update(x for x in eqn.invars[1:] if is_var(x))
                continue
            half = self._half(eqn)
            if half is not None:
                self.done[place], self.halves[place] = None, half
                self._ask(eqn.invars[0], None)
                continue
            end = self._end(eqn)
            if end is not None:
                self.done[place], self.ends[place] = None, end
                self._ask(eqn.invars[0], end if end.size < end.length else None)
                continue
            answer = self._answer(eqn)
            if answer is not None:
                self.done[place] = answer
            wanted = next(iter(self.wanted(eqn).values())) if answer else None
            for k, x in enumerate(eqn.invars):
                axis = answer.ins[k] if answer else None
                self._ask(x, wanted.on(axis) if wanted and axis else None)

    def wanted(self, eqn: JaxprEqn) -> dict[int, Excerpt]:
        return {k: self.excerpts[v] for k, v in enumerate(eqn.outvars) if v in self.excerpts}

    def _half(self, eqn: JaxprEqn) -> Excerpt | None:
        """The first half of a spectrum, if what is wanted is in it: a transform of real numbers makes that."""
        (wanted, *others) = self.wanted(eqn).values() or (None,)
        if not self.by_half or wanted is None or others or not isinstance(wanted.start, int):
            return None
        if eqn.outvars[0] in self.whole or not wanted.axis.is_plain:
            return None
        end, dim = wanted.start + wanted.size, wanted.axis.dim
        if not is_made_by_half(self.level, eqn, wanted.start, end, dim):
            return None
        return Excerpt(wanted.axis, wanted.length, 0, wanted.length // 2 + 1)

    def _end(self, eqn: JaxprEqn) -> Excerpt | None:
        """What one entry of something cumulative is a sum of, or a product, if no other is read."""
        (wanted, *others) = self.wanted(eqn).values() or (None,)
        if eqn.primitive.name not in TOTALS or wanted is None or others or eqn.outvars[0] in self.whole:
            return None
        at, dim = wanted.start, eqn.params["axis"]
        if wanted.size != 1 or not isinstance(at, int) or not wanted.axis.is_plain or wanted.axis.dim != dim:
            return None
        first, size = (at, wanted.length - at) if eqn.params["reverse"] else (0, at + 1)
        return Excerpt(wanted.axis, wanted.length, first, size)

    def _answer(self, eqn: JaxprEqn) -> Mapped | None:
        wanted = self.wanted(eqn)
        if not wanted or eqn.effects or holds_constants(eqn) or any(v in self.whole for v in eqn.outvars):
            return None
        first = next(iter(wanted.values()))
        if any(other.on(first.axis) != first for other in wanted.values()):
            return None
        found = along_output(eqn, {k: one.axis for k, one in wanted.items()}, first.length)
        return found if isinstance(found, Mapped) else None

    def _ask(self, x: Atom, excerpt: Excerpt | None) -> None:
        if not is_var(x):
            return
        both = excerpt and self.excerpts.get(x, excerpt).with_all_of(excerpt)
        if both is None:
            self.whole.add(x)
        if excerpt is not None:
            self.excerpts[x] = both or excerpt


def holds_constants(eqn: JaxprEqn) -> bool:
    """Whether a program in an equation closes over arrays: to bind it anew would make them constants of another one."""
    programs = [p for p in eqn.params.values() if isinstance(p, ClosedJaxpr)]
    return any(p.consts or any(map(holds_constants, p.jaxpr.eqns)) for p in programs)


def cut_of(eqn: JaxprEqn) -> Excerpt | None:
    """What a `slice` or `dynamic_slice` reads, if that is a part along one dimension."""
    if eqn.primitive.name not in ("slice", "dynamic_slice") or not is_var(eqn.invars[0]):
        return None
    shape, sizes = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    dims = [d for d, (n, m) in enumerate(zip(shape, sizes, strict=True)) if n != m]
    if len(dims) != 1 or not sizes[dims[0]]:
        return None
    (dim,) = dims
    if eqn.primitive.name == "dynamic_slice":
        start = eqn.invars[1 + dim]
        return Excerpt(Axis(dim), shape[dim], start, sizes[dim]) if is_var(start) else None
    if eqn.params["strides"] is not None and eqn.params["strides"][dim] != 1:
        return None
    return Excerpt(Axis(dim), shape[dim], eqn.params["start_indices"][dim], sizes[dim])


def _total(writer: Writer, eqn: JaxprEqn, read: Excerpt) -> Atom:
    """The one entry of something cumulative that is read, with its axis."""
    (x,), total, dtype = eqn.invars, TOTALS[eqn.primitive.name], eqn.outvars[0].aval.dtype
    part = x if read.size == read.length else writer.excerpt(x, read)
    return writer.builder.call(lambda x: total(x, eqn.params["axis"], dtype=dtype, keepdims=True), part)[0]


def excerpt_groups(level: Level, by_half: bool = False) -> list[Group]:
    """The equations that make excerpts, by what hangs together, each with the edit that makes nothing else.

    With `by_half` also transforms of real numbers of which half the spectrum is read.
    """
    asked = _Asked(level, by_half=by_half)
    asked.walk()
    made = asked.halves.keys() | asked.ends.keys()
    cuts = {place for place, answer in asked.done.items() if answer is None and place not in made}
    links = [
        (place, level.made_by[x])
        for place in asked.done
        for x in level.eqns[place].invars
        if is_var(x) and level.made_by.get(x) in asked.done and level.made_by[x] not in cuts
    ]
    found = (_group(level, asked, places, places & cuts) for places in joined(links))
    return [group for group in found if group is not None]


def _group(level: Level, asked: _Asked, places: frozenset[int], cuts: frozenset[int]) -> Group | None:
    builder = Builder(level.eqns[min(places)])
    writer, results = Writer(builder), dict[Var, Atom]()
    for place in sorted(places - cuts):
        eqn, answer = level.eqns[place], asked.done[place]
        if place in asked.halves:
            writer.made[eqn.outvars[0]] = made_by_half(level, builder, eqn), asked.halves[place]
            continue
        wanted = asked.wanted(eqn)
        if place in asked.ends:
            writer.made[eqn.outvars[0]] = _total(writer, eqn, asked.ends[place]), next(iter(wanted.values()))
            continue
        assert answer is not None
        outs = writer.narrowed(eqn, answer, next(iter(wanted.values())))
        writer.made.update((eqn.outvars[k], (outs[k], part)) for k, part in wanted.items())
    for place in cuts:
        eqn, cut = level.eqns[place], cut_of(level.eqns[place])
        assert cut is not None
        (out,) = eqn.outvars
        results[out] = builder.as_weak_as(out, writer.excerpt(eqn.invars[0], cut))
        if results[out].aval != out.aval:
            return None
    edit = Edit(max(places), places, builder.eqns, results, places)
    return Group(edit, tuple(level.eqns[k] for k in sorted(places)), tuple(results))
