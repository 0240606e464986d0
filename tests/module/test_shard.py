"""`shard`, `shardings` and `shard_init`: rules reach the leaves that they mean, and no device holds the whole."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import aerogel as ag
from aerogel import nn
from aerogel.module import _shard

KEY = jax.random.key(0)


def mesh(kind: Any = AxisType.Auto) -> Mesh:
    """Two by four devices."""
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))


def specs(tree: Any, rules: Any, **options: Any) -> dict[str, P]:
    """The spec of each leaf by its path, without the leaves that are whole."""
    found = ag.shardings(tree, mesh(), rules, **options)
    paths = jax.tree_util.tree_leaves_with_path(found)
    return {jax.tree_util.keystr(path).lstrip("."): leaf.spec for path, leaf in paths if any(leaf.spec)}


class Model(ag.Module):
    """A table, which the head shares, and blocks in a stack."""

    embed: nn.Embedding
    blocks: nn.Stack[Any]
    head: nn.Linear
    key: jax.Array
    steps: jax.Array
    extra: Any = None

    def __init__(self, key: jax.Array) -> None:
        self.embed = nn.Embedding(16, 8, key=key)
        self.blocks = nn.Stack(lambda key: nn.MLP(8, 8, 32, 1, key=key), 3, key=key)
        self.head = nn.Linear(8, 16, key=key)
        self.head.weight = self.embed.weight
        self.key = key
        self.steps = jnp.int32(0)

    def __call__(self, tokens: Any) -> Any:
        return self.head(self.blocks(self.embed(tokens)))


TENSOR_PARALLEL = {
    "**.layers[0]": {"out": "model"},
    "**.layers[1]": {"in": "model"},
    "embed": {"vocab": "model", "embed": "data"},
}


def test_names_of_axes_in_a_stack() -> None:
    """A rule by names means the axes of a layer wherever it stands; a tied leaf has the names of its own place."""
    model = Model(KEY)
    stacked = "blocks.layers.layers"
    assert specs(model, TENSOR_PARALLEL) == {
        f"{stacked}[0].weight": P(None, "model", None),
        f"{stacked}[0].bias": P(None, "model"),
        f"{stacked}[1].weight": P(None, None, "model"),
        "embed.weight": P("model", "data"),
    }
    # Each of the three layers of a stack has an axis in front; by its name it is spread too.
    four = nn.Stack(lambda key: nn.Linear(3, 3, key=key), 4, key=KEY)
    assert specs(four, {"**": {"layers": "model"}}) == {
        "layers.weight": P("model", None, None),
        "layers.bias": P("model", None),
    }


CASES: dict[str, tuple[Callable[[], Any], Any, dict[str, P]]] = {
    "a spec": (lambda: nn.Linear(8, 4, key=KEY), {"weight": P(None, "model")}, {"weight": P(None, "model")}),
    "the largest axis": (
        lambda: nn.Linear(8, 4, key=KEY),
        {"**": "model"},
        {"weight": P(None, "model"), "bias": P("model")},
    ),
    "the last of the largest": (lambda: jnp.ones((8, 8, 4)), {jax.Array: "model"}, {"": P(None, "model")}),
    "the largest axis that divides": (lambda: jnp.ones((4, 6, 9)), {jax.Array: "model"}, {"": P("model")}),
    "over both": (
        lambda: nn.Linear(8, 4, key=KEY),
        {"**": ("data", "model")},
        {"weight": P(None, ("data", "model"))},
    ),
    "nothing divides": (lambda: nn.Linear(3, 5, key=KEY), {"**": "model"}, {}),
    "a kernel": (
        lambda: nn.Conv2d(4, 8, 3, key=KEY),
        {"**": {"out": "model", "in": "data"}},
        {"weight": P("model", "data", None, None), "bias": P("model")},
    ),
    "mapped by hand": (
        lambda: jax.vmap(lambda key: nn.Linear(8, 4, key=key))(jax.random.split(KEY, 5)),
        {"**": {"out": "model"}},
        {"weight": P(None, "model", None), "bias": P(None, "model")},
    ),
    "adapters": (
        lambda: ag.at(nn.Linear(8, 4, key=KEY)).weight.apply(lambda w: nn.LoRA(nn.Quantized(w), 2, key=KEY)),
        {"weight": {"out": "model", "in": "data"}},
        {
            "weight.base.values": P("model", "data"),
            "weight.base.scales": P("model", None),
            "weight.a": P(None, "data"),
            "weight.b": P("model", None),
        },
    ),
    "the first rule wins": (
        lambda: [nn.Linear(8, 4, key=KEY), nn.Linear(8, 4, key=KEY)],
        {"[1].weight": P(), nn.Linear: {"in": "data"}},
        {"[0].weight": P(None, "data")},
    ),
    "by a function": (
        lambda: nn.Linear(8, 4, key=KEY),
        {lambda path, x: x.ndim == 2: P("data", "model")},
        {"weight": P("data", "model")},
    ),
    "zero sizes, scalars and numbers": (
        lambda: {"w": jnp.ones((4, 0)), "s": jnp.ones(()), "n": 3},
        {"**": "model"},
        {"['w']": P("model")},
    ),
    "keys": (lambda: jax.random.split(KEY, 8), {None: ("data", "model")}, {"": P(("data", "model"))}),
    "shapes": (lambda: jax.eval_shape(Model, KEY), {"head.weight": "model"}, {"embed.weight": P("model")}),
}


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str) -> None:
    """Each kind of rule on each kind of tree; names belong to the last axes, or the first where a kernel follows."""
    make, rules, expected = CASES[name]
    assert specs(make(), rules) == expected


@given(sizes=st.lists(st.integers(0, 24), max_size=3), axes=st.sampled_from(["data", "model", ("model", "data")]))
@settings(max_examples=40)
def test_the_largest_axis_is_always_accepted(sizes: list[int], axes: Any) -> None:
    """Whatever the shape, the spec of a rule by mesh axes is one that JAX takes, and splits nothing that is smaller."""
    shape = jax.ShapeDtypeStruct(tuple(sizes), jnp.float32)
    sharding = ag.shardings(shape, mesh(), {None: axes})
    part = sharding.shard_shape(shape.shape)
    split = [n for n, m in zip(sizes, part, strict=True) if n != m]
    parts = mesh().size if isinstance(axes, tuple) else mesh().shape[axes]
    divided = [n for n in sizes if n % parts == 0 and n]
    assert split == ([max(divided)] if divided and 0 not in sizes else split)


REFUSED: dict[str, tuple[Any, str]] = {
    "no such mesh axis": ({"**.weight": P("modle")}, "the mesh has no axis 'modle'"),
    "no such mesh axis, by name": ({"**": {"vocab": ("data", "x")}}, "the mesh has no axis 'x'"),
    "does not divide": ({"blocks.layers.layers[0].bias": P("model")}, "axis 0 of size 3 cannot be split into 4"),
    "too long": ({"embed.weight": P(None, None, "data")}, "3 entries are for an array of 3 axes or more"),
    "twice": ({"embed": {"vocab": "model", "embed": "model"}}, "'model' would split two axes of one array"),
    "no such name": ({"embed": {"vocabulary": "model"}}, "an axis named 'vocabulary'"),
    "taken already": ({"**": P(), "embed": "data"}, "earlier rules take every leaf that this one means"),
    "means nothing": ({nn.Conv: "data"}, "the rule means no leaf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    """What cannot be done is refused, with the rule's name, before anything is moved."""
    rules, what = REFUSED[name]
    with pytest.raises(ag.ShardError) as error:
        ag.shard(Model(KEY), mesh(), rules)
    assert what in error.value.what
    assert "rules[" in error.value.place


