"""Sequences of their own lengths: which steps are there."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module

from ._check import check_broadcasts, check_integers


def which_are_there(layer: Module, lengths: Any, shape: tuple[int, ...], axis: int) -> jax.Array:
    """Whether each step is one of its sequence: booleans with the axes of `shape` but the last one, of size 1.

    Args:
        layer: that asks, for errors.
        lengths: integers, also a list of them, which broadcast against what `shape` has beside time and its last axis.
        shape: of the steps.
        axis: of time.

    Raises:
        InputError: the lengths are no integers, or do not broadcast.
    """
    lengths = jnp.asarray(lengths) if isinstance(lengths, list | tuple) else lengths
    check_integers(layer, lengths, "lengths")
    axis %= len(shape)
    batch = (*shape[:axis], *shape[axis + 1 : -1])
    check_broadcasts(layer, lengths, batch, len(batch), "array of lengths")
    lengths = jnp.broadcast_to(jnp.asarray(lengths), batch)
    time = jax.lax.broadcasted_iota(lengths.dtype, (*shape[:-1], 1), axis)
    return time < jnp.expand_dims(lengths, (axis, len(shape) - 1))


def of_those_there(is_there: jax.Array, x: jax.Array) -> jax.Array:
    """`x`, and zeros where nothing is there; a nan there reaches no gradient."""
    return jnp.where(is_there, x, jnp.zeros((), x.dtype))
