"""Where a loop keeps snapshots of its carry, so that it can be gone through backwards in little memory.

To go back over a step its carry is needed: it is computed again from the nearest snapshot before it, and on the way
snapshots that are free now are set anew. With `s` snapshots, and no step computed more than `r` times, at most
binomial(s + r, r) steps can be gone over, and one placement reaches that (Griewank and Walther, "Revolve", 2000).
"""

from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from aerogel._errors import UsageError

LONGEST = 256

Choice = Literal["all", "sqrt", "log"] | int


@dataclass(frozen=True)
class Placement:
    """Snapshots for a loop of `steps` steps; one of the `snapshots` is the first carry."""

    steps: int
    snapshots: int

    @cached_property
    def reach(self) -> np.ndarray:
        """How many steps `s` snapshots reach if none is computed more than `r` times: `reach[s, r]`, cut at `steps`."""
        # Two snapshots are the fewest that leave a choice. Beyond `LONGEST` the best one is not asked for.
        often = max(self._often(max(2, self.snapshots)), min(self._often(2), LONGEST))
        rows = [[min(comb(s + r, r), self.steps) for r in range(often + 1)] for s in range(self.snapshots + 1)]
        return np.array(rows, np.int32)

    def _often(self, snapshots: int) -> int:
        return next(r for r in range(1, self.steps + 2) if comb(snapshots + r, r) >= self.steps)

    def to_next(self, left: Any, free: Any, reach: Any) -> Any:
        """How many steps to go from a snapshot until the next one is set.

        Args:
            left: how many steps there are from that snapshot on: at least 3.
            free: how many snapshots are left, that one among them: at least 2.
            reach: `self.reach`, as an array that `left` and `free` can index.
        """
        often = (reach[free] < left).sum(dtype=np.int32)
        most, after = reach[free, often - 1], left - reach[free - 1, often - 1]
        return (np if isinstance(reach, np.ndarray) else jnp).minimum(most, after)

    def to_go(self, left: Any, free: Any, reach: Any) -> Any:
        """How many steps are made to go back over `left` ones; arguments are arrays like those of `to_next`."""
        often = jnp.maximum((reach[free] < left[..., None]).sum(-1), 1)
        steps, most = left.astype(np.float32), reach[free, often - 1].astype(np.float32)
        several = often * steps - most * (free + often) / (free + 1)
        return jnp.where(left < 2, 0.0, jnp.where(free == 1, steps * (steps - 1) / 2, several))

    @cached_property
    def first(self) -> list[int]:
        """The steps whose carries are kept when the loop runs forward."""
        at, places = np.int32(0), [0]
        while self.steps - at > 2 and len(places) < self.snapshots:
            at = at + self.to_next(self.steps - at, self.snapshots - len(places) + 1, self.reach)
            places.append(int(at))
        return places


def is_count(value: Any) -> bool:
    """Whether a value is an integer, Python's or NumPy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def placement(choice: Choice, steps: int, function: str) -> Placement:
    """The placement for what a user wrote as `checkpoint`.

    Raises:
        UsageError: it is none of the choices.
    """
    known = choice in ("all", "sqrt", "log") if isinstance(choice, str) else is_count(choice) and choice > 0
    if not known:
        wanted = ("all", "sqrt", "log") if isinstance(choice, str) else "'all', 'sqrt', 'log' or a positive number"
        raise UsageError(argument="checkpoint", got=choice, wanted=wanted, function=function)
    if choice == "sqrt":  # two times over each step
        count = next(k for k in range(1, steps + 2) if comb(k + 2, 2) >= steps)
    elif choice == "log":
        count = steps.bit_length()
    else:
        count = steps if choice == "all" else int(choice)
    return Placement(steps, max(1, min(count, steps - 1)))
