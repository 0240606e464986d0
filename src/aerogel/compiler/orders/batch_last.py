"""Arrays between convolutions that lie with their images last, as convolutions by rows read and make them.

Those turn what they are given and what they make (`rules/convolution_rows.py`). XLA carries an order on through what
works entry by entry, but its library pools only what lies as it is written. So what stands between such convolutions
is written as it lies: a convolution takes any order by its dimension numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES
from ..cost import nbytes
from ..program import inner_jaxprs, is_var
from ..rules.convolution_rows import wanted_orders
from .orders import REDUCTIONS

CONV = "conv_general_dilated"
SCATTER = "select_and_scatter_add"
WINDOWS = frozenset(("reduce_window_max", "reduce_window_min", "reduce_window_sum", SCATTER))
CALLS = ("jit", "custom_jvp_call", "closed_call")

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
        elif values := linked(eqn):
            member[values[0]].has_windows |= name in WINDOWS
            member[values[0]].place = place
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
        together = linked(eqn)
        for v in together[1:]:
            if head(v) is not head(together[0]):
                heads[head(v)] = head(together[0])
        around = (*eqn.invars, *eqn.outvars) if eqn.primitive.name == CONV else together
        values |= dict.fromkeys(filter(is_var, around))
    found: dict[Var, Cluster] = {}
    return {v: found.setdefault(head(v), Cluster()) for v in values}


def _count(conv: JaxprEqn, member: dict[Var, Cluster]) -> None:
    """What a convolution wants of the clusters around it."""
    for v, order in zip((*conv.invars, *conv.outvars), _wanted(conv), strict=True):
        if is_var(v):
            member[v].orders |= {order} if order is not None else set()
            member[v].turned_bytes += nbytes(v.aval) * (1 if order is not None else -2)


def linked(eqn: JaxprEqn) -> list[Var]:
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
    spacious = isinstance(v.aval, _jax.ShapedArray) and v.aval.ndim > 2 and not isinstance(v, _jax.DropVar)
    return spacious and not _jax.explicit_mesh(v.aval)


def _wanted(eqn: JaxprEqn) -> Sequence[Order | None]:
    """In which orders a convolution wants input, kernel and output; None for each that it does not go by rows of."""
    lhs, rhs = (x.aval for x in eqn.invars)
    return wanted_orders(lhs, rhs, eqn.params) or (None, None, None)
