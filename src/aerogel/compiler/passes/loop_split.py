"""Loops of which only some steps matter are run in parts: the others compute no outputs.

The last output, the last few, every k-th one: the natural program computes and stacks all of them. And the gradient of
such a program feeds its backward loop zeros for all other steps.
"""

from typing import Any, ClassVar

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..exactness import Exactness
from ..fusion.split import Split, in_order, parts_of
from ..fusion.window import Window
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..pipeline import Context
from ..program import Builder, Program, count_equations, where
from ..record import record
from ..report import Decision
from .residual_choice import choose_residuals

NAME = "loop-split"
# A body is compiled once more for each kind of part; larger ones are left.
LARGEST_BODY = 1000
# At least this share of the steps must be quiet, and the outputs they need not make at least this large.
QUIET_SHARE = 0.5
SMALLEST_OUTPUT = 65_536  # bytes


@record
class LoopSplit:
    """The pass. Exact: each step computes what it did, or nothing that is read; zeros times values are zeros."""

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its loops in parts, and a decision for each."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions, context)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision], context: Context) -> Jaxpr:
    """Rounds: what a backward loop needs less of, its forward loop need not make.

    What a backward loop needs at all is chosen before it goes to pieces. A loop whose outputs another one reads step by
    step waits for that one, as long as any other is split.
    """
    strict = Exactness.FINITE not in context.allowed
    done: set[Var] = set()
    chosen = False
    while any(eqn.primitive.name == "scan" for eqn in jaxpr.eqns):
        level = Level(jaxpr)
        found: list[tuple[int, Loop, _Needs]] = []
        for place, eqn in enumerate(jaxpr.eqns):
            if eqn.primitive.name != "scan" or all(v in done or isinstance(v, DropVar) for v in eqn.outvars):
                continue
            loop = as_loop(eqn)
            if loop is None or loop.length < 4 or count_equations(loop.body) > LARGEST_BODY:
                done.update(eqn.outvars)
                continue
            needs = _needs(level, loop, strict)
            if needs is not None:
                found.append((place, loop, needs))
        if not chosen and any(needs.pads for _, _, needs in found):
            chosen, before = True, jaxpr
            jaxpr = choose_residuals(jaxpr, context.machine, decisions, parts_from=0)
            if jaxpr is not before:
                continue
        found = [one for one in found if not one[2].waits] or found
        if not found:
            break
        decisions += [_decision(loop.eqn, needs) for _, loop, needs in found]
        done.update(v for _, loop, _ in found for v in loop.eqn.outvars)
        edits = [_split(level, place, loop, needs) for place, loop, needs in found]
        jaxpr, _ = apply_edits(jaxpr, edits)
    return jaxpr


@record
class _Needs:
    """Why a loop can be split: the full steps, the slices that read outputs, the pads that make inputs."""

    window: Window
    slices: dict[int, list[int]]  # position of an output -> places of the slices that read it
    pads: dict[int, JaxprEqn]  # position of an input -> the equation that pads it
    whole: tuple[int, ...]  # positions of outputs that are read of all steps, by other loops or the caller
    waits: bool  # a loop that reads an output step by step may yet be split


def _needs(level: Level, loop: Loop, strict: bool) -> _Needs | None:
    windows: list[Window] = []
    slices: dict[int, list[int]] = {}
    whole: list[int] = []
    waits = False
    for k, y in enumerate(loop.ys):
        read_by = level.readers(y)
        of_y = [None if place == -1 else _window_of_slice(level.eqns[place], y, loop.length) for place in read_by]
        slices[k] = []
        if None not in of_y:
            slices[k] = read_by
            windows += [w for w in of_y if w is not None]
            continue
        others = [place for place, window in zip(read_by, of_y, strict=True) if window is None]
        if not _jax.is_number(y.aval.dtype) or not all(p == -1 or _reads_back(level.eqns[p], loop) for p in others):
            return None
        whole.append(k)
        waits |= any(p != -1 and y in Loop(level.eqns[p]).xs for p in others)
    pads: dict[int, JaxprEqn] = {}
    if not strict:
        for k, x in enumerate(loop.xs):
            maker = level.maker(x)
            window = None if maker is None else _window_of_pad(maker, loop.length)
            if maker is not None and window is not None:
                pads[k] = maker
                windows.append(window)
    window = _union(windows)
    # One at the least: a loop of which all steps are read would be split again and again.
    if window is None or loop.length - window.count < max(1, QUIET_SHARE * loop.length):
        return None
    pads = {k: eqn for k, eqn in pads.items() if _window_of_pad(eqn, loop.length) == window}
    saved = sum(nbytes(y.aval) for k, y in enumerate(loop.ys) if slices[k]) + sum(
        nbytes(eqn.outvars[0].aval) for eqn in pads.values()
    )
    if saved < SMALLEST_OUTPUT or not (pads or any(slices.values())):
        return None
    return _Needs(window, slices, pads, tuple(whole), waits)


