"""In which order the values around products are stored: the assignment that copies least.

Values joined by equations that work entry by entry form a *cluster*: they are all stored in one order. Between
clusters stand *terms*: products (which make their result in several orders), equations that carry an order
(transposes, reductions, reshapes), readers that want an order. A term knows what it copies for given orders. Each
connected group of clusters is descended from two starts, the program as it is and "dimensions that most clusters
share come first" (a batch mapped by `vmap` is one), since a chain of products gains only when all of it turns.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from .aligned import is_aligned
from .entrywise_calls import is_entrywise_call
from .orders import CARRIERS, Order, carry, copy_weight, natural, pull, restrict, short_reduction_weight
from .products import Product
from .program import is_var

# Roles of the equations whose operands and results are stored alike.
ENTRYWISE = ("aligned", "call")
SWEEPS = 8
# How many clusters may turn in one step.
TIED = 8
# A cluster that takes part in more terms than this turns only for its own sake: else the search is quadratic.
MANY = 24


@dataclass
class Layout:
    """The clusters of one level of a program and the order of each; values in no cluster are stored naturally.

    Attributes:
        cluster: of each variable that may be stored in another order.
        orders: of each cluster.
        repeated: variables that cost nothing to make again in another order, with their equations (broadcasts).
        roles: of each equation of the level.
    """

    cluster: dict[Var, int] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    repeated: dict[Var, JaxprEqn] = field(default_factory=dict)
    roles: list[str] = field(default_factory=list)

    def order(self, x: Atom) -> Order:
        """How a value is stored."""
        found = self.cluster.get(x) if is_var(x) else None
        return natural(len(getattr(x.aval, "shape", ()))) if found is None else self.orders[found]

    def weight(self, x: Atom, wanted: Order) -> int:
        """What it takes to have `x` in an order."""
        eqn = self.repeated.get(x) if is_var(x) else None
        if eqn is None:
            return copy_weight(x.aval, self.order(x), wanted)
        return self.weight(eqn.invars[0], operand_order(eqn, wanted)) if eqn.invars else 0

    def behind(self, x: Atom) -> int | None:
        """The cluster whose order decides about `x`."""
        while is_var(x) and x in self.repeated and self.repeated[x].invars:
            x = self.repeated[x].invars[0]
        return self.cluster.get(x) if is_var(x) else None


def operand_order(eqn: JaxprEqn, wanted: Order) -> Order:
    """The order of the operand with which a broadcast makes its result as `wanted`."""
    return restrict(wanted, tuple(eqn.params["broadcast_dimensions"]))


def result_order(eqn: JaxprEqn, order: Order) -> Order:
    """An order of a broadcast's result whose operand is stored in `order`: its own dimensions trade places only."""
    dims = tuple(eqn.params["broadcast_dimensions"])
    found = list(natural(len(eqn.params["shape"])))
    for place, d in zip(sorted(dims), order, strict=True):
        found[place] = dims[d]
    return tuple(found)


def _no_tie(layout: Layout, k: int, order: Order) -> tuple[int, Order] | None:
    return None


@dataclass(frozen=True)
class Term:
    """A cost that depends on the orders of a few clusters.

    Attributes:
        eqn: the equation that it stands for; None for results of the program and readers that turn nothing.
        clusters: whose orders count.
        weight: bytes copied.
        wishes: orders of a cluster that might suit the term.
        ties: if cluster k has an order, the other cluster and its order with which the term copies nothing.
        links: pairs of (cluster, dimension) that are one dimension.
    """

    eqn: JaxprEqn | None
    clusters: tuple[int, ...]
    weight: Callable[[Layout], float]
    wishes: Callable[[Layout, int], Iterable[Order]]
    links: tuple[tuple[tuple[Any, int], tuple[Any, int]], ...] = ()
    ties: Callable[[Layout, int, Order], tuple[int, Order] | None] = _no_tie


