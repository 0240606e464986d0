"""The way back over a loop: cotangents of what went in, from those of what came out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

from .scan_steps import Scan
from .steps import Loop, Values, entries, put

_jax.exclude_from_tracebacks(__file__)


def only(values: Values, chosen: Sequence[bool]) -> list[Any]:
    """The values that are chosen."""
    return [x for x, yes in zip(values, chosen, strict=True) if yes]


def filled(values: Values, chosen: Sequence[bool], some: Values) -> list[Any]:
    """The values, with `some` in place of those that are chosen."""
    rest = iter(some)
    return [next(rest) if yes else x for x, yes in zip(values, chosen, strict=True)]


@dataclass(frozen=True, eq=False)
class Back:
    """The way back over a loop.

    Attributes:
        loop: the loop.
        moved: for each of its arguments, whether the cotangent is wanted.
        given: for each of its results, whether it has a cotangent.
    """

    loop: Loop
    moved: tuple[bool, ...]
    given: tuple[bool, ...]

    def step(self, consts: Values, carry: Values, x: Values, carry_ct: Values, ys_ct: Values) -> Any:
        """The cotangents of constants, carry and inputs of one step."""
        whole = [*consts, *carry, *x]

        def of_moved(*some: Any) -> list[Any]:
            carry, ys = self.loop.step(*self.loop.split(filled(whole, self.moved, some)))
            return only([*carry, *ys], self.given)

        found = list(jax.vjp(of_moved, *only(whole, self.moved))[1]([*carry_ct, *ys_ct]))
        first = sum(self.moved[: self.loop.consts])
        to = first + len(carry_ct)
        return found[:first], found[first:to], found[to:]

    def _parts(self, values: Values, given: Values) -> Any:
        """Constants, inputs, cotangents of the carry and of stacked results, and zeros to add those of constants to."""
        consts, _, xs = self.loop.split(values)
        carries = sum(self.given[: self.loop.carries])
        sums = [jnp.zeros_like(x) for x in only(consts, self.moved[: self.loop.consts])]
        return consts, xs, list(given[:carries]), list(given[carries:]), sums

    def replayed(self, values: Values, kept: Values, given: Values) -> list[Any]:
        """Computed with what `loop.with_snapshots` kept; snapshots are set anew on the way.

        Args:
            values: what the loop was given.
            kept: what it kept.
            given: the cotangents of results that have one.
        """
        loop, place = self.loop, self.loop.placement
        consts, xs, carry_ct, ys_ct, sums = self._parts(values, given)
        found, last = loop.snapshots(kept), place.snapshots - 1
        reach = jnp.asarray(place.reach)

        def advance(carry: Any, start: Any, stop: Any) -> Any:
            def step(state: Any) -> Any:
                i, carry = state
                return i + 1, loop.step(consts, carry, entries(xs, loop.place(i)))[0]

            return lax.while_loop(lambda state: state[0] < stop, step, (start, carry))[1]

        def set_next(i: Any, state: Any) -> Any:
            carry, top, steps, kept = state
            at = steps[top]
            to = at + place.to_next(i - at + 1, place.snapshots - top, reach)
            carry = advance(carry, at, to)
            kept = put(kept, carry, found.slots[top + 1])
            return carry, top + 1, lax.dynamic_update_index_in_dim(steps, to, top + 1, 0), kept

        def back(i: Any, x: Values, y_ct: Values, state: Any) -> Any:
            top, steps, kept, carry_ct, sums = state
            state = entries(kept, found.slots[top]), top, steps, kept
            if last:
                has_room = lambda state: (i - state[2][state[1]] >= 2) & (state[1] < last)  # noqa: E731
                state = lax.while_loop(has_room, partial(set_next, i), state)
            carry, top, steps, kept = state
            carry = advance(carry, steps[top], i)
            consts_ct, carry_ct, x_ct = self.step(consts, carry, x, carry_ct, y_ct)
            sums = [a + b for a, b in zip(sums, consts_ct, strict=True)]
            return (jnp.where(steps[top] == i, top - 1, top), steps, kept, carry_ct, sums), x_ct

        state = found.top, found.steps, found.kept, carry_ct, sums
        if isinstance(loop, Scan):
            every = loop.place(np.arange(loop.placement.steps, dtype=np.int32))
            state, xs_ct = lax.scan(
                lambda state, of_step: back(*of_step, state), state, (every, xs, ys_ct), reverse=not loop.reverse
            )
        else:
            xs_ct = []
            _, state = lax.while_loop(
                lambda state: state[0] >= 0,
                lambda state: (state[0] - 1, back(state[0], (), (), state[1])[0]),
                (found.count - 1, state),
            )
        *_, carry_ct, sums = state
        return [*sums, *carry_ct, *xs_ct]

    def over_carries(self, carries: Values, values: Values, given: Values, run: Callable[..., list[Any]]) -> list[Any]:
        """Computed from the carries of all steps of a scan, by a loop that `run` runs."""
        loop = self.loop
        assert isinstance(loop, Scan)
        consts, xs, carry_ct, ys_ct, sums = self._parts(values, given)
        parts = [consts, carry_ct, sums, carries, xs, ys_ct]
        ends = np.cumsum([len(part) for part in parts])

        def body(*args: Any) -> list[Any]:
            consts, carry_ct, sums, carry, x, y_ct = (
                args[end - len(part) : end] for part, end in zip(parts, ends, strict=True)
            )
            consts_ct, carry_ct, x_ct = self.step(consts, carry, x, carry_ct, y_ct)
            return [*carry_ct, *(a + b for a, b in zip(sums, consts_ct, strict=True)), *x_ct]

        whole = [
            map(jax.typeof, (*consts, *carry_ct, *sums)),
            map(_jax.row_of, map(jax.typeof, (*carries, *xs, *ys_ct))),
        ]
        way = replace(
            loop,
            body=_jax.traced(body, [aval for part in whole for aval in part]),
            carries=len(carry_ct) + len(sums),
            reverse=not loop.reverse,
        )
        found = run(way, *(x for part in parts for x in part))
        to = len(carry_ct)
        return [*found[to : to + len(sums)], *found[:to], *found[to + len(sums) :]]
