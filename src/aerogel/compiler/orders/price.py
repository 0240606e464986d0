"""A price: what the orders of a few values cost together, and which orders would suit."""

from collections.abc import Sequence

from .orders import Order

Orders = tuple[Order, ...]
# Two dimensions that are one: (seat, dimension) twice.
Link = tuple[tuple[int, int], tuple[int, int]]


class Price:
    """What is copied for given orders, and which other orders might suit.

    Attributes:
        links: dimensions of different seats that are one dimension.
    """

    links: tuple[Link, ...] = ()

    def __init__(self) -> None:
        self._weights: dict[Orders, float] = {}
        self._wishes: dict[tuple[int, Orders], Sequence[Order]] = {}
        self._ties: dict[tuple[int, Order], Order | None] = {}

    def weight(self, at: Orders) -> float:
        """Bytes copied when the seats are stored in the orders `at`."""
        found = self._weights.get(at)
        if found is None:
            found = self._weights[at] = self._weight(at)
        return found

    def wishes(self, seat: int, at: Orders) -> Sequence[Order]:
        """Orders of a seat that might suit those of the others."""
        found = self._wishes.get((seat, at))
        if found is None:
            found = self._wishes[seat, at] = self._wish(seat, at)
        return found

    def tie(self, seat: int, order: Order) -> Order | None:
        """The order of the other one of two seats with which nothing is copied when `seat` is stored in `order`."""
        key = seat, order
        if key not in self._ties:
            self._ties[key] = self._tie(seat, order)
        return self._ties[key]

    def burden(self, at: Orders) -> float:
        """What is done more slowly, as so many bytes copied, in ways that only the outcome of a search is judged by."""
        return 0.0

    def _weight(self, at: Orders) -> float:
        raise NotImplementedError

    def _wish(self, seat: int, at: Orders) -> Sequence[Order]:
        raise NotImplementedError

    def _tie(self, seat: int, order: Order) -> Order | None:
        return None
