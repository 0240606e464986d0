"""Reductions over, or beside, a short last axis, made entry by entry.

Points in space, quaternions, small one-hot codes: the last axis has 2 to 8 entries, and XLA's CPU backend makes it the
innermost loop. Entry by entry (`components.py`) the same numbers come from long loops. Before differentiation only what
is small beside the value may be cut: a gradient pads and adds up what was cut, which takes 100 times as long where that
is large.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import reduce
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.rebind import bind, dtype_name
from ..cost import nbytes
from ..cost.primitives import DEAR, REDUCE
from ..exactness import Exactness
from ..fusion.once import SHIFTED_SECONDS
from ..kernels.shifted import flops_again
from ..level import Edit, Level, apply_edits
from ..loop import is_float
from ..pipeline import Context
from ..program import Builder, is_var
from ..readers.weighted_sums import is_product_of_matrices
from ..record import record
from ..rules.once import once
from ..windows.components import ELEMENTWISE, FUSED, MOST_EQUATIONS, Components, asks_for_equals
from .beside import fills_registers, pays_at_once, sums_matrices
from .chains import ends_a_chain

# From how many entries on XLA's own loop is as good (0.8 of its time was lost for 8 entries of a maximum).
LONGEST = {"reduce_sum": 8, "reduce_prod": 8, "reduce_max": 4, "reduce_min": 4, "dot_general": 8}
# Of bfloat16 numbers that a product makes, or of which functions are computed: 7 and 8 took 1.0 to 1.5 of the time, 5
# and 6 0.6 to 0.97 (squares of 8 numbers 0.4).
LONGEST_OF_HALVES = 6
# Of products of matrices of bfloat16 that are written as sums: of 8 terms 1.4 of the time (a narrow one 0.8), of 16 1.7
# to 2.4, of 24 and 32 2.7 to 3.0, of 4 0.75 to 1.1. (Those of float32 are products by now.)
LONGEST_MULTIPLIED = 4
# Of sums of what is much larger than what it is made of, which is in no memory to be read along its rows: all
# differences of points in 10 dimensions are summed in a quarter of the time, and their gradients in a ninth.
LONGEST_AMPLIFIED = 32
FOLDS = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "dot_general": lax.add,
}
# Elements of what is reduced. Fewer than these XLA's CPU backend reduces in a loop of its own, more it hands to a
# library (jaxlib 0.10.2): norms of 1,365 points take 3 us, of 1,366 16 us, and entry by entry 3 us and 4 us.
FEWEST = 4096
# The same where an extremum of the row is taken from each entry: a softmax of 8 numbers, and its gradient.
FEWEST_BESIDE = 32_768
# Sums that are compared with their extrema are stored. Of 5 to 12 distances for each point, 12,000 to 24,000 numbers
# took 0.9 to 1.3 of the time; of 20 and 40 distances 0.5 to 0.75, and of 48,000 numbers 0.85 to 1.
SHORTEST_COMPARED = 16
AMPLIFIED = 16  # times that such a value is larger than what it is made of: an array that is there is read as it is
IN_CACHE = 8 << 20  # bytes up to which storing what all entries read costs little; what is larger is streamed
ENTRYWISE = "the innermost loop is a long one"


@record
class Site:
    """A reduction with a short last axis: the edit that makes it entry by entry, or none, and why.

    Attributes:
        leaves: what its entries are cut from.
        axis: the short one.
    """

    eqn: JaxprEqn
    edit: Edit | None
    reason: str
    leaves: frozenset[Var] = frozenset()
    axis: int = -1


def entry_by_entry(jaxpr: Jaxpr, context: Context) -> tuple[Jaxpr, list[Site]]:
    """One level with such reductions made entry by entry, and its sites; the same object if none is.

    The platform is a CPU, and sums may be taken in another order.
    """
    done: list[Site] = []
    while True:  # what is left of [n, 4, 3] is reduced beside an axis of 4
        sites = list(_sites(jaxpr, context))
        edits = [site.edit for site in sites if site.edit is not None]
        if not edits:
            return jaxpr, [*done, *sites]
        done += [site for site in sites if site.edit is not None]
        cut = frozenset(leaf for site in sites if site.edit is not None for leaf in site.leaves)
        stored = [] if context.before_differentiation else list(_stored(Level(jaxpr), cut, context))
        jaxpr, _ = apply_edits(jaxpr, edits)
        jaxpr, _ = apply_edits(jaxpr, [_kept(jaxpr, v) for v in stored])


def acts(context: Context) -> bool:
    """Whether reductions may be made entry by entry."""
    return context.platform == "cpu" and Exactness.REASSOCIATES in context.allowed


def _sites(jaxpr: Jaxpr, context: Context) -> Iterator[Site]:
    places = [
        place
        for place, eqn in enumerate(jaxpr.eqns)
        if _is_one_entry(eqn) or (eqn.primitive.name in FOLDS and (_is_short(eqn) or _axes_beside(eqn)))
    ]
    if not places:
        return
    level = Level(jaxpr)
    for place in places:
        eqn = jaxpr.eqns[place]
        if _is_one_entry(eqn):
            edit = _one_entry(level, place)
            if edit is not None:
                yield Site(eqn, edit, ENTRYWISE, axis=_cut_axes(eqn)[0])
        elif not _is_short(eqn):
            yield from _beside_pieces(level, place)
        elif _reduced(eqn).aval.shape[-1] <= LONGEST[eqn.primitive.name] or is_in_no_memory(level, eqn):
            edit, reason = _edit(level, place, context)
            leaves = frozenset(v for x in eqn.invars for v in _components(level, x).leaves)
            yield Site(eqn, edit, reason, leaves)


def _stored(level: Level, leaves: Iterable[Var], context: Context) -> Iterator[Var]:
    """Those of `leaves` that should still be stored when no reduction reads them, which had XLA store them.

    Else they are fused into all that read them: behind a shift that is scalar code, once for each place.
    """
    for leaf in sorted((v for v in leaves if v in level.made_by), key=lambda v: level.made_by[v]):
        if leaf.aval.dtype != np.float32 or len(level.readers(leaf)) < 2:
            continue
        again = leaf.aval.size * flops_again(level, leaf) * SHIFTED_SECONDS
        if again > 2 * nbytes(leaf.aval) / context.machine.cache_bytes_per_second + context.machine.seconds_per_kernel:
            yield leaf


def _kept(jaxpr: Jaxpr, value: Var) -> Edit:
    """Stores a value."""
    place = next(k for k, eqn in enumerate(jaxpr.eqns) if value in eqn.outvars)
    eqn = jaxpr.eqns[place]
    builder = Builder(eqn)
    made = _jax.new_var(value.aval)
    builder.eqns.append(eqn.replace(outvars=[made]))
    (stored,) = builder.call(once, made)
    return _replacing(place, eqn, builder, stored)


def is_in_no_memory(level: Level, eqn: JaxprEqn) -> bool:
    """Whether all that a reduction reads is much larger than what it is made of, and made where it is read.

    Of a product that repeats one operand the other one.
    """
    return all(_is_repeated(eqn, x) or Components(level, x, x.aval.ndim - 1).amplify(AMPLIFIED) for x in eqn.invars)


def _reduced(eqn: JaxprEqn) -> Any:
    """What is reduced; of a product the operand that it does not repeat."""
    return max(eqn.invars, key=lambda x: x.aval.ndim)


def _is_repeated(eqn: JaxprEqn, x: Any) -> bool:
    """Whether `x` is much smaller than the other operand of a product, which repeats it along axes of that."""
    wide = _reduced(eqn).aval
    return x.aval.ndim < wide.ndim and AMPLIFIED * x.aval.size <= wide.size


def _is_short(eqn: JaxprEqn) -> bool:
    """Whether the last axis of what is reduced is a short one."""
    shape, dtype = _reduced(eqn).aval.shape, eqn.invars[0].aval.dtype
    if len(shape) < 2 or not isinstance(dtype, np.dtype) or dtype.kind not in "fiu" or dtype.itemsize < 4:
        return False
    if eqn.primitive.name == "dot_general" and not _is_rowwise(eqn):
        return False
    return (
        2 <= shape[-1] <= (LONGEST_AMPLIFIED if FOLDS[eqn.primitive.name] is lax.add else LONGEST[eqn.primitive.name])
    )


def _is_rowwise(product: JaxprEqn) -> bool:
    """Whether a product is the sum over the last axis of the entrywise product of two arrays of one type.

    One of them may be repeated: the cotangent of a point's sum over its differences from all others.
    """
    x, y = (x.aval for x in product.invars)
    contracted, (batch, same) = product.params["dimension_numbers"]
    return (
        x.dtype == y.dtype == product.outvars[0].aval.dtype
        and contracted == ((x.ndim - 1,), (y.ndim - 1,))
        and tuple(batch) == tuple(same) == tuple(range(min(x.ndim, y.ndim) - 1))
    )


def _is_one_entry(eqn: JaxprEqn) -> bool:
    """Whether an equation cuts one entry of a short axis from all rows."""
    if eqn.primitive.name != "slice" or eqn.invars[0].aval.size < FEWEST or eqn.outvars[0].aval.ndim < 2:
        return False
    cut = _cut_axes(eqn)
    lengths = (eqn.invars[0].aval.shape[axis] for axis in cut)
    return (
        len(cut) == 1
        and all(2 <= n <= LONGEST["reduce_sum"] for n in lengths)
        and eqn.outvars[0].aval.shape[cut[0]] == 1
    )


def _cut_axes(eqn: JaxprEqn) -> list[int]:
    """The axes of which a slice leaves a part."""
    return [axis for axis, n in enumerate(eqn.outvars[0].aval.shape) if n != eqn.invars[0].aval.shape[axis]]


def _one_entry(level: Level, place: int) -> Edit | None:
    """An entry that is computed alone, where what it is made of is much smaller."""
    eqn = level.eqns[place]
    (operand,), (axis,) = eqn.invars, _cut_axes(eqn)
    found = Components(level, operand, axis)
    computes = any(one.primitive.name in ELEMENTWISE for one in found.inside.values())  # else it is such a cut already
    if not computes or not found.amplify(AMPLIFIED) or found.shared:  # of pieces XLA itself takes the one
        return None
    builder = Builder(eqn)
    entry = found.entry(builder, eqn.params["start_indices"][axis])
    (out,) = builder.call(lambda x: lax.expand_dims(x, [axis]), entry)
    return _replacing(place, eqn, builder, out)


def _edit(level: Level, place: int, context: Context) -> tuple[Edit | None, str]:
    eqn = level.eqns[place]
    operand, last = eqn.invars[0], eqn.invars[0].aval.ndim - 1
    axes = tuple(eqn.params["axes"]) if "axes" in eqn.params else (last,)
    if axes == (last,):
        return _over(level, place, context)
    if last in axes or not axes:
        return None, "it is reduced together with other axes, by one loop"
    found = Components(level, operand, last)
    if operand.aval.size < FEWEST or not found.amplify(AMPLIFIED):
        return None, "what it reads is there, and read as it is"
    if found.stores(IN_CACHE):
        return None, "all entries would read a large value that is not stored now"
    if _share_cheap(level, found):
        return None, "its entries are made of the same cheap values, which would be stored"
    if eqn.outvars[0].aval.size == operand.aval.shape[-1] and not pays_at_once(operand.aval, LONGEST["reduce_sum"]):
        return None, "all rows are summed at once: XLA's loop along them is as fast"
    if fills_registers(operand.aval) or sums_matrices(eqn, found):
        return None, "XLA sums up rows beside each other in vector code"
    return _beside(place, eqn, found), ENTRYWISE


def _over(level: Level, place: int, context: Context) -> tuple[Edit | None, str]:
    """The reduction over the short axis; of a product, that of its operands' entries."""
    eqn = level.eqns[place]
    wide = _reduced(eqn).aval
    if wide.size < FEWEST:
        return None, f"fewer than {FEWEST} numbers: XLA's own loop is as fast"
    found = [_components(level, x) for x in eqn.invars]
    amplified = all(one.amplify(AMPLIFIED) or _is_repeated(eqn, one.value) for one in found)
    if context.before_differentiation and not amplified:
        return None, "before differentiation: its gradient would pad what is cut, which is large"
    if len(found) > 1 and (not amplified or any(_is_stored(level, place, x) for x in eqn.invars)):
        return None, "its operands are there, and read as they are"
    refusal = _multiplied(level, eqn, found) if amplified else _library_call(level, eqn, found)
    if refusal is not None:
        return None, refusal
    compared = _is_compared(level, eqn.outvars[0], context.before_differentiation)
    if compared and context.before_differentiation:
        return None, "an extremum reads it, whose derivative compares the two: it must be computed once"
    builder, rest = Builder(eqn), wide.shape[:-1]
    if compared and wide.size < FEWEST_BESIDE and rest[-1] < SHORTEST_COMPARED:
        return None, "it is compared with an extremum of few: that takes as long, and writing it out then loses"
    entries: list[Atom] = []
    for k in range(wide.shape[-1]):
        factors = [one.entry(builder, k) for one in found]
        entries += builder.call(lambda *xs: reduce(lax.mul, (_repeated(x, rest) for x in xs)), *factors)
    fold = FOLDS[eqn.primitive.name]
    (total,) = builder.call(lambda *xs: reduce(fold, xs), *entries)
    # Cuts of what is amplified are small, and XLA computes what is made of few of them where it is read: minima of the
    # distances of 1,000 points took 1.6 times as long with the distances made once, forces between bodies 1.1 times.
    # What is made of 20 it stores.
    few = amplified and wide.shape[-1] <= LONGEST[eqn.primitive.name]
    if compared or (not context.before_differentiation and not few and _is_reduced(level, eqn.outvars[0])):
        (total,) = builder.call(once, total)
    return _replacing(place, eqn, builder, total), ENTRYWISE


