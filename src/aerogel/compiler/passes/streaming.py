"""Streaming: what is large inside a formula only is computed block by block, and need not exist.

Around the large values of a program a stream is grown along each axis they have (`streams.py`); the one that is
predicted to cost least, if any pays, becomes loops over blocks (`streaming.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from aerogel import _jax
from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var

from ..axes import Axis
from ..canonical import canonical
from ..components import LONGEST, REDUCTIONS
from ..cost import Machine, jaxpr_seconds, nbytes
from ..cost.account import jaxpr_cost
from ..cost.work import dot_shape
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import is_float
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, inner_jaxprs, is_var, where
from ..report import Decision
from ..spread import is_spread
from ..streaming import stream_loops
from ..streams import LIGHT, ORDERLESS, Stream, group_of, grow, read_outside, scope_of

NAME = "streaming"
# A value this large no longer stays in a cache. Smaller ones are left as they are.
LEAST_BYTES = 16 << 20
# The same where products of matrices are in it, and where these are batched: several cores share a large product better
# than one block after the other (measured with 2 and 4 cores: 0.6 to 1.4 of plain JAX's time).
LEAST_PRODUCT_BYTES = 256 << 20
LEAST_BATCHED_BYTES = 1 << 30
# What is so many times smaller than the value that a stream grows around may exist.
NEARLY_AS_LARGE = 4
# Of the largest value, what a block may hold.
BLOCK_BYTES = 2 << 20
# The same where a product of matrices is among the equations, which several cores share if it has many rows.
PRODUCT_BYTES = 8 << 20
LEAST_BLOCKS = 4
# What must be gone of the memory that the equations take, and how much slower they may be predicted to become.
FEWER_BYTES = 2
SLOWER = 1.0
# The same along an axis of examples: what is left is cut along another one then.
FEWER_EXAMPLES = 1.3
SLOWER_EXAMPLES = 1.1


@dataclass(frozen=True)
class Streaming:
    """The pass. Bound: a level is looked at once, each large value of it once along each of its axes."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its large values in blocks, and a decision for each group of them."""
        walk = _Walk(context)
        return rewrite_levels(program, walk.level), walk.decisions


@dataclass
class _Walk:
    """One walk over the levels of a program."""

    context: Context
    decisions: list[Decision] = field(default_factory=list)
    ours: set[Var] = field(default_factory=set)  # what the bodies of our own loops make

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        """A level with its large values in blocks; the same object if none is."""
        if not any(nbytes(v.aval) >= LEAST_BYTES for eqn in jaxpr.eqns for v in eqn.outvars):
            return jaxpr
        inside = any(v in self.ours for eqn in jaxpr.eqns for v in eqn.outvars)
        level = Level(canonical(jaxpr), self.context.over_devices)
        edits: list[Edit] = []
        seen: set[Var] = set()  # values that were looked at, or belong to a stream
        taken: set[int] = set()  # equations that do
        for seed in _written(level):
            if seed in seen:
                continue
            found = _best(level, seed, frozenset(taken), self.context, inside)
            self.decisions.append(_decision(level, seed, found))
            seen.update(found.looked_at)
            if isinstance(found, Form):
                edits.append(found.edit)
                taken |= found.edit.gone
        if not edits:
            return jaxpr
        new, _ = apply_edits(level.jaxpr, edits)
        self.ours.update(v for eqn in new.eqns if eqn.primitive.name == "scan" for v in _made_in(eqn))
        return new


def _made_in(scan: JaxprEqn) -> Iterator[Var]:
    return (v for inner in inner_jaxprs(scan) for eqn in inner.eqns for v in eqn.outvars)


@dataclass(frozen=True)
class Form:
    """What a stream becomes."""

    stream: Stream
    size: int
    edit: Edit
    peak_bytes_saved: int
    seconds: float
    looked_at: frozenset[Var]


