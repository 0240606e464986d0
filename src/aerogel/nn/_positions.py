"""Positions in a sequence, as rotations and as waves."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module

from ._check import check_last_axes
from ._init import default_dtype
from ._layer_norm import narrowed, widened
from ._ranks import aligned


def _even(size: int, function: str) -> int:
    if size % 2:
        raise UsageError(argument="embedding_size", got=size, wanted="an even number", function=function)
    return size


def _angles(positions: Any, size: int, theta: float) -> jax.Array:
    """[..., size // 2]: each position times geometrically falling frequencies, from 1 to about 1 / theta."""
    dtype = default_dtype(None)
    frequencies = theta ** (-jnp.arange(0, size, 2, dtype=dtype) / size)
    at = jnp.asarray(positions, dtype)[..., None]
    return at * aligned(at, frequencies)


class RotaryPositionalEmbedding(Module):
    """Pairs of entries rotated by angles that grow with the position (Su et al. 2021): [..., time, embedding_size].

    Entry i is paired with entry i + embedding_size / 2, as in Equinox and GPT-NeoX.

    Args:
        embedding_size: size of the last axis, even: of one head.
        theta: the base of the frequencies.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.RotaryPositionalEmbedding(2)(jnp.array([[1.0, 0.0], [1.0, 0.0]])).round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
    """

    embedding_size: int
    theta: float

    def __init__(self, embedding_size: int, theta: float = 10_000.0) -> None:
        self.embedding_size = _even(embedding_size, "RotaryPositionalEmbedding")
        self.theta = theta

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """`x` rotated for positions 0, 1, ... along its last axis but one; `key` is not used."""
        check_last_axes(self, x, "time", self.embedding_size)
        return self.rotate(x, jnp.arange(jnp.shape(x)[-2]))

    def rotate(self, x: Any, positions: Any) -> jax.Array:
        """`x`, [..., embedding_size], rotated for positions, which broadcast against its axes but the last."""
        angles = _angles(positions, self.embedding_size, self.theta)
        one, two = jnp.split(widened(x), 2, axis=-1)
        cos, sin = (aligned(one, wave(angles).astype(one.dtype)) for wave in (jnp.cos, jnp.sin))
        return narrowed(jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1), x)


class SinusoidalPositionalEmbedding(Module):
    """The input plus waves of its position (Vaswani et al. 2017): [..., time, embedding_size].

    Args:
        embedding_size: size of the last axis, even. Even entries hold sines, odd ones cosines.
        theta: the base of the frequencies.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.SinusoidalPositionalEmbedding(2)(jnp.zeros((2, 2))).round(3).tolist()
    [[0.0, 1.0], [0.8410000205039978, 0.5400000214576721]]
    """

    embedding_size: int
    theta: float

    def __init__(self, embedding_size: int, theta: float = 10_000.0) -> None:
        self.embedding_size = _even(embedding_size, "SinusoidalPositionalEmbedding")
        self.theta = theta

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """`x` plus the waves of positions 0, 1, ... along its last axis but one; `key` is not used."""
        check_last_axes(self, x, "time", self.embedding_size)
        return x + aligned(x, narrowed(self.waves(jnp.arange(jnp.shape(x)[-2])), x))

    def waves(self, positions: Any) -> jax.Array:
        """The waves of positions: from [...] to [..., embedding_size]."""
        angles = _angles(positions, self.embedding_size, self.theta)
        return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(*angles.shape[:-1], self.embedding_size)
