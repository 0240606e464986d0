"""One step of a recurrence."""

from typing import Any

import jax

from aerogel import nn
from aerogel.module import field
from aerogel.nn._init import default_dtype, uniform


class GRUCell(nn.GRUCell):
    """Equinox's `GRUCell`; it takes leading axes too."""

    use_bias: bool = field(static=True)

    def __init__(
        self, input_size: int, hidden_size: int, use_bias: bool = True, dtype: Any = None, *, key: jax.Array
    ) -> None:
        shapes = [(3 * hidden_size, input_size), (3 * hidden_size, hidden_size), (3 * hidden_size,), (hidden_size,)]
        self.weight_ih, self.weight_hh, bias, bias_n = _drawn(key, shapes, hidden_size, dtype)
        self.bias, self.bias_n = (bias, bias_n) if use_bias else (None, None)
        self.input_size, self.hidden_size, self.use_bias = input_size, hidden_size, use_bias

    def __call__(self, input: Any, hidden: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The next state; `key` is not used."""
        return super().__call__(input, hidden)


class LSTMCell(nn.LSTMCell):
    """Equinox's `LSTMCell`; it takes leading axes too."""

    use_bias: bool = field(static=True)

    def __init__(
        self, input_size: int, hidden_size: int, use_bias: bool = True, dtype: Any = None, *, key: jax.Array
    ) -> None:
        shapes = [(4 * hidden_size, input_size), (4 * hidden_size, hidden_size), (4 * hidden_size,)]
        self.weight_ih, self.weight_hh, bias = _drawn(key, shapes, hidden_size, dtype)
        self.bias = bias if use_bias else None
        self.input_size, self.hidden_size, self.use_bias = input_size, hidden_size, use_bias

    def __call__(self, input: Any, hidden: Any, *, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """The next (h, c); `key` is not used."""
        return super().__call__(input, hidden)


def _drawn(key: jax.Array, shapes: list[tuple[int, ...]], hidden_size: int, dtype: Any) -> list[jax.Array]:
    """Parameters of these shapes, drawn as Equinox draws them: all gates at once."""
    draw, dtype = uniform(hidden_size), default_dtype(dtype)
    return [draw(one, shape, dtype) for one, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True)]
