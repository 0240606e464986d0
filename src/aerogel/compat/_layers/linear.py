"""Linear maps and tables."""

from typing import Any

import jax

from aerogel import nn
from aerogel.module import field
from aerogel.nn._init import default_dtype
from aerogel.nn._linear import Size

from .._errors import CompatError


class Linear(nn.Linear):
    """Equinox's `Linear`; it takes leading axes too."""

    use_bias: bool = field(static=True)

    def __init__(
        self, in_features: Size, out_features: Size, use_bias: bool = True, dtype: Any = None, *, key: jax.Array
    ) -> None:
        super().__init__(in_features, out_features, use_bias, dtype=dtype, key=key)
        self.use_bias = use_bias


class Embedding(nn.Embedding):
    """Equinox's `Embedding`; it takes arrays of integers too.

    Raises:
        CompatError: there is neither a table nor all that it takes to draw one, or the table has another shape.
    """

    def __init__(
        self,
        num_embeddings: int | None = None,
        embedding_size: int | None = None,
        weight: Any = None,
        dtype: Any = None,
        *,
        key: jax.Array | None = None,
    ) -> None:
        if weight is None:
            if num_embeddings is None or embedding_size is None or key is None:
                raise CompatError(
                    what="a table is given, or drawn.",
                    place="Embedding",
                    got=f"num_embeddings={num_embeddings}, embedding_size={embedding_size}, no weight",
                    wanted="num_embeddings, embedding_size and key; or weight",
                    to_fix="Embedding(10, 3, key=key), or Embedding(weight=table)",
                )
            super().__init__(num_embeddings, embedding_size, dtype=default_dtype(dtype), key=key)
            return
        rows, size = (*weight.shape, None, None)[:2]
        if weight.ndim != 2 or num_embeddings not in (None, rows) or embedding_size not in (None, size):
            raise CompatError(
                what="the table has another shape than it is said to have.",
                place="Embedding, argument `weight`",
                got=f"shape {weight.shape}",
                wanted=f"({num_embeddings or 'rows'}, {embedding_size or 'size'})",
                to_fix="leave the sizes out, or pass those of the table",
            )
        self.weight = weight
        self.num_embeddings, self.embedding_size = weight.shape
