"""Layers: what they take, and what their attributes are."""

from typing import assert_type

import jax
from values import X

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)

layer = nn.Linear(3, 4, key=KEY)
assert_type(layer(X), jax.Array)
assert_type(nn.Linear("scalar", 4, init=jax.nn.initializers.he_normal(), key=KEY), nn.Linear)
nn.Linear(3, 4)  # pyright: ignore[reportCallIssue]
nn.Linear(3, "four", key=KEY)  # pyright: ignore[reportArgumentType]
assert_type(nn.Conv2d(3, 4, (3, 3), padding="same", key=KEY)(X), jax.Array)
nn.Conv2d(3, 4, 3)  # pyright: ignore[reportCallIssue]
assert_type(nn.Sequential(layer, jax.nn.relu)[:1], nn.Sequential)
assert_type(nn.Identity()(3), int)
assert_type(ag.inference(nn.Dropout(0.1)), nn.Dropout)
assert_type(ag.training(layer), nn.Linear)
stack = nn.Stack(lambda key: nn.Linear(3, 3, key=key), 4, key=KEY)
assert_type(stack[0], nn.Linear)
assert_type(stack[1:], nn.Stack[nn.Linear])
assert_type(nn.Stack.from_list([layer, layer]), nn.Stack[nn.Linear])
nn.Stack(lambda key: nn.Linear(3, 3, key=key), 4, "some", key=KEY)
outs, (h, c) = nn.LSTM(3, 4, key=KEY)(X)
assert_type(outs, jax.Array)
attention = nn.MultiheadAttention(2, 4, key=KEY)
assert_type(nn.with_cache(attention, 10), nn.MultiheadAttention)
assert_type(nn.merged(attention)(X), jax.Array)
nn.MultiheadAttention(2, key=KEY)  # pyright: ignore[reportCallIssue]
