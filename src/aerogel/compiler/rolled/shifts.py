"""Shifts of a value are slices of one larger array, which a step of a loop stores.

`jnp.roll` joins two slices, its gradient adds two paddings. XLA's CPU backend fuses such a seam into all that reads
it, and where the seam is in the innermost loop, all of that is scalar code: a step of the heat equation takes five
times what its arithmetic takes. Here a value that is rolled is written once, with the few entries of its other end on
each side; a roll is a slice of that, at another place. What else reads the value reads it from there too, so that the
next value can take its place.
"""

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, nbytes
from ..cost.primitives import DEAR
from ..cost.seconds import transfer_seconds
from ..cost.vector_code import SCALAR_SECONDS, SINES
from ..fusion.once import READERS
from ..normalize import drop_dead
from ..program import Builder, Makers, Readers, depends_on, is_var, producers, rename, substitute, users, with_equations
from ..record import record
from ..rules.once import can_be_stored, once
from ..zeros import is_zero

# An entry of a roll that is fused into arithmetic: 0.2 to 0.5 ns were measured of values, 0.4 to 1 of gradients, in one
# and two dimensions from 1,000 entries on (jaxlib 0.10.2, two CPUs).
ROLL_SECONDS = 2.5e-10
# One roll alone is a condition that LLVM takes out of the innermost loop by itself. Where rows are shorter than this
# and little is computed, it does so for two: heat in 48 x 48 to 1,000 x 48 entries took 1.3 to 1.45 of the time if they
# were rewritten, a reaction with a cube or more 0.4 to 0.7.
FEWEST_ROLLS = 2
SHORTEST_ROW, SHORTEST_OF_MUCH, MUCH = 64, 16, 10
# It does not for six, nor for sums of paddings: a step of the game of life takes 0.45 of the time on 16 x 16 cells, on
# 256 x 256 0.25, gradients of a reaction on 64 x 64 to 200 x 200 0.6 to 0.95 (48 x 48: twice their time, as they lose
# their one kernel).
MANY_ROLLS = 6
# Entries of a value from which on seams in several kernels count together: two of one roll each, of 96 x 96, took
# 1.3 of the time if they were rewritten, of 128 x 128 to 400 x 400, which XLA shares among threads, 0.82 to 0.88.
SHARED = 1 << 14
# Nothing is written for less a step. Steps with few sines are better off as one kernel, which such a value would end:
# XLA shares them among threads otherwise (1,000 entries took twice as long).
LEAST_SECONDS, LEAST_BESIDE_SINES = 1e-7, 1e-6
# Functions that are scalar code beside sums of paddings: a gradient that computed `tanh` of 600 to 16,000 entries again
# took 1.2 to 1.9 of plain JAX's time.
LIBRARY = DEAR.difference(SINES, ("gather", "concatenate"))
STORED = LIBRARY | {*SINES, "div"}  # XLA makes what these make once for all that read it, in a kernel of its own
# LLVM keeps what it reads at neighbouring places from one entry to the next, and does not find vector code for these
# functions of such an entry.
LOST = frozenset(("tanh", "sqrt", "rsqrt"))
Sizes = tuple[int, ...]


@record
class Roll:
    """An equation whose result is `base`, rolled `by` so many places along each axis: negative ones go to the left.

    The gradient of a difference rolls a value and its negative: `of_negative`. Where it `adds` paddings, it makes a
    zero of a negative one.
    """

    place: int
    base: Var
    by: tuple[int, ...]
    adds: bool
    of_negative: bool

    @property
    def in_rows(self) -> bool:
        """Whether it goes along the last axis."""
        return self.by[-1] != 0

    @property
    def is_diagonal(self) -> bool:
        """Whether it goes along the last axis and along another one."""
        return self.in_rows and any(self.by[:-1])

    def after(self, other: "Roll") -> "Roll":
        """Both, the other one first: it makes what this one rolls."""
        sums = [a + b for a, b in zip(self.by, other.by, strict=True)]
        by = tuple(_least(k, n) for k, n in zip(sums, other.base.aval.shape, strict=True))
        return Roll(self.place, other.base, by, self.adds or other.adds, self.of_negative != other.of_negative)


