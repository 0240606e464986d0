"""Sums of products carried through a loop: one contraction over all steps after it.

`W_gradient += outer(h, dz)` reads and writes all of the matrix in every step for a product of one row. With the rows of
all steps at hand (mostly they are inputs of the loop already), the sum is one product of two tall matrices.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.rebind import bind
from ..cost import Machine, equation_seconds, nbytes
from ..loop import Loop
from ..program import Builder, Readers, copy_equation, is_var, substitute, users
from .hoist import LoopCopy, Replacement, constant_equations
from .hoistable import crossing_seconds

# A product that sums up this many terms in each step gains by its addition alone, which stacks are not written for: up
# to 1 MB of them stay in the cache. (Gradients of recurrent layers, 16 to 256 terms, 2 cores of an AMD EPYC with
# AVX-512, jaxlib 0.10.2: one product of all steps took 0.6 to 0.9 of the time, with stacks of 6 MB too, but these are
# half of what such a gradient keeps.)
LONGEST_CONTRACTION = 16
# An outer product by broadcasting is one kernel with its addition; below this many bytes that is as fast as a product.
SMALLEST_OUTER = 16 << 10
# Bytes that may be stacked in any case.
FREE_STACKS = 1 << 20
# A product after a loop begins on other threads; measured of 8 x 8 products of 200 steps, 40 to 80 us in all.
SECONDS_AFTERWARDS = 3e-5
SHAPING = frozenset("transpose reshape squeeze expand_dims neg convert_element_type".split())


@dataclass(frozen=True)
class Sum:
    """A carry that only gathers terms.

    Attributes:
        carry: its position.
        eqn: the equation at the root of a term: a product, an outer product by broadcasting, or None if the term is
            the value `operands[0]` itself.
        operands: what is multiplied, or the term.
        shaping: what is done to the product before it is added, first to last.
        add: the addition.
        dims: for an outer product by broadcasting, the dimensions of the result in which each operand differs.
    """

    carry: int
    eqn: JaxprEqn | None
    operands: tuple[Var, ...]
    shaping: tuple[JaxprEqn, ...]
    add: JaxprEqn
    dims: tuple[tuple[int, ...], ...] = ()


def find_sums(loop: Loop) -> list[Sum]:
    """All carries of a loop that nothing reads but their own addition."""
    readers = users(loop.body)
    makers = {v: eqn for eqn in loop.body.eqns for v in eqn.outvars}
    found = (_sum(loop, k, readers, makers) for k in range(len(loop.init)))
    return [one for one in found if one is not None]


def _sum(loop: Loop, k: int, readers: Readers, makers: dict[Var, JaxprEqn]) -> Sum | None:
    acc, nxt = loop.body_carry[k], loop.next_carry[k]
    aval = loop.finals[k].aval
    dtype = aval.dtype
    if not _jax.is_number(dtype):  # an extended type has an addition of its own
        return None
    if not is_var(nxt) or nxt not in makers or readers[nxt] != [-1] or sum(x is nxt for x in loop.body.outvars) != 1:
        return None
    add = makers[nxt]
    own = _through_weak_type(acc, loop.body.eqns, readers)
    if own is None or add.primitive.name not in ("add", "add_any") or sum(x is own for x in add.invars) != 1:
        return None
    (term,) = (x for x in add.invars if x is not own)
    if (
        not is_var(term)
        or term.aval.shape != aval.shape
        or term.aval.dtype != dtype
        or term in loop.body_consts
        or term in loop.body_carry
    ):
        return None
    shaping: list[JaxprEqn] = []
    x: Var = term
    while x in makers and makers[x].primitive.name in SHAPING and len(readers[x]) == 1 and _keeps_type(makers[x]):
        shaping.insert(0, makers[x])
        if not is_var(makers[x].invars[0]):
            return None
        x = makers[x].invars[0]  # type: ignore[assignment]
    base = makers.get(x)
    if base is not None and len(readers[x]) == 1:
        found = _factors(base, loop, makers)
        if found is not None and not base.effects:
            return Sum(k, base, found[0], tuple(shaping), add, found[1])
    return Sum(k, None, (term,), (), add)


def _through_weak_type(acc: Var, eqns: Sequence[JaxprEqn], readers: Readers) -> Var | None:
    """The one value that stands for a carry in its addition: itself, or itself without weakness of its type."""
    if len(readers.get(acc, ())) != 1 or readers[acc] == [-1]:
        return None
    eqn = eqns[readers[acc][0]]
    if eqn.primitive.name != "convert_element_type":
        return acc
    out = eqn.outvars[0]
    only = len(readers.get(out, ())) == 1 and readers[out] != [-1]
    return out if only and out.aval.dtype == acc.aval.dtype else None


def _keeps_type(eqn: JaxprEqn) -> bool:
    return eqn.outvars[0].aval.dtype == eqn.invars[0].aval.dtype


def _factors(
    eqn: JaxprEqn, loop: Loop, makers: dict[Var, JaxprEqn]
) -> tuple[tuple[Var, Var], tuple[tuple[int, ...], ...]] | None:
    """The two values, different in each step, whose product an equation is, and `Sum.dims`."""
    out = eqn.outvars[0].aval
    dims: tuple[tuple[int, ...], ...] = ()
    if eqn.primitive.name == "dot_general" and eqn.params["out_sharding"] is None:
        a, b = eqn.invars
    elif eqn.primitive.name == "mul" and out.dtype.kind not in "biu":
        left, right = (_spread(x, out.shape, makers) for x in eqn.invars)
        if left is None or right is None:
            return None
        (a, mine), (b, others) = left, right
        wide = {d for d, n in enumerate(out.shape) if n != 1}
        if set(mine) & set(others) or {*mine, *others} != wide or not mine or not others:
            return None
        dims = (mine, others)
    else:
        return None
    fixed = {*loop.body_consts, *(v for i in constant_equations(loop) for v in loop.body.eqns[i].outvars)}
    if not is_var(a) or not is_var(b) or a in fixed or b in fixed:
        return None
    return (a, b), dims


def _spread(x: Atom, shape: Sequence[int], makers: dict[Var, JaxprEqn]) -> tuple[Var, tuple[int, ...]] | None:
    """The value that an operand repeats, and the dimensions of the result in which it differs."""
    if not is_var(x) or len(x.aval.shape) != len(shape):
        return None
    maker = makers.get(x)
    if maker is not None and maker.primitive.name == "broadcast_in_dim" and is_var(maker.invars[0]):
        value, into = maker.invars[0], maker.params["broadcast_dimensions"]
        return value, tuple(d for d, n in zip(into, value.aval.shape, strict=True) if n != 1)
    return x, tuple(d for d, n in enumerate(x.aval.shape) if n != 1)


def is_small_outer(one: Sum) -> bool:
    """Whether a sum is of small outer products by broadcasting."""
    return bool(one.dims) and nbytes(one.add.outvars[0].aval) < SMALLEST_OUTER


def contracted(one: Sum) -> int:
    """How many products each element of a term sums up already."""
    assert one.eqn is not None
    if one.eqn.primitive.name != "dot_general":
        return 1
    (dims, _), _ = one.eqn.params["dimension_numbers"]
    size = 1
    for d in dims:
        size *= one.eqn.invars[0].aval.shape[d]
    return size


def new_stacks(loop: Loop, one: Sum) -> list[Var]:
    """What a sum needs of all steps and the loop does not read or stack yet."""
    existing = {*loop.body_xs, *(y for y in loop.body_ys if is_var(y))}
    return [x for x in dict.fromkeys(one.operands) if x not in existing]


def widens(loop: Loop, one: Sum) -> bool:
    """Whether the stacks that a sum needs are large beside what the loop reads and stacks already.

    Under a head, the gradients of all logits would be one; in the loop they never exist together.
    """
    added = loop.length * sum(nbytes(x.aval) for x in new_stacks(loop, one))
    held = sum(nbytes(x.aval) for x in (*loop.xs, *loop.ys))
    return added > max(FREE_STACKS, held // 2)


def is_long(loop: Loop, one: Sum) -> bool:
    """Whether each step sums up many terms, and all their factors, stacked, would not stay in the cache."""
    added = loop.length * sum(nbytes(x.aval) for x in new_stacks(loop, one))
    return contracted(one) >= LONGEST_CONTRACTION and added > FREE_STACKS


def stays_stored(loop: Loop, one: Sum, stored: Collection[Var]) -> bool:
    """Whether each step sums up many terms, and a wide factor is `stored` by another loop, which may make it again.

    Wide is more than each that a step reads and hands over besides what is stored.
    """
    outer = {v: x for v, x in zip(loop.body_xs, loop.xs, strict=True) if is_var(x) and x in stored}
    given = (*(v for v in loop.body_xs if v not in outer), *loop.body_ys)
    largest = max((nbytes(x.aval) for x in one.operands if x in outer), default=0)
    wide = largest > max((nbytes(x.aval) for x in given), default=0) and loop.length * largest > FREE_STACKS
    return wide and contracted(one) >= LONGEST_CONTRACTION


def seconds_saved(loop: Loop, one: Sum, machine: Machine) -> float:
    """Predicted time that taking a sum of products out of a loop saves, less what stacking costs."""
    assert one.eqn is not None
    length = loop.length
    step = equation_seconds(one.eqn, machine) + equation_seconds(one.add, machine)
    step += sum(equation_seconds(eqn, machine) for eqn in one.shaping)
    builder = Builder(one.eqn)
    stacked = [_jax.new_var(x.aval.update(shape=(length, *x.aval.shape))) for x in one.operands]
    _contract(builder, one, stacked)
    whole = SECONDS_AFTERWARDS + sum(equation_seconds(eqn, machine) for eqn in builder.eqns)
    return length * step - whole - sum(crossing_seconds(x, length, machine) for x in new_stacks(loop, one))


def sink(loop: Loop, sums: Sequence[Sum]) -> Replacement:
    """The loop without the carries of `sums`, which are summed up after it."""
    copy = LoopCopy(loop, {one.carry for one in sums})
    new, env = copy.new, copy.env
    dead = {v for one in sums for v in (loop.body_carry[one.carry], *one.add.outvars)}
    for eqn in loop.body.eqns:
        if any(is_var(x) and x in dead for x in eqn.invars):
            dead.update(eqn.outvars)
        elif not any(v in dead for v in eqn.outvars):
            new.body.eqns.append(copy_equation(eqn, env))
    stacked = {v: x for v, x in zip(loop.body_xs, loop.xs, strict=True) if is_var(x)}
    stacked = copy.finish() | stacked
    results: dict[Var, Atom] = {}
    for one in sums:
        for x in one.operands:
            if x not in stacked:
                stacked[x] = new.y(substitute(x, env))
        total = _contract(new.after, one, [stacked[x] for x in one.operands])
        init, final = loop.init[one.carry], loop.finals[one.carry]
        (results[final],) = new.after.call(lambda a, b, t=final.aval: _add(a, b, t), init, total)
    return Replacement(new.equations(), results)


def _contract(builder: Builder, one: Sum, stacked: Sequence[Atom]) -> Atom:
    """The sum of all terms."""
    (total,) = builder.call(lambda *xs: _product_sum(one, *xs), *stacked)
    for eqn in one.shaping:
        (total,) = builder.call(lambda x, eqn=eqn: bind(eqn, [x], eqn.params), total)
    return total


def _product_sum(one: Sum, *stacked: Any) -> Any:
    if one.eqn is None:
        return lax.reduce_sum(stacked[0], [0])
    p, (a, b) = one.eqn.params, stacked
    if one.eqn.primitive.name == "dot_general":
        (left, right), (batch_left, batch_right) = p["dimension_numbers"]
        contract = ((0, *(d + 1 for d in left)), (0, *(d + 1 for d in right)))
        batch = (tuple(d + 1 for d in batch_left), tuple(d + 1 for d in batch_right))
        kind = p["preferred_element_type"]
        return lax.dot_general(a, b, (contract, batch), precision=p["precision"], preferred_element_type=kind)
    shape = one.eqn.outvars[0].aval.shape
    length = a.shape[0]
    rows, columns = lax.reshape(a, (length, a.size // length)), lax.reshape(b, (length, b.size // length))
    product = lax.dot_general(rows, columns, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
    order = (*one.dims[0], *one.dims[1])
    product = lax.reshape(product, tuple(shape[d] for d in order))
    whole = lax.transpose(product, tuple(sorted(range(len(order)), key=lambda i: order[i])))
    return lax.reshape(whole, shape)


def _add(init: Any, total: Any, aval: Any) -> Any:
    out = lax.add(init, lax.convert_element_type(total, init.dtype))
    return _jax.convert_element_type(out, aval.dtype, aval.weak_type)
