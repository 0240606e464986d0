"""Records what PyTorch computes: run with torch==2.13.0 this writes `fixtures/torch.safetensors`.

For each case a layer of random size is run in float64 on parameters and inputs that are float32 numbers, and its
results, and the gradients of a random linear function of them, are stored as float32. So the error of what is compared
with them is the other side's alone. PyTorch is not needed to run the tests.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn.utils import parametrizations

Sizes = dict[str, int]


class Recorded:
    """One case: a layer, what it is called with, and what was chosen for it."""

    def __init__(self, layer: nn.Module, *inputs: Any, sizes: Sizes, call: Callable[..., Any] | None = None) -> None:
        self.layer = layer
        self.inputs = inputs
        self.sizes = sizes
        self.call = call or (lambda layer, *inputs: layer(*inputs))


class Draw:
    """Random sizes and inputs of a case."""

    def __init__(self, name: str) -> None:
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.sizes: Sizes = {}

    def __getattr__(self, name: str) -> int:
        """A size from 2 to 5, the same whenever it is asked for."""
        return self.sizes.setdefault(name, int(self.rng.integers(2, 6)))

    def normal(self, *shape: int) -> torch.Tensor:
        """Input numbers."""
        return torch.from_numpy(self.rng.normal(size=shape).astype(np.float32).astype(np.float64))

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        """Indices below `high`."""
        return torch.from_numpy(self.rng.integers(0, high, size=shape))


CASES: dict[str, Callable[[Draw], Recorded]] = {}


def case(name: str, make: Callable[[Draw], tuple[Any, ...]], call: Callable[..., Any] | None = None) -> None:
    """Adds a case: `make` gives the layer and its inputs."""

    def run(draw: Draw) -> Recorded:
        layer, *inputs = make(draw)
        return Recorded(layer, *inputs, sizes=draw.sizes, call=call)

    CASES[name] = run


def with_state(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results and last state of recurrent layers, the batch axis of the state first."""
    out, state = layer(x)
    return (out, *(each.transpose(0, 1) for each in (state if isinstance(state, tuple) else (state,))))


case("linear", lambda d: (nn.Linear(d.i, d.o), d.normal(d.n, d.m, d.i)))
case("linear-no-bias", lambda d: (nn.Linear(d.i, d.o, bias=False), d.normal(d.i)))
case("bilinear", lambda d: (nn.Bilinear(d.i, d.j, d.o), d.normal(d.n, d.i), d.normal(d.n, d.j)))
case("embedding", lambda d: (nn.Embedding(d.i, d.o), d.integers(d.i, d.n, 3)))
case("layer-norm", lambda d: (nn.LayerNorm(d.i), d.normal(d.n, d.m, d.i)))
case("layer-norm-2", lambda d: (nn.LayerNorm([d.i, d.j], eps=0.1), d.normal(d.n, d.i, d.j)))
case("layer-norm-bare", lambda d: (nn.LayerNorm(d.i, elementwise_affine=False), d.normal(d.n, d.i)))
case("rms-norm", lambda d: (nn.RMSNorm(d.i, eps=1e-5), d.normal(d.n, d.m, d.i)))
case("group-norm", lambda d: (nn.GroupNorm(2, 2 * d.i), d.normal(d.n, 2 * d.i, d.h, d.w)))
case("group-norm-0d", lambda d: (nn.GroupNorm(2, 2 * d.i), d.normal(d.n, 2 * d.i)))
case("instance-norm-1d", lambda d: (nn.InstanceNorm1d(d.i), d.normal(d.n, d.i, d.w)))
case("instance-norm-2d", lambda d: (nn.InstanceNorm2d(d.i, affine=True), d.normal(d.n, d.i, d.h, d.w)))
case("instance-norm-3d", lambda d: (nn.InstanceNorm3d(d.i, affine=True), d.normal(d.n, d.i, 2, d.h, d.w)))
case("batch-norm-0d", lambda d: (nn.BatchNorm1d(d.i), d.normal(d.n, d.i)))
case("batch-norm-1d", lambda d: (nn.BatchNorm1d(d.i, momentum=0.3), d.normal(d.n, d.i, d.w)))
case("batch-norm-2d", lambda d: (nn.BatchNorm2d(d.i), d.normal(d.n, d.i, d.h, d.w)))
case("batch-norm-eval", lambda d: (nn.BatchNorm2d(d.i).eval(), d.normal(d.n, d.i, d.h, d.w)))
case("prelu", lambda d: (nn.PReLU(), d.normal(d.n, d.i)))
case("prelu-channels", lambda d: (nn.PReLU(d.i), d.normal(d.n, d.i, d.h, d.w)))
case("weight-norm", lambda d: (parametrizations.weight_norm(nn.Linear(d.i, d.o)), d.normal(d.n, d.i)))
case("spectral-norm", lambda d: (parametrizations.spectral_norm(nn.Linear(d.i, d.o)), d.normal(d.n, d.i)))

