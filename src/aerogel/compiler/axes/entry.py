"""An entry of the table: the two questions, for one primitive."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..._jax import JaxprEqn
from .answer import Axis, Mapped, No, Reduced

Answer = Mapped | Reduced | No


def not_backwards(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    """The backward question for entries that answer only the forward one."""
    return No(f"`{eqn.primitive.name}` does not say where an axis of its output comes from")


@dataclass(frozen=True, slots=True)
class Entry:
    """Both functions get at least one axis, each of which fits its value.

    `nested` entries look into other programs: `along` gets a fourth argument, `after_differentiation`.
    """

    along: Callable[..., Answer]
    along_output: Callable[[JaxprEqn, Mapping[int, Axis], int], Mapped | No] = not_backwards
    nested: bool = False