def _is_stored(level: Level, place: int, x: Atom) -> bool:
    """Whether another product reads the value that is not over its short axis alone, for which XLA stores it.

    Ten polynomials of 500 numbers, joined, times their coefficients: the gradient took 2.1 times as long.
    """
    others = [level.eqns[k] for k in (level.readers(x) if is_var(x) else ()) if k not in (place, -1)]
    return any(eqn.primitive.name == "dot_general" and not _is_rowwise(eqn) for eqn in others)


def _multiplied(level: Level, eqn: JaxprEqn, found: Collection[Components]) -> str | None:
    """Why XLA's library is as fast at a reduction of what is in no memory."""
    halves = any(dtype_name(v) == "bfloat16" for one in found for v in one.leaves)
    if halves and _reduced(eqn).aval.shape[-1] > LONGEST_MULTIPLIED and is_product_of_matrices(level, eqn):
        return "XLA's library multiplies matrices"
    return None


def _library_call(level: Level, eqn: JaxprEqn, found: Collection[Components]) -> str | None:
    """Why XLA's library is as fast at a reduction of what is there; None if it is not."""
    wide = _reduced(eqn).aval
    if _is_beside_extrema(level, eqn) and (wide.size < FEWEST_BESIDE or _is_alone(level, wide.shape)):
        return "it is of what is left when an extremum of the whole row is taken: one library call does both"
    if ends_a_chain(level, _reduced(eqn)):
        return "XLA's library takes it with the products in front of it, whose rows are then in no memory"
    if wide.shape[-1] > LONGEST_OF_HALVES and any(map(_are_dear_halves, found)):
        return "entries of bfloat16 that lie apart take as long to read as XLA's loop takes"
    if _is_added_to_products(level, eqn.outvars[0]):
        return "what a product makes is added to it: one library call does both"
    return None


