"""The price of a product: the orders of its operands and of its result."""

from collections.abc import Collection, Sequence
from functools import cached_property

from jax import lax

from ..products import Form, Product
from .orders import Order, copy_weight
from .price import Link, Orders, Price


class Multiplying(Price):
    """Seats: the operands of a product, and its result."""

    def __init__(self, product: Product):
        super().__init__()
        self.product = product
        self._best: dict[Orders, tuple[float, Form | None]] = {}
        batch, free, contract = product.batch, product.free, product.contract
        count = len(batch[0])
        links: list[Link] = []
        for side, start in ((0, count), (1, count + len(free[0]))):
            links += [((side, d), (2, b)) for b, d in enumerate(batch[side])]
            links += [((side, d), (2, start + k)) for k, d in enumerate(free[side])]
        links += [((0, a), (1, b)) for a, b in zip(*contract, strict=True)]
        self.links = tuple(links)

    @cached_property
    def whole(self) -> int | None:
        """Of a product without sums, an operand that has all dimensions of the result; None if neither has, or it sums.

        XLA multiplies entry by entry there, and in any order.
        """
        p = self.product
        if p.contract[0] or isinstance(p.eqn.params.get("precision"), lax.DotAlgorithm):
            return None
        return next((k for k in (0, 1) if not p.free[1 - k]), None)

    def form(self, at: Orders) -> Form | None:
        """The cheapest form; None for one entry by entry, in the order of the result."""
        return self._cheapest(at)[1]

    def read(self, side: int, wanted: Order) -> Order:
        """The order of an operand that fits a result stored as `wanted`, where there are no sums."""
        return tuple(self._seen[side][place] for place in wanted if place in self._seen[side])

    def places(self, side: int) -> Collection[int]:
        """Where in the result the dimensions of an operand are that are not summed over."""
        return self._seen[side]

    def burden(self, at: Orders) -> float:
        """What the product takes longer for the form that it has."""
        form = self.form(at)
        return 0.0 if form is None else self.product.burden(form)

    @cached_property
    def _seen(self) -> tuple[dict[int, int], ...]:
        """Of each operand, its dimensions by the places in the result."""
        return tuple({place: d for (k, d), (seat, place) in self.links if (k, seat) == (side, 2)} for side in (0, 1))

    def _cheapest(self, at: Orders) -> tuple[float, Form | None]:
        if at not in self._best:
            self._best[at] = self.product.best(*at)
            if self.whole is not None:
                avals = [x.aval for x in self.product.eqn.invars]
                read = sum(copy_weight(avals[k], at[k], self.read(k, at[2])) for k in (0, 1))
                if read < self._best[at][0]:
                    self._best[at] = read, None
        return self._best[at]

    def _weight(self, at: Orders) -> float:
        return self._cheapest(at)[0]

    def _tie(self, seat: int, order: Order) -> Order | None:
        if self.whole is None:
            return None
        places = {d: place for place, d in self._seen[self.whole].items()}
        return self.read(self.whole, order) if seat == 2 else tuple(places[d] for d in order)

    def _wish(self, seat: int, at: Orders) -> Sequence[Order]:
        if seat < 2:
            entries = [] if self.whole is None else [self.read(seat, at[2])]
            return [*self.product.wishes(seat, at[2], at[1 - seat]), *entries]
        entries = [] if self.whole is None else [self.tie(self.whole, at[self.whole])]
        return list(dict.fromkeys([*(form.out for form in self.product.forms(*at)), *filter(None, entries)]))
