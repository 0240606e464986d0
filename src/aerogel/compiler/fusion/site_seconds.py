"""What the sites of a region cost: inside the loop, after it, and on the way from the one to the other."""

import math

import numpy as np

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, JaxprEqn, Var

from ..axes import Mapped, Reduced
from ..cost import Machine, equation_seconds, jaxpr_seconds, nbytes
from ..cost.primitives import DEAR
from ..cost.seconds import transposed_seconds
from ..cost.vector_code import is_vector_search
from ..cost.work import dot_shape
from ..level import Level
from ..loop import Loop, is_float
from ..program import is_var
from .centered import SOFTMAX
from .moments import MOMENTS
from .region import Region, Site
from .searched import is_searched

# An element of a reduction over axes before one that is left, on CPU, beyond reading it from memory, which no cache
# makes faster: 0.05 to 0.3 ns measured (jaxlib 0.10.2) where what is left behind them takes at most so many bytes, 2 to
# 10 ns where it is larger.
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
# An element of a step that reduces its own values, up to steps of so many bytes: 0.2 to 0.8 ns measured (steps of 64 to
# 2,048 numbers, jaxlib 0.10.2). Kernels of larger steps run beside each other, and nothing waits for the sum.
STEP_SECONDS = 3e-10
SHORT_STEP_BYTES = 2**14
# Kernels of a step that reduces its own values, beyond the first: XLA sums in stages, and what it gets is written. For
# moments there are so many that the step's kernels run as tasks (jaxlib 0.10.2: from 9 on, 1 us a step measured).
STEP_KERNELS, MOMENT_KERNELS = 2, 10
JOIN_KERNELS = 5  # of products around a mean
# A step with a product of a stack of so many bytes, which XLA's library shares among threads that sleep while XLA's own
# work: a head of 64 x 2,048 with its cross-entropy took 100 us a step of 16 rows, 40 a step for all 32 steps at once.
# Of 16 terms steps took as long as all at once (0.61 and 0.64 of plain JAX's time), of 32 to 128 1.3 to 1.5 times.
LEAST_SHARED, FEWEST_TERMS, WAKING_SECONDS = 1 << 21, 32, 5e-5
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


def seconds_to_give(x: Var, machine: Machine) -> float:
    """Time to write a value from outside in the order of the steps, which read it at another place than the first."""
    return transposed_seconds(x.aval.size, x.aval.dtype.itemsize, machine)


def seconds_to_reduce(level: Level, site: Site, machine: Machine) -> float:
    """Time to reduce a value over time after the loop: reading it, and slowly where other dimensions are kept."""
    if not isinstance(site.answer, Reduced) or not is_var(site.reads[0]):
        return 0.0
    if site.eqn.primitive.name == "dot_general":
        return max(0.0, -_seconds_of_products(site, machine))
    if not fuses(site.eqn):
        return 0.0
    aval, out = site.reads[0].aval, site.eqn.outvars[0].aval
    behind = _kept_behind(site)
    keeps_columns = machine.name == "cpu" and behind > 1
    is_cached = nbytes(aval) <= machine.cache_bytes and not keeps_columns
    speed = machine.cache_bytes_per_second if is_cached else machine.bytes_per_second
    seconds = nbytes(aval) / speed
    if keeps_columns:
        seconds += aval.size * (LONG_COLUMN_SECONDS if behind * out.dtype.itemsize > COLUMN_BYTES else COLUMN_SECONDS)
    operand = site.eqn.invars[0]
    if site.late and is_var(operand):
        maker, readers = level.eqns[level.made_by[operand]], level.readers(operand)
        if is_written_to_reduce(maker, machine) or (maker.primitive.name in DEAR and len(readers) > 1):
            seconds += 2 * nbytes(operand.aval) / speed
    return seconds


def _kept_behind(site: Site) -> int:
    """How many entries a reduction keeps for each place in front of what it reduces: 1 where that comes last."""
    shape, axes = site.reads[0].aval.shape, site.eqn.params.get("axes")
    if not axes or max(axes) >= len(shape):
        return site.eqn.outvars[0].aval.size
    return math.prod(n for d, n in enumerate(shape) if d > min(axes) and d not in axes)


def seconds_more_inside(region: Region, site: Site, machine: Machine) -> float:
    """How much slower the steps of a site are than the whole of it: nothing for what fuses, much for small products."""
    if not isinstance(site.answer, (Mapped, Reduced)):
        return 0.0
    steps = site.window.count
    if isinstance(site.answer, Reduced) and site.late and fuses(site.eqn):
        # its kernels are those of its centre, a reduction of the same values
        return sum(x.aval.size for x in site.reads if is_var(x)) * CENTERED_SECONDS
    if isinstance(site.answer, Mapped) and machine.name == "cpu" and region.block is None and _searches_slowly(site):
        # scalar code: many steps at once run on several cores (measured: 1.6 to 2 times faster on four)
        return equation_seconds(site.eqn, machine) / 2
    if fuses(site.eqn):
        return seconds_of_reductions(site, machine)
    if is_put(region.loop, site):
        return steps * machine.seconds_per_step_kernel
    if isinstance(site.answer, Reduced) and _only_multiplies(site):
        # no product of matrices: each step goes once over the accumulator, in a kernel of its own
        each = 3 * nbytes(site.eqn.outvars[0].aval) / machine.cache_bytes_per_second
        return steps * (each + (machine.seconds_per_step_kernel if machine.name == "cpu" else 0.0))
    return max(0.0, _seconds_of_products(site, machine))


