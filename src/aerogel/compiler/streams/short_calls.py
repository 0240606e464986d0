"""A short program in loops over blocks, so that JAX's CPU client counts few operations in it (see `counted.py`)."""

from collections.abc import Iterator, Sequence

from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Var

from ..axes import Axis
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine
from ..cost.seconds import equation_seconds
from ..exactness import Exactness
from ..fusion.canonical import canonical
from ..kernels.counted import NOT_SHORT, counted, counted_in
from ..kernels.one_kernel import as_one_kernel, refusal, reorders_sums
from ..level import Edit, Level, apply_edits
from ..pipeline import Context
from ..program import is_var, with_equations
from ..record import record
from .stream_growth import grow
from .streaming import stream_loops
from .streams import ORDERLESS, Stream, made_whole, read_outside

# What may be counted of the loops: XLA computes some of it twice, and counts that.
MOST_LEFT = NOT_SHORT // 2
# A step takes 0.1 to 0.6 us longer than its entries do in the program as it is; a thread that is awake, 5 us.
MOST_STEPS = 40
# What XLA computes in the kernel that reads it, and has to write first for a loop, and how many may be.
MADE = frozenset((*ELEMENTWISE, "concatenate", "pad", "rev", "slice", "stack"))
MOST_MADE = 4
# What reads a part of a value: XLA computes no more of it there, and for a loop all of it. How long the rest may take.
PARTS = ("gather", "slice", "dynamic_slice")
MOST_SECONDS_OF_REST = 1e-5
# Each takes XLA 20 to 60 ms to compile: a thousand calls.
MOST_LOOPS = 4
# XLA makes one kernel of loops with such steps by itself.
FEW_EQUATIONS = 3


@record
class Shortened:
    """The program, and what became of it.

    Attributes:
        steps: of all loops.
        exactness: how exact that is.
    """

    jaxpr: Jaxpr
    steps: int
    exactness: Exactness


