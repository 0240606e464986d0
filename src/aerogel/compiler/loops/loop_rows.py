"""A loop's carries and outputs with short rows, or of an odd number of entries, as long rows in all of its steps.

What a step does to the entries of such arrays XLA's CPU backend makes bad code for (`long_rows.py`). Outside of loops a
branch hides the reshape from XLA; in a loop the branch would copy what it hands on. The loop itself can hold long rows:
one reshape before it and one behind it, which cost nothing. An array that is no number of long rows is filled up with
its own first entries, so that no step computes what the program would not.
"""

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ..axes.rebind import shape_of
from ..kernels.long_rows import (
    FEWEST_ODD,
    SUMS,
    Dims,
    is_fused,
    is_halved,
    is_short,
    is_spread,
    params_at,
    rows_of,
    shape_worked_on,
)
from ..loop import all_steps
from ..program import Builder, inner_jaxprs, is_var, substitute
from ..record import record

# Reductions of all entries that come out the same for entries that are there twice, and in another order.
SAME_TWICE = frozenset("reduce_max reduce_min reduce_and reduce_or".split())
FILLED = 1024  # entries of a row of those that are filled up
MANY_STEPS = 8  # are worth two copies of the carry
# Beside a product, rows of 32 to 63 take 0.9 to 1.2 of their time on long rows where only so many operations (less one)
# work on the entries: a product and a `tanh`. With more (a sine is twenty) it is 0.5 to 1.0.
WORTH_A_PRODUCT = 8
LITTLE = range(32, 64)


@record
class Rows:
    """How the arrays of one shape in a loop are held.

    Attributes:
        shape: what they are.
        rows: what they become; with more entries than there are, if they are filled up.
        why: what is bad about the shape.
        reorders: whether sums are taken in another order.
        refusal: why they stay as they are, or None.
    """

    shape: Dims
    rows: Dims
    why: str
    reorders: bool = False
    refusal: str | None = None

    @property
    def is_filled(self) -> bool:
        """Whether there are more entries than before."""
        return math.prod(self.rows) > math.prod(self.shape)

    def to_rows(self, x: Any, steps: tuple[int, ...] = ()) -> Any:
        """An array of the shape as long rows; with `steps`, one for each step of the loop."""
        if not self.is_filled:
            return lax.reshape(x, (*steps, *self.rows))
        flat = lax.reshape(x, (x.size,))
        more = math.prod(self.rows) - x.size
        return lax.reshape(lax.concatenate([flat, lax.slice(flat, (0,), (more,))], 0), self.rows)

    def from_rows(self, x: Any, steps: tuple[int, ...] = ()) -> Any:
        """The inverse."""
        if not self.is_filled:
            return lax.reshape(x, (*steps, *self.shape))
        return lax.reshape(lax.slice(lax.reshape(x, (x.size,)), (0,), (math.prod(self.shape),)), self.shape)


@record
class _Ends:
    """The values of a `scan` or a `while` by kind, as places in its inputs and its body's, and in its outputs."""

    body: Jaxpr
    shift: int  # of a place among the equation's inputs against the same one among the body's
    carried: range  # among the body's inputs
    stacked_in: range
    stacked_out: range  # among the outputs
    steps: int  # 0 if that is not known


def _ends(eqn: JaxprEqn) -> _Ends | None:
    """None where the loop may not be rebuilt."""
    name, params = eqn.primitive.name, eqn.params
    if name not in ("scan", "while") or eqn.effects or any(_jax.explicit_mesh(v.aval) for v in eqn.outvars):
        return None
    if name == "scan":
        if params["jaxpr"].consts:
            return None
        body, (consts, carries) = params["jaxpr"].jaxpr, _jax.scan_counts(params)
        carried, outs = range(consts, consts + carries), range(carries, len(eqn.outvars))
        return _Ends(body, 0, carried, range(carried.stop, len(eqn.invars)), outs, params["length"])
    if params["cond_jaxpr"].consts or params["body_jaxpr"].consts:
        return None
    body, consts = params["body_jaxpr"].jaxpr, params["body_nconsts"]
    nothing = range(0)
    return _Ends(body, params["cond_nconsts"], range(consts, len(body.invars)), nothing, nothing, 0)


