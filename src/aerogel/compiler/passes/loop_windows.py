"""Loop windows: what a loop shifts, or adds to at places in turn, are windows of an array (`shift_registers.py`)."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var

from ..axes.rebind import shape_of
from ..cost import Machine
from ..cost.seconds import moves_few
from ..exactness import Exactness
from ..known.facts import body_facts, level_counters
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import LIGHT, Loop, LoopBuilder, as_loop, with_body
from ..loops.shift_registers import Carried, Carries, Outlet, Register, Sum
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Builder, Program, copy_equation, is_var, substitute, where, with_equations
from ..record import record
from ..report import Decision

NAME = "loop-windows"
# Numbers in all windows. With fewer, what is made of them is several kernels for some microseconds of work. More where
# a step shifts something out (8,000 took 62 us, and 39 as a loop), or where XLA makes one kernel of a loop that adds
# (24,000 took 150 us, and 85).
FEWEST, FEWEST_OUT, FEWEST_IN_ONE_KERNEL = 1 << 12, 1 << 14, 1 << 15
# Places of windows that slide by one and are added by a loop that does nothing else: they become as many slices.
MOST_ALONE = 16
ALONE = "a step does nothing but add, and XLA makes one kernel of that"
STEP = LIGHT | {"dynamic_slice", "dynamic_update_slice", "select_n"}
SIMPLER = "what a step shifts out is cut off"
WHAT: dict[type[Carried], str] = {
    Register: "what each step shifts is a window of the inputs",
    Outlet: "what each step shifts out is a sum of windows",
    Sum: "what each step adds at its own place is a window of one sum",
}


@record
class LoopWindows:
    """The pass. Bound: each carry of each loop is looked at once, along each of its dimensions."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops, and a decision for each of their carries."""
        decisions: list[Decision] = []
        if Exactness.REASSOCIATES not in context.allowed:
            return program, decisions
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions, context.machine)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision], machine: Machine) -> Jaxpr:
    if all(eqn.primitive.name != "scan" for eqn in jaxpr.eqns):
        return jaxpr
    level, counters, edits = Level(jaxpr), level_counters(jaxpr), list[Edit]()
    for place, eqn in enumerate(jaxpr.eqns):
        loop = as_loop(eqn)
        if loop is None or loop.length < 2 or not loop.body_carry:
            continue
        carries = Carries(level, loop, body_facts(loop, counters)).found
        windows = {one.carry: loop.length * _window_size(loop, one) for one in carries}
        fewest = _fewest(loop, carries, machine)
        few = bool(windows) and max(windows.values()) < fewest
        alone = _adds_apart(loop, carries)
        for one in carries:
            reason = f"{windows[one.carry]} numbers are fewer than {fewest}" if few else "no step waits for another"
            reason, few = (ALONE, True) if alone and not few else (reason, few)
            exact = Exactness.BITWISE if isinstance(one, Register) else Exactness.REASSOCIATES
            decisions.append(Decision(NAME, WHAT[type(one)], where(eqn), not few, reason, exactness=exact))
        if carries and not few:
            edits.append(_rewrite(place, loop, carries))
        elif few:
            simpler = _simpler(loop, [one for one in carries if isinstance(one, Outlet)])
            if simpler is not None:
                decisions.append(Decision(NAME, SIMPLER, where(eqn), True, "fewer operations do it"))
                edits.append(Edit(place, frozenset({place}), [simpler], {}, frozenset({place})))
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _fewest(loop: Loop, carries: list[Carried], machine: Machine) -> int:
    """How many numbers all windows must hold."""
    if any(isinstance(one, Outlet) for one in carries):
        return FEWEST_OUT
    adds = any(isinstance(one, Sum) for one in carries)
    in_one_kernel = moves_few(loop.eqn, machine) or _hardly_computes(loop, carries)
    return FEWEST_IN_ONE_KERNEL if adds and in_one_kernel else FEWEST


def _adds_apart(loop: Loop, carries: list[Carried]) -> bool:
    """Whether a loop only adds, and slices of what it adds are no faster: frames that are apart, or long windows.

    Its kernel adds neighbours at once: 500 frames of 128 take 0.03 ms, and twice as long in any other form.
    """
    if not _hardly_computes(loop, carries):
        return False
    (one,) = carries
    return isinstance(one, Sum) and (abs(one.place.scale) != 1 or shape_of(one.added)[one.dim] > MOST_ALONE)


