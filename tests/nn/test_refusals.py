"""What does not fit is told where it is, before anything is computed; nothing that is wrong is computed silently."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)
BOOLS = jnp.ones((5, 5), bool)


def ones(*shape: int) -> Any:
    """An array of ones."""
    return jnp.ones(shape)


class Model(ag.Module):
    """A model that holds a layer."""

    head: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.head(*args, **kwargs)


def recurrent(cls: Any) -> Any:
    """Two layers."""
    return cls(3, 4, 2, key=KEY)


ATTENTION = nn.MultiheadAttention(2, 8, key=KEY)
EINSUM = nn.Einsum("...i,ihd->...hd", (6, 2, 4), key=KEY)
CALLS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "einsum": (EINSUM, (ones(5, 7),), "f32[...,6]"),
    "einsum of all axes": (nn.Einsum("ij,jk->ik", (3, 4), key=KEY), (ones(5, 2, 3),), "f32[i,3]"),
    "einsum, dots behind": (nn.Einsum("i...,ij->j...", (3, 4), key=KEY), (ones(2, 5),), "f32[3,...]"),
    "bilinear": (nn.Bilinear(2, 3, 4, key=KEY), (ones(5, 2), ones(6, 3)), "f32[5,3]"),
    "convolution in too little space": (nn.Conv2d(3, 4, 5, padding=1, key=KEY), (ones(2, 3, 2, 8),), "3 or more"),
    "dilated convolution": (nn.Conv1d(3, 4, 3, dilation=3, key=KEY), (ones(3, 6),), "f32[3,7 or more]"),
    "circular convolution": (nn.Conv1d(3, 4, 5, padding_mode="circular", key=KEY), (ones(3, 4),), "5 or more"),
    "pooling in too little space": (nn.MaxPool2d(3), (ones(2, 3, 2, 8),), "f32[2,3,3 or more,3 or more]"),
    "mean of too little space": (nn.AvgPool1d(3), (ones(2, 2),), "3 or more"),
    "adaptive pooling of nothing": (nn.AdaptiveAvgPool1d(3), (ones(2, 0),), "1 or more"),
    "keys of another number than values": (ATTENTION, (ones(2, 5, 8), ones(2, 4, 8), ones(2, 3, 8)), "f32[...,4,8]"),
    "attention over other batches": (ATTENTION, (ones(2, 5, 8), ones(3, 5, 8)), "f32[2,5,8]"),
    "attention without time": (ATTENTION, (ones(8),), "f32[...,time,8]"),
    "mask": (ATTENTION, (ones(3, 5, 8), None, None, BOOLS[:4, :4]), "bool[3,2,5,5]"),
    "mask by batch, without heads": (ATTENTION, (ones(3, 5, 8), None, None, BOOLS[None].repeat(3, 0)), "bool[3,2,5,5]"),
    "mask of numbers to be added": (ATTENTION, (ones(5, 8), None, None, ones(5, 5)), "True where a query sees a key"),
    "no context": (nn.TransformerBlock(2, 8, context_size=8, key=KEY), (ones(5, 8),), "an array"),
    "a context too many": (nn.TransformerBlock(2, 8, key=KEY), (ones(5, 8), ones(5, 8)), "made without context_size"),
    "state of more layers": (recurrent(nn.GRU), (ones(7, 5, 3), ones(7, 3, 4)), "f32[...,2,4]"),
    "state of one layer": (recurrent(nn.RNN), (ones(7, 5, 3), ones(7, 1, 4)), "f32[...,2,4]"),
    "state of other batches": (recurrent(nn.GRU), (ones(7, 5, 3), ones(6, 2, 4)), "f32[7,4]"),
    "state without batches": (recurrent(nn.GRU), (ones(7, 5, 3), ones(2, 4)), "f32[7,4]"),
    "state of another dtype": (recurrent(nn.GRU), (ones(7, 5, 3), ones(7, 2, 4).astype(jnp.bfloat16)), "f32[7,4]"),
    "two states": (recurrent(nn.GRU), (ones(7, 5, 3), (ones(7, 2, 4), ones(7, 2, 4))), "an array"),
    "one state": (recurrent(nn.LSTM), (ones(7, 5, 3), ones(7, 2, 4)), "a last axis of size 4"),
    "memory of another size": (nn.LSTMCell(3, 4, key=KEY), (ones(3), (ones(4), ones(1))), "f32[...,4]"),
    "state of a linear recurrence": (nn.LinearRecurrentUnit(3, 4, key=KEY), (ones(5, 3), ones(3)), "f32[4]"),
    "results and a state": (nn.Sequential(recurrent(nn.GRU), nn.Linear(4, 2, key=KEY)), (ones(5, 3),), "an array"),
    "shared axes": (nn.Dropout(0.5, shared_axes=(3,)), (ones(2, 2),), "an array with an axis 3"),
}


@pytest.mark.parametrize("name", CALLS)
def test_inputs_that_do_not_fit(name: str) -> None:
    """The error names the place of the layer, what it got, and what it takes."""
    layer, args, wanted = CALLS[name]
    key = {"key": KEY} if isinstance(layer, nn.Dropout) else {}
    with pytest.raises(nn.InputError) as caught:
        jax.eval_shape(lambda model, *args: model(*args, **key), Model(layer), *args)
    assert caught.value.place.startswith("model.head")
    assert wanted in caught.value.wanted
    assert caught.value.got


MAKERS: dict[str, Callable[[], Any]] = {
    "init": lambda: nn.Linear(3, 4, init="xavier", key=KEY),  # type: ignore[arg-type]
    "init of another shape": lambda: nn.Linear(3, 4, init=lambda *_: ones(2, 2), key=KEY),
    "size below 0": lambda: nn.Linear(-1, 3, key=KEY),
    "size with a fraction": lambda: nn.Conv2d(3, 4, 2.5, key=KEY),  # type: ignore[arg-type]
    "size by a word": lambda: nn.Linear("scaler", 3, key=KEY),  # type: ignore[arg-type]
    "kernel": lambda: nn.Conv2d(3, 4, 0, key=KEY),
    "stride": lambda: nn.Conv2d(3, 4, 3, stride=0, key=KEY),
    "dilation": lambda: nn.ConvTranspose1d(3, 4, 3, dilation=0, key=KEY),
    "window": lambda: nn.MaxPool2d(0),
    "stride of windows": lambda: nn.AvgPool2d(2, stride=0),
    "three paddings for an axis": lambda: nn.Conv1d(3, 4, 3, padding=[(1, 2, 3)], key=KEY),  # type: ignore[list-item]
    "padding with a fraction": lambda: nn.Conv1d(3, 4, 3, padding=1.5, key=KEY),  # type: ignore[arg-type]
    "padding by name": lambda: nn.MaxPool2d(2, padding="same"),
    "target": lambda: nn.AdaptiveAvgPool2d(-1),
    "equation": lambda: nn.Einsum("...i,ij->...k", (6, 2), key=KEY),
    "bias of an equation": lambda: nn.Einsum("...i,ij->...j", (6, 2), (3,), key=KEY),
    "axes of a bias": lambda: nn.Einsum("bi,ij->bj", (6, 2), (5, 4, 2), key=KEY),
    "heads": lambda: nn.MultiheadAttention(3, 8, key=KEY),
    "no heads": lambda: nn.MultiheadAttention(0, 8, key=KEY),
    "no heads of keys": lambda: nn.MultiheadAttention(4, 8, num_kv_heads=0, key=KEY),
    "rotation": lambda: nn.MultiheadAttention(2, 8, rotary=nn.RotaryPositionalEmbedding(8), key=KEY),
    "layers": lambda: nn.RNN(3, 4, 0, key=KEY),
    "depth": lambda: nn.MLP(2, 2, 2, -1, key=KEY),
    "length of a stack": lambda: nn.Stack(lambda key: nn.Linear(3, 3, key=key), -1, key=KEY),
    "remat": lambda: nn.Stack(lambda key: nn.Linear(3, 3, key=key), 3, remat=True, key=KEY),  # type: ignore[arg-type]
    "unsigned integers": lambda: nn.Quantized(ones(3, 3), jnp.uint8),
    "axis of lengths": lambda: nn.WeightNorm(nn.Linear(3, 3, key=KEY), axis=5),
    "no weight": lambda: nn.SpectralNorm(nn.Linear(3, 3, False, key=KEY), "bias", key=KEY),
    "momentum": lambda: nn.BatchNorm(3, momentum=2.0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_arguments_that_do_not_fit(name: str) -> None:
    """They are refused where the layer is made."""
    with pytest.raises(ag.UsageError):
        MAKERS[name]()


def test_numpy_s_integers_are_integers() -> None:
    """Sizes that NumPy computed are taken as those of Python."""
    three: Any = np.int64(3)
    layer = nn.Conv2d(three, three, three, stride=(three, 1), padding=(three, 0), key=KEY)
    assert layer == nn.Conv2d(3, 3, 3, stride=(3, 1), padding=(3, 0), key=KEY)
    stack = nn.Stack(lambda key: nn.Linear(3, 3, key=key), 5, key=KEY)
    assert (stack[three + 1].weight == stack[4].weight).all()
    with pytest.raises(IndexError, match="has no layer 7"):
        stack[three + 4]


def test_a_change_of_all_layers_at_once_is_told() -> None:
    """An adapter is made for the weight of one layer; around the stacked ones, the stack cannot be cut into layers."""
    stack = nn.Stack(lambda key: nn.Linear(4, 4, key=key), 5, key=KEY)
    wrong = ag.at(stack).layers.weight.apply(lambda weight: nn.LoRA(weight, 2, key=KEY))
    with pytest.raises(nn.InputError, match=r"weight\.a in the layers of a stack is not stacked") as caught:
        Model(wrong)(ones(3, 4))
    assert caught.value.place == "model.head (Stack)"
    right = stack.map(lambda layer: ag.at(layer).weight.apply(lambda weight: nn.LoRA(weight, 2, key=KEY)))
    np.testing.assert_allclose(right(ones(3, 4)), stack(ones(3, 4)), rtol=1e-6)