@dataclass(frozen=True)
class Left:
    """Why nothing is done around a value, and the values of which that is known now."""

    reason: str
    looked_at: frozenset[Var]


def _written(level: Level) -> list[Var]:
    """The values that are written to memory and no longer in a cache when they are read, the largest first.

    Products and what is sorted are; so is what has a reader that does not fuse, or several of which one reduces it.
    """
    found = []
    for eqn in level.eqns:
        for v in eqn.outvars:
            if isinstance(v, DropVar) or nbytes(v.aval) < LEAST_BYTES:
                continue
            readers = level.readers(v)
            if eqn.primitive.name not in LIGHT or len(readers) > 1 or any(_reads_memory(level, k) for k in readers):
                found.append(v)
    return sorted(found, key=lambda v: -nbytes(v.aval))


def _reads_memory(level: Level, place: int) -> bool:
    """Whether an equation (the results, at -1) reads its operands from memory: sums of what is no float do, too."""
    eqn = level.eqns[place]
    if place < 0 or eqn.primitive.name not in LIGHT:
        return True
    return eqn.primitive.name in REDUCTIONS and not is_float(eqn.invars[0].aval.dtype)


def _best(level: Level, seed: Var, taken: frozenset[int], context: Context, inside: bool) -> "Form | Left":
    """The form around `seed` that is predicted to cost least; or why there is none that pays."""
    large, touching = group_of(level, seed, nbytes(seed.aval) // NEARLY_AS_LARGE)
    looked_at = frozenset((seed,))
    if any(is_spread(level.eqns[k], context.over_devices) for k in touching):
        return Left("its values are spread over devices", large)
    if any(level.eqns[k].ctx.compute_type for k in touching):
        return Left("`compute_on` puts it elsewhere", large)
    scope = scope_of(level, touching) - taken
    best: Form | Left = Left("no axis runs through all that reads it", looked_at)
    for dim in range(len(seed.aval.shape)):
        if seed.aval.shape[dim] == 1:
            continue
        stream = grow(level, large, scope, seed, Axis(dim), _monoids(context))
        looked_at |= stream.where.keys()
        small = None if inside else too_small(stream, seed)
        form = _form(stream, seed, context) if small is None else Left(small, frozenset(stream.where))
        if isinstance(form, Form) and stream.is_of_examples:
            best = form
            break  # each is a smaller problem of the same kind, with products as large as they were
        if isinstance(best, Left) or (isinstance(form, Form) and form.seconds < best.seconds):
            best = form
    return replace(best, looked_at=best.looked_at | looked_at)


def too_small(stream: Stream, seed: Var) -> str | None:
    """Why a stream with products of matrices is left as it is: plain JAX runs whole ones on all cores."""
    products = [eqn for k in stream.answers if _is_product(eqn := stream.level.eqns[k])]
    batched = any(dot_shape(eqn)[0] > 1 for eqn in products)
    least = LEAST_BATCHED_BYTES if batched else LEAST_PRODUCT_BYTES if products else 0
    if nbytes(seed.aval) >= least:
        return None
    return f"with products of matrices in it, it would have to be {least >> 20} MiB large"


def _monoids(context: Context) -> frozenset[str] | None:
    """The names of those that may combine blocks; None: all."""
    if Exactness.REASSOCIATES not in context.allowed:
        return frozenset(ORDERLESS)
    return frozenset({"add"}) if context.before_differentiation else None


def _form(stream: Stream, seed: Var, context: Context) -> "Form | Left":
    level = stream.level
    looked_at = frozenset(stream.where)
    uncertain = [reason for place, reason in stream.refusals.items() if place in stream.answers]
    if uncertain:
        return Left(uncertain[0], looked_at)
    if stream.crossing:
        k = next(k for v in stream.crossing for k in level.readers(v) if not stream.reads_blocks(k, v))
        why = stream.refusals.get(k, "something reads the whole") if k >= 0 else "it is a result"
        return Left(f"it exists anyway: {why}", looked_at)
    size = block_size(stream, seed)
    edit = stream_loops(stream, size, context.before_differentiation)
    read = dict.fromkeys(v for k in stream.answers for v in level.eqns[k].outvars if read_outside(stream, v))
    old = _cost(level, [level.eqns[k] for k in sorted(stream.answers)], list(read), context.machine)
    new = _cost(level, edit.eqns, [edit.results[v] for v in read], context.machine)
    old = replace(old, peak_bytes=max(old.peak_bytes, nbytes(seed.aval)))  # it is written
    fewer, slower = (FEWER_EXAMPLES, SLOWER_EXAMPLES) if stream.is_of_examples else (FEWER_BYTES, SLOWER)
    if new.peak_bytes * fewer > old.peak_bytes:
        left = (
            f"of the {old.peak_bytes / 1e6:.1f} MB of memory that it takes {new.peak_bytes / 1e6:.1f} MB would be left"
        )
        return Left(left, looked_at)
    if new.seconds > slower * old.seconds:
        return Left(f"it would take {1e3 * new.seconds:.1f} ms instead of {1e3 * old.seconds:.1f} ms", looked_at)
    return Form(stream, size, edit, old.peak_bytes - new.peak_bytes, new.seconds, looked_at)


@dataclass(frozen=True)
class _Cost:
    seconds: float
    peak_bytes: int


def _cost(level: Level, eqns: Sequence[JaxprEqn], outs: Sequence[Atom], machine: Machine) -> _Cost:
    """What equations take that compute `outs`."""
    made = {v for eqn in eqns for v in eqn.outvars}
    read = dict.fromkeys(x for eqn in eqns for x in eqn.invars if is_var(x) and x not in made)
    jaxpr = drop_dead(_jax.new_jaxpr(level.jaxpr, list(read), list(outs), list(eqns), ()))
    return _Cost(jaxpr_seconds(jaxpr, machine), jaxpr_cost(jaxpr).peak_bytes)


def block_size(stream: Stream, seed: Var) -> int:
    """How many indices a block holds: its largest value stays in a cache; the last block is whole if that is near."""
    per_index = max(_bytes_of_component(v) for v in stream.large) // stream.length
    most_bytes = PRODUCT_BYTES if any(_is_product(stream.level.eqns[k]) for k in stream.answers) else BLOCK_BYTES
    most_bytes = min(most_bytes, nbytes(seed.aval) // LEAST_BLOCKS)
    least_blocks = 2 if stream.is_of_examples else LEAST_BLOCKS
    most = max(1, min(stream.length // least_blocks, most_bytes // max(1, per_index)))
    return next((b for b in range(most, max(1, most // 2), -1) if stream.length % b == 0), most)


def _is_product(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product of matrices, not of one with a vector nor the outer product of two vectors."""
    if eqn.primitive.name != "dot_general":
        return False
    batch, m, n, k = dot_shape(eqn)
    return min(m, n) > 1 and (k > 1 or batch > 1)


def _bytes_of_component(v: Var) -> int:
    shape = v.aval.shape
    return nbytes(v.aval) // (shape[-1] if 0 < shape[-1] <= LONGEST else 1)


def _decision(level: Level, seed: Var, found: "Form | Left") -> Decision:
    eqn = level.eqns[level.made_by[seed]]
    what = f"{seed.aval.str_short(True)} of `{eqn.primitive.name}`"
    if isinstance(found, Left):
        return Decision(NAME, what, where(eqn), False, found.reason)
    size, saved = found.size, found.peak_bytes_saved
    return Decision(
        NAME,
        f"{what} is made {size} of {found.stream.length} at a time",
        where(eqn),
        True,
        "it need not exist as a whole",
        bytes_saved=2 * saved,
        peak_bytes_saved=saved,
        exactness=found.stream.exactness,
    )