case("conv-1d", lambda d: (nn.Conv1d(d.i, d.o, 3), d.normal(d.n, d.i, 8)))
case("conv-2d", lambda d: (nn.Conv2d(d.i, d.o, (3, 2), (2, 1), (1, 2), (1, 2)), d.normal(d.n, d.i, 8, 7)))
case("conv-3d", lambda d: (nn.Conv3d(d.i, d.o, (2, 3, 2), padding=1), d.normal(d.n, d.i, 3, 4, 5)))
case("conv-same", lambda d: (nn.Conv2d(d.i, d.o, (4, 3), padding="same", dilation=(1, 2)), d.normal(d.n, d.i, 8, 7)))
case("conv-groups", lambda d: (nn.Conv2d(2 * d.i, 2 * d.o, 3, groups=2), d.normal(d.n, 2 * d.i, 5, 6)))
case("conv-depthwise", lambda d: (nn.Conv1d(d.i, 2 * d.i, 3, groups=d.i, bias=False), d.normal(d.n, d.i, 6)))
for mode in ("circular", "reflect", "replicate"):
    case(
        f"conv-{mode}",
        lambda d, mode=mode: (
            nn.Conv2d(d.i, d.o, 3, padding=(2, 1), padding_mode=mode, stride=2),
            d.normal(d.n, d.i, 5, 6),
        ),
    )
case("conv-t-1d", lambda d: (nn.ConvTranspose1d(d.i, d.o, 3), d.normal(d.n, d.i, 5)))
case(
    "conv-t-2d",
    lambda d: (nn.ConvTranspose2d(d.i, d.o, (3, 4), (2, 3), (1, 2), (1, 2)), d.normal(d.n, d.i, 4, 3)),
)
case(
    "conv-t-groups",
    lambda d: (nn.ConvTranspose2d(2 * d.i, 2 * d.o, 3, 2, groups=2, dilation=2), d.normal(d.n, 2 * d.i, 3, 4)),
)
case("conv-t-3d", lambda d: (nn.ConvTranspose3d(d.i, d.o, 2, 2), d.normal(d.n, d.i, 2, 3, 2)))

case("avg-1d", lambda d: (nn.AvgPool1d(3, 2), d.normal(d.n, d.i, 8)))
case("avg-2d-padded", lambda d: (nn.AvgPool2d(3, 2, 1), d.normal(d.n, d.i, 7, 6)))
case("avg-2d-ceil", lambda d: (nn.AvgPool2d((3, 2), 2, (1, 0), ceil_mode=True), d.normal(d.n, d.i, 6, 7)))
case("avg-2d-uncounted", lambda d: (nn.AvgPool2d(3, 2, 1, count_include_pad=False), d.normal(d.n, d.i, 7, 6)))
case("avg-3d", lambda d: (nn.AvgPool3d(2), d.normal(d.n, d.i, 4, 5, 4)))
case("max-1d", lambda d: (nn.MaxPool1d(3, 2, dilation=2), d.normal(d.n, d.i, 9)))
case("max-2d", lambda d: (nn.MaxPool2d(2), d.normal(d.n, d.i, 7, 6)))
case("max-2d-ceil", lambda d: (nn.MaxPool2d(3, 2, 1, ceil_mode=True), d.normal(d.n, d.i, 6, 7)))
# The last window would start behind the end, in the padding: it does not count.
case("avg-ceil-end", lambda d: (nn.AvgPool1d(2, 3, 1, ceil_mode=True), d.normal(d.n, d.i, 4)))
case("max-ceil-end", lambda d: (nn.MaxPool1d(2, 3, 1, ceil_mode=True), d.normal(d.n, d.i, 4)))
case("max-3d", lambda d: (nn.MaxPool3d(2, 1), d.normal(d.n, d.i, 3, 4, 3)))
case("adaptive-avg-1d", lambda d: (nn.AdaptiveAvgPool1d(3), d.normal(d.n, d.i, 7)))
case("adaptive-avg-2d", lambda d: (nn.AdaptiveAvgPool2d((3, 5)), d.normal(d.n, d.i, 9, 4)))
case("adaptive-max-2d", lambda d: (nn.AdaptiveMaxPool2d((2, 3)), d.normal(d.n, d.i, 5, 7)))
case("adaptive-avg-3d", lambda d: (nn.AdaptiveAvgPool3d(2), d.normal(d.n, d.i, 3, 4, 5)))