def _are_dear_halves(found: Components) -> bool:
    """Whether entries are cut from bfloat16 numbers, and these are products or functions are computed of them."""
    halves = [v for v in found.leaves if dtype_name(v) == "bfloat16"]
    made = (found.level.maker(v) for v in halves)
    is_product = any(eqn is not None and eqn.primitive.name == "dot_general" for eqn in made)
    return bool(halves) and (is_product or any(eqn.primitive.name in DEAR for eqn in found.inside.values()))


def _components(level: Level, x: Atom) -> Components:
    """Of what a reduction over the last axis reads; what is shared with others of its kind is made once for all.

    Of the shares of 3 to 6 classes, whose entropies and divergences are summed up, exponentials that were made as an
    array and cut took 1.2 to 2.2 of plain JAX's time; entry by entry they take 0.2 to 0.7.
    """
    return Components(level, x, x.aval.ndim - 1, is_apart=_is_apart)


def _is_apart(eqn: JaxprEqn) -> bool:
    """Whether a reduction over a short last axis is made entry by entry."""
    if eqn.primitive.name not in FOLDS or eqn.primitive.name == "dot_general" or not _is_short(eqn):
        return False
    shape = _reduced(eqn).aval.shape
    return tuple(eqn.params["axes"]) == (len(shape) - 1,) and shape[-1] <= LONGEST[eqn.primitive.name]


