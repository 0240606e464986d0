"""Rows of a table."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, field

from ._adapter import Parameter, value_of
from ._check import check_integers, check_last_axes
from ._explicit import beside
from ._init import Initializer, default_dtype, drawn


class Embedding(Module):
    """Row `x` of a table for each integer `x`: from [...] to [..., embedding_size].

    An index past the end takes the last row, as indexing in JAX does; a negative one counts from the end.

    Attributes:
        weight: [num_embeddings, embedding_size].

    Args:
        num_embeddings: the number of rows.
        embedding_size: the size of one.
        dtype: of the table; JAX's default floating-point type if None.
        init: draws the table; by default from the standard normal distribution, as in PyTorch.
        key: for the table.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> table = ag.nn.Embedding(10, 4, key=jax.random.key(0))
    >>> table(jnp.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    weight: Parameter = field(axes=("vocab", "embed"))
    num_embeddings: int
    embedding_size: int

    def __init__(
        self,
        num_embeddings: int,
        embedding_size: int,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        shape = (num_embeddings, embedding_size)
        normal = jax.nn.initializers.normal(1.0)
        self.weight = drawn(init or normal, key, shape, default_dtype(dtype), fan_in=1)
        self.num_embeddings = num_embeddings
        self.embedding_size = embedding_size

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The rows for `x`; `key` is not used."""
        check_integers(self, x)
        x = jnp.asarray(x)
        return value_of(self.weight).at[x].get(out_sharding=beside(x, x.ndim))

    def attend(self, x: Any) -> jax.Array:
        """The product of `x` with each row: from [..., embedding_size] to [..., num_embeddings], for tied tables."""
        check_last_axes(self, x, self.embedding_size)
        return x @ value_of(self.weight).T