@record
class Shifts:
    """The rolls of one value.

    Attributes:
        base: what is rolled.
        rolls: each time it is.
        seconds: predicted to be saved in a step; 0 where it is not worth it.
    """

    base: Var
    rolls: tuple[Roll, ...]
    seconds: float

    @property
    def before(self) -> tuple[int, ...]:
        """Entries of the other end in front, along each axis."""
        return tuple(max(0, *along) for along in zip(*(one.by for one in self.rolls), strict=True))

    @property
    def behind(self) -> tuple[int, ...]:
        """Entries of the other end behind."""
        return tuple(max(0, *(-by for by in along)) for along in zip(*(one.by for one in self.rolls), strict=True))


def shifts(jaxpr: Jaxpr, machine: Machine) -> list[Shifts]:
    """The values of a level that are rolled along their last axis into entrywise kernels, in order.

    Where one is rolled along others at the same time, all of its rolls are slices; else XLA's code is vector code for
    those along the others alone.
    """
    makers, readers = producers(jaxpr), users(jaxpr)
    known: dict[Var, Roll] = {}
    found: dict[Var, list[Roll]] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        roll = _roll(jaxpr, makers, place, eqn)
        if roll is None:
            continue
        roll = roll.after(known[roll.base]) if roll.base in known else roll
        known[eqn.outvars[0]] = roll
        if any(roll.by) and is_computed_with(jaxpr, readers, eqn.outvars[0], rolled_again=True):
            found.setdefault(roll.base, []).append(roll)
    for base, rolls in found.items():
        if not any(one.is_diagonal for one in rolls):
            found[base] = [one for one in rolls if one.in_rows]
    return _priced(jaxpr, {base: tuple(rolls) for base, rolls in found.items() if rolls}, machine)


def _priced(jaxpr: Jaxpr, found: dict[Var, tuple[Roll, ...]], machine: Machine) -> list[Shifts]:
    """These rolls, with what is saved by each value's; seams of one kernel make scalar code of it together."""
    seams = [one for rolls in found.values() for one in rolls if one.in_rows]
    adds = any(one.adds for one in seams)
    dear = [eqn.outvars[0].aval.size for eqn in jaxpr.eqns if eqn.primitive.name in LIBRARY] if adds else []
    kernel = _kernels(jaxpr, found)
    in_one_kernel = len(seams) < MANY_ROLLS and any(eqn.primitive.name in SINES for eqn in jaxpr.eqns)
    least = LEAST_BESIDE_SINES if in_one_kernel else LEAST_SECONDS
    priced: list[Shifts] = []
    for base, rolls in found.items():
        one, shape, size = Shifts(base, rolls, 0.0), base.aval.shape, base.aval.size
        entries = math.prod(n + a + b for n, a, b in zip(shape, one.before, one.behind, strict=True))
        seconds = ROLL_SECONDS * size * sum(roll.in_rows for roll in rolls) - seconds_written(base, entries, machine)
        seconds += SCALAR_SECONDS * sum(n for n in dear if n == size) / len(found)
        row = SHORTEST_OF_MUCH if not adds and computes_much(jaxpr, size) else SHORTEST_ROW
        row = 0 if len(seams) >= MANY_ROLLS else row
        near = [one for other, each in found.items() if kernel[other] == kernel[base] for one in each if one.in_rows]
        near = seams if adds or size >= SHARED else near
        pays = len(near) >= FEWEST_ROLLS and shape[-1] >= row and seconds > least
        priced.append(Shifts(base, rolls, seconds) if pays else one)
    return priced


def _kernels(jaxpr: Jaxpr, bases: Collection[Var]) -> dict[Var, int]:
    """For each value how many kernels, one behind the other, stand before those that read its rolls.

    What is computed of rolls by a division or a dearer function, and rolled itself, is made in a kernel of its own: the
    flow of total variation, with one roll along rows in each of two, took 1.3 to 1.7 of the time.
    """
    behind: dict[Var, tuple[int, bool]] = {}  # kernels, and whether something dear was done in the last one
    for eqn in jaxpr.eqns:
        read = {x: behind.get(x, (0, False)) for x in eqn.invars if is_var(x)}
        rolled = [(sum(read[x]), False) for x in read if x in bases]
        count, dear = max([*read.values(), *rolled], default=(0, False))
        dear |= eqn.primitive.name in STORED
        behind.update((v, (count, dear)) for v in eqn.outvars)
    return {v: sum(behind.get(v, (0, False))) for v in bases}


