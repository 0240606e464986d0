"""An optimiser trains what a model says is trained, and nothing of it depends on how a step is run."""

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import aerogel as ag
from aerogel import nn
from compiler.loop_patterns import stacked


class Tied(ag.Module):
    """A model with one parameter in two places, one that is frozen, statistics and a counter."""

    embed: jax.Array
    head: jax.Array
    scale: jax.Array
    mean: ag.Variable
    calls: jax.Array

    def __init__(self, *, key: jax.Array) -> None:
        self.embed = self.head = jax.random.normal(key, (4, 3))
        self.scale = jnp.full(3, 2.0)
        self.mean = ag.Variable(jnp.zeros(3))
        self.calls = jnp.array(7)

    def __call__(self, x: Any) -> Any:
        hidden = x @ self.embed * self.scale
        self.mean.set(0.5 * self.mean + 0.5 * hidden.mean(0))
        return jnp.tanh(hidden) @ self.head.T


def square(model: Any, x: Any) -> Any:
    """A loss."""
    return jnp.square(model(x) - 1).mean()


MODEL = ag.freeze(Tied(key=jax.random.key(0)), "scale")
X = jax.random.normal(jax.random.key(1), (8, 4))


def same(one: Any, other: Any, **tolerance: Any) -> None:
    """Raises if two trees differ."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if callable(a) or isinstance(a, str):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, **{"rtol": 0, "atol": 0} | tolerance)


def by_hand(model: Tied, x: Any, steps: int) -> tuple[jax.Array, jax.Array]:
    """Parameter and statistics after some steps of Optax's adamw on the one array that is trained."""
    tx = optax.adamw(1e-2)

    def loss(weight: Any, mean: Any) -> Any:
        hidden = x @ weight * 2.0
        return jnp.square(jnp.tanh(hidden) @ weight.T - 1).mean(), 0.5 * mean + 0.5 * hidden.mean(0)

    weight, mean = model.embed, model.mean.value
    state = tx.init(weight)
    for _ in range(steps):
        (_, mean), grads = jax.value_and_grad(loss, has_aux=True)(weight, mean)
        updates, state = tx.update(grads, state, weight)
        weight = optax.apply_updates(weight, updates)
    return weight, mean


def test_a_step_trains_what_is_trained() -> None:
    """One state for a tied array, none for frozen ones, variables and integers; numbers are Optax's."""
    optimizer = ag.Optimizer(optax.adamw(1e-2)).init(MODEL)
    assert optimizer.paths == ("embed",)
    assert sum(x.size for x in jax.tree.leaves(optimizer.state)) == 2 * MODEL.embed.size + 1

    @ag.jit(donate="state")
    def step(model: Any, optimizer: Any) -> Any:
        return optimizer.step(square)(model, X)

    model = jax.tree.map(jnp.copy, MODEL)
    for _ in range(3):
        given = model
        loss, model, optimizer = step(model, optimizer)
    weight, mean = by_hand(MODEL, X, 3)
    np.testing.assert_allclose(model.embed, weight, rtol=1e-5)
    np.testing.assert_allclose(model.mean.value, mean, rtol=1e-5)
    assert model.head is model.embed
    same((model.scale, model.calls), (MODEL.scale, MODEL.calls))
    assert given.embed.is_deleted()
    assert jnp.isfinite(loss)


def test_gradients_of_jax_and_aerogel_do_equally() -> None:
    """`jax.grad` has zeros where `ag.grad` has None: with weight decay, neither moves what is frozen."""
    model = ag.freeze(nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), "layers[0]")
    optimizer = ag.Optimizer(optax.adamw(1e-1)).init(model)
    results = [optimizer.update(model, grad(square)(model, X[:, :3])) for grad in (jax.grad, ag.grad)]
    same(*results)
    same(results[0][0].layers[0], model.layers[0])
    assert not np.allclose(results[0][0].layers[1].weight, model.layers[1].weight)


