"""The judge of numbers: do two lists of results agree, as exactly as a rewrite has promised?

It knows arrays, not passes. Bits that are equal need no more; everything else is judged, both sides, against float64
(`reference.py`), because comparing the two sides with each other would call the better one wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..exactness import Exactness
from ..record import record
from .reference import NoReference as NoReference
from .reference import Reference as Reference
from .reference import float64_reference as float64_reference

# A reassociated result may lie this many spreads and units in the last place farther from float64 than the natural
# result. The spread comes from few draws of one rounding per equation; sums added up backwards and in pairs stayed
# within 0.6 of (spread or ulp) on 300 random programs, and a factor of 6 remains for longer ones.
_SPREADS, _ULPS = 4.0, 2.0
# Without a reference: this many eps of the output's largest element.
_BLIND_EPS = 64.0
# `no_worse`: the worst error may grow by a tenth and one unit, which is what a change of compiled code alone does.
_GROWTH, _SLACK_UNITS = 1.1, 1.0

LazyReference = Reference | NoReference | Callable[[], Reference | NoReference] | None


@record
class Difference:
    """One way in which two results differ.

    Attributes:
        output: the position in the list of results; -1 for the list itself.
        kind: "count", "dtype", "shape", "weak_type" or "value".
        got, want: what was found and what was expected, as text.
        at: for a value, the index of the worst element.
        detail: for a value, the error and the bound that it broke.
    """

    output: int
    kind: str
    got: str
    want: str
    at: tuple[int, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        where = f"output {self.output}" + (f"{list(self.at)}" if self.at else "")
        detail = f" ({self.detail})" if self.detail else ""
        return f"{where}: {self.kind} is {self.got}, wanted {self.want}{detail}"


def compare(
    got: Sequence[Any],
    want: Sequence[Any],
    reference: LazyReference = None,
    *,
    exactness: Exactness = Exactness.REASSOCIATES,
    inputs: Sequence[Any] = (),
) -> list[Difference]:
    """Every difference between the results of a rewritten program and those of the natural one; empty if they agree.

    The types (dtype, shape, weak type) must be the same always. Values, by `exactness`:

    * bitwise: the same bits; any NaN equals any NaN, -0 differs from 0.
    * no_worse: per output, the worst error against float64 is at most 1.1 times the natural one's plus one unit. A
      unit is one in the last place, or the reference's spread where that is larger.
    * reassociates, assumes: per element, the error against float64 is at most the natural result's error + 4 spreads +
      2 ulp. The spread is in proportion to the terms of sums, not to their result.
    * finite: as reassociates; anything goes when an input holds inf or nan.
    * other_bits: only types.

    All but the first take -0 for 0. An element whose spread is infinite (NaN that `max` may drop, overflow that hangs
    on the order), and an integer whose spread is not zero (an `argmax` between ties), is not judged.
    Without a reference, `no_worse` means within one ulp and `reassociates` within 64 eps of the largest element.

    Args:
        got, want: flat lists of arrays.
        reference: from `float64_reference`, or a function that makes it, which is called only when bits differ.
        inputs: the program's inputs, for `finite`.
    """
    if len(got) != len(want):
        return [Difference(-1, "count", str(len(got)), str(len(want)))]
    found: list[Difference] = []
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        differences = _types(index, a, b)
        found += differences
        if any(d.kind != "weak_type" for d in differences):
            continue
        x, y = _plain(a), _plain(b)
        if exactness == Exactness.OTHER_BITS or _same_bits(x, y).all():
            continue
        if exactness == Exactness.FINITE and not all(_is_finite(i) for i in inputs):
            continue
        if exactness != Exactness.BITWISE and callable(reference):
            reference = reference()
        found += _values(index, x, y, reference if isinstance(reference, Reference) else None, exactness)
    return found


def _types(index: int, got: Any, want: Any) -> list[Difference]:
    pairs = [
        ("dtype", got.dtype, want.dtype),
        ("shape", tuple(got.shape), tuple(want.shape)),
        ("weak_type", _is_weak(got), _is_weak(want)),
    ]
    return [Difference(index, kind, str(a), str(b)) for kind, a, b in pairs if a != b]


def _is_weak(x: Any) -> bool:
    return isinstance(x, jax.Array) and bool(getattr(jax.typeof(x), "weak_type", False))


def _plain(x: Any) -> np.ndarray:
    """NumPy's view of an array; of keys, their data."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def _is_finite(x: Any) -> bool:
    x = _plain(jnp.asarray(x))
    return not jnp.issubdtype(x.dtype, jnp.inexact) or bool(np.isfinite(_real_parts(x).astype(np.float64)).all())


def _real_parts(x: np.ndarray) -> np.ndarray:
    """A complex array as reals with one more axis; any other as it is."""
    if x.dtype.kind != "c":
        return x
    return np.stack([np.real(x), np.imag(x)], axis=-1)


