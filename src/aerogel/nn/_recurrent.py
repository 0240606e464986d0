"""Cells that run over time."""

from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module

from ._cells import AbstractCell, GRUCell, LSTMCell, RNNCell
from ._check import check_last_axes, shown, types_of
from ._dropout import Dropout
from ._errors import InputError
from ._half import unhalved
from ._init import Options
from ._lengths import of_those_there, which_are_there
from ._position import StandIn, position_of


class Recurrent(Module):
    """A cell that runs over the last axis but one: from [..., time, input_size] to [..., time, hidden_size].

    Returns the results of all steps and the last state.

    Attributes:
        cell: any cell.
        reverse: whether it runs from the end to the beginning; results stand where their inputs do.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.Recurrent(ag.nn.GRUCell(3, 4, key=jax.random.key(0)))
    >>> outs, state = layer(jnp.ones((8, 20, 3)))
    >>> outs.shape, state.shape
    ((8, 20, 4), (8, 4))
    """

    cell: AbstractCell
    reverse: bool = False

    def __call__(
        self, x: Any, state: Any = None, *, lengths: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """The results and the last state for `x`, from `state` or the cell's initial one; `key` is not used.

        Args:
            x: [..., time, input_size].
            state: before the first step.
            lengths: how many steps each sequence has, integers [...] or a list, where they differ; the rest of `x` is
                not read. The last state is that at a sequence's own end, with `reverse` it starts from there, and
                results behind it are zeros, as PyTorch's of packed sequences.
            key: not used.
        """
        check_last_axes(self, x, "time", self.cell.input_size)
        steps = jnp.moveaxis(jnp.asarray(x), -2, 0)
        is_there = None if lengths is None else which_are_there(self, lengths, steps.shape, 0)
        if is_there is not None:
            steps = of_those_there(is_there, steps)
        if state is None:
            state = self.cell.initial_state(jax.eval_shape(lambda steps: steps.sum(0, steps.dtype), steps))

        # The gradient of a weight is a sum over time, in the dtype that the weight has outside of the loop.
        wide = unhalved(self.cell)

        def narrowed(one: Any, as_it_is: Any) -> Any:
            return one if one is as_it_is else one.astype(as_it_is.dtype)

        def step(state: Any, each: Any) -> tuple[Any, jax.Array]:
            x, is_there = each
            stand_in = StandIn(jax.tree.map(narrowed, wide, self.cell), "cell")
            after = stand_in.layer(x, state)
            self._check_carried(state, after)
            out = after[0] if isinstance(after, tuple) else after
            if is_there is None:
                return after, out
            after = jax.tree.map(lambda new, old: jnp.where(is_there, new, old), after, state)
            return after, of_those_there(is_there, out)

        state, outs = jax.lax.scan(step, state, (steps, is_there), reverse=self.reverse)
        return jnp.moveaxis(outs, 0, -2), state

    def _check_carried(self, before: Any, after: Any) -> None:
        got, wanted = ((*map(shown, jax.tree.leaves(tree)),) for tree in (before, after))
        if types_of(before) != types_of(after):
            raise InputError(
                what="the state has other types than the cell gives back.",
                place=position_of(self),
                got=", ".join(got),
                wanted=", ".join(wanted),
                to_fix="give it the batch axes of the input, jnp.broadcast_to, and the dtype of the result",
            )


class Bidirectional(Module):
    """Two recurrent layers over the same input, the second one backwards: results one after the other, both states.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> one, two = (ag.nn.GRUCell(3, 4, key=key) for key in jax.random.split(jax.random.key(0)))
    >>> outs, states = ag.nn.Bidirectional(one, two)(jnp.ones((20, 3)))
    >>> outs.shape
    (20, 8)
    """

    forward: Recurrent
    backward: Recurrent

    def __init__(self, forward: AbstractCell, backward: AbstractCell) -> None:
        self.forward = Recurrent(forward)
        self.backward = Recurrent(backward, reverse=True)

    def __call__(
        self, x: Any, state: Any = None, *, lengths: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """The results and the two last states for `x`, from a pair of states; the rest is as for `Recurrent`."""
        one, two = (None, None) if state is None else state
        (forth, one), (back, two) = self.forward(x, one, lengths=lengths), self.backward(x, two, lengths=lengths)
        return jnp.concatenate([forth, back], -1), (one, two)


class _Layers(Module):
    """Recurrent layers one above the other."""

    layers: tuple[Recurrent | Bidirectional, ...]
    dropout: Dropout

    def _make(self, cell: Any, sizes: tuple[int, int], depth: int, dropout: float, both: bool, options: Any) -> None:
        if depth < 1:
            raise UsageError(argument="num_layers", got=depth, wanted="one or more", function=type(self).__name__)
        keys = iter(jax.random.split(options.pop("key"), depth * (1 + both)))
        into, layers = sizes[0], []
        for _ in range(depth):
            cells = [cell(into, sizes[1], key=next(keys), **options) for _ in range(1 + both)]
            layers.append(Bidirectional(*cells) if both else Recurrent(*cells))
            into = sizes[1] * (1 + both)
        self.layers = tuple(layers)
        self.dropout = Dropout(dropout)

    def __call__(
        self, x: Any, state: Any = None, *, lengths: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """The results of the last layer and the last state of all; `key` is for dropout between layers.

        Where sequences end at their own `lengths`, integers [...], results behind them are zeros, as for `Recurrent`.
        A state has all layers, each forwards and then backwards, along its last axis but one:
        [..., layers, hidden_size], or a pair of such arrays for LSTM.
        """
        given = self._by_layer(state)
        keys = [None] * len(given) if key is None else jax.random.split(key, len(given))
        states: list[Any] = []
        for i, (layer, before, one_key) in enumerate(zip(self.layers, given, keys, strict=True)):
            x, after = layer(self.dropout(x, key=one_key) if i else x, before, lengths=lengths)
            states += after if isinstance(layer, Bidirectional) else [after]
        return x, jax.tree.map(lambda *each: jnp.stack(each, -2), *states)

    def _by_layer(self, state: Any) -> list[Any]:
        if state is None:
            return [None] * len(self.layers)
        directions = 2 if isinstance(self.layers[0], Bidirectional) else 1
        first = self.layers[0]
        hidden = (first.forward if isinstance(first, Bidirectional) else first).cell.hidden_size
        for leaf in jax.tree.leaves(state):
            check_last_axes(self, leaf, len(self.layers) * directions, hidden, name="state")
        each = [jax.tree.map(lambda s, i=i: s[..., i, :], state) for i in range(len(self.layers) * directions)]
        return each if directions == 1 else list(zip(each[::2], each[1::2], strict=True))


class RNN(_Layers):
    """Layers of `RNNCell` over [..., time, input_size]: results [..., time, hidden_size] and the last state.

    Args:
        input_size: size of the last axis of the input.
        hidden_size: of each layer; results of a bidirectional one are twice as large.
        num_layers: the number of layers.
        activation: "tanh" or "relu".
        use_bias: whether cells have a bias.
        dropout: its probability between layers, in training.
        bidirectional: whether each layer has a second cell that runs backwards.

    `dtype`, `init`, `bias_init` and `key` are as for `RNNCell`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> outs, state = ag.nn.RNN(3, 4, 2, key=jax.random.key(0))(jnp.ones((8, 20, 3)))
    >>> outs.shape, state.shape
    ((8, 20, 4), (8, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        activation: Literal["tanh", "relu"] = "tanh",
        use_bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        more = {"activation": activation, "use_bias": use_bias, **options}
        self._make(RNNCell, (input_size, hidden_size), num_layers, dropout, bidirectional, more)


class GRU(_Layers):
    """Layers of `GRUCell`; arguments are those of `RNN` without `activation`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> outs, state = ag.nn.GRU(3, 4, bidirectional=True, key=jax.random.key(0))(jnp.ones((8, 20, 3)))
    >>> outs.shape, state.shape
    ((8, 20, 8), (8, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        use_bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        more = {"use_bias": use_bias, **options}
        self._make(GRUCell, (input_size, hidden_size), num_layers, dropout, bidirectional, more)


class LSTM(_Layers):
    """Layers of `LSTMCell`; arguments are those of `RNN` without `activation`. The state is a pair, h and c.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> outs, (h, c) = ag.nn.LSTM(3, 4, 2, key=jax.random.key(0))(jnp.ones((8, 20, 3)))
    >>> outs.shape, h.shape
    ((8, 20, 4), (8, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        use_bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        more = {"use_bias": use_bias, **options}
        self._make(LSTMCell, (input_size, hidden_size), num_layers, dropout, bidirectional, more)
