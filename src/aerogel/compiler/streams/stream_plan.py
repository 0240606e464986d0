"""Whether a stream pays, along which axis, and how large its blocks are."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Var

from ..axes import Axis
from ..cost import Machine, jaxpr_seconds, nbytes
from ..cost.account import jaxpr_cost
from ..cost.vector_code import VECTOR_SECONDS, with_vector_code
from ..cost.work import dot_shape, is_sum_of_products
from ..exactness import Exactness
from ..joins import joined_axis
from ..level import Edit, Level
from ..levels import rewrite_levels
from ..loop import is_float
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import is_var
from ..record import record
from ..short_axes.short_axes import LONGEST_AMPLIFIED, acts, entry_by_entry, is_in_no_memory
from .reduced_products import is_reduced_at_once, is_stored_by_none
from .stream_growth import WHOLE, grow
from .streaming import stream_loops
from .streams import (
    LIGHT,
    ORDERLESS,
    REDUCTIONS,
    Stream,
    group_of,
    is_light,
    made_again,
    made_whole,
    read_outside,
    scope_of,
)
from .whole_rows import is_in_one_call

# A last axis up to so long is taken apart (`passes/small_axes.py`): of a block, one entry is there at a time.
SHORT = 8
# What is so many times smaller than the value that a stream grows around may exist, than one coordinate of it if its
# last axis is no longer than `COORDINATES`. A mask of bytes is as large, of scores with a few columns more, too: behind
# the scores of all keys a softmax may have the one of a sink.
NEARLY_AS_LARGE = 5
COORDINATES = 32
LEAST_BLOCKS = 4
# What must be gone of the memory that the equations take, and how much slower they may be predicted to become.
FEWER_BYTES = 2
SLOWER = 1.0
# What leaves so little may be predicted a little slower: a prediction is no better than that.
MUCH_FEWER_BYTES = 8
NEARLY_AS_FAST = 1.1
# The same of sums over the coordinates of longer points: the whole, taken apart, stores sums that plain JAX does not.
# (A centred kernel alignment of 2,500 to 8,192 points of 16 and 24 numbers: 1.14 to 1.21 predicted, 1.02 to 1.12 taken,
# 0.84 to 1.01 of plain JAX's, in 1/10 to 1/57 of its memory; as a whole in 1.5 times as much.)
NEARLY_AS_FAST_APART = 1.25
# What takes so much memory may not run at all otherwise: then it may be so much slower.
HUGE = 4 << 30
SLOWER_THAN_HUGE = 4.0
# From this depth on a product takes much longer than it takes to write its result.
DEEP = 128
# A product with so many vectors has little for a library to share: of 100,000 points in 16 dimensions and 64 means, a
# soft k-means took 1.3 to 0.8 of plain JAX's time, in 3 dimensions 0.8 to 0.45, in 32 dimensions 1.7 to 1.1.
FEW_VECTORS = 32
# So many cores are few.
FEW_CORES = 2
# The same along an axis of examples: what is left is cut along another one then.
FEWER_EXAMPLES = 1.3
SLOWER_EXAMPLES = 1.1


@record
class Sizes:
    """From which sizes on values are large, by what their stream holds, and how large blocks are.

    Attributes:
        least_bytes: a value of this size no longer stays in a cache.
        at_any_price: whether all that is so large is taken, whatever time is predicted.
        few_cores: whether hardly more cores share a whole product than share that of a block.
    """

    least_bytes: int = 16 << 20
    at_any_price: bool = False
    few_cores: bool = False

    def least_with(self, products: Sequence[JaxprEqn], gathers: bool = False) -> int:
        """The size from which on a stream with these products of matrices, or with large gathers, is taken.

        Several cores share a large product better than one block after the other, and batches of them better still
        (four cores, scores of attention of 256 MiB: 0.6 to 0.9 of plain JAX's time in one matrix, 0.8 to 1.4 in 16).
        So do they with a gather (windows of a series, 26 MB of places: up to 2). Two cores hardly do: scores of 64 MiB
        took 0.5 to 0.75, in one matrix or in 64, but for deep products, which are less of a matter of memory (of a
        depth of 512: 0.8 to 1.2).
        """
        if self.at_any_price or not (products or gathers):
            return self.least_bytes
        shapes = [dot_shape(eqn) for eqn in products]
        if self.few_cores and not gathers:
            depth = max(min(sizes) for _, *sizes in shapes)
            return self.least_bytes * min(16, max(4, 4 * depth // DEEP))
        return self.least_bytes * min(64, 16 * max((batch for batch, *_ in shapes), default=1))

    def block_bytes(self, products: Sequence[JaxprEqn], in_no_memory: bool = False) -> int:
        """What the largest value of a block may take: several cores share a product that has many rows.

        What is in no memory may take all that a value of a block may: a call of a library costs the same for less.
        """
        if in_no_memory:
            return self.least_bytes
        return self.least_bytes // (4 if products else 8)


def sizes_of(machine: Machine, memory_limit: int | None = None) -> Sizes:
    """The sizes for a machine: elsewhere than on a CPU only what might not fit is cut.

    On an H100 blocks of all pairs took 1.06 to 1.9 of plain JAX's time (docs/reference/gpu.md).

    Under a limit on memory that a program would break, what takes a quarter of it is cut at any price.
    """
    least = Sizes().least_bytes if machine.name == "cpu" else 2 * HUGE
    few = machine.name == "cpu" and _jax.usable_cores() <= FEW_CORES
    if memory_limit is None:
        return Sizes(least, few_cores=few)
    return Sizes(min(least, memory_limit // 4), at_any_price=True)


@record
class Form:
    """What a stream becomes."""

    stream: Stream
    size: int
    edit: Edit
    peak_bytes_saved: int
    seconds: float
    looked_at: frozenset[Var]


@record
class Left:
    """Why nothing is done around a value, and the values of which that is known now."""

    reason: str
    looked_at: frozenset[Var]


def written(level: Level, least_bytes: int, machine: Machine) -> list[Var]:
    """The values that are written to memory and no longer in a cache when they are read, the largest first.

    Products and what is sorted are, and on a CPU what XLA calls the C library for; so is what has a reader that does
    not fuse, or several of which one reduces it.
    """
    found, called = [], VECTOR_SECONDS if machine.name == "cpu" else {}
    sums = _made_of_sums(level)
    for eqn in level.eqns:
        for v in eqn.outvars:
            if isinstance(v, DropVar) or nbytes(v.aval) < least_bytes:
                continue
            readers = level.readers(v)
            reads = any(_reads_memory(level, k, sums) for k in readers)
            if not _fuses(eqn) or eqn.primitive.name in called or len(readers) > 1 or reads:
                found.append(v)
    return sorted(found, key=lambda v: -nbytes(v.aval))


def _fuses(eqn: JaxprEqn) -> bool:
    """Whether what an equation makes is a part of the one kernel that reads it; single rows that are joined are."""
    return is_light(eqn) or joined_axis(eqn) is not None


def _made_of_sums(level: Level) -> set[Var]:
    """What sums over short axes make, and light equations of that entry by entry: kernels of distances, say.

    Of points with up to 32 coordinates the differences are in no memory: then their sums would be (`short_axes.py`).
    """
    found: set[Var] = set()
    for eqn in level.eqns:
        if len(eqn.outvars) != 1 or eqn.primitive.name not in LIGHT:
            continue
        (out,), size = eqn.outvars, eqn.outvars[0].aval.size
        if eqn.primitive.name in REDUCTIONS:
            is_made_of_sums = eqn.invars[0].aval.size <= SHORT * size or _sums_longer_points(level, eqn)
        else:
            is_made_of_sums = any(is_var(x) and x in found and x.aval.size == size for x in eqn.invars)
        if is_made_of_sums:
            found.add(out)
    return found


def _sums_longer_points(level: Level, eqn: JaxprEqn) -> bool:
    """Whether an equation sums more coordinates than a short axis has, of what is in no memory.

    Taken apart as a whole, as it is where no stream is, its result would be stored.
    """
    if eqn.primitive.name != "reduce_sum":
        return False
    *rest, last = eqn.invars[0].aval.shape
    return (
        tuple(eqn.params["axes"]) == (len(rest),) and SHORT < last <= LONGEST_AMPLIFIED and is_in_no_memory(level, eqn)
    )


def _reads_memory(level: Level, place: int, sums: Collection[Var] = ()) -> bool:
    """Whether an equation (the results, at -1) reads its operands from memory.

    Sums of what is no float do. A reduction of `sums` over short axes, or of what is made of these, does not, and is
    as slow as if it did, or slower: the mean of a Gaussian kernel of points takes four times as long as in blocks.
    """
    eqn = level.eqns[place]
    if place >= 0 and is_sum_of_products(eqn):  # XLA sums up what it makes entry by entry
        return False
    if place < 0 or eqn.primitive.name not in LIGHT:
        return True
    reduced = eqn.invars[0]
    return eqn.primitive.name in REDUCTIONS and (reduced in sums or not is_float(reduced.aval.dtype))


def best(level: Level, seed: Var, taken: frozenset[int], context: Context, sizes: Sizes, inside: bool) -> Form | Left:
    """The form around `seed` that is predicted to cost least; or why there is none that pays.

    `taken` are the places of equations that belong to other streams; `inside` says whether the level is a block of a
    stream itself.
    """
    may_be_whole = not inside and _is_for_library(context, sizes) and nbytes(seed.aval) <= HUGE
    if may_be_whole and is_reduced_at_once(level, seed):
        return Left("the call that makes it reduces it, and stores nothing", frozenset((seed,)))
    if may_be_whole and is_in_one_call(level, seed) and seed not in _made_of_sums(level):
        return Left("the call that sums up what is made of it makes it, too, and stores nothing", frozenset((seed,)))
    nearly = _bytes_of_entry(seed, COORDINATES) // NEARLY_AS_LARGE
    found = _best_of(level, seed, nearly, taken, context, sizes, inside)
    if nearly <= sizes.least_bytes or group_of(level, seed, nearly) == group_of(level, seed, sizes.least_bytes):
        return found
    # What is much smaller is large, too: the distances, beside as many functions of each. But a mask that all heads
    # share is in no stream of heads: there it would be written for all of them.
    wider = _best_of(level, seed, sizes.least_bytes, taken, context, sizes, inside)
    loses = isinstance(wider, Left) or (isinstance(found, Form) and not found.edit.gone <= wider.edit.gone)
    return found if loses else wider


def _is_for_library(context: Context, sizes: Sizes) -> bool:
    """Whether XLA hands reductions to a library; a gradient that is to come would keep what they reduce."""
    return context.platform == "cpu" and not (context.before_differentiation or sizes.at_any_price)


def _best_of(
    level: Level, seed: Var, least_bytes: int, taken: frozenset[int], context: Context, sizes: Sizes, inside: bool
) -> Form | Left:
    """The same where values of `least_bytes` or more around it should not exist."""
    large, touching = group_of(level, seed, least_bytes)
    looked_at = frozenset((seed,))
    if any(level.eqns[k].ctx.compute_type for k in touching):
        return Left("`compute_on` puts it elsewhere", large)
    scope = scope_of(level, touching) - taken
    found: Form | Left | None = None
    for dim in range(len(seed.aval.shape)):
        if seed.aval.shape[dim] == 1:
            continue
        stream = _grown(level, large, scope, seed, Axis(dim), _monoids(context))
        looked_at |= stream.where.keys()
        small = _too_short(stream) or (None if inside else _too_small(stream, seed, sizes))
        form = _form(stream, seed, context, sizes) if small is None else Left(small, frozenset(stream.where))
        if isinstance(form, Form) and stream.is_of_examples:
            found = form
            break  # each is a smaller problem of the same kind, with products as large as they were
        if found is None or (isinstance(form, Form) and (isinstance(found, Left) or form.seconds < found.seconds)):
            found = form
    found = found or Left("it has one entry", looked_at)
    return replace(found, looked_at=found.looked_at | looked_at)


def _grown(
    level: Level, large: frozenset[Var], scope: frozenset[int], seed: Var, axis: Axis, reduced: frozenset[str] | None
) -> Stream:
    """The stream, which makes again in each block what is large and shared by all, if that is cheap.

    A bias by distance that a few heads share is a quarter of their scores.
    """
    stream = grow(level, large, scope, seed, axis, reduced)
    whole = (x for k, reason in stream.refusals.items() if reason == WHOLE for x in level.eqns[k].invars if is_var(x))
    shared = frozenset(x for x in whole if x in large and x not in stream.where and x.aval.size < seed.aval.size)
    if not shared:
        return stream
    found = grow(level, large - shared, scope, seed, axis, reduced)
    return found if all(made_again(found, x, 1) for x in shared) else stream


def _too_short(stream: Stream) -> str | None:
    """Why a stream of coordinates is left as it is: each of them is nearly as large as all."""
    return "its axis is short" if stream.length <= SHORT and not stream.is_of_examples else None


def _too_small(stream: Stream, seed: Var, sizes: Sizes) -> str | None:
    """Why a stream with products of matrices, or with large gathers, is left as it is."""
    products, gathers = _products(stream), _gathers(stream, sizes)
    least = sizes.least_with(products, gathers)
    if nbytes(seed.aval) >= least:
        return None
    what = "products of matrices" if products else "large gathers"
    return f"with {what} in it, it would have to take {least / 1e6:.0f} MB"


def _monoids(context: Context) -> frozenset[str] | None:
    """The names of those that may combine blocks; None: all."""
    if Exactness.REASSOCIATES not in context.allowed:
        return frozenset(ORDERLESS)
    return frozenset({"add"}) if context.before_differentiation else None


def _form(stream: Stream, seed: Var, context: Context, sizes: Sizes) -> Form | Left:
    level = stream.level
    looked_at = frozenset(stream.where)
    if not stream.answers:
        return Left("no equation runs along one of its axes", looked_at)
    uncertain = [reason for place, reason in stream.refusals.items() if place in stream.answers]
    if uncertain:
        return Left(uncertain[0], looked_at)
    maker = level.made_by[seed]
    if maker not in stream.answers:
        return Left(
            f"it exists anyway: {stream.refusals.get(maker, 'what makes it is no part of a stream')}", looked_at
        )
    if stream.crossing:
        k = next(k for v in stream.crossing for k in level.readers(v) if not stream.reads_blocks(k, v))
        why = stream.refusals.get(k, "something reads the whole") if k >= 0 else "it is a result"
        return Left(f"it exists anyway: {why}", looked_at)
    if any(read_outside(stream, v) for place in stream.answers for v in made_whole(stream, place)):
        return Left("each block would make something that is read as a whole", looked_at)
    in_no_memory = _is_for_library(context, sizes) and is_stored_by_none(stream)
    size = block_size(stream, seed, sizes, in_no_memory)
    edit = stream_loops(stream, size, context.before_differentiation)
    read = dict.fromkeys(v for k in stream.answers for v in level.eqns[k].outvars if read_outside(stream, v))
    whole = _alone(level, [level.eqns[k] for k in sorted(stream.answers)], list(read))
    is_taken_apart = any(_sums_longer_points(level, level.eqns[k]) for k in stream.answers)
    if is_taken_apart:
        whole = _taken_apart(whole, context)
    old = _cost(whole, context)
    loops = _alone(level, edit.eqns, [edit.results[v] for v in read])
    new = _cost(_taken_apart(loops, context), context)
    taken = max(old.peak_bytes, nbytes(seed.aval))  # the seed is written, though the model sees it fused
    fewer, slower = (FEWER_EXAMPLES, SLOWER_EXAMPLES) if stream.is_of_examples else (FEWER_BYTES, SLOWER)
    slower = max(slower, SLOWER_THAN_HUGE) if taken > HUGE else slower
    would_be_left = new.peak_bytes + sum(nbytes(v.aval) for v in loops.invars if _is_written_for(stream, v))
    if would_be_left * MUCH_FEWER_BYTES <= taken:
        slower = max(slower, NEARLY_AS_FAST_APART if is_taken_apart else NEARLY_AS_FAST)
    if would_be_left * fewer > taken and not sizes.at_any_price:
        left = f"of the {taken / 1e6:.1f} MB of memory that it takes {would_be_left / 1e6:.1f} MB would be left"
        return Left(left, looked_at)
    if new.seconds > slower * old.seconds and not sizes.at_any_price:
        return Left(f"it would take {1e3 * new.seconds:.1f} ms instead of {1e3 * old.seconds:.1f} ms", looked_at)
    return Form(stream, size, edit, max(0, old.peak_bytes - new.peak_bytes), new.seconds, looked_at)


def _taken_apart(loops: Jaxpr, context: Context) -> Jaxpr:
    """Loops over blocks as they will be: with short axes taken apart."""
    if not acts(context):
        return loops
    return rewrite_levels(ClosedJaxpr(loops, ()), lambda one: entry_by_entry(one, context)[0]).jaxpr


def seconds_in_blocks(jaxpr: Jaxpr, context: Context) -> float:
    """What a program with loops over blocks is predicted to take."""
    return _cost(_taken_apart(jaxpr, context), context).seconds


def _is_written_for(stream: Stream, v: Var) -> bool:
    """Whether a value that the blocks read is in memory for them only: a part of a `stack`, all of it one kernel."""
    level = stream.level
    if v not in level.made_by:
        return False
    others = [k for k in level.readers(v) if k not in stream.answers]
    return _fuses(level.eqns[level.made_by[v]]) and not any(_reads_memory(level, k) for k in others)


@record
class _Cost:
    seconds: float
    peak_bytes: int


def _alone(level: Level, eqns: Sequence[JaxprEqn], outs: Sequence[Atom]) -> Jaxpr:
    """What equations of a level, or new ones, compute, as a program of its own."""
    made = {v for eqn in eqns for v in eqn.outvars}
    read = dict.fromkeys(x for eqn in eqns for x in eqn.invars if is_var(x) and x not in made)
    return drop_dead(_jax.new_jaxpr(level.jaxpr, list(read), list(outs), list(eqns), ()))


def _cost(jaxpr: Jaxpr, context: Context) -> _Cost:
    return _Cost(jaxpr_seconds(jaxpr, with_vector_code(context.machine)), jaxpr_cost(jaxpr).peak_bytes)


def block_size(stream: Stream, seed: Var, sizes: Sizes, in_no_memory: bool = False) -> int:
    """How many indices a block holds: its largest value stays in a cache; the last block is whole if that is near.

    What searches look for is kept of each block: no more of them than indices in one.
    """
    products = _products(stream)
    longest = SHORT if products else LONGEST_AMPLIFIED
    per_index = max(_bytes_of_entry(v, longest) for v in stream.large) // stream.length
    most_bytes = min(sizes.block_bytes(products, in_no_memory), nbytes(seed.aval) // LEAST_BLOCKS)
    least_blocks = 2 if stream.is_of_examples else LEAST_BLOCKS
    fitting = max(most_bytes // max(1, per_index), math.isqrt(stream.length) if stream.searches else 1)
    most = max(1, min(stream.length // least_blocks, fitting))
    return next((b for b in range(most, max(1, most // 2), -1) if stream.length % b == 0), most)


def _products(stream: Stream) -> list[JaxprEqn]:
    return [eqn for k in stream.answers if _is_product(eqn := stream.level.eqns[k])]


def _gathers(stream: Stream, sizes: Sizes) -> bool:
    eqns = (stream.level.eqns[k] for k in stream.answers)
    return any(eqn.primitive.name == "gather" and nbytes(eqn.outvars[0].aval) >= sizes.least_bytes for eqn in eqns)


def _is_product(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product of matrices, not of one with few vectors nor of points in space.

    With few vectors, as the weights of a mixture with points in space, memory decides; so it does of few coordinates,
    which take as long as their product takes to be written.
    """
    if eqn.primitive.name != "dot_general":
        return False
    _, m, n, k = dot_shape(eqn)
    return min(m, n) > FEW_VECTORS and k > SHORT


def _bytes_of_entry(v: Var, longest: int) -> int:
    """The bytes of one entry along the last axis, if that is no longer."""
    shape = v.aval.shape
    return nbytes(v.aval) // (shape[-1] if shape and 0 < shape[-1] <= longest else 1)
