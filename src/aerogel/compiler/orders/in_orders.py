"""A level with some values in another order of their dimensions: what stands between convolutions, say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.rebind import bind
from ..program import Builder, inner_jaxprs, is_var, rename, with_equations
from .batch_last import CALLS, CONV, WINDOWS, Cluster, Order, linked
from .orders import REDUCTIONS

BY_AXIS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


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
        elif cluster is not None and linked(eqn):
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
        specs = zip(eqn.params["dimension_numbers"], (*eqn.invars, *eqn.outvars), strict=True)
        lhs, rhs, out = (tuple(map(self._order(x).index, spec)) if self._is_in(x) else spec for spec, x in specs)
        self._append(
            eqn,
            self._reads(eqn),
            eqn.params | {"dimension_numbers": lax.ConvDimensionNumbers(lhs, rhs, out)},
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
