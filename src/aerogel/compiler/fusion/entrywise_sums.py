"""Sums and maxima over all entries of large steps, accumulated entry by entry and reduced once, after the loop.

On CPU, XLA's kernels for reductions (jaxlib 0.10.2, "ynn_fusion") read arrays that exist, and may square them; of what
is computed, `(y - target) ** 2`, an array is made first. Accumulated entry by entry, it is not: measured 0.34 to 0.6 of
the time for steps of 4,096 to 1,000,000 entries, if the step does little else. What is dear to compute gains nothing,
and what is read as it is nothing reliably (steps of 100,000 entries: 0.66 for a minimum, 1.4 for a maximum).
"""

from collections.abc import Collection, Sequence

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Mapped, Monoid, Reduced
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, jaxpr_seconds
from ..cost.primitives import DEAR
from ..loop import Loop, LoopBuilder
from ..program import is_var
from .accumulate import SMALL, accumulate
from .region import Joined, Region, Site, Sliced
from .window import Window

COMBINE = {"add": "reduce_sum", "max": "reduce_max", "min": "reduce_min"}
# Of one step, in entries: below, a kernel more costs what is gained; above, memory is what counts.
SMALLEST, LARGEST = 2**12, 2**20
# Of a step, for each entry: where there is more to do, nothing is gained for the memory of an entry more.
LIGHT_SECONDS = 1e-9
# What is no arithmetic, and what XLA's kernels for sums take in.
SHAPING = frozenset("broadcast_in_dim reshape squeeze expand_dims transpose slice convert_element_type copy".split())


def summed_by_entry(region: Region, sites: Collection[Site], machine: Machine) -> frozenset[int]:
    """The places of the sites that are better accumulated entry by entry."""
    large = [site for site in sites if _is_large(site)]
    if machine.name != "cpu" or region.block is not None or not large:
        return frozenset()
    loops = [region.loop, *(site.answer.loop for site in sites if isinstance(site.answer, Joined))]
    steps = {y: loop for loop in loops for y in loop.ys}
    makers = {v: site for site in sites for v in site.eqn.outvars if isinstance(site.answer, (Mapped, Sliced))}
    own = sum(jaxpr_seconds(loop.body, machine) for loop in loops)

    light = [site for site in large if own <= LIGHT_SECONDS * _entries(site)]
    return frozenset(site.index for site in light if _is_computed(site, makers, steps))


def _entries(site: Site) -> int:
    """Of a step, what is reduced."""
    return site.eqn.invars[0].aval.size // site.window.count


def _is_large(site: Site) -> bool:
    answer, eqn = site.answer, site.eqn
    if not isinstance(answer, Reduced) or COMBINE.get(answer.monoid.name) != eqn.primitive.name or site.late:
        return False
    (x,), (out,) = eqn.invars, eqn.outvars
    entries = _entries(site)
    is_plain = x.aval.dtype in (np.float32, np.float64) and not answer.uses_start and not site.delays
    return is_plain and SMALLEST <= entries <= LARGEST and out.aval.size * SMALL <= entries


def _is_computed(site: Site, makers: dict[Var, Site], steps: dict[Var, Loop]) -> bool:
    """Whether what is reduced is cheap arithmetic on what exists in a step, and no square of one value alone."""
    arithmetic: dict[int, JaxprEqn] = {}
    if not all(_arithmetic(x, makers, steps, arithmetic) for x in site.reads):
        return False
    if len(arithmetic) == 1 and site.eqn.primitive.name == "reduce_sum":
        (only,) = arithmetic.values()
        return only.primitive.name not in ("square", "integer_pow") and len(set(map(id, only.invars))) > 1
    return bool(arithmetic)


def _arithmetic(x: Atom, makers: dict[Var, Site], steps: dict[Var, Loop], found: dict[int, JaxprEqn]) -> bool:
    """Adds to `found` the arithmetic that leads to `x` from what exists; False where some of it is dear."""
    waiting: list[Atom] = [x]
    inside: dict[Var, JaxprEqn] = {}  # makers in the bodies of the loops
    seen: set[Var] = set()  # and what the loops carry on: it exists
    while waiting:
        x = waiting.pop()
        if not is_var(x) or x in seen:
            continue
        seen.add(x)
        if x in steps:
            loop = steps[x]
            (value,) = (v for y, v in zip(loop.ys, loop.body_ys, strict=True) if y is x)
            inside.update((v, eqn) for eqn in loop.body.eqns for v in eqn.outvars)
            seen.update(v for v in loop.next_carry if is_var(v))
            waiting.append(value)
            continue
        eqn = makers[x].eqn if x in makers else inside.get(x)
        if eqn is None or (x in inside and eqn.primitive.name not in (*ELEMENTWISE, *SHAPING)):
            continue  # it exists
        if eqn.primitive.name in DEAR and eqn.primitive.name != "div":
            return False
        if eqn.primitive.name not in SHAPING:
            found[id(eqn)] = eqn
        waiting += makers[x].reads if x in makers else eqn.invars
    return True


def by_entry(new: LoopBuilder, answer: Reduced, block: Atom, window: Window, flat: bool) -> Sequence[Atom]:
    """The combined partial results of the steps in `window`, as atoms after the loop; `block` is of its body."""
    monoid: Monoid = answer.monoid
    size = int(np.prod(block.aval.shape))
    (total,) = accumulate(new, monoid, [block], window, size, flat)
    return new.after.call(lambda x: answer.block(np.int32(0), 1, x), total)
