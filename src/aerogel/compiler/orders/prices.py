"""What orders cost where they meet: at readers, at equations that carry an order, at products.

A price depends on nothing but types, parameters and orders, so that alike places of a program share one, which
remembers its answers. Its orders are given in *seats*: first those of operands, last that of the result or reader.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from functools import cache
from typing import Any, TypeVar

from aerogel._jax import JaxprEqn

from ..cost import nbytes
from ..kept import Kept
from ..products import Product
from ..record import record
from .multiplying import Multiplying
from .orders import REDUCTIONS, Order, carry, copy_weight, last_large, natural, operand_order, pull, result_order
from .price import Orders, Price

# A cumulative product of 100 x 32 x 32 in float64 took 0.8 ms longer along rows: as long as to copy it so often.
ALONG_ROWS = 16.0
# XLA sums vectors along rows, and across them entry after entry: gradients of attention in windows, whose scores were
# made with the 16 queries last for the sake of one transpose, took 1.07 to 1.26 of the time. Long rows it sums up as
# vectors beside each other.
ACROSS_ROWS = 1.0
SHORT_ROW = 64


class Reading(Price):
    """Seats: a value, and who reads it in an order of its own; between them may stand broadcasts."""

    def __init__(self, aval: Any, rank: int, chain: Sequence[JaxprEqn], linked: bool):
        super().__init__()
        self.aval, self.chain = aval, chain
        self.links = tuple(((0, d), (1, d)) for d in range(rank)) if linked else ()

    def _weight(self, at: Orders) -> float:
        return copy_weight(self.aval, at[0], _under(self.chain, at[1]))

    def _wish(self, seat: int, at: Orders) -> Sequence[Order]:
        return (self._tie(1 - seat, at[1 - seat]),)

    def _tie(self, seat: int, order: Order) -> Order:
        return _under(self.chain, order) if seat else _over(self.chain, order)


class Carrying(Price):
    """Seats: the operand of one of `CARRIERS` (or what it repeats), and the result."""

    def __init__(self, eqn: JaxprEqn, aval: Any, chain: Sequence[JaxprEqn]):
        super().__init__()
        self.eqn, self.aval, self.chain = eqn, aval, chain
        if eqn.primitive.name != "reshape":
            forward = pull(eqn, natural(len(eqn.outvars[0].aval.shape)))
            assert forward is not None, "the natural order is always possible"
            gone = {*eqn.params.get("axes", ()), *eqn.params.get("dimensions", ())}
            self.links = tuple(((0, d), (1, k)) for k, d in enumerate(d for d in forward if d not in gone))

    def choices(self, stored: Order, wanted: Order) -> list[tuple[float, Order]]:
        """Orders in which the equation may read its operand, each with what is copied: operand first, or result."""
        out, rank = self.eqn.outvars[0].aval, len(self.eqn.invars[0].aval.shape)
        orders = [*([] if self.chain else [stored]), pull(self.eqn, wanted), natural(rank)]
        found: list[tuple[float, Order]] = []
        for order in dict.fromkeys(orders):
            carried = None if order is None else carry(self.eqn, order)
            if order is not None and carried is not None:
                weight = copy_weight(self.aval, stored, _under(self.chain, order))
                weight += copy_weight(out, carried.order, wanted)
                found.append((weight, order))
        return found

    def _weight(self, at: Orders) -> float:
        return min(weight for weight, _ in self.choices(*at))

    def burden(self, at: Orders) -> float:
        """What a reduction takes longer that is across short rows, and was one along rows."""
        axes, rank = self.eqn.params.get("axes", ()), len(self.eqn.invars[0].aval.shape)
        if self.eqn.primitive.name not in REDUCTIONS or self.chain:
            return 0.0
        last, was_last = (last_large(self.aval, order) for order in (at[0], natural(rank)))
        across = was_last in axes and last not in axes and last is not None and self.aval.shape[last] < SHORT_ROW
        return ACROSS_ROWS * nbytes(self.aval) * across

    def _wish(self, seat: int, at: Orders) -> Sequence[Order]:
        if not seat:
            found = None if self.chain else pull(self.eqn, at[1])
        else:
            found = self._tie(0, natural(len(self.eqn.invars[0].aval.shape)) if self.chain else at[0])
        return () if found is None else (found,)

    def _tie(self, seat: int, order: Order) -> Order | None:
        if seat:
            return pull(self.eqn, order)
        carried = carry(self.eqn, order)
        return None if carried is None else carried.order


class Cumulating(Price):
    """Seats: what a cumulative sum or product makes, twice. XLA has vector code for several sums beside each other.

    One along rows is no reason to turn them: rules and other passes see to these. Attributes: `axis`, that of the sums.
    """

    def __init__(self, aval: Any, axis: int):
        super().__init__()
        self.aval, self.axis = aval, axis

    def _weight(self, at: Orders) -> float:
        along = [last_large(self.aval, order) == self.axis for order in (at[0], natural(len(at[0])))]
        return ALONG_ROWS * nbytes(self.aval) * (along == [True, False])

    def _wish(self, seat: int, at: Orders) -> Sequence[Order]:
        return ()


P = TypeVar("P", bound=Price)


@record
class Prices:
    """Prices, each made once for all equations that are alike."""

    platform: str
    _made: Kept[Any] = field(default_factory=lambda: Kept(1024))

    def reading(self, aval: Any, rank: int, chain: Sequence[JaxprEqn], linked: bool) -> Reading:
        """That of reading, by way of the broadcasts `chain`, a value of type `aval` as one of `rank` dimensions."""
        key = ("reading", aval.shape, aval.dtype, rank, _chain_key(chain), linked)
        return self._find(key, lambda: Reading(aval, rank, chain, linked))

    def carrying(self, eqn: JaxprEqn, aval: Any, chain: Sequence[JaxprEqn]) -> Carrying:
        """That of one of `CARRIERS` whose operand is made by the broadcasts `chain` of a value of type `aval`."""
        p, operand, out = eqn.params, eqn.invars[0].aval, eqn.outvars[0].aval
        said = tuple(p.get(name) for name in ("permutation", "axes", "dimensions", "new_sizes"))
        types = (operand.shape, operand.dtype, out.shape, out.dtype, aval.shape, aval.dtype)
        key = (eqn.primitive.name, said, types, _chain_key(chain))
        return self._find(key, lambda: Carrying(eqn, aval, chain))

    def cumulating(self, eqn: JaxprEqn) -> Cumulating:
        """That of a cumulative sum, product or extremum."""
        aval, axis = eqn.outvars[0].aval, eqn.params["axis"]
        return self._find(("cumulating", aval.shape, aval.dtype, axis), lambda: Cumulating(aval, axis))

    def multiplying(self, eqn: JaxprEqn) -> Multiplying:
        """That of a `dot_general`."""
        one, other, out = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
        p = eqn.params
        said = (p["dimension_numbers"], p["precision"])
        key = ("product", said, one.shape, one.dtype, other.shape, other.dtype, out.dtype)
        return self._find(key, lambda: Multiplying(Product.of(eqn, self.platform)))

    def _find(self, key: Hashable, make: Callable[[], P]) -> P:
        found = self._made.get(key)
        return self._made.put(key, make()) if found is None else found


@cache
def prices_on(platform: str) -> Prices:
    """Those that all programs on a platform share."""
    return Prices(platform)


def _chain_key(chain: Sequence[JaxprEqn]) -> Hashable:
    return tuple((eqn.invars[0].aval.shape, eqn.params["shape"], eqn.params["broadcast_dimensions"]) for eqn in chain)


def _under(chain: Sequence[JaxprEqn], order: Order) -> Order:
    """The order of what is repeated, of a value in an order."""
    for eqn in chain:
        order = operand_order(eqn, order)
    return order


def _over(chain: Sequence[JaxprEqn], order: Order) -> Order:
    """The order of a value, of what is repeated in an order."""
    for eqn in reversed(chain):
        order = result_order(eqn, order)
    return order
