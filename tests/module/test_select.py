"""`where`: whatever way a part of a tree is named, the same leaves are meant."""

from fnmatch import fnmatchcase
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel import UsageError
from aerogel.module import Module, PathError, tie, untie
from aerogel.module._paths import show_path, step_name
from aerogel.module._places import Skeleton, places_of
from aerogel.module._select import leaf_mask, reached, selected
from module.drawn import modules


class Linear(Module):
    weight: Any
    bias: Any = None
    use_relu: bool = False


class Model(Module):
    embed: Linear
    layers: Any
    head: Linear

    def __init__(self) -> None:
        self.embed = Linear(jnp.ones((3, 3)), jnp.ones(3))
        block = Linear(jnp.ones((3, 3)), jnp.ones(3))
        self.layers = [block, block, Linear(jnp.ones((2, 2)))]
        self.head = Linear(self.embed.weight)


class Holder(Module):
    other: Any


MODEL = Model()
BY_FUNCTION = tie(untie(MODEL, "head.weight"), "head.weight", "embed.weight", via=jnp.transpose)
OTHERS = {"net": eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), "model": MODEL, "list": [1, None, "x"]}


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        (Linear, ["embed", "layers[0]", "layers[2]", "head"]),
        (None, [""]),
        ("head", ["head"]),
        ("head.weight", ["embed.weight"]),
        ("layers[1].bias", ["layers[0].bias"]),
        ("layers.2.weight", ["layers[2].weight"]),
        ("layers.*.bias", ["layers[0].bias"]),
        ("layers[*].bias", ["layers[0].bias"]),
        ("**.weight", ["embed.weight", "layers[0].weight", "layers[2].weight"]),
        ("*ea?.**", ["head"]),
        ("head.use_relu", ["head.use_relu"]),
        ("layers.*.use_*", ["layers[0].use_relu", "layers[2].use_relu"]),
        (lambda path, x: path.startswith("layers") and x.ndim == 1, ["layers[0].bias"]),
        (lambda m: m.head, ["head"]),
        (lambda m: m.layers[1], ["layers[0]"]),
        (lambda m: {"a": [layer.weight for layer in m.layers]}, ["layers[0].weight", "layers[2].weight"]),
        (lambda m, i=2: m.layers[i], ["layers[2]"]),
        (("embed.bias", lambda m: m.layers[-1], "embed"), ["layers[2]", "embed"]),
        (jax.Array, ["embed.weight", "embed.bias", "layers[0].weight", "layers[0].bias", "layers[2].weight"]),
    ],
)
def test_parts_of_a_model(where: Any, paths: list[str]) -> None:
    """Every way to name parts finds the outermost ones, once each, at the place that holds the data."""
    assert [show_path(path) for path in selected(MODEL, where)] == paths


@pytest.mark.parametrize("where", ["head.weight", "head", "head.*", lambda m: m.head.weight, lambda m: m.head])
def test_a_place_that_is_a_function_of_a_leaf_means_that_leaf(where: Any) -> None:
    """The transposed second place of a weight means the weight; nothing is computed to find out."""
    assert leaf_mask(BY_FUNCTION, where)[0]


def test_a_tied_leaf_is_meant_if_one_of_its_places_is() -> None:
    """The head's weight is the embedding's: whoever names the head names it."""
    assert leaf_mask(MODEL, "head") == (True, False, False, False, False)
    assert leaf_mask(MODEL, lambda path, _: path == "head.weight") == (True, False, False, False, False)


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        (eqx.nn.Linear, ["['net'].layers[0]", "['net'].layers[1]"]),
        ("net.layers.0.weight", ["['net'].layers[0].weight"]),
        ("net.**.bias", ["['net'].layers[0].bias", "['net'].layers[1].bias"]),
        ("net.in_size", ["['net'].in_size"]),
        (lambda t: t["net"].layers[0], ["['net'].layers[0]"]),
        (lambda t: t, [""]),
        (lambda t: [t], [""]),
        (lambda t: t["list"], ["['list']"]),
        (lambda t: {"a": [t["list"]]}, ["['list']"]),
        ("['model'].head.weight", ["['model'].embed.weight"]),
        (str, ["['list'][2]"]),
        (int, ["['list'][0]"]),
    ],
)
def test_any_pytree(where: Any, paths: list[str]) -> None:
    """Dicts, lists, Equinox modules, and ours inside them, are walked alike."""
    assert [show_path(path) for path in selected(OTHERS, where)] == paths


@pytest.mark.parametrize("where", ["**.bias", lambda m: [layer.bias for layer in m.other.layers]])
def test_nodes_of_others_in_a_module(where: Any) -> None:
    """The arrays of an Equinox module in one of ours can be meant, its functions are no leaves."""
    assert leaf_mask(Holder(OTHERS["net"]), where) == (False, True, False, True)


def test_layers_of_others_without_arrays_are_meant_by_their_type() -> None:
    """Such a layer is structure where it stands by itself in a module: an edit can change it, and no leaf is meant."""
    drop = eqx.nn.Dropout(0.5)
    model = Holder([drop, Linear(jnp.ones((2, 2)), use_relu=True), {"x": drop}])
    found = ag.at(model, eqx.nn.Dropout)
    assert len(found.get()) == 2
    new = found.inference.set(True)
    assert new.other[0].inference
    assert new.other[2]["x"].inference
    assert leaf_mask(model, eqx.nn.Dropout) == (False,)
    assert selected(model, bool) == ()


