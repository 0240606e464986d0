"""Which sites of a region run inside the loop: a minimum cut over what must then cross its border."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, JaxprEqn, Var

from .axes import Mapped, Reduced
from .centered import MOMENTS, SOFTMAX
from .cost import Machine, equation_seconds, jaxpr_seconds, nbytes
from .cost.primitives import DEAR
from .cost.vector_code import is_vector_search
from .cut import SINK, SOURCE, Graph
from .dear import repeated_seconds
from .delays import seconds_to_delay
from .entrywise_sums import summed_by_entry
from .level import Level
from .loop import is_float
from .program import is_var
from .region import Joined, Region, Site, is_view, stacked_reads
from .searched import is_searched

# What a moved site costs beyond its arithmetic, so that nothing moves for nothing.
MOVE_SECONDS = 1e-9
# An element of a reduction over leading axes only, on CPU, beyond reading it from memory, which no cache makes faster:
# 0.05 to 0.3 ns measured (jaxlib 0.10.2) where what is left takes at most so many bytes, 2 to 10 ns where it is larger.
COLUMN_SECONDS = 1e-10
COLUMN_BYTES = 2**16
LONG_COLUMN_SECONDS = 2e-9
# An element of a one-pass variance or logsumexp, beyond the two-pass one.
CENTERED_SECONDS = 1e-10
# An element of a one-pass logsumexp whose values are stacked as well, beyond its accumulators: 0.5 to 0.8 ns measured
# of steps of 1,000 to 16,000 entries, less what its exponential takes after the loop.
ONLINE_SECONDS = 3e-10
# Accumulators of a reduction that read the value, where it is more than one.
ACCUMULATORS = {MOMENTS: 2, SOFTMAX: 2, "max ties": 2, "min ties": 2, "argmax": 2, "argmin": 2}
# What the accumulators of a reduction around a late center hold as well: see `fusion.HELD`.
HOLDS = {MOMENTS: "add", SOFTMAX: "max", "max ties": "max", "min ties": "min"}
# Kernels of a step that reduces its own values, beyond the first: XLA sums in stages, and what it gets is written. For
# moments there are so many that the step's kernels run as tasks (jaxlib 0.10.2: from 9 on, 1 us a step measured).
STEP_KERNELS, MOMENT_KERNELS = 2, 10
# Values of a region that are smaller than this as a whole need no loop of their own; blocks are at most this large.
SMALLEST_STREAM = 4 * 2**20
BLOCK_BYTES = 2 * 2**20
# How small a block is beside the whole: a sixteenth, or as large as what is there in any case (the stack that it is
# made of; the sum that each block of a gradient adds to), but no more than a quarter.
BLOCKS_FOR_MEMORY = 16
FEWEST_BLOCKS = 4
# A step of a loop of blocks, besides its products and reductions: copies of what it reads, kernels over few numbers.
SECONDS_PER_BLOCK = 5e-6
# What XLA does not fuse into its neighbours: it reads and writes whole arrays.
UNFUSED = frozenset(
    "dot_general conv_general_dilated sort cumsum cumprod cummax cummin cumlogsumexp fft cholesky lu qr eigh "
    "triangular_solve scatter-add scatter gather scan while cond random_bits threefry2x32 random_split random_fold_in "
    "random_gamma".split()
)
# On CPU, XLA's kernels for sums and maxima (jaxlib 0.10.2, "ynn_fusion") take in what feeds them if it is arithmetic on
# floats, and not these: the whole operand is written and read.
REDUCTIONS = frozenset("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin".split())
NOT_SUMMED = frozenset("eq ne lt le gt ge is_finite and or not xor select_n clamp rem atan2 sin cos tan".split())


@dataclass(frozen=True)
class Plan:
    """Sites of a region that move, in program order, and the predicted time of all that depends on the choice."""

    region: Region
    sites: list[Site]
    seconds: float
    searched: frozenset[int] = frozenset()  # the sites that look for the place of a maximum in few of the steps
    by_entry: frozenset[int] = frozenset()  # the sites that are accumulated entry by entry, and reduced after the loop
    flat: bool = False  # whether accumulators of short rows are kept in one dimension


def choose(level: Level, region: Region, machine: Machine, before_differentiation: bool = False) -> Plan:
    """The best plan for a region; no sites when nothing pays."""
    if not region.sites:
        return Plan(region, [], 0.0)
    machine = machine.on_one_core()  # blocks are as long as sharing their work among cores wants: see `block_length`
    graph = _graph(level, region, machine)
    taken = graph.taken()
    seconds = graph.cost(taken)
    if region.block is not None:
        # the loop's outputs exist, whatever is done with them
        seconds += sum(seconds_to_cross(region, y, machine) for y in region.loop.ys if level.readers(y))
    sites = [site for site in region.sites if site.index in taken]
    searched = frozenset(site.index for site in sites if is_searched(site, machine))
    # The gradient of a sum by entry would carry an entry for each through the backward loop.
    by_entry = frozenset[int]() if before_differentiation else summed_by_entry(region, sites, machine)
    # Elsewhere the rows may be tiled, or lie on several devices.
    flat = machine.name == "cpu" and not level.over_devices
    return Plan(region, sites, seconds, searched, by_entry, flat)


def is_product(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product of matrices, which is slow for few rows."""
    return eqn.primitive.name in ("dot_general", "conv_general_dilated")