def role_of(eqn: JaxprEqn) -> str:
    """What an equation is here: "aligned", "call", "repeated", "carrier", "product", or "wall"."""
    values = (*eqn.invars, *eqn.outvars)
    if eqn.effects or not eqn.invars or any(_jax.explicit_mesh(x.aval) for x in values):
        return "wall"
    if eqn.params.get("sharding") is not None or eqn.params.get("out_sharding") is not None:
        return "wall"
    name = eqn.primitive.name
    if name == "dot_general":
        return "product"
    if name == "broadcast_in_dim":
        return "repeated" if len(eqn.invars) == 1 else "wall"
    if name in CARRIERS and len(eqn.invars) == 1 and is_var(eqn.invars[0]):
        weak = [getattr(x.aval, "weak_type", False) for x in values]
        return "carrier" if name != "transpose" or weak[0] == weak[1] else "wall"
    if is_aligned(eqn):
        return "aligned"
    return "call" if is_entrywise_call(eqn) else "wall"


def layout_of(jaxpr: Jaxpr) -> Layout:
    """The clusters of `jaxpr`, all in their natural orders."""
    layout = Layout(roles=[role_of(eqn) for eqn in jaxpr.eqns])
    joined = _Sets()
    for eqn, kind in zip(jaxpr.eqns, layout.roles, strict=True):
        if kind == "repeated":
            layout.repeated[eqn.outvars[0]] = eqn
        elif kind != "wall":
            for v in eqn.outvars:
                joined.join(v, eqn.outvars[0])
            for x in eqn.invars if kind in ENTRYWISE else ():
                if is_var(x) and x in joined.parent and x.aval.shape:
                    joined.join(x, eqn.outvars[0])
    dense: dict[Var, int] = {}
    for var in joined.parent:
        layout.cluster[var] = dense.setdefault(joined.find(var), len(dense))
        if layout.cluster[var] == len(layout.orders):
            layout.orders.append(natural(len(var.aval.shape)))
    return layout


class _Sets:
    """Disjoint sets."""

    def __init__(self) -> None:
        self.parent: dict[Any, Any] = {}

    def find(self, x: Any) -> Any:
        parent = self.parent
        parent.setdefault(x, x)
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def join(self, a: Any, b: Any) -> None:
        self.parent[self.find(a)] = self.find(b)


def terms_of(jaxpr: Jaxpr, layout: Layout, platform: str) -> list[Term]:
    """All costs of the level that depend on orders, each distinct one once."""
    terms: list[Term] = []
    seen: set[Any] = set()

    def reader(x: Atom, cluster: int | None) -> None:
        behind = layout.behind(x)
        key = (x, cluster) if is_var(x) else None
        if key in seen or behind == cluster or not getattr(x.aval, "shape", ()):
            return
        seen.add(key)
        terms.append(_reader(x, behind, cluster))

    for eqn, kind in zip(jaxpr.eqns, layout.roles, strict=True):
        if kind == "product":
            terms.append(_product(Product.of(eqn, platform), layout))
        elif kind == "carrier":
            terms.append(_carrier(eqn, layout))
        elif kind != "repeated":
            for x in eqn.invars:
                reader(x, layout.cluster[eqn.outvars[0]] if kind in ENTRYWISE else None)
    for x in jaxpr.outvars:
        reader(x, None)
    return terms


def _reader(x: Atom, behind: int | None, cluster: int | None) -> Term:
    rank = len(x.aval.shape)

    def wanted(layout: Layout) -> Order:
        return natural(rank) if cluster is None else layout.orders[cluster]

    def wishes(layout: Layout, k: int) -> Iterable[Order]:
        chain = _broadcasts(layout, x)
        if k == behind:
            yield _under(chain, wanted(layout))
        else:
            yield _over(chain, layout.order(chain[-1].invars[0] if chain else x))

    def ties(layout: Layout, k: int, order: Order) -> tuple[int, Order] | None:
        if behind is None or cluster is None:
            return None
        chain = _broadcasts(layout, x)
        return (behind, _under(chain, order)) if k == cluster else (cluster, _over(chain, order))

    links = ()
    if is_var(x) and cluster is not None:
        links = tuple(((x if behind is None else behind, d), (cluster, d)) for d in range(rank))
    clusters = tuple(k for k in (behind, cluster) if k is not None)
    return Term(None, clusters, lambda layout: layout.weight(x, wanted(layout)), wishes, links, ties)


def _broadcasts(layout: Layout, x: Atom) -> list[JaxprEqn]:
    """The broadcasts that make `x`, the last one first."""
    chain = []
    while is_var(x) and x in layout.repeated:
        chain.append(layout.repeated[x])
        x = chain[-1].invars[0]
    return chain


def _under(chain: list[JaxprEqn], order: Order) -> Order:
    for eqn in chain:
        order = operand_order(eqn, order)
    return order