def _hardly_computes(loop: Loop, carries: list[Carried]) -> bool:
    """Whether all that a loop does is to add what its steps hardly compute."""
    if len(carries) != 1 or loop.ys or not STEP.issuperset(eqn.primitive.name for eqn in loop.body.eqns):
        return False
    (one,), counters = carries, (v for v in loop.body_carry if v.aval.shape or v.aval.dtype.kind not in "iu")
    return isinstance(one, Sum) and all(v is loop.body_carry[one.carry] for v in counters)


def _simpler(loop: Loop, outlets: list[Outlet]) -> JaxprEqn | None:
    """The loop with what leaves these carries cut from them, and zeros put behind it; None if that is no less."""
    body, made = loop.body, Builder(loop.eqn)
    env: dict[Var, Atom] = {}
    for one in outlets:
        dim, n, nxt = one.dim, shape_of(one.total)[one.dim], loop.next_carry[one.carry]
        kept, end = (one.move, n) if one.at_front else (0, n - one.move)
        first = 0 if one.at_front else n - one.move

        def moved(u: Any, dim: int = dim, kept: int = kept, end: int = end, at_front: bool = one.at_front) -> Any:
            around = [(0, 0, 0)] * u.ndim
            around[dim] = (0, u.shape[dim] + kept - end, 0) if at_front else (u.shape[dim] + kept - end, 0, 0)
            return lax.pad(lax.slice_in_dim(u, kept, end, axis=dim), lax.full((), 0, u.dtype), around)

        assert is_var(nxt), "it is computed"
        env[nxt] = made.as_weak_as(nxt, made.call(moved, one.total)[0])
        for v in one.out:

            def out(u: Any, v: Var = v, dim: int = dim, first: int = first, move: int = one.move) -> Any:
                return lax.reshape(lax.slice_in_dim(u, first, first + move, axis=dim), shape_of(v))

            env[v] = made.as_weak_as(v, made.call(out, one.total)[0])
    new = drop_dead(with_equations(body, [*body.eqns, *made.eqns], [substitute(x, env) for x in body.outvars]))
    return with_body(loop.eqn, lambda _: new) if len(new.eqns) < len(body.eqns) else None


def _window_size(loop: Loop, one: Carried) -> int:
    return (loop.body_carry[one.carry] if isinstance(one, Register) else one.added).aval.size


def _rewrite(place: int, loop: Loop, carries: list[Carried]) -> Edit:
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
    gone, env, results = {one.carry: one for one in carries}, dict[Var, Atom](), dict[Var, Atom]()
    setters: dict[int, Any] = {}
    for k, (init, var, final) in enumerate(zip(loop.init, loop.body_carry, loop.finals, strict=True)):
        one = gone.get(k)
        if one is None:
            own = _jax.new_var(final.aval) if isinstance(final, DropVar) else final
            env[var], setters[k] = new.keep_carry(init, own)
        elif isinstance(one, Register):
            _read(new, loop, one, env, results)
        else:
            env[var] = _jax.new_var(var.aval)  # nobody reads it
    env.update((v, new.const(c)) for v, c in zip(loop.body_consts, loop.consts, strict=True))
    env.update((v, new.x(x) if is_var(x) else x) for v, x in zip(loop.body_xs, loop.xs, strict=True))
    moved = {v for one in carries if isinstance(one, Outlet) for v in one.out}
    ys = [v for v in loop.body_ys if not (is_var(v) and v in moved)]
    needed = [*(loop.next_carry[k] for k in setters), *ys, *(c.added for c in carries if not isinstance(c, Register))]
    left = [eqn for eqn in loop.body.eqns if not any(v in env for v in eqn.outvars)]
    given = [*loop.body.invars, *(v for eqn in loop.body.eqns for v in eqn.outvars if v in env)]
    live = drop_dead(_jax.new_jaxpr(loop.body, given, needed, left))
    new.body.eqns += [copy_equation(eqn, env) for eqn in live.eqns]
    for k, set_next in setters.items():
        set_next(substitute(loop.next_carry[k], env))
    outs: dict[Var, Atom] = {}
    for one in carries:
        if not isinstance(one, Register):
            _added(new, loop, one, substitute(one.added, env), outs, results)
    for y, v in zip(loop.ys, loop.body_ys, strict=True):
        if is_var(v) and v in moved:
            (whole,) = new.after.call(lambda x, y=y: lax.reshape(x, y.aval.shape), outs[v])
            results[y] = new.after.as_weak_as(y, whole)
        else:
            new.y(substitute(v, env), y)
    return Edit(place, frozenset({place}), new.equations(), results, frozenset({place}))


