"""Orientation: a product is made in the layout in which it is wanted.

`vmap` puts the operand it does not map first and moves axes afterwards: `vmap(vmap(W @ x))` is `dot_general(W, x)` and
a transpose of the whole result (JAX issue 19327). A transpose around a `dot_general` is only another choice of
operand order and dimension numbers, and one before or after an entrywise equation can stand on its other side. Which
values are stored in which order is chosen for all products of a level together (`orient.py`).
"""

import jax.numpy as jnp

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..exactness import Exactness
from ..levels import rewrite_steps
from ..normalize import drop_dead
from ..orders.layout import Layout, layout_of
from ..orders.orders import Order, carry, moved_bytes, natural, pull
from ..orders.orient import best_orders
from ..orders.own_writes import may_come_out_wrong
from ..orders.prices import Prices, prices_on
from ..orders.reorder import reorder
from ..orders.terms import Group, Term, groups_of, terms_of
from ..pipeline import Context
from ..program import Makers, Program, Readers, is_var, producers, users, where
from ..record import record
from ..report import Decision
from ..same import Body

NAME = "orientation"
WHAT = "products are made in the order in which they are wanted"
AS_MUCH = "every other order copies as much: what reads the transpose, or what it reads, is wanted as it is"
ENTRY_BY_ENTRY = "without it, results would be joined entry by entry, which takes longer"
# Columns from which on the product of a matrix and a vector takes less time against the rows.
WIDE = 64
# Of a program without a loop around it, rows from which on a narrow matrix is better turned.
LONG = 1 << 13
# A cross product of 2,000 to 200,000 rows takes 1.1 to 2.0 times as long as with the transpose.
STREWN = 4
# Of a loop: what is read against its rows in each takes longer than to turn it once, before the loop.
SEVERAL_STEPS = 8
AGAINST_ROWS = "without it, thin products would read their left operands against the rows, which takes longer"