def _over(chain: list[JaxprEqn], order: Order) -> Order:
    for eqn in reversed(chain):
        order = result_order(eqn, order)
    return order


def _carrier(eqn: JaxprEqn, layout: Layout) -> Term:
    (x,), out = eqn.invars, eqn.outvars[0]
    operand, result = layout.behind(x), layout.cluster[out]

    known: dict[tuple[Order, Order], int] = {}

    def weight(layout: Layout) -> int:
        if x in layout.repeated:
            return carried_weight(eqn, layout)
        key = layout.order(x), layout.orders[result]
        if key not in known:
            known[key] = carried_weight(eqn, layout)
        return known[key]

    def wishes(layout: Layout, k: int) -> Iterable[Order]:
        if k == result:
            found = carry(eqn, layout.order(x))
            yield from () if found is None else (found.order,)
        elif not (is_var(x) and x in layout.repeated):
            found = pull(eqn, layout.orders[result])
            yield from () if found is None else (found,)

    back = pull(eqn, tuple(reversed(natural(len(out.aval.shape)))))
    links = ()
    if back is not None and eqn.primitive.name != "reshape" and operand is not None:
        forward = pull(eqn, natural(len(out.aval.shape)))
        assert forward is not None, "the natural order is always possible"
        kept = [d for d in forward if d not in _gone(eqn)]
        links = tuple(((operand, d), (result, k)) for k, d in enumerate(kept))
    clusters = tuple({k for k in (operand, result) if k is not None})
    return Term(eqn, clusters, weight, wishes, links, partial(_carried_tie, eqn))


def _carried_tie(eqn: JaxprEqn, layout: Layout, k: int, order: Order) -> tuple[int, Order] | None:
    (x,), result = eqn.invars, layout.cluster[eqn.outvars[0]]
    operand = layout.cluster.get(x) if is_var(x) else None
    if operand is None:
        return None
    if k == result:
        pulled = pull(eqn, order)
        return None if pulled is None else (operand, pulled)
    carried = carry(eqn, order)
    return None if carried is None else (result, carried.order)


def _gone(eqn: JaxprEqn) -> tuple[int, ...]:
    return tuple(eqn.params.get("axes") or eqn.params.get("dimensions") or ())


def carried_weight(eqn: JaxprEqn, layout: Layout) -> int:
    """What a carrier copies: its operand first, or its result."""
    return min(weight for weight, _ in carrier_choices(eqn, layout))


def carrier_choices(eqn: JaxprEqn, layout: Layout) -> list[tuple[int, Order]]:
    """Orders in which a carrier may read its operand, each with what is copied."""
    (x,), out = eqn.invars, eqn.outvars[0]
    wanted = layout.order(out)
    choices = []
    orders = [layout.order(x), pull(eqn, wanted), natural(len(x.aval.shape))]
    if is_var(x) and x in layout.repeated:
        orders = orders[1:]
    for order in dict.fromkeys(orders):
        carried = None if order is None else carry(eqn, order)
        if order is not None and carried is not None:
            weight = layout.weight(x, order) + copy_weight(out.aval, carried.order, wanted)
            choices.append((weight + short_reduction_weight(eqn, order), order))
    return choices


def _product(product: Product, layout: Layout) -> Term:
    one, other = product.eqn.invars
    sides = (layout.behind(one), layout.behind(other))
    result = layout.cluster[product.eqn.outvars[0]]

    @cache
    def weight_of(left: Order, right: Order, wanted: Order) -> float:
        return product.best(left, right, wanted)[0]

    @cache
    def results_of(left: Order, right: Order, wanted: Order) -> list[Order]:
        return list(dict.fromkeys(form.out for form in product.forms(left, right, wanted)))

    def weight(layout: Layout) -> float:
        return weight_of(layout.order(one), layout.order(other), layout.orders[result])

    def wishes(layout: Layout, k: int) -> Iterable[Order]:
        if k == result:
            yield from results_of(layout.order(one), layout.order(other), layout.orders[k])
        for side, x in enumerate((one, other)):
            if k == layout.cluster.get(x) if is_var(x) else False:
                yield from product.wishes(side, layout.orders[result])

    count = len(product.batch[0])
    names = [x if k is None else k for x, k in zip((one, other), sides, strict=True)]
    links = [((names[0], d), (result, b)) for b, d in enumerate(product.batch[0])]
    links += [((names[1], d), (result, b)) for b, d in enumerate(product.batch[1])]
    for side, start in ((0, count), (1, count + len(product.free[0]))):
        links += [((names[side], d), (result, start + k)) for k, d in enumerate(product.free[side])]
    links += [((names[0], a), (names[1], b)) for a, b in zip(*product.contract, strict=True)]
    plain = tuple(link for link in links if all(_is_direct(name, layout) for name, _ in link))
    clusters = tuple({k for k in (*sides, result) if k is not None})
    return Term(product.eqn, clusters, weight, wishes, plain)


