"""Padded terms: what a sum pads with zeros in one way is added up first, and padded once, or put beside the others.

The derivative of a slice pads, and that of a function which cuts an entry in several places adds up as many padded
arrays: XLA asks each of them, for each number of the result, whether it is inside, and where that is much code computes
each of them for each number. See docs/explanation/padded-terms.md.
"""

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn

from ..cost.vector_code import FEWEST_JOINED, SHARED_SINES, SINES, VECTOR_SECONDS, operations
from ..exactness import Exactness
from ..fusion.once import CALLS, FUSED
from ..level import Edit, Level, apply_edits
from ..levels import Around, rewrite_nested
from ..pipeline import Context
from ..program import Builder, Program, inner_jaxprs, is_var, where
from ..readers.paddings import Box, PaddedSum, are_apart, box_of, padded_sums, way_to_pad
from ..record import record
from ..report import Decision

NAME = "padded-terms"
WHAT = "what is padded in one way is added up before"
# So many padded terms are vector code on a CPU as they are: 15 of cheap work take 0.92 to 1.07 of plain JAX's time if
# they are added up before, and up to 1.19 on another machine; 16 terms 0.29, 30 terms 0.18.
VECTOR_CODE = 15
# With more operations behind the terms than this LLVM neither unrolls the loop over the columns, which tells it the one
# term that counts, nor makes vectors: three columns of sines, six of `log1p` and eight of arctangents took 5 to 10
# times as long as two, four and five. Beside each other these take 0.2 to 0.5 of plain JAX's time; with fewer
# operations that takes up to 2.4. Entries of matrices, which have more places, take as long from fewer operations on.
MOST_OF_COLUMNS = 255
MOST_OF_ENTRIES = 120
# Numbers in a term: shorter ones are not worth it, and where the C library is still called for them they are slower
# beside each other (a tangent of 2,000 rows 2.5 to 9). In loops vector code stands for it from fewer on.
FEWEST = 1 << 10
FEWEST_CALLS = 1 << 14
FEWEST_SINES = 1 << 13
FEWEST_IN_LOOPS = 1 << 8
WRITTEN_OUT = FUSED | CALLS  # where it is read


