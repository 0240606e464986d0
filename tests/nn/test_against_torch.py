"""Layers compute what PyTorch's do: results, gradients, and the statistics that they keep, on recorded cases.

`record_torch.py` says how they were recorded. Sizes are random, so an axis that is taken for another one shows.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)
Arrays = dict[str, np.ndarray]


def same(arrays: Arrays) -> Arrays:
    """Parameters that are called the same."""
    return arrays


@dataclass(frozen=True)
class Case:
    """Our side of one case.

    Attributes:
        make: the layer, from the sizes.
        params: PyTorch's parameters and buffers by our paths.
        grads: PyTorch's gradients by our paths, where these are not what `params` makes of them.
        call: the results.
        state: variables that the call moves, by our paths, as PyTorch calls the buffers.
    """

    make: Callable[[Any], Any]
    params: Callable[[Arrays], Arrays] = same
    grads: Callable[[Arrays], Arrays] | None = None
    call: Callable[..., Any] = lambda layer, *inputs: layer(*inputs)
    state: tuple[tuple[str, str], ...] = ()


RUNNING = (("running_mean.value", "running_mean"), ("running_var.value", "running_var"))


def with_running(arrays: Arrays) -> Arrays:
    """Statistics are values of variables; their gradients are zero, and PyTorch has none."""
    names = dict((theirs, ours) for ours, theirs in RUNNING)
    return {names.get(name, name): value for name, value in arrays.items()}


def of_weight_norm(arrays: Arrays) -> Arrays:
    """PyTorch numbers the parts of a parametrised weight."""
    names = {"bias": "layer.bias", "original0": "g", "original1": "layer.weight"}
    return {names[name.rpartition(".")[2]]: value for name, value in arrays.items()}


def of_spectral_norm(arrays: Arrays) -> Arrays:
    """The vectors of the iterations are buffers."""
    names = {"bias": "layer.bias", "original": "layer.weight", "_u": "u.value", "_v": "v.value"}
    return {names[name.rpartition(".")[2]]: value for name, value in arrays.items()}


def norm(channels: int, **options: Any) -> Any:
    """A batch norm."""
    return nn.BatchNorm(channels, **options)


def of_gates(arrays: Arrays, *, of_gradients: bool = False, split: bool = False) -> Arrays:
    """Two biases of PyTorch's are one of ours, but for GRU's new gate: their sum, or the gradient of either."""
    found = {name: value for name, value in arrays.items() if "bias" not in name}
    one, two = arrays["bias_ih"], arrays["bias_hh"]
    if split:
        third = len(one) // 3
        found["bias_n"] = two[-third:]
        two = np.concatenate([two[:-third], np.zeros(third, two.dtype)])
    return found | {"bias": one if of_gradients else one + two}


def of_layers(arrays: Arrays, *, both: bool, **options: bool) -> Arrays:
    """PyTorch's names end in the layer's number, and in "_reverse" for the second direction."""
    found: Arrays = {}
    ends = {name.partition("_l")[2] for name in arrays}
    for end in ends:
        cell = {name.partition("_l")[0]: value for name, value in arrays.items() if name.partition("_l")[2] == end}
        number, _, back = end.partition("_")
        path = f"layers[{number}].{('backward' if back else 'forward') + '.' if both else ''}cell"
        found |= {f"{path}.{name}": value for name, value in of_gates(cell, **options).items()}
    return found


def gated(make: Callable[[Any], Any], call: Callable[..., Any], split: bool = False) -> Case:
    """The case of a cell."""
    return Case(
        make,
        functools.partial(of_gates, split=split),
        functools.partial(of_gates, split=split, of_gradients=True),
        call,
    )


def stacked(make: Callable[[Any], Any], both: bool, split: bool = False) -> Case:
    """The case of recurrent layers."""
    return Case(
        make,
        functools.partial(of_layers, both=both, split=split),
        functools.partial(of_layers, both=both, split=split, of_gradients=True),
        lambda layer, x: (lambda out, state: (out, *(state if isinstance(state, tuple) else (state,))))(*layer(x)),
    )


def of_attention(arrays: Arrays) -> Arrays:
    """Three projections are one array of PyTorch's."""
    found: Arrays = {}
    for name, value in arrays.items():
        kind = "bias" if name.endswith("bias") else "weight"
        if name.startswith("in_proj"):
            parts = zip(("query", "key", "value"), np.split(value, 3), strict=True)
            found |= {f"{part}_proj.{kind}": each for part, each in parts}
        else:
            found[f"output_proj.{kind}"] = value
    return found


