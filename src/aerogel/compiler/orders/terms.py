"""All costs of a level that depend on orders, and which of its clusters depend on each other."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from aerogel._jax import Atom, Jaxpr, JaxprEqn

from ..cost.primitives import CUMULATIVE
from ..disjoint import DisjointSets
from ..program import is_var
from .layout import ENTRYWISE, Layout
from .multiplying import Multiplying
from .orders import Order
from .price import Price
from .prices import Carrying, Prices

FEW = 16  # of so many entries one is few


@dataclass(frozen=True, slots=True)
class Term:
    """A price at one place of a level.

    Attributes:
        eqn: the equation that it stands for; None for results of the program and readers that turn nothing.
        price: what it costs, alike terms share one.
        clusters: on which it depends.
        at: takes the orders of the price's seats from those of a layout.
        seats: by cluster, the seats of which it wishes other orders.
        tied: for two clusters of which one's order suits one order of the other: the seat of each.
        names: what sits where, as far as its dimensions are told apart.
    """

    eqn: JaxprEqn | None
    price: Price
    clusters: tuple[int, ...]
    at: Any
    seats: dict[int, tuple[int, ...]]
    tied: dict[int, int]
    names: tuple[Hashable | None, ...]

    def weight(self, orders: Sequence[Order]) -> float:
        """Bytes copied."""
        return self.price.weight(self.at(orders))

    def wishes(self, k: int, orders: Sequence[Order]) -> Iterator[Order]:
        """Orders of cluster `k` that might suit the term."""
        for seat in self.seats.get(k, ()):
            yield from self.price.wishes(seat, self.at(orders))

    def tie(self, k: int, order: Order) -> tuple[int, Order] | None:
        """If cluster `k` has an order, the other cluster and its order with which the term copies nothing."""
        seat = self.tied.get(k)
        found = None if seat is None else self.price.tie(seat, order)
        if found is None:
            return None
        return next(c for c in self.tied if c != k), found


def terms_of(jaxpr: Jaxpr, layout: Layout, prices: Prices) -> list[Term]:
    """All costs of the level that depend on orders, each distinct one once."""
    terms: list[Term] = []
    seen: set[Any] = set()

    def reader(x: Atom, cluster: int | None) -> None:
        key = (x, cluster) if is_var(x) else None
        if key in seen or not getattr(x.aval, "shape", ()):
            return
        term = _reader(x, cluster, layout, prices)
        if term is not None:
            seen.add(key)
            terms.append(term)

    for eqn, role in zip(jaxpr.eqns, layout.roles, strict=True):
        if role == "product":
            terms.append(_product(eqn, layout, prices))
        elif role == "carrier":
            terms.append(_carrier(eqn, layout, prices))
        elif role != "repeated":
            cluster = layout.cluster[eqn.outvars[0]] if role in ENTRYWISE else None
            terms += _cumulating(eqn, cluster, prices)
            for x in eqn.invars[1:] if _reads_few(eqn) else eqn.invars:
                reader(x, cluster)
    for x in jaxpr.outvars:
        reader(x, None)
    return terms


def _cumulating(eqn: JaxprEqn, cluster: int | None, prices: Prices) -> list[Term]:
    """What a cumulative sum costs along rows; nothing for other equations."""
    if cluster is None or eqn.primitive.name not in CUMULATIVE:
        return []
    return [Term(eqn, prices.cumulating(eqn), (cluster,), itemgetter(cluster, cluster), {}, {}, ())]


def _reads_few(eqn: JaxprEqn) -> bool:
    """Whether an equation reads few entries of its first operand, and XLA takes them through a transpose."""
    if eqn.primitive.name not in ("gather", "dynamic_slice", "slice"):
        return False
    return FEW * eqn.outvars[0].aval.size <= eqn.invars[0].aval.size


def _reader(x: Atom, cluster: int | None, layout: Layout, prices: Prices) -> Term | None:
    """`x` is read in the order of a cluster, or in its natural order; None if it is always stored like that."""
    value, chain = layout.broadcasts(x)
    behind = layout.cluster.get(value) if is_var(value) else None
    if behind == cluster:
        return None
    rank = len(x.aval.shape)
    price = prices.reading(value.aval, rank, chain, cluster is not None and is_var(x))
    seats = {k: (seat,) for seat, k in enumerate((behind, cluster)) if k is not None}
    places = (layout.place(value), layout.natural_place(rank) if cluster is None else cluster)
    tied = {} if behind is None or cluster is None else {behind: 0, cluster: 1}
    names = (x if behind is None else behind, cluster)
    return Term(None, price, tuple(seats), itemgetter(*places), seats, tied, names)


def _carrier(eqn: JaxprEqn, layout: Layout, prices: Prices) -> Term:
    x, result = eqn.invars[0], layout.cluster[eqn.outvars[0]]
    value, _ = layout.broadcasts(x)
    behind, operand = (layout.cluster.get(v) if is_var(v) else None for v in (value, x))
    seats = {result: (1,)} if operand in (None, result) else {operand: (0,), result: (1,)}
    tied = {} if operand in (None, result) else {operand: 0, result: 1}
    price, places = carrying(eqn, layout, prices)
    clusters = tuple({k for k in (behind, result) if k is not None})
    return Term(eqn, price, clusters, itemgetter(*places), seats, tied, (behind, result))


def carrying(eqn: JaxprEqn, layout: Layout, prices: Prices) -> tuple[Carrying, tuple[int, int]]:
    """The price of a carrier, and where in `layout.orders` the orders of its seats stand."""
    value, chain = layout.broadcasts(eqn.invars[0])
    return prices.carrying(eqn, value.aval, chain), (layout.place(value), layout.place(eqn.outvars[0]))


def _product(eqn: JaxprEqn, layout: Layout, prices: Prices) -> Term:
    price, places = multiplying(eqn, layout, prices)
    result = places[-1]
    seats: dict[int, tuple[int, ...]] = {result: (2,)}
    sides: list[int | None] = []
    names: list[Hashable | None] = []
    for side, x in enumerate(eqn.invars):
        operand = layout.cluster.get(x) if is_var(x) else None
        if operand is not None:
            seats[operand] = (*seats.get(operand, ()), side)
        value, chain = layout.broadcasts(x)
        behind = layout.cluster.get(value) if is_var(value) else None
        sides.append(behind)
        names.append(behind if behind is not None else x if is_var(x) and not chain else None)
    clusters = tuple({k for k in (*sides, result) if k is not None})
    tied: dict[int, int] = {}
    if price.whole is not None:
        whole = eqn.invars[price.whole]
        held = layout.cluster.get(whole) if is_var(whole) else None
        tied = {} if held is None or held == result else {held: price.whole, result: 2}
    return Term(eqn, price, clusters, itemgetter(*places), seats, tied, (*names, result))


def multiplying(eqn: JaxprEqn, layout: Layout, prices: Prices) -> tuple[Multiplying, tuple[int, int, int]]:
    """The price of a product, and where in `layout.orders` the orders of its seats stand."""
    one, other, out = (layout.place(x) for x in (*eqn.invars, *eqn.outvars))
    return prices.multiplying(eqn), (one, other, out)


@dataclass
class Group:
    """Clusters that depend on each other, and their terms.

    Attributes:
        near: by cluster, the places in `terms` of those that depend on it.
    """

    clusters: list[int] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    near: dict[int, list[int]] = field(default_factory=dict)

    def weight(self, orders: Sequence[Order]) -> float:
        """Bytes copied."""
        return sum(term.weight(orders) for term in self.terms)

    def burden(self, orders: Sequence[Order]) -> float:
        """What its products take longer for the forms that they have, as so many bytes copied."""
        return sum(term.price.burden(term.at(orders)) for term in self.terms)


def groups_of(layout: Layout, terms: list[Term]) -> list[Group]:
    """The clusters of a level by groups."""
    joined = DisjointSets()
    for term in terms:
        for k in term.clusters[1:]:
            joined.join(k, term.clusters[0])
    groups: dict[int, Group] = {}
    for k in layout.clusters:
        group = groups.setdefault(joined.find(k), Group())
        group.clusters.append(k)
        group.near[k] = []
    for term in terms:
        if term.clusters:
            group = groups[joined.find(term.clusters[0])]
            for k in term.clusters:
                group.near[k].append(len(group.terms))
            group.terms.append(term)
    return list(groups.values())
