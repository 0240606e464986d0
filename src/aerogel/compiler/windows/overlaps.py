"""Windows of an array that are added up where they overlap, as the derivative of reading them does.

A scatter adds number by number. At one place of the windows what is added is an array that is shifted as a whole.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.rebind import shape_of
from ..cost.primitives import REDUCE
from ..exactness import Exactness
from ..known.picks import is_zeros
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record
from ..rules.folds import folded
from ..rules.once import once
from .components import Components
from .sliding import weighted
from .windowed import ELEMENTWISE, Windowed
from .windows import Slide, Windows, slide_of, windows_of

FEWEST = 4096  # numbers in all windows: fewer are gathered as fast
LONGEST = 24  # places of a window that are written out one by one: of 32, gradients take 2 s to compile
LONGEST_FOLD = 4096  # of a window that is folded, or multiplied by weights, as a whole
DOUBLED = 8  # places from which on folds are made of folds
BANDED = 12  # weights from which on a product with a matrix is faster
LONGEST_OF_ARRAY = 16  # of what is an array already, which is read in columns
PADDED = 8  # places from which on what is added is no sum of padded arrays


def is_plain(x: Atom) -> bool:
    """Whether a value has numbers of which sums are taken in their own type."""
    dtype = x.aval.dtype
    return isinstance(dtype, np.dtype) and dtype.kind in "fiu" and dtype.itemsize >= 4


@record
class WindowSum:
    """A sum over windows, or of windows: the edit that makes it of slices, or None, and why."""

    eqn: JaxprEqn
    edit: Edit | None
    reason: str
    exactness: Exactness = Exactness.REASSOCIATES


def replacing(
    level: Level, place: int, builder: Builder, out: Atom, exactness: Exactness = Exactness.REASSOCIATES
) -> WindowSum:
    """What puts `out` in the place of the one result of an equation."""
    eqn, here = level.eqns[place], frozenset((place,))
    (var,) = eqn.outvars
    edit = Edit(place, here, builder.eqns, {var: builder.as_weak_as(var, out)}, here)
    return WindowSum(eqn, edit, "at one place of all windows they are a slice", exactness)


def added_windows(level: Level, windowed: Windowed, place: int) -> WindowSum | str | None:
    """The sum of windows that an additive scatter makes, of slices; or why not."""
    eqn = level.eqns[place]
    updates = eqn.invars[2]
    windows = windows_of(eqn, windowed.indices)
    if windows is None or not windows.overlap or not is_var(updates) or not is_plain(updates):
        return None
    if updates.aval.dtype != eqn.outvars[0].aval.dtype:
        return None
    maker = level.maker(updates)
    if maker is not None and maker.primitive.name == "rev" and is_var(maker.invars[0]):
        windows, updates = windows.reversed(maker.params["dimensions"]), maker.invars[0]
    fits = [d for d, n in enumerate(windows.shape) if n > 1 and windows.at(d, 0).is_slice]
    if not fits:
        return "windows in several dimensions"
    axis = min(fits, key=lambda d: windows.shape[d])
    if updates.aval.size < FEWEST:
        return f"{updates.aval.size} numbers are fewer than {FEWEST}"
    builder = Builder(eqn)
    total = _slid(level, windows, axis, builder, updates) if windowed.finite else None
    exactness = Exactness.REASSOCIATES if total is None else Exactness.FINITE
    if total is None:
        total = _one_by_one(level, windowed, windows, axis, builder, updates)
    if isinstance(total, str):
        return total
    if not is_zeros(level, eqn.invars[0]):
        (total,) = builder.call(lax.add, eqn.invars[0], total)
    return replacing(level, place, builder, total, exactness)


def _one_by_one(
    level: Level, windowed: Windowed, windows: Windows, axis: int, builder: Builder, updates: Var
) -> Atom | str:
    count = windows.shape[axis]
    if count > LONGEST:
        return f"windows of {count}, more than {LONGEST}"
    found = Components(level, updates, axis, windowed)
    is_array = any(2 * leaf.aval.size > updates.aval.size for leaf in found.leaves)
    if is_array and (count > LONGEST_OF_ARRAY or slide_of(windows, axis) is None):
        return "what is added is an array of the size of all windows"
    for x in sorted(found.shared, key=lambda x: level.made_by.get(x, -1)):
        if _is_computed(level, x):  # each place reads it shifted, and would compute it again
            (found.stands[x],) = builder.call(once, x)
    parts = [windows.at(axis, i) for i in range(count)]
    laid = [builder.call(part.laid, found.entry(builder, i))[0] for i, part in enumerate(parts)]
    (dim,) = (a for a, steps in enumerate(windows.steps) if steps[axis])
    return builder.call(lambda *xs: _overlapped(parts, dim, xs), *laid)[0]


def _is_computed(level: Level, x: Var) -> bool:
    """Whether XLA computes a value where it is read."""
    maker = level.maker(x)
    while maker is not None and maker.primitive.name in ("broadcast_in_dim", "reshape", "squeeze", "transpose"):
        maker = level.maker(maker.invars[0])
    if maker is None or x.aval.dtype not in (np.float32, np.float64):
        return False
    return (
        maker.primitive.name in ELEMENTWISE or maker.primitive.name in REDUCE or maker.primitive.name == "dot_general"
    )


def _overlapped(parts: Sequence[Windows], dim: int, laid: Sequence[Any]) -> Any:
    """The sum of slices in their places along a dimension: where all overlap, and on both sides of that."""
    places, length = [part.first[dim] for part in parts], parts[0].counts[dim]
    first, last = min(places), max(places)
    if len(parts) < PADDED or parts[0].strides[dim] != 1 or last - first >= length:
        return reduce(lax.add, (part.padded(x, range(x.ndim)) for part, x in zip(parts, laid, strict=True)))
    sides: list[Any] = []
    for low, high in ((first, last), (last, first + length), (first + length, last + length)):
        pieces: list[Any] = []
        for at, x in zip(places, laid, strict=True):
            start, end = max(at, low), min(at + length, high)
            if start < end:
                piece = lax.slice_in_dim(x, start - at, end - at, axis=dim)
                pieces.append(_between(piece, dim, start - low, high - end))
        sides.append(reduce(lax.add, pieces))
    whole = _between(lax.concatenate(sides, dim), dim, first, parts[0].array[dim] - last - length)
    return parts[0].padded(whole, (a for a in range(whole.ndim) if a != dim))


def _between(x: Any, dim: int, before: int, behind: int) -> Any:
    """An array with zeros on both sides along a dimension."""
    around = [(0, 0, 0)] * x.ndim
    around[dim] = (before, behind, 0)
    return lax.pad(x, lax.full((), 0, x.dtype), around) if before or behind else x


def _slid(level: Level, windows: Windows, axis: int, builder: Builder, updates: Var) -> Atom | None:
    """The sum of sliding windows that hold one number at all places, or that times weights for these; else None.

    It is the sum over windows of those numbers with zeros on both sides.
    """
    slide = slide_of(windows, axis)
    found = None if slide is None else _numbers(level, level.maker(updates), axis)
    if slide is None or found is None or slide.places > LONGEST_FOLD:
        return None
    numbers, weights = found
    rest = tuple(n for d, n in enumerate(windows.shape) if d != axis)
    if numbers.aval.size != np.prod(rest) or slide.places < (DOUBLED if weights is None else BANDED):
        return None
    if weights is not None and not (updates.aval.dtype in (np.float32, np.float64) and is_plain(weights)):
        return None
    return builder.call(lambda *xs: _summed(slide, rest, *xs), numbers, *([] if weights is None else [weights]))[0]


def _summed(slide: Slide, rest: tuple[int, ...], numbers: Any, weights: Any = None) -> Any:
    y, count = slide.turned(lax.reshape(numbers, rest)), slide.places
    y = _between(y, y.ndim - 1, count - 1, count - 1)
    if weights is None:
        return slide.around(folded(y, y.ndim - 1, count, 1, lax.add))
    return slide.around(weighted(y, lax.rev(slide.in_order(weights), (0,))))


def _numbers(level: Level, eqn: JaxprEqn | None, axis: int) -> tuple[Atom, Atom | None] | None:
    """What a value repeats along an axis, and the weights for the places there by which that is multiplied, if any."""
    if eqn is None:
        return None
    out, name = eqn.outvars[0], eqn.primitive.name
    if name == "broadcast_in_dim":
        repeated = _repeated(eqn, axis)
        return None if repeated is None else (repeated, None)
    if len(eqn.invars) != 2 or any(x.aval.dtype != out.aval.dtype for x in eqn.invars):
        return None
    if name == "dot_general":
        contract, batch = eqn.params["dimension_numbers"]
        k = 0 if axis == 0 else 1
        alone = len(shape_of(eqn.invars[k])) == 1 and axis in (0, len(shape_of(out)) - 1)
        return (eqn.invars[1 - k], eqn.invars[k]) if alone and not contract[0] and not batch[0] else None
    if name != "mul":
        return None
    makers = [level.maker(x) for x in eqn.invars]
    for one, other in (makers, makers[::-1]):
        if one is None or other is None or {one.primitive.name, other.primitive.name} != {"broadcast_in_dim"}:
            return None
        weights, numbers = one.invars[0], _repeated(other, axis)
        if numbers is not None and tuple(one.params["broadcast_dimensions"]) == (axis,):
            return (numbers, weights) if shape_of(weights)[0] == shape_of(out)[axis] else None
    return None


def _repeated(eqn: JaxprEqn, axis: int) -> Atom | None:
    """What a broadcast repeats along one axis alone, with a dimension of length one for it, or none."""
    (source,), to, shape = eqn.invars, list(eqn.params["broadcast_dimensions"]), shape_of(eqn.outvars[0])
    kept = [d for d in to if d != axis]
    fits = kept == [d for d in range(len(shape)) if d != axis] and to == sorted(to)
    sizes = all(n == (1 if d == axis else shape[d]) for n, d in zip(shape_of(source), to, strict=True))
    return source if fits and sizes else None
