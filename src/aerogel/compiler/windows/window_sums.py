"""Sums and maxima over windows of an array, and sums of windows, made of slices.

`x[jnp.arange(n - w + 1)[:, None] + jnp.arange(w)]` reads n x w numbers one by one, by their indices; its derivative
adds as many. At one place of the windows it is a slice, so that a moving average is a sum of w slices, and its gradient
one of w slices of the cotangent: long loops, and no array of n x w.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import dtype_name, shape_of
from ..exactness import Exactness
from ..known.even_indices import Even
from ..level import Level
from ..program import Builder, is_var
from ..readers.weighted_sums import is_product_of_matrices
from ..rules.folds import Fold, folded
from ..rules.once import once
from .components import Components
from .overlaps import BANDED, DOUBLED, FEWEST, LONGEST, LONGEST_FOLD, WindowSum, added_windows, is_plain, replacing
from .sliding import SMALL, is_worth_it, weighted, weights_of
from .windowed import Windowed
from .windows import Slide, slide_of

# Of bfloat16, where the windows are worked on in short rows, as with several filters: of 12 and 16 places 6 filters
# took 2.5 to 2.7 of the time, distances to 3 and 6 others 1.6 to 2.0; with 8 filters, or long rows, 0.1 to 0.9. Of 16
# places 16 filters took 0.84, 20, which XLA's library multiplies as matrices, 1.3 to 1.7.
LONGEST_OF_HALVES, SHORT_ROW, MOST_FILTERED = 8, 8, 256

MOST_READ = 32  # values made of a sum, entry by entry, that are looked at

FOLDS: dict[str, Fold] = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
}


def window_sums(level: Level, arrays: Mapping[Var, Even], finite: bool) -> Iterator[WindowSum]:
    """What may be done to a level, whose platform is a CPU, and whose sums may be taken in another order.

    Args:
        level: with gathers or scatters.
        arrays: constants of the program, as `even_arrays` has them.
        finite: whether weights may be multiplied by zeros.
    """
    windowed = Windowed(level, arrays, finite)
    if not windowed.shapes and all(eqn.primitive.name != "scatter-add" for eqn in level.eqns):
        return
    for place, eqn in enumerate(level.eqns):
        found = None
        if eqn.primitive.name in FOLDS:
            found = _folded(level, windowed, place)
        elif eqn.primitive.name == "dot_general":
            found = _multiplied(level, windowed, place)
        elif eqn.primitive.name == "scatter-add":
            found = added_windows(level, windowed, place)
        if found is not None:
            yield WindowSum(eqn, None, found) if isinstance(found, str) else found


def _folded(level: Level, windowed: Windowed, place: int) -> WindowSum | str | None:
    """A reduction over one axis."""
    eqn = level.eqns[place]
    (x,), axes = eqn.invars, eqn.params["axes"]
    if len(axes) != 1 or not is_var(x) or not is_plain(x) or not windowed.shapes:
        return None
    axis = int(axes[0])
    count, fold = shape_of(x)[axis], FOLDS[eqn.primitive.name]
    if count < 2:
        return None
    if windowed.is_cut_by(x, axis):
        if x.aval.size < FEWEST or count > LONGEST_FOLD:
            return f"{x.aval.size} numbers are fewer than {FEWEST}" if x.aval.size < FEWEST else "long windows"
        builder = Builder(eqn)
        total = _pairwise(builder, windowed, x, axis, fold) if count >= DOUBLED else None
        if total is None and count > LONGEST:
            return f"windows of {count} that are apart"
        if total is None:
            entries = [windowed.entry(builder, x, axis, k) for k in range(count)]
            (total,) = builder.call(lambda *xs: reduce(fold, xs), *entries)
        if count > LONGEST and _is_float(total) and _is_repeated(level, eqn.outvars[0]):
            (total,) = builder.call(once, total)  # who reads it does so for each number of all windows
        return replacing(level, place, builder, total)
    found = _components(level, windowed, x, axis)
    if isinstance(found, str | None):
        return found
    builder = Builder(eqn)
    entries = [found.entry(builder, k) for k in range(count)]
    (total,) = builder.call(lambda *xs: reduce(fold, xs), *entries)
    return replacing(level, place, builder, total)


def _is_repeated(level: Level, total: Var) -> bool:
    """Whether something else than entrywise equations reads what they make of a value."""
    eqns = list(level.read_through(total, ELEMENTWISE, MOST_READ))
    return len(eqns) > MOST_READ or any(eqn.primitive.name not in ELEMENTWISE for eqn in eqns)


def _components(level: Level, windowed: Windowed, x: Var, axis: int) -> Components | str | None:
    """The entries of a value along the windows that it is made of; None if it is made of none."""
    found = Components(level, x, axis, windowed)
    if not any(windowed.is_cut_by(v, a) for v, a in found.inside):
        return None
    count, size = shape_of(x)[axis], x.aval.size
    if size < FEWEST:
        return f"{size} numbers are fewer than {FEWEST}"
    if count > LONGEST:
        return f"windows of {count}, more than {LONGEST}"
    if any(2 * leaf.aval.size > size for leaf in found.leaves):
        return "it reads an array of the size of all windows as well"
    if any(dtype_name(leaf) == "bfloat16" for leaf in found.leaves):
        return _slow_halves(level, x, axis) or found
    return found


def _slow_halves(level: Level, x: Var, axis: int) -> str | None:
    """Why XLA is as fast with all windows of bfloat16 numbers; None if it is not."""
    count, (*_, row) = shape_of(x)[axis], (1, *(n for d, n in enumerate(shape_of(x)) if d != axis))
    if count > LONGEST_OF_HALVES and row < SHORT_ROW:
        return f"rows of {row} numbers of bfloat16 are no vector code"
    readers = [level.eqns[k] for k in level.readers(x) if k >= 0]
    if count * row > MOST_FILTERED and any(
        is_product_of_matrices(level, eqn) for eqn in readers if "axes" in eqn.params
    ):
        return "XLA's library multiplies matrices"
    return None


def _pairwise(builder: Builder, windowed: Windowed, x: Var, axis: int, fold: Fold) -> Atom | None:
    """The fold of all places of a window by those of windows of 1, 2, 4, ...; None where that is more work."""
    windows = windowed.shapes[x]
    moved = [(a, steps[axis]) for a, steps in enumerate(windows.steps) if steps[axis]]
    first, count = windows.at(axis, 0), windows.shape[axis]
    if len(moved) != 1 or moved[0][1] < 0:
        return None
    if math.prod(windows.array) * count.bit_length() > math.prod(first.shape) * count:
        return None
    ((dim, step),) = moved
    base = windowed.base(builder, x, count)
    return builder.call(lambda v: first.cut(folded(v, dim, count, step, fold)), base)[0]


def _multiplied(level: Level, windowed: Windowed, place: int) -> WindowSum | str | None:
    """A product of windows with weights for their places, or with a number for each window."""
    eqn = level.eqns[place]
    contract, batch = eqn.params["dimension_numbers"]
    dtypes = {x.aval.dtype for x in (*eqn.invars, *eqn.outvars)}
    if batch[0] or len(dtypes) > 1 or not is_plain(eqn.outvars[0]) or eqn.params["out_sharding"] is not None:
        return None
    for k in (0, 1):
        x, other = eqn.invars[k], eqn.invars[1 - k]
        if not is_var(x) or len(contract[1 - k]) != len(shape_of(other)):
            continue
        free = [d for d in range(len(shape_of(x))) if d not in contract[k]]
        if len(free) == 1 and x in windowed.shapes and windowed.finite:
            slide = slide_of(windowed.shapes[x], free[0])
            fits = slide is not None and slide.places <= min(LONGEST_FOLD, slide.moves)
            if slide is not None and fits and x.aval.size >= FEWEST and _is_float(x):
                if x.aval.size <= SMALL and _are_rows(level, x, contract[k]):
                    return "few numbers, which are read row by row"
                return _weights(level, windowed, place, k, slide)
        if len(contract[k]) == 1:
            found = _weighted(level, windowed, place, k)
            if found is not None:
                return found
    return None


def _are_rows(level: Level, x: Var, dims: Sequence[int]) -> bool:
    """Whether a value is gathered by one index for each row along these dimensions."""
    maker = level.maker(x)
    gathered = maker is not None and maker.primitive.name == "gather"
    return gathered and maker is not None and {*dims} <= {*maker.params["dimension_numbers"].offset_dims}


def _is_float(x: Atom) -> bool:
    return x.aval.dtype in (np.float32, np.float64)


def _weighted(level: Level, windowed: Windowed, place: int, k: int) -> WindowSum | str | None:
    """A product of operand `k` with weights, one for each place of a window."""
    eqn = level.eqns[place]
    x, weights, axis = eqn.invars[k], eqn.invars[1 - k], eqn.params["dimension_numbers"][0][k][0]
    assert is_var(x), "a literal has no windows"
    count, precision, builder = shape_of(weights)[0], eqn.params["precision"], Builder(eqn)
    slide = slide_of(windowed.shapes[x], axis) if x in windowed.shapes and windowed.finite else None
    fits = slide is not None and BANDED <= count <= min(LONGEST_FOLD, slide.moves)
    if slide is not None and fits and x.aval.size >= FEWEST and _is_float(x):
        if not is_worth_it(x.aval.size, count):
            return f"{x.aval.size} products with {count} weights are as fast row by row"
        base = windowed.base(builder, x, count)
        out = builder.call(
            lambda v, w: slide.back(weighted(slide.line(v), slide.in_order(w), precision)), base, weights
        )[0]
        return replacing(level, place, builder, out, Exactness.FINITE)
    found = _components(level, windowed, x, axis)
    if not isinstance(found, Components):
        return found
    entries = [found.entry(builder, i) for i in range(count)]

    def total(weights: Any, *xs: Any) -> Any:
        return reduce(lax.add, (x * weights[i] for i, x in enumerate(xs)))

    return replacing(level, place, builder, builder.call(total, weights, *entries)[0])


def _weights(level: Level, windowed: Windowed, place: int, k: int, slide: Slide) -> WindowSum:
    """A product of operand `k` with a number for each window, as the gradient of weights has it."""
    eqn = level.eqns[place]
    x, other = eqn.invars[k], eqn.invars[1 - k]
    assert is_var(x), "a literal has no windows"
    contract, precision, builder = eqn.params["dimension_numbers"][0], eqn.params["precision"], Builder(eqn)
    ours = [d - (d > slide.axis) for d in contract[k]]  # dimensions of the value at one place of the windows
    order = [contract[1 - k][ours.index(d)] for d in range(len(ours))]

    def sums(v: Any, y: Any) -> Any:
        return slide.in_order(weights_of(slide.line(v), slide.turned(lax.transpose(y, order)), precision))

    (out,) = builder.call(sums, windowed.base(builder, x, 2), other)
    return replacing(level, place, builder, out, Exactness.FINITE)
