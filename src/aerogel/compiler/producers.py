"""What a loop reads step by step, and whether it can be made in the step instead of beforehand."""

from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from .axes import Axis, Mapped, along_output
from .loop import LoopBuilder
from .program import is_var, producers, users
from .region import Window

# Made again in every step rather than read from memory: one or two machine instructions an element.
CHEAP = frozenset(
    "add sub mul neg abs max min and or not eq ne lt le gt ge select_n sign convert_element_type broadcast_in_dim "
    "reshape squeeze expand_dims iota transpose integer_pow square copy stop_gradient add_any is_finite floor".split()
)


class Producers:
    """Gives a loop under construction the entries of values from outside, one step at a time.

    A value that is only a broadcast, a counter, or cheap arithmetic on such, is computed in the step: it need not
    exist as a whole.
    """

    def __init__(self, jaxpr: Jaxpr, new: LoopBuilder):
        self.jaxpr = jaxpr
        self.new = new
        self.made_by = producers(jaxpr)
        self.read_by = users(jaxpr)
        self._blocks: dict[tuple[Var, Axis, Window], Atom] = {}

    def step(self, x: Var) -> Atom:
        """The entry of a value with time in front."""
        window = Window(0, 1, self.new.length)
        if self.can_make(x, Axis(0)):
            (step,) = self.new.body.call(lambda b: lax.squeeze(b, [0]), self.block(x, Axis(0), window))
            return step
        return self.new.x(x)

    def block(self, x: Atom, axis: Axis | None, window: Window) -> Atom:
        """The block of one step of `x`, which has time at `axis`; the whole of it where `axis` is None."""
        if isinstance(x, Literal):
            return x
        if axis is None:
            return self.new.const(x)
        key = (x, axis, window)
        if key not in self._blocks:
            made = self._make(x, axis, window) if self.can_make(x, axis) else None
            self._blocks[key] = self._read(x, axis, window) if made is None else made
        return self._blocks[key]

    def can_make(self, x: Var, axis: Axis) -> bool:
        """Whether a step can make its block of `x` from less than it would read."""
        return self._smaller(x, axis, depth=0) < x.aval.size

    def _smaller(self, x: Atom, axis: Axis | None, depth: int) -> int:
        """Elements of stacked values that must be read when `x` is made step by step as far as that is cheap."""
        if axis is None or isinstance(x, Literal):
            return 0
        found = self._answer(x, axis)
        if found is None or depth > 16:
            return x.aval.size
        eqn, answer = found
        total = sum(self._smaller(v, place, depth + 1) for v, place in zip(eqn.invars, answer.ins, strict=True))
        return min(total, x.aval.size)

    def _answer(self, x: Var, axis: Axis) -> tuple[JaxprEqn, Mapped] | None:
        index = self.made_by.get(x)
        if index is None:
            return None
        eqn = self.jaxpr.eqns[index]
        if eqn.primitive.name not in CHEAP or eqn.effects:
            return None
        answer = along_output(eqn, {0: axis}, x.aval.shape[axis.dim] // (axis.outer * axis.inner))
        return (eqn, answer) if isinstance(answer, Mapped) else None

    def _make(self, x: Var, axis: Axis, window: Window) -> Atom:
        found = self._answer(x, axis)
        assert found is not None
        eqn, answer = found
        ins = [self.block(v, place, window) for v, place in zip(eqn.invars, answer.ins, strict=True)]
        index = [self.new.index()] if answer.uses_start else []

        def one_step(*values: Any) -> list[Any]:
            if not answer.uses_start:
                return list(answer.block(np.int32(0), 1, *values))
            return list(answer.block(position(values[0], window, self.new.length), 1, *values[1:]))

        like, self.new.body.like = self.new.body.like, eqn
        (block,) = self.new.body.call(one_step, *index, *ins)
        self.new.body.like = like
        return block

    def _read(self, x: Var, axis: Axis, window: Window) -> Atom:
        """The block as an input of the loop, or, for some steps only, read from the whole at the step's place."""
        length = self.new.length
        if window.count == length:
            (rows,) = self.new.before.call(lambda v: blocks_in_front(v, axis, length), x)
            assert is_var(rows)
            return self.new.x(rows)
        (rows,) = self.new.before.call(lambda v: blocks_in_front(v, axis, window.count), x)
        whole = self.new.const(rows)

        def read(rows: Any, t: Any) -> Any:
            return lax.dynamic_index_in_dim(rows, position(t, window, length), 0, keepdims=False)

        (block,) = self.new.body.call(read, whole, self.new.index())
        return block


def position(t: Any, window: Window, length: int) -> Any:
    """The number of step `t` among the steps of the window; within range also for steps outside of it."""
    if window.count == length:
        return t
    offset = t - np.int32(window.start)
    row = offset if window.stride == 1 else lax.div(offset, np.int32(window.stride))
    return lax.clamp(np.int32(0), row, np.int32(window.count - 1))


def blocks_in_front(x: Any, axis: Axis, length: int) -> Any:
    """`x` as blocks of one index each on a new leading dimension: the inverse of `stack_blocks`."""
    before, after = x.shape[: axis.dim], x.shape[axis.dim + 1 :]
    block = axis.resize(x.shape, 1)
    if axis.outer == 1 and all(n == 1 for n in before):
        return lax.reshape(x, (length, *block))
    split = lax.reshape(x, (*before, axis.outer, length, axis.inner, *after))
    place = len(before) + 1
    order = (place, *range(place), *range(place + 1, split.ndim))
    return lax.reshape(lax.transpose(split, order), (length, *block))