def _is_direct(name: Any, layout: Layout) -> bool:
    return isinstance(name, int) or (is_var(name) and name not in layout.repeated)


def groups_of(layout: Layout, terms: list[Term]) -> list[tuple[list[int], list[Term]]]:
    """The clusters that depend on each other, with their terms."""
    joined = _Sets()
    for term in terms:
        for k in term.clusters[1:]:
            joined.join(k, term.clusters[0])
    groups: dict[int, tuple[list[int], list[Term]]] = {}
    for k in range(len(layout.orders)):
        groups.setdefault(joined.find(k), ([], []))[0].append(k)
    for term in terms:
        if term.clusters:
            groups[joined.find(term.clusters[0])][1].append(term)
    return list(groups.values())


def total_weight(layout: Layout, terms: list[Term]) -> float:
    """Bytes copied."""
    return sum(term.weight(layout) for term in terms)


def descend(layout: Layout, clusters: list[int], terms: list[Term]) -> float:
    """Turns one cluster after the other while that copies less; returns what is copied then. Changes `layout`."""
    near: dict[int, list[Term]] = {k: [] for k in clusters}
    for term in terms:
        for k in term.clusters:
            near[k].append(term)
    waiting = dict.fromkeys(clusters)
    for _ in range(SWEEPS):
        current, waiting = waiting, {}
        for k in current:
            for turned in _turn(layout, k, near):
                waiting.update(dict.fromkeys(c for term in near[turned] for c in term.clusters))
        if not waiting:
            break
    return total_weight(layout, terms)


def _turn(layout: Layout, k: int, near: dict[int, list[Term]]) -> list[int]:
    """Gives cluster `k` its best order, alone or together with those that transposes tie to it; returns who turned."""
    if len(layout.orders[k]) < 2 or not total_weight(layout, near[k]):
        return []
    best, gain = dict[int, Order](), 0.0
    for order in dict.fromkeys(order for term in near[k] for order in term.wishes(layout, k)):
        if order == layout.orders[k]:
            continue
        for turned in ({k: order}, _tied(layout, k, order, near)):
            here = list({id(term): term for c in turned for term in near[c]}.values())
            before, old = total_weight(layout, here), {c: layout.orders[c] for c in turned}
            _set(layout, turned)
            saved = before - total_weight(layout, here)
            _set(layout, old)
            if saved > gain:
                best, gain = turned, saved
    _set(layout, best)
    return list(best)


def _set(layout: Layout, orders: dict[int, Order]) -> None:
    for k, order in orders.items():
        layout.orders[k] = order


def _tied(layout: Layout, k: int, order: Order, near: dict[int, list[Term]]) -> dict[int, Order]:
    """`k` in `order`, and the clusters around it in the orders in which what is between them copies nothing."""
    turned, waiting = {k: order}, [k]
    while waiting and len(turned) < TIED:
        here = waiting.pop(0)
        for tied in (term.ties(layout, here, turned[here]) for term in near[here]):
            if tied is not None and tied[0] not in turned and max(len(near[here]), len(near[tied[0]])) <= MANY:
                turned[tied[0]] = tied[1]
                waiting.append(tied[0])
    return turned


def shared_first(layout: Layout, clusters: list[int], terms: list[Term]) -> None:
    """Turns the clusters so that dimensions come first that most of them share. Changes `layout`."""
    same = _Sets()
    for term in terms:
        for a, b in term.links:
            same.join(a, b)
    shared = Counter(label for k in clusters for label in {same.find((k, d)) for d in range(len(layout.orders[k]))})
    for k in clusters:
        layout.orders[k] = tuple(sorted(natural(len(layout.orders[k])), key=lambda d: -shared[same.find((k, d))]))