def _reads_back(eqn: JaxprEqn, loop: Loop) -> bool:
    """Whether a loop reads outputs of `loop` as a gradient does: in the other direction."""
    return eqn.primitive.name == "scan" and Loop(eqn).reverse != loop.reverse


def _window_of_slice(eqn: JaxprEqn, y: Var, length: int) -> Window | None:
    """The steps that a static slice over the leading axis reads; the other axes whole or not, they do not matter."""
    if eqn.primitive.name != "slice" or eqn.invars[0] is not y:
        return None
    p = eqn.params
    stride = p["strides"][0] if p["strides"] else 1
    count = eqn.outvars[0].aval.shape[0]
    return Window(p["start_indices"][0], stride if count > 1 else 1, count) if 0 < count < length else None


def _window_of_pad(eqn: JaxprEqn, length: int) -> Window | None:
    """The steps whose entries of a padded value are not zero."""
    if eqn.primitive.name != "pad" or np.any(getattr(eqn.invars[1], "val", 1)):
        return None
    (low, high, interior), *others = ((int(a), int(b), int(c)) for a, b, c in eqn.params["padding_config"])
    count = eqn.invars[0].aval.shape[0]
    if any(any(o) for o in others) or low < 0 or high < 0 or count == 0 or count == length:
        return None
    return Window(low, interior + 1 if count > 1 else 1, count)


def _union(windows: list[Window]) -> Window | None:
    """One window that holds all; None if there is no good one."""
    if not windows:
        return None
    if all(w == windows[0] for w in windows):
        return windows[0]
    if any(w.stride != 1 for w in windows):
        return None
    start = min(w.start for w in windows)
    end = max(w.start + w.count for w in windows)
    return Window(start, 1, end - start)


def _decision(eqn: JaxprEqn, needs: _Needs) -> Decision:
    loop = Loop(eqn)
    quiet = loop.length - needs.window.count
    saved = sum(nbytes(y.aval) for k, y in enumerate(loop.ys) if needs.slices[k])
    saved += sum(nbytes(pad.outvars[0].aval) for pad in needs.pads.values())
    what = (
        f"{quiet} of {loop.length} steps compute no outputs"
        if not needs.pads
        else (f"{quiet} of {loop.length} steps of a gradient are given only zeros")
    )
    exactness = Exactness.FINITE if needs.pads else Exactness.BITWISE
    return Decision(NAME, what, where(eqn), True, "nobody reads them", 0, 2 * saved, saved, exactness)


def _split(level: Level, index: int, loop: Loop, needs: _Needs) -> Edit:
    split = Split(loop, needs.window, {k: eqn.invars[0] for k, eqn in needs.pads.items()}, needs.whole)
    carry, whole, pieces = split.run(parts_of(needs.window, loop.length, loop.reverse))
    results: dict[Var, Atom] = dict(zip(loop.finals, carry, strict=True))
    results.update((loop.ys[k], buffer) for k, buffer in whole.items())
    builder = Builder(loop.eqn)
    gone: set[int] = {index}
    for k in range(len(loop.ys)):
        if not needs.slices[k]:
            continue
        entries = in_order(builder, pieces[k])
        for place in needs.slices[k]:
            gone.add(place)
            eqn = level.eqns[place]
            (results[eqn.outvars[0]],) = _slice_again(builder, eqn, entries, needs.window, loop.length)
    results = {v: x for v, x in results.items() if not isinstance(v, DropVar)}
    return Edit(index, frozenset(gone), [*split.eqns, *builder.eqns], results, frozenset(gone))


def _slice_again(builder: Builder, eqn: JaxprEqn, entries: Atom, window: Window, length: int) -> list[Atom]:
    """The slice `eqn` of what is left of the output."""
    p = eqn.params
    mine = _window_of_slice(eqn, eqn.invars[0], length)  # type: ignore[arg-type]
    assert mine is not None
    first = (mine.start - window.start) // window.stride
    stride = max(1, mine.stride // window.stride)
    strides = p["strides"] or (1,) * len(p["start_indices"])
    rest = list(zip(p["start_indices"], p["limit_indices"], strides, strict=True))[1:]

    def again(x: Any) -> Any:
        starts = (first, *(a for a, _, _ in rest))
        limits = (first + (mine.count - 1) * stride + 1, *(b for _, b, _ in rest))
        return lax.slice(x, starts, limits, (stride, *(c for _, _, c in rest)))

    return builder.call(again, entries)
