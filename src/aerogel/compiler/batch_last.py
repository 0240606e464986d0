"""Arrays between convolutions that lie with their images last, as convolutions by rows read and make them.

Those turn what they are given and what they make (`rules/convolution_rows.py`). XLA carries an order on through what
works entry by entry, but its library pools only what lies as it is written. So what stands between such convolutions
is written as it lies: a convolution takes any order by its dimension numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from .axes.elementwise import NAMES
from .axes.rebind import bind
from .cost import nbytes
from .orders import REDUCTIONS
from .program import Builder, inner_jaxprs, is_var, rename, with_equations
from .rules.convolution_rows import wanted_orders

CONV = "conv_general_dilated"
SCATTER = "select_and_scatter_add"
WINDOWS = frozenset(("reduce_window_max", "reduce_window_min", "reduce_window_sum", SCATTER))
CALLS = ("jit", "custom_jvp_call", "closed_call")
BY_AXIS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")

Order = tuple[int, ...]


@dataclass(eq=False)
class Cluster:
    """Values that are stored in one order, since each is made of the others entry by entry or window by window.

    Attributes:
        orders: those that convolutions want.
        turned_bytes: that convolutions copy now.
        bordering_bytes: that would be copied for others.
        has_windows: whether one is pooled.
        place: an equation of it.
    """

    orders: set[Order] = field(default_factory=set)
    turned_bytes: int = 0
    bordering_bytes: int = 0
    has_windows: bool = False
    place: int = 0

    @property
    def pays(self) -> bool:
        """Whether less is copied in the order that is wanted."""
        turns = any(order != tuple(range(len(order))) for order in self.orders)
        return self.has_windows and turns and len(self.orders) == 1 and self.turned_bytes > self.bordering_bytes

    @property
    def order(self) -> Order:
        """The order that is wanted."""
        (order,) = self.orders
        return order


def clusters(jaxpr: Jaxpr) -> dict[Var, Cluster]:
    """The values of a level that are better stored in another order, each with its cluster."""
    if not any(eqn.primitive.name in WINDOWS for eqn in jaxpr.eqns):
        return {}
    member = _members(jaxpr)
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    bordering: set[Var] = {v for v in jaxpr.outvars if is_var(v)}
    for place, eqn in enumerate(jaxpr.eqns):
        name, operands = eqn.primitive.name, list(filter(is_var, eqn.invars))
        bordering |= {v for v in operands if v not in made}
        if name == CONV:
            _count(eqn, member)
        elif linked := _linked(eqn):
            member[linked[0]].has_windows |= name in WINDOWS
            member[linked[0]].place = place
        elif name != "broadcast_in_dim":
            bordering |= {*eqn.outvars, *(() if name in REDUCTIONS else operands)}
    for v in bordering & member.keys():
        member[v].bordering_bytes += nbytes(v.aval)
    return {v: one for v, one in member.items() if one.pays}


def _members(jaxpr: Jaxpr) -> dict[Var, Cluster]:
    """The clusters of all values around convolutions and what works entry by entry or window by window."""
    heads: dict[Var, Var] = {}

    def head(v: Var) -> Var:
        while v in heads:
            v = heads[v]
        return v

    values: dict[Var, None] = {}
    for eqn in jaxpr.eqns:
        linked = _linked(eqn)
        for v in linked[1:]:
            if head(v) is not head(linked[0]):
                heads[head(v)] = head(linked[0])
        around = (*eqn.invars, *eqn.outvars) if eqn.primitive.name == CONV else linked
        values |= dict.fromkeys(filter(is_var, around))
    found: dict[Var, Cluster] = {}
    return {v: found.setdefault(head(v), Cluster()) for v in values}


def _count(conv: JaxprEqn, member: dict[Var, Cluster]) -> None:
    """What a convolution wants of the clusters around it."""
    for v, order in zip((*conv.invars, *conv.outvars), _wanted(conv), strict=True):
        if is_var(v):
            member[v].orders |= {order} if order is not None else set()
            member[v].turned_bytes += nbytes(v.aval) * (1 if order is not None else -2)


def _linked(eqn: JaxprEqn) -> list[Var]:
    """The values around an equation that are to lie in one order."""
    (out, *more) = eqn.outvars or [None]
    if out is None or more or not _is_spacious(out):
        return []
    operands = [v for v in eqn.invars if is_var(v) and getattr(v.aval, "ndim", 0)]
    if eqn.primitive.name in WINDOWS:
        return [out, *operands]
    if not _is_entrywise(eqn) or any(not _is_along(v.aval.shape, out.aval.shape) for v in operands):
        return []
    return [out, *(v for v in operands if v.aval.shape == out.aval.shape)]


def _is_entrywise(eqn: JaxprEqn) -> bool:
    """Whether an equation works entry by entry, as a call of such (`jax.nn.relu` is one) does."""
    if eqn.primitive.name not in CALLS:
        return eqn.primitive.name in NAMES
    return len(inner := inner_jaxprs(eqn)) == 1 and all(map(_is_entrywise, inner[0].eqns)) and not inner[0].constvars


def _is_along(shape: Sequence[int], other: Sequence[int]) -> bool:
    return len(shape) == len(other) and all(n in (1, m) for n, m in zip(shape, other, strict=True))


def _is_spacious(v: Var) -> bool:
    return isinstance(v.aval, _jax.ShapedArray) and v.aval.ndim > 2 and not isinstance(v, _jax.DropVar)


def _wanted(eqn: JaxprEqn) -> Sequence[Order | None]:
    """In which orders a convolution wants input, kernel and output; None for each that it does not go by rows of."""
    return wanted_orders(*(x.aval for x in eqn.invars), eqn.params) or (None, None, None)


def written_as_they_lie(jaxpr: Jaxpr, found: dict[Var, Cluster]) -> Jaxpr:
    """The level with the values of these clusters in their orders."""
    work = _Rewrite(found)
    for eqn in jaxpr.eqns:
        work.add(eqn)
    results = [work.plain(x, work.eqns[-1]) for x in jaxpr.outvars]
    return with_equations(jaxpr, work.eqns, results)


@dataclass
class _Rewrite:
    """Equations so far; `turned` has the values of clusters in their orders, `plain_ones` as the program had them."""

    clusters: dict[Var, Cluster]
    eqns: list[JaxprEqn] = field(default_factory=list)
    turned: dict[Var, Atom] = field(default_factory=dict)
    plain_ones: dict[Var, Atom] = field(default_factory=dict)

    def add(self, eqn: JaxprEqn) -> None:
        """Appends what stands for an equation."""
        name, out = eqn.primitive.name, eqn.outvars[0] if eqn.outvars else None
        cluster = self.clusters.get(out) if out is not None else None
        if name == CONV:
            self._add_conv(eqn)
        elif cluster is not None and _linked(eqn):
            permuted = {key: _by_axis(value, cluster.order) for key, value in eqn.params.items() if key in BY_AXIS}
            self._append(eqn, self._along(eqn, cluster.order), eqn.params | (permuted if name in WINDOWS else {}))
        elif name in REDUCTIONS and self._is_in(eqn.invars[0]) and _keeps_order(eqn, self._order(eqn.invars[0])):
            order = self._order(eqn.invars[0])
            axes = tuple(sorted(order.index(d) for d in eqn.params["axes"]))
            self.eqns.append(
                eqn.replace(invars=[self.in_order(eqn.invars[0], eqn)], params=eqn.params | {"axes": axes})
            )
        else:
            self.eqns.append(rename(eqn, {x: self.plain(x, eqn) for x in eqn.invars if is_var(x)}))

    def _add_conv(self, eqn: JaxprEqn) -> None:
        numbers, specs = eqn.params["dimension_numbers"], dict[str, Order]()
        for key, x in zip(("lhs_spec", "rhs_spec", "out_spec"), (*eqn.invars, *eqn.outvars), strict=True):
            spec = tuple(getattr(numbers, key))
            specs[key] = tuple(self._order(x).index(d) for d in spec) if self._is_in(x) else spec
        self._append(
            eqn,
            self._reads(eqn),
            eqn.params | {"dimension_numbers": lax.ConvDimensionNumbers(**specs)},
        )

    def _append(self, eqn: JaxprEqn, reads: list[Atom], params: dict[str, Any]) -> None:
        """Appends an equation of values in their orders, with a result in its own."""
        (out,) = eqn.outvars
        if eqn.primitive.name in CALLS:
            builder = Builder(eqn)
            (self.turned[out],) = builder.call(_call_in_order(eqn, self._order(out)), *reads)
            self.eqns += builder.eqns
            return
        if out in self.clusters:
            shape = tuple(out.aval.shape[d] for d in self._order(out))
            self.turned[out] = new = _jax.new_var(out.aval.update(shape=shape))
            eqn = eqn.replace(outvars=[new])
        self.eqns.append(eqn.replace(invars=reads, params=params))

    def _along(self, eqn: JaxprEqn, order: Order) -> list[Atom]:
        """The operands of an equation in an order; of what has one entry along an axis, a copy is small."""
        turned = lambda v: lax.transpose(v, order)  # noqa: E731
        return [
            x
            if not is_var(x) or not x.aval.ndim
            else self.in_order(x, eqn)
            if self._is_in(x)
            else self._call(eqn, turned, x)
            for x in eqn.invars
        ]

    def _reads(self, eqn: JaxprEqn) -> list[Atom]:
        return [self.in_order(x, eqn) if self._is_in(x) else x for x in eqn.invars]

    def _is_in(self, x: Any) -> bool:
        return is_var(x) and x in self.clusters

    def _order(self, x: Any) -> Order:
        return self.clusters[x].order

    def in_order(self, x: Any, like: JaxprEqn) -> Atom:
        """A value of a cluster in its order."""
        if x not in self.turned:
            self.turned[x] = self._call(like, lambda v: lax.transpose(v, self._order(x)), x)
        return self.turned[x]

    def plain(self, x: Atom, like: JaxprEqn) -> Atom:
        """A value as the program had it."""
        if not is_var(x) or x not in self.turned or x not in self.clusters:
            return x
        if x not in self.plain_ones:
            order = self._order(x)
            back = tuple(order.index(d) for d in range(len(order)))
            self.plain_ones[x] = self._call(like, lambda v: lax.transpose(v, back), self.turned[x])
        return self.plain_ones[x]

    def _call(self, like: JaxprEqn, fun: Any, x: Atom) -> Atom:
        builder = Builder(like)
        (new,) = builder.call(fun, x)
        self.eqns += builder.eqns
        return new


def _call_in_order(eqn: JaxprEqn, order: Order) -> Callable[..., Any]:
    """A call of what works entry by entry, for values in an order, with the derivative that it has.

    It stays a call: of a `max` that XLA sees it asks for the sign of what goes in, and then keeps that, too.
    """
    called = jax.custom_jvp(lambda *xs: _applied(inner_jaxprs(eqn)[0], xs)[0])
    back = tuple(order.index(d) for d in range(len(order)))

    def natural(*xs: Any) -> Any:
        plain = [lax.transpose(x, back) if x.ndim else x for x in xs]
        return lax.transpose(bind(eqn, plain, eqn.params)[0], order)

    called.defjvp(lambda primals, tangents: jax.jvp(natural, primals, tangents))
    return called


def _applied(jaxpr: Jaxpr, values: Sequence[Any]) -> list[Any]:
    """What equations that work entry by entry make of values of another shape."""
    env: dict[Var, Any] = dict(zip(jaxpr.invars, values, strict=True))
    read = lambda x: env[x] if is_var(x) else x.val  # noqa: E731
    for eqn in jaxpr.eqns:
        reads = [read(x) for x in eqn.invars]
        if eqn.primitive.name in CALLS:
            outs = _jax.original_jit(partial(_applied, inner_jaxprs(eqn)[0]))(reads)
        else:
            outs = bind(eqn, reads, eqn.params)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _keeps_order(eqn: JaxprEqn, order: Order) -> bool:
    """Whether what is left of a value in an order, when it is summed up, lies as it does now."""
    left = [d for d in order if d not in eqn.params["axes"]]
    return left == sorted(left) and eqn.primitive.name not in ("argmax", "argmin")


def _by_axis(values: Any, order: Order) -> Any:
    return None if values is None else tuple(values[d] for d in order)