def test_optimisers_of_parts() -> None:
    """`wrt` chooses; two optimisers train two parts of one model."""
    model = nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    one = ag.Optimizer(optax.sgd(0.1), wrt="layers[0]").init(model)
    two = ag.Optimizer(optax.adam(0.1), wrt=["layers[1].weight", "layers[1].bias"]).init(model)
    assert set(one.paths) == {"layers[0].weight", "layers[0].bias"}
    grads = ag.grad(square)(model, X[:, :3])
    new, one = one.update(model, grads)
    same(new.layers[1], model.layers[1])
    newer, two = two.update(new, grads)
    same(newer.layers[0], new.layers[0])
    assert not np.allclose(newer.layers[1].weight, model.layers[1].weight)
    jax.jit(lambda optimizer: optimizer)(two)


def test_models_of_others() -> None:
    """Equinox's modules, with functions in them, and dicts of arrays are trained as by Optax alone."""
    tx = optax.adam(1e-2)
    mlp = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    params = {"w": jnp.ones((3, 2)), "steps": 3, "name": "linear"}
    for model, loss in (
        (mlp, lambda m, x: jnp.square(jax.vmap(m)(x)).mean()),
        (params, lambda m, x: jnp.square(x @ m["w"]).mean()),
    ):
        _, new, optimizer = ag.Optimizer(tx).init(model).step(loss)(model, X[:, :3])
        arrays, rest = eqx.partition(model, eqx.is_inexact_array)
        grads = eqx.filter_grad(loss)(model, X[:, :3])
        updates, state = tx.update(grads, tx.init(arrays), arrays)
        same(eqx.filter(new, eqx.is_inexact_array), eqx.apply_updates(arrays, updates), rtol=1e-6)
        same(eqx.filter(new, eqx.is_inexact_array, inverse=True), rest)
        same(optimizer.state, state, rtol=1e-6)


def test_microbatches_are_the_big_batch() -> None:
    """Gradients of parts add up to that of the whole, within reordered sums; statistics see part after part."""
    optimizer = ag.Optimizer(optax.sgd(0.1)).init(MODEL)
    whole = optimizer.step(square)(MODEL, X)
    parts = optimizer.step(square, microbatches=4)(MODEL, X)
    same((whole[0], whole[1].embed), (parts[0], parts[1].embed), rtol=1e-5)
    assert not np.allclose(whole[1].mean.value, parts[1].mean.value)
    with pytest.raises(ag.UsageError, match=r"batch, of shape \(8, 4\)"):
        optimizer.step(square, microbatches=3)(MODEL, X)


def test_microbatches_have_keys_of_their_own() -> None:
    """Each part draws other random numbers; what comes beside the loss is stacked."""
    optimizer = ag.Optimizer(optax.sgd(0.1)).init({"w": jnp.ones(())})

    def loss(model: Any, batch: Any, key: Any) -> Any:
        return (model["w"] * batch[0]).mean(), (jax.random.uniform(batch[1]), jax.random.uniform(key))

    batch = (jnp.ones(4), jax.random.key(0))
    (value, drawn), _, _ = optimizer.step(loss, has_aux=True, microbatches=4)(
        {"w": jnp.ones(())}, batch, jax.random.key(1)
    )
    assert float(value) == 1.0
    assert len(set(np.asarray(drawn).ravel().tolist())) == 8


def test_optax_accumulates_too() -> None:
    """`optax.MultiSteps` is a transformation like any other: four small steps are one big one."""
    params = {"w": jnp.ones((4, 2))}

    def loss(model: Any, x: Any) -> Any:
        return jnp.square(x @ model["w"] - 1).mean()

    big = ag.Optimizer(optax.adam(0.1)).init(params).step(loss)(params, X)[1]
    optimizer, model = ag.Optimizer(optax.MultiSteps(optax.adam(0.1), 4)).init(params), params
    step = jax.jit(lambda model, optimizer, x: optimizer.step(loss)(model, x)[1:])
    for part in X.reshape(4, 2, 4):
        model, optimizer = step(model, optimizer, part)
    same(model, big, rtol=1e-5)


def test_value_reaches_what_asks_for_it() -> None:
    """A transformation that looks at the loss gets it from `step`, without another word."""
    transform = optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(factor=0.5, patience=1))
    model, optimizer = {"w": jnp.ones(())}, ag.Optimizer(transform).init({"w": jnp.ones(())})
    for _ in range(4):
        _, model, optimizer = optimizer.step(lambda model, x: 0 * model["w"] + x)(model, 1.0)
    assert float(optimizer.state[1].scale) < 1.0


