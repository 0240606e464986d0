"""`jax.lax.scan`, plain and keeping snapshots."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

from .steps import Loop, Snapshots, Values, entries, made, put, stack_of

_jax.exclude_from_tracebacks(__file__)


@dataclass(frozen=True, eq=False)
class Scan(Loop):
    """`jax.lax.scan`.

    Attributes:
        reverse: whether it begins at the end of the inputs.
        unroll: how many steps are written out in the plain form.
    """

    reverse: bool
    unroll: int

    def place(self, step: Any) -> Any:
        """From the end, if the loop begins there."""
        return np.int32(self.placement.steps - 1) - step if self.reverse else step

    def plain(self, *args: Any) -> list[Any]:
        """`jax.lax.scan`."""
        consts, init, xs = self.split(args)
        steps = self.placement.steps
        carry, ys = lax.scan(lambda carry, x: self.step(consts, carry, x), init, xs, steps, self.reverse, self.unroll)
        return [*carry, *ys]

    def with_snapshots(self, *args: Any) -> list[Any]:
        """A loop over snapshots, and in it one over the steps to the next."""
        consts, init, xs = self.split(args)
        starts = np.array(self.placement.first, np.int32)
        stops = np.append(starts[1:], np.int32(self.placement.steps))
        stacks = [stack_of(self.placement.steps, aval) for aval in self.body.out_avals[self.carries :]]

        def to_next(state: Any, bounds: Any) -> Any:
            def step(state: Any) -> Any:
                i, carry, stacks = state
                at = self.place(i)
                carry, ys = self.step(consts, carry, entries(xs, at))
                return i + 1, carry, put(stacks, ys, at)

            start, stop = bounds
            _, carry, stacks = lax.while_loop(lambda state: state[0] < stop, step, (start, *state))
            return (carry, stacks), state[0]

        (carry, stacks), kept = lax.scan(to_next, (init, stacks), (starts, stops))
        return [*self.typed([*carry, *stacks]), *kept]

    def snapshots(self, kept: Values) -> Snapshots:
        """They stand in order, and their steps are known."""
        first, count = self.placement.first, self.placement.snapshots
        return Snapshots(jnp.int32(count - 1), made(first), made(range(count)), list(kept), self.placement.steps)

    def keeping_carries(self) -> "Scan":
        """The loop whose results are the carries before each step."""

        def body(*args: Any) -> list[Any]:
            consts, carry, x = self.split(args)
            return [*self.step(consts, carry, x)[0], *carry]

        return replace(self, body=_jax.traced(body, self.body.in_avals))