def in_long_rows(eqn: JaxprEqn, with_sums: bool) -> tuple[list[JaxprEqn], list[Rows]]:
    """A loop on long rows, with what stands before and behind it, and what was found; itself where nothing changes.

    Args:
        eqn: any equation.
        with_sums: whether sums of all entries may be taken in another order.
    """
    ends = _ends(eqn)
    if ends is None:
        return [eqn], []
    new, found, before, after = eqn, list[Rows](), Builder(eqn), list[JaxprEqn]()
    for shape in dict.fromkeys(shape_of(x) for x in ends.body.outvars):
        ends = _ends(new)
        assert ends is not None, "it was a loop"
        use = _Use(ends, shape, with_sums)
        rows = _judged(use)
        if rows is None:
            continue
        found.append(rows)
        if rows.refusal is None:
            new, behind = _rebuilt(new, use, rows, before)
            after += behind
    return ([*before.eqns, new, *after] if new is not eqn else [eqn]), found


class _Use:
    """What a step does with the arrays of one shape.

    Attributes:
        work: the places of the equations that work on their entries.
        members: the arrays that these read or make, and the carries that become such.
        made: those that these make.
        reductions: those of all entries that are among them.
        is_random: whether random numbers are drawn for them.
    """

    def __init__(self, ends: _Ends, shape: Dims, with_sums: bool):
        self.ends, self.shape, body = ends, shape, ends.body
        allowed = SAME_TWICE | (SUMS if with_sums else frozenset[str]())
        self.work = [k for k, e in enumerate(body.eqns) if shape_worked_on(e, allowed) == shape or is_spread(e, shape)]
        own = [body.eqns[k] for k in self.work]
        self.members = {x for e in own for x in (*e.invars, *e.outvars) if is_var(x) and shape_of(x) == shape}
        carries = [(body.invars[k], body.outvars[k - ends.carried.start]) for k in ends.carried]
        while more := {v for v, x in carries if is_var(x) and x in self.members and v not in self.members}:
            self.members |= more
        self.made = {v for e in own for v in e.outvars if shape_of(v) == shape}
        self.reductions = {e.primitive.name for e in own if shape_of(e.outvars[0]) != shape}
        self.is_random = any(e.primitive.name == "random_bits" for e in own)
        inside = set(self.work)
        self.others = [
            e
            for k, e in enumerate(body.eqns)
            if k not in inside and any(is_var(x) and x in self.members for x in (*e.invars, *e.outvars))
        ]

    @property
    def ins(self) -> list[int]:
        """The places of the body's inputs that are held as long rows."""
        return [k for k, v in enumerate(self.ends.body.invars) if v in self.members]

    @property
    def outs(self) -> list[int]:
        """The places of the body's results that are."""
        body, first = self.ends.body, self.ends.carried.start
        ends = [body.invars[first + k] if k < len(self.ends.carried) else x for k, x in enumerate(body.outvars)]
        return [k for k, x in enumerate(ends) if is_var(x) and x in self.members]