def shortened(jaxpr: Jaxpr, context: Context) -> Shortened | str:
    """`jaxpr` with at most `MOST_LEFT` operations counted; or why that cannot be."""
    level = Level(canonical(jaxpr))
    streams = _cover(level, context)
    if isinstance(streams, str):
        return streams
    made = sum(map(_made_for, streams))
    if made > MOST_MADE:
        return f"{made} arrays that its loops read would be made first"
    rest = sum(_seconds_of_rest(stream, context.machine.on_one_core()) for stream in streams)
    if rest > MOST_SECONDS_OF_REST:
        return f"what its loops read parts of would be made as a whole first, which takes {rest * 1e6:.0f} us longer"
    loops = sum(stream.phases for stream in streams)
    if loops > MOST_LOOPS:
        return f"{loops} loops would take long to compile"
    for left in (MOST_LEFT, MOST_LEFT // 2, MOST_LEFT // 4, MOST_LEFT // 8):
        sizes = _sizes(level, streams, left)
        blocks = (stream.phases * (stream.length // size) for stream, size in zip(streams, sizes, strict=True))
        steps = sum(n * _steps_inside(stream) for n, stream in zip(blocks, streams, strict=True))
        if steps > MOST_STEPS:
            return f"its loops would take {steps} steps"
        edits = [stream_loops(stream, size, False) for stream, size in zip(streams, sizes, strict=True)]
        new, made = apply_edits(level.jaxpr, edits)
        if made == len(edits) and counted(new) <= MOST_LEFT:
            return _in_kernels(new, streams, edits, steps, context)
    return "in each step of its loops too many operations are counted"


def _cover(level: Level, context: Context) -> list[Stream] | str:
    """Streams that leave few operations outside; or why there are none."""
    counts = [counted_in(eqn) for eqn in level.eqns]
    streams: list[Stream] = []
    taken: set[int] = set()
    left = sum(counts)
    for place in sorted(range(len(counts)), key=lambda k: -counts[k]):
        if left <= MOST_LEFT // 2:
            break
        if place in taken or not counts[place]:
            continue
        found = list(_streams(level, place, frozenset(taken), context))
        if not found:
            name = level.eqns[place].primitive.name
            return f"no axis runs through `{name}`, in which {counts[place]:,} operations are counted"
        best = max(found, key=lambda stream: _worth(stream, counts))
        streams.append(best)
        taken |= best.answers.keys()
        left -= sum(counts[k] for k in best.answers)
    return streams


def _worth(stream: Stream, counts: Sequence[float]) -> tuple[bool, float]:
    """Whether blocks can be cut as small as they must be, and what is counted in the equations."""
    count = sum(counts[k] for k in stream.answers)
    return count / stream.length <= MOST_LEFT / 4, count


def _streams(level: Level, place: int, taken: frozenset[int], context: Context) -> Iterator[Stream]:
    """Streams along each axis of the largest value of an equation, without the equations that are taken.

    Through all values of its shape: two loops take twice the steps of one. Or through that value alone.
    """
    eqn = level.eqns[place]
    seed = max((v for v in (*eqn.outvars, *eqn.invars) if is_var(v)), key=lambda v: v.aval.size)
    monoids = None if Exactness.REASSOCIATES in context.allowed else frozenset(ORDERLESS)
    scope = frozenset(range(len(level.eqns))) - taken
    values = (v for other in level.eqns for v in (*other.outvars, *other.invars) if is_var(v))
    alike = frozenset(v for v in values if v.aval.shape == seed.aval.shape)
    for dim, length in enumerate(seed.aval.shape):
        for large in dict.fromkeys((alike, frozenset((seed,)))) if length > 1 else ():
            stream = grow(level, large, scope, seed, Axis(dim), monoids)
            if place in stream.answers and _can_be_loops(stream):
                yield stream


def _made_for(stream: Stream) -> int:
    """How many large values would be written for the loops alone, which XLA computes in the kernel that reads them."""
    level, places = stream.level, stream.answers
    read = {x for place in places for x, axis in stream.reads(place) if axis is not None and is_var(x)}
    makers = {level.made_by[x] for x in read if x in level.made_by} - places.keys()
    return sum(level.eqns[k].primitive.name in MADE for k in makers)


def _seconds_of_rest(stream: Stream, machine: Machine) -> float:
    """How long it takes to make what nobody reads of values that XLA would compute where parts of them are read."""
    level, places = stream.level, stream.answers
    parts: dict[Var, int] = {}
    for place in places:
        eqn = level.eqns[place]
        if eqn.primitive.name in PARTS and is_var(eqn.invars[0]):
            parts[eqn.invars[0]] = parts.get(eqn.invars[0], 0) + eqn.outvars[0].aval.size
    found = 0.0
    for x, read in parts.items():
        alone = all(k in places and level.eqns[k].primitive.name in PARTS for k in level.readers(x))
        made = [level.eqns[k] for k in _entrywise_behind(level, x) if k not in places] if alone else []
        seconds = sum(equation_seconds(eqn, machine) for eqn in made)
        found += seconds * max(0.0, 1 - read / x.aval.size)
    return found


def _entrywise_behind(level: Level, x: Var) -> set[int]:
    """The places of what computes a value entry by entry."""
    found, waiting = set[int](), [x]
    while waiting:
        place = level.made_by.get(waiting.pop(), -1)
        if place >= 0 and place not in found and level.eqns[place].primitive.name in ELEMENTWISE:
            found.add(place)
            waiting += [y for y in level.eqns[place].invars if is_var(y)]
    return found


def _steps_inside(stream: Stream) -> int:
    """How many steps each block takes: a loop over the whole takes all of its own in each.

    (50 steps of Newton's method for 1,001 numbers, in 20 blocks: 1.4 of plain JAX's time, as they are 0.95.)
    """
    eqns = (stream.level.eqns[place] for place in stream.answers)
    return max(1, sum(eqn.params["length"] for eqn in eqns if eqn.primitive.name == "scan"))


def _can_be_loops(stream: Stream) -> bool:
    if any(stream.level.eqns[place].primitive.name == "while" for place in stream.answers):
        return False  # each block would take all its steps, and nobody knows how many these are
    whole = (v for place in stream.answers for v in made_whole(stream, place))
    return not (
        stream.searches or stream.refusals.keys() & stream.answers.keys() or any(read_outside(stream, v) for v in whole)
    )


def _sizes(level: Level, streams: Sequence[Stream], left: int) -> list[int]:
    """How many indices the blocks of each stream hold: each loop may count its share, and so may what is behind it."""
    share = left / sum(stream.phases for stream in streams)
    found = []
    for stream in streams:
        of_index = sum(counted_in(level.eqns[k]) for k in stream.answers) / stream.length
        most = int(max(1, min(share / max(1.0, of_index), stream.length // 2)))
        even = (b for b in range(most, most // 2, -1) if stream.length % b == 0)
        found.append(next(even, max(1, most // 2)))
    return found


def _in_kernels(
    jaxpr: Jaxpr, streams: Sequence[Stream], edits: Sequence[Edit], steps: int, context: Context
) -> Shortened | str:
    """The program with its new loops as one kernel each."""
    ours = {id(eqn.params["jaxpr"]) for edit in edits for eqn in edit.eqns if eqn.primitive.name == "scan"}
    exactness = max([Exactness.NO_WORSE, *(stream.exactness for stream in streams)], key=list(Exactness).index)
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "scan" or id(eqn.params["jaxpr"]) not in ours:
            eqns.append(eqn)
            continue
        reason = refusal(eqn)
        if reason is None and any(not isinstance(v, DropVar) for v in eqn.outvars):
            exactness = Exactness.REASSOCIATES if reorders_sums(eqn) else exactness
            eqns.append(as_one_kernel(eqn, jaxpr))
        elif len(eqn.params["jaxpr"].jaxpr.eqns) <= FEW_EQUATIONS:
            eqns.append(eqn)
        else:
            return reason or "it has no results"
    if exactness not in context.allowed:
        return 'it adds up in another order: numerics="fast" allows that'
    return Shortened(with_equations(jaxpr, eqns), steps, exactness)
