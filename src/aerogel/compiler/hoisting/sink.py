"""Sums of products carried through a loop: one contraction over all steps after it.

`W_gradient += outer(h, dz)` reads and writes all of the matrix in every step for a product of one row. With the rows of
all steps at hand (mostly they are inputs of the loop already), the sum is one product of two tall matrices.
"""

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.rebind import bind
from ..cost import Machine, equation_seconds, nbytes
from ..loop import Loop, holds
from ..loop_copy import LoopCopy
from ..program import Builder, Readers, copy_equation, is_var, substitute, users
from ..record import record
from .gathered import Gathered, gathered
from .hoist import Replacement, constant_equations
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


@record
class Sum:
    """A term that a carry gathers, and that nothing else is done with. A carry may gather several.

    Attributes:
        carry: its position.
        place: which of the terms of the carry this is.
        count: how many terms the carry gathers.
        eqn: the equation at the root of the term: a product, an outer product by broadcasting, or None if the term is
            the value `operands[0]` itself.
        operands: what is multiplied, or the term.
        shaping: what is done to the product before it is added, first to last.
        add: the addition that makes the next carry.
        dims: for an outer product by broadcasting, the dimensions of the result in which each operand differs.
    """

    carry: int
    place: int
    count: int
    eqn: JaxprEqn | None
    operands: tuple[Var, ...]
    shaping: tuple[JaxprEqn, ...]
    add: JaxprEqn
    dims: tuple[tuple[int, ...], ...] = ()


def find_sums(loop: Loop) -> list[Sum]:
    """All terms of the carries of a loop that nothing reads but their own additions."""
    readers = users(loop.body)
    makers = {v: eqn for eqn in loop.body.eqns for v in eqn.outvars}
    found: list[Sum] = []
    for k in range(len(loop.init)):
        whole = gathered(loop, k, readers, makers)
        if whole is not None:
            found += [_sum(loop, k, j, whole, readers, makers) for j in range(len(whole.terms))]
    return found


def _sum(loop: Loop, k: int, j: int, whole: Gathered, readers: Readers, makers: dict[Var, JaxprEqn]) -> Sum:
    """The term `j` of carry `k`."""
    term, add, count = whole.terms[j], whole.adds[0], len(whole.terms)
    shaping: list[JaxprEqn] = []
    x: Atom = term
    while is_var(x) and len(readers[x]) == 1 and x in makers and _only_shapes(makers[x]):
        shaping.insert(0, makers[x])
        x = makers[x].invars[0]
    base = makers.get(x) if is_var(x) and len(readers[x]) == 1 else None
    found = None if base is None or base.effects else _factors(base, loop, makers)
    if base is None or found is None or (_has_batch(base) and base.outvars[0].aval.dtype != term.aval.dtype):
        return Sum(k, j, count, None, (term,), (), add)
    return Sum(k, j, count, base, found[0], tuple(shaping), add, found[1])


def _has_batch(eqn: JaxprEqn) -> bool:
    """Whether an equation is several products: no form of those runs in a longer type for sure (`_rows_product`)."""
    return eqn.primitive.name == "dot_general" and bool(eqn.params["dimension_numbers"][1][0])


def _only_shapes(eqn: JaxprEqn) -> bool:
    """Whether a product's terms are only moved, or made longer: their sum is then made in the longer type."""
    if eqn.primitive.name not in SHAPING:
        return False
    before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return before == after or holds(after, before)


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
    """Whether a sum is of small outer products that are one kernel with their addition."""
    return (bool(one.dims) or (one.count > 1 and contracted(one) == 1)) and nbytes(
        one.add.outvars[0].aval
    ) < SMALLEST_OUTER


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


