"""A level of a program with its values stored in the orders that a layout says."""

from typing import Any

from jax import lax

from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var, new_var

from ..program import Builder, is_var, rename, with_equations
from .aligned import aligned_params
from .entrywise_calls import reordered_call
from .layout import Layout
from .multiplying import Multiplying
from .orders import Order, carry, natural, operand_order, permute, step
from .prices import Prices
from .terms import carrying, multiplying


def reorder(jaxpr: Jaxpr, layout: Layout, prices: Prices) -> Jaxpr:
    """The same program; what the layout leaves in its natural order stays the same equation."""
    return _Reorder(layout, prices).run(jaxpr)


class _Reorder:
    def __init__(self, layout: Layout, prices: Prices):
        self.layout = layout
        self.prices = prices
        self.eqns: list[JaxprEqn] = []
        self.stored: dict[Var, Atom] = {}
        self.copies: dict[tuple[Var, Order], Atom] = {}
        self.last: JaxprEqn | None = None

    def run(self, jaxpr: Jaxpr) -> Jaxpr:
        for eqn, kind in zip(jaxpr.eqns, self.layout.roles, strict=True):
            self.last = eqn
            if kind == "product":
                self._product(eqn)
            elif kind == "carrier":
                self._carrier(eqn)
            elif kind == "aligned":
                order = self.layout.order(eqn.outvars[0])
                params = eqn.params if order == natural(len(order)) else aligned_params(eqn, order)
                self._emit(eqn, [self.get(x, order) for x in eqn.invars], params, order)
            elif kind == "call":
                self._call(eqn)
            elif kind == "wall":
                env = {x: self.get(x, self._natural(x)) for x in eqn.invars if is_var(x)}
                self.eqns.append(rename(eqn, env))
        return with_equations(jaxpr, self.eqns, [self.get(x, self._natural(x)) for x in jaxpr.outvars])

    def get(self, x: Atom, order: Order) -> Atom:
        """`x` in an order, copied or made again once for each; a scalar beside larger values as it is."""
        if not is_var(x):
            return x
        order = order if getattr(x.aval, "shape", ()) else ()
        if x in self.layout.repeated:
            if (x, order) not in self.copies:
                self.copies[x, order] = self._broadcast(self.layout.repeated[x], order)
            return self.copies[x, order]
        here = self.layout.order(x)
        if here == order:
            return self.stored.get(x, x)
        if (x, order) not in self.copies:
            assert self.last is not None, "a value is turned for an equation or after all of them"
            builder = Builder(self.last)
            permutation = step(here, order)
            (found,) = builder.call(lambda value: lax.transpose(value, permutation), self.stored.get(x, x))
            self.eqns += builder.eqns
            self.copies[x, order] = found
        return self.copies[x, order]

    def _natural(self, x: Atom) -> Order:
        return natural(len(getattr(x.aval, "shape", ())))

    def _broadcast(self, eqn: JaxprEqn, order: Order) -> Atom:
        operand = self.get(eqn.invars[0], operand_order(eqn, order))
        if order == self._natural(eqn.outvars[0]):
            self.eqns.append(_with(eqn, [operand], eqn.params, eqn.outvars))
            return eqn.outvars[0]
        dims = tuple(sorted(order.index(d) for d in eqn.params["broadcast_dimensions"]))
        params = {**eqn.params, "shape": permute(eqn.params["shape"], order), "broadcast_dimensions": dims}
        out = _stored_var(eqn.outvars[0], order)
        self.eqns.append(_with(eqn, [operand], params, [out]))
        return out

    def _carrier(self, eqn: JaxprEqn) -> None:
        (x,), out = eqn.invars, eqn.outvars[0]
        price, (operand_place, result_place) = carrying(eqn, self.layout, self.prices)
        wanted = self.layout.orders[result_place]
        choices = price.choices(self.layout.orders[operand_place], wanted)
        _, order = min(choices, key=lambda choice: choice[0])
        carried = carry(eqn, order)
        assert carried is not None, "a choice can be carried"
        operand = self.get(x, order)
        if eqn.primitive.name == "transpose":
            self._result(out, operand, carried.order, wanted)
        else:
            made = self._make(eqn, [operand], carried.params, carried.order)
            self._result(out, made, carried.order, wanted)

    def _call(self, eqn: JaxprEqn) -> None:
        order = self.layout.order(eqn.outvars[0])
        operands = [self.get(x, order) for x in eqn.invars]
        if order == natural(len(order)):
            self._emit(eqn, operands, eqn.params, order)
            return
        builder = Builder(eqn)
        outs = builder.call(reordered_call(eqn, order), *operands)
        self.eqns += builder.eqns
        self.stored.update(zip(eqn.outvars, outs, strict=True))

    def _product(self, eqn: JaxprEqn) -> None:
        one, other = eqn.invars
        price, places = multiplying(eqn, self.layout, self.prices)
        left, right, wanted = (self.layout.orders[k] for k in places)
        form = price.form((left, right, wanted))
        if form is None:
            self._entries(eqn, price, wanted)
            return
        operands = [self.get(one, form.left), self.get(other, form.right)]
        params = eqn.params if form == price.product.as_written() else form.params(eqn)
        made = self._make(eqn, operands[::-1] if form.swapped else operands, params, form.out)
        self._result(eqn.outvars[0], made, form.out, wanted)

    def _entries(self, eqn: JaxprEqn, price: Multiplying, wanted: Order) -> None:
        """A product without sums, made entry by entry."""
        out = eqn.outvars[0]
        shape, dtype = permute(out.aval.shape, wanted), out.aval.dtype
        reads = [price.read(side, wanted) for side in (0, 1)]
        dims = [tuple(k for k, place in enumerate(wanted) if place in price.places(side)) for side in (0, 1)]

        def multiplied(*values: Any) -> Any:
            wide = [
                lax.broadcast_in_dim(lax.convert_element_type(x, dtype), shape, d)
                for x, d in zip(values, dims, strict=True)
            ]
            return lax.mul(*wide)

        builder = Builder(eqn)
        (made,) = builder.call(multiplied, *[self.get(x, order) for x, order in zip(eqn.invars, reads, strict=True)])
        self.eqns += builder.eqns
        self.stored[out] = made

    def _emit(self, eqn: JaxprEqn, operands: list[Atom], params: dict[str, Any], order: Order) -> None:
        outs = [v if isinstance(v, DropVar) else _stored_var(v, order) for v in eqn.outvars]
        self.stored.update(zip(eqn.outvars, outs, strict=True))
        self.eqns.append(_with(eqn, operands, params, outs))

    def _make(self, eqn: JaxprEqn, operands: list[Atom], params: dict[str, Any], order: Order) -> Atom:
        out = _stored_var(eqn.outvars[0], order)
        self.eqns.append(_with(eqn, operands, params, [out]))
        return out

    def _result(self, out: Var, made: Atom, order: Order, wanted: Order) -> None:
        """`made`, in `order`, is what `out` is stored as, in the order `wanted`."""
        if order != wanted:
            assert self.last is not None, "an equation was read"
            builder = Builder(self.last)
            (made,) = builder.call(lambda value: lax.transpose(value, step(order, wanted)), made)
            self.eqns += builder.eqns
        self.stored[out] = made


def _stored_var(var: Var, order: Order) -> Var:
    """`var` itself in its natural order, else a new variable."""
    if order == natural(len(order)):
        return var
    return new_var(var.aval.update(shape=permute(var.aval.shape, order)))


def _with(eqn: JaxprEqn, operands: list[Atom], params: dict[str, Any], outs: list[Any]) -> JaxprEqn:
    same = all(a is b for a, b in zip((*operands, *outs), (*eqn.invars, *eqn.outvars), strict=True))
    return eqn if same and params is eqn.params else eqn.replace(invars=operands, params=params, outvars=outs)
