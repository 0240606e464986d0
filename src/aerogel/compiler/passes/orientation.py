"""Orientation: a product is made in the layout in which it is wanted.

`vmap` puts the operand it does not map first and moves axes afterwards: `vmap(vmap(W @ x))` is `dot_general(W, x)` and
a transpose of the whole result (JAX issue 19327). A transpose before or after a `dot_general` is only another choice
of operand order and dimension numbers.
"""

from dataclasses import dataclass
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..exactness import Exactness
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Builder, Program, users, where, with_equations
from ..report import Decision

NAME = "orientation"
# Reordering an operand instead of the result must save at least this factor of what is copied.
WORTH = 2


@dataclass(frozen=True)
class Orientation:
    """The pass. Sums stay the same products in the same order, so exactness is that of another gemm call."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without transposes around products, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    if not any(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns):
        return jaxpr
    readers = users(jaxpr)
    products: dict[Var, JaxprEqn] = {}
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        new = [eqn]
        if eqn.primitive.name == "dot_general" and _plain(eqn):
            products[eqn.outvars[0]] = eqn
        elif eqn.primitive.name == "transpose" and eqn.invars[0] in products:
            (source,) = eqn.invars
            product = products[source]  # type: ignore[index]
            turned = turn(product, tuple(eqn.params["permutation"])) if len(readers[source]) == 1 else None
            if turned is not None:
                new = turned.build(product, eqn.outvars[0])
                decisions.append(_decision(eqn, turned))
        eqns += new
    if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return drop_dead(with_equations(jaxpr, eqns))


def _decision(eqn: JaxprEqn, turned: "Turned") -> Decision:
    size = nbytes(eqn.outvars[0].aval) - turned.copied_bytes
    what = "a product is made in the order in which it is wanted"
    return Decision(
        NAME, what, where(eqn), True, "its transpose need not exist", 0, 2 * size, size, Exactness.REASSOCIATES
    )


def _plain(eqn: JaxprEqn) -> bool:
    return eqn.params.get("out_sharding") is None and not _jax.explicit_mesh(eqn.outvars[0].aval)


@dataclass(frozen=True)
class Turned:
    """A product whose result has its dimensions in another order.

    Attributes:
        swapped: whether the right operand comes first.
        batch: the order of the batch dimensions, as positions among the old ones.
        orders: a permutation for each operand, to be made first; None leaves the operand.
        copied_bytes: what those permutations copy.
    """

    swapped: bool
    batch: tuple[int, ...]
    orders: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    copied_bytes: int

    def build(self, eqn: JaxprEqn, out: Var) -> list[JaxprEqn]:
        """The equations that make the result as `out`."""
        builder = Builder(eqn)
        (contract, batch) = eqn.params["dimension_numbers"]
        operands: list[Any] = []
        for k, (atom, order) in enumerate(zip(eqn.invars, self.orders, strict=True)):
            contracted, batched = tuple(contract[k]), tuple(batch[k][b] for b in self.batch)
            if order is not None:
                (atom,) = builder.call(lambda x, order=order: lax.transpose(x, order), atom)
                contracted = tuple(order.index(d) for d in contracted)
                batched = tuple(order.index(d) for d in batched)
            operands.append((atom, contracted, batched))
        (a, ac, ab), (b, bc, bb) = reversed(operands) if self.swapped else operands
        params = dict(eqn.params, dimension_numbers=((ac, bc), (ab, bb)))
        precision = params.get("precision")
        if self.swapped and isinstance(precision, tuple) and len(precision) == 2:
            params["precision"] = precision[::-1]
        return [*builder.eqns, eqn.replace(invars=[a, b], outvars=[out], params=params)]


def turn(eqn: JaxprEqn, permutation: tuple[int, ...]) -> Turned | None:
    """How the product `eqn` is made with its dimensions permuted; None if that copies as much as the transpose."""
    (contract, batch) = eqn.params["dimension_numbers"]
    left, right = (_free(x, contract[k], batch[k]) for k, x in enumerate(eqn.invars))
    nb, nl = len(batch[0]), len(left)
    head, tail = permutation[:nb], permutation[nb:]
    if any(d >= nb for d in head):
        return None
    of_left = [d - nb for d in tail if d < nb + nl]
    of_right = [d - nb - nl for d in tail if d >= nb + nl]
    first_left = [d < nb + nl for d in tail]
    if first_left == [True] * nl + [False] * len(right):
        swapped = False
    elif first_left == [False] * len(right) + [True] * nl:
        swapped = True
    else:
        return None
    orders, copied = [], 0
    for atom, free, order in zip(eqn.invars, (left, right), (of_left, of_right), strict=True):
        if order == sorted(order):
            orders.append(None)
            continue
        places = iter(free[k] for k in order)
        orders.append(tuple(next(places) if d in free else d for d in range(atom.aval.ndim)))
        copied += nbytes(atom.aval)
    if copied * WORTH > nbytes(eqn.outvars[0].aval):
        return None
    return Turned(swapped, head, (orders[0], orders[1]), copied)


def _free(x: Atom, contracted: Any, batched: Any) -> list[int]:
    return [d for d in range(x.aval.ndim) if d not in contracted and d not in batched]
