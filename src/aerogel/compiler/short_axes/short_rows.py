"""What is done entry by entry to arrays with short rows is done to long rows.

XLA makes short rows short inner loops (`long_rows.py`). The same entries in longer rows are a reshape away, which costs
nothing; but XLA moves a reshape past work on entries, back to where it came from. It moves none into a branch. So the
work stands in one that is always taken, which XLA cannot know: two shifts leave no bit of 32, but only LLVM finds that
out.

In a loop, what a branch gives to the next step is copied in each step. Of an odd number of entries that no reshape
makes long rows, the last is worked on by itself (`peeled.py`).
"""

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.rebind import shape_of
from ..kernels.left_over import is_called, is_scalar
from ..kernels.long_rows import (
    FEWEST_ODD,
    SUMS,
    Dims,
    is_fused,
    is_halved,
    is_short,
    is_spread,
    rows_of,
    shape_worked_on,
)
from ..kernels.opaque import always
from ..kernels.peeled import at_shape, in_two_parts, is_run
from ..normalize import drop_dead, with_calls_open
from ..program import Builder, is_var, producers, users, with_equations
from ..record import record
from ..rules.once import is_once_alone
from .beside_products import refusal_beside

# Of what a loop hands on: up to 31 entries a step takes 0.7 to 4 of the time of one row, copies included, mostly above
# 1.2. Beyond, 1.5 to 3 where little is done to an entry, and 0.2 to 0.9 where XLA's code for rows is as good (rows of
# 48 and a quotient, rows of 33 and a polynomial or a gate).
ROWS_HANDED_ON = range(9, 32)


@record
class Rows:
    """Equations that work on the entries of arrays of one shape, and none of which waits for another in between.

    Attributes:
        shape: of the arrays.
        eqns: in order.
        ins: what they read, arrays of the shape and single numbers.
        outs: what others read of their results.
        runs: of what they read, the slices of something longer, by what they are.
        refusal: why they stay as they are, or None.
    """

    shape: tuple[int, ...]
    eqns: tuple[JaxprEqn, ...]
    ins: tuple[Var, ...]
    outs: tuple[Var, ...]
    runs: dict[Var, JaxprEqn]
    refusal: str | None

    @property
    def is_peeled(self) -> bool:
        """Whether the last entry is worked on by itself: a reshape of a slice is a copy, and some have no long rows."""
        return not is_short(self.shape) and (bool(self.runs) or _long(self.shape) is None)

    @property
    def what(self) -> str:
        """What is done, in words."""
        if self.is_peeled:
            return f"the last of {math.prod(self.shape):,} entries is worked on by itself"
        kind = f"rows of {self.shape[-1]} entries" if is_short(self.shape) else f"{math.prod(self.shape):,} entries"
        return f"work on {kind} is done to long rows"

    @property
    def reason(self) -> str:
        """Why that is done."""
        return "the others are two like halves" if self.is_peeled else "the innermost loop is a long one"


def lengthened(jaxpr: Jaxpr, with_sums: bool, in_loop: bool, masks_vectors: bool = False) -> tuple[Jaxpr, list[Rows]]:
    """One level with such work done to long rows, and what was found; the same object where nothing is changed.

    Args:
        jaxpr: the level.
        with_sums: whether sums of all entries may be taken in another order.
        in_loop: whether it stands in a loop, of which its results may be carries.
        masks_vectors: whether the processor's code for what is left over is vector code.
    """
    slow = {shape_of(x) for eqn in jaxpr.eqns for x in (*eqn.invars, *eqn.outvars) if _is_slow(x)}
    if not slow:
        return jaxpr, []
    closed, jaxpr = jaxpr, with_calls_open(jaxpr)
    groups, order = _groups(jaxpr, slow, SUMS if with_sums else frozenset())
    makers = producers(jaxpr)
    # What only has XLA store a value is no work: a branch for it cost 10 % of a gradient of MAML.
    groups = {key: group for key, group in groups.items() if not is_once_alone(group, jaxpr, makers)}
    members = {k for group in groups.values() for k in group}
    handed_on = {x for x in jaxpr.outvars if is_var(x)} if in_loop else set[Var]()
    found = {key: _rows(jaxpr, key[1], group, members, handed_on) for key, group in groups.items()}
    if masks_vectors:
        found = {key: if_scalar(rows) for key, rows in found.items()}
    if all(rows.refusal for rows in found.values()):
        return closed, list(found.values())
    home = {k: key for key, group in groups.items() for k in group if found[key].refusal is None}
    eqns: list[JaxprEqn] = []
    done = set()
    for k in order:
        if k not in home:
            eqns.append(jaxpr.eqns[k])
        elif home[k] not in done:
            done.add(home[k])
            rows = found[home[k]]
            eqns += _in_two_parts(rows) if rows.is_peeled else _in_long_rows(rows)
    return drop_dead(with_equations(jaxpr, eqns)), list(found.values())


