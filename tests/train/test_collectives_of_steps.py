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
from aerogel import nn
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


def plainly(params: Any, x: Any, y: Any) -> Any:
    """The loss of blocks one by one."""
    return cross_entropy(_plain.transformer(params, x, SIZE.heads), y)


def by_hand(mesh: Any, spec: Spec, params: Any, batch: Any, loss_fn: Callable[..., Any] = plainly) -> Any:
    """The compiled step of a JAX user, who constrains what it returns."""
    places = jax.tree_util.tree_map_with_path(
        lambda path, x: NamedSharding(mesh, spec(jax.tree_util.keystr(path), x)), params
    )
    params, optimizer = jax.device_put(params, places), optax.adam(1e-3)
    state = optimizer.init(params)
    state_places = (state[0]._replace(count=NamedSharding(mesh, P()), mu=places, nu=places), state[1])

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return loss, optax.apply_updates(params, updates), state

    placed = functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=(None, places, state_places))
    return placed(step).lower(params, jax.device_put(state, state_places), *batch).compile()


def stepping(place: Callable[..., Any]) -> Any:
    """The step of a user of the kit, who constrains what it returns."""

    @ag.jit(donate="state")
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, model, optimizer = optimizer.step(lambda model, x: cross_entropy(model(x), y))(model, x)
        model = place(model)
        return loss, model, place(optimizer, like=model)

    return step


def started(model: Any) -> Any:
    """The optimiser of a model."""
    return ag.Optimizer(optax.adam(1e-3)).init(model)


@pytest.mark.parametrize("mix", MIXES)
def test_a_step_communicates_as_by_hand(mix: str) -> None:
    """Of each kind no more collectives, and no more bytes: the kit and the compiler add none."""
    rules, spec, batch_axes = MIXES[mix]
    mesh = jax.make_mesh((2, 4), ALL, (AxisType.Auto, AxisType.Auto))
    params, batch = SIZE.drawn()
    batch = jax.device_put(tuple(map(jnp.asarray, batch)), NamedSharding(mesh, P(batch_axes)))
    place = functools.partial(ag.shard, mesh=mesh, rules=rules)
    model = place(_ours.transformer(params, SIZE.heads))
    ours = stepping(place).lower(model, started(model), *batch).compile()
    no_more(collectives(by_hand(mesh, spec, params, batch)), collectives(ours))


def no_more(hand: Any, kit: Any) -> None:
    """Of each kind as many collectives as by hand at most."""
    assert hand["all-reduce"] > 0, "nothing to compare"
    assert all(kit[kind] <= hand[kind] for kind in kit), f"{dict(hand)} by hand, {dict(kit)} with the kit"


STACKED = transformer("four blocks", 4, 8, 16, 32, 4)
SAVED = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def by_scan(remat: Any, dtype: Any, params: Any, x: Any, y: Any) -> Any:
    """The loss of stacked blocks, written by hand: half precision, a scan, and what its gradient computes again."""
    params = jax.tree.map(lambda array: array.astype(dtype), params)

    def body(h: Any, block: Any) -> Any:
        h = h + _plain.attention(block, _plain.norm(block["norm1"], h), STACKED.heads)
        up = jax.nn.gelu(_plain.dense(block["up"], _plain.norm(block["norm2"], h)))
        return h + _plain.dense(block["down"], up), None

    h = params["tokens"][x] + params["places"]
    if remat == "sqrt":
        inner = jax.checkpoint(body, prevent_cse=False)
        blocks = jax.tree.map(lambda array: array.reshape(2, 2, *array.shape[1:]), params["blocks"])
        h, _ = jax.lax.scan(jax.checkpoint(lambda h, two: jax.lax.scan(inner, h, two)), h, blocks)
    else:
        policy: Any = remat if callable(remat) else None
        step = body if remat == "none" else jax.checkpoint(body, prevent_cse=False, policy=policy)
        h, _ = jax.lax.scan(step, h, params["blocks"])
    return cross_entropy(_plain.dense(params["head"], _plain.norm(params["norm"], h)).astype(jnp.float32), y)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("remat", ["none", "all", "sqrt", SAVED])
@pytest.mark.parametrize("mix", MIXES)
def test_a_stack_communicates_as_by_hand(mix: str, remat: Any, dtype: Any) -> None:
    """With layers stacked, half precision, and a gradient that computes again: no more of each kind, and equal losses.

    On one device the same model has these losses, within a sum in another order.
    """
    rules, spec, batch_axes = MIXES[mix]
    mesh = jax.make_mesh((2, 4), ALL, (AxisType.Auto, AxisType.Auto))
    params, arrays = STACKED.drawn()
    alone = tuple(map(jnp.asarray, arrays))
    batch = jax.device_put(alone, NamedSharding(mesh, P(batch_axes)))
    model: Any = ag.at(_ours.transformer(params, STACKED.heads, stacked=True)).blocks.replace(remat=remat)
    if dtype == jnp.bfloat16:
        model = nn.Precision(model, compute=dtype, output=jnp.float32)
    place = functools.partial(ag.shard, mesh=mesh, rules=rules)
    spread, step = place(model), stepping(place)
    compiled = step.lower(spread, started(spread), *batch).compile()

    stacked: Any = params | {"blocks": jax.tree.map(lambda *each: np.stack(each), *params["blocks"])}

    def spec_of(path: str, array: Any) -> P:
        return P(None, *spec(path, array[0])) if "blocks" in path else spec(path, array)

    hand = by_hand(mesh, spec_of, stacked, batch, functools.partial(by_scan, remat, dtype))
    no_more(collectives(hand), collectives(compiled))

    losses, one = three(step, spread, batch), three(stepping(lambda tree, **_: tree), model, alone)
    np.testing.assert_allclose(losses, one, rtol=1e-3 if dtype == jnp.bfloat16 else 1e-6)


def three(step: Any, model: Any, batch: Any) -> list[float]:
    """The losses of three steps."""
    model, optimizer = jax.tree.map(jnp.copy, (model, started(model)))  # what a step is given is donated
    losses = []
    for _ in range(3):
        loss, model, optimizer = step(model, optimizer, *batch)
        losses.append(float(loss))
    return losses