def test_steps_that_are_not_finite_are_skipped() -> None:
    """In float16 the scale halves until gradients fit, nothing else changes meanwhile, and it doubles later on."""
    model, scales = MODEL, []
    optimizer = ag.Optimizer(optax.adam(1e-2), loss_scale=ag.LossScale(2.0**20, period=3)).init(MODEL)

    def half(model: Any, x: Any) -> Any:
        return square(nn.Precision(model, compute=jnp.float16, output=jnp.float32), x)

    step = jax.jit(lambda model, optimizer: optimizer.step(half)(model, X))
    for _ in range(20):
        before = model, optimizer.state
        _, model, optimizer = step(model, optimizer)
        scales.append(float(optimizer.loss_scale.scale))
        if len(scales) == 1:
            assert scales[0] == 2.0**19
            same((model, optimizer.state), before)
    assert min(scales) < 2.0**19
    assert any(later > earlier for earlier, later in pairwise(scales))
    skipped = sum(later < earlier for earlier, later in pairwise([2.0**20, *scales]))
    np.testing.assert_allclose(model.embed, by_hand_adam(20 - skipped), rtol=2e-2, atol=2e-3)


def by_hand_adam(steps: int) -> Any:
    """The trained array after some steps in float32, without a scale."""
    model, optimizer = MODEL, ag.Optimizer(optax.adam(1e-2)).init(MODEL)
    step = jax.jit(lambda model, optimizer: optimizer.step(square)(model, X)[1:])
    for _ in range(steps):
        model, optimizer = step(model, optimizer)
    return model.embed


def test_small_gradients_survive_in_float16() -> None:
    """A gradient below what float16 holds is zero without a scale, and right with one."""
    params = {"w": jnp.ones((), jnp.float32)}

    def loss(model: Any, x: Any) -> Any:
        return (model["w"].astype(jnp.float16) * jnp.float16(1e-4)).astype(jnp.float32) * 1e-4 * x

    for scale, wanted in ((None, 0.0), (ag.LossScale(), 1e-8)):
        _, new, _ = ag.Optimizer(optax.sgd(2.0**20), loss_scale=scale).init(params).step(loss)(params, 1.0)
        np.testing.assert_allclose((1 - new["w"]) / 2.0**20, wanted, rtol=1e-2)


def test_mistakes_are_told() -> None:
    """What is missing is named by path, not by an error of a `tree_map`."""
    model = nn.Linear(3, 2, key=jax.random.key(0))
    optimizer = ag.Optimizer(optax.adam(1e-2))
    grads = ag.grad(square)(model, X[:, :3])
    with pytest.raises(ag.UsageError, match="init"):
        optimizer.update(model, grads)
    with pytest.raises(ag.UsageError, match="bias"):
        optimizer.init(ag.freeze(model, "bias")).update(model, grads)
    with pytest.raises(ag.UsageError, match="not frozen"):
        optimizer.init(ag.freeze(model))
    with pytest.raises(ag.GradientError, match=r"grads\.weight"):
        optimizer.init(model).update(model, ag.grad(square, wrt="bias")(model, X[:, :3]))
    with pytest.raises(ag.UsageError, match="grads"):
        optimizer.init(model).update(model, (0.0, grads))
    wider = jax.vmap(lambda x: ag.grad(square)(model, x[None]))(X[:5, :3])
    for shaped in (optax.adam(1e-2), optax.sgd(1e-2)):
        with pytest.raises(ag.GradientError, match=r"(?s)grads\.weight.*\(5, 2, 3\).*\(2, 3\)"):
            ag.Optimizer(shaped).init(model).update(model, wider)
    for wrt in (model, 3, ["weight", 3]):
        with pytest.raises(ag.UsageError, match=r"(?s)argument `wrt`.*the model goes to `init`"):
            ag.Optimizer(optax.adam(1e-2), wrt).init(model)
    for transform in (optax.adam, 1e-2):
        with pytest.raises(ag.UsageError, match="transform"):
            ag.Optimizer(transform).init(model)


