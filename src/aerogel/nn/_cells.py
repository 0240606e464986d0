"""One step of a recurrence."""

from abc import abstractmethod
from typing import Any, Literal

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, field

from ._adapter import Parameter, value_of
from ._check import check_broadcasts, check_last_axes, shown
from ._errors import InputError
from ._explicit import beside
from ._half import unhalved
from ._init import Initializer, default_dtype, drawn
from ._position import position_of
from ._ranks import aligned


class AbstractCell(Module):
    """One step: from an input [..., input_size] and a state to the next state.

    A state is an array [..., hidden_size], or a tuple of them, whose first one is also the result of the step.
    """

    input_size: int
    hidden_size: int

    @abstractmethod
    def __call__(self, x: Any, state: Any, *, key: jax.Array | None = None) -> Any:
        """The next state."""

    @abstractmethod
    def initial_state(self, x: Any) -> Any:
        """The state before the first step for inputs [..., input_size] like `x`: zeros."""


class _Gates(AbstractCell):
    """A cell whose gates are linear in input and hidden state."""

    weight_ih: Parameter = field(axes=("gates", "in"))
    weight_hh: Parameter = field(axes=("gates", "hidden"))
    bias: Parameter | None = field(axes=("gates",))

    def _draw(
        self,
        gates: int,
        sizes: tuple[int, int],
        use_bias: bool,
        dtype: Any,
        inits: tuple[Initializer | None, ...],
        key: jax.Array,
    ) -> None:
        """Gives the cell its parameters. Each gate's are drawn by themselves, as `init` counts inputs and outputs."""
        (self.input_size, self.hidden_size), dtype = sizes, default_dtype(dtype)
        shapes = [(self.hidden_size, self.input_size), (self.hidden_size, self.hidden_size), (self.hidden_size,)]
        self.weight_ih, self.weight_hh, bias = (
            jnp.concatenate(
                [
                    drawn(init, one, shape, dtype, fan_in=self.hidden_size, features=2)
                    for one in jax.random.split(many, gates)
                ]
            )
            for init, many, shape in zip(inits, jax.random.split(key, 3), shapes, strict=True)
        )
        self.bias = bias if use_bias else None

    def _gates(self, x: Any, hidden: Any) -> tuple[jax.Array, jax.Array, Any]:
        """What input and hidden state give to the gates, in 32 bits at least, and the dtype of what comes of them."""
        check_last_axes(self, x, self.input_size)
        self._check_state(x, hidden)
        of_input = x @ value_of(self.weight_ih).T
        of_state = hidden @ value_of(self.weight_hh).T
        biases = () if self.bias is None else (value_of(self.bias),)
        dtype = jnp.result_type(of_input, of_state, *biases)
        of_input, of_state, *biases = unhalved((of_input, of_state, *biases))
        return sum((aligned(of_input, bias) for bias in biases), of_input), of_state, dtype

    def _check_state(self, x: Any, state: Any) -> None:
        check_last_axes(self, state, self.hidden_size, name="state")
        check_broadcasts(self, state, (*jnp.shape(x)[:-1], self.hidden_size), 1, "state")

    def _zeros(self, x: Any) -> jax.Array:
        dtype = jnp.result_type(x, self.weight_ih.dtype, self.weight_hh.dtype)
        outer = jnp.shape(x)[:-1]
        return jnp.zeros((*outer, self.hidden_size), dtype, out_sharding=beside(x, len(outer)))


