"""What a loop is given and gives, where it lies: windows of an array are read there, outputs are written where they go.

`scan(f, c, x[1:])` copies `x[1:]`, and `concatenate([c[None], ys])` copies `ys`: XLA keeps what a loop reads and stacks
in arrays of their own (jaxlib 0.10.2). Read from `x` at an index, and written into the joined array at one, neither is
made: 2,000 steps of 64 numbers take 1.05 ms instead of 1.32, and no memory instead of twice the trajectory.
"""

from collections.abc import Sequence, Set
from itertools import accumulate
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..cost import nbytes
from ..level import Edit, Level
from ..loop import Loop, LoopBuilder, named
from ..program import Builder, copy_equation, is_var, substitute
from ..record import record

# Fewer bytes are copied in the time that an index takes in so many steps.
LEAST_BYTES = 1 << 15


@record
class Window:
    """An input of a loop that is a slice of a `source`: its step t reads entry `start + t` of that."""

    source: Var
    start: int


@record
class Joint:
    """An output of a loop that only a concatenation at `place` reads, where it begins at `start`."""

    place: int
    start: int


@record
class Ends:
    """The windows and joints of a loop, by the variables of the level."""

    windows: dict[Var, Window]
    joints: dict[Var, Joint]


def ends_of(level: Level, loop: Loop, taken: Set[int]) -> Ends:
    """What a loop is given in windows, and what of its outputs is joined to other arrays, by none that is `taken`."""
    windows = {x: found for x in loop.xs if is_var(x) and (found := _window(level, x)) is not None}
    joints: dict[Var, Joint] = {}
    for y in loop.ys:
        found = _joint(level, y)
        if found is not None and found.place not in taken | {other.place for other in joints.values()}:
            joints[y] = found
    return Ends(windows, joints)


def _window(level: Level, x: Var) -> Window | None:
    maker = level.maker(x)
    if maker is None or maker.primitive.name != "slice" or nbytes(x.aval) < LEAST_BYTES:
        return None
    (source,), params = maker.invars, maker.params
    rest = all(start == 0 for start in params["start_indices"][1:]) and source.aval.shape[1:] == x.aval.shape[1:]
    if not is_var(source) or not rest or any(s != 1 for s in params["strides"] or ()):
        return None
    return Window(source, params["start_indices"][0])


def _joint(level: Level, y: Var) -> Joint | None:
    readers = level.readers(y)
    if nbytes(y.aval) < LEAST_BYTES or len(readers) != 1 or readers[0] < 0:
        return None
    eqn = level.eqns[readers[0]]
    if eqn.primitive.name != "concatenate" or eqn.params["dimension"] != 0 or eqn.invars.count(y) != 1:
        return None
    return Joint(readers[0], _starts(eqn.invars)[eqn.invars.index(y)])


def in_place(level: Level, place: int, loop: Loop, ends: Ends, counts: bool) -> list[Edit]:
    """The loop at `place` that reads windows and writes joints where they lie, and what stands for concatenations.

    With `counts` it carries the index of the step: read from an array of indices, kernels read that at each entry.
    Backwards in time, heat of 2,000 to 20,000 places took 1.1 to 1.7 times as long with the array, and 0.4 to 0.9 with
    a carry. In one kernel of all steps it is the other way round (Lorenz systems: 1.15).
    """
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
    count = _Counter(new) if counts else new
    env: dict[Var, Atom] = {v: new.const(c) for v, c in zip(loop.body_consts, loop.consts, strict=True)}
    setters = []
    for init, var, final in zip(loop.init, loop.body_carry, loop.finals, strict=True):
        env[var], set_next = new.keep_carry(init, named(final))
        setters.append(set_next)
    for v, x in zip(loop.body_xs, loop.xs, strict=True):
        window = ends.windows.get(x) if is_var(x) else None
        if window is not None:
            operands = new.const(window.source), count.index()
            (env[v],) = new.body.call(lambda s, t, at=window.start: _entry(s, t, at), *operands)
        else:
            env[v] = new.x(x) if is_var(x) else x
    new.body.eqns += [copy_equation(eqn, env) for eqn in loop.body.eqns]
    for set_next, x in zip(setters, loop.next_carry, strict=True):
        set_next(substitute(x, env))
    edits = []
    for y, v in zip(loop.ys, loop.body_ys, strict=True):
        if y not in ends.joints:
            new.y(substitute(v, env), named(y))
            continue
        joint = ends.joints[y]
        whole = level.eqns[joint.place]
        home = _home(level, place, whole, ends)
        buffer = _written(new, count, substitute(v, env), joint, whole, home)
        edits.append(_joined(level, joint, whole, y, buffer, home))
    gone = frozenset((place,))
    return [Edit(place, gone, new.equations(), {}, gone), *edits]


