"""What the analysis of one equation along one axis can say: `Mapped`, `Reduced` or `No`.

An axis of `length` T is followed through a program in *blocks* of consecutive indices. The block of a value keeps
all dimensions of the value; only the dimension that holds the axis shrinks, from `outer * T * inner` to
`outer * size * inner`. No dimension number ever changes, and a block of size 1 is one index with a unit dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .monoid import Monoid


@dataclass(frozen=True, slots=True)
class Axis:
    """Where an axis stands in a value: in dimension `dim`, whose size is `outer * T * inner` in row-major order.

    `outer == inner == 1` is the plain case; `[T, B, V] -> [T * B, V]` gives `Axis(0, inner=B)`.
    """

    dim: int
    outer: int = 1
    inner: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the dimension holds this axis and nothing else."""
        return self.outer == 1 and self.inner == 1

    def resize(self, shape: Sequence[int], size: int) -> tuple[int, ...]:
        """`shape` of a whole value, with `size` indices of the axis left."""
        resized = list(shape)
        resized[self.dim] = self.outer * size * self.inner
        return tuple(resized)

    def moved(self, by: int) -> "Axis":
        """The same axis, so many dimensions further: in the values that a loop stacks, and in those of its steps."""
        return Axis(self.dim + by, self.outer, self.inner)

    def fits(self, shape: Sequence[int], length: int) -> bool:
        """Whether a value of this shape can hold an axis of this length here."""
        return 0 <= self.dim < len(shape) and shape[self.dim] == self.outer * length * self.inner


@dataclass(frozen=True, slots=True)
class Mapped:
    """The equation is the same computation once per index of the axis.

    Attributes:
        ins: where the axis stands in each input. None: the input does not vary along it, every block takes it whole.
            An input that the question left open and that has an `Axis` here must be given as a block.
        outs: where the axis stands in each output. None: that output does not vary along it.
        block: `block(start, size, *inputs) -> list of output blocks`, plain JAX code. `start` (int or int32 scalar,
            possibly traced) is the first index of the block, `size` (int) how many indices it holds.
        uses_start: whether `block` looks at `start`.
    """

    ins: tuple[Axis | None, ...]
    outs: tuple[Axis | None, ...]
    block: Callable[..., list[Any]]
    uses_start: bool = False


@dataclass(frozen=True, slots=True)
class Onto:
    """A block whose partial result need not exist: it is put into the accumulator, which starts as an operand.

    Attributes:
        operand: the input that the accumulator starts as, in the accumulator's dtype. It does not vary along the axis.
        dtype: of the accumulator.
        put: `put(accumulator, *inputs)`, the accumulator after one more block.
    """

    operand: int
    dtype: Any
    put: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The axis disappears: blocks give partial results, which combine to the outputs.

    Attributes:
        ins: as in `Mapped`.
        monoid: how two partial results combine.
        block: `block(start, size, *inputs) -> list of partial results`, in accumulator form: this may have more
            parts than the equation has outputs (argmax: value and index), or wider types (bfloat16 sums in float32).
        finish: `finish(*accumulated) -> list of outputs` of the equation.
        uses_start: whether `block` looks at `start`.
        onto: the same without partial results, which are as large as the whole; it is for all blocks, one by one.
        alone: `alone(*inputs) -> list of outputs`, of a block that all else adds nothing to: in the equation's own
            types. XLA's CPU backend cannot run every product of bfloat16 in float32. None: `block`, then `finish`.
    """

    ins: tuple[Axis | None, ...]
    monoid: Monoid
    block: Callable[..., list[Any]]
    finish: Callable[..., list[Any]]
    uses_start: bool = False
    onto: Onto | None = None
    alone: Callable[..., list[Any]] | None = None


@dataclass(frozen=True, slots=True)
class No:
    """The equation is not known to be the same computation per index; `reason` is a sentence."""

    reason: str