def test_a_transformation_may_take_a_gradient_for_each_example() -> None:
    """It adds them up itself: `optax.contrib.differentially_private_aggregate`."""
    model = nn.Linear(3, 2, key=jax.random.key(0))
    private = optax.contrib.differentially_private_aggregate(l2_norm_clip=1e6, noise_multiplier=0.0, key=0)
    grads = jax.vmap(lambda x: ag.grad(square)(model, x[None]))(X[:, :3])
    new, _ = ag.Optimizer(optax.chain(private, optax.sgd(0.1))).init(model).update(model, grads)
    want = model.weight - 0.1 * grads.weight.mean(0)
    np.testing.assert_allclose(new.weight, want, rtol=1e-5)


def test_mistakes_of_steps_are_told() -> None:
    """What a step cannot cut, or a loss does not return, is told before JAX stumbles over it."""
    model = nn.Linear(3, 2, key=jax.random.key(0))
    optimizer = ag.Optimizer(optax.adam(1e-2)).init(model)
    for microbatches in (0, -1, 2.0):
        with pytest.raises(ag.UsageError, match="one or more"):
            optimizer.step(square, microbatches=microbatches)  # type: ignore[arg-type]
    with pytest.raises(ag.UsageError, match="by position"):
        optimizer.step(square, microbatches=2)(model, x=X[:, :3])
    with pytest.raises(ag.UsageError, match="pair"):
        optimizer.step(square, has_aux=True)(model, X[:, :3])


def test_states_lie_where_parameters_lie() -> None:
    """Moments of a sharded array are sharded alike, the count is on its mesh; so a second step is not traced anew."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    params = {"w": jax.device_put(jnp.ones((16, 2)), sharding)}
    optimizer = ag.Optimizer(optax.adam(1e-2)).init(params)
    step = ag.jit(lambda model, optimizer: optimizer.step(lambda m, x: jnp.square(m["w"] - x).sum())(model, 0.0)[1:])
    with ag.assert_max_traces(1):
        for _ in range(2):
            moments = [x for x in jax.tree.leaves(optimizer.state) if x.ndim]
            assert len(moments) == 2
            assert all(x.sharding.is_equivalent_to(sharding, 2) for x in [*moments, params["w"]])
            params, optimizer = step(params, optimizer)


def test_moments_of_stacked_layers_stay_where_they_are() -> None:
    """The loop back through a stack writes its gradient alone: the moments follow, each in the memory that it has."""
    stack = nn.Stack(lambda key: nn.Linear(32, 32, use_bias=False, key=key), 4, key=jax.random.key(0))
    optimizer = ag.Optimizer(optax.adam(1e-2)).init(stack)
    step = ag.optimize(lambda model, optimizer, x: optimizer.step(square)(model, x))
    jaxpr = jax.make_jaxpr(step)(stack, optimizer, jnp.ones((8, 32))).jaxpr
    assert len(stacked(jaxpr, 4 * 32 * 32)) == 1


def test_average() -> None:
    """The average of bfloat16 parameters does not lose steps that bfloat16 would round away."""
    model = {"w": jnp.ones((), jnp.bfloat16), "n": 0}
    ema = ag.EMA(0.999).init(model)
    update = jax.jit(lambda ema, model: ema.update(model))
    for n in range(200):
        ema = update(ema, {"w": jnp.array(2.0, jnp.bfloat16), "n": n})
    np.testing.assert_allclose(ema.average["w"], 2 - 0.999**200, rtol=1e-4)
    out = ema.model({"w": jnp.array(2.0, jnp.bfloat16), "n": 5})
    assert (out["w"].dtype, out["n"]) == (jnp.bfloat16, 5)


def test_a_number_is_no_loss_scale():
    """It is said at `init`, not in the first step."""
    with pytest.raises(ag.UsageError, match=r"(?s)argument `loss_scale`.*1024.*ag.LossScale\(\)"):
        ag.Optimizer(optax.sgd(0.1), loss_scale=1024.0).init(MODEL)  # type: ignore[arg-type]


def test_a_state_of_another_model():
    """One with the same paths and other sizes is refused by name; so is one with other settings."""
    optimizer = ag.Optimizer(optax.adam(0.1)).init(nn.MLP(4, 2, 8, 2, key=jax.random.key(0)))
    with pytest.raises(ag.UsageError, match=r"(?s)other sizes or settings.*init\(model\)"):
        optimizer.step(square)(nn.MLP(4, 2, 16, 2, key=jax.random.key(0)), X)
