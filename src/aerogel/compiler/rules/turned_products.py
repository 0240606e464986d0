"""Products of a wide operand with a narrow one, made the way round in which the wide one is read along its rows."""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel import _jax

from ..cost import Machine
from ..products import may_swap, place_of_terms
from ..record import record
from .on import on
from .site import Site

# Measured on 2 cores of an AMD EPYC, jaxlib 0.10.2 (docs/reference/catalogue-linear-algebra.md has the table).
NARROW = 64  # columns of the narrow operand, at most
WIDER = 2  # times as many of the wide one, at least
LONGER = 4  # times as many terms, at least, where they are the wide operand's first axis
LONGER_FOR_MANY = 8  # and where the narrow one has more than half of the columns that it may have
EVEN, HALF, UNEVEN = 1, 2, 20  # times that of the machine, where they are last: for even rows, half as many, others
# On several cores XLA's library shares a product the way round in which it is turned from so many columns and
# multiplications on, and the way round in which it stood from more. Waking a thread takes what turning such a product
# saves: 128 terms of 784 and 32 columns take 0.71 of the time on one core, 1.34 on two; larger ones mostly 0.4 to 0.97.
MOST_UNSHARED = 24
SHARED = range(3 << 19, 6 << 20)
LONG_IN_LOOPS = 512  # and so many in a loop
FEWEST_LAST = 1 << 16  # numbers of such a wide operand,
WIDE_LAST = 128  # and columns
FEWEST = 1 << 14  # multiplications
FEWEST_ENTRIES, FEWEST_FLOAT64 = 1 << 9, 1 << 18  # of a result in float64, and multiplications
LARGEST = 1 << 20  # numbers of a wide operand whose terms are first, where those of the narrow one are last
COPIED = range(8, 65)  # terms of a narrow operand that is copied to be read along its rows
WIDE = 512  # columns of the other, at least
# Multiplications of each matrix of a batch, at least: XLA writes out smaller products itself, and aborts (jaxlib
# 0.10.2) where the barrier lets another layout through (three of 2 x 4 with 4 x 3, an operand of which is read twice).
FEWEST_OF_BATCH = 64


@on(
    "dot_general",
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="XLA's CPU backend would read the wide operand, or a short narrow one, against its rows",
)
def turned_product(a: Any, b: Any, *, site: Site, dimension_numbers: Any, **params: Any) -> Any:
    """A B as the transpose of B^T A^T, where that reads the wide one of A and B along its rows.

    XLA folds such a transpose into the product again, and is kept from it; as from one that is there already. A narrow
    operand of few terms is copied where it would be read against its rows.
    """
    dtype, precision = params.get("preferred_element_type") or a.dtype, params.get("precision")
    if not a.dtype == b.dtype == dtype or not jnp.issubdtype(dtype, jnp.floating):
        return f"{a.dtype.name} numbers"
    if not may_swap(precision):
        return "an algorithm is asked for that takes each operand in a way of its own"
    if params.get("out_sharding") is not None or site.over_devices:
        return "its values may be spread over devices"
    sides = _sides(a, b, dimension_numbers, site)
    transposed = {*site.readers()} == {"transpose"}
    if sides.is_slow_in(dtype):
        if sides.left_is_less(transposed):
            return lax.optimization_barrier(_product(a, b, True, dimension_numbers, params))
        return _turned(a, b, sides, True, dimension_numbers, params)
    # XLA folds a transpose into the product that it reads, which turns that; a matrix is not worth two turns.
    wanted = transposed if sides.along else not transposed or a.ndim > 2 or b.ndim > 2
    reason = sides.reason() if wanted else "the wide operand is read along its rows"
    if reason is None and not sides.along:
        return _turned(a, b, sides, sides.copied, dimension_numbers, params)
    if sides.along and sides.copied and not transposed:
        return _product(a, b, True, dimension_numbers, params)
    return reason or lax.optimization_barrier(_product(a, b, False, dimension_numbers, params))


