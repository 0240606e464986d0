"""A step of `ag.Optimizer` on a sharded model communicates as one that is written by hand with dicts of arrays."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import aerogel as ag
from benchmarks.training import _ours, _plain
from benchmarks.training._size import transformer
from benchmarks.training._trainer import cross_entropy
from contract._collectives import collectives

ALL = ("data", "model")
SIZE = transformer("one block", 1, 8, 16, 32, 4)
TENSOR: dict[str, Any] = {
    "**.attention.output_proj.weight": {"in": "model"},
    "**.attention.output_proj.bias": P(),
    "**.attention.*": {"out": "model"},
    "**.up": {"out": "model"},
    "**.down.weight": {"in": "model"},
}
Spec = Callable[[str, Any], P]


def along_the_largest(axes: Any, count: int) -> Spec:
    """Each array is divided along its largest axis that can be."""

    def spec(path: str, array: Any) -> P:
        sizes = [n if n % count == 0 else 0 for n in array.shape]
        largest = int(np.argmax(sizes))
        return P(*(axes if d == largest and sizes[d] else None for d in range(array.ndim)))

    return spec


def whole(path: str, array: Any) -> P:
    """Each array is everywhere."""
    return P()


def by_heads(rest: Spec) -> Spec:
    """Tensor parallelism for what stands in blocks, as `TENSOR` says."""

    def spec(path: str, array: Any) -> P:
        layer, _, kind = path.removesuffix("']").rpartition("']['")
        layer = layer.rpartition("['")[2]
        if "blocks" in path and layer in ("q", "k", "v", "up"):
            return P(None, "model") if kind == "w" else P("model")
        if "blocks" in path and layer in ("o", "down") and kind == "w":
            return P("model", None)
        return rest(path, array)

    return spec


MIXES: dict[str, tuple[Any, Spec, Any]] = {
    "data": ({}, whole, ALL),
    "fully": ({"**": ALL}, along_the_largest(ALL, 8), ALL),
    "tensor and fully": (TENSOR | {"**": "data"}, by_heads(along_the_largest("data", 2)), "data"),
}


def by_hand(mesh: Any, spec: Spec, params: Any, batch: Any) -> Any:
    """The compiled step of a JAX user, who constrains what it returns."""
    places = jax.tree_util.tree_map_with_path(
        lambda path, x: NamedSharding(mesh, spec(jax.tree_util.keystr(path), x)), params
    )
    params, optimizer = jax.device_put(params, places), optax.adam(1e-3)
    state = optimizer.init(params)
    state_places = (state[0]._replace(count=NamedSharding(mesh, P()), mu=places, nu=places), state[1])

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(_plain.transformer(p, x, SIZE.heads), y))(params)
        updates, state = optimizer.update(grads, state, params)
        return loss, optax.apply_updates(params, updates), state

    placed = functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=(None, places, state_places))
    return placed(step).lower(params, jax.device_put(state, state_places), *batch).compile()


def ours(mesh: Any, rules: Any, params: Any, batch: Any) -> Any:
    """The compiled step of a user of the kit."""
    model = ag.shard(_ours.transformer(params, SIZE.heads), mesh, rules)
    optimizer = ag.Optimizer(optax.adam(1e-3)).init(model)

    @ag.jit(donate="state")
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, model, optimizer = optimizer.step(lambda model, x: cross_entropy(model(x), y))(model, x)
        model = ag.shard(model, mesh, rules)
        return loss, model, ag.shard(optimizer, mesh, rules, like=model)

    return step.lower(model, optimizer, *batch).compile()


@pytest.mark.parametrize("mix", MIXES)
def test_a_step_communicates_as_by_hand(mix: str) -> None:
    """Of each kind no more collectives, and no more bytes: the kit and the compiler add none."""
    rules, spec, batch_axes = MIXES[mix]
    mesh = jax.make_mesh((2, 4), ALL, (AxisType.Auto, AxisType.Auto))
    params, batch = SIZE.drawn()
    batch = jax.device_put(tuple(map(jnp.asarray, batch)), NamedSharding(mesh, P(batch_axes)))
    hand, kit = collectives(by_hand(mesh, spec, params, batch)), collectives(ours(mesh, rules, params, batch))
    assert hand["all-reduce"] > 0, "nothing to compare"
    assert all(kit[kind] <= hand[kind] for kind in kit), f"{dict(hand)} by hand, {dict(kit)} with the kit"