def _read(new: LoopBuilder, loop: Loop, one: Register, env: dict[Var, Atom], results: dict[Var, Atom]) -> None:
    """The register before and after a step, as windows of everything that it ever holds."""
    var, nxt = loop.body_carry[one.carry], loop.next_carry[one.carry]
    shape, dim, move, length = shape_of(var), one.dim, one.move, loop.length
    size = shape[dim]

    def line(x: Any, first: Any) -> Any:
        x = lax.reshape(x, (length, *shape[:dim], move, *shape[dim + 1 :]))
        x = jnp.moveaxis(lax.rev(x, (0,)) if loop.reverse != one.in_front else x, 0, dim)
        x = lax.reshape(x, (*shape[:dim], length * move, *shape[dim + 1 :]))
        return lax.concatenate([x, first] if one.in_front else [first, x], dim)

    stacked = loop.xs[one.x]
    first = loop.init[one.carry]
    (whole,) = new.before.call(line, stacked, first)

    def window(steps: int) -> Atom:
        """What is held when so many steps more than those before this one are done."""

        def at(v: Any, t: Any) -> Any:
            done = (np.int32(length - 1) - t if loop.reverse else t) + np.int32(steps)
            start = (np.int32(length) - done if one.in_front else done) * np.int32(move)
            return lax.dynamic_slice_in_dim(v, start, size, dim, allow_negative_indices=False)

        return new.body.call(at, new.const(whole), new.index())[0]

    env[var] = window(0)
    assert is_var(nxt)
    env[nxt] = new.body.as_weak_as(nxt, window(1))
    last = 0 if one.in_front else length * move
    (end,) = new.after.call(lambda v: lax.slice_in_dim(v, last, last + size, axis=dim), whole)
    results[loop.finals[one.carry]] = new.after.as_weak_as(loop.finals[one.carry], end)


def _added(
    new: LoopBuilder, loop: Loop, one: Outlet | Sum, added: Atom, outs: dict[Var, Atom], results: dict[Var, Atom]
) -> None:
    """The sum of windows behind the loop."""
    var, final = loop.body_carry[one.carry], loop.finals[one.carry]
    shape, length, dim, init = shape_of(var), loop.length, one.dim, loop.init[one.carry]
    stacked = new.y(added)
    if isinstance(one, Sum):
        first, step, whole = one.place.offset, one.place.scale, shape
    else:
        # The steps as they run, from where the first one is moved out.
        ahead = one.move if one.at_front else -one.move
        first, step = (0, ahead) if ahead > 0 else (length * one.move, ahead)
        first, step = (first + (length - 1) * step, -step) if loop.reverse else (first, step)
        whole = (*shape[:dim], shape[dim] + length * one.move, *shape[dim + 1 :])

    def total(start: Any, windows: Any) -> Any:
        places = lax.add(lax.mul(lax.iota(np.int32, length), np.int32(step)), np.int32(first))
        numbers = lax.ScatterDimensionNumbers(tuple(range(1, len(shape) + 1)), (), (dim,))
        if isinstance(one, Outlet):
            begin = 0 if one.at_front else length * one.move
            around = [(0, 0, 0)] * len(shape)
            around[dim] = (begin, length * one.move - begin, 0)
            start = lax.pad(start, lax.full((), 0, start.dtype), around)
        index = lax.expand_dims(places, [1])
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
        return lax.scatter_add(start, index, windows, numbers, mode=mode)

    (summed,) = new.after.call(total, init, stacked)
    assert shape_of(summed) == whole, "the windows end where the array does"
    if isinstance(one, Sum):
        results[final] = new.after.as_weak_as(final, summed)
        return
    size, moved = shape[dim], length * one.move
    start = moved if one.at_front else 0
    (end,) = new.after.call(lambda v: lax.slice_in_dim(v, start, start + size, axis=dim), summed)
    results[final] = new.after.as_weak_as(final, end)

    first_out = 0 if one.at_front else size

    def out(v: Any) -> Any:
        v = lax.slice_in_dim(v, first_out, first_out + moved, axis=dim)
        v = lax.reshape(v, (*shape[:dim], length, one.move, *shape[dim + 1 :]))
        v = jnp.moveaxis(v, dim, 0)
        return lax.rev(v, (0,)) if loop.reverse == one.at_front else v

    for v in one.out:
        (outs[v],) = new.after.call(out, summed)
