"""Slices of windows are slices of what the windows are read from.

`w = x[jnp.arange(n - 7)[:, None] + jnp.arange(8)]`, of which nothing but `w[:, 0]`, `w[:, 1]`, ... is read, need not
exist; nor need it where a loop reads `w[:, k]` in its step k.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..known.even_indices import Even, EvenIndices
from ..level import Edit, Level
from ..loop import Loop, LoopBuilder, as_loop, named
from ..program import Builder, copy_equation, is_var, substitute, users
from .windows import Windows, windows_of


def window_slices(level: Level, arrays: Mapping[Var, Even]) -> Iterator[Edit]:
    """An edit for each slice of windows that only slices read, and for each loop that reads slices of such windows."""
    indices = EvenIndices(level, arrays)
    of_loops: dict[int, dict[Var, tuple[Windows, Var]]] = {}
    for eqn in level.eqns:
        windows = windows_of(eqn, indices) if eqn.primitive.name == "gather" else None
        if windows is None or not windows.overlap or not is_var(eqn.invars[0]):
            continue
        (value,), array = eqn.outvars, eqn.invars[0]
        readers = set(level.readers(value))
        if not readers or -1 in readers:
            continue
        parts = {k: _part(windows, level.eqns[k]) for k in readers}
        if all(part is not None for part in parts.values()):
            yield from (_slice(level.eqns[k], k, part, array) for k, part in parts.items() if part is not None)
        elif len(readers) == 1:
            of_loops.setdefault(readers.pop(), {})[value] = windows, array
    for place, given in of_loops.items():
        edit = _loop(level, place, given)
        if edit is not None:
            yield edit


def _part(windows: Windows, eqn: JaxprEqn) -> Windows | None:
    """What an equation slices of windows, if that is a slice of the array."""
    if eqn.primitive.name != "slice":
        return None
    starts, shape = eqn.params["start_indices"], eqn.outvars[0].aval.shape
    strides = eqn.params["strides"] or (1,) * len(shape)
    start = tuple(at + sum(map(int.__mul__, s, starts)) for at, s in zip(windows.start, windows.steps, strict=True))
    steps = tuple(
        tuple(0 if n == 1 else by * stride for n, by, stride in zip(shape, s, strides, strict=True))
        for s in windows.steps
    )
    part = replace(windows, shape=shape, start=start, steps=steps)
    return part if 0 not in shape and part.is_slice else None


def _slice(eqn: JaxprEqn, place: int, part: Windows, array: Var) -> Edit:
    builder = Builder(eqn)
    (out,) = builder.call(part.cut, array)
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: builder.as_weak_as(eqn.outvars[0], out)}, here)


def _loop(level: Level, place: int, given: Mapping[Var, tuple[Windows, Var]]) -> Edit | None:
    """The loop at `place` that reads arrays in place of those windows of them of which it reads slices."""
    loop = as_loop(level.eqns[place])
    if loop is None:
        return None
    readers = users(loop.body)
    ours = {
        v: given[c]
        for v, c in zip(loop.body_consts, loop.consts, strict=True)
        if is_var(c) and c in given and loop.consts.count(c) == 1 and _are_parts(loop, v, given[c][0], readers.get(v))
    }
    return _reading_arrays(place, loop, ours) if ours else None


def _are_parts(loop: Loop, v: Var, windows: Windows, readers: list[int] | None) -> bool:
    return bool(readers) and all(k >= 0 and _axis(loop.body.eqns[k], v, windows) is not None for k in readers or ())


def _axis(eqn: JaxprEqn, v: Var, windows: Windows) -> int | None:
    """The dimension of windows of which an equation takes one entry, which is a slice without gaps of the array."""
    if eqn.primitive.name != "dynamic_slice" or any(x is v for x in eqn.invars[1:]):
        return None
    sizes = eqn.params["slice_sizes"]
    cut = [d for d, n in enumerate(windows.shape) if sizes[d] != n]
    if len(cut) != 1 or sizes[cut[0]] != 1:
        return None
    part = windows.at(cut[0], 0)
    plain = part.is_slice and not part.backward and all(s == 1 for s in part.strides)
    return cut[0] if plain else None


def _reading_arrays(place: int, loop: Loop, ours: Mapping[Var, tuple[Windows, Var]]) -> Edit:
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
    env: dict[Var, Atom] = {}
    for v, c in zip(loop.body_consts, loop.consts, strict=True):
        env[v] = new.const(ours[v][1] if v in ours else c)
    setters = []
    for init, var, final in zip(loop.init, loop.body_carry, loop.finals, strict=True):
        env[var], set_next = new.keep_carry(init, named(final))
        setters.append(set_next)
    for v, x in zip(loop.body_xs, loop.xs, strict=True):
        env[v] = new.x(x) if is_var(x) else x
    for eqn in loop.body.eqns:
        source = eqn.invars[0] if eqn.primitive.name == "dynamic_slice" else None
        if source is not None and is_var(source) and source in ours:
            windows = ours[source][0]
            axis = _axis(eqn, source, windows)
            assert axis is not None, "all readers were looked at"
            read = env[source], substitute(eqn.invars[1 + axis], env)
            (env[eqn.outvars[0]],) = new.body.call(lambda x, k, w=windows, d=axis: _entry(w, d, x, k), *read)
        else:
            new.body.eqns.append(copy_equation(eqn, env))
    for set_next, x in zip(setters, loop.next_carry, strict=True):
        set_next(substitute(x, env))
    for y, v in zip(loop.ys, loop.body_ys, strict=True):
        new.y(substitute(v, env), named(y))
    gone = frozenset((place,))
    return Edit(place, gone, new.equations(), {}, gone)


def _entry(windows: Windows, axis: int, x: Any, index: Any) -> Any:
    """The windows at one index of an axis, as a `dynamic_slice` has them: an index beyond the ends is moved."""
    part = windows.at(axis, 0)
    index = lax.clamp(np.asarray(0, index.dtype), index, np.asarray(windows.shape[axis] - 1, index.dtype))
    index = lax.convert_element_type(index, np.int32)
    starts = [
        index * np.int32(steps[axis]) + np.int32(first) for first, steps in zip(part.first, windows.steps, strict=True)
    ]
    cut = lax.dynamic_slice(x, starts, part.counts, allow_negative_indices=False)
    return lax.expand_dims(part.arranged(cut), [axis])
