"""The forms of a product: which operand comes first, and in which order each is presented.

A `dot_general` yields batch, left free and right free dimensions, in the order in which its operands hold them. So
another order of the result is another order of operands, as far as they are stored to fit; what does not fit is
copied. XLA copies an operand too whose dimensions are not batch, free, contracted (or batch, contracted, free).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from jax import lax

from aerogel._jax import JaxprEqn

from .cost import nbytes
from .handling import HANDLING, THIN, Handling
from .orders.orders import Order, copy_weight, natural, permute
from .record import record

LANES = 16
# Of a shallow product the library reads either way (the integrals of a quantum chemist, 12 x 1728, in a chain of four
# such products: 0.75 of plain JAX's time, and as much as that with what else it takes to have them the other way).
DEEP = 32
LEAST_BYTES = 1 << 12  # of its operand: less is read in the time that a transpose takes to begin
# The library has no code of its own for small matrices read so: 1 us more for each product of 8 to 32 rows, terms and
# columns, 0.7 in a batch of four (a transpose of so little is fused, and free). The smallest XLA multiplies itself.
SMALL_BYTES = 1 << 14
FEWEST_MULTIPLIED = 512


@record
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


@record
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
        if not self.free[0] and not self.free[1]:  # XLA multiplies entry by entry, wherever they lie, and sums up
            return weight + (0 if self._lie_alike(form) else 2 * min(nbytes(one), nbytes(other)))
        sides = [self._side(k, order, form.batch) for k, order in enumerate((form.left, form.right))]
        for k, order in enumerate((form.left, form.right)):
            weight += 0 if sides[k].regular else self._made_regular(k, order, form.batch, k == form.swapped)
        weight += self._sorted_batch(form)
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

    def _sorted_batch(self, form: Form) -> float:
        """What XLA copies more where operands hold their batches in different orders, of which it takes the first's."""
        if not self.handling.sorted:
            return 0.0
        k = int(form.swapped)
        stored, of_second = self._stored_batch(k, form), self._stored_batch(1 - k, form)
        shape = self.eqn.invars[k].aval.shape
        kept, beside, wanted = (
            [b for b in order if shape[self.batch[k][b]] != 1] for order in (stored, of_second, form.batch)
        )
        if kept == beside:
            return 0.0
        copied = self.handling.sorted * nbytes(self.eqn.invars[1 - k].aval)
        # A result in the order of the second operand is made in that of the first one, too.
        return (
            copied
            if kept == wanted
            else copied + self._made_regular(1 - k, (form.left, form.right)[1 - k], stored, False)
        )

    def _lie_alike(self, form: Form) -> bool:
        pairs = dict(zip(self.contract[1] + self.batch[1], self.contract[0] + self.batch[0], strict=True))
        return form.left == tuple(pairs[d] for d in form.right)

    def _stored_batch(self, side: int, form: Form) -> Order:
        batch, order = self.batch[side], (form.left, form.right)[side]
        return tuple(batch.index(d) for d in order if d in batch)

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


@record
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