def if_scalar(rows: Rows) -> Rows:
    """An odd number of entries stays where code for what is left over is vector code.

    Parts are joined by a copy, so arithmetic stays; in long rows, which take none, it does not.
    """
    if rows.refusal or is_short(rows.shape):
        return rows
    names = {eqn.primitive.name for eqn in rows.eqns}
    if is_scalar(names) or not (rows.is_peeled or is_called(names)):
        return rows
    return replace(rows, refusal="this processor's vectors take what is left over, too")


Key = tuple[int, tuple[int, ...]]


def _groups(jaxpr: Jaxpr, slow: Set[Dims], sums: Set[str]) -> tuple[dict[Key, list[int]], list[int]]:
    """The equations that work on entries, by how often other work stands between them; and an order for all.

    Of each rank, other work comes first: it reads results of lower ranks only, and so does what works on entries.
    """
    rank: dict[Var, int] = {}
    groups: dict[Key, list[int]] = {}
    places: list[tuple[int, bool, int]] = []
    made: set[Var] = set()
    for k, eqn in enumerate(jaxpr.eqns):
        shape = shape_worked_on(eqn, sums)
        shape = shape if shape in slow else None
        own = max((rank.get(x, 0) + (shape is None and x in made) for x in eqn.invars if is_var(x)), default=0)
        places.append((own, shape is not None, k))
        if shape is not None:
            groups.setdefault((own, shape), []).append(k)
            made.update(eqn.outvars)
        rank.update((v, own + (shape is not None and shape_of(v) != shape)) for v in eqn.outvars)
    home = {k: key for key, group in groups.items() for k in group}
    for k, later in _delayed(jaxpr, home).items():
        places[k] = (later, True, k)
        groups[home[k]].remove(k)
        groups[later, shape_of(jaxpr.eqns[k].outvars[0])].append(k)
    groups = {key: sorted(group) for key, group in groups.items() if group}
    return groups, [k for _, _, k in sorted(places)]


def _delayed(jaxpr: Jaxpr, home: dict[int, Key]) -> dict[int, int]:
    """Equations that one later group reads and no one else, with its place.

    The mask of a gradient is one. It is made of what was there on the way forward, and need not be stored itself.
    """
    makers, readers = producers(jaxpr), users(jaxpr)
    found: dict[int, int] = {}
    for k, (own, shape) in home.items():
        (out,) = jaxpr.eqns[k].outvars
        arrays = [x for x in jaxpr.eqns[k].invars if is_var(x) and shape_of(x) == shape]
        read_in = {home.get(reader) for reader in readers.get(out, [])}
        later = read_in.pop() if len(read_in) == 1 else None
        is_later = later is not None and later[0] > own and later[1] == shape == shape_of(out)
        if later is not None and is_later and len(set(arrays)) == 1 and makers.get(arrays[0]) not in home:
            found[k] = later[0]
    return found


def _is_slow(x: Atom) -> bool:
    shape, dtype = shape_of(x), getattr(x.aval, "dtype", None)
    return is_short(shape) or (isinstance(dtype, np.dtype) and is_halved(shape, dtype.itemsize))


def _long(shape: Dims) -> tuple[int, int] | None:
    return rows_of(shape) if is_short(shape) else rows_of(shape, FEWEST_ODD)


def _spread(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], shape: tuple[int, ...]) -> list[JaxprEqn]:
    """What spreads numbers over arrays of the shape that some equations read: each branch does that anew."""
    makers = producers(jaxpr)
    read = dict.fromkeys(makers[x] for eqn in eqns for x in eqn.invars if is_var(x) and x in makers)
    return [jaxpr.eqns[k] for k in read if is_spread(jaxpr.eqns[k], shape)]


