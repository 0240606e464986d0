"""Products of bfloat16 on processors that multiply it: of the short numbers themselves, summed up in float32.

XLA's CPU backend converts both operands of such a product to float32 and multiplies these, unless the result is to be
float32 and the left operand's terms are the last axis: then its library takes the short numbers as they are.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from ..cost import Machine
from ..products import place_of_terms
from ..record import record
from .on import on
from .site import Site

# Measured on 2 cores of an AMD EPYC with AVX512_BF16, jaxlib 0.10.2 (docs/reference/catalogue-linear-algebra.md has
# the table). Below so many multiplications starting the kernels takes as long,
FEWEST = 1 << 18
FEWEST_TURNED = 1 << 16  # where the terms are the first axis of both, for which XLA has a slow loop,
FEWEST_OF_ONE = 1 << 9  # and of each product of a batch.
# Of many terms that are computed, XLA makes float32 at once, and the copy of a turned operand takes longer than the
# product of a narrow result gains: results of 8 to 30 rows or columns and 10,000 terms or more took 1.05 to 1.3 times
# as long, those of 64 and 128 0.5 to 0.9.
NARROW, LONG = 64, 1 << 12


@on(
    "dot_general",
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="XLA's CPU backend would convert both operands to float32 first; the processor multiplies bfloat16",
)
def bfloat16_product(a: Any, b: Any, *, site: Site, dimension_numbers: Any, **params: Any) -> Any:
    """A B with its terms summed up in float32, which then are rounded once.

    No transpose may be folded into it: XLA decides early what its library takes, and what is turned afterwards is no
    such product any more and does not run ("Unsupported element type for DotThunk::Execute", jaxlib 0.10.2). So
    barriers stand before its left operand and after it; a left operand that is turned is stored that way for sure.
    """
    dtype = jnp.dtype(params.get("preferred_element_type") or a.dtype)
    if not a.dtype == b.dtype == jnp.bfloat16 or dtype not in (jnp.bfloat16, jnp.float32):
        return f"{a.dtype.name} times {b.dtype.name} in {dtype.name}"
    if not multiplies_bfloat16(site.machine):
        return "the processor has no AVX512_BF16, and how XLA's library does without was not measured"
    if isinstance(params.get("precision"), lax.DotAlgorithm):
        return "an algorithm is asked for"
    if params.get("out_sharding") is not None or site.over_devices:
        return "its values may be spread over devices"
    sides = _Sides.of(a.shape, b.shape, dimension_numbers)
    reason = sides.reason(dtype == jnp.float32, {*site.readers()})
    is_turned = sides.copies() or "transpose" in (site.maker(0), site.maker(1))
    if reason is None and is_turned and sides.is_narrow() and (site.computed(0) or site.computed(1)):
        return "the result is narrow, and XLA computes an operand of so many terms in float32"
    return reason or lax.convert_element_type(sides.product(a, b), dtype)


def multiplies_bfloat16(machine: Machine) -> bool:
    """Whether a machine's processor has instructions for such products."""
    return machine.multiplies_bfloat16


