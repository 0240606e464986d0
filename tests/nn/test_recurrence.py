"""Recurrent layers: where they start, which way they go, and all steps at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)
XS = jax.random.normal(jax.random.key(1), (2, 7, 3))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_recurrence_is_its_loop(reverse: bool) -> None:
    """Results and last states are those of a Python loop."""
    decay, start = jax.nn.sigmoid(XS * 2), XS[:, 0] * 3
    got = nn.linear_recurrence(decay, XS, start, reverse=reverse)
    state, wanted = start, [None] * 7
    for t in reversed(range(7)) if reverse else range(7):
        state = decay[:, t] * state + XS[:, t]
        wanted[t] = state
    np.testing.assert_allclose(got, np.stack(wanted, 1), rtol=1e-5, atol=1e-6)
    assert nn.linear_recurrence(0.5, XS[:, :0], start).shape == (2, 0, 3)


def test_products_of_decays_are_made_once_for_a_batch() -> None:
    """Decays that a batch shares are not multiplied for each of its sequences: less memory, the same numbers."""
    decay, xs = jax.nn.sigmoid(jax.random.normal(KEY, (16,))), jax.random.normal(KEY, (64, 128, 16))

    def loss(shape: Any) -> Any:
        return lambda decay, xs: (nn.linear_recurrence(jnp.broadcast_to(decay, shape), xs) ** 2).sum()

    shared, own = (jax.jit(jax.grad(loss(shape), (0, 1))) for shape in ((16,), xs.shape))
    for one, other in zip(shared(decay, xs), own(decay, xs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    sizes = [f.lower(decay, xs).compile().memory_analysis().temp_size_in_bytes for f in (shared, own)]
    assert sizes[0] < 0.8 * sizes[1]


@pytest.mark.parametrize("layer", [
    nn.LinearRecurrentUnit(3, 4, key=KEY),
    nn.LSTM(3, 4, 2, key=KEY),
    nn.GRU(3, 4, 2, key=KEY),
    nn.Recurrent(nn.RNNCell(3, 4, activation="relu", key=KEY)),
], ids=lambda layer: type(layer).__name__)  # fmt: skip
def test_two_halves_are_the_whole(layer: nn.LSTM) -> None:
    """The second half of a sequence, from the state after the first, gives what the whole gives."""
    whole, last = jax.jit(layer)(XS)
    first, state = jax.jit(layer)(XS[:, :3])
    second, after = jax.jit(layer)(XS[:, 3:], state)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), whole, atol=1e-5)
    for got, wanted in zip(jax.tree.leaves(after), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_states_of_both_directions_are_taken_back() -> None:
    """The state of a bidirectional layer has all layers and directions in order, and can be given again."""
    layer = nn.GRU(3, 4, 2, bidirectional=True, key=KEY)
    _, state = layer(XS)
    assert state.shape == (2, 4, 4)
    outs, _ = layer(XS, state)
    np.testing.assert_allclose(outs[:, 0, :4], layer.layers[1].forward(layer.layers[0](XS, (state[:, 0], state[:, 1]))[0], state[:, 2])[0][:, 0], atol=1e-6)  # fmt: skip  # noqa: E501


def test_decays_start_in_their_ring() -> None:
    """The linear unit's states neither die nor explode: |a| lies where it was asked for."""
    unit = nn.LinearRecurrentUnit(3, 500, 0.5, 0.9, key=KEY)
    radius = jnp.exp(-jnp.exp(unit.log_rate))
    assert 0.5 <= float(radius.min()) < 0.55
    assert 0.85 < float(radius.max()) <= 0.9


def test_recurrent_weights_have_an_initializer_of_their_own() -> None:
    """Each gate's weight of the state is drawn by itself: an orthogonal one is orthogonal per gate."""
    cell = nn.LSTMCell(3, 4, recurrent_init=jax.nn.initializers.orthogonal(), key=KEY)
    for gate in jnp.split(cell.weight_hh, 4):
        np.testing.assert_allclose(gate @ gate.T, np.eye(4), atol=1e-5)
    with pytest.raises(ag.UsageError, match="write activation='relu'"):
        nn.RNNCell(3, 4, activation="rely", key=KEY)  # type: ignore[arg-type]