def widens(loop: Loop, sums: Sequence[Sum]) -> bool:
    """Whether the stacks that some sums need are large beside what the loop reads and stacks already.

    Under a head, the gradients of all logits would be one; in the loop they never exist together.
    """
    stacks = {x for one in sums for x in new_stacks(loop, one)}
    added = loop.length * sum(nbytes(x.aval) for x in stacks)
    held = sum(nbytes(x.aval) for x in (*loop.xs, *loop.ys))
    return added > max(FREE_STACKS, held // 2)


def is_long(loop: Loop, one: Sum, made_again: Collection[Var] = ()) -> bool:
    """Whether each step sums up many terms, and all their factors, stacked, would not stay in the cache.

    What the steps read and would else be `made_again` in them counts.
    """
    again = [x for x in dict.fromkeys(one.operands) if x in made_again]
    added = loop.length * sum(nbytes(x.aval) for x in (*new_stacks(loop, one), *again))
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
    product, addition = equation_seconds(one.eqn, machine), equation_seconds(one.add, machine)
    # The additions of a carry are one kernel, which reads and writes it once; it makes outer products, too.
    of_one = contracted(one) == 1
    step = (product + addition) / one.count if of_one else product + addition * (1 + 2 / one.count) / 3
    step += sum(equation_seconds(eqn, machine) for eqn in one.shaping)
    builder = Builder(one.eqn)
    stacked = [_jax.new_var(x.aval.update(shape=(length, *x.aval.shape))) for x in one.operands]
    _contract(builder, one, stacked)
    whole = SECONDS_AFTERWARDS + sum(equation_seconds(eqn, machine) for eqn in builder.eqns)
    return length * step - whole - sum(crossing_seconds(x, length, machine) for x in new_stacks(loop, one))


def sink(loop: Loop, sums: Sequence[Sum]) -> Replacement:
    """The loop without some terms, which are summed up after it, and without carries that then gather nothing."""
    readers = users(loop.body)
    makers = {v: eqn for eqn in loop.body.eqns for v in eqn.outvars}
    gone = {k: whole for k in {one.carry for one in sums} if (whole := gathered(loop, k, readers, makers)) is not None}
    rest: dict[int, list[Var]] = {}
    for k, whole in gone.items():
        leave = {one.place for one in sums if one.carry == k}
        rest[k] = [x for j, x in enumerate(whole.terms) if j not in leave]
    copy = LoopCopy(loop, {k for k, terms in rest.items() if not terms})
    new, env = copy.new, copy.env
    dropped = {id(eqn) for whole in gone.values() for eqn in whole.adds}
    dead = {loop.body_carry[k] for k, terms in rest.items() if not terms}
    for eqn in loop.body.eqns:
        if id(eqn) in dropped or any(is_var(x) and x in dead for x in eqn.invars):
            dead.update(eqn.outvars)
        else:
            new.body.eqns.append(copy_equation(eqn, env))
    for k, terms in rest.items():
        if terms:
            values = [substitute(x, env) for x in (gone[k].own, *terms)]
            (env[gone[k].adds[0].outvars[0]],) = new.body.call(lambda *xs: functools.reduce(lax.add, xs), *values)
    stacked = {v: x for v, x in zip(loop.body_xs, loop.xs, strict=True) if is_var(x)}
    stacked = copy.finish() | stacked
    results: dict[Var, Atom] = {}
    for one in sums:
        for x in one.operands:
            if x not in stacked:
                stacked[x] = new.y(substitute(x, env))
        total = _contract(new.after, one, [stacked[x] for x in one.operands])
        final = loop.finals[one.carry]
        before = results.get(final, final if rest[one.carry] else loop.init[one.carry])
        (results[final],) = new.after.call(lambda a, b, t=final.aval: _add(a, b, t), before, total)
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
    kind = one.add.outvars[0].aval.dtype
    if one.eqn.primitive.name == "dot_general":
        (left, right), (batch_left, batch_right) = p["dimension_numbers"]
        contract = ((0, *(d + 1 for d in left)), (0, *(d + 1 for d in right)))
        if is_longer(one):
            shape = one.eqn.outvars[0].aval.shape
            return lax.reshape(_rows_product(_tall(a, contract[0]), _tall(b, contract[1]), p["precision"], kind), shape)
        batch = (tuple(d + 1 for d in batch_left), tuple(d + 1 for d in batch_right))
        kind = p["preferred_element_type"]
        return lax.dot_general(a, b, (contract, batch), precision=p["precision"], preferred_element_type=kind)
    shape = one.eqn.outvars[0].aval.shape
    product = _rows_product(_tall(a, (0,)), _tall(b, (0,)), lax.Precision.HIGHEST, kind)
    order = (*one.dims[0], *one.dims[1])
    product = lax.reshape(product, tuple(shape[d] for d in order))
    whole = lax.transpose(product, tuple(sorted(range(len(order)), key=lambda i: order[i])))
    return lax.reshape(whole, shape)


def _tall(x: Any, rows: Sequence[int]) -> Any:
    """An array as a matrix: some dimensions are its rows, the others its columns."""
    columns = [d for d in range(x.ndim) if d not in rows]
    height = math.prod(x.shape[d] for d in rows)
    return lax.reshape(lax.transpose(x, (*rows, *columns)), (height, math.prod(x.shape[d] for d in columns)))


def _rows_product(a: Any, b: Any, precision: Any, kind: Any) -> Any:
    """`a.T @ b` in a type. XLA transposes its result as it likes.

    Not so that of `a @ b`: a product of bfloat16 in float32 whose transpose is taken does not run (jaxlib 0.10.2, CPU:
    "Unsupported element type for DotThunk::Execute").
    """
    return lax.dot_general(a, b, (((0,), (0,)), ((), ())), precision=precision, preferred_element_type=kind)


def is_longer(one: Sum) -> bool:
    """Whether products are added to a sum of a longer type."""
    assert one.eqn is not None
    return one.eqn.outvars[0].aval.dtype != one.add.outvars[0].aval.dtype


def _add(init: Any, total: Any, aval: Any) -> Any:
    out = lax.add(init, lax.convert_element_type(total, init.dtype))
    return _jax.convert_element_type(out, aval.dtype, aval.weak_type)
