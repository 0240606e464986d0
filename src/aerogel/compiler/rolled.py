"""A stretch of repeated equations as one loop: what each operand of a step is, and the loop that follows from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, DropVar, JaxprEqn, Literal, Var

from .axes.elementwise import NAMES as ELEMENTWISE
from .loop import LoopBuilder
from .program import copy_equation, is_var
from .rules.spelling import PLUMBING, different_param
from .same import literal_key
from .streaming import scan_like

Starts = tuple[int, ...]
Place = tuple[int, int]  # of a value in a step: which equation makes it, and which result it is
# What fuses with its like: a chain of such steps alone is one kernel, whose values stay in registers.
FUSED = frozenset(ELEMENTWISE) | PLUMBING | {"slice", "iota"}

PRODUCTS = frozenset(("conv_general_dilated", "dot_general"))


class Refused(ValueError):
    """The reason why steps are no loop."""


class Settled(Refused):
    """The reason why they are none wherever the first begins."""


@dataclass(frozen=True)
class Inner:
    """What the same step has made."""

    place: Place


@dataclass(frozen=True)
class Carried:
    """What the step before has made; in the first step, `init`."""

    place: Place
    init: Var


@dataclass(frozen=True)
class Numbers:
    """Literals, one for each step."""

    values: np.ndarray
    like: Literal


@dataclass(frozen=True)
class Entries:
    """Parts of one array, one for each step, at places that move on by the same distance.

    Attributes:
        array: the array.
        first: where the part of the first step starts.
        move: how far each start is from the one before.
        sizes: of a part.
        shape: of what a step reads: dimensions of size 1 may be dropped.
    """

    array: Var
    first: Starts
    move: Starts
    sizes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def axis(self) -> int | None:
        """The dimension along which the parts are entries; None if they are more."""
        moving = [d for d, n in enumerate(self.move) if n]
        return moving[0] if len(moving) == 1 and self.sizes[moving[0]] == 1 else None

    def stacked(self, steps: int) -> Callable[[Any], Any]:
        """What makes of the array all parts on a leading axis."""
        d = self.axis
        assert d is not None, "parts that are no entries"
        first, move = self.first[d], self.move[d]
        last = first + (steps - 1) * move
        start = [*self.first[:d], min(first, last), *self.first[d + 1 :]]
        stop = [a + n for a, n in zip(self.first, self.sizes, strict=True)]
        stop[d] = max(first, last) + 1
        strides = [abs(move) if k == d else 1 for k in range(len(stop))]
        shape = (steps, *self.shape)

        def make(x: Any) -> Any:
            found = lax.slice(x, start, stop, strides)
            found = lax.rev(found, (d,)) if move < 0 else found
            return lax.reshape(jnp.moveaxis(found, d, 0), shape)

        return make


Operand = Inner | Carried | Numbers | Entries | Var | Literal


@dataclass(frozen=True)
class Part:
    """A value that is a part of an array: `shape` is the part's without some dimensions of size 1."""

    array: Var
    start: Starts
    sizes: tuple[int, ...]


def part_of(x: Var, makers: Mapping[Var, JaxprEqn]) -> Part | None:
    """The array of which a value is a part."""
    maker = makers.get(x)
    if maker is not None and maker.primitive.name == "squeeze":
        under = maker.invars[0]
        maker = makers.get(under) if is_var(under) else None
    if maker is None or maker.primitive.name != "slice" or set(maker.params["strides"] or (1,)) != {1}:
        return None
    array, start, stop = maker.invars[0], maker.params["start_indices"], maker.params["limit_indices"]
    return Part(array, tuple(start), tuple(b - a for a, b in zip(start, stop, strict=True))) if is_var(array) else None


