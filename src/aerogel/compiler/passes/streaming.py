"""Streaming: what is large inside a formula only is computed block by block, and need not exist.

Around the large values of a program a stream is grown along each axis they have (`streams.py`); the one that is
predicted to cost least, if any pays, becomes loops over blocks (`streaming.py`).
"""

from dataclasses import dataclass

from aerogel._jax import Jaxpr, Var

from ..axes import Axis
from ..components import LONGEST
from ..cost import Machine, jaxpr_seconds, nbytes
from ..cost.account import jaxpr_cost
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..report import Decision
from ..spread import is_spread
from ..streaming import stream_loops
from ..streams import Stream, clusters, grow, scope_of

NAME = "streaming"
# A value this large no longer stays in a cache. Smaller ones are left as they are.
LEAST_BYTES = 16 << 20
# Of the largest value, what a block may hold.
BLOCK_BYTES = int(__import__("os").environ.get("BB","2")) << 20
# What must be gone of the memory that the equations take, and how much slower they may be predicted to become.
FEWER_BYTES = 4
SLOWER = 1.0


@dataclass(frozen=True)
class Streaming:
    """The pass. Bound: each group of large values is looked at once, along each of its axes."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its large values in blocks, and a decision for each group of them."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


@dataclass(frozen=True)
class _Form:
    stream: Stream
    size: int
    edit: Edit
    peak_bytes: int
    seconds: float


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    level = Level(jaxpr, context.over_devices)
    edits: list[Edit] = []
    for values, _ in clusters(level, LEAST_BYTES):
        seed = max(values, key=lambda v: (nbytes(v.aval), -level.made_by[v]))
        least = max(LEAST_BYTES, nbytes(seed.aval) // 4)
        ((large, touching),) = [one for one in clusters(level, least) if seed in one[0]]
        found = _best(level, large, touching, seed, context)
        decisions.append(_decision(level, seed, found))
        if isinstance(found, _Form):
            edits.append(found.edit)
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _best(
    level: Level, large: frozenset[Var], touching: frozenset[int], seed: Var, context: Context
) -> "_Form | str":
    """The form that is predicted to cost least; or why there is none that pays."""
    scope = scope_of(level, touching)
    if any(is_spread(level.eqns[k], context.over_devices) for k in touching):
        return "its values are spread over devices"
    if any(level.eqns[k].ctx.compute_type for k in touching):
        return "`compute_on` puts it elsewhere"
    strict = Exactness.REASSOCIATES not in context.allowed
    reduced = frozenset[str]() if strict else frozenset({"add"}) if context.before_differentiation else None
    best: _Form | None = None
    reason = "no axis runs through all of it"
    for dim in range(len(seed.aval.shape)):
        if seed.aval.shape[dim] < 2 * FEWER_BYTES:
            continue
        stream = grow(level, large, scope, seed, Axis(dim), reduced)
        form = _form(stream, seed, context)
        if isinstance(form, str):
            reason = form
        elif best is None or form.seconds < best.seconds:
            best = form
    return reason if best is None else best


def _form(stream: Stream, seed: Var, context: Context) -> "_Form | str":
    level = stream.level
    if stream.crossing:
        k = next(k for v in stream.crossing for k in level.readers(v) if not stream.reads_blocks(k, v))
        why = stream.refusals.get(k, "it reads the whole") if k >= 0 else "it is a result"
        return f"a large value exists anyway: {why}"
    size = block_size(stream, seed)
    before = [level.eqns[k] for k in sorted(stream.answers)]
    edit = stream_loops(stream, size, context.before_differentiation)
    old, new = _seconds(stream, before, context.machine), _seconds(stream, edit.eqns, context.machine)
    return _Form(stream, size, edit, new[1], new[0]) if new[1] * FEWER_BYTES <= old[1] and new[0] <= SLOWER * old[0] else (
        f"{old[1] / 1e6:.1f} MB would become {new[1] / 1e6:.1f} MB, {1e3 * old[0]:.1f} ms {1e3 * new[0]:.1f} ms"
    )


def _seconds(stream: Stream, eqns: list, machine: Machine) -> tuple[float, int]:
    made = {v for eqn in eqns for v in eqn.outvars}
    read = dict.fromkeys(x for eqn in eqns for x in eqn.invars if not hasattr(x, "val") and x not in made)
    outs = _results(stream, eqns)
    from aerogel import _jax

    jaxpr = _jax.new_jaxpr(stream.level.jaxpr, list(read), outs, list(eqns), ())
    return jaxpr_seconds(jaxpr, machine), jaxpr_cost(jaxpr).peak_bytes


def _results(stream: Stream, eqns: list) -> list:
    level = stream.level
    return [
        v
        for eqn in eqns
        for v in eqn.outvars
        if any(k not in stream.answers for k in level.readers(v))
    ]


def block_size(stream: Stream, seed: Var) -> int:
    """How many indices a block holds: its largest value stays in a cache, and the last block is whole if that is near."""
    per_index = max(_bytes_of_component(v) for v in stream.large) // stream.length
    most = max(1, min(stream.length // FEWER_BYTES, BLOCK_BYTES // max(1, per_index)))
    return next((b for b in range(most, max(1, most // 2), -1) if stream.length % b == 0), most)


def _bytes_of_component(v: Var) -> int:
    shape = v.aval.shape
    return nbytes(v.aval) // (shape[-1] if 0 < shape[-1] <= LONGEST else 1)


def _decision(level: Level, seed: Var, found: "_Form | str") -> Decision:
    eqn = level.eqns[level.made_by[seed]]
    what = f"{seed.aval.str_short(True)} of `{eqn.primitive.name}`"
    if isinstance(found, str):
        return Decision(NAME, what, where(eqn), False, found)
    return Decision(NAME, f"{what} is made {found.size} at a time", where(eqn), True, "it need not exist as a whole",
                    bytes_saved=2 * nbytes(seed.aval), peak_bytes_saved=nbytes(seed.aval), exactness=Exactness.REASSOCIATES)