def of_block(arrays: Arrays) -> Arrays:
    """Parts of a transformer's layer by our names."""
    norms = ["attention", "cross", "mlp"] if any("norm3" in name for name in arrays) else ["attention", "mlp"]
    names = {"linear1": "up", "linear2": "down"} | {f"norm{i + 1}": f"norm_{name}" for i, name in enumerate(norms)}
    found: Arrays = {}
    for theirs, ours in (("self_attn", "attention"), ("multihead_attn", "cross")):
        inner = {name.partition(".")[2]: value for name, value in arrays.items() if name.startswith(theirs)}
        found |= {f"{ours}.{name}": value for name, value in of_attention(inner).items()}
    for name, value in arrays.items():
        part, _, rest = name.partition(".")
        if part in names:
            found[f"{names[part]}.{rest}"] = value
    return found


WITH_BIASES = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}


def block(s: Any, **options: Any) -> Any:
    """A transformer's block as PyTorch's are by default."""
    return nn.TransformerBlock(2, 4, 2 * s.o, jax.nn.relu, **options, key=KEY)


CASES: dict[str, Case] = {
    "linear": Case(lambda s: nn.Linear(s.i, s.o, key=KEY)),
    "linear-no-bias": Case(lambda s: nn.Linear(s.i, s.o, False, key=KEY)),
    "bilinear": Case(lambda s: nn.Bilinear(s.i, s.j, s.o, key=KEY)),
    "embedding": Case(lambda s: nn.Embedding(s.i, s.o, key=KEY)),
    "layer-norm": Case(lambda s: nn.LayerNorm(s.i)),
    "layer-norm-2": Case(lambda s: nn.LayerNorm((s.i, s.j), 0.1)),
    "layer-norm-bare": Case(lambda s: nn.LayerNorm(s.i, use_weight=False, use_bias=False)),
    "rms-norm": Case(lambda s: nn.RMSNorm(s.i)),
    "group-norm": Case(lambda s: nn.GroupNorm(2, 2 * s.i)),
    "group-norm-0d": Case(lambda s: nn.GroupNorm(2, 2 * s.i, num_spatial_dims=0)),
    "instance-norm-1d": Case(lambda s: nn.InstanceNorm(s.i, num_spatial_dims=1)),
    "instance-norm-2d": Case(lambda s: nn.InstanceNorm(s.i, channelwise_affine=True)),
    "instance-norm-3d": Case(lambda s: nn.InstanceNorm(s.i, channelwise_affine=True, num_spatial_dims=3)),
    "batch-norm-0d": Case(lambda s: nn.BatchNorm(s.i), with_running, state=RUNNING),
    "batch-norm-1d": Case(lambda s: nn.BatchNorm(s.i, momentum=0.3, num_spatial_dims=1), with_running, state=RUNNING),
    "batch-norm-2d": Case(lambda s: nn.BatchNorm(s.i, num_spatial_dims=2), with_running, state=RUNNING),
    "batch-norm-eval": Case(lambda s: ag.inference(nn.BatchNorm(s.i, num_spatial_dims=2)), with_running),
    "prelu": Case(lambda s: nn.PReLU(), lambda arrays: {"weight": arrays["weight"].reshape(())}),
    "prelu-channels": Case(lambda s: nn.PReLU(s.i, num_spatial_dims=2)),
    "weight-norm": Case(lambda s: nn.WeightNorm(nn.Linear(s.i, s.o, key=KEY)), of_weight_norm),
    "spectral-norm": Case(
        lambda s: nn.SpectralNorm(nn.Linear(s.i, s.o, key=KEY), key=KEY),
        of_spectral_norm,
        state=(("u.value", "parametrizations.weight.0._u"), ("v.value", "parametrizations.weight.0._v")),
    ),
    "conv-1d": Case(lambda s: nn.Conv1d(s.i, s.o, 3, key=KEY)),
    "conv-2d": Case(lambda s: nn.Conv2d(s.i, s.o, (3, 2), (2, 1), (1, 2), (1, 2), key=KEY)),
    "conv-3d": Case(lambda s: nn.Conv3d(s.i, s.o, (2, 3, 2), padding=1, key=KEY)),
    "conv-same": Case(lambda s: nn.Conv2d(s.i, s.o, (4, 3), padding="same", dilation=(1, 2), key=KEY)),
    "conv-groups": Case(lambda s: nn.Conv2d(2 * s.i, 2 * s.o, 3, groups=2, key=KEY)),
    "conv-depthwise": Case(lambda s: nn.Conv1d(s.i, 2 * s.i, 3, groups=s.i, use_bias=False, key=KEY)),
    "conv-t-1d": Case(lambda s: nn.ConvTranspose1d(s.i, s.o, 3, key=KEY)),
    "conv-t-2d": Case(lambda s: nn.ConvTranspose2d(s.i, s.o, (3, 4), (2, 3), (1, 2), (1, 2), key=KEY)),
    "conv-t-groups": Case(lambda s: nn.ConvTranspose2d(2 * s.i, 2 * s.o, 3, 2, groups=2, dilation=2, key=KEY)),
    "conv-t-3d": Case(lambda s: nn.ConvTranspose3d(s.i, s.o, 2, 2, key=KEY)),
    "avg-1d": Case(lambda s: nn.AvgPool1d(3, 2)),
    "avg-2d-padded": Case(lambda s: nn.AvgPool2d(3, 2, 1)),
    "avg-2d-ceil": Case(lambda s: nn.AvgPool2d((3, 2), 2, (1, 0), use_ceil=True)),
    "avg-2d-uncounted": Case(lambda s: nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "avg-3d": Case(lambda s: nn.AvgPool3d(2)),
    "max-1d": Case(lambda s: nn.MaxPool1d(3, 2, dilation=2)),
    "max-2d": Case(lambda s: nn.MaxPool2d(2)),
    "max-2d-ceil": Case(lambda s: nn.MaxPool2d(3, 2, 1, use_ceil=True)),
    "avg-ceil-end": Case(lambda s: nn.AvgPool1d(2, 3, 1, use_ceil=True)),
    "max-ceil-end": Case(lambda s: nn.MaxPool1d(2, 3, 1, use_ceil=True)),
    "max-3d": Case(lambda s: nn.MaxPool3d(2, 1)),
    "adaptive-avg-1d": Case(lambda s: nn.AdaptiveAvgPool1d(3)),
    "adaptive-avg-2d": Case(lambda s: nn.AdaptiveAvgPool2d((3, 5))),
    "adaptive-max-2d": Case(lambda s: nn.AdaptiveMaxPool2d((2, 3))),
    "adaptive-avg-3d": Case(lambda s: nn.AdaptiveAvgPool3d(2)),
    "rnn-cell": gated(lambda s: nn.RNNCell(s.i, s.o, key=KEY), lambda cell, x, h: cell(x, h)),
    "gru-cell": gated(lambda s: nn.GRUCell(s.i, s.o, key=KEY), lambda cell, x, h: cell(x, h), split=True),
    "lstm-cell": gated(lambda s: nn.LSTMCell(s.i, s.o, key=KEY), lambda cell, x, h, c: cell(x, (h, c))),
    "rnn": stacked(lambda s: nn.RNN(s.i, s.o, 2, "relu", key=KEY), both=False),
    "gru": stacked(lambda s: nn.GRU(s.i, s.o, 2, bidirectional=True, key=KEY), both=True, split=True),
    "lstm": stacked(lambda s: nn.LSTM(s.i, s.o, 2, bidirectional=True, key=KEY), both=True),
    "attention": Case(lambda s: nn.MultiheadAttention(2, 4, **WITH_BIASES, key=KEY), of_attention),
    "attention-causal": Case(lambda s: nn.MultiheadAttention(3, 6, is_causal=True, key=KEY), of_attention),
    "encoder-pre": Case(block, of_block),
    "encoder-post": Case(lambda s: block(s, norm_first=False), of_block),
    "decoder-pre": Case(lambda s: block(s, context_size=4), of_block),
}
CASES |= {
    f"conv-{mode}": Case(lambda s, mode=mode: nn.Conv2d(s.i, s.o, 3, 2, (2, 1), padding_mode=mode, key=KEY))
    for mode in ("circular", "reflect", "replicate")
}


class Sizes:
    """The sizes that were drawn for a case, as attributes."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.__dict__.update(sizes)


@functools.cache
def recorded() -> dict[str, dict[str, np.ndarray]]:
    """The arrays of each case."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, value in load_file(Path(__file__).parent / "fixtures" / "torch.safetensors").items():
        name, _, role = key.partition(":")
        found.setdefault(name, {})[role] = value
    return found


def group(arrays: Arrays, role: str) -> Arrays:
    """The arrays of one role, by name."""
    return {key.removeprefix(f"{role}/"): value for key, value in arrays.items() if key.startswith(f"{role}/")}


def loaded(case: Case, arrays: Arrays) -> Any:
    """Our layer with PyTorch's parameters."""
    # Only shapes: to draw parameters that are replaced would take most of the test's time.
    layer = jax.eval_shape(lambda: case.make(Sizes(json.loads(arrays["sizes"].tobytes()))))
    given = case.params(group(arrays, "param") | group(arrays, "buffer"))
    for path, value in given.items():
        assert ag.at(layer)[path].get().shape == value.shape, path
        layer = ag.at(layer)[path].set(jnp.asarray(value))
    assert len(given) == len(jax.tree.leaves(layer)), "a parameter of ours was given no value"
    return layer


def close(ours: Any, theirs: np.ndarray, what: str) -> None:
    """Equal to within a few roundings of the largest entry."""
    assert ours.shape == theirs.shape, what
    error = np.abs(np.asarray(ours, np.float64) - theirs)
    assert (error <= 2e-5 * max(np.abs(theirs).max(initial=0), 1)).all(), (what, error.max())


@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_state_are_pytorch_s(name: str) -> None:
    """With PyTorch's parameters a layer gives PyTorch's results, gradients and statistics, also under `vmap`."""
    case, arrays = CASES[name], recorded()[name]
    layer = loaded(case, arrays)
    inputs = tuple(jnp.asarray(value) for value in group(arrays, "in").values())
    weights = tuple(group(arrays, "weight").values())
    smooth = tuple(i for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating))

    @jax.jit
    def run(layer: Any, *inputs: Any) -> Any:
        def total(layer: Any, *inputs: Any) -> Any:
            call = ag.stateful(case.call) if case.state else lambda layer, *xs: (case.call(layer, *xs), layer)
            outs, after = call(layer, *inputs)
            outs = outs if isinstance(outs, tuple) else (outs,)
            return sum(jnp.vdot(out, weight) for out, weight in zip(outs, weights, strict=True)), (outs, after)

        argnums = (0, *(1 + i for i in smooth))
        (_, (outs, after)), (of_layer, *of_inputs) = jax.value_and_grad(total, argnums, has_aux=True)(layer, *inputs)
        is_batched = not case.state and inputs[0].ndim > 1
        mapped = jax.vmap(lambda *xs: case.call(layer, *xs))(*inputs) if is_batched else outs
        return outs, after, of_layer, of_inputs, mapped if isinstance(mapped, tuple) else (mapped,)

    outs, after, of_layer, of_inputs, mapped = run(layer, *inputs)
    for i, (out, one_by_one) in enumerate(zip(outs, mapped, strict=True)):
        close(out, arrays[f"out/{i}"], f"result {i}")
        close(one_by_one, arrays[f"out/{i}"], f"result {i} under vmap")
    for i, grad in zip(smooth, of_inputs, strict=True):
        close(grad, arrays[f"d_in/{i}"], f"gradient of input {i}")
    for path, grad in (case.grads or case.params)(group(arrays, "d_param")).items():
        close(ag.at(of_layer)[path].get(), grad, f"gradient of {path}")
    for ours, theirs in case.state:
        close(ag.at(after)[ours].get(), arrays[f"after/{theirs}"], f"{ours} after the call")


def test_every_recorded_case_is_compared() -> None:
    """No recording lies about unused."""
    assert set(recorded()) == set(CASES)
