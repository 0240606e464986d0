"""`jax.lax.while_loop`, plain and keeping snapshots: how many steps it makes is known when it has ended."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import ClosedJaxpr

from .scan_steps import Scan
from .steps import Loop, Snapshots, Values, made, put

_jax.exclude_from_tracebacks(__file__)


@dataclass(frozen=True, eq=False)
class While(Loop):
    """`jax.lax.while_loop`, of at most `placement.steps` steps.

    In a batch of loops that end at different steps the first axes of carries, as many as the condition has, are mapped.
    Those that have ended wait for the others.

    Attributes:
        cond: its constants, carry -> whether to go on.
        unused: how many constants it has; they come first.
    """

    cond: ClosedJaxpr
    unused: int

    def _each_goes_on(self, consts: Values, carry: Values) -> Any:
        return _jax.jaxpr_as_fun(self.cond)(*consts[: self.unused], *carry)[0]

    def goes_on(self, consts: Values, carry: Values) -> Any:
        """Whether there is one more step."""
        return self._each_goes_on(consts, carry).any()

    def step(self, consts: Values, carry: Values, x: Values) -> tuple[list[Any], list[Any]]:
        """The next carry; that of a loop that has ended stays."""
        after, ys = super().step(consts, carry, x)
        mapped = range(len(self.cond.out_avals[0].shape))
        if mapped:
            on = self._each_goes_on(consts, carry)
            pairs = zip(after, carry, strict=True)
            after = [jnp.where(lax.broadcast_in_dim(on, new.shape, mapped), new, old) for new, old in pairs]
        return after, ys

    def plain(self, *args: Any) -> list[Any]:
        """`jax.lax.while_loop`."""
        consts, init, _ = self.split(args)
        return lax.while_loop(
            lambda carry: self.goes_on(consts, carry), lambda carry: self.step(consts, carry, ())[0], init
        )

    def with_snapshots(self, *args: Any) -> list[Any]:
        """One of each `stride` carries is kept. When there is room for no more, every other one goes."""
        consts, init, _ = self.split(args)
        room = self.placement.snapshots
        kept = [lax.broadcast(x, (room,)) for x in init]

        def to_next(state: Any) -> Any:
            i, _, carry, count, stride, slots, kept = state
            if room > 1:
                is_full = count == room
                slots = jnp.where(is_full, jnp.concatenate([slots[::2], slots[1::2]]), slots)
                count = jnp.where(is_full, (room + 1) // 2, count)
            else:
                is_full = True
            stride = jnp.where(is_full, 2 * stride, stride)
            if room > 1:
                kept = put(kept, carry, slots[count])  # it is free, and stays so if `i` is no multiple
                count = jnp.where(i == count * stride, count + 1, count)

            def step(state: Any) -> Any:
                i, _, carry = state
                carry, _ = self.step(consts, carry, ())
                return i + 1, self.goes_on(consts, carry), carry

            i, on, carry = lax.while_loop(
                lambda state: (state[0] < count * stride) & state[1], step, (i, jnp.bool_(True), carry)
            )
            return i, on, carry, count, stride, slots, kept

        one = jnp.int32(1)
        state = jnp.int32(0), self.goes_on(consts, init), init, one, one, made(range(room)), kept
        i, _, carry, count, stride, slots, kept = lax.while_loop(lambda state: state[1], to_next, state)
        return [*self.typed(carry), *kept, slots, count, stride, i]

    def snapshots(self, kept: Values) -> Snapshots:
        """They are equally far apart. The last ones go where going back is shorter with room for others."""
        *kept, slots, count, stride, total = kept
        place, number = self.placement, made(range(len(slots)))
        free, reach, steps = place.snapshots - number, jnp.asarray(place.reach), stride * number
        to_each = place.to_go(jnp.broadcast_to(stride, number.shape), free, reach)
        to_go = jnp.cumsum(to_each) - to_each + place.to_go(total - steps, free, reach)
        top = jnp.argmin(jnp.where(number < count, to_go, np.inf)).astype(np.int32)
        return Snapshots(top, steps, slots, kept, total)

    def as_scan(self) -> Scan:
        """The loop as one over all the steps that there may be: those too many do nothing."""

        def body(*args: Any) -> list[Any]:
            consts, carry, _ = self.split(args)
            on = self.goes_on(consts, carry)
            return lax.cond(on, lambda: self.step(consts, carry, ())[0], lambda: carry)

        avals = [*self.cond.in_avals[: self.unused], *self.body.in_avals]
        return Scan(_jax.traced(body, avals), self.consts, self.carries, self.placement, False, 1)
