"""Shifts of a value along the last axis are slices of one longer array, which a step of a loop stores.

`jnp.roll` joins two slices, its gradient adds two paddings. XLA's CPU backend fuses such a seam into all that reads
it, and where the seam is in the innermost loop, all of that is scalar code: a step of the heat equation takes five
times what its arithmetic takes. Here a value that is rolled is written once, with the few entries of its other end on
each side; a roll is a slice of that, at another place. What else reads the value reads it from there too, so that the
next value can take its place.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, nbytes
from ..cost.seconds import transfer_seconds
from ..fusion.once import LEAST_SECONDS, READERS
from ..normalize import drop_dead
from ..program import Builder, Makers, Readers, is_var, producers, rename, substitute, users, with_equations
from ..record import record
from ..rules.once import once
from ..zeros import is_zero

# An entry of a roll that is fused into arithmetic: 0.2 to 0.5 ns were measured of values, 0.4 to 1 of gradients, in one
# and two dimensions from 1,000 entries on (jaxlib 0.10.2, two CPUs).
ROLL_SECONDS = 2.5e-10
# One roll alone is a condition that LLVM takes out of the innermost loop by itself; where rows are shorter than this it
# often does so for two (a sum of two neighbours in 64 x 64 entries took 1.9 of the time if it was rewritten).
FEWEST_ROLLS = 2
SHORTEST_ROW = 128
FLOATS = (np.float32, np.float64)


@record
class Roll:
    """An equation whose result is `base`, rolled along its last axis by `by` places: negative ones go to the left.

    The gradient of a difference rolls a value and its negative: `of_negative`. Where it `adds` paddings, it makes a
    zero of a negative one.
    """

    place: int
    base: Var
    by: int
    adds: bool
    of_negative: bool


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
    def before(self) -> int:
        """Entries of the other end in front."""
        return max(0, *(one.by for one in self.rolls))

    @property
    def behind(self) -> int:
        """Entries of the other end behind."""
        return max(0, *(-one.by for one in self.rolls))


def shifts(jaxpr: Jaxpr, machine: Machine) -> list[Shifts]:
    """The values of a level that are rolled along their last axis into entrywise kernels, in order."""
    makers, readers = producers(jaxpr), users(jaxpr)
    found: dict[Var, list[Roll]] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        roll = _roll(jaxpr, makers, place, eqn)
        if roll is not None and _is_computed_with(jaxpr, readers, eqn.outvars[0]):
            found.setdefault(roll.base, []).append(roll)
    return [_priced(base, tuple(rolls), machine) for base, rolls in found.items()]


def _roll(jaxpr: Jaxpr, makers: Makers, place: int, eqn: JaxprEqn) -> Roll | None:
    """The equation as a roll of something: two slices that are joined, or each among zeros, which are added."""
    name = eqn.primitive.name
    joins = name == "concatenate" and eqn.params["dimension"] == len(eqn.outvars[0].aval.shape) - 1
    if len(eqn.invars) != 2 or not (joins or name in ("add", "add_any")):
        return None
    aval = eqn.outvars[0].aval
    if aval.dtype not in FLOATS or not aval.shape:
        return None
    pieces = [(x, None) if joins else _among_zeros(jaxpr, makers, x) for x in eqn.invars]
    parts = [_part(jaxpr, makers, *piece) for piece in pieces if piece is not None]
    found = [part for part in parts if part is not None]
    if len(found) != 2 or found[0].whole is not found[1].whole or found[0].whole.aval.shape != aval.shape:
        return None
    end, front = found if joins else sorted(found, key=lambda part: part.to or 0)
    n, k = aval.shape[-1], front.stop
    if front.start or (end.start, end.stop) != (k, n) or not (joins or (end.to == 0 and front.to == n - k)):
        return None
    base, by = end.whole, -k if 2 * k <= n else n - k
    maker = jaxpr.eqns[makers[base]] if base in makers else None
    if maker is None or maker.primitive.name != "neg" or not is_var(maker.invars[0]):
        return Roll(place, base, by, not joins, False)
    return Roll(place, maker.invars[0], by, not joins, True)


@record
class _Part:
    """Entries `start` to `stop` of a value along its last axis, and where they are put."""

    whole: Var
    start: int
    stop: int
    to: int | None


def _among_zeros(jaxpr: Jaxpr, makers: Makers, x: Atom) -> tuple[Atom, int] | None:
    """What stands among zeros along the last axis alone, and where."""
    eqn = jaxpr.eqns[makers[x]] if is_var(x) and x in makers else None
    if eqn is None or eqn.primitive.name != "pad" or not is_zero(eqn.invars[1], set()):
        return None
    *others, (low, high, inner) = eqn.params["padding_config"]
    if any(any(one) for one in others) or inner or low < 0 or high < 0:
        return None
    return eqn.invars[0], int(low)


def _part(jaxpr: Jaxpr, makers: Makers, x: Atom, to: int | None) -> _Part | None:
    """`x` as a part of something along the last axis alone."""
    eqn = jaxpr.eqns[makers[x]] if is_var(x) and x in makers else None
    if eqn is None or eqn.primitive.name != "slice" or not is_var(eqn.invars[0]):
        return None
    whole, starts, stops = eqn.invars[0], eqn.params["start_indices"], eqn.params["limit_indices"]
    if any(n != 1 for n in eqn.params["strides"] or ()) or any(starts[:-1]) or stops[:-1] != whole.aval.shape[:-1]:
        return None
    return _Part(whole, starts[-1], stops[-1], to)


def _is_computed_with(jaxpr: Jaxpr, readers: Readers, v: Var) -> bool:
    """Whether all that reads a value is arithmetic on its entries: a roll alone is two copies."""
    places = readers.get(v, [])
    return bool(places) and all(k >= 0 and jaxpr.eqns[k].primitive.name in ELEMENTWISE for k in places)


def _priced(base: Var, rolls: tuple[Roll, ...], machine: Machine) -> Shifts:
    found = Shifts(base, rolls, 0.0)
    size, entries, n = nbytes(base.aval), base.aval.size, base.aval.shape[-1]
    longer = (n + found.before + found.behind) / n
    # What makes the value writes it, with its ends, and `once` copies that.
    written = 2 * (longer * transfer_seconds(size, size, machine) + machine.seconds_per_step_kernel)
    seconds = ROLL_SECONDS * entries * len(rolls) - written
    pays = seconds > LEAST_SECONDS and len(rolls) >= FEWEST_ROLLS and n >= SHORTEST_ROW
    return Shifts(base, rolls, seconds if pays else 0.0)


def shifted(jaxpr: Jaxpr, found: list[Shifts]) -> Jaxpr:
    """The level with each of these values written once, with its ends, and read from there."""
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
        whole[v] = builder.as_weak_as(v, there)
        eqns.extend(builder.eqns)

    for v in (*jaxpr.invars, *jaxpr.constvars):
        if v in bases:
            extend(v, jaxpr.eqns[bases[v].rolls[0].place])
    for place, eqn in enumerate(jaxpr.eqns):
        if place in rolls:
            each, one = rolls[place]
            (out,), builder = eqn.outvars, Builder(eqn)
            (rolled,) = builder.call(_from(each.before - one.by, each.base), longer[each.base])
            rolled = builder.call(lax.neg, rolled)[0] if one.of_negative else rolled
            env[out] = builder.as_weak_as(out, rolled)
            eqns += builder.eqns
        else:
            eqns.append(rename(eqn, env | whole if eqn.primitive.name in READERS else env))
        for v in eqn.outvars:
            if v in bases:
                extend(v, eqn)
    return drop_dead(with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars]))


def with_ends(before: int, behind: int) -> Callable[[Any], Any]:
    """What writes a value with so many entries of its other end in front and behind."""

    def extended(x: Any) -> Any:
        n, last = x.shape[-1], x.ndim - 1
        front, back = lax.slice_in_dim(x, n - before, n, axis=last), lax.slice_in_dim(x, 0, behind, axis=last)
        join = _written if _jax.JOINS_BY_CONDITIONS and x.ndim == 1 else lax.concatenate
        return once(join([front, x, back], last))

    return extended


def _written(pieces: list[Any], _: int) -> Any:
    """Three pieces of an only axis as one, the outer ones written into place."""
    front, x, back = pieces
    whole = lax.pad(x, np.zeros((), x.dtype), [(len(front), len(back), 0)])
    for piece, start in ((front, 0), (back, len(front) + len(x))):
        whole = lax.dynamic_update_slice_in_dim(whole, piece, start, 0) if len(piece) else whole
    return whole


def _from(start: int, base: Var) -> Callable[[Any], Any]:
    """What begins at `start` and is as long as `base`."""
    n, last = base.aval.shape[-1], base.aval.ndim - 1
    return lambda x: lax.slice_in_dim(x, start, start + n, axis=last)