def _rows(jaxpr: Jaxpr, shape: tuple[int, ...], group: Sequence[int], members: set[int], handed_on: set[Var]) -> Rows:
    """What a group reads and makes, and whether it pays to put a branch around it.

    What members of other groups read or make is stored between two branches, which costs less than a short row.
    """
    own, inside = [jaxpr.eqns[k] for k in group], set(group)
    eqns = [*_spread(jaxpr, own, shape), *own]
    made = {v for eqn in eqns for v in eqn.outvars}
    ins = tuple(dict.fromkeys(x for eqn in eqns for x in eqn.invars if is_var(x) and x not in made))
    makers, readers = producers(jaxpr), users(jaxpr)
    outs, fused = [], False
    for v in (v for eqn in own for v in eqn.outvars):
        others = [k for k in readers.get(v, []) if k not in inside]
        outs += [v] if others else []
        fused |= shape_of(v) == shape and any(k >= 0 and is_fused(jaxpr.eqns[k]) for k in others if k not in members)
    arrays = [x for x in ins if shape_of(x) == shape]
    made_by = {x: jaxpr.eqns[makers[x]] for x in arrays if x in makers}
    runs = {} if is_short(shape) else {x: eqn for x, eqn in made_by.items() if is_run(eqn)}
    from_elsewhere = [makers[x] for x in arrays if x in makers and makers[x] not in members and x not in runs]
    fused |= any(is_fused(jaxpr.eqns[k]) for k in from_elsewhere)
    beside = [*from_elsewhere, *(k for v in outs for k in readers.get(v, []) if k >= 0)]
    near = {jaxpr.eqns[k].primitive.name for k in beside}
    made_of = {jaxpr.eqns[k].primitive.name for k in from_elsewhere}
    names = {eqn.primitive.name for eqn in own}
    refusal, long = None, _long(shape)
    if long is None and is_short(shape):
        refusal = f"its {math.prod(shape[:-1]):,} rows are not some long ones"
    elif names <= SUMS:
        refusal = "XLA makes one loop of it"
    elif not any(jnp.issubdtype(x.aval.dtype, jnp.number) for x in arrays) or not outs:
        refusal = "it reads no array of numbers"
    elif fused:
        refusal = "XLA computes it together with what is done to other shapes"
    elif (reason := refusal_beside(near, made_of, shape, outs)) is not None:
        refusal = reason
    elif shape[-1] not in ROWS_HANDED_ON and any(v in handed_on and shape_of(v) == shape for v in outs):
        refusal = "a loop hands it on, which would copy it in each step"
    elif long is None and not runs and names & SUMS:
        refusal = f"its {math.prod(shape):,} entries are not some long rows, and sums of whole arrays are fast"
    elif (long is None or runs) and "random_bits" in names:
        refusal = "random numbers are drawn all at once"
    return Rows(shape, tuple(eqns), ins, tuple(outs), runs, refusal)


def _in_two_parts(rows: Rows) -> list[JaxprEqn]:
    builder = Builder(rows.eqns[0])
    made = in_two_parts(builder, rows.shape, rows.eqns, rows.ins, rows.outs, rows.runs)
    return _named(builder.eqns, dict(zip(made, rows.outs, strict=True)))


def _in_long_rows(rows: Rows) -> list[JaxprEqn]:
    """The equations in a branch, on long rows."""
    long = _long(rows.shape)
    assert long is not None, "it was not refused"
    if long[0] == 1:  # one axis alone: XLA orders axes of one entry anew, and copies what is not in the order asked for
        long = long[1:]

    def run(*values: Any) -> list[Any]:
        return at_shape(long, rows.eqns, dict(zip(rows.ins, values, strict=True)), rows.outs)

    def without(*_: Any) -> list[Any]:
        return [lax.full(long if shape_of(v) else (), 0, v.aval.dtype) for v in rows.outs]

    def call(*values: Any) -> list[Any]:
        flat = [lax.reshape(x, long if x.shape == rows.shape else ()) for x in values]
        first = next(x for x in flat if x.shape and jnp.issubdtype(x.dtype, jnp.number))
        results = lax.cond(always(first), run, without, *flat)
        return [lax.reshape(x, shape_of(v)) for x, v in zip(results, rows.outs, strict=True)]

    builder = Builder(rows.eqns[0])
    made = [builder.as_weak_as(v, x) for v, x in zip(rows.outs, builder.call(call, *rows.ins), strict=True)]
    return _named(builder.eqns, dict(zip(made, rows.outs, strict=True)))


def _named(eqns: Sequence[JaxprEqn], names: dict[Atom, Var]) -> list[JaxprEqn]:
    """The equations with other names for their results."""
    return [eqn.replace(outvars=[names.get(v, v) for v in eqn.outvars]) for eqn in eqns]