case("rnn-cell", lambda d: (nn.RNNCell(d.i, d.o), d.normal(d.n, d.i), d.normal(d.n, d.o)))
case("gru-cell", lambda d: (nn.GRUCell(d.i, d.o), d.normal(d.n, d.i), d.normal(d.n, d.o)))
case(
    "lstm-cell",
    lambda d: (nn.LSTMCell(d.i, d.o), d.normal(d.n, d.i), d.normal(d.n, d.o), d.normal(d.n, d.o)),
    lambda layer, x, h, c: layer(x, (h, c)),
)
case("rnn", lambda d: (nn.RNN(d.i, d.o, 2, nonlinearity="relu", batch_first=True), d.normal(d.n, d.t, d.i)), with_state)
case("gru", lambda d: (nn.GRU(d.i, d.o, 2, batch_first=True, bidirectional=True), d.normal(d.n, d.t, d.i)), with_state)
case(
    "lstm",
    lambda d: (nn.LSTM(d.i, d.o, 2, batch_first=True, bidirectional=True), d.normal(d.n, d.t, d.i)),
    with_state,
)
case(
    "attention",
    lambda d: (nn.MultiheadAttention(4, 2, batch_first=True), *(d.normal(d.n, t, 4) for t in (d.t, d.s, d.s))),
    lambda layer, q, k, v: layer(q, k, v, need_weights=False)[0],
)
case(
    "attention-causal",
    lambda d: (nn.MultiheadAttention(6, 3, bias=False, batch_first=True), d.normal(d.n, d.t, 6)),
    lambda layer, x: layer(x, x, x, need_weights=False, attn_mask=torch.ones(x.shape[1], x.shape[1]).triu(1).bool())[0],
)
for first in (False, True):
    case(
        f"encoder-{'pre' if first else 'post'}",
        lambda d, first=first: (
            nn.TransformerEncoderLayer(4, 2, 2 * d.o, 0.0, batch_first=True, norm_first=first),
            d.normal(d.n, d.t, 4),
        ),
    )
case(
    "decoder-pre",
    lambda d: (
        nn.TransformerDecoderLayer(4, 2, 2 * d.o, 0.0, batch_first=True, norm_first=True),
        d.normal(d.n, d.t, 4),
        d.normal(d.n, d.s, 4),
    ),
)


def rounded(layer: nn.Module, rng: np.random.Generator) -> nn.Module:
    """The layer in float64, with parameters and statistics that are random float32 numbers."""
    layer = layer.double()
    with torch.no_grad():
        for each in layer.parameters():
            drawn = each.numpy() + 0.2 * rng.normal(size=each.shape)
            each.copy_(torch.from_numpy(np.asarray(drawn, np.float32).astype(np.float64)))
        for name, each in layer.named_buffers():
            if each.is_floating_point():
                shift = 0.2 * rng.random(each.shape) if "running" in name else 0.0
                each.copy_(torch.from_numpy((each.numpy() + shift).astype(np.float32).astype(np.float64)))
    return layer


def record(name: str) -> dict[str, np.ndarray]:
    """The arrays of one case, by role and name."""
    draw = Draw(name)
    torch.manual_seed(zlib.crc32(name.encode()))
    found = CASES[name](draw)
    layer = rounded(found.layer, draw.rng)
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in found.inputs]
    kept = {f"param/{key}": each for key, each in layer.named_parameters()}
    kept |= {f"buffer/{key}": each for key, each in layer.named_buffers() if each.is_floating_point()}
    kept |= {f"in/{i}": x for i, x in enumerate(inputs)}
    arrays = {key: each.detach().numpy().copy() for key, each in kept.items()}
    outs = found.call(layer, *inputs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    weights = [draw.normal(*out.shape) for out in outs]
    sum((out * weight).sum() for out, weight in zip(outs, weights, strict=True)).backward()
    after = {f"out/{i}": out for i, out in enumerate(outs)} | {f"weight/{i}": each for i, each in enumerate(weights)}
    after |= {f"d_in/{i}": x.grad for i, x in enumerate(inputs) if x.is_floating_point()}
    after |= {f"d_param/{key}": each.grad for key, each in layer.named_parameters()}
    after |= {f"after/{key}": each for key, each in layer.named_buffers() if each.is_floating_point()}
    arrays |= {key: each.detach().numpy() for key, each in after.items()}
    arrays["sizes"] = np.frombuffer(json.dumps(found.sizes).encode(), np.uint8)
    return {
        f"{name}:{key}": np.ascontiguousarray(each, np.float32 if each.dtype == np.float64 else None)
        for key, each in arrays.items()
    }


if __name__ == "__main__":
    everything: dict[str, np.ndarray] = {}
    for each in CASES:
        everything |= record(each)
    save_file(everything, Path(__file__).parent / "fixtures" / "torch.safetensors")