class RNNCell(_Gates):
    """`activation(weight_ih @ x + weight_hh @ h + bias)`.

    Attributes:
        weight_ih: [hidden_size, input_size].
        weight_hh: [hidden_size, hidden_size].
        bias: [hidden_size], or None; where PyTorch has two biases, their sum.

    Args:
        input_size: size of the input.
        hidden_size: size of the state.
        use_bias: whether there is a bias.
        activation: "tanh" or "relu".
        init: draws the weight of the input, asked for [input_size, hidden_size] for each gate; by default all are
            uniform in ±1 / sqrt(hidden_size), as in PyTorch.
        recurrent_init: draws the weight of the state, asked for [hidden_size, hidden_size] for each gate.

    `dtype`, `bias_init` and `key` are as for `Linear`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.RNNCell(3, 4, key=jax.random.key(0))(jnp.ones((8, 3)), jnp.zeros((8, 4))).shape
    (8, 4)
    """

    activation: Literal["tanh", "relu"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        activation: Literal["tanh", "relu"] = "tanh",
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        recurrent_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        if activation not in ("tanh", "relu"):
            raise UsageError(argument="activation", got=activation, wanted=["tanh", "relu"], function="RNNCell")
        self._draw(1, (input_size, hidden_size), use_bias, dtype, (init, recurrent_init, bias_init), key)
        self.activation = activation

    def __call__(self, x: Any, state: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The next state; `key` is not used."""
        of_input, of_state, dtype = self._gates(x, state)
        total = of_input + of_state
        return (jnp.tanh(total) if self.activation == "tanh" else jax.nn.relu(total)).astype(dtype)

    def initial_state(self, x: Any) -> jax.Array:
        """Zeros."""
        return self._zeros(x)


class GRUCell(_Gates):
    """A gated recurrent unit: reset and update gates r, z, then n = tanh(... + r * (W h + bias_n)), h' = n + z (h - n).

    Attributes:
        weight_ih: [3 * hidden_size, input_size], gates in the order r, z, n, as in PyTorch and Equinox.
        weight_hh: [3 * hidden_size, hidden_size].
        bias: [3 * hidden_size], or None.
        bias_n: [hidden_size], or None; inside of the product with r.

    `input_size`, `hidden_size`, `use_bias`, `dtype`, `init`, `recurrent_init`, `bias_init` and `key` are as for
    `RNNCell`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.GRUCell(3, 4, key=jax.random.key(0))(jnp.ones((8, 3)), jnp.zeros((8, 4))).shape
    (8, 4)
    """

    bias_n: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        recurrent_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        of_gates, of_bias_n = jax.random.split(key)
        self._draw(3, (input_size, hidden_size), use_bias, dtype, (init, recurrent_init, bias_init), of_gates)
        bias_n = drawn(bias_init, of_bias_n, (hidden_size,), default_dtype(dtype), fan_in=hidden_size)
        self.bias_n = bias_n if use_bias else None

    def __call__(self, x: Any, state: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The next state; `key` is not used."""
        *of_both, dtype = self._gates(x, state)
        of_input, of_state = (jnp.split(each, 3, axis=-1) for each in of_both)
        reset, update = (jax.nn.sigmoid(of_input[i] + of_state[i]) for i in (0, 1))
        bias, state = unhalved((None if self.bias_n is None else value_of(self.bias_n), state))
        remembered = of_state[2] if bias is None else of_state[2] + aligned(of_state[2], bias)
        new = jnp.tanh(of_input[2] + reset * remembered)
        return (new + update * (state - new)).astype(dtype)

    def initial_state(self, x: Any) -> jax.Array:
        """Zeros."""
        return self._zeros(x)


class LSTMCell(_Gates):
    """Long short-term memory: c' = sigmoid(f) * c + sigmoid(i) * tanh(g), h' = sigmoid(o) * tanh(c') of gates.

    The state is (h, c).

    Attributes:
        weight_ih: [4 * hidden_size, input_size], gates in the order i, f, g, o, as in PyTorch and Equinox.
        weight_hh: [4 * hidden_size, hidden_size].
        bias: [4 * hidden_size], or None; where PyTorch has two biases, their sum.

    `input_size`, `hidden_size`, `use_bias`, `dtype`, `init`, `recurrent_init`, `bias_init` and `key` are as for
    `RNNCell`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> cell = ag.nn.LSTMCell(3, 4, key=jax.random.key(0))
    >>> h, c = cell(jnp.ones(3), cell.initial_state(jnp.ones(3)))
    >>> h.shape, c.shape
    ((4,), (4,))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        recurrent_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        self._draw(4, (input_size, hidden_size), use_bias, dtype, (init, recurrent_init, bias_init), key)

    def __call__(self, x: Any, state: Any, *, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """The next (h, c); `key` is not used."""
        if not isinstance(state, tuple | list) or len(state) != 2:
            raise InputError(
                what="the state must be a pair, h and c.",
                place=position_of(self),
                got=", ".join(map(shown, jax.tree.leaves(state))),
                wanted=f"two arrays with a last axis of size {self.hidden_size}",
            )
        hidden, memory = state
        self._check_state(x, memory)
        of_input, of_state, dtype = self._gates(x, hidden)
        enter, forget, new, leave = jnp.split(of_input + of_state, 4, axis=-1)
        of_memory = jnp.result_type(dtype, memory)
        memory = jax.nn.sigmoid(forget) * unhalved(memory) + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return (jax.nn.sigmoid(leave) * jnp.tanh(memory)).astype(dtype), memory.astype(of_memory)

    def initial_state(self, x: Any) -> tuple[jax.Array, jax.Array]:
        """Zeros, twice."""
        return self._zeros(x), self._zeros(x)
