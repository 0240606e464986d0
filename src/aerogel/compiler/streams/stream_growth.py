"""How a stream grows from one value along one axis, and in which loop each of its equations can run."""

from collections import deque
from collections.abc import Collection
from functools import partial

from aerogel._jax import Atom, Var

from ..axes import Axis, Mapped, No, Reduced, along, along_output
from ..cost import nbytes
from ..level import Level
from ..loop import is_float
from ..program import is_var
from .streams import MOVES, Search, Stream, is_light

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
WHOLE = "it reads the whole of a large value"
LAST_BIT = "it looks for a maximum that another loop found: the last bit may differ"


def grow(
    level: Level, large: frozenset[Var], scope: frozenset[int], seed: Var, axis: Axis, reduced: Collection[str] | None
) -> Stream:
    """The stream along the axis that stands at `axis` in `seed`.

    Args:
        level: its equations.
        large: the values that should not exist.
        scope: the places of the equations that may belong to it.
        seed: one of the large values.
        axis: plain: a dimension of it.
        reduced: the names of the monoids that may combine blocks; all, if None.
    """
    stream = Stream(level, seed.aval.shape[axis.dim], set(large), {seed: axis})
    waiting = deque(_around(level, seed))
    while waiting:
        place = waiting.popleft()
        if place not in scope or place in stream.answers or place in stream.refusals:
            continue
        answer = _answer(stream, place)
        if answer is None:
            continue
        if isinstance(answer, Reduced):
            results = level.eqns[place].outvars
            stream.large.difference_update(
                v for v in results if 2 * nbytes(v.aval) <= nbytes(seed.aval) and v not in stream.where
            )
        reason = answer.reason if isinstance(answer, No) else _conflict(stream, place, answer, reduced)
        if reason is not None:
            stream.refusals[place] = reason
            continue
        assert not isinstance(answer, No)
        stream.answers[place] = answer
        for v in _learnt(stream, place, answer):
            waiting.extend(_around(level, v))
    _order(stream)
    _compare(stream)
    return stream


def _around(level: Level, v: Var) -> list[int]:
    maker = level.made_by.get(v)
    return [*([] if maker is None else [maker]), *(k for k in level.readers(v) if k >= 0)]


