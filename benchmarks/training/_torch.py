"""PyTorch: its layers and its Adam, fused. Imported only where PyTorch is there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ._size import RATE, Params, Size, channels_first
from ._trainer import Trainer


def with_arrays(layer: Any, **arrays: np.ndarray) -> Any:
    """The layer, with other arrays."""
    with torch.no_grad():
        for name, array in arrays.items():
            getattr(layer, name).copy_(torch.from_numpy(np.ascontiguousarray(array)))
    return layer


def dense(p: Params) -> nn.Linear:
    return with_arrays(nn.Linear(*p["w"].shape), weight=p["w"].T, bias=p["b"])


def mlp(params: Params) -> nn.Sequential:
    *hidden, last = (dense(p) for p in params["layers"])
    return nn.Sequential(*(each for layer in hidden for each in (layer, nn.ReLU())), last)


def conv(p: Params) -> nn.Conv2d:
    *_, into, out = p["w"].shape
    return with_arrays(nn.Conv2d(into, out, 5), weight=p["w"].transpose(3, 2, 0, 1), bias=p["b"])


def lenet(params: Params) -> nn.Sequential:
    convs = [each for p in params["convs"] for each in (conv(p), nn.ReLU(), nn.MaxPool2d(2))]
    return nn.Sequential(*convs, nn.Flatten(), mlp(channels_first(params)))


class Classifier(nn.Module):
    """An LSTM and a linear layer for what it says at the end."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        cell = params["cell"]
        arrays = {"weight_ih_l0": cell["wi"].T, "weight_hh_l0": cell["wh"].T, "bias_ih_l0": cell["b"]}
        layer = nn.LSTM(cell["wi"].shape[0], cell["wh"].shape[0], batch_first=True)
        self.lstm = with_arrays(layer, **arrays, bias_hh_l0=np.zeros_like(cell["b"]))
        self.head = dense(params["head"])

    def forward(self, x: Any) -> Any:
        """Logits for [batch, time, features]."""
        return self.head(self.lstm(x)[0][:, -1])


def norm(p: Params) -> nn.LayerNorm:
    return with_arrays(nn.LayerNorm(len(p["w"])), weight=p["w"], bias=p["b"])


class Block(nn.Module):
    """A block of a decoder."""

    def __init__(self, p: Params, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (dense(p[each]) for each in ("q", "k", "v", "o"))
        self.up, self.down = dense(p["up"]), dense(p["down"])
        self.norm1, self.norm2, self.heads = norm(p["norm1"]), norm(p["norm2"]), heads

    def forward(self, x: Any) -> Any:
        """The result for [batch, time, size]."""
        inside = self.norm1(x)
        q, k, v = (each(inside).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        taken = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(taken.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """A decoder."""

    def __init__(self, params: Params, heads: int) -> None:
        super().__init__()
        self.tokens = with_arrays(nn.Embedding(*params["tokens"].shape), weight=params["tokens"])
        self.places = nn.Parameter(torch.from_numpy(params["places"].copy()))
        self.blocks = nn.Sequential(*(Block(p, heads) for p in params["blocks"]))
        self.norm, self.head = norm(params["norm"]), dense(params["head"])

    def forward(self, x: Any) -> Any:
        """Logits for [batch, time] tokens."""
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places)))


def trainer(size: Size, *, compiled: bool) -> Trainer:
    params, (x, y) = size.drawn()
    if size.model == "transformer":
        model = Transformer(params, size.heads)
    else:
        model = {"mlp": mlp, "lenet": lenet, "lstm": Classifier}[size.model](params)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    x = x.movedim(-1, 1).contiguous() if size.model == "lenet" else x
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)

    def loss(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    if compiled:
        torch.compiler.reset()
        loss = torch.compile(loss)

    def step() -> float:
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        return value.item()

    def peak_bytes() -> int:
        held = [*model.parameters(), x, y]
        held += [each for state in optimizer.state.values() for each in state.values()]
        return sum(each.nbytes for each in held) + most_allocated(step)

    return Trainer(step, peak_bytes)


def most_allocated(call: Any) -> int:
    """The most bytes that a call has allocated at once, of memory that it allocated itself."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most