def test_a_list_in_a_node_of_others_in_a_module_is_one_part() -> None:
    """It is a plain list, as one that a function makes is; what it is decides how many places there are."""
    layers = Holder(eqx.nn.Sequential([[jnp.ones(2), jnp.tanh]]))  # type: ignore[list-item]
    assert [show_path(path) for path in selected(layers, lambda m: m.other.layers[0])] == ["other.layers[0]"]


@given(modules(), st.data())
def test_each_leaf_can_be_named(model: Any, data: st.DataObject) -> None:
    """The path of a leaf, as text, as a pattern, as a predicate and as a function, means that leaf and no other."""
    tree = data.draw(st.sampled_from([model, {"k": model}, [model, 1]]))
    leaves = jax.tree.leaves_with_path(tree)
    if not leaves:
        return
    i = data.draw(st.integers(0, len(leaves) - 1))
    text = show_path(leaves[i][0])
    only = tuple(j == i for j in range(len(leaves)))
    assert leaf_mask(tree, text) == only
    assert leaf_mask(tree, f"**.{text}" if text[0] != "[" else f"**{text}")[i]
    assert leaf_mask(tree, lambda path, _: path == text) == only
    assert leaf_mask(tree, lambda t: jax.tree.leaves(t)[i]) == only


def fits(steps: list[str], pattern: list[str]) -> bool:
    """What a pattern means, from its definition."""
    if not pattern:
        return not steps
    if pattern[0] == "**":
        return any(fits(steps[n:], pattern[1:]) for n in range(len(steps) + 1))
    return bool(steps) and fnmatchcase(steps[0], pattern[0]) and fits(steps[1:], pattern[1:])


def outermost(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Those that stand in no other one, as they are reached and where their data is."""
    paths = dict(pairs)
    found = {path: at for path, at in paths.items() if not any(path[:n] in paths for n in range(len(path)))}
    homes = set(found.values())
    return [(path, at) for path, at in found.items() if not any(at[:n] in homes for n in range(len(at)))]


@given(modules(), st.data())
def test_patterns_mean_what_they_say(model: Any, data: st.DataObject) -> None:
    """A search that looks into what can fit only finds what a look at every place finds, in the same order."""
    places = list(places_of({"k": [model, model]}, Skeleton({"k": [model, model]})))
    names = [str(step_name(key)) for key in data.draw(st.sampled_from(places)).path]
    begin = data.draw(st.integers(0, len(names)))
    end = data.draw(st.integers(begin, len(names)))
    around = [data.draw(st.sampled_from([name, "*", "?*"])) for name in names[:begin] + names[end:]]
    pattern = [*around[:begin], "**", *around[begin:]]
    found = [p for p in places if fits([str(step_name(key)) for key in p.path], pattern)]
    meant = [p for p in found if not p.is_static] or found
    assert reached({"k": [model, model]}, ".".join(pattern)) == outermost([(p.path, p.home) for p in meant])


@given(modules(), st.sampled_from([jax.Array, np.ndarray, Module, list, object]))
def test_types_and_predicates_mean_what_they_say(model: Any, cls: type) -> None:
    """Models without ties go a shorter way: it means the same places, and asks a predicate about the same leaves."""
    skeleton = Skeleton(model)
    places = [p for p in places_of(model, skeleton) if not p.is_static]
    assert reached(model, cls) == outermost([(p.path, p.home) for p in places if isinstance(p.value, cls)])
    asked: list[tuple[str, int]] = []
    reached(model, lambda path, value: bool(asked.append((path, id(value)))))
    leaves = [p for p in places if p.is_leaf and id(p.part) in skeleton.leaves]
    assert asked == [(show_path(p.path), id(p.value)) for p in leaves]


@given(modules())
def test_everything_and_nothing(model: Any) -> None:
    """The model itself, None and `**` mean all leaves, an empty choice none."""
    count = len(jax.tree.leaves(model))
    for where in (None, "**", Module, lambda m: m, lambda m: jax.tree.leaves(m)):
        assert leaf_mask(model, where) == (True,) * count
    for where in ([], set, lambda path, x: False, lambda m: []):
        assert leaf_mask(model, where) == (False,) * count


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        (MODEL, UsageError, "name a part by its path"),
        (np.ones((50, 50)), UsageError, r"float32\[50,50\]"),
        ("hed.weight", PathError, "'head.weight'"),
        ("**.bia", PathError, "no path of this Model"),
        (lambda m: m.head.use_relu, UsageError, "returns parts of the tree"),
        (3, UsageError, "a type, a path or pattern"),
        (lambda a, b, c: a, UsageError, "`where`"),
    ],
)
def test_mistakes_are_named(where: Any, error: type[Exception], text: str) -> None:
    """What fits nothing is a mistake, and the nearest paths are named."""
    with pytest.raises(error, match=text):
        leaf_mask(MODEL, where)
