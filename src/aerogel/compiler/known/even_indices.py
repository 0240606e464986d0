"""Arrays of whole numbers that grow by equal steps along each dimension: `10 * jnp.arange(n)[:, None] + jnp.arange(w)`.

Such indices read windows of an array, which slices read as well, without a look at each index.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes.rebind import shape_of
from ..level import Level
from ..record import record

DEEPEST = 50  # equations behind each other that are followed
LARGEST_KNOWN = 1 << 22  # numbers of a constant that are looked at


@record
class Even:
    """The numbers `start + sum(steps[d] * index[d])` for all indices of an array of this shape."""

    shape: tuple[int, ...]
    start: int
    steps: tuple[int, ...]

    @property
    def low(self) -> int:
        """The smallest number."""
        return self.start + sum(min(0, s * (n - 1)) for n, s in zip(self.shape, self.steps, strict=True))

    @property
    def high(self) -> int:
        """The largest number."""
        return self.start + sum(max(0, s * (n - 1)) for n, s in zip(self.shape, self.steps, strict=True))

    @property
    def is_one(self) -> bool:
        """Whether all numbers are the same."""
        return not any(self.steps)


@dataclass
class EvenIndices:
    """What arrays of integers in a level count, as far as that is known from the equations that make them.

    Attributes:
        level: of a program.
        arrays: what constants of the program hold.
    """

    level: Level
    arrays: Mapping[Var, Even]
    known: dict[Any, Even | None] = field(init=False)
    depth: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.known = dict(self.arrays)

    def of(self, x: Atom) -> Even | None:
        """The numbers of a value; None if they are not known to be even."""
        if isinstance(x, Literal):
            return _literal(x)
        if x not in self.known:
            eqn = self.level.maker(x)
            self.depth += 1
            found = None if eqn is None or eqn.effects or self.depth > DEEPEST else self._made(eqn)
            self.depth -= 1
            self.known[x] = found if found is not None and _fits(found, x) else None
        return self.known[x]

    def _made(self, eqn: JaxprEqn) -> Even | None:
        name, shape = eqn.primitive.name, shape_of(eqn.outvars[0])
        if not _is_integer(eqn.outvars[0]) or 0 in shape:
            return None
        if name == "iota":
            along = eqn.params["dimension"]
            return _even(shape, 0, (int(d == along) for d in range(len(shape))))
        if name == "select_n":
            return self._selected(eqn)
        if name not in _MADE:
            return None
        if not all(map(_is_integer, eqn.invars)):
            return None
        operands = [self.of(x) for x in eqn.invars]
        if any(x is None for x in operands):
            return None
        return _MADE[name](eqn, shape, *operands)

    def _selected(self, eqn: JaxprEqn) -> Even | None:
        """`where(i < 0, i + n, i)` where no `i`, or each, is below zero; a choice like that."""
        chosen = self.known.get(eqn.invars[0])
        if chosen is not None and chosen.is_one and len(eqn.invars) == 3:
            return self.of(eqn.invars[1 + chosen.start])
        maker = self.level.maker(eqn.invars[0])
        if maker is None or maker.primitive.name not in ("lt", "ge") or len(eqn.invars) != 3:
            return None
        if not all(map(_is_integer, maker.invars)):
            return None
        a, b = map(self.of, maker.invars)
        if a is None or b is None or not (a.high < b.low or a.low >= b.high):
            return None
        is_true = (a.high < b.low) == (maker.primitive.name == "lt")
        return self.of(eqn.invars[2 if is_true else 1])


def even_arrays(values: Mapping[Var, Any]) -> dict[Var, Even]:
    """Those of some constants that are such arrays."""
    found: dict[Var, Even] = {}
    for var, value in values.items():
        known = _jax.is_known_array(value) and (_is_integer(var) or var.aval.dtype == np.bool_)
        if not known or not 1 < value.size <= LARGEST_KNOWN:
            continue
        array = np.asarray(value).astype(np.int64)
        origin = (0,) * array.ndim
        start = int(array[origin])
        ends = [(*origin[:d], 1, *origin[d + 1 :]) for d in range(array.ndim)]
        steps = [int(array[end]) - start if n > 1 else 0 for end, n in zip(ends, array.shape, strict=True)]
        places = np.ogrid[tuple(slice(n) for n in array.shape)]
        counted = start + sum(s * at for s, at in zip(steps, places, strict=True))
        if np.array_equal(np.broadcast_to(counted, array.shape), array):
            found[var] = Even(array.shape, start, tuple(steps))
    return found


def _even(shape: tuple[int, ...], start: int, steps: Iterable[int]) -> Even:
    return Even(tuple(shape), start, tuple(0 if n == 1 else s for n, s in zip(shape, steps, strict=True)))


def _is_integer(x: Atom) -> bool:
    return isinstance(x.aval.dtype, np.dtype) and x.aval.dtype.kind in "iu"


def _fits(even: Even, x: Atom) -> bool:
    """Whether the numbers are those that the type can hold: else it has others."""
    info = np.iinfo(x.aval.dtype)
    return int(info.min) <= even.low and even.high <= int(info.max)


def _literal(x: Literal) -> Even | None:
    value = np.asarray(x.val)
    return Even((), int(value), ()) if value.shape == () and value.dtype.kind in "iu" else None


def _sum(eqn: JaxprEqn, shape: tuple[int, ...], a: Even, b: Even) -> Even:
    sign = -1 if eqn.primitive.name == "sub" else 1
    steps = ((a.steps[d] if a.shape else 0) + sign * (b.steps[d] if b.shape else 0) for d in range(len(shape)))
    return _even(shape, a.start + sign * b.start, steps)


def _product(eqn: JaxprEqn, shape: tuple[int, ...], a: Even, b: Even) -> Even | None:
    if not b.is_one:
        a, b = b, a
    if not b.is_one:
        return None
    return _even(shape, a.start * b.start, (b.start * s for s in (a.steps if a.shape else (0,) * len(shape))))


def _broadcast(eqn: JaxprEqn, shape: tuple[int, ...], a: Even) -> Even:
    to = {int(d): k for k, d in enumerate(eqn.params["broadcast_dimensions"])}
    return _even(shape, a.start, (a.steps[to[d]] if d in to else 0 for d in range(len(shape))))


def _reshaped(eqn: JaxprEqn, shape: tuple[int, ...], a: Even) -> Even | None:
    """Dimensions of length one come and go; others stay as they are."""
    kept = [s for n, s in zip(a.shape, a.steps, strict=True) if n != 1]
    if [n for n in a.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    rest = iter(kept)
    return _even(shape, a.start, [0 if n == 1 else next(rest) for n in shape])


def _transposed(eqn: JaxprEqn, shape: tuple[int, ...], a: Even) -> Even:
    return _even(shape, a.start, (a.steps[d] for d in eqn.params["permutation"]))


def _reversed(eqn: JaxprEqn, shape: tuple[int, ...], a: Even) -> Even:
    turned = eqn.params["dimensions"]
    start = a.start + sum(a.steps[d] * (shape[d] - 1) for d in turned)
    return _even(shape, start, (-s if d in turned else s for d, s in enumerate(a.steps)))


def _sliced(eqn: JaxprEqn, shape: tuple[int, ...], a: Even) -> Even:
    p = eqn.params
    strides = p["strides"] or (1,) * len(shape)
    start = a.start + sum(s * at for s, at in zip(a.steps, p["start_indices"], strict=True))
    return _even(shape, start, (s * by for s, by in zip(a.steps, strides, strict=True)))


_MADE: dict[str, Any] = {
    "add": _sum,
    "sub": _sum,
    "mul": _product,
    "neg": lambda eqn, shape, a: _even(shape, -a.start, (-s for s in a.steps)),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "transpose": _transposed,
    "rev": _reversed,
    "slice": _sliced,
    "convert_element_type": lambda eqn, shape, a: a,
}
