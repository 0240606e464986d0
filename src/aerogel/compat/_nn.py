"""`eqx.nn`: Equinox's layers, as modules of Aerogel's. One key draws the parameters that it draws in Equinox."""

from typing import NoReturn

from aerogel.nn import Identity as Identity
from aerogel.nn import Lambda as Lambda
from aerogel.nn import WeightNorm as WeightNorm

from ._layers.activation import PReLU as PReLU
from ._layers.attention import MultiheadAttention as MultiheadAttention
from ._layers.batch_norm import BatchNorm as BatchNorm
from ._layers.cells import GRUCell as GRUCell
from ._layers.cells import LSTMCell as LSTMCell
from ._layers.conv import Conv as Conv
from ._layers.conv import ConvTranspose as ConvTranspose
from ._layers.conv_nd import Conv1d as Conv1d
from ._layers.conv_nd import Conv2d as Conv2d
from ._layers.conv_nd import Conv3d as Conv3d
from ._layers.conv_nd import ConvTranspose1d as ConvTranspose1d
from ._layers.conv_nd import ConvTranspose2d as ConvTranspose2d
from ._layers.conv_nd import ConvTranspose3d as ConvTranspose3d
from ._layers.dropout import Dropout as Dropout
from ._layers.linear import Embedding as Embedding
from ._layers.linear import Linear as Linear
from ._layers.mlp import MLP as MLP
from ._layers.norm import GroupNorm as GroupNorm
from ._layers.norm import LayerNorm as LayerNorm
from ._layers.norm import RMSNorm as RMSNorm
from ._layers.pool import AdaptivePool as AdaptivePool
from ._layers.pool import Pool as Pool
from ._layers.pool_nd import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from ._layers.pool_nd import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from ._layers.pool_nd import AdaptiveAvgPool3d as AdaptiveAvgPool3d
from ._layers.pool_nd import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from ._layers.pool_nd import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from ._layers.pool_nd import AdaptiveMaxPool3d as AdaptiveMaxPool3d
from ._layers.pool_nd import AvgPool1d as AvgPool1d
from ._layers.pool_nd import AvgPool2d as AvgPool2d
from ._layers.pool_nd import AvgPool3d as AvgPool3d
from ._layers.pool_nd import MaxPool1d as MaxPool1d
from ._layers.pool_nd import MaxPool2d as MaxPool2d
from ._layers.pool_nd import MaxPool3d as MaxPool3d
from ._layers.rotary import RotaryPositionalEmbedding as RotaryPositionalEmbedding
from ._layers.sequential import Sequential as Sequential
from ._layers.sequential import StatefulLayer as StatefulLayer
from ._layers.shared import Shared as Shared
from ._layers.spectral_norm import SpectralNorm as SpectralNorm
from ._layers.state import State as State
from ._layers.state import StateIndex as StateIndex
from ._layers.state import delete_init_state as delete_init_state
from ._layers.state import make_with_state as make_with_state
from ._missing import refusal
from ._tree import tree_inference as _tree_inference

inference_mode = _tree_inference


def __getattr__(name: str) -> NoReturn:
    public = [each for each in globals() if not each.startswith("_") and each not in ("NoReturn", "refusal")]
    raise refusal(name, "aerogel.compat.equinox.nn", public)