def _judged(use: _Use) -> Rows | None:
    """How the arrays of a shape are to be held, or why not; None where the shape is as good as any, or not used."""
    ends, shape = use.ends, use.shape
    widest = max((v.aval.dtype.itemsize for v in use.made if jnp.issubdtype(v.aval.dtype, jnp.number)), default=0)
    if is_short(shape):
        why, rows = f"rows of {shape[-1]} entries are short loops", rows_of(shape)
    elif widest and is_halved(shape, widest):
        why, rows = f"of {math.prod(shape):,} entries two threads have unlike halves", rows_of(shape, FEWEST_ODD)
    else:
        return None
    handed_on = [ends.body.outvars[k] for k in use.outs]
    if not any(is_var(x) and x in use.made for x in handed_on):
        return None
    found = Rows(shape, rows or (-(-math.prod(shape) // FILLED), FILLED), why, bool(use.reductions & SUMS))
    if found.rows == shape:
        return None
    if any(is_fused(e) or inner_jaxprs(e) for e in use.others):
        return replace(found, refusal="XLA computes it together with what is done to other shapes")
    if any(e.primitive.name == "conv_general_dilated" for e in use.others):
        return replace(found, refusal="beside a convolution its results lie in another order")
    if shape[-1] in LITTLE and len(use.work) < WORTH_A_PRODUCT and is_short(shape) and _is_multiplied(use):
        return replace(found, refusal="little is done to the entries beside a product")
    return replace(found, refusal=_unfilled(use)) if found.is_filled else found


def _is_multiplied(use: _Use) -> bool:
    """Whether a product reads or makes such an array."""
    return any(e.primitive.name == "dot_general" for e in use.others)


def _unfilled(use: _Use) -> str | None:
    """Why arrays that are no number of long rows cannot be filled up, or None."""
    ends = use.ends
    if use.others:
        return "its entries are not some long rows, and are not only worked on one by one"
    if use.reductions and use.is_random:
        return "its entries are not some long rows, and those that fill them up would draw numbers of their own"
    if use.reductions & SUMS:
        return "its entries are not some long rows, and their sum is taken"
    stacked = any(k in ends.stacked_in for k in use.ins) or any(k in ends.stacked_out for k in use.outs)
    if stacked:
        return "its entries are not some long rows, and what is stacked would be copied"
    if ends.steps < MANY_STEPS:
        return "its entries are not some long rows, and few steps are not worth a copy"
    return None


def _rebuilt(eqn: JaxprEqn, use: _Use, rows: Rows, before: Builder) -> tuple[JaxprEqn, list[JaxprEqn]]:
    """The loop on long rows, and what makes its results of the new ones; what it needs goes to `before`."""
    ends, ins, outs, inputs = use.ends, set(use.ins), set(use.outs), list(eqn.invars)
    for k in ins:
        steps = (ends.steps,) if k in ends.stacked_in else ()
        (inputs[ends.shift + k],) = before.call(lambda x, s=steps: rows.to_rows(x, s), inputs[ends.shift + k])
    body = _replayed(ends.body, ins, outs, set(use.work), rows, eqn)
    if eqn.primitive.name == "scan":
        params = eqn.params | {"jaxpr": ClosedJaxpr(body, ())}
    else:
        cond, first = eqn.params["cond_jaxpr"], eqn.params["cond_nconsts"]
        carried = {first + k - ends.carried.start for k in ins if k in ends.carried}
        new = _replayed(cond.jaxpr, carried, set(), set(), rows, eqn)
        params = eqn.params | {"cond_jaxpr": ClosedJaxpr(new, ()), "body_jaxpr": ClosedJaxpr(body, ())}
    results, behind = list(eqn.outvars), list[JaxprEqn]()
    for k in outs:
        old, steps = eqn.outvars[k], (ends.steps,) if k in ends.stacked_out else ()
        aval = body.outvars[k].aval
        results[k] = _jax.new_var(all_steps(aval, ends.steps) if steps else aval)
        finish = Builder(eqn)
        made = finish.as_weak_as(old, finish.call(lambda x, s=steps: rows.from_rows(x, s), results[k])[0])
        behind += [e.replace(outvars=[old if v is made else v for v in e.outvars]) for e in finish.eqns]
    return eqn.replace(invars=inputs, outvars=results, params=params), behind


def _replayed(jaxpr: Jaxpr, ins: set[int], outs: set[int], work: set[int], rows: Rows, loop: JaxprEqn) -> Jaxpr:
    """What a loop runs with long rows for these inputs, results and equations, and the old arrays for all others."""
    long, natural, eqns = dict[Var, Atom](), dict[Var, Atom](), list[JaxprEqn]()
    invars = [_jax.new_var(v.aval.update(shape=rows.rows)) if k in ins else v for k, v in enumerate(jaxpr.invars)]
    long.update((v, new) for k, (v, new) in enumerate(zip(jaxpr.invars, invars, strict=True)) if k in ins)

    def as_rows(x: Atom, like: JaxprEqn) -> Atom:
        if isinstance(x, Literal) or not shape_of(x):
            return x
        if x not in long:
            builder = Builder(like)
            (long[x],) = builder.call(rows.to_rows if shape_of(x) == rows.shape else lambda x: lax.reshape(x, ()), x)
            eqns.extend(builder.eqns)
        return long[x]

    def as_before(x: Atom, like: JaxprEqn) -> Atom:
        if isinstance(x, Literal) or x not in long:
            return x
        if x not in natural:
            builder = Builder(like)
            (natural[x],) = builder.call(rows.from_rows, long[x])
            eqns.extend(builder.eqns)
        return natural[x]

    for k, eqn in enumerate(jaxpr.eqns):
        if k not in work:
            eqns.append(eqn.replace(invars=[as_before(x, eqn) for x in eqn.invars]))
            continue
        (out,) = eqn.outvars
        inputs = [as_rows(x, eqn) for x in eqn.invars]
        if shape_of(out) == rows.shape:
            long[out] = _jax.new_var(out.aval.update(shape=rows.rows))
        params = eqn.params | params_at(eqn, rows.rows)
        eqns.append(eqn.replace(invars=inputs, outvars=[substitute(out, long)], params=params))
    results = [as_rows(x, loop) if k in outs else as_before(x, loop) for k, x in enumerate(jaxpr.outvars)]
    return _jax.new_jaxpr(jaxpr, invars, results, eqns)
