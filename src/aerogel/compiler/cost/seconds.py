"""Estimated time of equations and programs on a machine.

The estimate serves to order two forms of one computation, not to predict a clock. A kernel takes the larger of its
memory time and its arithmetic time, plus the price of starting it. Memory time knows one thing of caches: a
value no larger than the cache moves at the cache's speed, and a slice moves as what it is a slice of.
"""

import math
import weakref
from dataclasses import replace
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Literal

from ..kept import Kept
from ..record import record
from .account import (
    ASSUMED_TRIPS,
    body_kernels,
    carry_slice,
    equation_kernels,
    forwarded_bytes,
    jaxpr_cost,
    nested_programs,
    note_cost,
    total,
)
from .alike import kind_of
from .few import step_bytes
from .flat import open_jaxpr
from .kernels import Kernel
from .machine import Machine
from .primitives import CUMULATIVE, ELEMENTWISE_FLOPS, LINALG, RANDOM, REDUCE, UPDATE, WINDOWS, Kind
from .sizes import elements, nbytes
from .sums_in_place import without_sums_in_place
from .work import (
    copied_operands,
    dot_shape,
    equation_flops,
    is_outer_product,
    is_sum_of_products,
    matrices,
    update_operand,
)

HIGHEST = (lax.Precision.HIGHEST, (lax.Precision.HIGHEST, lax.Precision.HIGHEST))
# A last axis shorter than this leaves most of a vector register empty.
SHORT_AXIS = 16
ROW = 16  # columns of a product of one row, from which on its columns fill registers
FEW_TERMS = 8
ROW_CALL = 0.2  # of the time of a batched product's call that such a one takes
# What stands in the steps of a loop that may be one kernel.
SHAPING = "broadcast_in_dim reshape squeeze expand_dims transpose slice concatenate pad rev iota".split()
STEPS_OF_FEW = frozenset(
    (*ELEMENTWISE_FLOPS, *REDUCE, *SHAPING, "dot_general", "convert_element_type", "copy", "dynamic_slice")
)
STEPS_OF_FEW_IN_PLACE = STEPS_OF_FEW | {"dynamic_update_slice"}
# Where rows are carried beside the array that they are written into, XLA counts up to 1.22 of what we do. Of a loop
# that it does not take for one, a step would be kernels: 0.2 us in place of 0.03.
UNCERTAIN = 1.25


def jaxpr_seconds(jaxpr: Any, machine: Machine) -> float:
    """Seconds that one call of the program takes, without dispatch. Linear in its size."""
    jaxpr = open_jaxpr(jaxpr)
    return _body_seconds(jaxpr, slice(0, 0), machine, 0) + _fresh_seconds(jaxpr_cost(jaxpr).peak_bytes, machine)


def equation_seconds(eqn: JaxprEqn, machine: Machine) -> float:
    """Seconds that one equation takes when it runs alone; a `scan` takes length * (step price + body)."""
    kind = kind_of(eqn)
    if kind is None:
        return _seconds_alone(eqn, machine)
    seconds = _known.get((machine, kind))
    return _known.put((machine, kind), _seconds_alone(eqn, machine)) if seconds is None else seconds


_known = Kept[float](4096)


def _seconds_alone(eqn: JaxprEqn, machine: Machine) -> float:
    found = equation_kernels(eqn)
    seconds = sum(kernel_seconds(kernel, machine) for kernel in found)
    return seconds + _fresh_seconds(total(found).peak_bytes, machine)


def kernel_seconds(kernel: Kernel, machine: Machine) -> float:
    """Seconds of one kernel, with its start."""
    eqn = kernel.root
    inner = nested_programs(eqn)
    if kernel.kind is Kind.LOOP:
        return _loop_seconds(eqn, inner, machine)
    if inner:
        return machine.seconds_per_small_kernel + max(_body_seconds(p, slice(0, 0), machine, 0) for p in inner)
    moved = kernel.reads + kernel.writes
    memory = sum(transfer_seconds(amount, home, machine) for amount, home in moved)
    arithmetic = sum(_arithmetic_seconds(e, machine) for e in kernel.fused) + _arithmetic_seconds(eqn, machine)
    small = sum(amount for amount, _ in moved) <= machine.small_kernel_bytes
    start = machine.seconds_per_small_kernel if small else machine.seconds_per_kernel
    return start + max(memory, arithmetic) + machine.call_seconds.get(eqn.primitive.name, 0.0)


