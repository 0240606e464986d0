"""What it costs that XLA computes a value anew for each of its readers.

On CPU, elementwise work is fused into everything that reads it, and repeated there: a cosine whose step is accumulated
in two carries is computed twice, or thrice if the loop itself carries it on. Stacked, it was computed once. Or it is
written to memory in its step, if that is cheaper (`once.py`).
"""

from aerogel._jax import Var

from ..axes import Mapped
from ..cost import Machine, equation_seconds, nbytes
from ..cost.primitives import DEAR
from ..loop import Loop
from ..program import is_var
from .once import FUSED
from .region import Region


def repeated_seconds(region: Region, machine: Machine) -> dict[Var, float]:
    """For values of a region, the time of all steps to have them once more: to compute or to write and read them."""
    if machine.name != "cpu" or region.block is not None:
        return {}
    found = {y: min(cost, _written_seconds(region, y, machine)) for y, cost in dear_outputs(region, machine).items()}
    for site in region.sites:
        name = site.eqn.primitive.name
        if isinstance(site.answer, Mapped) and name in FUSED:
            inputs = sum(found.get(x, 0.0) for x in site.reads if is_var(x))
            own = equation_seconds(site.eqn, machine.in_cache()) if name in DEAR else 0.0
            found.update(dict.fromkeys(site.eqn.outvars, inputs + own))
    return found


def _written_seconds(region: Region, y: Var, machine: Machine) -> float:
    """What the loop carries on is written anyway."""
    loop: Loop = region.loop
    if loop.body_ys[loop.ys.index(y)] in loop.next_carry:
        return 0.0
    return 2 * nbytes(y.aval) / machine.cache_bytes_per_second + region.steps * machine.seconds_per_step_kernel


def dear_outputs(region: Region, machine: Machine) -> dict[Var, float]:
    """For the outputs of a loop, the time of all steps to compute them a second time."""
    loop: Loop = region.loop
    cost: dict[Var, float] = {}
    for eqn in loop.body.eqns:
        name = eqn.primitive.name
        if name not in FUSED:
            continue
        inputs = sum(cost.get(x, 0.0) for x in eqn.invars if is_var(x))
        own = loop.length * equation_seconds(eqn, machine) if name in DEAR else 0.0
        cost.update(dict.fromkeys(eqn.outvars, inputs + own))
    return {y: cost.get(v, 0.0) for y, v in zip(loop.ys, loop.body_ys, strict=True) if is_var(v)}
