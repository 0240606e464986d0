"""Sums of products over the steps of a loop are made the way round in which less has to be turned.

A loop that goes backwards through a recurrent layer adds up the gradient of a weight: in each step the transpose of a
matrix of few rows (the batch) times another one. XLA turns the left one for it, entry by entry. Where that one is the
wider one, as for the gates of a layer whose weights are [gates, inputs], the transpose of the sum is cheaper to make:
it is turned once, after the loop.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..loop import Loop, LoopBuilder
from ..program import copy_equation, is_var, producers, substitute, users
from ..record import record

# To turn an entry of a left operand took 0.4 to 2 ns in sums up to 256 kB (jaxlib 0.10.2, one core of an Intel Xeon).
TURNED_SECONDS = 5e-10
# A sum and what is added to it do not fit into the cache of a core beyond this: of 1 and 4 MB, made of 16 rows, the
# transpose took 1.03 and 1.41 of the time, though less was turned.
LARGEST_BYTES = 1 << 19
LEAST_SECONDS = 1e-6  # of a step
WHY_LARGE = "the sum and what is added to it do not fit into the cache"


@record
class TurnedSum:
    """A sum that the steps of a loop add a product to.

    Attributes:
        carry: its place among the carries.
        product: the equation in the body.
        transposes: what stands between the product and the sum, the last one first. XLA makes one product of them all.
        seconds: predicted to be saved in a step by its transpose.
        refusal: why it stays as it is, or None.
    """

    carry: int
    product: JaxprEqn
    transposes: tuple[JaxprEqn, ...]
    seconds: float
    refusal: str | None

    @property
    def is_made_turned(self) -> bool:
        """Whether what is added is the transpose of the product, so that the sum's transpose adds up the product."""
        return _is_turned(self.transposes)

    @property
    def added(self) -> Var:
        """What is added to the sum."""
        return (self.transposes[0] if self.transposes else self.product).outvars[0]


def turned_sums(loop: Loop) -> list[TurnedSum]:
    """The sums of which the transpose has less to turn, those that stay as they are included."""
    body = loop.body
    readers, makers = users(body), producers(body)
    found: list[TurnedSum] = []
    for place, (carry, after) in enumerate(zip(loop.body_carry, loop.next_carry, strict=True)):
        add = body.eqns[makers[after]] if is_var(after) and after in makers else None
        if add is None or add.primitive.name not in ("add", "add_any") or carry not in add.invars:
            continue
        (other,) = [x for x in add.invars if x is not carry] or [None]
        transposes, product = _made_by(other, body, makers)
        if product is None or not _is_outer(product):
            continue
        if any(len(readers.get(v, ())) != 1 for eqn in (add, product, *transposes) for v in (carry, *eqn.outvars)):
            continue
        left, right = (x.aval.size for x in product.invars)
        seconds = TURNED_SECONDS * (right - left if _is_turned(transposes) else left - right)
        if seconds >= LEAST_SECONDS:
            refusal = WHY_LARGE if nbytes(carry.aval) > LARGEST_BYTES else None
            found.append(TurnedSum(place, product, tuple(transposes), seconds, refusal))
    return found


def _made_by(x: _jax.Atom | None, body: Jaxpr, makers: Mapping[Var, int]) -> tuple[list[JaxprEqn], JaxprEqn | None]:
    """The transposes that make a value, from it backwards, and what makes the value that they turn."""
    transposes: list[JaxprEqn] = []
    while x is not None and is_var(x) and x in makers:
        eqn = body.eqns[makers[x]]
        if eqn.primitive.name != "transpose":
            return transposes, eqn
        transposes.append(eqn)
        (x,) = eqn.invars
    return transposes, None


def _is_turned(transposes: Sequence[JaxprEqn]) -> bool:
    return sum(eqn.params["permutation"] == (1, 0) for eqn in transposes) % 2 == 1


def _is_outer(eqn: JaxprEqn) -> bool:
    """Whether an equation is the transpose of a matrix of 32-bit floats times another one."""
    if eqn.primitive.name != "dot_general" or eqn.params["dimension_numbers"] != (((0,), (0,)), ((), ())):
        return False
    (out,) = eqn.outvars
    avals = [*(x.aval for x in eqn.invars), out.aval]
    plain = eqn.params.get("precision") is None and eqn.params.get("out_sharding") is None
    return plain and all(aval.dtype == np.float32 and aval.ndim == 2 for aval in avals)


def turned(loop: Loop, sums: list[TurnedSum]) -> list[JaxprEqn]:
    """The loop with these sums turned, and what turns them before and after it."""
    places = {one.carry: one for one in sums}
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
    carries = []
    inside: dict[Var, _jax.Atom] = dict(zip(loop.body_consts, map(new.const, loop.consts), strict=True))
    for k, (init, final, var) in enumerate(zip(loop.init, loop.finals, loop.body_carry, strict=True)):
        final = _jax.new_var(final.aval) if isinstance(final, DropVar) else final
        if k not in places:
            inside[var], set_next = new.keep_carry(init, final)
        else:
            (start,) = new.before.call(lambda x: lax.transpose(x, (1, 0)), init)
            inside[var], set_next, end = new.carry(start)
            new.after.eqns += _turning(new, end, final)
        carries.append(set_next)
    inside |= dict(zip(loop.body_xs, (new.x(x) if is_var(x) else x for x in loop.xs), strict=True))
    products = {one.product.outvars[0]: one for one in sums}
    dropped = {eqn.outvars[0] for one in sums for eqn in one.transposes}
    sums_made = {x for k, x in enumerate(loop.next_carry) if k in places}
    for eqn in loop.body.eqns:
        if eqn.outvars and eqn.outvars[0] in products:
            one = products[eqn.outvars[0]]
            left, right = (substitute(x, inside) for x in eqn.invars)
            pair = (left, right) if one.is_made_turned else (right, left)
            (inside[one.added],) = new.body.call(lambda a, b: lax.dot_general(a, b, (((0,), (0,)), ((), ()))), *pair)
        elif eqn.outvars and eqn.outvars[0] in dropped:
            continue
        elif eqn.outvars and eqn.outvars[0] in sums_made:
            (inside[eqn.outvars[0]],) = new.body.call(lax.add, *(substitute(x, inside) for x in eqn.invars))
        else:
            new.body.eqns.append(copy_equation(eqn, inside))
    for set_next, after in zip(carries, loop.next_carry, strict=True):
        set_next(substitute(after, inside))
    for y, out in zip(loop.ys, loop.body_ys, strict=True):
        new.y(substitute(out, inside), _jax.new_var(y.aval) if isinstance(y, DropVar) else y)
    return new.equations()


def _turning(new: LoopBuilder, end: Var, final: Var) -> list[JaxprEqn]:
    """Equations that make `final` of its transpose."""
    builder = type(new.after)(new.like)
    (back,) = builder.call(lambda x: lax.transpose(x, (1, 0)), end)
    assert is_var(back)
    return [copy_equation(eqn, {}) if back not in eqn.outvars else eqn.replace(outvars=[final]) for eqn in builder.eqns]