class Steps:
    """Steps that may be one loop; asking for its parts raises `Refused` where they are none.

    Args:
        steps: the equations of each.
        makers: the equation that makes each value.
        parts: values of earlier loops that are entries of what these have stacked.
    """

    def __init__(
        self, steps: Sequence[Sequence[JaxprEqn]], makers: Mapping[Var, JaxprEqn], parts: Mapping[Var, Part]
    ) -> None:
        self.steps, self._makers, self._parts = steps, makers, parts
        self.made = {
            v: (r, (e, o))
            for r, step in enumerate(steps)
            for e, eqn in enumerate(step)
            for o, v in enumerate(eqn.outvars)
            if not isinstance(v, DropVar)
        }

    @cached_property
    def moving(self) -> dict[int, tuple[Starts, Starts]]:
        """The equations of a step that slice or pad at another place in each: the first place, and the distance."""
        found = {}
        for e, eqn in enumerate(self.steps[0]):
            like = [step[e] for step in self.steps]
            if eqn.primitive.name not in ("slice", "pad"):
                continue
            starts = [_start(one) for one in like]
            sizes = {_sizes(one) for one in like}
            if len(sizes) != 1:
                raise Refused("they slice parts of several sizes")
            move = _distance(starts)
            if any(move):
                if eqn.primitive.name == "pad" and any(_cuts(one) for one in like):
                    raise Refused("they cut off what they pad")  # the derivative of a padding does
                if set(eqn.params.get("strides") or (1,)) != {1}:
                    raise Refused("they slice with strides")
                found[e] = starts[0], move
        return found

    @property
    def derive_alike(self) -> bool:
        """Whether functions with derivatives of their own have the same ones in all steps: their rules are traced."""
        places = (e for e, eqn in enumerate(self.steps[0]) if eqn.primitive.name == "custom_jvp_call")
        return not any(different_param(self.steps[0][e], step[e]) for e in places for step in self.steps[1:])

    @cached_property
    def operands(self) -> list[list[Operand]]:
        """Of each equation of a step, what its operands are."""
        return [[self._operand(e, k) for k in range(len(eqn.invars))] for e, eqn in enumerate(self.steps[0])]

    def _operand(self, e: int, k: int) -> Operand:
        xs = [step[e].invars[k] for step in self.steps]
        first = xs[0]
        if isinstance(first, Literal):
            if len({literal_key(x) for x in xs}) == 1:
                return first
            values = [np.asarray(x.val, x.aval.dtype) for x in xs if isinstance(x, Literal)]
            return Numbers(np.stack(values), first)
        places = [self.made.get(x) for x in xs if is_var(x)]
        if set(places) == {None}:
            return first if all(x is first for x in xs) else self._entries(xs)
        own, before = places[0], places[1]
        if own is not None and places == [(r, own[1]) for r in range(len(xs))]:
            return Inner(own[1])
        if own is None and before is not None and places[1:] == [(r, before[1]) for r in range(len(xs) - 1)]:
            return Carried(before[1], first)
        raise Refused("a step reads what another than the one before it has made")

    def _entries(self, xs: Sequence[Atom]) -> Entries:
        parts = [self._parts.get(x) or part_of(x, self._makers) for x in xs if is_var(x)]
        first = parts[0]
        if first is None or any(p is None or p.array is not first.array or p.sizes != first.sizes for p in parts):
            raise Refused("each reads arrays of its own, which would have to be stacked")
        move = _distance([p.start for p in parts if p is not None])
        found = Entries(first.array, first.start, move, first.sizes, tuple(xs[0].aval.shape))
        if found.axis is None:
            raise Refused("they read parts of an array that are no entries of it")
        return found

    @property
    def carries(self) -> dict[Place, Var]:
        """What is handed from step to step, and what the first one is given.

        Raises:
            Refused: the first step reads it in two places as two values.
        """
        found: dict[Place, Var] = {}
        for operand in (x for xs in self.operands for x in xs):
            if isinstance(operand, Carried) and found.setdefault(operand.place, operand.init) is not operand.init:
                raise Refused("the first step starts from several values where others read one")
        return found

    @property
    def reads_loops(self) -> bool:
        """Whether they read what an earlier loop has stacked."""
        stacked = {part.array for part in self._parts.values()}
        return any(isinstance(x, Entries) and x.array in stacked for xs in self.operands for x in xs)

    @property
    def has_places(self) -> bool:
        """Whether a step reads or writes at places of its own."""
        operands = [x for xs in self.operands for x in xs]
        numbers = [x for x in operands if isinstance(x, Numbers)]
        return (
            bool(self.moving)
            or any(isinstance(x, Entries) for x in operands)
            or any(x.values.dtype.kind in "iu" for x in numbers)
        )

    @property
    def carries_products(self) -> bool:
        """Whether a product in a step waits for the step before."""
        late: set[Place] = set()
        for e, (eqn, xs) in enumerate(zip(self.steps[0], self.operands, strict=True)):
            if any(isinstance(x, Carried) or (isinstance(x, Inner) and x.place in late) for x in xs):
                if eqn.primitive.name in PRODUCTS:
                    return True
                late |= {(e, o) for o in range(len(eqn.outvars))}
        return False

    @property
    def is_one_kernel(self) -> bool:
        """Whether each step is computed entry by entry from the one before."""
        return bool(self.carries) and all(eqn.primitive.name in FUSED for eqn in self.steps[0])