@record
class _Operand:
    """An operand as matrices of `free` rows or columns.

    Attributes:
        axes: of the batch, and then the free ones and the contracted ones, in the order in which they are stored.
        copied: whether that is another order than the operand's. XLA would copy it, too.
        lies: where the terms are, "first" or "last" behind the axes of the batch.
        sizes: of the axes of the batch, and of the free ones.
        terms: of each entry of the result.
    """

    axes: tuple[int, ...]
    copied: bool
    lies: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    terms: int

    @classmethod
    def of(cls, shape: tuple[int, ...], contracted: tuple[int, ...], batch: tuple[int, ...]) -> "_Operand":
        """The operand of a product; what is copied keeps its last axis last."""
        rank = len(shape)
        free = tuple(i for i in range(rank) if i not in (*contracted, *batch))
        found = place_of_terms(rank, contracted, batch) if list(contracted) == sorted(contracted) else None
        lies = found or ("first" if rank - 1 in free else "last")
        axes = (*batch, *contracted, *free) if lies == "first" else (*batch, *free, *contracted)
        sizes = tuple(shape[i] for i in batch), tuple(shape[i] for i in free)
        return cls(axes, found is None, lies, sizes, math.prod(shape[i] for i in contracted))

    @property
    def free(self) -> int:
        """How many rows or columns it has."""
        return math.prod(self.sizes[1])

    def matrices(self, x: Any) -> Any:
        """Its matrices as they are stored; one where there is no batch."""
        shape = (self.terms, self.free) if self.lies == "first" else (self.free, self.terms)
        batch = math.prod(self.sizes[0])
        return lax.reshape(lax.transpose(x, self.axes) if self.copied else x, shape if batch == 1 else (batch, *shape))

    def rows(self, x: Any) -> Any:
        """Its matrices with their terms last, stored so."""
        rows = self.matrices(x)
        if self.lies == "last" and not self.copied:  # XLA makes one kernel of several layers
            return lax.optimization_barrier(rows)
        rows = jnp.swapaxes(rows, -1, -2) if self.lies == "first" else rows
        return with_layout_constraint(rows, Layout(tuple(range(rows.ndim))))


@record
class _Sides:
    """The operands of a product."""

    left: _Operand
    right: _Operand

    @classmethod
    def of(cls, left: tuple[int, ...], right: tuple[int, ...], dimension_numbers: Any) -> "_Sides":
        """Those of the operands of these shapes."""
        (ca, cb), (ba, bb) = dimension_numbers
        paired = sorted(zip(ca, cb, strict=True))
        return cls(
            _Operand.of(left, tuple(x for x, _ in paired), ba), _Operand.of(right, tuple(y for _, y in paired), bb)
        )

    def reason(self, longer: bool, readers: set[str]) -> str | None:
        """Why the product stays as it is; `longer`, whether its result is float32 already."""
        batch, rows, columns = math.prod(self.left.sizes[0]), self.left.free, self.right.free
        matrices = not self.left.sizes[0] and len(self.left.sizes[1]) == len(self.right.sizes[1]) == 1
        if longer and readers == {"optimization_barrier"}:
            return "it is made of the short numbers already"
        if longer and matrices and self.left.lies == "last" and "transpose" not in readers:
            return "XLA makes it of the short numbers"
        if 1 in (rows, columns):
            return "a matrix with a vector, which XLA's own loop takes as long for"
        each = rows * columns * self.left.terms
        fewest = FEWEST_TURNED if self.left.lies == self.right.lies == "first" else FEWEST
        return (
            None if batch * each >= fewest and each >= FEWEST_OF_ONE else f"{batch * each} multiplications are too few"
        )

    def is_narrow(self) -> bool:
        """Whether it is one product of many terms with few rows or columns."""
        return not self.left.sizes[0] and min(self.left.free, self.right.free) < NARROW and self.left.terms >= LONG

    def copies(self) -> bool:
        """Whether an operand is stored anew with its terms last."""
        return (self.right if self._is_turned() else self.left).lies == "first"

    def product(self, a: Any, b: Any) -> Any:
        """The result in float32."""
        left, right = self.left, self.right
        if self._is_turned():
            made = jnp.swapaxes(_product(right.rows(b), left.matrices(a), left.lies), -1, -2)
        else:
            made = _product(left.rows(a), right.matrices(b), right.lies)
        return lax.reshape(made, (*left.sizes[0], *left.sizes[1], *right.sizes[1]))

    def _is_turned(self) -> bool:
        """Whether the operands change places, so that none is copied, or the one of fewer numbers."""
        return self.left.lies == "first" and (self.right.lies == "last" or self.right.free < self.left.free)


def _product(rows: Any, other: Any, lies: str) -> Any:
    """Matrices whose terms are last with others."""
    last, rank = rows.ndim - 1, other.ndim
    batch = tuple(range(rank - 2))
    contracted = ((last,), (rank - (2 if lies == "first" else 1),))
    made = lax.dot_general(rows, other, (contracted, (batch, batch)), preferred_element_type=jnp.float32)
    return lax.optimization_barrier(made)