def test_a_pattern_that_fits_nothing() -> None:
    """A misspelt path is an error that names the nearest one; rules must be a mapping."""
    with pytest.raises(ag.PathError, match=r"blocks\.layers"):
        specs(Model(KEY), {"block.layers": "model"})
    with pytest.raises(ag.UsageError, match="rules"):
        specs(Model(KEY), P("model"))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_values_stay_and_are_spread(kind: Any) -> None:
    """`shard` and `shard_init` give the numbers of the model, with keys, ties and integers, where the rules say."""
    model = Model(KEY)
    rules = TENSOR_PARALLEL
    wanted = ag.shardings(model, mesh(kind), rules)
    for got in (ag.shard(model, mesh(kind), rules), ag.shard_init(lambda: Model(KEY), mesh(kind), rules)):
        assert jax.tree.structure(got) == jax.tree.structure(model)
        assert got.head.weight is got.embed.weight
        for a, b, sharding in zip(*map(jax.tree.leaves, (got, model, wanted)), strict=True):
            assert a.sharding == sharding
            a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_no_device_holds_a_model_that_is_made_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that makes a fully sharded model needs, on each device, little more than its eighth."""
    needs: list[Any] = []

    def watched(function: Any, **options: Any) -> Any:
        jitted = jax.jit(function, **options)
        needs.append(jitted.lower().compile().memory_analysis())
        return jitted

    monkeypatch.setattr(_shard, "original_jit", watched)
    made = ag.shard_init(
        lambda: nn.Stack(lambda key: nn.MLP(256, 256, 256, 1, key=key), 4, key=KEY), mesh(), {"**": ("data", "model")}
    )
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(made))
    assert needs[0].output_size_in_bytes < whole / 7
    assert needs[0].temp_size_in_bytes < whole / 2, (needs[0].temp_size_in_bytes, whole)
    assert all(
        shard.data.nbytes <= leaf.nbytes / 8 for leaf in jax.tree.leaves(made) for shard in leaf.addressable_shards
    )


def test_inside_of_jit_it_is_a_constraint() -> None:
    """Under a trace leaves are constrained, whether axes are automatic or explicit; what is no array stays."""
    for kind in (AxisType.Auto, AxisType.Explicit):
        used = mesh(kind)
        with jax.set_mesh(used):
            made = jax.jit(lambda key, used=used: ag.shard(nn.Linear(8, 4, key=key), used, {"weight": P("model")}))(KEY)
        assert made.weight.sharding.is_equivalent_to(NamedSharding(used, P("model")), 2)
    assert ag.shard([jnp.sin, "x"], mesh(), {})[0] is jnp.sin


def loss(model: Any, tokens: Any) -> Any:
    """Of the next token."""
    logits = jax.nn.log_softmax(model(tokens[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))


LAYOUTS = {
    "data parallel": ({}, P(("data", "model"))),
    "fully sharded": ({"**": ("data", "model")}, P(("data", "model"))),
    "tensor parallel": (TENSOR_PARALLEL, P("data")),
    "tensor parallel, the rest fully sharded": (TENSOR_PARALLEL | {"**": "data"}, P("data")),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_training_steps_agree_and_the_state_follows(name: str) -> None:
    """Two steps of Adam give the losses of one device; the moments are spread as the parameters are, from the start."""
    rules, batch = LAYOUTS[name]
    optimizer = optax.adam(1e-2)
    tokens = jax.random.randint(KEY, (8, 9), 0, 16)

    def step(model: Any, state: Any, tokens: Any, places: tuple[Any, ...]) -> Any:
        params, rest = ag.partition(model, ag.trainable)
        value, grads = ag.value_and_grad(lambda p: loss(ag.combine(p, rest), tokens))(params)
        updates, state = optimizer.update(grads, state, params)
        model = ag.combine(optax.apply_updates(params, updates), rest)
        if places:  # else XLA decides where results are
            model, state = ag.shard(model, *places), ag.shard(state, *places, like=model)
        return model, state, value

    def run(model: Any, tokens: Any, *places: Any) -> tuple[Any, Any, list[float]]:
        run_step: Any = ag.jit(lambda model, state, tokens: step(model, state, tokens, places))
        state, losses = optimizer.init(ag.partition(model, ag.trainable)[0]), []
        for _ in range(2):
            assert_follows(state, model, *places)
            model, state, value = run_step(model, state, tokens)
            losses.append(float(value))
        return model, state, losses

    def assert_follows(state: Any, model: Any, *places: Any) -> None:
        wanted: Any = ag.shardings(state, *places, like=model) if places else None
        for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=bool(places)):
            assert not leaf.committed or leaf.sharding.is_equivalent_to(place, leaf.ndim), (leaf.sharding, place)

    _, _, wanted = run(Model(KEY), tokens)
    start = ag.shard_init(lambda: Model(KEY), mesh(), rules)
    model, state, losses = run(start, jax.device_put(tokens, NamedSharding(mesh(), batch)), mesh(), rules)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert_follows(state, model, mesh(), rules)
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(start), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_a_state_of_other_shapes_is_whole() -> None:
    """With `like`, leaves follow the parameter at the end of their path if its shape is theirs; others are whole."""
    model = {"a": jnp.ones((8, 4)), "b": {"a": jnp.ones((4, 4))}}
    rules = {"['a']": P("data"), "['b']": P(None, "model")}
    state = {"mu": model, "row": {"a": jnp.ones(8)}, "b": {"a": jnp.ones((4, 4))}, "count": 0}
    assert specs(state, rules, like=model) == {
        "['b']['a']": P(None, "model"),
        "['mu']['a']": P("data"),
        "['mu']['b']['a']": P(None, "model"),
    }


def test_shardings_of_a_call() -> None:
    """The tree goes into `in_shardings` and `out_shardings` as it is."""
    model = Model(KEY)
    places = ag.shardings(model, mesh(), TENSOR_PARALLEL)
    step = ag.jit(lambda m: ag.map_leaves(lambda x: 2 * x, m, where=ag.trainable), in_shardings=(places,))
    out = jax.jit(step, out_shardings=places)(model)
    assert out.embed.weight.sharding == places.embed.weight
    np.testing.assert_allclose(step(model).embed.weight, 2 * model.embed.weight)


def test_axes_are_declared_in_a_form_that_can_be_read() -> None:
    """`...` stands at the end only."""
    with pytest.raises(ag.FieldError, match="axes that follow"):
        ag.field(axes=(..., "in"))


@pytest.mark.parametrize("spread", [None, 3, jnp.ones(2)], ids=["None", "3", "an array"])
def test_a_rule_of_another_kind(spread: Any) -> None:
    """It is told, with what to write for a leaf that is to be whole."""
    with pytest.raises(ag.UsageError, match=r"P\(\) for what is to be whole"):
        ag.shard(nn.Linear(4, 4, key=jax.random.key(0)), jax.make_mesh((1,), ("data",)), {"**": spread})


def test_what_is_no_mesh() -> None:
    """A shape, or devices, are no mesh."""
    mesh: Any = (2, 4)
    with pytest.raises(ag.UsageError, match=r"jax\.make_mesh"):
        ag.shard(nn.Linear(4, 4, key=jax.random.key(0)), mesh, {})