def block_length(region: Region, machine: Machine) -> int | None:
    """How many steps at a time the sites of a region run best in a loop of their own; None if that cannot pay.

    It can where a product of few rows stands in the region: a block has more. Of the lengths that keep a block small,
    the one with the least predicted time.
    """
    products = [site for site in region.sites if is_product(site.eqn)]
    stacked = [v for site in products for v in site.eqn.outvars if v in region.stacked]
    largest = max((nbytes(v.aval) for v in stacked), default=0)
    if largest < SMALLEST_STREAM:
        return None
    length = region.loop.length
    sums = any(isinstance(site.answer, Reduced) for site in products)
    kept = largest if sums else sum(nbytes(y.aval) for y in region.loop.ys)
    limit = min(BLOCK_BYTES, max(largest // BLOCKS_FOR_MEMORY, min(kept, largest // FEWEST_BLOCKS)))
    fitting = [k for k in range(1, length) if length % k == 0 and k * largest <= limit * length]
    alone = machine.on_one_core()
    kernels = [(_elements(site), equation_seconds(site.eqn, alone)) for site in region.sites if _is_kernel(site.eqn)]
    summed = sum(nbytes(v.aval) for site in region.sites if isinstance(site.answer, Reduced) for v in site.eqn.outvars)
    each = SECONDS_PER_BLOCK + 2 * summed / machine.cache_bytes_per_second
    return min(fitting, key=lambda k: (_seconds_of_blocks(length // k, each, kernels, machine), -k), default=None)


def _is_kernel(eqn: JaxprEqn) -> bool:
    """Whether what computes an equation is no part of another one's kernel."""
    return is_product(eqn) or eqn.primitive.name in REDUCTIONS


def _elements(site: Site) -> int:
    """How many numbers the kernel of a site goes over, of all steps."""
    reads = [x for x, place in zip(site.reads, site.places, strict=True) if place is not None]
    made = site.eqn.outvars if isinstance(site.answer, Mapped) else []
    return max(x.aval.size for x in (*reads, *made))


def _seconds_of_blocks(blocks: int, each: float, kernels: Sequence[tuple[int, float]], machine: Machine) -> float:
    """Time of a loop of so many blocks: `each` for every block, and kernels by elements and by seconds on one core.

    A kernel over many elements is shared among cores. Where its part of a block is little work, that takes longer than
    the work: small blocks on one core are then faster than larger ones on all (16 steps of 65,000 logits took twice
    the time of 32 steps of 33,000).
    """
    total = blocks * each
    for elements, seconds in kernels:
        is_shared = elements > blocks * machine.shared_elements
        total += blocks * machine.seconds_to_share + seconds / machine.cores if is_shared else seconds
    return total


def _graph(level: Level, region: Region, machine: Machine) -> Graph:
    """A node for each site and each value; taking a site means that it runs inside."""
    graph = Graph()
    by_index = {site.index: site for site in region.sites}
    in_chain = {k: site.index for site in region.sites for k in site.chain}
    made_by: dict[Var, int] = {v: site.index for site in region.sites for v in site.eqn.outvars}
    again = repeated_seconds(region, machine)
    for value in region.stacked:
        _add_value(graph, region, value, by_index.get(made_by.get(value, -1)), machine, again.get(value, 0.0))
        for reader in level.readers(value):
            site = by_index.get(in_chain.get(reader, reader))
            graph.implies(value, SINK if site is None else site.index)
    for site in region.sites:
        graph.edge(site.index, SINK, MOVE_SECONDS + seconds_more_inside(region, site, machine))
        graph.edge(site.index, SINK, seconds_to_delay(site, machine))
        graph.edge(SOURCE, site.index, seconds_to_reduce(level, site, machine))
        if isinstance(site.answer, Reduced):
            reads = sum(again.get(x, 0.0) for x in site.reads if is_var(x))
            graph.edge(site.index, SINK, reads * ACCUMULATORS.get(site.answer.monoid.name, 1))
        if isinstance(site.answer, (Mapped, Joined)):
            for v in site.eqn.outvars:
                if v in region.stacked and _is_written(level, site, level.readers(v), machine):
                    graph.edge(SOURCE, site.index, seconds_to_cross(region, v, machine))
        for value in stacked_reads(region, site):
            if value in made_by:
                graph.implies(site.index, made_by[value])
    _add_accumulators(graph, region, machine)
    return graph


def _add_value(graph: Graph, region: Region, value: Var, maker: Site | None, machine: Machine, again: float) -> None:
    """What it costs that a value crosses the border of the loop; `again` is the time to have it once more."""
    if maker is not None and is_view(region, maker):
        graph.implies(maker.reads[0], value)  # what crosses is the whole
    elif maker is not None or region.block is None:
        node = SOURCE if maker is None else maker.index
        rows = region.steps * machine.seconds_per_step_kernel if machine.name == "cpu" else 0.0  # elsewhere they fuse
        seconds = seconds_to_cross(region, value, machine) + seconds_to_turn(region, value, machine)
        graph.edge(node, value, seconds + rows + again)


def _add_accumulators(graph: Graph, region: Region, machine: Machine) -> None:
    """What reductions cost in the steps if what they read is stacked as well: once where they share accumulators."""
    if machine.name != "cpu":  # a reduction is one more result of the kernel that makes what it reads
        return
    shared: dict[tuple[Var, Hashable], list[Site]] = {}
    for site in region.sites:
        x = site.reads[0]
        if not isinstance(site.answer, Reduced) or site.eqn.primitive.name not in REDUCTIONS:
            continue
        if is_var(x) and x in region.stacked:
            name = site.answer.monoid.name
            shared.setdefault((x, (HOLDS.get(name, name), site.eqn.params["axes"], site.window)), []).append(site)
    for held, sites in shared.items():
        graph.edge(held, held[0], max(seconds_beside_a_stack(site, machine) for site in sites))
        for site in sites:
            graph.implies(site.index, held)


def _fuses(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name not in UNFUSED


def _is_written(level: Level, site: Site, readers: Sequence[int], machine: Machine) -> bool:
    """Whether a result is written to memory as a whole when it is made outside: something that does not fuse reads it.

    Reshapes write nothing, nor do casts to a weak type, which what a loop stacks never has.
    """
    name, out = site.eqn.primitive.name, site.eqn.outvars[0].aval
    is_recast = name == "convert_element_type" and site.eqn.invars[0].aval.dtype == out.dtype
    if is_recast or name in ("reshape", "squeeze", "expand_dims"):
        return False
    if not _fuses(site.eqn) or any(k == -1 or not _fuses(level.eqns[k]) for k in readers):
        return True
    return _written_to_reduce(site.eqn, machine) and any(level.eqns[k].primitive.name in REDUCTIONS for k in readers)


def _written_to_reduce(eqn: JaxprEqn, machine: Machine) -> bool:
    """Whether a reduction of what `eqn` makes is a kernel of its own that reads it from memory."""
    if machine.name != "cpu":
        return False
    dtypes = [x.aval.dtype for x in (*eqn.invars[:1], *eqn.outvars)]
    return eqn.primitive.name in NOT_SUMMED or not all(map(is_float, dtypes))


def stacked_bytes(value: Var) -> int:
    """Bytes of a value of the region when it exists as a whole."""
    return nbytes(value.aval)


def seconds_to_cross(region: Region, value: Var, machine: Machine) -> float:
    """Time to write a value step by step and read it once after the loop."""
    size = nbytes(value.aval)
    speed = machine.bytes_per_second if size > machine.cache_bytes else machine.cache_bytes_per_second
    return 2 * size / speed + machine.seconds_per_kernel


def seconds_to_turn(region: Region, value: Var, machine: Machine) -> float:
    """Time to put together what the steps make of a value in which other dimensions come before time: a copy."""
    axis = region.stacked[value].axis
    if axis.outer * int(np.prod(value.aval.shape[: axis.dim])) == 1:
        return 0.0
    return 2 * nbytes(value.aval) / machine.bytes_per_second


def seconds_to_reduce(level: Level, site: Site, machine: Machine) -> float:
    """Time to reduce a value over time after the loop: reading it, and slowly where other dimensions are kept."""
    if not isinstance(site.answer, Reduced) or not is_var(site.reads[0]):
        return 0.0
    if site.eqn.primitive.name == "dot_general":
        steps = site.window.count * jaxpr_seconds(step_program(site).jaxpr, machine)
        return max(0.0, equation_seconds(site.eqn, machine) - steps)
    if not _fuses(site.eqn):
        return 0.0
    aval, out = site.reads[0].aval, site.eqn.outvars[0].aval
    keeps_columns = machine.name == "cpu" and out.size > 1
    is_cached = nbytes(aval) <= machine.cache_bytes and not keeps_columns
    speed = machine.cache_bytes_per_second if is_cached else machine.bytes_per_second
    seconds = nbytes(aval) / speed
    if keeps_columns:
        seconds += aval.size * (LONG_COLUMN_SECONDS if nbytes(out) > COLUMN_BYTES else COLUMN_SECONDS)
    operand = site.eqn.invars[0]
    if site.late and is_var(operand):
        maker, readers = level.eqns[level.made_by[operand]], level.readers(operand)
        if _written_to_reduce(maker, machine) or (maker.primitive.name in DEAR and len(readers) > 1):
            seconds += 2 * nbytes(operand.aval) / speed
    return seconds


def _searches_slowly(site: Site) -> bool:
    """Whether a site is an `argmax` or `argmin` that stays scalar code in a step."""
    if site.eqn.primitive.name not in ("argmax", "argmin"):
        return False
    (x,), (axis,) = site.reads, site.eqn.params["axes"]
    return not is_vector_search(x.aval.dtype, x.aval.size // site.window.count, x.aval.shape[axis])


def seconds_more_inside(region: Region, site: Site, machine: Machine) -> float:
    """How much slower the steps of a site are than the whole of it: nothing for what fuses, much for small products."""
    if not isinstance(site.answer, (Mapped, Reduced)):
        return 0.0
    steps = site.window.count
    if isinstance(site.answer, Reduced) and site.late:
        # its kernels are those of its centre, a reduction of the same values
        return sum(x.aval.size for x in site.reads if is_var(x)) * CENTERED_SECONDS
    if isinstance(site.answer, Mapped) and machine.name == "cpu" and region.block is None and _searches_slowly(site):
        # scalar code: many steps at once run on several cores (measured: 1.6 to 2 times faster on four)
        return equation_seconds(site.eqn, machine) / 2
    if _fuses(site.eqn):
        return seconds_of_reductions(site, machine)
    if isinstance(site.answer, Reduced) and _only_multiplies(site):
        # no product of matrices: each step goes once over the accumulator
        return steps * 3 * nbytes(site.eqn.outvars[0].aval) / machine.cache_bytes_per_second
    whole = equation_seconds(site.eqn, machine)
    return max(0.0, steps * jaxpr_seconds(step_program(site).jaxpr, machine) - whole)


def seconds_of_reductions(site: Site, machine: Machine) -> float:
    """Time for the kernels of a site that sums up the values of each step; what is summed over time alone fuses."""
    if not isinstance(site.answer, Reduced) or _is_over_time(site):
        return 0.0
    return site.window.count * machine.seconds_per_step_kernel


def seconds_beside_a_stack(site: Site, machine: Machine) -> float:
    """Time by which a reduction is slower in the steps if what it reads is stacked as well: it then fuses with nothing.

    Over time alone, a kernel for each accumulator reads a step's values, and reads and writes it; the next step waits
    until it has started and ended (0.1 to 0.2 us measured). Within a step, partial sums are several kernels more.
    """
    assert isinstance(site.answer, Reduced)
    name, aval = site.answer.monoid.name, site.reads[0].aval
    if not _is_over_time(site):
        more = MOMENT_KERNELS if name in (MOMENTS, SOFTMAX) else STEP_KERNELS
        return more * site.window.count * machine.seconds_per_step_kernel
    each = 3 * nbytes(aval) / machine.cache_bytes_per_second
    each += 2 * site.window.count * machine.seconds_per_step_kernel
    return ACCUMULATORS.get(name, 1) * each + (aval.size * ONLINE_SECONDS if name == SOFTMAX else 0.0)


def _is_over_time(site: Site) -> bool:
    """Whether one step of a reduction reduces nothing."""
    return site.reads[0].aval.size <= site.window.count * site.eqn.outvars[0].aval.size


def _only_multiplies(site: Site) -> bool:
    """Whether one step of a contraction over time sums nothing."""
    if site.eqn.primitive.name != "dot_general":
        return False
    (contracted, _), _ = site.eqn.params["dimension_numbers"]
    shape, place = site.eqn.invars[0].aval.shape, site.places[0]
    return place is not None and place.is_plain and all(d == place.dim or shape[d] == 1 for d in contracted)


def step_program(site: Site) -> ClosedJaxpr:
    """One step of a site as a program of its blocks."""
    answer = site.answer
    assert isinstance(answer, (Mapped, Reduced))
    avals = [
        x.aval if place is None else x.aval.update(shape=place.resize(x.aval.shape, 1))
        for x, place in zip(site.reads, site.places, strict=True)
    ]
    return _jax.trace_small(lambda *blocks: list(answer.block(np.int32(0), 1, *blocks)), avals)
