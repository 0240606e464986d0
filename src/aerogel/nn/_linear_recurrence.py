"""Recurrences that are linear in the state: all steps at once, in logarithmic depth."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module

from ._adapter import Parameter, value_of
from ._check import check_broadcasts, check_last_axes
from ._init import default_dtype
from ._layer_norm import narrowed, widened
from ._lengths import of_those_there, which_are_there
from ._ranks import aligned


def linear_recurrence(decay: Any, x: Any, state: Any = None, *, reverse: bool = False) -> jax.Array:
    """All `h[t] = decay[t] * h[t - 1] + x[t]` along the last axis but one: [..., time, size], by an associative scan.

    Args:
        decay: broadcasts against `x`; one for a whole batch is multiplied once for all of it.
        x: [..., time, size].
        state: h before the first step, [..., size]; zeros if None.
        reverse: whether time runs backwards.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.linear_recurrence(0.5, jnp.ones((3, 1)))[:, 0].tolist()
    [1.0, 1.5, 1.75]
    """
    dtype = jnp.result_type(decay, x) if state is None else jnp.result_type(decay, x, state)
    x = jnp.broadcast_to(jnp.asarray(x, dtype), jnp.broadcast_shapes(jnp.shape(decay), jnp.shape(x)))
    # Axes along which all decays are alike stay short: products of decays are made once for a batch.
    decay = aligned(x, jnp.asarray(decay, dtype))
    decays = jnp.broadcast_to(decay, (*decay.shape[:-2], *x.shape[-2:]))
    if state is not None and x.shape[-2]:
        first = -1 if reverse else 0
        x = x.at[..., first, :].add(decays[..., first, :] * state)

    def joined(one: Any, two: Any) -> Any:
        return one[0] * two[0], two[0] * one[1] + two[1]

    return jax.lax.associative_scan(joined, (decays, x), reverse=reverse, axis=x.ndim - 2)[1]


class LinearRecurrentUnit(Module):
    """A diagonal linear state-space layer, the LRU of Orvieto et al. (2023): from [..., time, size] to the same shape.

    `h[t] = a * h[t - 1] + sqrt(1 - |a|²) * B x[t]` with complex states and decays, `y[t] = Re(C h[t]) + D * x[t]`.
    Returns the results of all steps and the last state.

    Attributes:
        log_rate, log_phase: [state_size]: `a = exp(-exp(log_rate) + i exp(log_phase))`.
        into: [2, state_size, size], real and imaginary part of B.
        out: [2, size, state_size], of C.
        skip: [size], D.

    Args:
        size: of input and result.
        state_size: the number of complex states.
        r_min: |a| is drawn above this.
        r_max: |a| is drawn below this.
        max_phase: below this the angle of a is drawn.
        dtype: of the parameters.
        key: for the parameters.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> outs, state = ag.nn.LinearRecurrentUnit(3, 8, key=jax.random.key(0))(jnp.ones((5, 20, 3)))
    >>> outs.shape, state.shape, state.dtype.name
    ((5, 20, 3), (5, 8), 'complex64')
    """

    log_rate: Parameter
    log_phase: Parameter
    into: Parameter
    out: Parameter
    skip: Parameter
    size: int
    state_size: int

    def __init__(
        self,
        size: int,
        state_size: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        *,
        dtype: Any = None,
        key: jax.Array,
    ) -> None:
        dtype = default_dtype(dtype)
        of_rate, of_phase, of_into, of_out, of_skip = jax.random.split(key, 5)
        tiny = 1e-6  # keeps both logarithms finite
        # |a|² is uniform, so that the states fill the ring evenly.
        squares = jax.random.uniform(of_rate, (state_size,), dtype, r_min**2 + tiny, r_max**2 - tiny)
        self.log_rate = jnp.log(-0.5 * jnp.log(squares))
        self.log_phase = jnp.log(jax.random.uniform(of_phase, (state_size,), dtype, tiny, max_phase))
        self.into = jax.random.normal(of_into, (2, state_size, size), dtype) / math.sqrt(2 * max(size, 1))
        self.out = jax.random.normal(of_out, (2, size, state_size), dtype) / math.sqrt(max(state_size, 1))
        self.skip = jax.random.normal(of_skip, (size,), dtype)
        self.size = size
        self.state_size = state_size

    def __call__(
        self, x: Any, state: Any = None, *, lengths: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """The results and the last state for `x`, from `state`, [..., state_size], or zeros; `key` is not used.

        Where sequences end at their own `lengths`, integers [...], the last state is that at their ends, and results
        behind them are zeros, as for `Recurrent`.
        """
        check_last_axes(self, x, "time", self.size)
        if state is not None:
            check_broadcasts(self, state, (*jnp.shape(x)[:-2], self.state_size), jnp.ndim(x) - 1, "state")
        is_there = None if lengths is None else which_are_there(self, lengths, jnp.shape(x), -2)
        wide = widened(x)  # complex numbers have no narrower parts
        if is_there is not None:
            wide = of_those_there(is_there, wide)
        rate, phase, into, out, skip = (
            value_of(each).astype(wide.dtype)
            for each in (self.log_rate, self.log_phase, self.into, self.out, self.skip)
        )
        rate, phase = jnp.exp(rate), jnp.exp(phase)
        size, gain = jnp.exp(-rate), jnp.sqrt(-jnp.expm1(-2 * rate))
        decay = jax.lax.complex(size * jnp.cos(phase), size * jnp.sin(phase))
        entering = jax.lax.complex(*(aligned(wide, gain) * (wide @ each.T) for each in into))
        states = linear_recurrence(decay, entering, state)
        seen = states.real @ out[0].T - states.imag @ out[1].T + aligned(wide, skip) * wide
        start = jnp.zeros_like(entering.sum(-2)) if state is None else jnp.asarray(state)
        if not jnp.shape(x)[-2]:  # no step: the state is what it was
            return narrowed(seen, x), start
        if is_there is None:
            return narrowed(seen, x), states[..., -1, :]
        count = is_there.sum(-2, keepdims=True)
        last = jnp.take_along_axis(states, jnp.maximum(count - 1, 0), -2)[..., 0, :]
        return narrowed(of_those_there(is_there, seen), x), jnp.where(count[..., 0, :] > 0, last, start)