@record
class Orientation:
    """The pass. A product's sums are the same in another order, so exactness is that of another gemm call."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without transposes that other orders make needless, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        prices = prices_on(context.platform)
        in_few_steps = turned_halves if context.platform == "cpu" else None
        new = rewrite_steps(program, lambda jaxpr, _: _level(jaxpr, prices, decisions), in_few_steps, SEVERAL_STEPS)
        return new, decisions


def turned_halves(jaxpr: Jaxpr, steps: int) -> set[int]:
    """The places of transposes of matrices of two-byte floats that XLA's CPU backend has no product read through.

    It multiplies these as float32, and takes the transpose along when it converts a matrix: of a loop's constant once.
    Read against its rows, which then stay, such a matrix took 1.1 to 3.1 times as long in 10 steps (300 to 20,000 rows
    of 8 to 256 numbers), but in products with a vector of 64 columns on: 0.3 to 0.9. In one step that holds for many
    rows of less than 64 numbers only: 1.1 to 2.6 times as long for 10,000 rows of 4 to 30, 0.6 to 0.9 for 3,000.
    """
    readers = users(jaxpr)

    def reads_rows(k: int, x: Var) -> bool:
        if k < 0 or jaxpr.eqns[k].primitive.name != "dot_general":
            return False
        one, other = jaxpr.eqns[k].invars
        return max(y.aval.size for y in (one, other) if y is not x) > max(x.aval.shape) or x.aval.shape[0] < WIDE

    found = set[int]()
    for place, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name != "transpose" or len(eqn.outvars[0].aval.shape) != 2:
            continue
        out = eqn.outvars[0]
        halves = jnp.issubdtype(out.aval.dtype, jnp.floating) and out.aval.dtype.itemsize == 2
        if steps < 2 and (out.aval.shape[0] >= WIDE or out.aval.shape[1] < LONG):
            continue
        read = readers.get(out, ())
        if halves and read and all(reads_rows(k, out) for k in read):
            found.add(place)
    return found


def _level(jaxpr: Jaxpr, prices: Prices, decisions: list[Decision]) -> Jaxpr:
    if not any(eqn.primitive.name in ("dot_general", "transpose") for eqn in jaxpr.eqns):
        return jaxpr
    layout = layout_of(jaxpr, prices.platform)
    readers, makers = users(jaxpr), producers(jaxpr)
    made: list[Decision] = []
    changed = False
    for group in groups_of(layout, terms_of(jaxpr, layout, prices)):
        before = group.weight(layout.orders) + _of_broadcasts(layout, group)
        if before:
            refusal = _improve(jaxpr, layout, group, before, readers, makers)
            changed |= refusal is None
            made += _decisions(jaxpr, layout, group, refusal, makers, readers)
    if not changed:
        decisions += made
        return jaxpr
    new = drop_dead(reorder(jaxpr, layout, prices))
    if Body(new) == Body(jaxpr):  # a reader that wants its own order has the transpose made again
        return jaxpr
    reason = None
    if copied_bytes(new) > copied_bytes(jaxpr):
        reason = "the layout that products like takes more transposes than there are"
    elif may_come_out_wrong(jaxpr, prices.platform):
        reason = "a value is written into that the write reads, which this XLA computes wrongly behind a bare product"
    if reason is not None:
        at = next(where(eqn) for eqn in jaxpr.eqns if eqn.primitive.name in ("dot_general", "transpose"))
        decisions.append(Decision(NAME, WHAT, at, False, reason))
        return jaxpr
    decisions += made
    return new


def copied_bytes(jaxpr: Jaxpr) -> int:
    """Bytes that the transposes of one level write."""
    return sum(_transposed(eqn) for eqn in jaxpr.eqns if eqn.primitive.name == "transpose")


def _transposed(eqn: JaxprEqn) -> int:
    order = tuple(eqn.params["permutation"])
    return moved_bytes(eqn.invars[0].aval, natural(len(order)), order)


def _improve(jaxpr: Jaxpr, layout: Layout, group: Group, before: float, readers: Readers, makers: Makers) -> str | None:
    """Turns the clusters of one group if that pays; else the reason why it does not."""
    weight, orders = best_orders(layout, group)
    folded, burden, as_folded = _folded(jaxpr, layout, group, readers, makers)
    is_sure = all(_is_folded(jaxpr, eqn, readers) for _, eqn in _transposes(group))
    # As cheap as what XLA makes of it is enough where a transpose goes: then there is less to compile.
    if min(weight, folded) >= before or (weight > folded and not is_sure):
        return AS_MUCH
    stays, strewn = before + group.burden(layout.orders), _strewn(jaxpr, layout, group)
    old = layout.turn(orders)
    mine, xla = weight + group.burden(layout.orders), folded + burden
    if mine == xla or (mine > xla and is_sure):  # of equal ones the one nearest to the program as it was written
        layout.turn(old)
        old, weight, mine = layout.turn(as_folded), folded, xla
    # XLA may fold other transposes or not; the order must be no worse than the better of both.
    if mine > xla or (mine > stays and not is_sure):
        layout.turn(old)
        return AGAINST_ROWS
    if weight + _strewn(jaxpr, layout, group) > before + strewn:
        layout.turn(old)
        return ENTRY_BY_ENTRY
    return None


def _strewn(jaxpr: Jaxpr, layout: Layout, group: Group) -> int:
    """What it takes, as so many bytes copied, to join entries along the dimension in which a result is stored.

    XLA then asks at each entry of the result which piece it is of; joined as rows, pieces are made one after the other.
    """
    found = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "concatenate" or layout.cluster.get(eqn.outvars[0], -1) not in group.near:
            continue
        out, dim = eqn.outvars[0], eqn.params["dimension"]
        large = [d for d in layout.order(out) if out.aval.shape[d] != 1]
        if large[1:] and large[-1] == dim and all(x.aval.shape[dim] == 1 for x in eqn.invars):
            found += STREWN * nbytes(out.aval)
    return found


def _folded(
    jaxpr: Jaxpr, layout: Layout, group: Group, readers: Readers, makers: Makers
) -> tuple[float, float, dict[int, Order]]:
    """What a group copies when products take over the transposes beside them, as XLA makes them do.

    They read through those of their operands, and those of their results are their operands in the other order; a
    transpose that another one undoes is none. And the burden of those products, and the orders.
    """
    turned: dict[int, Order] = {}
    for _, eqn in _transposes(group):
        (x,), out = eqn.invars, eqn.outvars[0]
        names = {jaxpr.eqns[k].primitive.name if k >= 0 else "" for k in readers.get(out, ())}
        if names != {"transpose"} and _is_swapped_product(jaxpr, eqn, readers, makers) and x in layout.cluster:
            order = pull(eqn, layout.order(out))
            assert order is not None, "a transpose gives every order"
            turned[layout.cluster[x]] = order
        elif names <= {"dot_general", "transpose"} and out in layout.cluster:
            carried = carry(eqn, layout.order(x))
            assert carried is not None, "a transpose takes every order"
            turned[layout.cluster[out]] = carried.order
    old = layout.turn(turned)
    found = group.weight(layout.orders), group.burden(layout.orders)
    layout.turn(old)
    return *found, turned


def _is_folded(jaxpr: Jaxpr, eqn: JaxprEqn, readers: Readers) -> bool:
    """Whether a transpose is of a matrix that products alone read, and with matrices: with a vector XLA may fuse it."""
    out = eqn.outvars[0]
    return len(out.aval.shape) == 2 and all(
        k >= 0 and jaxpr.eqns[k].primitive.name == "dot_general" and jaxpr.eqns[k].outvars[0].aval.ndim > 1
        for k in readers.get(out, ())
    )


def _is_swapped_product(jaxpr: Jaxpr, eqn: JaxprEqn, readers: Readers, makers: Makers) -> bool:
    """Whether a transpose changes the places of the free dimensions of a product that nobody else reads."""
    (x,), order = eqn.invars, tuple(eqn.params["permutation"])
    rank = len(order)
    if not is_var(x) or x not in makers or len(readers.get(x, ())) != 1 or order[-2:] != (rank - 1, rank - 2):
        return False
    made = jaxpr.eqns[makers[x]]
    if made.primitive.name != "dot_general" or order[:-2] != natural(rank - 2):
        return False
    contract, batch = made.params["dimension_numbers"]
    free = [len(y.aval.shape) - len(contract[k]) - len(batch[k]) for k, y in enumerate(made.invars)]
    return free == [1, 1]


def _transposes(group: Group) -> list[tuple[Term, JaxprEqn]]:
    found = ((term, term.eqn) for term in group.terms)
    return [(term, eqn) for term, eqn in found if eqn is not None and eqn.primitive.name == "transpose"]


def _of_broadcasts(layout: Layout, group: Group) -> int:
    """Bytes of the transposes of what can be made in any order: they copy nothing, but they stand there."""
    return sum(_transposed(eqn) for _, eqn in _transposes(group) if eqn.invars[0] in layout.repeated)


def _decisions(
    jaxpr: Jaxpr, layout: Layout, group: Group, refusal: str | None, makers: Makers, readers: Readers
) -> list[Decision]:
    """One for each transpose of the group that has gone or, next to a product, has stayed."""
    product = next((t.eqn for t in group.terms if t.eqn is not None and t.eqn.primitive.name == "dot_general"), None)
    product_line = "" if product is None else where(product)
    found = []
    for term, eqn in _transposes(group):
        size = _transposed(eqn)
        if not size:
            continue
        at = where(eqn) or product_line  # vmap's own transposes have no line of the user's
        if refusal is None and not term.weight(layout.orders):
            reason = "its transpose need not exist"
            found.append(Decision(NAME, WHAT, at, True, reason, 0, 2 * size, size, Exactness.REASSOCIATES))
        elif _beside_product(jaxpr, eqn, makers, readers):
            found.append(Decision(NAME, WHAT, at, False, refusal or AS_MUCH))
    if refusal is None and not any(d.fired for d in found):
        reason = "its operands and readers have the batch first"
        found.append(Decision(NAME, WHAT, product_line, True, reason, exactness=Exactness.REASSOCIATES))
    return found


def _beside_product(jaxpr: Jaxpr, eqn: JaxprEqn, makers: Makers, readers: Readers) -> bool:
    near = [makers.get(eqn.invars[0], -1), *readers.get(eqn.outvars[0], ())]  # type: ignore[arg-type]
    return any(k >= 0 and jaxpr.eqns[k].primitive.name == "dot_general" for k in near)
