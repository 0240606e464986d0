"""Counters that all lanes of a `while` share, as `vmap` of `while i < most and not done` makes it.

JAX carries a counter for each lane, since lanes stop one by one. All that go on have counted the same steps: one number
says how many. What a stopped lane's counter is nobody asks, as long as the lane stays stopped.
"""

from collections.abc import Mapping
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ..known.facts import is_integer
from ..level import Level
from ..program import Builder, inner_jaxprs, is_var, producers
from ..record import record

SAME = frozenset("convert_element_type broadcast_in_dim reshape copy".split())


@record
class Counter:
    """A carry of a loop: what it starts at, and what each step adds."""

    start: Atom
    step: Literal


def with_shared_counters(level: Level, eqn: JaxprEqn) -> JaxprEqn | None:
    """The loop with one number in place of each such counter, and its selections written out; None if it has none."""
    if eqn.primitive.name != "while" or eqn.effects:
        return None
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    if not cond.out_avals[0].shape or cond.consts or body.consts or _holds_while(body.jaxpr):
        return None
    mine, others = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    counters = _counters(level, eqn)
    variables = cond.jaxpr.invars[mine:]
    if not counters or not _stays_stopped(cond.jaxpr, cond.jaxpr.invars[:mine], {variables[k] for k in counters}):
        return None
    new = Builder(eqn)
    consts = [_jax.new_var(v.aval) for v in (*cond.jaxpr.invars[:mine], *body.jaxpr.invars[:others])]
    carry = [_jax.new_var(_one(v) if k in counters else v.aval) for k, v in enumerate(body.jaxpr.invars[others:])]
    wide = _widened(new, carry, counters, body.jaxpr.invars[others:])
    (goes_on,) = new.inline(cond.jaxpr, [*consts[:mine], *wide])
    after = new.inline(body.jaxpr, [*consts[mine:], *wide])
    outs: list[Atom] = []
    for k, (old, then) in enumerate(zip(carry, after, strict=True)):
        made = new.call(lax.add, old, counters[k].step) if k in counters else new.call(_select, goes_on, then, old)
        outs.append(new.as_weak_as(old, made[0]))
    params = dict(
        eqn.params,
        cond_jaxpr=ClosedJaxpr(_any(cond.jaxpr, eqn, counters, mine), ()),
        body_jaxpr=ClosedJaxpr(_jax.new_jaxpr(body.jaxpr, [*consts, *carry], outs, new.eqns), ()),
        body_nconsts=mine + others,
    )
    handed = [*eqn.invars[:mine], *eqn.invars[: mine + others]]
    start = [counters[k].start if k in counters else x for k, x in enumerate(eqn.invars[mine + others :])]
    made_of = [_jax.new_var(carry[k].aval) if k in counters else v for k, v in enumerate(eqn.outvars)]
    return eqn.replace(invars=[*handed, *start], outvars=made_of, params=params)


