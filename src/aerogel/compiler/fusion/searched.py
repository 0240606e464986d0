"""The place of a maximum over all steps, looked for only in those steps that hold a larger value than all before.

On CPU the reduction that carries an index along is scalar code on one core, 4 ns an element; the maximum alone is 20
times faster, and few steps raise it.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..axes import Reduced
from ..cost import Machine
from ..loop import LoopBuilder, strong
from ..program import is_var
from .accumulate import is_backwards, is_hit
from .region import Site
from .window import Window

# Below, the branch costs what it saves.
SMALLEST_STEP = 512
EXTREMES = {"argmax": (lax.reduce_max, lax.gt, lax.ge), "argmin": (lax.reduce_min, lax.lt, lax.le)}


def is_searched(site: Site, machine: Machine) -> bool:
    """Whether a site is an `argmax` or `argmin` of one result whose steps are large. A branch on a GPU waits for it."""
    if machine.name != "cpu" or site.eqn.primitive.name not in EXTREMES or site.eqn.outvars[0].aval.size != 1:
        return False
    (x,) = site.reads
    return is_var(x) and x.aval.size >= SMALLEST_STEP * site.window.count


def search(new: LoopBuilder, answer: Reduced, eqn: JaxprEqn, index: Atom, x: Atom, window: Window) -> list[Atom]:
    """The best value of the steps in `window` and its index, as atoms after the loop.

    Args:
        new: the loop under construction; `index` (within the window) and `x` are atoms of its body.
        answer: how one step gives its best value and the index of that.
        eqn: the `argmax` or `argmin`.
    """
    out = strong(eqn.outvars[0].aval)
    avals = [out.update(dtype=x.aval.dtype), out]
    carries = [new.carry(atom) for atom in new.before.call(lambda: list(answer.monoid.identity(avals)))]
    reduce, better, at_least = EXTREMES[eqn.primitive.name]
    floating = jnp.issubdtype(x.aval.dtype, jnp.floating)
    # Indices that rise need a strictly better value: of equal ones the first counts. An integer may equal the identity.
    raises = better if floating and not is_backwards(new, window) else at_least
    hit = is_hit(new, window)

    def step(best: Any, at: Any, start: Any, x: Any, *hit: Any) -> list[Any]:
        look = raises(reduce(x, range(x.ndim)), lax.reshape(best, ()))
        if floating:
            # not finite: nan wins, and minus infinity is the identity
            rest = lax.reduce_sum(x * jnp.zeros((), x.dtype), range(x.ndim))
            look = lax.bitwise_or(look, lax.ne(rest, lax.full_like(rest, 0)))
        look = lax.bitwise_and(look, *hit) if hit else look

        def found(best: Any, at: Any, start: Any, x: Any) -> Any:
            value, place = answer.block(start, 1, x)
            return answer.monoid.combine((best, at), (value, place))

        return list(lax.cond(look, found, lambda best, at, start, x: (best, at), best, at, start, x))

    outs = new.body.call(step, *(var for var, _, _ in carries), index, x, *([] if hit is None else [hit]))
    for (_, set_next, _), out in zip(carries, outs, strict=True):
        set_next(out)
    return [final for _, _, final in carries]
