"""In which order the values around products are stored: the assignment that copies least.

Between clusters stand terms: products (which make their result in several orders), equations that carry an order
(transposes, reductions, reshapes), readers that want an order. Each connected group of clusters is descended from two
starts, the program as it is and "dimensions that most clusters share come first" (a batch mapped by `vmap` is one),
since a chain of products gains only when all of it turns.
"""

from collections import Counter

from ..disjoint import DisjointSets
from .layout import Layout
from .orders import Order, natural
from .terms import Group

SWEEPS = 8
# How many clusters may turn in one step.
TIED = 8
# A cluster that takes part in more terms than this turns only for its own sake: else the search is quadratic.
MANY = 24

Turned = dict[int, Order]


def best_orders(layout: Layout, group: Group) -> tuple[float, Turned]:
    """What a group copies at least, and the orders of its clusters with which it does."""
    start = {k: layout.orders[k] for k in group.clusters}
    starts = [start, shared_first(layout, group)]
    found = []
    for begin in starts if starts[0] != starts[1] else starts[:1]:
        layout.turn(begin)
        weight = descend(layout, group)
        found.append((weight, {k: layout.orders[k] for k in group.clusters}))
    layout.turn(start)
    return min(found, key=lambda pair: pair[0])


def shared_first(layout: Layout, group: Group) -> Turned:
    """Orders of the clusters of a group in which dimensions come first that most of them share."""
    same = DisjointSets()
    for term in group.terms:
        names = term.names
        for (a, i), (b, j) in term.price.links:
            if names[a] is not None and names[b] is not None:
                same.join((names[a], i), (names[b], j))
    labels = {k: [same.find((k, d)) for d in range(len(layout.orders[k]))] for k in group.clusters}
    shared = Counter(label for each in labels.values() for label in set(each))
    return {
        k: tuple(sorted(natural(len(each)), key=lambda d, each=each: -shared[each[d]])) for k, each in labels.items()
    }


def descend(layout: Layout, group: Group) -> float:
    """Turns one cluster after the other while that copies less; returns what is copied then. Changes `layout`."""
    return _Descent(layout, group).run()


class _Descent:
    """One descent; `weights` holds what each term of the group copies."""

    def __init__(self, layout: Layout, group: Group):
        self.layout, self.group = layout, group
        self.weights = [term.weight(layout.orders) for term in group.terms]

    def run(self) -> float:
        """Sweeps over all clusters, then over those around the ones that turned."""
        terms, near = self.group.terms, self.group.near
        waiting = dict.fromkeys(self.group.clusters)
        for _ in range(SWEEPS):
            current, waiting = waiting, {}
            for k in current:
                for turned in self._turn(k):
                    waiting.update(dict.fromkeys(c for i in near[turned] for c in terms[i].clusters))
            if not waiting:
                break
        return sum(self.weights)

    def _turn(self, k: int) -> Turned:
        """Gives `k` its best order, alone or together with those that transposes tie to it; returns who turned."""
        orders, terms, near = self.layout.orders, self.group.terms, self.group.near[k]
        current = orders[k]
        if len(current) < 2 or not any(self.weights[i] for i in near):
            return {}
        best, gain = Turned(), 0.0
        for order in dict.fromkeys(order for i in near for order in terms[i].wishes(k, orders)):
            if order == current:
                continue
            alone, tied = {k: order}, self._tied(k, order)
            for turned in (alone, tied) if len(tied) > 1 else (alone,):
                saved = self._saved(turned, gain)
                if saved > gain:
                    best, gain = turned, saved
        self.layout.turn(best)
        for i in self._near(best):
            self.weights[i] = terms[i].weight(orders)
        return best

    def _saved(self, turned: Turned, least: float) -> float:
        """What is copied less with these orders; 0 if that cannot be more than `least`."""
        layout, terms, near = self.layout, self.group.terms, self._near(turned)
        before = sum([self.weights[i] for i in near])
        if before <= least:
            return 0.0
        old = layout.turn(turned)
        after = sum([terms[i].weight(layout.orders) for i in near])
        layout.turn(old)
        return before - after

    def _near(self, turned: Turned) -> list[int]:
        """The terms that depend on one of these clusters."""
        near = self.group.near
        if len(turned) == 1:
            return near[next(iter(turned))]
        return list(dict.fromkeys([i for k in turned for i in near[k]]))

    def _tied(self, k: int, order: Order) -> Turned:
        """`k` in `order`, and the clusters around it in the orders in which what is between them copies nothing."""
        near, terms = self.group.near, self.group.terms
        turned, waiting = {k: order}, [k]
        while waiting and len(turned) < TIED:
            here = waiting.pop(0)
            for i in near[here] if len(near[here]) <= MANY else ():
                tied = terms[i].tie(here, turned[here])
                if tied is not None and tied[0] not in turned and len(near[tied[0]]) <= MANY:
                    turned[tied[0]] = tied[1]
                    waiting.append(tied[0])
        return turned
