"""What it costs that XLA computes a value anew for each of its readers.

On CPU, elementwise work is fused into everything that reads it, and repeated there: a cosine whose step is accumulated
in two carries is computed twice. Stacked, it was computed once. What the loop itself carries on is one such reader.
Where it pays, a value is therefore written to memory in its step (`written_once`).
"""

from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Var

from .axes import Mapped
from .axes.elementwise import NAMES as ELEMENTWISE
from .cost import Machine, equation_seconds, nbytes
from .cost.primitives import DEAR
from .loop import Loop, LoopBuilder
from .program import is_var
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
            own = equation_seconds(site.eqn, machine) if name in DEAR else 0.0
            found.update(dict.fromkeys(site.eqn.outvars, inputs + own))
    return found


def worth_writing(region: Region, machine: Machine) -> set[Var]:
    """The outputs of a loop's steps that are better written to memory in each step than computed twice."""
    if machine.name != "cpu" or region.block is not None:
        return set()
    return {y for y, cost in dear_outputs(region, machine).items() if _written_seconds(region, y, machine) < cost}


def _written_seconds(region: Region, y: Var, machine: Machine) -> float:
    steps = region.steps
    return 2 * nbytes(y.aval) / machine.cache_bytes_per_second + 2 * steps * machine.seconds_per_kernel


def written_once(new: LoopBuilder, atom: Atom) -> Atom:
    """`atom` of the body, computed once for all its readers.

    It goes through a buffer at an index that XLA does not know: barriers are gone before XLA's CPU backend fuses.
    """

    def through(v: Any, t: Any) -> Any:
        zero = lax.min(t, np.int32(0))
        rows = v if v.ndim else lax.expand_dims(v, [0])
        buffer = lax.full((rows.shape[0] + 1, *rows.shape[1:]), 0, v.dtype)
        written = lax.dynamic_update_slice_in_dim(buffer, rows, zero, 0)
        return lax.reshape(lax.dynamic_slice_in_dim(written, zero, rows.shape[0], 0), v.shape)

    (out,) = new.body.call(through, atom, new.index())
    return out


FUSED = frozenset((*ELEMENTWISE, "broadcast_in_dim", "reshape", "squeeze", "transpose"))


def dear_outputs(region: Region, machine: Machine) -> dict[Var, float]:
    """For the outputs of a loop, the time of all steps to compute them a second time; only those where it matters."""
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
