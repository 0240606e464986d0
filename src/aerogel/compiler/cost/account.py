"""Cost of equations and programs: flops, bytes moved, peak bytes."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aerogel import _jax
from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Literal

from .flat import called, kind_of, open_jaxpr
from .kernels import Kernel, kernels
from .primitives import Kind
from .sizes import nbytes
from .work import copied_operands, equation_flops

# How often a `while` is taken to run: how often it will is not in the program. `has_unknown_trips` says whether a
# figure rests on this.
ASSUMED_TRIPS = 1


@dataclass(frozen=True)
class Cost:
    """What a program takes.

    Attributes:
        flops: a multiply-add counts 2, a transcendental its weight (`primitives.ELEMENTWISE_FLOPS`), a value that XLA
            computes in several kernels once.
        bytes_moved: what kernels read and write, with elementwise chains fused as `kernels.py` says.
        peak_bytes: the largest sum of stored values alive at one time; results count, arguments and constants do not.
        seconds: estimated time, where it was asked for.
    """

    flops: int
    bytes_moved: int
    peak_bytes: int
    seconds: float | None = None


def equation_cost(eqn: JaxprEqn) -> Cost:
    """Cost of one equation that runs alone: it reads its operands from memory and writes its results.

    `scan` counts flops and bytes `length` times and its peak once, plus the stacked results; `while` counts
    `ASSUMED_TRIPS` trips; `cond` the largest of its branches, figure by figure; calls what they call.
    """
    return total(equation_kernels(eqn))


def jaxpr_cost(jaxpr: Any) -> Cost:
    """Cost of a jaxpr, open or closed, without a time."""
    return _body_cost(open_jaxpr(jaxpr), slice(0, 0))


def unknown_primitives(jaxpr: Any) -> frozenset[str]:
    """Names of the primitives in `jaxpr` and the programs it runs for which there is no cost.

    They count 0 flops, and the bytes of their operands and results.
    """
    return frozenset(eqn.primitive.name for eqn in _all_equations(open_jaxpr(jaxpr)) if kind_of(eqn) is None)


def has_unknown_trips(jaxpr: Any) -> bool:
    """Whether the program holds a `while`, whose trips are unknown: its cost is that of `ASSUMED_TRIPS` of them."""
    return any(eqn.primitive.name == "while" for eqn in _all_equations(open_jaxpr(jaxpr)))


def body_kernels(jaxpr: Jaxpr, owned: slice, homes: dict[Any, int] | None = None) -> list[Kernel]:
    """The kernels of a nested program whose arguments in `owned` may be written over."""
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    return kernels(jaxpr.eqns, inputs, jaxpr.outvars, owned=jaxpr.invars[owned], homes=homes)


def equation_kernels(eqn: JaxprEqn) -> list[Kernel]:
    """The kernels of an equation that runs alone (several if it is a call)."""
    inputs = dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal))
    return kernels([eqn], list(inputs), [v for v in eqn.outvars if not isinstance(v, DropVar)])


def carry_slice(eqn: JaxprEqn) -> slice:
    """Which arguments of a `scan` or `while` body are the carry."""
    if eqn.primitive.name == "scan":
        consts, carries = _jax.scan_counts(eqn.params)
        return slice(consts, consts + carries)
    return slice(eqn.params["body_nconsts"], None)


def forwarded_bytes(body: Jaxpr, num_carry: int) -> int:
    """Bytes per step that a scan's body stacks as they came in: no kernel of the body writes them."""
    own = {v for eqn in body.eqns for v in eqn.outvars}
    stacked = (v for v in body.outvars[num_carry:] if not isinstance(v, Literal))
    return sum(nbytes(v.aval) for v in stacked if v not in own)


def nested_programs(eqn: JaxprEqn) -> list[Jaxpr]:
    """The programs that an equation runs (not those of its derivatives, nor what combines two scalars)."""
    name = eqn.primitive.name
    if kind_of(eqn) is Kind.CALL:
        inner = called(eqn)
        return [] if inner is None else [inner]
    if name == "scan":
        return [open_jaxpr(eqn.params["jaxpr"])]
    if name == "while":
        return [open_jaxpr(eqn.params["cond_jaxpr"]), open_jaxpr(eqn.params["body_jaxpr"])]
    if name == "cond":
        return [open_jaxpr(branch) for branch in eqn.params["branches"]]
    return []


_costs: weakref.WeakKeyDictionary[Jaxpr, dict[tuple[Any, Any], Cost]] = weakref.WeakKeyDictionary()


def _body_cost(jaxpr: Jaxpr, owned: slice) -> Cost:
    known = _costs.setdefault(jaxpr, {})
    key = (owned.start, owned.stop)
    if key not in known:
        known[key] = total(body_kernels(jaxpr, owned))
    return known[key]


def note_cost(jaxpr: Jaxpr, owned: slice, found: list[Kernel]) -> None:
    """Keeps the cost of a nested program whose kernels were found for something else: finding them takes longest."""
    known = _costs.setdefault(jaxpr, {})
    key = (owned.start, owned.stop)
    if key not in known:
        known[key] = total(found)


def total(found: list[Kernel]) -> Cost:
    """Cost of kernels, one after the other."""
    flops = bytes_moved = live = peak = 0
    for kernel in found:
        cost = kernel_cost(kernel)
        flops += cost.flops
        bytes_moved += cost.bytes_moved
        live += kernel.allocates
        peak = max(peak, live + cost.peak_bytes)
        live -= kernel.frees
    return Cost(flops, bytes_moved, peak)


def kernel_cost(kernel: Kernel) -> Cost:
    """Cost of one kernel; its peak is what it needs besides its operands and results."""
    eqn = kernel.root
    inner = nested_programs(eqn)
    if not inner:
        flops = equation_flops(eqn)
        for member in kernel.fused:
            flops += equation_flops(member)
        copied = sum(map(nbytes, copied_operands(eqn))) if eqn.primitive.name == "dot_general" else 0
        return Cost(flops, sum(n for n, _ in kernel.reads) + sum(n for n, _ in kernel.writes), copied)
    if kernel.kind is Kind.LOOP:
        return _loop_cost(eqn, inner)
    costs = [_body_cost(program, slice(0, 0)) for program in inner]
    return Cost(
        max(c.flops for c in costs),
        max(c.bytes_moved for c in costs),
        max(0, max(c.peak_bytes for c in costs) - kernel.allocates),
    )


def _loop_cost(eqn: JaxprEqn, inner: list[Jaxpr]) -> Cost:
    body = _body_cost(inner[-1], carry_slice(eqn))
    if eqn.primitive.name == "scan":
        length = eqn.params["length"]
        length = length if isinstance(length, int) else ASSUMED_TRIPS
        moved = body.bytes_moved + 2 * forwarded_bytes(inner[0], _jax.scan_counts(eqn.params)[1])
        return Cost(length * body.flops, length * moved, body.peak_bytes if length else 0)
    test = _body_cost(inner[0], slice(0, 0))
    return Cost(
        ASSUMED_TRIPS * (body.flops + test.flops),
        ASSUMED_TRIPS * (body.bytes_moved + test.bytes_moved),
        max(body.peak_bytes, test.peak_bytes),
    )


def _all_equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    seen = {jaxpr}
    stack = [jaxpr]
    while stack:
        for eqn in stack.pop().eqns:
            yield eqn
            for inner in nested_programs(eqn):
                if inner not in seen:
                    seen.add(inner)
                    stack.append(inner)
