"""Which values of a level are stored alike, and in which order: clusters.

Values joined by equations that work entry by entry form a *cluster*: they are all stored in one order. Values in no
cluster (arguments, results of equations that nobody may turn) are stored as the program names them.
"""

from dataclasses import dataclass, field

import jax.numpy as jnp

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..disjoint import DisjointSets
from ..program import is_var
from .aligned import is_aligned
from .entrywise_calls import is_entrywise_call
from .orders import CARRIERS, Order, natural

# Roles of the equations whose operands and results are stored alike.
ENTRYWISE = ("aligned", "call")


@dataclass
class Layout:
    """The clusters of one level of a program and the order of each.

    Attributes:
        cluster: of each variable that may be stored in another order.
        orders: of each cluster; behind the `clusters` of them, the natural order of each rank that was asked for.
        repeated: variables that cost nothing to make again in another order, with their equations (broadcasts).
        roles: of each equation of the level.
    """

    cluster: dict[Var, int] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    repeated: dict[Var, JaxprEqn] = field(default_factory=dict)
    roles: list[str] = field(default_factory=list)
    _natural: dict[int, int] = field(default_factory=dict)

    @property
    def clusters(self) -> range:
        """All clusters."""
        return range(len(self.orders) - len(self._natural))

    def order(self, x: Atom) -> Order:
        """How a value is stored."""
        found = self.cluster.get(x) if is_var(x) else None
        return natural(len(getattr(x.aval, "shape", ()))) if found is None else self.orders[found]

    def place(self, x: Atom) -> int:
        """Where in `orders` the order of `x` stands, whether it is in a cluster or not."""
        found = self.cluster.get(x) if is_var(x) else None
        return self.natural_place(len(x.aval.shape)) if found is None else found

    def natural_place(self, rank: int) -> int:
        """Where in `orders` the natural order of this rank stands, which nobody turns."""
        if rank not in self._natural:
            self._natural[rank] = len(self.orders)
            self.orders.append(natural(rank))
        return self._natural[rank]

    def turn(self, orders: dict[int, Order]) -> dict[int, Order]:
        """Stores clusters in other orders; the ones that they were in."""
        old = {k: self.orders[k] for k in orders}
        for k, order in orders.items():
            self.orders[k] = order
        return old

    def broadcasts(self, x: Atom) -> tuple[Atom, list[JaxprEqn]]:
        """The value that `x` repeats (`x` itself if it does not), and the broadcasts that make `x`, the last first."""
        chain = []
        while is_var(x) and x in self.repeated:
            chain.append(self.repeated[x])
            x = chain[-1].invars[0]
        return x, chain


def layout_of(jaxpr: Jaxpr, platform: str) -> Layout:
    """The clusters of `jaxpr`, all in their natural orders."""
    layout = Layout(roles=[role_of(eqn, platform) for eqn in jaxpr.eqns])
    joined = DisjointSets()
    for eqn, role in zip(jaxpr.eqns, layout.roles, strict=True):
        if role == "repeated":
            layout.repeated[eqn.outvars[0]] = eqn
        elif role != "wall":
            for v in eqn.outvars:
                joined.join(v, eqn.outvars[0])
            for x in eqn.invars if role in ENTRYWISE else ():
                if is_var(x) and x in joined.parent and x.aval.shape:
                    joined.join(x, eqn.outvars[0])
    dense: dict[Var, int] = {}
    for var in joined.parent:
        layout.cluster[var] = dense.setdefault(joined.find(var), len(dense))
        if layout.cluster[var] == len(layout.orders):
            layout.orders.append(natural(len(var.aval.shape)))
    return layout


def role_of(eqn: JaxprEqn, platform: str) -> str:
    """What an equation is here: "aligned", "call", "repeated", "carrier", "product", or "wall"."""
    role = _role_by_form(eqn)
    if role == "wall" or eqn.effects or not eqn.invars:
        return "wall"
    if role == "product" and platform == "cpu" and is_brittle(eqn):
        return "wall"
    if eqn.params.get("sharding") is not None or eqn.params.get("out_sharding") is not None:
        return "wall"
    values = (*eqn.invars, *eqn.outvars)
    return "wall" if any(_jax.explicit_mesh(x.aval) for x in values) else role


def _role_by_form(eqn: JaxprEqn) -> str:
    name = eqn.primitive.name
    if name == "dot_general":
        return "product"
    if name == "broadcast_in_dim":
        return "repeated" if len(eqn.invars) == 1 else "wall"
    if name in CARRIERS and len(eqn.invars) == 1 and is_var(eqn.invars[0]):
        return "carrier" if name != "transpose" or _weak(eqn.invars[0]) == _weak(eqn.outvars[0]) else "wall"
    if is_aligned(eqn):
        return "aligned"
    return "call" if is_entrywise_call(eqn) else "wall"


def is_brittle(eqn: JaxprEqn) -> bool:
    """Whether XLA's CPU backend runs a product in some forms only: of bfloat16, in a longer type.

    Those in which both operands would be read against their rows end with "Unsupported element type for
    DotThunk::Execute" (jaxlib 0.10.2), and XLA makes such a form of another where it folds a transpose into it.
    """
    operands, out = (x.aval.dtype for x in eqn.invars), eqn.outvars[0].aval.dtype
    return out != jnp.bfloat16 and all(dtype == jnp.bfloat16 for dtype in operands)


def _weak(x: Atom) -> bool:
    return getattr(x.aval, "weak_type", False)