def _seconds_of_products(site: Site, machine: Machine) -> float:
    """How much longer the steps of a product take than the whole of it; below zero where they are faster."""
    assert isinstance(site.answer, (Mapped, Reduced))
    step, whole = jaxpr_seconds(step_program(site).jaxpr, machine), equation_seconds(site.eqn, machine)
    if site.late:
        # Each step joins its products to the accumulators; the distances from a center are written for the product.
        out = nbytes(site.eqn.outvars[0].aval)
        speed = machine.bytes_per_second if out >= machine.cache_bytes else machine.cache_bytes_per_second
        step += 3 * out / speed + JOIN_KERNELS * machine.seconds_per_step_kernel
        around = {x for x in site.eqn.invars if is_var(x) and x not in site.reads}
        whole += sum(2 * nbytes(x.aval) for x in around) / machine.bytes_per_second
    elif isinstance(site.answer, Mapped) and machine.name == "cpu" and _jax.usable_cores() > 1:
        step += WAKING_SECONDS * _wakes_threads(site.eqn)
    return site.window.count * step - whole


def _wakes_threads(product: JaxprEqn) -> bool:
    """Whether XLA's library wakes threads in each step that makes a part of a product."""
    large = nbytes(product.outvars[0].aval) >= LEAST_SHARED
    return large and product.primitive.name == "dot_general" and dot_shape(product)[-1] >= FEWEST_TERMS


def is_put(loop: Loop, site: Site) -> bool:
    """Whether each step puts what it has of a site into the whole, in place."""
    has_place = isinstance(site.answer, Reduced) and site.answer.onto is not None
    return has_place and site.window.is_all(loop.length)


def seconds_of_reductions(site: Site, machine: Machine) -> float:
    """Time for the kernels of a site that sums up the values of each step; what is summed over time alone fuses."""
    if isinstance(site.answer, Mapped):
        is_kernel = machine.name == "cpu" and site.eqn.primitive.name in REDUCTIONS
    else:
        is_kernel = isinstance(site.answer, Reduced) and not _is_over_time(site)
    if not is_kernel:
        return 0.0
    return site.window.count * machine.seconds_per_step_kernel


def seconds_of_short_steps(site: Site, machine: Machine) -> float:
    """Time for summing up the entries of short steps in a kernel of its own, besides that kernel."""
    aval = site.reads[0].aval
    short = nbytes(aval) <= site.window.count * SHORT_STEP_BYTES
    return 0.0 if not short or _is_over_time(site) or is_searched(site, machine) else aval.size * STEP_SECONDS


def seconds_of_second(site: Site, machine: Machine) -> float:
    """Time by which another sum in short steps takes longer than the first one, which is fused with the step."""
    seconds = seconds_of_short_steps(site, machine)
    return seconds + STEP_KERNELS * site.window.count * machine.seconds_per_step_kernel if seconds else 0.0


def seconds_beside_a_stack(site: Site, machine: Machine) -> float:
    """Time by which a reduction is slower in the steps if what it reads is stacked as well: it then fuses with nothing.

    Over time alone, a kernel for each accumulator reads a step's values, and reads and writes it; the next step waits
    until it has started and ended (0.1 to 0.2 us measured). Within a step, partial sums are several kernels more.
    """
    assert isinstance(site.answer, Reduced)
    name, aval = site.answer.monoid.name, site.reads[0].aval
    if not _is_over_time(site):
        more = MOMENT_KERNELS if name in (MOMENTS, SOFTMAX) else STEP_KERNELS
        return more * site.window.count * machine.seconds_per_step_kernel + seconds_of_short_steps(site, machine)
    each = 3 * nbytes(aval) / machine.cache_bytes_per_second
    each += 2 * site.window.count * machine.seconds_per_step_kernel
    return ACCUMULATORS.get(name, 1) * each + (aval.size * ONLINE_SECONDS if name == SOFTMAX else 0.0)


def fuses(eqn: JaxprEqn) -> bool:
    """Whether XLA computes an equation in one kernel with its neighbours."""
    return eqn.primitive.name not in UNFUSED


def is_written_to_reduce(eqn: JaxprEqn, machine: Machine) -> bool:
    """Whether a reduction of what `eqn` makes is a kernel of its own that reads it from memory."""
    if machine.name != "cpu":
        return False
    dtypes = [x.aval.dtype for x in (*eqn.invars[:1], *eqn.outvars)]
    return eqn.primitive.name in NOT_SUMMED or not all(map(is_float, dtypes))


def _searches_slowly(site: Site) -> bool:
    """Whether a site is an `argmax` or `argmin` that stays scalar code in a step."""
    if site.eqn.primitive.name not in ("argmax", "argmin"):
        return False
    (x,), (axis,) = site.reads, site.eqn.params["axes"]
    return not is_vector_search(x.aval.dtype, x.aval.size // site.window.count, x.aval.shape[axis])


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
