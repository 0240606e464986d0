"""Loops without what they carry, read or stack twice."""

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from .cost import nbytes
from .loop import Loop, LoopBuilder, as_loop
from .program import is_var, where
from .report import Decision

SMALLEST_SAVING = 4096  # bytes


def tidy_loop(eqn: JaxprEqn) -> tuple[JaxprEqn, dict[Var, Atom]] | None:
    """A loop that does the same, and what stands for those of its results that it no longer makes; None if tidy.

    A carry that no step changes becomes a constant, one value read twice is read once, outputs that are equal are
    stacked once, and an output that is an input of its step is that input.
    """
    loop = as_loop(eqn)
    if loop is None or loop.length == 0 or not _is_untidy(loop):
        return None
    new = LoopBuilder(eqn, loop.length, loop.reverse)
    results: dict[Var, Atom] = {}
    ins: list[Atom] = [new.const(c) for c in loop.consts]
    setters = []
    for init, final, var, nxt in zip(loop.init, loop.finals, loop.body_carry, loop.next_carry, strict=True):
        if nxt is var and _same_type(init, final):
            ins.append(new.const(init))
            setters.append(None)
            results[final] = init
        else:
            inside, set_next = new.keep_carry(init, final)
            ins.append(inside)
            setters.append(set_next)
    given: dict[Atom, Atom] = {}
    for x, var in zip(loop.xs, loop.body_xs, strict=True):
        ins.append(new.x(x) if is_var(x) else x)
        given[var] = x
    outs = new.body.inline(loop.body, ins)
    for set_next, out in zip(setters, outs, strict=False):
        if set_next is not None:
            set_next(out)
    results.update(_stack_once(new, loop, given, outs[len(setters) :]))
    return new.equation(), results


def _stack_once(new: LoopBuilder, loop: Loop, given: dict[Atom, Atom], outs: list[Atom]) -> dict[Var, Atom]:
    """Stacks each different output once; what stands for the others."""
    results: dict[Var, Atom] = {}
    stacked: dict[Var, Var] = {}
    for y, old, out in zip(loop.ys, loop.body_ys, outs, strict=True):
        if is_var(old) and old in given and _same_type(given[old], y):
            results[y] = given[old]
        elif is_var(old) and old in stacked and _same_type(stacked[old], y):
            results[y] = stacked[old]
        else:
            new.y(out, y)
            if is_var(old):
                stacked[old] = y
    return results


def stacked_once(before: JaxprEqn, after: JaxprEqn) -> list[Decision]:
    """A decision if the tidy loop stacks less, enough to matter."""
    saved = sum(nbytes(y.aval) for y in Loop(before).ys) - sum(nbytes(y.aval) for y in Loop(after).ys)
    if saved < SMALLEST_SAVING:
        return []
    reason = "several outputs of a step are one value"
    return [
        Decision("loop-tidy", "equal outputs of a loop are stacked once", where(before), True, reason, 0, saved, saved)
    ]


def _is_untidy(loop: Loop) -> bool:
    if any(isinstance(x, Literal) for x in loop.xs):
        return False
    ys = [y for y in loop.body_ys if is_var(y)]
    ins = [*loop.consts, *loop.xs]
    return (
        len(set(ys)) < len(ys)
        or any(y in set(loop.body_xs) for y in ys)
        or any(a is b for a, b in zip(loop.next_carry, loop.body_carry, strict=True))
        or len({x for x in ins if is_var(x)}) < len(ins)
    )


def _same_type(a: Atom, b: Atom) -> bool:
    return a.aval == b.aval and getattr(a.aval, "weak_type", False) == getattr(b.aval, "weak_type", False)
