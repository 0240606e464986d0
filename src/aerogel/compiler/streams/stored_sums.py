"""Sums for which XLA would store an array of the size of what they add up, and nothing else reads it.

XLA's CPU backend hands sums and extrema of floats to a library (`__ynn_fusion`, jaxlib 0.10.2 to 0.12), with the
arithmetic before them. The library has no comparisons and no selection: of a Huber loss, a masked error or a count,
`jnp.sum(jnp.where(...))`, an array of full size is made first, in fresh memory, and read once. In blocks that stay in a
cache it is in no memory: 40 MB took 0.2 to 0.5 of the time, 2 MB 0.6 to 0.8. What else reads the same values, as the
gradient does, has XLA compute them for itself, also before.
"""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes import Axis
from ..axes.rebind import dtype_name
from ..cost import nbytes
from ..cost.primitives import KIND, Kind
from ..level import Edit, Level, apply_edits
from ..program import is_var
from ..readers.own_broadcasts import COMPARISONS, LONG_ROW, ROOTS, TAKEN
from ..record import record
from .stream_growth import grow
from .streaming import stream_loops
from .streams import Stream, is_cheap, made_whole

TYPES = ("float32", "float64")
# An array of less stays in a cache; of 1 MB on one core 0.7 of the time, on two it was not measured.
LEAST_BYTES = 1 << 21
# What a sum leaves of what it reads: of rows each block would be written behind the last.
FEWER = 1024
# Entries of a block: XLA shares kernels of more among threads, and waking these in each step takes longer (16 MB on
# two cores, blocks of 16,000 entries 0.76 of plain JAX's time, of 64,000 1.12, of 256,000 0.75). Longer rows take as
# many as make up for it; more than the last leave the cache.
BLOCK, LONG_BLOCK, LONGEST_BLOCK = 1 << 14, 1 << 18, 1 << 19
MOST_EQUATIONS = 24
# What is made of an array, or moves its entries: of others, a block is another part.
MOVES = frozenset("broadcast_in_dim reshape squeeze expand_dims convert_element_type".split())
# What gives one of its operands, to the last bit.
EXACT = MOVES | frozenset("select_n abs neg max min clamp".split())
INSIDE = COMPARISONS | TAKEN | frozenset("select_n and or not xor is_finite clamp sign add_any".split())


@record
class StoredSum:
    """One such sum.

    Attributes:
        place: of the reduction.
        chain: the places of what makes the array of what exists, in order.
        given: what exists, and is as large.
    """

    place: int
    chain: tuple[int, ...]
    given: frozenset[Var]


def stored_sums(level: Level, outermost: bool) -> Iterator[StoredSum]:
    """The sums and extrema of a level for which an array is stored; `outermost`: of the whole program."""
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name not in ROOTS or dtype_name(eqn.invars[0]) not in TYPES:
            continue
        (x,), (out,) = eqn.invars, eqn.outvars
        if not is_var(x) or nbytes(x.aval) < LEAST_BYTES or out.aval.size * FEWER > x.aval.size:
            continue
        if x.aval.shape[-1] < LONG_ROW:  # XLA keeps such sums: 700,000 x 3 entries took 2.4 to 3.4 times as long
            continue
        found = _chain(level, place, outermost)
        if found is not None and any(level.eqns[k].primitive.name not in TAKEN for k in found.chain):
            yield found


def _chain(level: Level, place: int, outermost: bool) -> StoredSum | None:
    """What makes the operand of a sum, up to what exists; None where that is all, or there is more than cheap work."""
    waiting = [x for x in level.eqns[place].invars if is_var(x)]
    size = waiting[0].aval.size
    chain, given = set[int](), set[Var]()
    while waiting:
        v = waiting.pop()
        if v.aval.size < size:
            continue
        if _exists(level, v):
            given.add(v)
            continue
        k = level.made_by[v]
        eqn = level.eqns[k]
        if k in chain:
            continue
        if not _may_be_inside(eqn):
            return None
        chain.add(k)
        if len(chain) > MOST_EQUATIONS:
            return None
        waiting += [x for x in eqn.invars if is_var(x)]
    found = StoredSum(place, tuple(sorted(chain)), frozenset(given))
    return None if _hangs_on_last_bits(level, found, outermost) else found


def _may_be_inside(eqn: JaxprEqn) -> bool:
    is_entrywise = eqn.primitive.name in INSIDE and is_cheap(eqn) and len(eqn.outvars) == 1
    is_half = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact) and dtype_name(eqn.outvars[0]) not in TYPES
    return is_entrywise and not is_half and not eqn.ctx.compute_type


def _hangs_on_last_bits(level: Level, found: StoredSum, outermost: bool) -> bool:
    """Whether an extremum is taken of what is rounded, or this is compared with one, or for equality.

    In another kernel it may be rounded otherwise. The gradient of a maximum counts the entries that are equal to it,
    and divides by their number.
    """
    rounded: set[Var] = set()
    is_rounded = False
    for k in (*found.chain, found.place):
        eqn = level.eqns[k]
        name = eqn.primitive.name
        read = [x for x in eqn.invars if is_var(x)]
        is_rounded = not rounded.isdisjoint(read)
        if name in COMPARISONS:
            if is_rounded and (name in ("eq", "ne") or any(_may_be_extremum(level, x, outermost) for x in read)):
                return True
        elif is_rounded or name not in EXACT:
            rounded.update(eqn.outvars)
    return level.eqns[found.place].primitive.name != "reduce_sum" and is_rounded


