"""What several sums repeat along their axes, each of them repeats for itself.

XLA's CPU backend hands a sum or extremum of floats, with what is computed entry by entry before it, to a library
(`__ynn_fusion`, jaxlib 0.10.2 to 0.12). It takes an operation along only if all who read it are taken along. So a
scale, a mean or a temperature that two sums read, one `broadcast` for XLA, is written out as an array of full size:
`jnp.exp(-x / s).sum() + jnp.exp(-y / s).sum()` takes 1.5 times as long as with two scalars of the same value. The same
holds of `x - mean` that a sum and something else read: it is written, and read twice.

Where nothing else stands between a sum and what takes it from the summed array, or only work on arrays of many entries,
the library has taken all of these along: a softmax writes the differences to its maxima and no more, and a normalising
layer of 4096 rows is one kernel. Nothing is set apart there: that took up to twice as long. A second sum of these
differences, or one that needs the softmax's first, as the mean of a `log_softmax` does, has a kernel of its own.

An expert gives each sum a value of its own, behind a barrier, since XLA makes equal ones one.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.rebind import dtype_name
from ..cost import Machine, nbytes
from ..cost.primitives import VIEW
from ..cost.seconds import transfer_seconds
from ..level import Level
from ..normalize import drop_dead
from ..program import Builder, copy_equation, is_var, with_equations
from ..record import record
from ..same import literal_key

ROOTS = frozenset(("reduce_sum", "reduce_max", "reduce_min"))
TYPES = ("float32", "float64", "bfloat16")
# What the library computes, and what XLA makes of these: it has no comparisons, no selection, and no sine.
CHEAP = frozenset("add sub mul max min neg abs square integer_pow".split())
TAKEN = CHEAP | frozenset(
    """div pow ceil floor exp expm1 log log1p logistic tanh sqrt rsqrt sign erf convert_element_type
    broadcast_in_dim reshape squeeze expand_dims""".split()
)
# What else XLA fuses with its readers, so that what it reads need not be stored.
COMPARISONS = frozenset("eq ne lt le gt ge".split())
LINEAR = frozenset("mul div neg reduce_sum".split())
TRIVIAL = frozenset(("broadcast_in_dim", "reshape", "squeeze", "expand_dims"))
FUSED = TAKEN | COMPARISONS | frozenset("select_n and or not is_finite sin cos tan".split())
# The library goes row by row: a value repeated in rows of one entry takes it three times as long as when it is written,
# in rows of three 1.0 to 1.15 times, of 16 0.6. Sums of short rows XLA keeps.
LEAST_ROW = 16
LONG_ROW = 64
# The library is given sums of any size, and other work of as many entries (jaxlib 0.10.2).
LEAST_ENTRIES = 4096
LONGEST_CHAIN = 16  # between a sum and what takes it from the summed array, so that a level is read in linear time
# A barrier may add a kernel: for the scalar that lies behind it.
LEAST_SECONDS = 5e-6

Home = int  # the place of a sum
ELSEWHERE: Home = -1
Homes = frozenset[Home]


@record
class Shared:
    """A value that is repeated within several sums, or within one and elsewhere.

    Attributes:
        value: what is repeated.
        place: of an equation that reads it within a sum.
        homes: the sums, and `ELSEWHERE` if it is read there too.
        divides: whether a sum divides by it: by one that nobody else reads, XLA multiplies with the reciprocal.
        written: the bytes that XLA writes, repeated.
        seconds: predicted to be saved where each has its own, at most.
    """

    value: Atom
    place: int
    homes: Homes
    divides: bool
    written: int
    seconds: float

    @property
    def owners(self) -> list[Home]:
        """The sums that get one of their own: all, but for one if nobody else keeps it."""
        return sorted(self.homes)[1:]


@dataclass
class Sums:
    """The sums of a level, and what XLA would compute within each if it were not for what they share."""

    level: Level
    machine: Machine
    homes: dict[int, Homes] = field(default_factory=dict, init=False)
    closed: dict[int, Home] = field(default_factory=dict, init=False)  # what takes a sum from the summed array
    taken: set[Home] = field(default_factory=set, init=False)  # these sums
    given: set[Var] = field(default_factory=set, init=False)  # sums, and what the library makes of these

    def __post_init__(self) -> None:
        sizes = [nbytes(eqn.invars[0].aval) for eqn in self.level.eqns if _is_sum(eqn)]
        if self._seconds(max(sizes, default=0), len(sizes)) <= LEAST_SECONDS:
            return  # whatever they share, it is small
        marked = self._small()
        self.given = self._given()
        self.closed = {place: home for place in marked if (home := self._summed(place)) != ELSEWHERE}
        self.taken = set(self.closed.values())
        for place in reversed(range(len(self.level.eqns))):
            self.homes[place] = self._homes(place, place in marked)

    def _homes(self, place: int, is_marked: bool) -> Homes:
        eqn = self.level.eqns[place]
        elsewhere = frozenset((ELSEWHERE,))
        if _is_sum(eqn):
            is_taken = place in self.taken or self._is_compared(eqn)
            return elsewhere if is_taken else frozenset((place,))
        if eqn.primitive.name not in TAKEN or len(eqn.outvars) != 1 or eqn.effects or not _is_float(eqn.outvars[0]):
            return elsewhere
        readers = self.level.readers(eqn.outvars[0])
        homes = frozenset[Home]().union(*(elsewhere if k < 0 else self.homes[k] for k in readers))
        if not homes:
            return elsewhere  # nobody reads it
        if place in self.closed and not self._is_apart(place, homes - elsewhere):
            return elsewhere
        if len(homes) == 1 or eqn.primitive.name == "broadcast_in_dim":
            return homes
        return homes if is_marked and self._is_copied(eqn, readers) else elsewhere

    def _given(self) -> set[Var]:
        found = set[Var]()
        for eqn in self.level.eqns:
            name, read = eqn.primitive.name, found.intersection(filter(is_var, eqn.invars))
            if _is_sum(eqn) or (
                read and (name in VIEW or (name in TAKEN and eqn.outvars[0].aval.size >= LEAST_ENTRIES))
            ):
                found.update(eqn.outvars)
        return found

    def _summed(self, place: int) -> Home:
        """The sum that an equation takes from the array that was summed, and the library with it."""
        eqn = self.level.eqns[place]
        for x in eqn.invars:
            maker = self.level.maker(x)
            for _ in range(LONGEST_CHAIN):
                if maker is None or not self._is_taken_along(maker):
                    break
                maker = self.level.maker(next(filter(is_var, maker.invars)))
            if maker is not None and _is_sum(maker) and any(y is maker.invars[0] for y in eqn.invars):
                return self.level.made_by[maker.outvars[0]]
        return ELSEWHERE

    def _is_apart(self, place: int, sums: Homes) -> bool:
        """Whether several kernels make what is taken from a summed array, of that array and not of what makes it."""
        makers = [self.level.maker(x) for x in self.level.eqns[place].invars if x.aval.size > 1]
        if any(maker is not None and maker.primitive.name in FUSED - TRIVIAL for maker in makers):
            return False
        return len(sums) > 1 or (len(sums) == 1 and self._waits(place, max(sums)))

    def _waits(self, place: int, home: Home) -> bool:
        """Whether a sum needs another one of what is made at `place`: it has a kernel of its own then."""
        waiting, seen = [home], {place, home}
        for k in waiting:
            for x in self.level.eqns[k].invars:
                made = self.level.made_by.get(x, ELSEWHERE) if is_var(x) else ELSEWHERE
                if made <= place or made in seen:
                    continue
                if _is_sum(self.level.eqns[made]) or len(waiting) > LONGEST_CHAIN:
                    return _is_sum(self.level.eqns[made])
                seen.add(made)
                waiting.append(made)
        return False

    def _is_taken_along(self, eqn: JaxprEqn) -> bool:
        """Whether it reads one value, and is nothing for XLA or is given to the library."""
        name, out = eqn.primitive.name, eqn.outvars[0].aval
        if sum(map(is_var, eqn.invars)) != 1:
            return False
        bound = eqn.invars[0] if name == "max" else eqn.invars[-1]
        is_nothing = name in VIEW or (name == "max" and not is_var(bound) and bool(np.all(bound.val == -np.inf)))
        return is_nothing or name == "broadcast_in_dim" or (name in TAKEN and out.size >= LEAST_ENTRIES)

    def _is_compared(self, eqn: JaxprEqn) -> bool:
        """Whether somebody looks for an extremum, as its derivative does: of a copy, the last bit may be another."""
        found = [eqn] if eqn.primitive.name != "reduce_sum" else []
        for reader in found:
            if reader.primitive.name in COMPARISONS:
                return True
            if reader is eqn or reader.primitive.name in VIEW or reader.primitive.name == "broadcast_in_dim":
                found += [self.level.eqns[k] for k in self.level.readers(reader.outvars[0]) if k >= 0]
        return False

    def _is_copied(self, eqn: JaxprEqn, readers: Sequence[int]) -> bool:
        """Whether XLA would write a value for a sum alone, and to compute it twice costs less: it is made of one array.

        That exists: of a longer chain, or one of rows and columns alone, each sum would compute all of it. A quotient
        that several others read is written for these.
        """
        size, name = eqn.outvars[0].aval.size, eqn.primitive.name
        whole = [x for x in eqn.invars if is_var(x) and x.aval.size == size and not self._is_broadcast(x)]
        others = [k for k in readers if k < 0 or not _is_sum(self.level.eqns[k])]
        if len(whole) != 1 or not self._exists(whole[0]) or not all(k >= 0 and self._is_fused(k) for k in others):
            return False
        elsewhere = sum(ELSEWHERE in self.homes[k] for k in others)
        return name in CHEAP or (name == "div" and elsewhere <= 1 and whole == [eqn.invars[0]])

    def _exists(self, x: Atom) -> bool:
        maker = self.level.maker(x)
        return maker is None or maker.primitive.name not in FUSED or len(self.level.readers(maker.outvars[0])) > 1

    def _is_fused(self, place: int) -> bool:
        return self.level.eqns[place].primitive.name in FUSED

    def _is_broadcast(self, x: Atom) -> bool:
        maker = self.level.maker(x)
        return maker is not None and maker.primitive.name == "broadcast_in_dim"

    def _small(self) -> set[int]:
        """The equations that read what is repeated, themselves or by others: copies of these are not equal for XLA."""
        marked: set[int] = set()
        for place, eqn in enumerate(self.level.eqns):
            if eqn.primitive.name in TAKEN and len(eqn.outvars) == 1:
                size = eqn.outvars[0].aval.size
                made = (self.level.made_by.get(x, ELSEWHERE) for x in eqn.invars if is_var(x))
                if any(x.aval.size < size for x in eqn.invars) or any(k in marked for k in made):
                    marked.add(place)
        return marked

    @cached_property
    def shared(self) -> list[Shared]:
        """What is repeated within several sums, in order."""
        if not self.homes:
            return []
        uses: dict[Hashable, dict[int, tuple[int, ...]]] = {}
        values: dict[Hashable, Atom] = {}
        for place, x, shape in self._repeats():
            key = literal_key(x)
            values.setdefault(key, x)
            uses.setdefault(key, {})[place] = shape
        found = (self._priced(values[key], places) for key, places in uses.items())
        return [one for one in found if one is not None]

    def _repeats(self) -> Iterator[tuple[int, Atom, tuple[int, ...]]]:
        """Who repeats what, to which shape."""
        for place, eqn in enumerate(self.level.eqns):
            if self._is_fused(place) and len(eqn.outvars) == 1 and _is_float(eqn.outvars[0]):
                out = eqn.outvars[0].aval
                for x in eqn.invars:
                    if x.aval.size < out.size and _is_float(x) and not self._is_pulled_out(x, eqn):
                        yield place, x, out.shape

    def _is_pulled_out(self, x: Atom, eqn: JaxprEqn) -> bool:
        """Whether XLA takes a constant factor along to other factors, or behind the sum, or `x` is such another one."""
        if eqn.primitive.name != "mul":
            return False
        if is_var(x):
            others = [self.level.maker(y) for y in eqn.invars if y is not x]
            return any(
                y.primitive.name == "mul" and any(self._is_pulled_out(c, y) for c in y.invars if not is_var(c))
                for y in others
                if y is not None
            )
        readers = self.level.readers(eqn.outvars[0])
        return all(k >= 0 and self.level.eqns[k].primitive.name in LINEAR for k in readers)

    def _priced(self, value: Atom, places: dict[int, tuple[int, ...]]) -> Shared | None:
        if is_var(value) and value in self.given and value.aval.size >= LEAST_ENTRIES:
            return None  # nothing keeps the library from taking all along, up to here and from here
        by_shape: dict[tuple[int, ...], Homes] = {}
        for place, shape in places.items():
            by_shape[shape] = by_shape.get(shape, frozenset()) | self.homes[place]
        written, seconds = 0, 0.0
        for shape, homes in by_shape.items():
            sums = len(homes - {ELSEWHERE})
            if sums and len(homes) > 1:
                size = nbytes(value.aval) // max(value.aval.size, 1) * math.prod(shape)
                written += size
                seconds += self._seconds(size, sums)
        if not written:
            return None
        inside = [place for place in places if self.homes[place] - {ELSEWHERE}]
        homes = frozenset[Home]().union(*(self.homes[place] for place in places))
        divides = any(self._divides(place, value) for place in inside)
        return Shared(value, inside[0], homes, divides, written, seconds if seconds > LEAST_SECONDS else 0.0)

    def _seconds(self, size: int, sums: int) -> float:
        """What it takes to write so many bytes and have sums read them; what stays in the cache is read as fast."""
        in_cache = size <= self.machine.cache_bytes
        return 0.0 if in_cache else transfer_seconds((1 + sums) * size, size, self.machine)

    def _divides(self, place: int, value: Atom) -> bool:
        eqn = self.level.eqns[place]
        if eqn.primitive.name == "broadcast_in_dim":
            return any(k >= 0 and self._divides(k, eqn.outvars[0]) for k in self.level.readers(eqn.outvars[0]))
        return eqn.primitive.name == "div" and literal_key(eqn.invars[1]) == literal_key(value)


def _is_sum(eqn: JaxprEqn) -> bool:
    """Whether XLA gives an equation to the library with what lies before it, and the library is good at that."""
    if eqn.primitive.name not in ROOTS or not _is_float(eqn.invars[0]):
        return False
    shape, axes = eqn.invars[0].aval.shape, eqn.params["axes"]
    least = LONG_ROW if tuple(axes) == (len(shape) - 1,) else LEAST_ROW
    return bool(axes) and shape[-1] >= least


def _is_float(x: Atom) -> bool:
    return dtype_name(x) in TYPES


def set_apart(sums: Sums, chosen: Sequence[Shared]) -> Jaxpr:
    """The level with a value of its own for each of the sums that share one of `chosen`."""
    level = sums.level
    own: dict[Home, dict[Hashable, Atom]] = {}
    opened = {literal_key(one.value): one for one in chosen}
    eqns: list[JaxprEqn] = []

    def renamed(eqn: JaxprEqn, home: Home) -> JaxprEqn:
        env = own.get(home, {})
        return eqn.replace(invars=[env.get(literal_key(x), x) for x in eqn.invars]) if env else eqn

    for place, eqn in enumerate(level.eqns):
        homes = sorted(sums.homes[place])
        for x in eqn.invars:
            one = opened.pop(literal_key(x), None) if sums.homes[place] - {ELSEWHERE} else None
            if one is not None:
                builder = Builder(eqn)
                values = _apart(builder, one)
                eqns += builder.eqns
                for home, value in zip(one.owners, values, strict=True):
                    own.setdefault(home, {})[literal_key(one.value)] = value
        eqns.append(renamed(eqn, homes[0]))
        for home in homes[1:]:
            env: dict[Var, Atom] = {}
            eqns.append(copy_equation(renamed(eqn, home), env))
            mine = own.setdefault(home, {})
            for v, x in env.items():
                mine[v] = x
    return drop_dead(with_equations(level.jaxpr, eqns))


def _apart(builder: Builder, one: Shared) -> list[Atom]:
    """As many values equal to the shared one as there are owners, of which XLA does not know that they are equal."""
    count = len(one.owners)
    made = builder.call(lambda v: lax.optimization_barrier((v,) * count), one.value)
    return [builder.as_weak_as(one.value, x) if is_var(one.value) else x for x in made]
