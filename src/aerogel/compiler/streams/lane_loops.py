"""Work on the entries of large arrays as one kernel: a loop over short blocks, with a sum of its own for each lane.

What XLA does to 100,000 entries it hands to another thread, and its kernels and sums to several. Where waking these
takes longer than the work does, one kernel in the thread that calls takes less (see `passes/short_calls.py`). In each
step as many entries as leave few operations counted; sums are added up lane by lane, vectors like the rest, and over
the lanes at the end. A sum of each block in the step costs more than all else: LLVM keeps the order of its terms.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn, Literal, Var

from ..axes.rebind import shape_of
from ..cost import nbytes
from ..exactness import Exactness
from ..fusion.canonical import canonical
from ..kernels.counted import NOT_SHORT, counted, counted_in
from ..kernels.long_rows import SUMS, is_spread, shape_worked_on
from ..kernels.one_kernel import SECONDS_MORE, as_one_kernel, refusal
from ..kernels.peeled import at_shape
from ..level import Edit, Level, apply_edits
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Builder, is_var, substitute, with_equations
from ..record import record
from .narrow_lanes import seconds_more_in

# What may be counted, and how often of what stands around the loop; in it, XLA computes anew for each result.
MOST_LEFT = int(0.95 * NOT_SHORT)
TWICE = 2
# Entries of a step. Of 8 and 16, LLVM makes no vector code where float32 and float64 meet: arctangents and sines took
# 1.8 and 4.8 times as long. Beyond the second, a step's own price does not show.
FEWEST_LANES, MOST_LANES = 32, 128
# Handing over takes no less, on one core: what the code of the kernel may take longer.
MOST_SECONDS_MORE = 1e-5
# Arrays of more are read from memory: on one core 1.0 to 1.8 of XLA's time, on two 0.7.
MOST_CACHES = 2
# Of a row of entries, as XLA's kernel for a branch of one level; more is a program of many parts.
MOST_EQUATIONS = 60


@record
class InLanes:
    """The program, and what became of it.

    Attributes:
        steps: of its loop.
        lanes: entries of each.
        exactness: how exact that is.
    """

    jaxpr: Jaxpr
    steps: int
    lanes: int
    exactness: Exactness


def in_lanes(jaxpr: Jaxpr, context: Context) -> InLanes | str:
    """`jaxpr` with its work on entries as one kernel, and few operations counted; or why that cannot be."""
    level = Level(drop_dead(canonical(without_own_branches(jaxpr))))
    counts = [counted_in(eqn) for eqn in level.eqns]
    size = _most_counted(level, counts)
    group = _group(level, size)
    around = sum(count for k, count in enumerate(counts) if k not in group)
    room = MOST_LEFT - TWICE * around
    if not group or room <= 0:
        return "it does more than work on the entries of arrays of one size"
    if len(group) > MOST_EQUATIONS:
        return f"{len(group)} equations work on the entries"
    more = sum(SECONDS_MORE.get(level.eqns[k].primitive.name, 0.0) for k in group) * size
    if more > MOST_SECONDS_MORE:
        return f"the older code generator's code for its functions takes {more * 1e6:.0f} us longer"
    if _is_beside_others(level, group, size):
        return "XLA computes it together with what is done to other shapes"
    lanes = _lanes(size, room / _counted_of_entry(level, group, counts, size))
    if lanes is None:
        return f"{size:,} entries are not so many equal blocks of lanes"
    arrays = {v for k in group for v in _arrays(level, group, k, size)}
    if sum(nbytes(v.aval) for v in arrays) > MOST_CACHES * context.machine.cache_bytes:
        return "it waits for memory, in one thread longer than in several"
    more += seconds_more_in(lanes, size // lanes, len(arrays), [level.eqns[k] for k in group])
    if more > MOST_SECONDS_MORE:
        return f"so few entries in a step take {more * 1e6:.0f} us longer"
    if not any(level.eqns[k].primitive.name in SUMS for k in group):
        return "nothing is summed up: XLA's own kernel is as fast once its thread is awake"
    edit = _loop(level, group, size, lanes)
    new, _ = apply_edits(level.jaxpr, [edit])
    sums = any(level.eqns[k].primitive.name in SUMS for k in group)
    floats = any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for k in group for v in level.eqns[k].outvars)
    exactness = Exactness.REASSOCIATES if sums and floats else Exactness.NO_WORSE
    if exactness not in context.allowed:
        return 'it adds up in another order: numerics="fast" allows that'
    return _in_kernel(new, edit, InLanes(new, size // lanes, lanes, exactness))


def without_own_branches(jaxpr: Jaxpr) -> Jaxpr:
    """A level without the branches that `short_rows.py` put around work on entries: the one that is taken stays."""
    makers = Level(jaxpr)
    eqns: list[JaxprEqn] = []
    names: dict[Var, Any] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "cond" or not _is_always_taken(eqn, makers):
            eqns.append(eqn)
            continue
        taken = eqn.params["branches"][-1]
        builder = Builder(eqn)
        outs = builder.inline(taken.jaxpr, eqn.invars[1:])
        eqns += builder.eqns
        names |= dict(zip(eqn.outvars, outs, strict=True))
    if not names:
        return jaxpr
    eqns = [eqn.replace(invars=[substitute(x, names) for x in eqn.invars]) for eqn in eqns]
    return with_equations(jaxpr, eqns, [substitute(x, names) for x in jaxpr.outvars])


def _is_always_taken(eqn: JaxprEqn, level: Level) -> bool:
    """Whether the index is whether no bit of a word is left behind two shifts by its length in all."""
    if any(branch.consts for branch in eqn.params["branches"]) or len(eqn.params["branches"]) != 2:
        return False
    shifts, x = [], eqn.invars[0]
    for name in ("convert_element_type", "eq", "shift_right_logical", "shift_right_logical"):
        made = level.maker(x)
        if made is None or made.primitive.name != name:
            return False
        shifts += [int(y.val) for y in made.invars[1:] if isinstance(y, Literal)]
        x = made.invars[0]
    return shifts == [0, 1, 31] and x.aval.dtype == np.uint32


def _most_counted(level: Level, counts: Sequence[float]) -> int:
    """The size of the arrays in whose entries most operations are counted."""
    of_size: dict[int, float] = {}
    for eqn, count in zip(level.eqns, counts, strict=True):
        whole = eqn.primitive.name in SUMS and prod(shape_of(eqn.outvars[0])) == 1
        size = prod(shape_of(eqn.invars[0]) if whole else shape_worked_on(eqn, frozenset()) or ())
        of_size[size] = of_size.get(size, 0.0) + count
    return max(of_size, key=of_size.__getitem__, default=1)


def _group(level: Level, size: int) -> frozenset[int]:
    """The places of what works on the entries of arrays of a size, or gives them another shape.

    What waits for a sum over them, or for what others make of them, is none: it would take another loop.
    """
    found: set[int] = set()
    made: set[Any] = set()
    later: set[Any] = set()
    for k, eqn in enumerate(level.eqns):
        reads = {x for x in eqn.invars if is_var(x)}
        if not reads & later and _works_on_entries(eqn, size):
            found.add(k)
            (later if eqn.primitive.name in SUMS else made).update(eqn.outvars)
        elif reads & (made | later):
            later.update(eqn.outvars)
    return frozenset(found)


def _works_on_entries(eqn: JaxprEqn, size: int) -> bool:
    if eqn.primitive.name in SUMS:
        return prod(shape_of(eqn.invars[0])) == size > prod(shape_of(eqn.outvars[0])) == 1 and not _is_placed(eqn)
    shape = shape_worked_on(eqn, frozenset())
    if shape is not None:
        return prod(shape) == size > 1 and eqn.primitive.name != "random_bits"
    return _is_reshape(eqn, size) or (size > 1 and _is_spread(eqn, size))


def _is_beside_others(level: Level, group: frozenset[int], size: int) -> bool:
    """Whether other equations make arrays of the size for the group, or read its own: XLA would have made one loop."""
    arrays = {v for k in group for v in _arrays(level, group, k, size)}
    return any(
        level.made_by.get(v, -1) not in (-1, *group)
        or any(k >= 0 and k not in group and level.made_by.get(v) in group for k in level.readers(v))
        for v in arrays
    )


def _arrays(level: Level, group: frozenset[int], place: int, size: int) -> set[Var]:
    """The arrays that an equation of the group takes from elsewhere, and makes for elsewhere."""
    eqn = level.eqns[place]
    ins = {x for x in eqn.invars if is_var(x) and level.made_by.get(x) not in group}
    outs = {v for v in eqn.outvars if any(k not in group for k in level.readers(v))}
    return {v for v in ins | outs if prod(shape_of(v)) == size}


def _is_placed(eqn: JaxprEqn) -> bool:
    return any(value for name, value in eqn.params.items() if "sharding" in name)


def _is_reshape(eqn: JaxprEqn, size: int) -> bool:
    plain = eqn.primitive.name == "reshape" and eqn.params["dimensions"] is None and not _is_placed(eqn)
    return plain and prod(shape_of(eqn.invars[0])) == size


def _is_spread(eqn: JaxprEqn, size: int) -> bool:
    shape = shape_of(eqn.outvars[0]) if len(eqn.outvars) == 1 else ()
    return prod(shape) == size and is_spread(eqn, shape)


def _counted_of_entry(level: Level, group: frozenset[int], counts: Sequence[float], size: int) -> float:
    """How many operations are counted for an entry at the most: for each result all that it is made of."""
    total = 0.0
    for k in group:
        eqn = level.eqns[k]
        if eqn.primitive.name in SUMS:  # over the steps, and in the end over the lanes
            total += 2
        read = [j for v in eqn.outvars for j in level.readers(v)]
        if any(j not in group or level.eqns[j].primitive.name in SUMS for j in read):
            total += sum(counts[j] for j in _behind(level, group, k)) / size
    return max(1.0, total)


def _behind(level: Level, group: frozenset[int], place: int) -> set[int]:
    """The places in a group of what an equation is made of, and its own."""
    found, waiting = set[int](), [place]
    while waiting:
        k = waiting.pop()
        if k not in found and level.eqns[k].primitive.name not in SUMS:
            found.add(k)
            made = (level.made_by.get(x) for x in level.eqns[k].invars if is_var(x))
            waiting += [j for j in made if j is not None and j in group]
    return found


def _lanes(size: int, room: float) -> int | None:
    """How many entries a step has: most of those that divide all, in whole vectors; None if there are no such."""
    most = int(min(MOST_LANES, room))
    for vector in (16, 8):
        found = next((n for n in range(most - most % vector, FEWEST_LANES - 1, -vector) if size % n == 0), None)
        if found is not None:
            return found
    return None


def _loop(level: Level, group: frozenset[int], size: int, lanes: int) -> Edit:
    """The edit that puts the loop in the place of the group."""
    eqns = [level.eqns[k] for k in sorted(group)]
    made = {v for eqn in eqns for v in eqn.outvars}
    ins = list(dict.fromkeys(x for eqn in eqns for x in eqn.invars if is_var(x) and x not in made))
    outs = [v for eqn in eqns for v in eqn.outvars if any(k not in group for k in level.readers(v))]
    summed = {eqn.outvars[0]: eqn.invars[0] for eqn in eqns if eqn.primitive.name in SUMS}
    sums = [v for v in outs if v in summed]
    arrays = [v for v in outs if v not in summed]
    work = [eqn for eqn in eqns if eqn.primitive.name not in SUMS]

    def run(*values: Any) -> list[Any]:
        given = dict(zip(ins, values, strict=True))
        large = [x for x in ins if prod(shape_of(x)) == size]
        single = {x: lax.reshape(v, ()) for x, v in given.items() if x not in large}

        def step(totals: Any, rows: Any) -> Any:
            env: dict[Any, Any] = single | dict(zip(large, rows, strict=True))
            for eqn in work:
                if _is_reshape(eqn, size):
                    env[eqn.outvars[0]] = env[eqn.invars[0]]
                else:
                    at_shape((lanes,), [eqn], env, ())
            more = [env[summed[v]] for v in sums]
            return [total + one for total, one in zip(totals, more, strict=True)], [env[v] for v in arrays]

        start = [lax.full((lanes,), 0, v.aval.dtype) for v in sums]
        blocks = [lax.reshape(given[x], (size // lanes, lanes)) for x in large]
        totals, stacks = lax.scan(step, start, blocks, length=size // lanes)
        whole = [lax.reduce_sum_p.bind(total, axes=(0,), out_sharding=None) for total in totals]
        flat = [lax.reshape(y, (size,)) for y in stacks]
        return [lax.reshape(y, shape_of(v)) for y, v in zip((*whole, *flat), (*sums, *arrays), strict=True)]

    builder = Builder(eqns[0])
    found = builder.call(run, *ins)
    results = {v: builder.as_weak_as(v, x) for v, x in zip((*sums, *arrays), found, strict=True)}
    return Edit(min(group), group, builder.eqns, results, group)


def _in_kernel(jaxpr: Jaxpr, edit: Edit, found: InLanes) -> InLanes | str:
    """The program with its new loop as one kernel.

    Its stacks leave it as rows: of rows and columns XLA makes other shapes in an order of its own, and copies them.
    """
    (made,) = (eqn for eqn in edit.eqns if eqn.primitive.name == "scan")
    (loop,) = (eqn for eqn in jaxpr.eqns if eqn.params.get("jaxpr") is made.params["jaxpr"])
    reason = refusal(loop)
    if reason is not None:
        return reason
    rows = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "reshape" and eqn.invars[0] in loop.outvars]
    kernel, gone = as_one_kernel(loop, jaxpr, rows), set(map(id, rows))
    eqns = [kernel if eqn is loop else eqn for eqn in jaxpr.eqns if id(eqn) not in gone]
    new = with_equations(jaxpr, eqns)
    assert counted(new) < NOT_SHORT, "as many lanes were chosen as leave few operations"
    return InLanes(new, found.steps, found.lanes, found.exactness)
