"""Sums and maxima over all entries of large steps, accumulated entry by entry and reduced once, after the loop.

On CPU, XLA's kernels for reductions (jaxlib 0.10.2, "ynn_fusion") read arrays that exist, and may square them; of what
is computed, `(y - target) ** 2`, an array is made first. Accumulated entry by entry, it is not: measured 0.34 to 0.6 of
the time for steps of 4,096 to 1,000,000 entries. What is read as it is, or is dear to compute, gains nothing.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from aerogel._jax import Atom, Var

from .accumulate import SMALL, accumulate
from .axes import Mapped, Monoid, Reduced
from .cost import Machine
from .cost.primitives import DEAR
from .loop import LoopBuilder
from .program import is_var
from .region import Region, Site, Sliced
from .window import Window

COMBINE = {"add": "reduce_sum", "max": "reduce_max", "min": "reduce_min"}
# Of one step, in entries: below, a kernel more costs what is gained; above, memory is what counts.
SMALLEST, LARGEST = 2**12, 2**20
# What is no arithmetic, and what XLA's kernels for sums take in.
SHAPING = frozenset("broadcast_in_dim reshape squeeze expand_dims transpose slice convert_element_type copy".split())


def summed_by_entry(region: Region, sites: Iterable[Site], machine: Machine) -> frozenset[int]:
    """The places of the sites that are better accumulated entry by entry."""
    if machine.name != "cpu" or region.block is not None:
        return frozenset()
    makers = {v: site for site in sites for v in site.eqn.outvars if isinstance(site.answer, (Mapped, Sliced))}
    return frozenset(site.index for site in sites if _is_large(site) and _is_computed(site, makers))


def _is_large(site: Site) -> bool:
    answer, eqn = site.answer, site.eqn
    if not isinstance(answer, Reduced) or COMBINE.get(answer.monoid.name) != eqn.primitive.name or site.late:
        return False
    (x,), (out,) = eqn.invars, eqn.outvars
    entries = x.aval.size // site.window.count
    is_plain = x.aval.dtype in (np.float32, np.float64) and not answer.uses_start and not site.delays
    return is_plain and SMALLEST <= entries <= LARGEST and out.aval.size * SMALL <= entries


def _is_computed(site: Site, makers: dict[Var, Site]) -> bool:
    """Whether what is reduced is cheap arithmetic on the outputs of the steps, and no square of one alone."""
    arithmetic: list[Site] = []
    waiting, seen = [x for x in site.reads if is_var(x)], set[Var]()
    while waiting:
        x = waiting.pop()
        maker = makers.get(x)
        if maker is None or x in seen:
            continue
        seen.add(x)
        if maker.eqn.primitive.name in DEAR and maker.eqn.primitive.name != "div":
            return False
        if maker.eqn.primitive.name not in SHAPING and not isinstance(maker.answer, Sliced):
            arithmetic.append(maker)
        waiting += [y for y in maker.reads if is_var(y)]
    if len(arithmetic) == 1 and site.eqn.primitive.name == "reduce_sum":
        (only,) = arithmetic
        return only.eqn.primitive.name not in ("square", "integer_pow") and len(set(only.reads)) > 1
    return bool(arithmetic)


def by_entry(new: LoopBuilder, answer: Reduced, block: Atom, window: Window) -> Sequence[Atom]:
    """The combined partial results of the steps in `window`, as atoms after the loop; `block` is of its body."""
    monoid: Monoid = answer.monoid
    size = int(np.prod(block.aval.shape))
    (total,) = accumulate(new, monoid, [block], window, size)
    return new.after.call(lambda x: answer.block(np.int32(0), 1, x), total)
