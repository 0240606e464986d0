"""Products of many small matrices, written out as sums of elementwise products."""

import math
from typing import Any

import jax.numpy as jnp

from ..axes.elementwise import NAMES
from ..cost.primitives import DEAR
from .on import on
from .once import stored
from .site import Site
from .written_out import term_by_term

# Measured on 4 cores of an AMD EPYC, jaxlib 0.10.2 (docs/reference/catalogue-linear-algebra.md has the table).
LARGEST = 16
# Terms and columns of a product of many rows with one matrix: of 5, 6 and 7 the library has no code (0.1 to 0.6 of its
# time are left, Xeon), of 4 terms it has, and of 8 it is faster.
MOST_SHARED, IN_LIBRARY = 7, 4
FEWEST_ROWS = 1024  # rows from which that pays
# Rows with rows, `a @ b.T`: written out, the columns of `b.T` are read entry by entry. Of 12 and 16 terms that takes
# 0.8 to 2.1 of the library's time (8 to 16 rows and columns), of 8 it takes 0.4 to 1.0; of 9 and 10, for which the
# library has no vector code, 0.4 to 0.8, and for 3 to 6 rows and columns 0.3 to 0.9.
SHORT, LANES = 8, 4
# What is elementwise is fused into what is written out here, and computed once for each row or column of the other
# operand. Where the gain is small that may take it all; where it is not, what XLA calls one element at a time may.
COSTLY = frozenset("sin cos tan asin acos atan atan2 cbrt pow lgamma digamma erf_inv".split())
ELEMENTWISE = frozenset(NAMES)
# What is reduced as fast from a product that is written out; of others (`tanh`, `exp`, `max`, `abs`) a sum along the
# rows took 1.5 to 2 times as long, and more memory: XLA's library makes the product and the sum in one.
OF_SUMS = frozenset("mul integer_pow square neg convert_element_type".split())


@on(
    "dot_general",
    stage="after",
    platforms=("cpu",),
    exactness="reassociates",
    reason="XLA's CPU backend multiplies small matrices one by one; written out, the batch is one loop",
)
def small_product(a: Any, b: Any, *, site: Site, dimension_numbers: Any, **params: Any) -> Any:
    """Products whose sums have few terms."""
    dtype = params.get("preferred_element_type") or a.dtype
    if not a.dtype == b.dtype == dtype or dtype not in (jnp.float32, jnp.float64):
        return f"{a.dtype.name} numbers"
    if params.get("out_sharding") is not None or site.over_devices:
        return "its values may be spread over devices"
    ((ca, cb), (ba, bb)) = dimension_numbers
    batch, terms = math.prod(a.shape[i] for i in ba), math.prod(a.shape[i] for i in ca)
    rows, columns = _free(a.shape, ca, ba), _free(b.shape, cb, bb)
    if 0 in (batch, terms, rows, columns):
        return "it has no elements"
    several = rows > 1 or columns > 1  # else no entry of an operand is needed twice
    few = several and (1 in (rows, columns) or rows * terms * columns < 32)
    little = few if batch > 1 else terms in (1, IN_LIBRARY)
    avoided = ELEMENTWISE if little else COSTLY if batch == 1 else frozenset[str]()
    if batch == 1 and max(terms, min(rows, columns)) > IN_LIBRARY:
        avoided = COSTLY | DEAR  # computed for each column; cheap arithmetic is not worth an array of its own
    again = next((name for name in (site.maker(0), site.maker(1)) if name in avoided), None)
    if again is not None:
        return f"`{again}` makes an operand, and would be computed for each row or column of the other"
    if little and not COSTLY.isdisjoint(site.readers()):
        return "what reads it takes much longer, and is as fast from memory"
    if batch > 1:
        meet = a.ndim - 1 in ca and b.ndim - 1 in cb
        reason = _of_batch(batch, terms, rows, columns, meet)
    else:
        k = 0 if rows > columns else 1
        last = sorted((ca, cb)[k]) == list(range((a, b)[k].ndim - len(ca), (a, b)[k].ndim))
        strided = last and site.maker(k) != "transpose"
        reason = _of_rows(max(rows, columns), terms, min(rows, columns), strided or (k == 0 and terms == IN_LIBRARY))
    if reason is not None:
        return reason
    if batch == 1 and not site.computed_before_rows_are_reduced() <= OF_SUMS:
        return "what is computed of it is reduced along its rows, which takes as long from the product itself"
    written = term_by_term(a, b, dimension_numbers)
    return stored(written) if terms > 1 and site.is_reduced() else written


def _free(shape: Any, contracted: Any, batch: Any) -> int:
    return math.prod(n for i, n in enumerate(shape) if i not in (*contracted, *batch))


def _of_batch(batch: int, terms: int, rows: int, columns: int, meet: bool) -> str | None:
    """Why products of so many matrices of this size stay as they are; `meet`, where rows are multiplied with rows."""
    if max(terms, rows, columns) > LARGEST:
        return f"larger than {LARGEST} x {LARGEST}"
    if meet and min(rows, columns) >= SHORT and terms > SHORT and terms % LANES == 0:
        return f"rows of {terms} entries with rows, which are read as vectors where they lie"
    if rows == columns == 1:
        return None if batch >= FEWEST_ROWS else f"fewer than {FEWEST_ROWS} products of vectors"
    if terms < 3:
        return "sums of two terms, which XLA writes out itself"
    if 1 in (rows, columns):
        fits = 4 <= terms <= 6 and batch >= 256
        return None if fits else "matrices with vectors, which XLA's own loop takes as long for"
    work = rows * terms * columns
    fewest = 1024 if work < 32 or work > 343 else 16
    return None if batch >= fewest else f"fewer than {fewest} products of {rows} x {terms} x {columns}"


def _of_rows(rows: int, terms: int, columns: int, slow: bool) -> str | None:
    """Why the product of so many rows with one small matrix stays as it is; `slow`, where XLA has no good loop."""
    if terms > MOST_SHARED or columns > MOST_SHARED:
        return f"one product with more than {MOST_SHARED} terms or columns"
    if rows < FEWEST_ROWS:
        return f"one product with fewer than {FEWEST_ROWS} rows"
    return None if slow else "one product, whose rows lie one after the other already"
