"""How partial results of the steps become one: carries of the loop."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, Var

from .axes import Monoid
from .loop import LoopBuilder, strong
from .window import Window, in_window, position

# A running sum of T terms loses up to T ulp, a stacked and then reduced one about log2(T). From this many steps on,
# small partial sums are compensated (Kahan 1965): a few scalar operations beside the reduction of a whole step.
COMPENSATED_FROM = 64
SMALL = 16


def accumulate(
    new: LoopBuilder, monoid: Monoid, partial: Sequence[Atom], window: Window, step_size: int, compensate: bool
) -> list[Var]:
    """The combined partial results of the steps in `window`, as variables after the loop.

    Args:
        new: the loop under construction; `partial` are atoms of its body.
        monoid: how two of them combine.
        window: the steps that count.
        step_size: elements that one step reduces, to tell whether compensation is free.
        compensate: allow it (it has no use under differentiation).
    """
    avals = [strong(x.aval) for x in partial]
    start = new.before.call(lambda: list(monoid.identity(avals)))
    carries = [new.carry(atom) for atom in start]
    now = [var for var, _, _ in carries]
    hit = is_hit(new, window)
    (first,) = avals[:1]
    small = int(np.prod(first.shape)) * SMALL <= step_size
    rounds = monoid.name == "add" and jnp.issubdtype(first.dtype, jnp.floating)
    if compensate and rounds and small and window.count >= COMPENSATED_FROM:
        _kahan(new, carries[0], partial[0], hit)
    else:

        def combine(*values: Any) -> list[Any]:
            k = len(avals)
            old, fresh = values[:k], values[k : 2 * k]
            out = monoid.combine(tuple(old), tuple(fresh))
            return list(out) if len(values) == 2 * k else [_where(values[-1], a, b) for a, b in zip(out, old)]

        outs = new.body.call(combine, *now, *partial, *([] if hit is None else [hit]))
        for (_, set_next, _), out in zip(carries, outs, strict=True):
            set_next(out)
    return [final for _, _, final in carries]


def _kahan(new: LoopBuilder, total: Any, partial: Atom, hit: Atom | None) -> None:
    var, set_next, _ = total
    (zero,) = new.before.call(lambda: lax.full(var.aval.shape, 0, var.aval.dtype))
    lost, set_lost, _ = new.carry(zero)

    def step(total: Any, lost: Any, x: Any, *hit: Any) -> list[Any]:
        x = _where(hit[0], x, lax.full_like(x, 0)) if hit else x
        y = x - lost
        out = total + y
        rest = (out - total) - y
        # an infinite total has no rest; inf - inf would poison the next step
        return [out, lax.select(lax.is_finite(out), rest, lax.full_like(rest, 0))]

    out, rest = new.body.call(step, var, lost, partial, *([] if hit is None else [hit]))
    set_next(out)
    set_lost(rest)


def keep(new: LoopBuilder, atom: Atom, window: Window) -> Var:
    """The values of `atom` at the steps in `window`, stacked `[count, *step]`, without stacking the others.

    They are written to a buffer of `count + 1` rows, the last of which takes what is not wanted: the buffer is
    updated in place, and the row that is written in vain stays in the cache.
    """
    aval = strong(atom.aval)
    rows = window.count + 1
    (buffer,) = new.before.call(lambda: zeros((rows, *aval.shape), aval.dtype))
    var, set_next, final = new.carry(buffer)

    def write(buffer: Any, value: Any, t: Any) -> Any:
        row = _row(t, window)
        return lax.dynamic_update_index_in_dim(buffer, lax.expand_dims(value, [0]), row, 0)

    (out,) = new.body.call(write, var, atom, new.index())
    set_next(out)
    (kept,) = new.after.call(lambda b: lax.slice_in_dim(b, 0, window.count), final)
    return kept  # type: ignore[return-value]


def zeros(shape: Sequence[int], dtype: Any) -> Any:
    """Zeros of any type; for typed keys the key whose words are zero."""
    if jnp.issubdtype(dtype, jnp.floating) or np.dtype(dtype).kind in "biucV":
        return lax.full(shape, 0, dtype)
    raise TypeError(f"no zero of type {dtype}")


def _row(t: Any, window: Window) -> Any:
    row = position(t, window, window.count + 1)
    return lax.select(in_window(t, window), row, np.int32(window.count))


def is_hit(new: LoopBuilder, window: Window) -> Atom | None:
    """Whether the present step is in the window, a boolean of the body; None when every step is."""
    if window.count == new.length:
        return None
    (hit,) = new.body.call(lambda t: in_window(t, window), new.index())
    return hit


def _where(hit: Any, a: Any, b: Any) -> Any:
    return lax.select(lax.broadcast(hit, a.shape) if a.ndim else hit, a, b)