def _holds_while(jaxpr: Jaxpr) -> bool:
    """Whether a step holds a loop that may not end for a stopped lane, whose counter goes on."""
    return any(eqn.primitive.name == "while" or any(map(_holds_while, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)


def _select(lanes: Any, then: Any, old: Any) -> Any:
    return lax.select(lax.broadcast_in_dim(lanes, then.shape, range(lanes.ndim)), then, old)


def _one(v: Var) -> object:
    """The type of one of a counter's numbers."""
    return _jax.ShapedArray((), v.aval.dtype, weak_type=bool(getattr(v.aval, "weak_type", False)))


def _counters(level: Level, eqn: JaxprEqn) -> Mapping[int, Counter]:
    """The carries that start alike in all lanes, grow by a literal, and are not read behind the loop."""
    body = eqn.params["body_jaxpr"].jaxpr
    lanes = eqn.params["cond_jaxpr"].out_avals[0].shape
    made, others = producers(body), eqn.params["body_nconsts"]
    found: dict[int, Counter] = {}
    starts = eqn.invars[eqn.params["cond_nconsts"] + others :]
    carries = zip(starts, body.invars[others:], body.outvars, eqn.outvars, strict=True)
    for k, (first, var, after, out) in enumerate(carries):
        one = _repeated(level, first)
        if level.readers(out):
            continue
        if var.aval.shape != lanes or not is_integer(var) or not is_var(after) or after not in made:
            continue
        one_type, step = _one(var), _step(body.eqns[made[after]], var)
        if step is None or one.aval.shape or one.aval.dtype != var.aval.dtype:
            continue
        if isinstance(one, Literal):
            one = _jax.literal(one.val, one_type)
        if one.aval == one_type:
            found[k] = Counter(one, step)
    return found


def _repeated(level: Level, x: Atom) -> Atom:
    """What a value repeats."""
    while (maker := level.maker(x)) is not None and maker.primitive.name == "broadcast_in_dim":
        x = maker.invars[0]
    return x


def _step(eqn: JaxprEqn, var: Var) -> Literal | None:
    """The positive literal that an equation adds to a variable."""
    if eqn.primitive.name != "add":
        return None
    one, other = eqn.invars if eqn.invars[0] is var else eqn.invars[::-1]
    if one is not var or not isinstance(other, Literal) or other.aval.dtype != var.aval.dtype:
        return None
    return other if not other.aval.shape and other.val > 0 else None


def _stays_stopped(cond: Jaxpr, consts: list[Var], counters: set[Var]) -> bool:
    """Whether a lane whose carries stay goes on in no later step, though the counters grow.

    Of conditions that all hold, one that only counters say ends the loop for all lanes; one that they say nothing about
    stays as it is; and a counter that is not below a bound of the lane never is again.
    """
    made = producers(cond)
    reads: dict[Var, frozenset[Var]] = {v: frozenset((v,)) for v in cond.invars}
    for eqn in cond.eqns:
        read = frozenset().union(*(reads.get(x, frozenset()) for x in eqn.invars if is_var(x)))
        reads.update(dict.fromkeys(eqn.outvars, read))
    own = {v for v in cond.invars if v not in counters and (v not in consts or v.aval.shape)}

    def holds(x: Atom) -> bool:
        read = reads[x] if is_var(x) else frozenset()
        if not read & counters or not read & own:
            return True
        eqn = cond.eqns[made[x]] if is_var(x) and x in made else None
        if eqn is None or x.aval.dtype.kind != "b":
            return False
        name, operands = eqn.primitive.name, eqn.invars
        if name == "and" or (name in SAME and operands[0].aval.dtype.kind == "b"):
            return all(map(holds, operands))
        if name not in ("lt", "le", "gt", "ge"):
            return False
        small, large = operands if name in ("lt", "le") else operands[::-1]
        return _is_counter(small) and not (is_var(large) and reads[large] & counters)

    def _is_counter(x: Atom) -> bool:
        while is_var(x) and x in made and cond.eqns[made[x]].primitive.name in SAME:
            source = cond.eqns[made[x]].invars[0]
            if not is_integer(source) or source.aval.dtype != x.aval.dtype:
                return False
            x = source
        return is_var(x) and x in counters

    return holds(cond.outvars[0])


def _widened(new: Builder, carry: list[Var], counters: Mapping[int, Counter], old: list[Var]) -> list[Atom]:
    """The carries as the loop had them: a counter's number in each lane."""
    wide: list[Atom] = list(carry)
    for k in counters:
        shape = old[k].aval.shape
        (made,) = new.call(lambda x, shape=shape: lax.broadcast_in_dim(x, shape, ()), carry[k])
        wide[k] = new.as_weak_as(old[k], made)
    return wide


def _any(cond: Jaxpr, like: JaxprEqn, counters: Mapping[int, Counter], mine: int) -> Jaxpr:
    """The condition, true where it is for any lane."""
    builder = Builder(like)
    consts, carries = cond.invars[:mine], cond.invars[mine:]
    invars = [_jax.new_var(v.aval) for v in consts]
    carry = [_jax.new_var(_one(v) if k in counters else v.aval) for k, v in enumerate(carries)]
    (lanes,) = builder.inline(cond, [*invars, *_widened(builder, carry, counters, carries)])
    outs = builder.call(lambda x: lax.reduce_or(x, range(x.ndim)), lanes)
    return _jax.new_jaxpr(cond, [*invars, *carry], outs, builder.eqns)