def computes_much(jaxpr: Jaxpr, *sizes: int) -> bool:
    """Whether much is done to each entry of arrays of such sizes."""
    return sum(eqn.primitive.name in ELEMENTWISE and eqn.outvars[0].aval.size in sizes for eqn in jaxpr.eqns) >= MUCH


def _least(by: int, n: int) -> int:
    """Places to the right, or fewer to the left."""
    by %= n
    return by if 2 * by < n else by - n


def _roll(jaxpr: Jaxpr, makers: Makers, place: int, eqn: JaxprEqn) -> Roll | None:
    """The equation as a roll along one axis: two slices that are joined, or each among zeros, which are added."""
    name = eqn.primitive.name
    joins = name == "concatenate"
    if len(eqn.invars) != 2 or not (joins or name in ("add", "add_any")):
        return None
    aval = eqn.outvars[0].aval
    if not can_be_stored(aval) or not aval.shape or not aval.size:
        return None
    pieces = [(x, eqn.params["dimension"], None) if joins else _among_zeros(jaxpr, makers, x) for x in eqn.invars]
    found = [part for piece in pieces if piece is not None and (part := _part(jaxpr, makers, *piece)) is not None]
    if len(found) != 2 or found[0].whole is not found[1].whole or found[0].whole.aval.shape != aval.shape:
        return None
    if found[0].axis != found[1].axis:
        return None
    end, front = found if joins else sorted(found, key=lambda part: part.to or 0)
    axis, n, k = end.axis, aval.shape[end.axis], front.stop
    if front.start or (end.start, end.stop) != (k, n) or not (joins or (end.to == 0 and front.to == n - k)):
        return None
    base, by = end.whole, tuple(_least(-k, n) if d == axis else 0 for d in range(len(aval.shape)))
    maker = jaxpr.eqns[makers[base]] if base in makers else None
    if maker is None or maker.primitive.name != "neg" or not is_var(maker.invars[0]):
        return Roll(place, base, by, not joins, False)
    return Roll(place, maker.invars[0], by, not joins, True)


@record
class _Part:
    """Entries `start` to `stop` of a value along one axis, and where they are put."""

    whole: Var
    axis: int
    start: int
    stop: int
    to: int | None


def _among_zeros(jaxpr: Jaxpr, makers: Makers, x: Atom) -> tuple[Atom, int, int] | None:
    """What stands among zeros along one axis alone, along which, and where."""
    eqn = jaxpr.eqns[makers[x]] if is_var(x) and x in makers else None
    if eqn is None or eqn.primitive.name != "pad" or not is_zero(eqn.invars[1], set()):
        return None
    padded = [(axis, *one) for axis, one in enumerate(eqn.params["padding_config"]) if any(one)]
    if len(padded) != 1:
        return None
    ((axis, low, high, inner),) = padded
    return None if inner or low < 0 or high < 0 else (eqn.invars[0], axis, int(low))


def _part(jaxpr: Jaxpr, makers: Makers, x: Atom, axis: int, to: int | None) -> _Part | None:
    """`x` as a part of something along one axis alone."""
    eqn = jaxpr.eqns[makers[x]] if is_var(x) and x in makers else None
    if eqn is None or eqn.primitive.name != "slice" or not is_var(eqn.invars[0]):
        return None
    whole, starts, stops = eqn.invars[0], eqn.params["start_indices"], eqn.params["limit_indices"]
    others = ((a, b, n) for d, (a, b, n) in enumerate(zip(starts, stops, whole.aval.shape, strict=True)) if d != axis)
    if any(n != 1 for n in eqn.params["strides"] or ()) or any((a, b) != (0, n) for a, b, n in others):
        return None
    return _Part(whole, axis, starts[axis], stops[axis], to)


def is_computed_with(jaxpr: Jaxpr, readers: Readers, v: Var, rolled_again: bool = False) -> bool:
    """Whether all that reads a value is arithmetic on its entries: a roll alone is two copies.

    Where it is `rolled_again`, slices may read it, too.
    """
    names = {jaxpr.eqns[k].primitive.name if k >= 0 else "" for k in readers.get(v, [])}
    return not names.isdisjoint(ELEMENTWISE) and names <= ({*ELEMENTWISE, "slice"} if rolled_again else {*ELEMENTWISE})