def _answer(stream: Stream, place: int) -> Mapped | Reduced | No | None:
    """What an equation is, as far as the axis is known to stand in what it reads or makes."""
    eqn = stream.level.eqns[place]
    known = stream.where
    outs = {k: known[v] for k, v in enumerate(eqn.outvars) if v in known}
    ins = {k: known[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in known and _in_blocks(stream, x)}
    if outs and not ins:
        return along_output(eqn, outs, stream.length)
    answer = along(eqn, ins, stream.length) if ins else None
    across = isinstance(answer, Mapped) and any(answer.outs[k] != axis for k, axis in outs.items())
    if across and stream.large.isdisjoint(filter(is_var, eqn.invars)):
        # What is small, and repeated along the axis by one reader and across it by another (the labels of a loss in
        # both directions), is read as a whole.
        other = along_output(eqn, outs, stream.length)
        return other if isinstance(other, Mapped) else answer
    return answer


def _in_blocks(stream: Stream, x: Var) -> bool:
    return x in stream.large or stream.level.made_by.get(x) in stream.answers


def _conflict(stream: Stream, place: int, answer: Mapped | Reduced, reduced: Collection[str] | None) -> str | None:
    """Why an answer does not fit what is known already: large values stand in one way."""
    eqn, known = stream.level.eqns[place], stream.where
    for x, axis in zip(eqn.invars, answer.ins, strict=True):
        if is_var(x) and x in stream.large and axis != known.get(x, axis):
            return "it reads a large value along another axis"
        if is_var(x) and x in stream.large and axis is None:
            return WHOLE
    if isinstance(answer, Mapped):
        return next(filter(None, map(partial(_misfit, stream), eqn.outvars, answer.outs)), None)
    if any(v in stream.large for v in eqn.outvars):
        return "what it makes of all blocks is large itself"
    if reduced is not None and answer.monoid.name not in reduced:
        return f"`{answer.monoid.name}` over blocks is left: numerics is strict, or a derivative is to come"
    return None


def _misfit(stream: Stream, v: Var, axis: Axis | None) -> str | None:
    """Why the blocks of a result do not fit."""
    if v in stream.where and stream.where[v] != axis:
        return "it makes a value along another axis"
    if axis is not None:
        return None
    if v in stream.large:
        return "it makes the whole of a large value"
    return "it makes a value that all blocks share, and that is read" if stream.level.readers(v) else None


def _learnt(stream: Stream, place: int, answer: Mapped | Reduced) -> list[Var]:
    """The values of which an answer tells where the axis stands."""
    eqn, new = stream.level.eqns[place], list[Var]()
    for x, axis in zip(eqn.invars, answer.ins, strict=True):
        if is_var(x) and axis is not None and x not in stream.where and x in stream.large:
            stream.where[x] = axis
            new.append(x)
    if isinstance(answer, Mapped):
        for v, axis in zip(eqn.outvars, answer.outs, strict=True):
            if axis is not None and v not in stream.where:
                stream.where[v] = axis
                new.append(v)
    return new


def _order(stream: Stream) -> None:
    """The phase of each equation, the same for what its blocks are read in.

    What comes out of a loop as a whole (a reduction over the blocks, or what something outside makes of its results)
    is there for the next one.
    """
    ready: dict[Var, int] = {}
    for place, eqn in enumerate(stream.level.eqns):
        if place not in stream.answers:
            phase = max((_ready_outside(stream, ready, x) for x in eqn.invars if is_var(x)), default=0)
            ready.update(dict.fromkeys(eqn.outvars, phase))
            continue
        inputs = [
            ready.get(x, 0) if stream.maker(x, axis) is not None else _ready_outside(stream, ready, x)
            for x, axis in stream.reads(place)
            if is_var(x)
        ]
        phase = max(inputs, default=0)
        stream.phase[place] = phase
        blocks = stream.blocks_of(place)
        ready.update({v: phase if v in blocks else phase + 1 for v in eqn.outvars})


def _compare(stream: Stream) -> None:
    """Notes what large values are compared with, and refuses what another loop made of the blocks."""
    for place in stream.answers:
        eqn = stream.level.eqns[place]
        if eqn.primitive.name not in COMPARISONS:
            continue
        for k, x in enumerate(eqn.invars):
            if is_var(x) and x in stream.large and is_float(x.aval.dtype) and _moved(stream, x) is None:
                _compare_with(stream, place, x, 1 - k)


def _compare_with(stream: Stream, place: int, x: Var, operand: int) -> None:
    """Notes how the comparison at `place` of `x` with another operand is made in the loops."""
    eqn = stream.level.eqns[place]
    search = _moved(stream, eqn.invars[operand])
    if search is None:
        if eqn.primitive.name == "eq":
            _note_compared(stream, place, eqn.invars[operand], stream.answers[place].ins[operand])
    elif eqn.primitive.name == "eq" and stream.level.eqns[search[0]].invars[0] is x:
        stream.searches[place] = Search(operand, *search)
    else:
        stream.refusals[place] = LAST_BIT


def _moved(stream: Stream, x: Atom) -> tuple[int, tuple[int, ...]] | None:
    """The minimum or maximum over all blocks that `x` is, by the place of its equation, and what moves it there."""
    moves: list[int] = []
    while is_var(x) and (place := stream.level.made_by.get(x)) is not None:
        answer = stream.answers.get(place)
        if isinstance(answer, Reduced):
            return (place, tuple(moves[::-1])) if answer.monoid.name in ("min", "max") else None
        if stream.level.eqns[place].primitive.name not in MOVES:
            return None
        moves.append(place)
        x = stream.level.eqns[place].invars[0]
    return None


def _note_compared(stream: Stream, place: int, operand: Atom, axis: Axis | None) -> None:
    """Notes what the operand of a comparison is made of, as far as it is small."""
    stack = [(operand, axis)]
    seen: set[Var] = set()
    while stack:
        x, axis = stack.pop()
        maker = stream.level.made_by.get(x) if is_var(x) else None
        if maker is None or x in seen or x in stream.large:
            continue
        assert is_var(x)
        seen.add(x)
        if stream.maker(x, axis) is not None:
            stream.compared.add(x)
            stack += stream.reads(maker)
        elif isinstance(stream.answers.get(maker), Reduced):
            stream.refusals[place] = LAST_BIT
        elif is_light(stream.level.eqns[maker]):
            stack += [(y, None) for y in stream.level.eqns[maker].invars]


def _ready_outside(stream: Stream, ready: dict[Var, int], x: Var) -> int:
    """The first loop that can read the whole of `x`."""
    maker = stream.level.made_by.get(x)
    in_blocks = maker is not None and maker in stream.answers and x in stream.blocks_of(maker)
    return ready.get(x, 0) + (1 if in_blocks else 0)