def _start(eqn: JaxprEqn) -> Starts:
    if eqn.primitive.name == "slice":
        return tuple(eqn.params["start_indices"])
    return tuple(int(low) for low, _, _ in eqn.params["padding_config"])


def _cuts(pad: JaxprEqn) -> bool:
    """Whether a padding takes entries away."""
    return any(min(int(low), int(high)) < 0 for low, high, _ in pad.params["padding_config"])


def _sizes(eqn: JaxprEqn) -> tuple[int, ...]:
    return tuple(eqn.outvars[0].aval.shape)


def _distance(starts: Sequence[Starts]) -> Starts:
    moves = {tuple(b - a for a, b in zip(p, q, strict=True)) for p, q in pairwise(starts)}
    if len(moves) != 1:
        raise Refused("they read or write at places that follow no rule")
    return moves.pop()


@dataclass(frozen=True)
class Rolled:
    """The loop that stands for steps.

    Attributes:
        eqns: what prepares it, and the loop.
        results: for what the last step hands on, the loop's result.
        parts: for what else is read, which entry of which result it is.
        constants: arrays that the program has to hold for it.
    """

    eqns: list[JaxprEqn]
    results: dict[Var, Var]
    parts: dict[Var, Part]
    constants: dict[Var, np.ndarray]


def rolled(steps: Steps, is_read: Callable[[Var], bool]) -> Rolled:
    """The loop; `is_read` says whether a value is read by anything but the steps."""
    return _Rolling(steps, is_read).run()


