"""Positions as rotations."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, field
from aerogel.nn._init import default_dtype

from .._errors import CompatError


class RotaryPositionalEmbedding(Module):
    """Equinox's `RotaryPositionalEmbedding`; it takes leading axes too.

    Equinox keeps its table by size and dtype, so that there a second `theta` in one process may get the first one's
    angles; here each has its own.
    """

    embedding_size: int = field(static=True)
    theta: float = field(static=True, default=10_000.0)
    dtype: Any = field(static=True, default_factory=lambda: default_dtype(None))

    def __check_init__(self) -> None:
        if self.embedding_size < 0 or self.embedding_size % 2:
            raise CompatError(
                what="positions turn pairs of entries.",
                place="RotaryPositionalEmbedding, argument `embedding_size`",
                got=str(self.embedding_size),
                wanted="an even number",
                to_fix="pass an even number",
            )

    @staticmethod
    def rotate_half(x: jax.Array) -> jax.Array:
        """The second half with its sign changed, then the first half."""
        one, two = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([-two, one], axis=-1)

    @staticmethod
    def precompute_freqs_cis(embedding_size: int, end: int, theta: float, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Cosines and sines, [end, embedding_size // 2]."""
        frequencies = 1.0 / theta ** (jnp.arange(0.0, embedding_size, 2) / embedding_size)
        angles = jnp.outer(jnp.arange(float(end)), frequencies)
        return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """`x`, [..., time, embedding_size], rotated for positions 0, 1, ...; `key` is not used."""
        *_, time, size = x.shape
        if size != self.embedding_size:
            raise CompatError(
                what="the last axis has another size than the rotations.",
                place="RotaryPositionalEmbedding",
                got=str(size),
                wanted=str(self.embedding_size),
                to_fix="pass the size of one head as embedding_size",
            )
        tables = self.precompute_freqs_cis(size, time, self.theta, self.dtype)
        cos, sin = (jnp.tile(each, (1, 2)) for each in tables)
        return (x * cos + self.rotate_half(x) * sin).astype(x.dtype)