def _is_beside_extrema(level: Level, eqn: JaxprEqn) -> bool:
    """Whether what is summed up is made entry by entry of extrema of its rows, which are too long to be cut too."""
    waiting, seen = [x for x in eqn.invars if is_var(x)], set[Var]()
    shape = _reduced(eqn).aval.shape
    while waiting and len(seen) <= MOST_EQUATIONS:
        maker = level.maker(x := waiting.pop())
        if maker is None or x in seen:
            continue
        seen.add(x)
        name = maker.primitive.name
        if FOLDS.get(name) in (lax.max, lax.min) and maker.invars[0].aval.shape == shape:
            return shape[-1] > LONGEST[name]
        if name in FUSED or name == "stop_gradient":
            waiting += filter(is_var, maker.invars)
    return False


def _is_added_to_products(level: Level, result: Var) -> bool:
    """Whether a sum is repeated to what a product makes, and combined with it entry by entry.

    XLA computes it in the product's library call then, and with it what is made of both. Written out it is none of the
    library's, and the product is alone: |x|^2 + |y|^2 - 2 x.y of 1,500 and 1,200 points in 8 dimensions took 1.6 times
    as long, and its exponential twice.
    """
    return any(
        eqn.primitive.name in ELEMENTWISE
        and eqn.outvars[0].aval.size >= AMPLIFIED * result.aval.size
        and any(_is_made_of_product(level, x) for x in eqn.invars if is_var(x))
        for eqn in level.read_through(result, FUSED, MOST_EQUATIONS)
    )