@record
class PaddedTerms:
    """The pass. Bound: each sum is looked at once."""

    # Behind the passes that cut values into blocks and entries: they know what a block of one padded array is.
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such terms added up before they are padded, and a decision for each sum."""
        decisions: list[Decision] = []
        return rewrite_nested(program, partial(_level, context=context, decisions=decisions)), decisions


def _level(jaxpr: Jaxpr, around: Around, context: Context, decisions: list[Decision]) -> Jaxpr:
    if sum(way_to_pad(eqn) is not None for eqn in jaxpr.eqns) < 2:
        return jaxpr
    level, in_loop = Level(jaxpr), any(eqn.primitive.name in ("scan", "while") for eqn in around)
    edits = list[Edit]()
    for total in padded_sums(level):
        joins = context.platform == "cpu" and Exactness.REASSOCIATES in context.allowed
        long = joins and _is_long_code(level, total, in_loop)
        edit, reason, exactness = _planned(level, total, long, context.platform == "cpu")
        if edit is not None and exactness not in context.allowed:
            edit, reason = None, "terms that overlap would change their order"
        if edit is not None:
            edits.append(edit)
        if reason:
            site, fired = where(level.eqns[total.place]), edit is not None
            decisions.append(Decision(NAME, WHAT, site, fired, reason, exactness=exactness))
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _planned(level: Level, total: PaddedSum, long: bool, on_cpu: bool) -> tuple[Edit | None, str, Exactness]:
    """What becomes of a sum, why, and how exact that is; no reason where there is nothing to decide."""
    edit = _beside_each_other(level, total) if long else None
    if edit is not None:
        return edit, f"{total.padded} terms are put beside each other", Exactness.REASSOCIATES
    if len(total.paddings) == total.padded:
        return None, "", Exactness.BITWISE
    if on_cpu and total.padded <= VECTOR_CODE:
        return None, f"{total.padded} padded terms are vector code", Exactness.BITWISE
    apart = not total.others and are_apart(total)
    left = len(total.paddings) + len(total.others)
    reason = f"of {total.padded + len(total.others)} terms {left} are left"
    return _padded_once(level, total), reason, Exactness.BITWISE if apart else Exactness.REASSOCIATES


def _is_long_code(level: Level, total: PaddedSum, in_loop: bool) -> bool:
    """Whether LLVM makes so much of these terms that it computes each of them for each number of the sum."""
    pads = [eqn for alike in total.paddings for eqn in alike]
    fewest = min(eqn.invars[0].aval.size for eqn in pads)
    if (
        len(total.paddings) < 2
        or fewest < (FEWEST_IN_LOOPS if in_loop else FEWEST)
        or pads[0].outvars[0].aval.dtype != np.float32
    ):
        return False
    entries = any(map(_is_entry, pads))
    most, found = MOST_OF_ENTRIES if entries else MOST_OF_COLUMNS, 0
    for eqn in pads:
        waiting, seen = [x for x in eqn.invars if is_var(x)], set[int]()
        while waiting and found <= most:
            k = level.made_by.get(waiting.pop(), -1)
            if k < 0 or k in seen or level.eqns[k].primitive.name not in WRITTEN_OUT:
                continue
            seen.add(k)
            inside = list(_called(level.eqns[k]))
            found += sum(map(operations, inside))
            if any(fewest < _fewest(one.primitive.name, pads[0].outvars[0].aval.size, in_loop) for one in inside):
                return False
            waiting += [x for x in level.eqns[k].invars if is_var(x)]
    return found > most or (entries and total.padded > VECTOR_CODE)


def _fewest(name: str, of: int, in_loop: bool) -> int:
    """How many numbers a term has at least for its operations to be vector code, in a sum of so many numbers."""
    if in_loop:
        return SHARED_SINES.stop if name in ("sin", "cos") and of >= FEWEST_JOINED else FEWEST_IN_LOOPS
    return FEWEST_SINES if name in SINES else FEWEST_CALLS if name in VECTOR_SECONDS else FEWEST


def _called(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """An equation, or those of the function that it calls."""
    if eqn.primitive.name not in CALLS:
        yield eqn
    for inner in inner_jaxprs(eqn) if eqn.primitive.name in CALLS else ():
        for one in inner.eqns:
            yield from _called(one)


def _is_entry(eqn: JaxprEqn) -> bool:
    """Whether an equation pads along several dimensions."""
    return sum(bool(low or high) for low, high, _ in eqn.params["padding_config"]) > 1


def _padded_once(level: Level, total: PaddedSum) -> Edit:
    """The sum with one padding for each way to pad."""
    builder = Builder(level.eqns[total.place])
    terms = [
        alike[0].outvars[0] if len(alike) == 1 else builder.call(_padding(alike[0]), _added(builder, alike))[0]
        for alike in total.paddings
    ]
    return _as_edit(level, total, builder, terms)


def _padding(like: JaxprEqn) -> Any:
    return lambda x: lax.pad(x, np.zeros((), x.dtype), like.params["padding_config"])


def _added(builder: Builder, alike: Sequence[JaxprEqn]) -> Atom:
    """What equations pad in one way, added up."""
    xs = [eqn.invars[0] for eqn in alike]
    return xs[0] if len(xs) == 1 else builder.call(lambda *xs: reduce(lax.add, xs), *xs)[0]


def _as_edit(level: Level, total: PaddedSum, builder: Builder, terms: Sequence[Atom]) -> Edit:
    out = level.eqns[total.place].outvars[0]
    made, *rest = *terms, *total.others
    for term in rest:
        (made,) = builder.call(lax.add, made, term)
    return Edit(total.place, total.inner, builder.eqns, {out: made}, total.inner)


def _beside_each_other(level: Level, total: PaddedSum) -> Edit | None:
    """The sum with what is padded joined; None where that overlaps, or does not lie in rows."""
    if any(inner for alike in total.paddings for _, _, inner in alike[0].params["padding_config"]):
        return None
    if not are_apart(total):
        return None
    builder = Builder(level.eqns[total.place])
    out = level.eqns[total.place].outvars[0].aval
    blocks = [(box_of(alike[0]), alike) for alike in total.paddings]
    joined = _joined(builder, blocks, [(0, n) for n in out.shape], 0, out.dtype)
    return None if joined is None else _as_edit(level, total, builder, [joined])


def _joined(
    builder: Builder, blocks: list[tuple[Box, tuple[JaxprEqn, ...]]], region: Box, axis: int, dtype: Any
) -> Atom | None:
    """What fills a region: what lies in it, cut along `axis`, then along those behind it; None if that cuts a block."""
    if not blocks:
        return builder.call(partial(lax.full, [stop - start for start, stop in region], 0, dtype))[0]
    if axis == len(region):
        ((_, alike),) = blocks
        return _added(builder, alike)
    pieces = list[Atom]()
    for start, stop in pairwise(sorted({*region[axis], *(n for box, _ in blocks for n in box[axis])})):
        inside = [one for one in blocks if one[0][axis][0] < stop and start < one[0][axis][1]]
        if any(box[axis] != (start, stop) for box, _ in inside):
            return None
        piece = _joined(builder, inside, [*region[:axis], (start, stop), *region[axis + 1 :]], axis + 1, dtype)
        if piece is None:
            return None
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else builder.call(lambda *xs: lax.concatenate(xs, axis), *pieces)[0]
