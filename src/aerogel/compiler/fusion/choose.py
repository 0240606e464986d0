"""Which sites of a region run inside the loop: a minimum cut over what must then cross its border."""

from collections.abc import Hashable, Sequence

from aerogel._jax import JaxprEqn, Var

from ..axes import Mapped, Reduced
from ..cost import Machine, equation_seconds, nbytes
from ..cut import SINK, SOURCE, Graph
from ..level import Level
from ..loop import LoopBuilder
from ..program import is_var
from ..record import record
from .dear import repeated_seconds
from .delays import seconds_to_delay
from .entrywise_sums import summed_by_entry
from .producers import Producers
from .region import Joined, Region, Site, is_view, stacked_reads
from .searched import is_searched
from .site_seconds import (
    ACCUMULATORS,
    HOLDS,
    REDUCTIONS,
    fuses,
    is_written_to_reduce,
    seconds_beside_a_stack,
    seconds_more_inside,
    seconds_of_second,
    seconds_to_cross,
    seconds_to_give,
    seconds_to_reduce,
    seconds_to_turn,
)

# What a moved site costs beyond its arithmetic, so that nothing moves for nothing.
MOVE_SECONDS = 1e-9
# Values of a region that are smaller than this as a whole need no loop of their own; blocks are at most this large.
SMALLEST_STREAM = 4 * 2**20
BLOCK_BYTES = 2 * 2**20
# How small a block is beside the whole: a sixteenth, or as large as what is there in any case (the stack that it is
# made of; the sum that each block of a gradient adds to), but no more than a quarter.
BLOCKS_FOR_MEMORY = 16
FEWEST_BLOCKS = 4
# A step of a loop of blocks, besides its products and reductions: copies of what it reads, kernels over few numbers.
SECONDS_PER_BLOCK = 5e-6


@record
class Plan:
    """Sites of a region that move, in program order, and the predicted time of all that depends on the choice."""

    region: Region
    sites: list[Site]
    seconds: float
    searched: frozenset[int] = frozenset()  # the sites that look for the place of a maximum in few of the steps
    by_entry: frozenset[int] = frozenset()  # the sites that are accumulated entry by entry, and reduced after the loop
    shares: bool = False  # whether kernels of the steps may be shared among threads
    flat: bool = False  # whether accumulators of short rows are kept in one dimension


def choose(level: Level, region: Region, machine: Machine, before_differentiation: bool = False) -> Plan:
    """The best plan for a region; no sites when nothing pays."""
    if not region.sites:
        return Plan(region, [], 0.0, shares=machine.name == "cpu")
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
    return Plan(region, sites, seconds, searched, by_entry, machine.name == "cpu", flat)


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
    _add_turned(graph, level, region, machine)
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
    for k, (held, sites) in enumerate(shared.items()):
        graph.edge(held, held[0], max(seconds_beside_a_stack(site, machine) for site in sites))
        graph.edge(held, SINK, max(seconds_of_second(site, machine) for site in sites) if k else 0.0)
        for site in sites:
            graph.implies(site.index, held)


def _add_turned(graph: Graph, level: Level, region: Region, machine: Machine) -> None:
    """What it costs to give the steps values from outside in which other dimensions come before time."""
    if region.block is not None or machine.name != "cpu":  # blocks are cut out of them; elsewhere a turn is a kernel
        return
    new = LoopBuilder(region.loop.eqn, region.steps, region.loop.reverse)
    producers = Producers(level, new, region.index, shares=True)
    for site in region.sites:
        for x, place in zip(site.reads, site.places, strict=True):
            if place is None or not is_var(x) or x in region.stacked:
                continue
            for turned in producers.turned(x, place):
                node = ("turned", turned)
                graph.implies(site.index, node)
                if (node, SINK) not in graph.edges:
                    graph.edge(node, SINK, seconds_to_give(turned, machine))


def _is_written(level: Level, site: Site, readers: Sequence[int], machine: Machine) -> bool:
    """Whether a result is written to memory as a whole when it is made outside: something that does not fuse reads it.

    Reshapes write nothing, nor do casts to a weak type, which what a loop stacks never has.
    """
    name, out = site.eqn.primitive.name, site.eqn.outvars[0].aval
    is_recast = name == "convert_element_type" and site.eqn.invars[0].aval.dtype == out.dtype
    if is_recast or name in ("reshape", "squeeze", "expand_dims"):
        return False
    if not fuses(site.eqn) or any(k == -1 or not fuses(level.eqns[k]) for k in readers):
        return True
    return is_written_to_reduce(site.eqn, machine) and any(level.eqns[k].primitive.name in REDUCTIONS for k in readers)


def stacked_bytes(value: Var) -> int:
    """Bytes of a value of the region when it exists as a whole."""
    return nbytes(value.aval)
