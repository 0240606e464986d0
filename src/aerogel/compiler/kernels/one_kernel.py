"""Which loops XLA's CPU backend runs faster as one kernel, and such a loop as a call that it makes one of.

XLA starts a kernel for each fused operation of a loop's step, at 30 to 100 ns, and shares the work of a kernel among
threads by a rule that takes little work for much: from some 20 kB of entries on, if there are more operations than
bytes. A Runge-Kutta step of 1,000 trajectories then takes 10 us instead of 3. Its own cure is for loops that move less
than 1 kB in a step: these it compiles as one kernel (`SmallWhileLoopHoistingPass`, jaxlib 0.10.2). We ask for that
where it pays.

What is in such a kernel runs on one core, and is compiled by XLA's older code generator. Library calls are not
possible in it, nor are operations that XLA hands to a library by their size, as products (small ones are written as
sums) and larger reductions: a program with one of these would not compile. What may stand in it is therefore listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import jax
from jax import lax

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import dtype_name
from ..cost import Machine, nbytes
from ..cost.account import body_kernels, carry_slice
from ..cost.kernels import Kernel
from ..cost.primitives import CUMULATIVE, DEAR, REDUCE
from ..cost.seconds import kernel_seconds
from ..cost.sharing import is_worked_on_by_several
from ..cost.work import dot_shape
from ..loop import is_float
from ..program import Builder, copy_equation, count_equations, inner_jaxprs, inner_levels, is_var, substitute
from ..record import record
from ..small_traces import traced
from . import kernel_products, kernel_scatters
from .steps_at_once import steps_at_once

SHAPING = (
    "broadcast_in_dim reshape squeeze expand_dims transpose slice concatenate pad rev iota dynamic_slice "
    "dynamic_update_slice gather clamp bitcast_convert_type split stack unstack tile iota_2x32_shape"
).split()
REDUCTIONS = (REDUCE | CUMULATIVE) - {"reduce", "cumlogsumexp"}  # `reduce` holds a program
WITH_PROGRAMS = "scan while cond jit closed_call eval_jaxpr custom_jvp_call custom_vjp_call".split()
WRITES = frozenset(("dynamic_update_slice", *kernel_scatters.COMBINING))
CAN_STAND = frozenset((*ELEMENTWISE, *SHAPING, *WITH_PROGRAMS))
# XLA gives a library sums and extrema of 4,096 elements (jaxlib 0.10.2).
MOST_REDUCED = 2048
# Together they are one function for LLVM: 10 sums of 100 entries took it 0.8 s instead of 0.2, 20 2.3 s, and 40 9 s.
MOST_REDUCTIONS = 8
MOST_EQUATIONS = 300
TOO_MUCH = "it is too much for one kernel: XLA would take long to compile it"
# Half precision is twice as slow in such a kernel; complex numbers were not looked at.
TYPES = frozenset("float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split())

# Of a step, fitted to 60 loops: what a kernel costs besides its work, what it costs to share one, and by how much
# the older code generator's code may be slower.
SECONDS_PER_KERNEL = 6e-8
SECONDS_TO_SHARE = 2.5e-6
SECONDS_PER_CALL = 5e-7  # of the library, for a product of small matrices
SECONDS_PER_TERM = 2.5e-10  # of such a product as a sum
SLOWER = 0.15
# Functions that the older code generator's code is much slower for (1.6 to 1.9 times), by how much an entry.
SECONDS_MORE = {"tanh": 4e-10, "erf": 3e-10, "expm1": 6e-10, "log1p": 7e-10}
# Of an entry that a search for the largest looks at, across rows: the newer generator looks along them.
SECONDS_MORE_ACROSS = 2e-9
SEARCHES = ("argmax", "argmin")
# Of an entry of what is joined along its last axis of more than two pieces, for each seam: by itself it is a few copies
# of memory, in such a kernel conditions for each entry. Of two, LLVM takes the condition out of the loop, if it is the
# only one (two rolls of rows in 24 x 24 to 40 x 40 entries took 1.2 to 1.5 of the time).
SECONDS_MORE_JOINED, SECONDS_MORE_JOINED_IN_ROWS = 2.5e-10, 1.5e-10
# Of an entry of two paddings that add up to a roll: one of them is of few entries (1,000 took 0.3 us more a step).
SECONDS_MORE_ROLLED = 1.5e-10
FUSED = 4.0  # how much faster an operation is beside others of its kernel than alone, of values in the cache
FEWEST_STEPS = 4
# An array that steps write into is copied into the kernel's own, and back. Of 512 kB that took as long as 2,000 steps
# gained.
MOST_WRITTEN_BYTES = 1 << 17


@record
class Price:
    """What one step of a loop costs, in seconds, besides what it costs both ways.

    Attributes:
        kernels: starting them, and sharing the work of those that XLA shares.
        inside: what one kernel loses by running on one core, and by its code.
    """

    kernels: float
    inside: float


def refusal(eqn: JaxprEqn) -> str | None:
    """Why an equation cannot be one kernel; None if it can."""
    if eqn.effects:
        return "its steps have effects"
    if not all(x.aval.size for x in (*eqn.invars, *eqn.outvars) if hasattr(x.aval, "size")):
        return "it takes or gives arrays without elements"
    if _compares(eqn):
        return "it keeps or looks for the largest: in one kernel a value may differ in its last bit from what was kept"
    written = max(map(_written_bytes, inner_jaxprs(eqn)), default=0)
    if written > MOST_WRITTEN_BYTES:
        return f"it writes into {written / 1e3:.0f} kB, of which one kernel would have a copy"
    held = list(_all(eqn))
    if are_too_much_together([eqn]):
        return TOO_MUCH
    return next((reason for reason in map(_why_not, held) if reason is not None), None)


def is_too_much(eqn: JaxprEqn) -> bool:
    """Whether a loop holds so many equations that its price need not be asked."""
    return sum(map(count_equations, inner_jaxprs(eqn))) >= MOST_EQUATIONS


def are_too_much_together(loops: Sequence[JaxprEqn]) -> bool:
    """Whether a kernel of all these loops would take XLA long to compile."""
    held = [one for eqn in loops for one in _all(eqn)]
    sums = sum(one.primitive.name in REDUCTIONS for one in held)
    return len(held) - len(loops) >= MOST_EQUATIONS or sums > MOST_REDUCTIONS


def _written_bytes(body: Jaxpr) -> int:
    """The size of the largest carry that steps write parts of, in calls and loops that they hold as well."""
    given = set(body.invars)
    writes = (one for one in body.eqns if one.primitive.name in WRITES)
    own = (nbytes(one.outvars[0].aval) for one in writes if one.invars[0] in given)
    return max((*own, *map(_written_bytes, inner_levels(body))), default=0)


def _why_not(eqn: JaxprEqn) -> str | None:
    name = eqn.primitive.name
    strange = next((x.aval for x in (*eqn.invars, *eqn.outvars) if dtype_name(x) not in TYPES), None)
    if strange is not None:
        return f"it holds values of type {strange}"
    if name in REDUCTIONS:
        size = eqn.invars[0].aval.size
        return f"`{name}` goes over {size:,} elements: XLA calls a library for it" if size > MOST_REDUCED else None
    if name == "dot_general":
        return kernel_products.why_not(eqn)
    if name.startswith("scatter"):
        return kernel_scatters.why_not(eqn)
    return None if name in CAN_STAND or name in _jax.OURS else f"`{name}` may call a library"


def _compares(eqn: JaxprEqn) -> bool:
    """Whether a loop has a running extremum of floats, or looks for equal floats, as gradients of extrema do.

    Where LLVM sees both the operation that makes a value and one that reads it, it may round once for the two.
    """
    return any(map(_compares_in, inner_jaxprs(eqn)))


def _compares_in(body: Jaxpr) -> bool:
    carries = set(body.invars)
    for one in body.eqns:
        if one.primitive.name in ("max", "min", "eq") and is_float(one.invars[0].aval.dtype):
            running = all(is_var(x) for x in one.invars) and any(x in carries for x in one.invars)
            if running or one.primitive.name == "eq":
                return True
    return any(map(_compares_in, inner_levels(body)))


def reorders_sums(eqn: JaxprEqn) -> bool:
    """Whether a loop holds sums, which the older code generator adds up in another order."""
    return any(one.primitive.name in REDUCTIONS or one.primitive.name == "dot_general" for one in _all(eqn))


def _all(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """An equation and all that it holds."""
    yield eqn
    for body in inner_jaxprs(eqn):
        for one in body.eqns:
            yield from _all(one)


def price(eqn: JaxprEqn, machine: Machine) -> Price:
    """What a step of a loop costs as kernels of its own, and as a part of one."""
    alone = replace(machine.on_one_core().in_cache(), vector_flops_per_second=FUSED * machine.vector_flops_per_second)
    starts = shared = work = 0.0
    for kernel in step_kernels(eqn):
        seconds = kernel_seconds(kernel, alone)
        inside = price(kernel.root, machine) if kernel.root.primitive.name in ("scan", "while") else None
        if inside is not None:
            steps = kernel.root.params.get("length", 1)
            starts, shared = starts + steps * inside.kernels, shared + steps * inside.inside
            continue
        if kernel.root.primitive.name == "dot_general" and kernel_products.calls_library(kernel.root):
            starts, shared = starts + SECONDS_PER_CALL, shared + SECONDS_PER_TERM * prod(dot_shape(kernel.root))
            continue
        starts, work = starts + SECONDS_PER_KERNEL, work + seconds
        shared += _more_seconds(kernel)
        if _is_shared(kernel):
            starts += SECONDS_TO_SHARE
            shared += seconds * (1 - 1 / machine.cores)
    return Price(starts, shared + SLOWER * work)


def step_kernels(eqn: JaxprEqn) -> list[Kernel]:
    """The kernels of a step of a loop that is none itself."""
    inner = inner_jaxprs(eqn)
    return [one for body in inner[-1:] for one in body_kernels(body, carry_slice(eqn))]


def _more_seconds(kernel: Kernel) -> float:
    """What the functions that a kernel holds take more in the code of the older generator."""
    held = [*kernel.fused, kernel.root]
    functions = (one for one in held if one.primitive.name in SECONDS_MORE)
    searches = (one for one in held if one.primitive.name in SEARCHES and _is_across(one))
    more = sum(one.outvars[0].aval.size * SECONDS_MORE[one.primitive.name] for one in functions)
    more += sum(one.invars[0].aval.size * SECONDS_MORE_ACROSS for one in searches)
    joins = (one for one in held if one.primitive.name == "concatenate")
    more += sum(one.outvars[0].aval.size * _seconds_of_seams(one) for one in joins)
    return more + SECONDS_MORE_ROLLED * _entries_of_rolls(held)


def _entries_of_rolls(held: Sequence[JaxprEqn]) -> int:
    """The entries of sums of two paddings along rows whose pieces do not overlap."""
    pads: dict[Var, int] = {one.outvars[0]: one.invars[0].aval.size for one in held if _is_padded_in_rows(one)}
    found = 0
    for one in held:
        if one.primitive.name in ("add", "add_any"):
            pieces = [pads[x] for x in one.invars if is_var(x) and x in pads]
            size = one.outvars[0].aval.size
            found += size if len(pieces) == 2 and sum(pieces) <= size else 0
    return found


def _seconds_of_seams(eqn: JaxprEqn) -> float:
    """For an entry of what is joined: along its last axis."""
    rank = eqn.outvars[0].aval.ndim
    if eqn.params["dimension"] != rank - 1:
        return 0.0
    if len(eqn.invars) > 2:
        return SECONDS_MORE_JOINED * (len(eqn.invars) - 1)
    return SECONDS_MORE_JOINED_IN_ROWS if rank > 1 else 0.0


def _is_padded_in_rows(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "pad" and eqn.outvars[0].aval.ndim > 0 and any(eqn.params["padding_config"][-1][:2])


def _is_across(eqn: JaxprEqn) -> bool:
    """Whether a reduction goes across rows, which have several entries."""
    *_, last = eqn.invars[0].aval.shape
    return eqn.invars[0].aval.ndim - 1 not in eqn.params["axes"] and last > 1


def _is_shared(kernel: Kernel) -> bool:
    """Whether XLA shares a kernel among threads for its work."""
    moved = sum(amount for amount, _ in (*kernel.reads, *kernel.writes))
    size = max((v.aval.size for v in kernel.root.outvars if not isinstance(v, DropVar)), default=0)
    held = [*kernel.fused, kernel.root]
    return is_worked_on_by_several(size * sum(map(_operations, held)), moved)


def _operations(eqn: JaxprEqn) -> int:
    """How many operations XLA counts in what is done to an entry."""
    name = eqn.primitive.name
    if name in _jax.OURS:
        return sum(map(_operations, traced(_jax.OURS[name], [x.aval for x in eqn.invars], eqn).jaxpr.eqns))
    return name in ELEMENTWISE and name not in DEAR


def as_one_kernel(eqn: JaxprEqn, level: Jaxpr, behind: Sequence[JaxprEqn] = ()) -> JaxprEqn:
    """An equation of `level` as a call that is one kernel, with reshapes of results that no one else reads.

    It takes each array once, and returns an entry of each as well: XLA may find that it does not use one.
    """
    given = list(dict.fromkeys(x for x in eqn.invars if is_var(x)))
    inside: dict[Var, _jax.Atom] = {x: _jax.new_var(x.aval) for x in given}
    after = {one.invars[0]: one.outvars[0] for one in behind}
    made = [after.get(v, v) for v in eqn.outvars if not isinstance(v, DropVar)]
    built = Builder(eqn)
    built.eqns += [copy_equation(one, inside) for one in (eqn, *behind)]
    entries = [built.call(_entry, inside[x])[0] for x in given]
    outs = [*(substitute(v, inside) for v in made), *entries]
    call = ClosedJaxpr(_jax.new_jaxpr(level, [inside[x] for x in given], outs, built.eqns), ())
    results = [*made, *(_jax.new_var(v.aval) for v in entries)]
    call = kernel_scatters.with_slices(kernel_products.with_sums(call))
    return _jax.one_kernel(call, given, results, eqn, steps_at_once(eqn))


def _entry(x: jax.Array) -> jax.Array:
    return lax.slice(x, (0,) * x.ndim, (1,) * x.ndim)
