"""Steps that compute much of what all of them read, with little of their own: XLA's kernels of each are no slower.

A loop of them takes fewer kernels, which pays while starting one costs as much as running it. Of many entries it loses:
what a derivative reads of a step is stacked, where XLA computes it again in the kernel that reads it; and products of
one array with many are one product, where each stands for itself.
"""

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cached_property

from aerogel._jax import JaxprEqn, Literal, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost.sizes import elements
from ..joins import AXES as JOINS
from ..joins import joined_axis
from ..record import record
from .rolled_steps import FUSED, LOOKS, PRODUCTS, Carried, Entries, Inner, Operand, Place, Steps

# Entries of a value up to which a loop was faster (docs/explanation/reroll.md): where steps keep it for a derivative or
# multiply matrices, and elsewhere.
MOST_KEPT, MOST = 4096, 32768
LITTLE = 4  # times what a step reads at places of its own: a value of fewer entries is no more than that


class _Kind(IntEnum):
    """What a value is made of; the kinds in order, each with all before it."""

    SHARED = 0  # of what all steps read
    OWN = 1  # little, of what lies at the step's own place
    SCALED = 2  # a sum of products of the two
    OTHER = 3


REDUCERS = frozenset("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or".split())
SUMS = frozenset("add add_any sub".split())
LINEAR = LOOKS | frozenset("convert_element_type copy neg reduce_sum".split())
TIMES = PRODUCTS | {"mul"}


@record
class Kernels:
    """What XLA makes of steps that stay as they are.

    Attributes:
        steps: the steps.
        readers: the equations behind the steps that read a value; None stands for the results.
    """

    steps: Steps
    readers: Callable[[Var], Sequence[JaxprEqn | None]]

    @property
    def is_read_once(self) -> bool:
        """Whether each step is a part of the kernel that reads it: nothing of it is ever stored.

        So are slices that are read entry by entry, rows that are joined only to be summed up again, and what is made
        of arrays that all read, and read so by one equation. (Derivatives of slices are sums of paddings, which a loop
        makes into one.)
        """
        eqns = self.steps.steps[0]
        if self.steps.carries or any(eqn.primitive.name not in FUSED for eqn in eqns):
            return False
        readers = [self.readers(v) for eqn in eqns for v in eqn.outvars]
        kept = [eqn for found in readers for eqn in found]
        looks = all(eqn.primitive.name in LOOKS for eqn in eqns)
        once = all(len(found) < 2 for found in readers) and self._widest >= LITTLE * _own(self.steps)
        if (looks or once) and all(eqn is not None and eqn.primitive.name in ELEMENTWISE for eqn in kept):
            return True
        return all(eqn is not None and self._is_summed(eqn) for eqn in kept)

    @property
    def are_wide(self) -> bool:
        """Whether each computes much of what all read, with little of its own, and they are no contraction."""
        steps = self.steps
        if steps.reads_loops or steps.recurs:
            return False
        if not all(steps.steps[0][e].primitive.name == "slice" and steps.is_entry(e) for e in steps.moving):
            return False
        widest, little = self._widest, LITTLE * _own(steps)
        if widest < little:
            return False
        wide = [(eqn, v) for eqn, v in self._made if elements(v.aval) > MOST_KEPT]
        if any(self._is_joined(v) for _, v in wide):
            return False
        if any(None in self.readers(v) for _, v in wide):
            return True
        is_costly = any(eqn.primitive.name in PRODUCTS or self.readers(v) for eqn, v in wide)
        return widest > (MOST_KEPT if is_costly else MOST) and not _are_scaled(steps, little)

    @cached_property
    def _made(self) -> list[tuple[JaxprEqn, Var]]:
        """What a step computes, with the equations that do."""
        return [(eqn, v) for eqn in self.steps.steps[0] if eqn.primitive.name not in LOOKS for v in eqn.outvars]

    @cached_property
    def _widest(self) -> int:
        return max((elements(v.aval) for _, v in self._made), default=0)

    def _is_joined(self, v: Var) -> bool:
        """Whether a value is but one entry of an array of all steps' values, which exists with and without a loop."""
        readers = self.readers(v)
        return bool(readers) and all(eqn is not None and eqn.primitive.name in JOINS for eqn in readers)

    def _is_summed(self, eqn: JaxprEqn) -> bool:
        """Whether an equation joins what is then reduced to the size of one part."""
        axis, readers = joined_axis(eqn), self.readers(eqn.outvars[0])
        return (axis is not None and bool(readers)) and all(
            one is not None and one.primitive.name in REDUCERS and axis in one.params["axes"] for one in readers
        )


def _own(steps: Steps) -> int:
    """The entries of the largest part of an array that a step reads at a place of its own."""
    parts = [math.prod(x.sizes) for xs in steps.operands for x in xs if isinstance(x, Entries)]
    return max([1, *parts, *(elements(steps.steps[0][e].outvars[0].aval) for e in steps.moving)])


def _are_scaled(steps: Steps, little: int) -> bool:
    """Whether all that is large is a sum of products of what all read with what is a step's own: one contraction."""
    kinds: dict[Place, _Kind] = {}

    def kind(operand: Operand) -> _Kind:
        if isinstance(operand, Inner | Carried):
            return kinds.get(operand.place, _Kind.SHARED)
        return _Kind.SHARED if isinstance(operand, Var | Literal) else _Kind.OWN

    for _ in range(2):  # what is handed on is known the second time
        for e, (eqn, operands) in enumerate(zip(steps.steps[0], steps.operands, strict=True)):
            given = [_Kind.OWN] if e in steps.moving else [kind(x) for x in operands]
            for o, v in enumerate(eqn.outvars):
                made = _made(eqn, given, is_little=elements(v.aval) <= little)
                if made is _Kind.OTHER:
                    return False
                kinds[e, o] = made
    return True


def _made(eqn: JaxprEqn, given: list[_Kind], is_little: bool) -> _Kind:
    """The kind of an equation's results, from those of its operands."""
    name, most = eqn.primitive.name, max(given, default=_Kind.SHARED)
    if most is _Kind.SHARED or (name in LINEAR and not is_little):
        return most
    if is_little:
        return _Kind.OWN
    if name in TIMES or (name == "div" and given[1] is _Kind.OWN):
        return _Kind.SCALED
    return _Kind.SCALED if name in SUMS and _Kind.OWN not in given else _Kind.OTHER