class _Rolling:
    def __init__(self, steps: Steps, is_read: Callable[[Var], bool]) -> None:
        self.steps, self.is_read, self.count = steps, is_read, len(steps.steps)
        self.body = steps.steps[0]
        self.loop = LoopBuilder(scan_like(self.body[0]), self.count, False)
        self.values: dict[Place, Atom] = {}
        self.constants: dict[Var, np.ndarray] = {}

    def run(self) -> Rolled:
        """The loop, equation by equation of a step."""
        carries = {place: self.loop.carry(init) for place, init in self.steps.carries.items()}
        self.carried = {place: inside for place, (inside, _, _) in carries.items()}
        for e, eqn in enumerate(self.body):
            self._add(e, eqn)
        results: dict[Var, Var] = {}
        for (e, o), (_, set_next, final) in carries.items():
            set_next(self.values[e, o])
            results[self.steps.steps[-1][e].outvars[o]] = final
        parts = self._stacked(results)
        return Rolled(self.loop.equations(), results, parts, self.constants)

    def _add(self, e: int, eqn: JaxprEqn) -> None:
        operands = self.steps.operands[e]
        if e in self.steps.moving:
            made = self._moving(eqn, operands, *self.steps.moving[e])
        else:
            atoms = [self._atom(x) for x in operands]
            env: dict[Var, Atom] = {}
            self.loop.body.eqns.append(copy_equation(eqn.replace(invars=atoms), env))
            made = [env.get(v, v) for v in eqn.outvars]
        self.values.update({(e, o): x for o, x in enumerate(made)})

    def _atom(self, operand: Operand) -> Atom:
        match operand:
            case Inner(place):
                return self.values[place]
            case Carried(place):
                return self.carried[place]
            case Numbers():
                return self._number(operand)
            case Entries():
                return self._entry(operand)
            case Literal():
                return operand
            case _:
                return self.loop.const(operand)

    def _entry(self, entries: Entries) -> Var:
        (stacked,) = self.loop.before.call(entries.stacked(self.count), entries.array)
        assert is_var(stacked)
        return self.loop.x(stacked)

    def _number(self, numbers: Numbers) -> Atom:
        values = numbers.values
        affine = _affine(values)
        if affine is not None:
            scale, offset = affine
            (stacked,) = self.loop.before.call(
                lambda: lax.convert_element_type(
                    lax.iota(np.int32, len(values)) * np.int32(scale) + np.int32(offset), values.dtype
                )
            )
        else:
            stacked = _jax.new_var(_jax.ShapedArray(values.shape, values.dtype))
            self.constants[stacked] = values
        assert is_var(stacked)
        weak = bool(getattr(numbers.like.aval, "weak_type", False))
        entry = self.loop.x(stacked)
        if not weak:
            return entry
        return self.loop.body.call(lambda v: _jax.convert_element_type(v, values.dtype, True), entry)[0]

    def _moving(self, eqn: JaxprEqn, operands: Sequence[Operand], first: Starts, move: Starts) -> list[Atom]:
        """A slice or a padding at a place that moves from step to step."""
        shape = _sizes(eqn)
        x = operands[0]
        if eqn.primitive.name == "slice" and isinstance(x, Var):
            entries = Entries(x, first, move, shape, shape)
            if entries.axis is not None:
                return [self._entry(entries)]
        index = self.loop.index()

        def starts(i: Any) -> list[Any]:
            return [_affine_in(i, at, by) for at, by in zip(first, move, strict=True)]

        if eqn.primitive.name == "slice":
            return self.loop.body.call(lambda v, i: lax.dynamic_slice(v, starts(i), shape), self._atom(x), index)
        dtype = eqn.outvars[0].aval.dtype

        def padded(v: Any, fill: Any, i: Any) -> Any:
            return lax.dynamic_update_slice(lax.broadcast(fill.astype(dtype), shape), v, starts(i))

        return self.loop.body.call(padded, *(self._atom(one) for one in operands), index)

    def _stacked(self, results: Mapping[Var, Var]) -> dict[Var, Part]:
        """What is read of single steps, as entries of an output of the loop."""
        parts: dict[Var, Part] = {}
        for (e, o), x in self.values.items():
            read = [(r, v) for r, step in enumerate(self.steps.steps) if self.is_read(v := step[e].outvars[o])]
            read = [(r, v) for r, v in read if v not in results]
            if read:
                shape = tuple(x.aval.shape)
                y = self.loop.y(x)
                parts.update({v: Part(y, (r, *[0] * len(shape)), (1, *shape)) for r, v in read})
        return parts


def _affine_in(index: Any, offset: int, scale: int) -> Any:
    """`scale * index + offset`, by no more operations than it needs."""
    if not scale:
        return np.int32(offset)
    scaled = index if scale == 1 else index * np.int32(scale)
    return scaled if not offset else scaled + np.int32(offset)


def _affine(values: np.ndarray) -> tuple[int, int] | None:
    """`scale` and `offset`, if the values are `scale * i + offset`, with whole numbers, to the bit."""
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.all(np.abs(values.astype(np.float64)) < 2**24):
        return None
    offset = int(values[0])
    scale = int(values[1]) - offset
    want = (np.arange(len(values), dtype=np.int32) * scale + offset).astype(values.dtype)
    return (scale, offset) if want.tobytes() == values.tobytes() else None