def dot_seconds(batch: int, m: int, n: int, k: int, dtype: Any, machine: Machine) -> float:
    """Arithmetic time of a matrix product, without the memory's.

    Thin products run below gemm's speed: few rows or columns leave registers empty (a matrix-vector product then is
    bound by reading the matrix), a short contraction does not repay loading the result. A product in a loop's step is
    mostly too small for more than one core, that of all steps is not.
    """
    flops = 2 * batch * m * n * k
    if not flops:
        return 0.0
    if m * n * k <= 27:  # XLA writes loops for these itself, without a call per matrix
        return flops / (0.2 * machine.vector_flops_per_second)
    thin = min(m, n)
    rate = machine.flops_per_second * machine.gemm_scale.get(getattr(dtype, "name", ""), 1.0)
    rate *= thin / (thin + machine.gemm_half_rows) * k / (k + machine.gemm_half_depth)
    if n <= 4 and k <= 4:
        rate = min(rate, machine.tiny_flops_per_second)
    if getattr(dtype, "kind", "") == "c":
        rate /= 4
    # A row of few terms is made in a plain loop, without a call: with 2 x 80 numbers in 30 ns each, with 8 x 80 in 80,
    # where 80 rows of two numbers with a vector take 190 (512 of each, two cores, jaxlib 0.10.2).
    in_loop = m == 1 and n >= ROW and k <= FEW_TERMS
    each = machine.seconds_per_batched_dot * (ROW_CALL if in_loop else 1.0)
    alone = flops / rate + (batch * each if batch > 1 else 0.0)
    return min(alone, machine.seconds_to_share + alone / machine.cores)


_seconds: weakref.WeakKeyDictionary[Jaxpr, dict[Any, float]] = weakref.WeakKeyDictionary()


def _body_seconds(jaxpr: Jaxpr, owned: slice, machine: Machine, length: int) -> float:
    """Seconds of a nested program; `length` > 0: what follows the `owned` arguments and results is stacked."""
    known = _seconds.setdefault(jaxpr, {})
    key = (owned.start, owned.stop, machine, length)
    if key not in known:
        homes = _stacked_homes(jaxpr, owned, length) if length else None
        found = body_kernels(jaxpr, owned, homes)
        known[key] = sum(kernel_seconds(kernel, machine) for kernel in found)
        note_cost(jaxpr, owned, found)  # where its values lie changes the time alone
    return known[key]


def _stacked_homes(body: Jaxpr, carry: slice, length: int) -> dict[Any, int]:
    stacked = [*body.invars[carry.stop :], *body.outvars[carry.stop - carry.start :]]
    own = {v for eqn in body.eqns for v in eqn.outvars} | set(body.invars[carry.stop :])
    return {v: length * nbytes(v.aval) for v in stacked if not isinstance(v, Literal) and v in own}


def _loop_seconds(eqn: JaxprEqn, inner: list[Jaxpr], machine: Machine) -> float:
    carry = carry_slice(eqn)
    if eqn.primitive.name == "while":
        step = _body_seconds(inner[1], carry, machine, 0) + _body_seconds(inner[0], slice(0, 0), machine, 0)
        return ASSUMED_TRIPS * (machine.seconds_per_loop_step + step)
    length = eqn.params["length"]
    length = length if isinstance(length, int) else ASSUMED_TRIPS
    few = _seconds_of_few(inner[0], carry, machine)
    if few is not None:
        return length * few
    step = _body_seconds(inner[0], carry, machine, length)
    copied = forwarded_bytes(inner[0], _jax.scan_counts(eqn.params)[1])
    step += 2 * transfer_seconds(copied, copied * length, machine)
    return length * (machine.seconds_per_loop_step + step)


def moves_few(scan: JaxprEqn, machine: Machine) -> bool:
    """Whether the steps of a `scan` move so few bytes that XLA makes one kernel of it."""
    (body,) = nested_programs(scan)
    return _seconds_of_few(body, carry_slice(scan), machine) is not None


