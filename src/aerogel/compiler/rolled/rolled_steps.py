"""A stretch of repeated equations that may be one loop: what each operand of a step is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, DropVar, JaxprEqn, Literal, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost.sizes import elements
from ..program import is_var
from ..record import record
from ..rules.spelling import PLUMBING, different_param
from ..same import literal_key
from ..zeros import is_zero

Starts = tuple[int, ...]
Place = tuple[int, int]  # of a value in a step: which equation makes it, and which result it is
# What fuses with its like: a chain of such steps alone is one kernel, whose values stay in registers.
FUSED = frozenset(ELEMENTWISE) | PLUMBING | {"slice", "iota"}
# What XLA computes again for each kernel that reads it, where it stores others: a value that n steps are read behind
# costs n steps. It is so for sines of any number of entries; of cheaper steps, those of many entries cost less than a
# loop, which keeps fewer of them in registers.
MADE_AGAIN = PLUMBING | frozenset(
    "abs add add_any clamp concatenate convert_element_type cos eq floor ge gt integer_pow le lt max min mul ne neg "
    "pad select_n sign sin slice square stack sub unstack".split()
)
MOST_CHEAP = 1024
JOINS = ("concatenate", "pad", "stack")
# How often a step reads each entry that it is handed, from which on joined steps are made again and again.
SHARED = 1.4
LOOKS = PLUMBING | {"slice", "unstack"}

ADDS = ("add", "add_any")
# Steps that each add a number are as fast unrolled, up to this many and more; their gradient then writes windows.
FEWEST_NUMBERS = 64
PRODUCTS = frozenset(("conv_general_dilated", "dot_general"))


class Refused(ValueError):
    """The reason why steps are no loop."""


class Settled(Refused):
    """The reason why they are none wherever the first begins."""


@record
class Inner:
    """What the same step has made."""

    place: Place


@record
class Carried:
    """What the step before has made; in the first step, `init`."""

    place: Place
    init: Atom


@record
class Numbers:
    """Literals, one for each step."""

    values: np.ndarray
    like: Literal


@record
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

    def turned(self, steps: int) -> "Entries":
        """The same parts, from the last step to the first."""
        first = tuple(a + (steps - 1) * by for a, by in zip(self.first, self.move, strict=True))
        return replace(self, first=first, move=tuple(-by for by in self.move))

    def stacked(self, steps: int) -> Callable[[Any], Any]:
        """What makes of the array all parts on a leading axis, in place of the one along which they lie.

        Of a whole array it makes nothing: XLA copies one that goes into a loop in another shape.
        """
        d = self.axis
        assert d is not None, "parts that are no entries"
        first, move = self.first[d], self.move[d]
        last = first + (steps - 1) * move
        start = [*self.first[:d], min(first, last), *self.first[d + 1 :]]
        stop = [a + n for a, n in zip(self.first, self.sizes, strict=True)]
        stop[d] = max(first, last) + 1
        strides = [abs(move) if k == d else 1 for k in range(len(stop))]

        def make(x: Any) -> Any:
            whole = (start, stop, abs(move)) == ([0] * x.ndim, list(x.shape), 1)
            found = x if whole else lax.slice(x, start, stop, strides)
            found = lax.rev(found, (d,)) if move < 0 else found
            return found if d == 0 else jnp.moveaxis(found, d, 0)

        return make


Operand = Inner | Carried | Numbers | Entries | Var | Literal


@record
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
    if maker is not None and maker.primitive.name == "unstack":
        return _unstacked(maker, x)
    if maker is None or maker.primitive.name != "slice" or set(maker.params["strides"] or (1,)) != {1}:
        return None
    array, start, stop = maker.invars[0], maker.params["start_indices"], maker.params["limit_indices"]
    return Part(array, tuple(start), tuple(b - a for a, b in zip(start, stop, strict=True))) if is_var(array) else None


def _unstacked(maker: JaxprEqn, x: Var) -> Part | None:
    (array,), axis = maker.invars, maker.params["axis"]
    place = next(k for k, v in enumerate(maker.outvars) if v is x)
    shape = array.aval.shape
    start = tuple(place if d == axis else 0 for d in range(len(shape)))
    return Part(array, start, tuple(1 if d == axis else n for d, n in enumerate(shape))) if is_var(array) else None


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
        if isinstance(first, Literal) and all(map(is_var, xs[1:])):
            return self._begun(first, xs)
        if len(set(map(is_var, xs))) != 1:
            raise Refused("only some steps read a number")
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
            try:  # `x[i + 1]` of one step is `x[i]` of the next
                return self._entries(xs)
            except Refused:
                return Carried(before[1], first)
        raise Refused("a step reads what another than the one before it has made")

    def _begun(self, first: Literal, xs: Sequence[Atom]) -> Carried:
        """A sum that the first step begins."""
        places = [self.made.get(x) for x in xs[1:] if is_var(x)]
        if places[0] is None or places != [(r, places[0][1]) for r in range(len(places))]:
            raise Refused("only the first step reads a number")
        return Carried(places[0][1], first)

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
    def carries(self) -> dict[Place, Atom]:
        """What is handed from step to step, and what the first one is given.

        Raises:
            Refused: the first step reads it in two places as two values.
        """
        found: dict[Place, Atom] = {}
        for operand in (x for xs in self.operands for x in xs):
            if isinstance(operand, Carried) and found.setdefault(operand.place, operand.init) is not operand.init:
                raise Refused("the first step starts from several values where others read one")
        return found

    def is_zeros(self, x: Atom) -> bool:
        """Whether a value is an array of zeros."""
        maker = self._makers.get(x) if is_var(x) else None
        return maker is not None and maker.primitive.name == "broadcast_in_dim" and is_zero(maker.invars[0], set())

    @property
    def reads_loops(self) -> bool:
        """Whether they read what an earlier loop has stacked."""
        stacked = {part.array for part in self._parts.values()}
        return any(isinstance(x, Entries) and x.array in stacked for xs in self.operands for x in xs)

    @property
    def reads_falling(self) -> bool:
        """Whether most of what the steps read at places of their own lies from the last step to the first."""
        read = {x for xs in self.operands for x in xs if isinstance(x, Entries) and x.axis is not None}
        return sum(math.prod(x.sizes) * (1 if x.move[x.axis or 0] < 0 else -1) for x in read) > 0

    @property
    def has_places(self) -> bool:
        """Whether a step reads or writes at places of its own."""
        read = [(eqn, x) for eqn, xs in zip(self.steps[0], self.operands, strict=True) for x in xs]
        # What a number is compared with, or added to, is an array that all steps read; products of it are one product.
        multiply = any(eqn.primitive.name in PRODUCTS for eqn in self.steps[0])
        return bool(self.moving) or any(
            isinstance(x, Entries)
            or (
                isinstance(x, Numbers)
                and x.values.dtype.kind in "iu"
                and (multiply or eqn.primitive.name not in ELEMENTWISE or not eqn.outvars[0].aval.shape)
            )
            for eqn, x in read
        )

    @cached_property
    def waiting(self) -> set[Place]:
        """What a step cannot make before the step before it is done."""
        found: set[Place] = set()
        for e, (eqn, xs) in enumerate(zip(self.steps[0], self.operands, strict=True)):
            if any(isinstance(x, Carried) or (isinstance(x, Inner) and x.place in found) for x in xs):
                found |= {(e, o) for o in range(len(eqn.outvars))}
        return found

    @property
    def carries_products(self) -> bool:
        """Whether a product in a step waits for the step before."""
        return any(self.steps[0][e].primitive.name in PRODUCTS for e, _ in self.waiting)

    @property
    def recurs(self) -> bool:
        """Whether an array that a step hands on depends on what it was handed."""
        return any(place in self.waiting and init.aval.shape for place, init in self.carries.items())

    @property
    def begin_in_another(self) -> bool:
        """Whether a step hands on an array that waits for nothing: the next could make it, if it began earlier."""
        return any(place not in self.waiting and init.aval.shape for place, init in self.carries.items())

    @property
    def is_one_kernel(self) -> bool:
        """Whether each step is computed entry by entry from the one before."""
        adds = self.adds_numbers and len(self.steps) >= FEWEST_NUMBERS
        return bool(self.carries) and not adds and all(eqn.primitive.name in FUSED for eqn in self.steps[0])

    def are_made_again(self, is_read: Callable[[Var], bool]) -> bool:
        """Whether XLA makes each step anew for all that is read of the steps behind it: so it does with cheap ones."""
        eqns = self.steps[0]
        if any(v.aval.dtype.itemsize == 2 for eqn in eqns for v in eqn.outvars):
            return False  # 20 steps of 64 numbers in bfloat16 took 1.3 times as long as a loop
        if not self.carries or not all(eqn.primitive.name in MADE_AGAIN for eqn in eqns):
            return False
        if any(eqn.primitive.name in JOINS for eqn in eqns) and self._shared > SHARED:
            return True  # for each entry of the next step's vector
        widest = max((elements(v.aval) for eqn in eqns for v in eqn.outvars), default=0)
        if widest > MOST_CHEAP and not any(eqn.primitive.name in ("sin", "cos") for eqn in eqns):
            return False
        read = sum(any(is_read(v) for eqn in step for v in eqn.outvars) for step in self.steps)
        return 2 * read > len(self.steps)

    @property
    def _shared(self) -> float:
        """How often a step reads each entry of what it is handed, on average."""
        readers: dict[tuple[bool, Place], list[int]] = {}
        for e, xs in enumerate(self.operands):
            for x in xs:
                if isinstance(x, Inner | Carried):
                    readers.setdefault((isinstance(x, Carried), x.place), []).append(e)

        def reads(handed: bool, place: Place, count: int) -> int:
            total = 0
            for e in readers.get((handed, place), ()):
                eqn = self.steps[0][e]
                looks = eqn.primitive.name in LOOKS
                parts = (reads(False, (e, o), elements(v.aval)) for o, v in enumerate(eqn.outvars))
                total += sum(parts) if looks else count
            return total

        sizes = {place: elements(init.aval) for place, init in self.carries.items()}
        return sum(reads(True, place, n) for place, n in sizes.items()) / max(1, sum(sizes.values()))

    @property
    def adds_numbers(self) -> bool:
        """Whether all that a step does with what it is handed, numbers, is to add to them."""
        if any(self.steps[0][e].primitive.name == "slice" and not self.is_entry(e) for e in self.moving):
            return False
        for e, (eqn, xs) in enumerate(zip(self.steps[0], self.operands, strict=True)):
            handed = [x for x in xs if isinstance(x, Carried)]
            if handed and (eqn.primitive.name not in ADDS or handed[0].place != (e, 0) or eqn.outvars[0].aval.shape):
                return False
        return not any(isinstance(x, Inner) and x.place in self.carries for xs in self.operands for x in xs)

    def is_entry(self, e: int) -> bool:
        """Whether a slicing equation of a step reads an entry of an array."""
        moving, sizes = self.moving[e][1], _sizes(self.steps[0][e])
        return [n for n, by in zip(sizes, moving, strict=True) if by] == [1]


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