def _same_bits(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Elementwise: the same bits, or two NaN."""
    if not jnp.issubdtype(got.dtype, jnp.inexact):
        return np.asarray(got == want) if got.dtype.kind != "V" else np.ones(got.shape, bool)  # float0 has no bits
    a, b = _real_parts(got), _real_parts(want)
    same = (a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))
    return same.all(axis=-1) if got.dtype.kind == "c" else np.asarray(same)


def _values(
    index: int, got: np.ndarray, want: np.ndarray, reference: Reference | None, exactness: Exactness
) -> list[Difference]:
    """The worst element that breaks the bound, if there is one."""
    if exactness == Exactness.BITWISE:
        return _worst(index, got, want, ~_same_bits(got, want), None, "bits differ")
    spread = np.zeros(got.shape) if reference is None else reference.spread[index]
    if not jnp.issubdtype(got.dtype, jnp.inexact):
        return _worst(index, got, want, (got != want) & (spread == 0), None, "exact types must be equal")
    truth = (want if reference is None else reference.values[index]).astype(_wide_like(got))
    off, off_natural = _distance(got, truth), _distance(want, truth)
    ulp = _ulp(truth, got.dtype)
    agree = np.asarray(got == want) | (np.isnan(got) & np.isnan(want)) | np.isinf(spread)
    # Where only the natural result overflowed, its error is no excuse; where float64 has NaN, neither is judged by it.
    excuse = np.where(_is_nonfinite(want), 0.0, off_natural)
    nowhere = np.isnan(truth) & ~np.isnan(want) & ~np.isnan(got)
    off = np.where(nowhere, _distance(got, want.astype(truth.dtype)), off)
    excuse = np.where(nowhere, 0.0, excuse)
    if exactness == Exactness.NO_WORSE:
        unit = np.maximum(ulp, np.where(np.isinf(spread), 0.0, spread))
        judged = ~np.isinf(spread) & np.isfinite(excuse)
        worst = float(np.max(excuse / unit, where=judged, initial=0.0))
        bound = (_GROWTH * worst + _SLACK_UNITS) * unit
    elif reference is None:
        bound = np.full(got.shape, _BLIND_EPS * float(jnp.finfo(got.dtype).eps)) * _largest(want) + ulp
    else:
        bound = _SPREADS * spread + _ULPS * ulp + excuse
    with np.errstate(invalid="ignore"):
        broken = ~agree & ~(off <= bound)
    return _worst(index, got, want, broken, (off, bound, truth), exactness.value)


def _wide_like(x: np.ndarray) -> Any:
    return np.complex128 if x.dtype.kind == "c" else np.float64


def _is_nonfinite(x: np.ndarray) -> np.ndarray:
    finite = np.isfinite(_real_parts(x).astype(np.float64))
    return np.asarray(~(finite.all(axis=-1) if x.dtype.kind == "c" else finite))


def _distance(x: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """|x - truth|; zero between equals, two NaN, and the infinity that `truth` is in the type of `x`."""
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(x.astype(truth.dtype) - truth)
        rounded = truth.astype(x.dtype)
        same = np.asarray((x == rounded) & _is_nonfinite(x) | (np.isnan(x) & np.isnan(truth)))
    return np.asarray(np.where(same, 0.0, np.where(np.isnan(off), np.inf, off)))


def _ulp(truth: np.ndarray, dtype: Any) -> np.ndarray:
    """The size of the last place of `truth` in `dtype`, at least its smallest normal number (CPUs flush)."""
    info = jnp.finfo(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(truth)
    size = np.where(np.isfinite(size), np.minimum(size, float(info.max)), 0.0)
    exponent = np.floor(np.log2(np.maximum(size, float(info.tiny))))
    return np.maximum(np.exp2(exponent) * float(info.eps), float(info.tiny))


def _largest(x: np.ndarray) -> float:
    size = np.abs(x.astype(_wide_like(x)))
    return float(np.max(size, where=np.isfinite(size), initial=0.0))


def _worst(
    index: int, got: np.ndarray, want: np.ndarray, broken: np.ndarray, errors: Any, rule: str
) -> list[Difference]:
    if not np.any(broken):
        return []
    at = np.unravel_index(int(np.argmax(broken)), broken.shape)
    detail = f"{rule}; {int(np.sum(broken))} of {broken.size} elements"
    if errors is not None:
        off, bound, truth = errors
        with np.errstate(invalid="ignore", divide="ignore"):
            excess = np.where(broken, np.nan_to_num(off / bound, nan=np.inf, posinf=np.inf), -1.0)
        at = np.unravel_index(int(np.argmax(excess)), broken.shape)
        detail = f"{rule}: off by {off[at]:.3g}, allowed {bound[at]:.3g}, float64 {truth[at]}; {detail.split('; ')[1]}"
    return [Difference(index, "value", str(got[at]), str(want[at]), tuple(int(i) for i in at), detail)]