@record
class Launches:
    """What a step of a `scan` starts, and how long that runs, the starts apart.

    Attributes:
        nested: whether a step holds loops or branches; how long those run, `seconds` does not say.
    """

    count: int
    seconds: float
    nested: bool


def step_launches(scan: JaxprEqn, machine: Machine) -> Launches:
    """The kernels of a step, copies of what it stacks as it is or carries besides, and the one that counts steps."""
    (body,) = nested_programs(scan)
    carry = carry_slice(scan)
    homes = _stacked_homes(body, carry, scan.params["length"])
    found = body_kernels(body, carry, homes)
    carried = {v for v in body.outvars[: carry.stop - carry.start] if not isinstance(v, Literal)}
    own = {v for eqn in body.eqns for v in eqn.outvars}
    stacked = body.outvars[carry.stop - carry.start :]
    copied = sum(isinstance(v, Literal) or v in carried or v not in own for v in stacked)
    free = replace(machine, seconds_per_kernel=0.0, seconds_per_small_kernel=0.0)
    nested = any(nested_programs(kernel.root) for kernel in found)
    seconds = 0.0 if nested else sum(kernel_seconds(kernel, free) for kernel in found)
    return Launches(len(found) + copied + 1, seconds, nested)


def _seconds_of_few(body: Jaxpr, carry: slice, machine: Machine) -> float | None:
    """Seconds of a step that moves few bytes, where such a loop is one kernel: nothing is started; else None."""
    if not machine.one_kernel_bytes or not STEPS_OF_FEW_IN_PLACE.issuperset(eqn.primitive.name for eqn in body.eqns):
        return None
    known = _seconds.setdefault(body, {})
    key = (carry.start, carry.stop, machine, "few")
    if key not in known:
        rest, carries, written = without_sums_in_place(body, carry.start, carry.stop - carry.start)
        moved = step_bytes(rest, carry.start, carries) * (UNCERTAIN if written else 1.0)
        widest = max((elements(eqn.outvars[0].aval) for eqn in rest.eqns), default=0)
        is_one = moved < machine.one_kernel_bytes and widest <= machine.unrolled_elements
        is_one = is_one and STEPS_OF_FEW.issuperset(eqn.primitive.name for eqn in rest.eqns)
        seconds = sum(_seconds_in_one_kernel(eqn, machine) for eqn in rest.eqns)
        known[key] = machine.seconds_per_step_of_few + seconds if is_one else float("nan")
    return None if math.isnan(known[key]) else known[key]


def _seconds_in_one_kernel(eqn: JaxprEqn, machine: Machine) -> float:
    if eqn.primitive.name == "dot_general":
        batch, m, n, k = dot_shape(eqn)
        return batch * m * n * k * machine.seconds_per_term_of_few
    price = machine.element_seconds.get(eqn.primitive.name)
    if price is not None:
        return price * _units(eqn, machine) * _width(eqn)
    return equation_flops(eqn) * _width(eqn) / machine.vector_flops_per_second


def transfer_seconds(amount: int, home: int, machine: Machine) -> float:
    """Seconds that it takes to move so many bytes of a value of `home` bytes."""
    fits = home <= machine.cache_bytes
    return amount / (machine.cache_bytes_per_second if fits else machine.bytes_per_second)


def _fresh_seconds(allocated: int, machine: Machine) -> float:
    return allocated * machine.seconds_per_fresh_byte if allocated > machine.fresh_bytes else 0.0


def _arithmetic_seconds(eqn: JaxprEqn, machine: Machine) -> float:
    name = eqn.primitive.name
    price = machine.element_seconds.get(name)
    if name == "dot_general" and not is_sum_of_products(eqn) and not is_outer_product(eqn):
        copied = sum(transposed_seconds(elements(a), a.dtype.itemsize, machine) for a in copied_operands(eqn))
        dtype, precision = eqn.invars[0].aval.dtype, eqn.params["precision"]
        if precision in HIGHEST and dtype.name == "float32":
            machine = machine.at_highest_precision()
        return dot_seconds(*dot_shape(eqn), dtype, machine) + copied
    if name == "conv_general_dilated":
        return _conv_seconds(eqn, machine)
    if name in LINALG:
        return _linalg_seconds(eqn, machine)
    if price is not None:
        return price * _units(eqn, machine) * _width(eqn)
    flops = equation_flops(eqn)
    if not flops:
        return 0.0
    if "ragged" in name or "scaled" in name:
        return flops / machine.flops_per_second
    if (name in REDUCE or is_sum_of_products(eqn)) and _reduces_short_axis(eqn):
        return max(flops / machine.vector_flops_per_second, machine.short_axis_seconds * elements(eqn.invars[0].aval))
    return flops * _width(eqn) / machine.vector_flops_per_second