def _may_be_extremum(level: Level, v: Var, outermost: bool) -> bool:
    """Whether a value is an extremum, or comes from around a level, where it may be one."""
    eqn = level.maker(v)
    while eqn is not None and eqn.primitive.name in MOVES and is_var(eqn.invars[0]):
        v = eqn.invars[0]
        eqn = level.maker(v)
    return eqn.primitive.name in ("reduce_max", "reduce_min") if eqn is not None else not outermost


def _exists(level: Level, v: Var) -> bool:
    """Whether a value is in memory whatever a sum does: it comes from outside, or something reads it from there."""
    eqn = level.maker(v)
    if eqn is None or not _fuses(eqn):
        return True
    return any(k < 0 or not _fuses(level.eqns[k]) for k in level.readers(v))


def _fuses(eqn: JaxprEqn) -> bool:
    """Whether XLA may compute an equation in the kernel that reads it, or what it reads in its own."""
    return KIND.get(eqn.primitive.name) in (Kind.VIEW, Kind.CHEAP, Kind.DEAR, Kind.REDUCE)


def together(sums: Sequence[StoredSum], level: Level) -> list[list[StoredSum]]:
    """The sums of arrays of one shape: their blocks are read once."""
    groups: dict[tuple[int, ...], list[StoredSum]] = {}
    for one in sums:
        groups.setdefault(level.eqns[one.place].invars[0].aval.shape, []).append(one)
    return list(groups.values())


def in_blocks(level: Level, sums: Sequence[StoredSum]) -> tuple[Jaxpr, int] | str:
    """The level with sums of arrays of one shape in a loop over blocks, and how many entries these have; or why not."""
    shape = level.eqns[sums[0].place].invars[0].aval.shape
    dim = next((k for k, length in enumerate(shape) if length > 1), 0)
    row = level.eqns[sums[0].place].invars[0].aval.size // shape[dim]
    least = BLOCK if row <= BLOCK else LONG_BLOCK
    size = max(1, least // row)
    if size * row > LONGEST_BLOCK or size >= shape[dim]:
        return "a block of its rows would not stay in the cache"
    copied, seeds = _with_own_chains(level, sums)
    made_of = {v for places in seeds.values() for v in places}
    own = Level(copied)
    scope = frozenset(own.made_by[v] for v in (*made_of, *seeds))
    first = next(iter(seeds))
    seed = own.eqns[own.made_by[first]].invars[0]
    assert is_var(seed), "it is made by the copies"
    large = frozenset(v for v in made_of if v.aval.size >= seed.aval.size)
    stream = grow(own, large, scope, seed, Axis(dim), None)
    reason = _refusal(stream, scope)
    if reason is not None:
        return reason
    if stream.phases > 1:  # some wait for others, and have a loop of their own
        first_of = [one for one, v in zip(sums, seeds, strict=True) if not stream.phase[own.made_by[v]]]
        return in_blocks(level, first_of)
    new, _ = apply_edits(copied, [stream_loops(stream, size, False)])
    return new, size * row


def _refusal(stream: Stream, scope: frozenset[int]) -> str | None:
    reasons = [reason for place, reason in stream.refusals.items() if place in scope]
    whole = any(made_whole(stream, place) for place in stream.answers)
    if reasons or whole or not scope <= stream.answers.keys():
        return reasons[0] if reasons else "its blocks would need what is made of all of it"
    return None


def _with_own_chains(level: Level, sums: Sequence[StoredSum]) -> tuple[Jaxpr, dict[Var, list[Var]]]:
    """The level with copies of what makes the arrays, for the sums alone; and what is copied, by the sums' results."""
    own: dict[Var, Var] = {}
    edits, copies = list[Edit](), dict[Var, list[Var]]()
    for one in sums:
        eqns: list[JaxprEqn] = []
        eqn = level.eqns[one.place]
        for k in one.chain:
            (v,) = level.eqns[k].outvars
            if v not in own:
                eqns.append(_reading(level.eqns[k], own))
                own[v] = _jax.new_var(v.aval)
                eqns[-1] = eqns[-1].replace(outvars=[own[v]])
        here = frozenset({one.place})
        edits.append(Edit(one.place, here, [*eqns, _reading(eqn, own)], {}, here))
        copies[eqn.outvars[0]] = [own[level.eqns[k].outvars[0]] for k in one.chain]
    return apply_edits(level.jaxpr, edits)[0], copies


def _reading(eqn: JaxprEqn, own: dict[Var, Var]) -> JaxprEqn:
    return eqn.replace(invars=[own.get(x, x) if is_var(x) else x for x in eqn.invars])
