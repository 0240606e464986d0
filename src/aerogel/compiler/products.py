"""The forms of a product: which operand comes first, and in which order each is presented.

A `dot_general` yields batch, left free and right free dimensions, in the order in which its operands hold them. So
another order of the result is another order of operands, as far as they are stored to fit; what does not fit is
copied. XLA copies an operand too whose dimensions are not batch, free, contracted (or batch, contracted, free).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jax import lax

from aerogel._jax import JaxprEqn

from .cost import nbytes
from .orders.orders import Order, copy_weight, natural, permute


@dataclass(frozen=True)
class Handling:
    """What a platform's matrix product does to its operands, per byte, where one byte copied row by row is 1.

    Attributes:
        right: the right operand, which is packed; as much again when its last dimension is contracted.
        turned: the left operand when its last dimension is not contracted, and then a right one whose is.
        against: of a batch of thin products, the right operand when its last dimension is contracted.
        thin_turned: of one thin and deep product, the left operand when its last dimension is not contracted.
        thin_against: of one thin and deep product, the right operand when its last dimension is contracted.
        per_term: of a batch of these, one multiplication then, for which there is a plain loop; of rows of the right
            operand shorter than a register, `LANES` numbers, the loop takes as long as for one. As much where the right
            operand is read against its rows and these are shorter than a register.
        per_call: of such a batch, what each product costs otherwise: a call of the library.
        per_lane: of a batch, one multiplication of those that fill a register up beside the last columns of a result.
        small_turned: of small matrices, each product whose left operand's last dimension is not contracted.
    """

    right: float = 0.0
    turned: float = 0.0
    against: float = 0.0
    thin_turned: float = 0.0
    thin_against: float = 0.0
    per_term: float = 0.0
    per_call: float = 0.0
    per_lane: float = 0.0
    small_turned: float = 0.0


# Only their ratio was measured (jaxlib 0.10.2, 64 to 4096 rows, 64 to 1024 columns). They are this small because they
# decide only between layouts that copy alike: how much of them threads hide is another thing on every machine, and XLA
# folds a transpose that is made instead. Elsewhere libraries take all forms alike.
#
# Of a batch of thin products little else is done than to read the large operand. On two cores one copied byte takes 25
# to 100 ps; a right operand whose last dimension is contracted took 35 to 115 ps more per byte. A left one whose is not
# XLA reads in a loop of its own: 100 ps more per multiplication than the library takes, 700 for 5 columns, and 150 ns
# less per product (8 to 30 products of 4 to 40 rows, 10 to 100 terms); of one product the library takes 130 to 330 ps
# more per byte, 300 to 800 on an Intel Cascade Lake, and 80 to 190 of a right one that it reads against its rows (8 to
# 64 rows, 64 to 512 terms, 512 to 8192 columns: 16 to 60 % of such a product's time). This judges outcomes only: no
# search should give up copies that fuse to please a product that is fast either way.
THIN = 64  # rows or columns of the other operand, up to which a product is a thin one
HANDLING = {
    "cpu": Handling(
        right=0.5 / 128,
        turned=4.0 / 128,
        against=0.5,
        thin_turned=4.0,
        thin_against=1.0,
        per_term=2.0,
        per_call=3000.0,
        per_lane=0.3,
        small_turned=16000.0,
    )
}
LANES = 16
# Of a shallow product the library reads either way (the integrals of a quantum chemist, 12 x 1728, in a chain of four
# such products: 0.75 of plain JAX's time, and as much as that with what else it takes to have them the other way).
DEEP = 32
LEAST_BYTES = 1 << 12  # of its operand: less is read in the time that a transpose takes to begin
# The library has no code of its own for small matrices read so: 1 us more for each product of 8 to 32 rows, terms and
# columns, 0.7 in a batch of four (a transpose of so little is fused, and free). The smallest XLA multiplies itself.
SMALL_BYTES = 1 << 14
FEWEST_MULTIPLIED = 512


@dataclass(frozen=True)
class Form:
    """One way to make a product.

    Attributes:
        swapped: whether the right operand comes first.
        batch: the order of the batch dimensions, as positions among them.
        left, right: the order in which each operand is presented.
        out: the order of the result, over the dimensions that the program gives it.
    """

    swapped: bool
    batch: Order
    left: Order
    right: Order
    out: Order

    def params(self, eqn: JaxprEqn) -> dict[str, Any]:
        """Parameters of the equation in this form."""
        contract, batch = eqn.params["dimension_numbers"]
        sides = []
        for k, order in enumerate((self.left, self.right)):
            sides.append((
                tuple(order.index(d) for d in contract[k]),
                tuple(order.index(batch[k][b]) for b in self.batch),
            ))  # fmt: skip
        (ac, ab), (bc, bb) = reversed(sides) if self.swapped else sides
        params = dict(eqn.params, dimension_numbers=((ac, bc), (ab, bb)))
        precision = params.get("precision")
        if self.swapped and type(precision) is tuple:  # one per operand; a `DotAlgorithm` is a named tuple
            params["precision"] = precision[::-1]
        return params


@dataclass(frozen=True)
class Product:
    """A `dot_general` and the roles of its operands' dimensions.

    Attributes:
        count: of the batch.
        rows: of each operand, the places that are not contracted.
    """

    eqn: JaxprEqn
    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    free: tuple[tuple[int, ...], tuple[int, ...]]
    handling: Handling
    count: int
    rows: tuple[int, int]

    @staticmethod
    def of(eqn: JaxprEqn, platform: str) -> "Product":
        """The roles in `eqn`."""
        (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
        free = [
            tuple(d for d in range(len(x.aval.shape)) if d not in c and d not in b)
            for x, c, b in zip(eqn.invars, (lc, rc), (lb, rb), strict=True)
        ]
        sizes = [math.prod(permute(x.aval.shape, f)) for x, f in zip(eqn.invars, free, strict=True)]
        # A matrix times a vector is no matrix product: both ways it is one walk over the matrix.
        handling = HANDLING.get(platform, Handling()) if min(sizes) > 1 else Handling()
        count = math.prod(permute(eqn.invars[0].aval.shape, tuple(lb)))
        return Product(
            eqn,
            (tuple(lc), tuple(rc)),
            (tuple(lb), tuple(rb)),
            (free[0], free[1]),
            handling,
            count,
            (sizes[0], sizes[1]),
        )

    def as_written(self) -> Form:
        """The form that the program has."""
        left, right = (natural(len(x.aval.shape)) for x in self.eqn.invars)
        return self.form(False, natural(len(self.batch[0])), left, right)

    def form(self, swapped: bool, batch: Order, left: Order, right: Order) -> Form:
        """The form with these choices, and the order of its result."""
        count = len(batch)
        of_left = tuple(count + self.free[0].index(d) for d in left if d in self.free[0])
        of_right = tuple(count + len(self.free[0]) + self.free[1].index(d) for d in right if d in self.free[1])
        return Form(swapped, batch, left, right, batch + (of_right + of_left if swapped else of_left + of_right))

    def best(self, left: Order, right: Order, wanted: Order) -> tuple[float, Form]:
        """The cheapest form for operands stored as `left` and `right` and a result stored as `wanted`, and its weight.

        The weight is in bytes copied: by transposes of operands and result, and by the product itself.
        """
        found: tuple[Any, Form] | None = None
        for form in self.forms(left, right, wanted):
            weight = self.weight(form, left, right, wanted)
            # Of equal ones the one that is nearest to the program as it was written.
            key = (weight, form.out != wanted, form.left != left, form.right != right, form.swapped)
            if found is None or key < found[0]:
                found = key, form
        assert found is not None
        return found[0][0], found[1]

    def forms(self, left: Order, right: Order, wanted: Order) -> list[Form]:
        """The forms worth a look."""
        count = len(self.batch[0])
        batches = {tuple(d for d in wanted if d < count): None}
        for k, order in enumerate((left, right)):
            batches[tuple(self.batch[k].index(d) for d in order if d in self.batch[k])] = None
        swaps = (False, True) if may_swap(self.eqn.params.get("precision")) else (False,)
        found = (
            self.form(swapped, batch, one, other)
            for batch in batches
            for one in (left, *self._presented(0, batch, left, wanted))
            for other in (right, *self._presented(1, batch, right, wanted))
            for swapped in swaps
        )
        return list(dict.fromkeys(found))

    def weight(self, form: Form, left: Order, right: Order, wanted: Order) -> float:
        """What a form copies, in bytes."""
        one, other = (x.aval for x in self.eqn.invars)
        weight: float = copy_weight(one, left, form.left) + copy_weight(other, right, form.right)
        weight += copy_weight(self.eqn.outvars[0].aval, form.out, wanted)
        sides = [self._side(k, order, form.batch) for k, order in enumerate((form.left, form.right))]
        for k, order in enumerate((form.left, form.right)):
            weight += 0 if sides[k].regular else self._made_regular(k, order, form.batch, k == form.swapped)
        if sides[0].contracted != sides[1].contracted and sides[0].regular and sides[1].regular:
            weight += 2 * min(nbytes(one), nbytes(other))
        first, second = (1, 0) if form.swapped else (0, 1)
        sizes = [nbytes(x.aval) for x in self.eqn.invars]
        # What is copied anyway is copied as the product likes it.
        turned = sides[first].regular and not sides[first].contracts_last
        against = sides[second].regular and sides[second].contracts_last
        weight += self.handling.against * (against and self.count > 1 and self.rows[first] <= THIN) * sizes[second]
        weight += self.handling.right * sizes[second] * (2 if against else 1)
        return weight + self.handling.turned * (turned * sizes[first] + (turned and against) * sizes[second])

    def burden(self, form: Form) -> float:
        """What a form takes longer because an operand is read against its rows, as so many bytes copied."""
        first, second = (1, 0) if form.swapped else (0, 1)
        left, right = (self._side(k, (form.left, form.right)[k], form.batch) for k in (first, second))
        against = left.regular and not left.contracts_last
        right_against = right.regular and right.contracts_last
        short = self.count > 1 and right_against and self._depth() < LANES
        x, y = (self.eqn.invars[k].aval for k in (first, second))
        lost = self.handling.per_lane * x.size * (-self.rows[second] % LANES) if self.count > 1 else 0.0
        lost = max(lost, self.handling.small_turned * self.count * (against and self._is_small()))
        if self.count == 1:
            if lost or self._depth() < DEEP:
                return lost
            read = (
                (self.handling.thin_turned, nbytes(x), against and self.rows[second] <= THIN),
                (self.handling.thin_against, nbytes(y), right_against and self.rows[first] <= THIN),
            )
            return sum(price * size for price, size, applies in read if applies and size >= LEAST_BYTES)
        if self.rows[second] > THIN or not (against or short):
            return lost
        terms = x.size * self.rows[second] * max(1.0, LANES / max(1, self.rows[second]))
        return max(lost, self.handling.per_term * terms - self.handling.per_call * self.count)

    def _is_small(self) -> bool:
        """Whether the library is called for matrices so small that how it reads them counts."""
        multiplied = self.rows[0] * self.rows[1] * self._depth()
        largest = max(nbytes(x.aval) for x in self.eqn.invars) // max(1, self.count)
        return multiplied >= FEWEST_MULTIPLIED and largest <= SMALL_BYTES

    def _depth(self) -> int:
        """How many terms one sum has."""
        return math.prod(permute(self.eqn.invars[0].aval.shape, self.contract[0]))

    def wishes(self, side: int, wanted: Order, other: Order) -> list[Order]:
        """Orders of an operand that a product likes whose result is stored as `wanted` and the other operand so."""
        count = len(self.batch[0])
        batch = tuple(self.batch[side][b] for b in wanted if b < count)
        free = self._free_as(side, wanted)
        pairs = dict(zip(self.contract[1 - side], self.contract[side], strict=True))
        alike = tuple(pairs[d] for d in other if d in pairs)
        contracted = dict.fromkeys((self.contract[side], alike))
        return [order for c in contracted for order in (batch + free + c, batch + c + free)]

    def _presented(self, side: int, batch: Order, stored: Order, wanted: Order) -> list[Order]:
        """An operand copied so that its free dimensions are those of the result; none if they are already.

        XLA folds any other copy into the product again.
        """
        free = self._free_as(side, wanted)
        if free == tuple(d for d in stored if d in free):
            return []
        contract = tuple(d for d in stored if d in self.contract[side])
        return [tuple(self.batch[side][b] for b in batch) + free + contract]

    def _free_as(self, side: int, wanted: Order) -> Order:
        first = len(self.batch[0]) + (len(self.free[0]) if side else 0)
        free = self.free[side]
        return tuple(free[d - first] for d in wanted if first <= d < first + len(free))

    def _made_regular(self, side: int, order: Order, batch: Order, is_left: bool) -> int:
        """XLA gives the left operand its contracted dimensions last, and the right one its free dimensions."""
        free, contract = (tuple(d for d in order if d in dims[side]) for dims in (self.free, self.contract))
        tail = free + contract if is_left else contract + free
        return copy_weight(self.eqn.invars[side].aval, order, permute(self.batch[side], batch) + tail)

    def _side(self, side: int, order: Order, batch: Order) -> "_Side":
        shape = self.eqn.invars[side].aval.shape
        places, batched = self.contract[side], self.batch[side]
        contracted = tuple(places.index(d) for d in order if d in places and shape[d] != 1)
        head = [batched[b] for b in batch if shape[batched[b]] != 1]
        large = [d for d in order if shape[d] != 1]
        tail = [d in places for d in large[len(head) :]]
        changes = sum(a != b for a, b in pairwise(tail))
        return _Side(large[: len(head)] == head and changes <= 1, True not in tail or tail[-1], contracted)


@dataclass(frozen=True)
class _Side:
    """How an operand lies: as a batch of matrices (`regular`)? Its contracted dimensions, last? In which order?"""

    regular: bool
    contracts_last: bool
    contracted: Order


def may_swap(precision: Any) -> bool:
    """Whether the operands may change places: not if an algorithm takes each of them apart in its own way."""
    if not isinstance(precision, lax.DotAlgorithm):
        return True
    p = precision
    return (p.lhs_precision_type, p.lhs_component_count) == (p.rhs_precision_type, p.rhs_component_count)


def place_of_terms(rank: int, contracted: Sequence[int], batch: Sequence[int]) -> str | None:
    """Where an operand's contracted axes are: "first" or "last" behind those of the batch; None where XLA copies it."""
    if tuple(batch) != tuple(range(len(batch))):
        return None
    places = sorted(contracted)
    if places == list(range(len(batch), len(batch) + len(places))):
        return "first"
    return "last" if places == list(range(rank - len(places), rank)) else None