def transposed_seconds(count: int, itemsize: int, machine: Machine) -> float:
    """Seconds that a transposed copy of so many elements takes."""
    size = count * itemsize
    return count * machine.element_seconds.get("transpose", 0.0) + 2 * transfer_seconds(size, size, machine)


def merged_seconds(count: int, machine: Machine) -> float:
    """Seconds that XLA takes more to write an outer product of so many elements with several dimensions as one."""
    alone = count * machine.merged_axes_seconds
    return min(alone, machine.seconds_to_share + alone / machine.cores)


def _units(eqn: JaxprEqn, machine: Machine) -> float:
    name = eqn.primitive.name
    if name == "sort":
        return equation_flops(eqn)
    if name in ("gather", "scatter-add"):
        return _by_rows(eqn, machine)
    if name in UPDATE:
        return elements(eqn.invars[update_operand(name)].aval)
    if name in ELEMENTWISE_FLOPS or name in RANDOM or name in WINDOWS:
        return elements(eqn.outvars[0].aval)
    assert name in CUMULATIVE or name in REDUCE or name == "top_k", f"no unit for the price of {name}"
    return elements(eqn.invars[0].aval)


def _by_rows(eqn: JaxprEqn, machine: Machine) -> float:
    """Elements that are gathered, or added by a scatter: in a row in one piece those after the first are cheaper."""
    numbers, rank = eqn.params["dimension_numbers"], eqn.invars[0].aval.ndim
    if eqn.primitive.name == "gather":
        whole, windows, alone = eqn.outvars[0].aval, numbers.offset_dims, numbers.collapsed_slice_dims
    else:
        whole, windows, alone = eqn.invars[2].aval, numbers.update_window_dims, numbers.inserted_window_dims
    in_one_piece = rank - 1 not in {*alone, *numbers.operand_batching_dims}
    row = math.prod(whole.shape[d] for d in windows) if in_one_piece else 1
    rows = elements(whole) / max(1, row)
    return rows + (elements(whole) - rows) * machine.row_scale


def _width(eqn: JaxprEqn) -> float:
    """How many times longer than f32 an element takes: half as many 8-byte elements fit a register."""
    dtype = getattr(eqn.outvars[0].aval, "dtype", None) if eqn.outvars else None
    return max(1.0, getattr(dtype, "itemsize", 4) / 4)


def _reduces_short_axis(eqn: JaxprEqn) -> bool:
    shape = eqn.invars[0].aval.shape
    axes = eqn.params["dimension_numbers"][0][0] if eqn.primitive.name == "dot_general" else eqn.params.get("axes", ())
    return bool(shape) and len(shape) - 1 in axes and math.prod(shape[a] for a in axes) < SHORT_AXIS


def _conv_seconds(eqn: JaxprEqn, machine: Machine) -> float:
    kernel, numbers = eqn.invars[1].aval, eqn.params["dimension_numbers"]
    channels = kernel.shape[numbers.rhs_spec[1]]
    rate = machine.flops_per_second * channels / max(1.0, channels + machine.conv_half_channels)
    if eqn.params["feature_group_count"] > 1 and channels < SHORT_AXIS:
        rate = machine.flops_per_second * machine.depthwise_scale
    return equation_flops(eqn) / max(rate, 1.0)


def _linalg_seconds(eqn: JaxprEqn, machine: Machine) -> float:
    count, rows, columns = matrices(eqn)
    size = min(rows, columns)
    rate = machine.flops_per_second * size / (size + machine.lapack_half_size)
    rate *= machine.gemm_scale.get(eqn.invars[0].aval.dtype.name, 1.0)
    return count * machine.seconds_per_matrix + (equation_flops(eqn) / rate if rate else 0.0)