def _is_made_of_product(level: Level, value: Var) -> bool:
    """Whether a product is all that entrywise equations with numbers make a value of."""
    maker = level.maker(value)
    while maker is not None and maker.primitive.name in ELEMENTWISE:
        large = [x for x in maker.invars if is_var(x) and x.aval.size == value.aval.size]
        if len(large) != 1:
            return False
        maker = level.maker(large[0])
    return maker is not None and maker.primitive.name == "dot_general"


def _is_alone(level: Level, shape: tuple[int, ...]) -> bool:
    """Whether there is one sum over rows of that shape: a gradient has more, and all but the first win."""
    sums = (eqn for eqn in level.eqns if FOLDS.get(eqn.primitive.name) is lax.add and _is_short(eqn))
    return sum(_reduced(eqn).aval.shape == shape for eqn in sums) < 2


def _repeated(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` along the axes behind its own."""
    return x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(x.ndim))


def _is_reduced(level: Level, result: Var) -> bool:
    """Whether a reduction reads, through entrywise equations, what a loop should compute from entries.

    XLA hands such a reduction to a library, with all that feeds it, and stores each cut for it. Where the library is
    handed the result alone, one loop reads the array.
    """
    is_single = result.aval.dtype == np.float32
    readers = level.read_through(result, ELEMENTWISE, MOST_EQUATIONS)
    return is_single and any(eqn.primitive.name in REDUCE for eqn in readers)


def _is_compared(level: Level, result: Var, early: bool) -> bool:
    """Whether floats made of `result` entry by entry are asked whether they are equal; `early`, whether they would be.

    Each reader computes a sum that is written out for itself, and a product and an addition may be one instruction in
    one of them and two in another. A library's sum, and one that is stored, is the same for all.
    """
    if not np.issubdtype(result.aval.dtype, np.floating):
        return False
    return any(
        asks_for_equals(eqn) or (early and FOLDS.get(eqn.primitive.name) in (lax.max, lax.min))
        for eqn in level.read_through(result, {*FUSED, "slice"}, MOST_EQUATIONS)
    )


def _axes_beside(eqn: JaxprEqn) -> list[int]:
    """The short axes in front that a reduction keeps."""
    if "axes" not in eqn.params or eqn.invars[0].aval.size < FEWEST or not is_float(eqn.invars[0].aval.dtype):
        return []
    shape = eqn.invars[0].aval.shape
    longest = LONGEST[eqn.primitive.name]
    return [axis for axis, n in enumerate(shape[:-1]) if 2 <= n <= longest and axis not in eqn.params["axes"]]


def _beside_pieces(level: Level, place: int) -> Iterator[Site]:
    """A reduction beside a short axis in front, along which what it reads is put together of pieces.

    XLA asks for each number which piece it is from; where an axis is last, the loop over it is short besides.
    """
    eqn = level.eqns[place]
    for axis in _axes_beside(eqn):
        found = Components(level, eqn.invars[0], axis)
        pieces = (one.primitive.name in ("pad", "concatenate") for one in found.inside.values())
        if any(pieces) and found.amplify(AMPLIFIED) and not found.stores(IN_CACHE) and not _share_cheap(level, found):
            yield Site(eqn, _beside(place, eqn, found), ENTRYWISE, axis=axis)
            return


def _share_cheap(level: Level, found: Components) -> bool:
    """Whether entries are put together of values that are made of the same ones, by nothing dear.

    One loop over them all computes these again for each; sums of their own have XLA store them. (Cross products of 300
    and 1,500 points with each other took 2.3 and 6 times as long.)
    """
    seen: set[Var] = set()
    for piece in found.shared:
        waiting, own = [piece], set[Var]()
        while waiting and len(own) <= MOST_EQUATIONS:
            v = waiting.pop()
            maker = level.maker(v)
            if (
                v in own
                or maker is None
                or v.aval.size < piece.aval.size
                or maker.primitive.name not in FUSED | {"slice"}
            ):
                continue
            if maker.primitive.name in DEAR:
                return False
            own.add(v)
            waiting += filter(is_var, maker.invars)
        if own & seen:
            return True
        seen |= own
    return False


def _beside(place: int, eqn: JaxprEqn, found: Components) -> Edit:
    """A reduction over other axes, which keeps the short one."""
    builder = Builder(eqn)
    totals: list[Atom] = []
    before = sum(axis < found.axis for axis in eqn.params["axes"])
    params = eqn.params | {"axes": tuple(axis - (axis > found.axis) for axis in eqn.params["axes"])}
    for k in range(eqn.invars[0].aval.shape[found.axis]):
        totals += builder.call(lambda x: bind(eqn, [x], params), found.entry(builder, k))
    at = found.axis - before
    (out,) = builder.call(lambda *xs: lax.concatenate([lax.expand_dims(x, [at]) for x in xs], at), *totals)
    return _replacing(place, eqn, builder, out)


def _replacing(place: int, eqn: JaxprEqn, builder: Builder, out: Any) -> Edit:
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: out}, here)