def test_no_step_leaves_the_state() -> None:
    """A sequence without steps gives no results, and the state that it was given, or zeros."""
    layer = nn.LinearRecurrentUnit(3, 4, key=KEY)
    start = jnp.arange(8.0).reshape(2, 4) * 1j
    for state, wanted in ((start, start), (None, jnp.zeros((2, 4)))):
        outs, after = layer(XS[:, :0], state)
        assert outs.shape == (2, 0, 3)
        assert after.dtype == jnp.complex64
        np.testing.assert_array_equal(after, wanted)


@pytest.mark.parametrize("layer", [
    *(kind(3, 4, 2, bidirectional=True, key=KEY) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
    nn.LinearRecurrentUnit(3, 4, key=KEY),
], ids=lambda layer: type(layer).__name__)  # fmt: skip
def test_sequences_end_at_their_own_lengths(layer: Any) -> None:
    """Results, last states and gradients are those of each sequence alone, both ways; what is behind is not read."""
    lengths = jnp.array([7, 3, 0])
    xs = jax.random.normal(KEY, (3, 7, 3))
    behind = jnp.arange(7)[:, None] >= lengths[:, None, None]
    xs = jnp.where(behind, jnp.nan, xs)

    def loss(layer: Any, xs: Any) -> Any:
        outs, state = layer(xs, lengths=lengths)
        return sum(jnp.sin(x).real.sum() for x in jax.tree.leaves((outs, state))), (outs, state)

    def alone(layer: Any, xs: Any) -> Any:
        each = [layer(x[:n]) for x, n in zip(xs, lengths.tolist(), strict=True)]
        return sum(jnp.sin(x).real.sum() for x in jax.tree.leaves(each)), each

    (_, (outs, state)), grads = ag.jit(ag.value_and_grad(loss, (0, 1), has_aux=True))(layer, xs)
    (_, each), wanted = jax.value_and_grad(alone, (0, 1), has_aux=True)(layer, xs)
    for i, (own_outs, own_state) in enumerate(each):
        np.testing.assert_allclose(outs[i, : len(own_outs)], own_outs, atol=1e-6)
        assert not outs[i, len(own_outs) :].any()
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-6), state, own_state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, wanted)
    np.testing.assert_array_equal(ag.jit(layer)(xs, lengths=[7, 3, 0])[0], ag.jit(layer)(xs, lengths=lengths)[0])
    mapped, _ = jax.vmap(lambda x, n: layer(x, lengths=n))(xs, lengths)
    np.testing.assert_allclose(mapped, outs, atol=1e-6)


def test_a_sequence_without_steps_keeps_its_state() -> None:
    """Of a batch from given states, the last state of the one whose length is 0 is the one that it was given."""
    layer, start = nn.LinearRecurrentUnit(3, 4, key=KEY), jnp.arange(8.0).reshape(2, 4) * 1j
    outs, state = jax.jit(layer)(XS, start, lengths=jnp.array([0, 7]))
    whole, last = jax.jit(layer)(XS, start)
    np.testing.assert_array_equal(state[0], start[0])
    np.testing.assert_allclose(state[1], last[1], atol=1e-6)
    np.testing.assert_allclose(outs[1], whole[1], atol=1e-6)
    assert not outs[0].any()


@pytest.mark.parametrize("layer", [nn.GRU(3, 4, key=KEY), nn.LinearRecurrentUnit(3, 4, key=KEY)])
def test_lengths_that_do_not_fit_are_told(layer: Any) -> None:
    """Numbers with a point, and as many as there are not sequences."""
    with pytest.raises(nn.InputError, match="the lengths must be integers"):
        layer(XS, lengths=jnp.ones(2))
    with pytest.raises(nn.InputError, match="the array of lengths does not broadcast"):
        layer(XS, lengths=jnp.ones(3, int))