class _Counter:
    """The index of the step, as a carry."""

    def __init__(self, new: LoopBuilder):
        self._new, self._index = new, None

    def index(self) -> Atom:
        """An int32 scalar of the body."""
        if self._index is None:
            new, step = self._new, np.int32(-1 if self._new.reverse else 1)
            (start,) = new.before.call(lambda: np.int32(new.length - 1 if new.reverse else 0))
            self._index, set_next, _ = new.carry(start)
            (after,) = new.body.call(lambda t: t + step, self._index)
            set_next(after)
        return self._index


def _entry(source: Any, t: Any, start: int) -> Any:
    # `dynamic_index_in_dim` would be a call, and loops that hold one are not counted as such of few bytes
    at = [t + np.int32(start), *[np.int32(0)] * (source.ndim - 1)]
    return lax.squeeze(lax.dynamic_slice(source, at, (1, *source.shape[1:]), allow_negative_indices=False), [0])


def has_home(level: Level, place: int, ends: Ends) -> bool:
    """Whether the loop at `place` writes into an array that is there: it need not have one of its own."""
    wholes = (level.eqns[joint.place] for joint in ends.joints.values())
    return any(_home(level, place, whole, ends) is not None for whole in wholes)


def _home(level: Level, place: int, whole: JaxprEqn, ends: Ends) -> Var | None:
    """An array of which the other parts of a concatenation are slices, where they stood; None if there is none.

    A loop that writes into it, as one that filled a buffer did before it had rows, leaves them where they are. That is
    in place where nothing but slices reads the array, and it is not the caller's.
    """
    for x, at in zip(whole.invars, _starts(whole.invars), strict=False):
        home = _source(level, x, at, whole)
        if home is None or level.made_by.get(home, place) >= place:
            continue
        readers = [level.eqns[k].primitive.name if k >= 0 else "" for k in level.readers(home)]
        if set(readers) == {"slice"} and all(window.source is not home for window in ends.windows.values()):
            return home
    return None


def _source(level: Level, x: Atom, start: int, whole: JaxprEqn) -> Var | None:
    """The array of the type of a concatenation from whose entries at `start` one of its parts is sliced."""
    maker = level.maker(x)
    if maker is None or maker.primitive.name != "slice" or any(s != 1 for s in maker.params["strides"] or ()):
        return None
    (source,), result = maker.invars, whole.outvars[0].aval
    same = (source.aval.shape, source.aval.dtype) == (result.shape, result.dtype)
    starts = maker.params["start_indices"]
    return source if is_var(source) and same and (starts[0], *starts[1:]) == (start, *[0] * (len(starts) - 1)) else None


def _written(
    new: LoopBuilder, count: "_Counter | LoopBuilder", entry: Atom, joint: Joint, whole: JaxprEqn, home: Var | None
) -> Var:
    """The array after all steps, into which each has written its entry."""
    aval = whole.outvars[0].aval
    (empty,) = new.before.call(lambda: jnp.zeros(aval.shape, aval.dtype)) if home is None else (home,)
    buffer, set_next, final = new.carry(empty)

    def write(buffer: Any, entry: Any, t: Any) -> Any:
        at = [t + np.int32(joint.start), *[np.int32(0)] * (buffer.ndim - 1)]
        return lax.dynamic_update_slice(buffer, lax.expand_dims(entry, [0]), at, allow_negative_indices=False)

    (written,) = new.body.call(write, buffer, entry, count.index())
    set_next(written)
    return final


def _joined(level: Level, joint: Joint, whole: JaxprEqn, y: Var, buffer: Var, home: Var | None) -> Edit:
    """Writes of the other parts, of those that stand there not already, in place of a concatenation."""
    builder = Builder(whole)
    parts = [(x, at) for x, at in zip(whole.invars, _starts(whole.invars), strict=False) if x is not y]
    parts = [(x, at) for x, at in parts if home is None or _source(level, x, at, whole) is not home]
    gone = frozenset((joint.place,))
    if not parts:
        return Edit(joint.place, gone, [], {whole.outvars[0]: buffer}, gone)

    def write(buffer: Any, *parts_: Any) -> Any:
        for part, (_, at) in zip(parts_, parts, strict=True):
            buffer = lax.dynamic_update_slice_in_dim(buffer, part, np.int32(at), 0)
        return buffer

    (result,) = builder.call(write, buffer, *(x for x, _ in parts))
    return Edit(joint.place, gone, builder.eqns, {whole.outvars[0]: result}, gone)


def _starts(parts: Sequence[Atom]) -> list[int]:
    """Where each of the joined arrays begins, and where the last one ends."""
    return [0, *accumulate(x.aval.shape[0] for x in parts)]
