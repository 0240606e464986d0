"""Layers under a mesh of explicit axes, where types carry shardings."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from aerogel import nn


def test_a_batch_that_is_split_goes_through_tables_and_loops() -> None:
    """An embedding and a recurrent layer give what they give on one device, its gradient too; all of it is split."""
    key = jax.random.key(0)
    model = nn.Embedding(8, 4, key=key), nn.LSTM(4, 4, key=key)
    tokens = jax.random.randint(key, (8, 3), 0, 8)

    def run(model: Any, tokens: Any) -> Any:
        table, layer = model
        rows = table(tokens)
        return rows, layer(rows)

    def loss(model: Any, tokens: Any) -> Any:
        return sum(jnp.square(x).sum() for x in jax.tree.leaves(run(model, tokens)[1]))

    wanted = run(model, tokens), jax.grad(loss)(model, tokens)
    with jax.set_mesh(jax.make_mesh((8,), ("data",), (AxisType.Explicit,))):
        split, whole = (NamedSharding(jax.sharding.get_mesh(), PartitionSpec(*axes)) for axes in (["data"], []))
        args = jax.device_put(model, whole), jax.device_put(tokens, split)
        got = jax.jit(run)(*args), jax.jit(jax.grad(loss))(*args)
    assert all(jax.typeof(x).sharding.spec[0] == "data" for x in jax.tree.leaves(got[0]))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