def seconds_written(v: Var, entries: int, machine: Machine) -> float:
    """To write so many entries for a value: what makes it writes it, with its ends, and `once` copies that."""
    size = nbytes(v.aval)
    longer = entries / max(1, v.aval.size)
    return 2 * (longer * transfer_seconds(size, size, machine) + machine.seconds_per_step_kernel)


def shifted(jaxpr: Jaxpr, found: list[Shifts], stays: Collection[Var] = ()) -> Jaxpr:
    """The level with each of these values written once, with its ends, and read from there.

    What `stays` in memory anyway is read as it is for functions that are `LOST` on it: a gradient that computed `tanh`
    of a stacked state again took 1.4 of plain JAX's time instead of 0.7.
    """
    stays = {v for v in stays if _is_lost(jaxpr, v)}
    rolls = {one.place: (each, one) for each in found for one in each.rolls}
    bases = {each.base: each for each in found}
    eqns: list[JaxprEqn] = []
    longer: dict[Var, Atom] = {}  # by what is rolled
    env: dict[Var, Atom] = {}  # what results are called now
    whole: dict[Var, Atom] = {}  # and what kernels read for them

    def extend(v: Var, like: JaxprEqn) -> None:
        each, builder = bases[v], Builder(like)
        (longer[v],) = builder.call(with_ends(each.before, each.behind), v)
        (there,) = builder.call(_from(each.before, v), longer[v])
        if v not in stays:
            whole[v] = builder.as_weak_as(v, there)
        eqns.extend(builder.eqns)

    for v in (*jaxpr.invars, *jaxpr.constvars):
        if v in bases:
            extend(v, jaxpr.eqns[bases[v].rolls[0].place])
    for place, eqn in enumerate(jaxpr.eqns):
        if place in rolls:
            each, one = rolls[place]
            (out,), builder = eqn.outvars, Builder(eqn)
            start = tuple(low - by for low, by in zip(each.before, one.by, strict=True))
            (rolled,) = builder.call(_from(start, each.base), longer[each.base])
            rolled = builder.call(lax.neg, rolled)[0] if one.of_negative else rolled
            env[out] = builder.as_weak_as(out, rolled)
            eqns += builder.eqns
        else:
            eqns.append(rename(eqn, env | whole if eqn.primitive.name in READERS else env))
        for v in eqn.outvars:
            if v in bases:
                extend(v, eqn)
    return drop_dead(with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars]))


def _is_lost(jaxpr: Jaxpr, v: Var) -> bool:
    behind = {v, *depends_on(jaxpr, [v])}
    return any(eqn.primitive.name in LOST and not behind.isdisjoint(filter(is_var, eqn.invars)) for eqn in jaxpr.eqns)


def with_ends(before: Sizes, behind: Sizes) -> Callable[[Any], Any]:
    """What writes a value with so many entries of its other end in front and behind, along each axis."""

    def extended(x: Any) -> Any:
        whole = x
        for axis, (low, high) in enumerate(zip(before, behind, strict=True)):
            if low or high:
                n = x.shape[axis]
                front = lax.slice_in_dim(whole, n - low, n, axis=axis)
                back = lax.slice_in_dim(whole, 0, high, axis=axis)
                join = _written if _jax.JOINS_BY_CONDITIONS and x.ndim == 1 else lax.concatenate
                whole = join([front, whole, back], axis)
        return once(whole)

    return extended


def _written(pieces: list[Any], _: int) -> Any:
    """Three pieces of an only axis as one, the outer ones written into place."""
    front, x, back = pieces
    whole = lax.pad(x, np.zeros((), x.dtype), [(len(front), len(back), 0)])
    for piece, start in ((front, 0), (back, len(front) + len(x))):
        whole = lax.dynamic_update_slice_in_dim(whole, piece, start, 0) if len(piece) else whole
    return whole


def _from(start: Sizes, base: Var) -> Callable[[Any], Any]:
    """What begins at `start` and is as large as `base`."""
    stop = [at + n for at, n in zip(start, base.aval.shape, strict=True)]
    return lambda x: lax.slice(x, start, stop)
