"""Loops without what they carry, read or stack twice."""

from collections.abc import Mapping

from aerogel._jax import Atom, DropVar, JaxprEqn, Literal, Var

from ..cost import nbytes
from ..loop import Loop, LoopBuilder, as_loop
from ..program import copy_equation, is_var, where
from ..report import Decision

SMALLEST_SAVING = 4096  # bytes
MOST_JOINED = 16  # entries of what is made in each step


def tidy_loop(
    eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn], over_devices: bool = False
) -> tuple[JaxprEqn, dict[Var, Atom]] | None:
    """A loop that does the same, and what stands for those of its results that it no longer makes; None if tidy.

    A carry that no step changes becomes a constant, one value read twice is read once, outputs that are equal are
    stacked once, and an output that is an input of its step is that input; not `over_devices`, where each may be
    spread in its own way. A constant that one number fills is made in the step, where it is seen what
    it is (XLA makes it there anyway). The loop has fewer constants, carries, inputs or outputs than before.
    """
    loop = as_loop(eqn)
    if loop is None or loop.length == 0 or any(isinstance(x, Literal) for x in loop.xs):
        return None
    fixed, known = _unchanged_carries(loop), {} if over_devices else _known_outputs(loop)
    filled = {c for c in loop.consts if is_var(c) and _is_filled(c, makers)}
    # a value that is read whole and step by step is read in two ways, not twice
    if not fixed and not known and not filled and not _has_repeats(loop.consts) and not _has_repeats(loop.xs):
        return None
    new = LoopBuilder(eqn, loop.length, loop.reverse)
    ins: list[Atom] = [_made_inside(new, c, makers) if is_var(c) and c in filled else new.const(c) for c in loop.consts]
    setters = []
    for init, final in zip(loop.init, loop.finals, strict=True):
        if final in fixed:
            ins.append(new.const(init))
            setters.append(None)
        else:
            inside, set_next = new.keep_carry(init, final)
            ins.append(inside)
            setters.append(set_next)
    ins += [new.x(x) for x in loop.xs if is_var(x)]
    outs = new.body.inline(loop.body, ins)
    for set_next, out in zip(setters, outs, strict=False):
        if set_next is not None:
            set_next(out)
    for y, out in zip(loop.ys, outs[len(setters) :], strict=True):
        if y not in known:
            new.y(out, y)
    return new.equation(), {**fixed, **known}


def _unchanged_carries(loop: Loop) -> dict[Var, Atom]:
    """The final values of the carries that every step passes on as they are, and their initial ones."""
    carries = zip(loop.init, loop.finals, loop.body_carry, loop.next_carry, strict=True)
    return {final: init for init, final, var, nxt in carries if nxt is var and same_type(init, final)}


def _known_outputs(loop: Loop) -> dict[Var, Atom]:
    """The stacked outputs that need not be stacked, and what is the same: an input, or an output before."""
    given: dict[Atom, Atom] = dict(zip(loop.body_xs, loop.xs, strict=True))
    known: dict[Var, Atom] = {}
    for y, out in zip(loop.ys, loop.body_ys, strict=True):
        if not is_var(out) or isinstance(y, DropVar):
            continue
        same = given.get(out)
        if same is not None and same_type(same, y):
            known[y] = same
        else:
            given[out] = y
    return known


def _is_filled(x: Atom, makers: Mapping[Var, JaxprEqn]) -> bool:
    """Whether one number fills an array, or each of a few pieces that are joined, as the indices of a window are."""
    maker = makers.get(x) if is_var(x) else None
    if maker is None or maker.primitive.name not in ("broadcast_in_dim", "concatenate"):
        return False
    if maker.primitive.name == "concatenate":
        return maker.outvars[0].aval.size <= MOST_JOINED and all(_is_filled(y, makers) for y in maker.invars)
    return isinstance(maker.invars[0], Literal) and len(maker.invars) == 1


def _made_inside(new: LoopBuilder, x: Atom, makers: Mapping[Var, JaxprEqn]) -> Atom:
    assert is_var(x), "it is filled"
    env: dict[Var, Atom] = {y: _made_inside(new, y, makers) for y in makers[x].invars if is_var(y)}
    new.body.eqns.append(copy_equation(makers[x], env))
    return env[x]


def _has_repeats(atoms: list[Atom]) -> bool:
    found = [x for x in atoms if is_var(x)]
    return len(set(found)) < len(found)


def stacked_once(before: JaxprEqn, after: JaxprEqn) -> list[Decision]:
    """A decision if the tidy loop stacks less, enough to matter."""
    saved = sum(nbytes(y.aval) for y in Loop(before).ys) - sum(nbytes(y.aval) for y in Loop(after).ys)
    if saved < SMALLEST_SAVING:
        return []
    reason = "several outputs of a step are one value"
    return [
        Decision("loop-tidy", "equal outputs of a loop are stacked once", where(before), True, reason, 0, saved, saved)
    ]


def same_type(a: Atom, b: Atom) -> bool:
    """Whether two values have one type, weakness included."""
    return a.aval == b.aval and getattr(a.aval, "weak_type", False) == getattr(b.aval, "weak_type", False)