@record
class _Sides:
    """The operands of a product: how many terms and columns they have, where the terms are, and which is the wide one.

    The terms are "first" or "last" behind the axes of the batch; None where it is not so, and XLA makes a copy.
    """

    batch: int
    terms: int
    columns: tuple[int, int]
    lies: tuple[str | None, str | None]
    in_loop: bool
    machine: Machine

    @property
    def at(self) -> int:
        """The place of the wide operand."""
        return self.columns.index(max(self.columns))

    @property
    def along(self) -> bool:
        """Whether it is read along its rows: the left one if its terms are last, the right one if they are first."""
        return self.lies[self.at] == ("last", "first")[self.at]

    @property
    def copied(self) -> bool:
        """Whether a narrow operand that is read first is copied, since it lies the other way."""
        fits = min(self.columns) <= NARROW and max(self.columns) >= WIDE and self.terms in COPIED
        return self.lies == ("first", "first") and fits and self._large()

    def is_slow_in(self, dtype: Any) -> bool:
        """Whether the product takes twice as long as behind a copy of an operand: both have their terms first.

        Of 200 products of 16 to 1,024 rows, 32 to 2,048 terms and 16 to 1,024 columns, the smaller one copied, 0.38 to
        0.87 of the time on one core of an Intel Xeon; on two, where others ran beside it, 0.33 to 1.0.
        """
        many = math.prod(self.columns) >= FEWEST_ENTRIES and self.terms * math.prod(self.columns) >= FEWEST_FLOAT64
        both = self.lies == ("first", "first") and self.batch == 1
        return dtype == jnp.float64 and self.machine.turns_float64 and both and many

    def left_is_less(self, transposed: bool) -> bool:
        """Whether the left one is copied; with the right one, the result is to be turned, unless it is anyway."""
        left, right = (self.terms * columns for columns in self.columns)
        turned = math.prod(self.columns)
        return left + turned <= right if transposed else left <= right + turned

    def reason(self) -> str | None:
        """Why the operands keep their places."""
        narrow, wide = sorted(self.columns)
        lies = self.lies[self.at]
        if self.batch > 1 and self.terms * narrow * wide < FEWEST_OF_BATCH:
            return "XLA may abort: its matrices are too small to be kept from their transposes"
        if lies is None:
            return "XLA copies the wide operand"
        if (*self.lies, self.at) == ("first", "last", 0) and self.batch * self.terms * wide > LARGEST:
            return "the wide operand is large, and the narrow one is read along its rows"
        if not 1 < narrow <= NARROW:
            return f"the narrow operand has {narrow} columns"
        if wide < WIDER * narrow or self.terms < self._longer() * narrow or not self._large():
            return f"{self.terms} x {wide} and {self.terms} x {narrow} are too few numbers, or too near to a square"
        if lies == "first" and narrow > MOST_UNSHARED and self._is_shared():
            return "several cores would share it, and waking them takes as long as it saves"
        if lies == "last" and (wide < WIDE_LAST or self.batch * self.terms * wide < FEWEST_LAST):
            return f"{self.terms} x {wide} are too few numbers, where the terms are the last axis"
        if lies == "last" and self.in_loop and self.terms < LONG_IN_LOOPS:
            return f"{self.terms} terms, the last axis, are too few in a loop"
        return None

    def _longer(self) -> float:
        """How many times as many terms as columns of the narrow operand there must be."""
        narrow, rows = min(self.columns), self.machine.even_rows
        if self.lies[self.at] == "last":
            factor = HALF if 2 * narrow <= rows else UNEVEN if narrow % rows else EVEN
            return factor * self.machine.terms_per_row
        return LONGER if 2 * narrow <= NARROW else LONGER_FOR_MANY

    def _is_shared(self) -> bool:
        return _jax.usable_cores() > 1 and self.batch * self.terms * math.prod(self.columns) in SHARED

    def _large(self) -> bool:
        return min(self.columns) > 1 and self.batch * self.terms * math.prod(self.columns) >= FEWEST


def _sides(a: Any, b: Any, dimension_numbers: Any, site: Site) -> _Sides:
    (ca, cb), (ba, bb) = dimension_numbers
    batch, terms = (math.prod(a.shape[i] for i in axes) for axes in (ba, ca))
    each = max(1, batch * terms)
    lies = place_of_terms(a.ndim, ca, ba), place_of_terms(b.ndim, cb, bb)
    columns = a.size // each, b.size // each
    return _Sides(batch, terms, columns, lies, site.in_loop, site.machine)


def _turned(a: Any, b: Any, sides: _Sides, copied: bool, dimension_numbers: Any, params: Any) -> Any:
    """The transpose of the product whose operands have changed places, the first one `copied` to be read by rows."""
    (ca, cb), (ba, bb) = dimension_numbers
    if isinstance(params.get("precision"), tuple):
        params = {**params, "precision": params["precision"][::-1]}
    if None not in sides.lies and sorted(ca) == list(ca) and sorted(cb) == list(cb):  # else XLA would copy the first
        (a, ca), (b, cb) = _merged(a, ca), _merged(b, cb)
    made = lax.optimization_barrier(_product(b, a, copied, ((cb, ca), (bb, ba)), params))
    first, right = len(ba), b.ndim - len(cb)
    return lax.transpose(made, (*range(first), *range(right, made.ndim), *range(first, right)))


def _product(a: Any, b: Any, copied: bool, dimension_numbers: Any, params: Any) -> Any:
    """The product; with its first operand copied, so that its terms are last."""
    if copied:
        (ca, cb), (ba, bb) = dimension_numbers
        a = lax.optimization_barrier(jnp.moveaxis(a, ca, range(a.ndim - len(ca), a.ndim)))
        dimension_numbers = (tuple(range(a.ndim - len(ca), a.ndim)), cb), (ba, bb)
    return lax.dot_general(a, b, dimension_numbers, **params)


def _merged(x: Any, contracted: Any) -> tuple[Any, Any]:
    """An operand whose contracted axes, neighbours in their order, are one."""
    if len(contracted) < 2:
        return x, contracted
    at, end = contracted[0], contracted[-1] + 1
    return lax.reshape(x, (*x.shape[:at], math.prod(x.shape[at:end]), *x.shape[end:])), (at,)
