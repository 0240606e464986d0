"""Claim: recurrent layers that are given lengths cost what masking by hand costs, in value and gradient.

Layers of Aerogel under `ag.jit`; by hand, in plain JAX, a scan whose step keeps the state behind a sequence's end with
`jnp.where`. PyTorch, where it is there, runs packed sequences of the same numbers. Its loop takes the steps that are
there, a compiled program all of them, so that this ratio has no bound. Lengths are drawn between one step and all.
Ratios are ours over theirs; memory is XLA's plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag
from aerogel import nn

from ._case import normal, scalarise
from ._finding import Finding
from ._timing import Quartiles, alternate

HIDDEN = 128
SIZES = ((32, 100, 32), (8, 400, 64))  # batch, time, features
BOUND = 1.03


def gru(cell: Any, x: Any, h: Any) -> Any:
    of_input, of_state = (jnp.split(each, 3, -1) for each in (x @ cell.weight_ih.T + cell.bias, h @ cell.weight_hh.T))
    reset, update = (jax.nn.sigmoid(of_input[i] + of_state[i]) for i in (0, 1))
    new = jnp.tanh(of_input[2] + reset * (of_state[2] + cell.bias_n))
    return new + update * (h - new)


def lstm(cell: Any, x: Any, state: Any) -> Any:
    h, c = state
    enter, forget, new, leave = jnp.split(x @ cell.weight_ih.T + h @ cell.weight_hh.T + cell.bias, 4, -1)
    c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(c), c


def by_hand(cell: Callable[[Any, Any, Any], Any], layer: Any, x: Any, lengths: Any) -> Any:
    """Results and last state, masked in the step of the scan."""
    parameters, zeros = layer.layers[0].cell, jnp.zeros((len(x), HIDDEN))
    start = (zeros, zeros) if cell is lstm else zeros

    def step(state: Any, each: Any) -> tuple[Any, Any]:
        t, x = each
        is_there = (t < lengths)[:, None]
        after = cell(parameters, x, state)
        out = jnp.where(is_there, after[0] if cell is lstm else after, 0)
        return jax.tree.map(lambda new, old: jnp.where(is_there, new, old), after, state), out

    state, outs = jax.lax.scan(step, start, (jnp.arange(x.shape[1]), x.swapaxes(0, 1)))
    return outs.swapaxes(0, 1), state


def linear_by_hand(unit: Any, x: Any, lengths: Any) -> Any:
    """Results and last state of a linear recurrent unit."""
    is_there = (jnp.arange(x.shape[1]) < lengths[:, None])[..., None]
    x = jnp.where(is_there, x, 0)
    rate, angle = jnp.exp(unit.log_rate), jnp.exp(unit.log_phase)
    decay, gain = jnp.exp(-rate + 1j * angle), jnp.sqrt(-jnp.expm1(-2 * rate))
    entering = jax.lax.complex(*(gain * (x @ each.T) for each in unit.into))

    def joined(one: Any, two: Any) -> Any:
        return one[0] * two[0], two[0] * one[1] + two[1]

    decays = jnp.broadcast_to(decay, (1, *entering.shape[1:]))
    states = jax.lax.associative_scan(joined, (decays, entering), axis=1)[1]
    outs = states.real @ unit.out[0].T - states.imag @ unit.out[1].T + unit.skip * x
    last = jnp.take_along_axis(states, jnp.maximum(lengths - 1, 0)[:, None, None], 1)[:, 0]
    return jnp.where(is_there, outs, 0), jnp.where(lengths[:, None] > 0, last, 0)


def findings(quick: bool = False) -> list[Finding]:
    """Ratios of times and of memory, ours over theirs."""
    layers: dict[str, tuple[Callable[[int], Any], Callable[..., Any]]] = {
        "GRU": (lambda features: nn.GRU(features, HIDDEN, key=jax.random.key(0)), lambda *a: by_hand(gru, *a)),
        "LSTM": (lambda features: nn.LSTM(features, HIDDEN, key=jax.random.key(0)), lambda *a: by_hand(lstm, *a)),
        "linear recurrent unit": (
            lambda features: nn.LinearRecurrentUnit(features, HIDDEN, key=jax.random.key(0)),
            linear_by_hand,
        ),
    }
    rows = []
    for name, (make, hand) in layers.items():
        for batch, time, features in SIZES:
            case = f"{name}, {batch} x {time} x {features}"
            lengths = jnp.asarray(np.random.default_rng(0).integers(1, time + 1, batch))
            rows += measured(case, make(features), hand, normal(1, batch, time, features), lengths, quick)
    return rows


def measured(case: str, layer: Any, hand: Callable[..., Any], x: Any, lengths: Any, quick: bool) -> list[Finding]:
    """The rows of one layer in one size, value and gradient of layer and input."""

    def loss(run: Callable[..., Any]) -> Callable[..., Any]:
        def real(outs: Any) -> Any:
            return jax.tree.map(lambda a: (a.real, a.imag) if jnp.iscomplexobj(a) else a, outs)

        return lambda layer, x: scalarise(real(run(layer, x, lengths)))

    def with_lengths(layer: Any, x: Any, lengths: Any) -> Any:
        return layer(x, lengths=lengths)

    forms = {
        "ours": ag.jit(ag.value_and_grad(loss(with_lengths), (0, 1))),
        "by hand": jax.jit(jax.value_and_grad(loss(hand), (0, 1))),
    }
    compiled = {name: form.lower(layer, x).compile() for name, form in forms.items()}
    calls: dict[str, Callable[[], Any]] = {name: lambda form=form: form(layer, x) for name, form in forms.items()}
    values = {name: float(call()[0]) for name, call in calls.items()}
    kind = type(layer).__name__
    if find_spec("torch") is not None and kind in ("GRU", "LSTM"):
        calls["PyTorch, packed"] = packed(kind, layer.layers[0].cell, x, lengths)
        values["PyTorch, packed"] = calls["PyTorch, packed"]()
    for name, value in values.items():
        if not np.allclose(value, values["ours"], rtol=1e-4):
            raise AssertionError(f"{case}: {name} finds {value} and not {values['ours']}")
    effort: dict[str, Any] = {"min_rounds": 7, "budget_s": 0.5, "limit_s": 10.0} if quick else {}
    seconds = alternate(calls, **effort)
    rows = []
    for name in list(calls)[1:]:
        times = f"{np.median(seconds['ours']) * 1e3:.3g} and {np.median(seconds[name]) * 1e3:.3g} ms"
        bound = BOUND if name == "by hand" else None
        rows.append(Finding(case, f"time over {name}", Quartiles.of(seconds["ours"] / seconds[name]), bound, times))
    ours, theirs = (each.memory_analysis().temp_size_in_bytes for each in compiled.values())
    share, sizes = ours / theirs, f"{ours / 1e6:.3g} and {theirs / 1e6:.3g} MB"
    return [*rows, Finding(case, "memory over by hand", Quartiles(share, share, share), 1.0, sizes)]


def packed(kind: str, cell: Any, x: Any, lengths: Any) -> Callable[[], float]:
    """A call that makes value and gradients with PyTorch's layer on packed sequences."""
    import torch
    from torch.nn.utils import rnn

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    layer = getattr(torch.nn, kind)(x.shape[-1], HIDDEN, batch_first=True)
    second = np.zeros_like(cell.bias)  # where Aerogel has one bias; of a GRU, that inside of the product
    if kind == "GRU":
        second[2 * HIDDEN :] = np.asarray(cell.bias_n)
    arrays = (cell.weight_ih, cell.weight_hh, cell.bias, second)
    with torch.no_grad():
        for parameter, array in zip(layer.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(np.array(array)))
    data, lengths = torch.from_numpy(np.array(x)).requires_grad_(), torch.from_numpy(np.array(lengths, np.int64))
    total = x.shape[1]

    def call() -> float:
        layer.zero_grad()
        data.grad = None
        sequences = rnn.pack_padded_sequence(data, lengths, batch_first=True, enforce_sorted=False)
        outs, state = layer(sequences)
        outs, _ = rnn.pad_packed_sequence(outs, batch_first=True, total_length=total)
        leaves = [outs, *(state if kind == "LSTM" else (state,))]
        loss = sum((each * each / 2 + each).mean() for each in leaves)
        loss.backward()
        return loss.item()

    return call
