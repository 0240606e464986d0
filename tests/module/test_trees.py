"""Modules as pytrees: nothing is lost and nothing is inferred, whatever stands in the place of the leaves."""

import copy
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from aerogel._jax import Tracer, dispatch_flatten
from aerogel.module import Module, _decide, at, ties
from aerogel.module._holes import reach
from aerogel.module._paths import one_by_one, show_path
from aerogel.module._steps import value_at
from aerogel.module._ties import resolve
from module.drawn import Other, modules

PLACED: list[Any] = [None, False, "label", (1, 2), [3], PartitionSpec("x"), jax.ShapeDtypeStruct((2,), jnp.int8)]


@given(modules(with_marks=True))
def test_leaves_are_arrays_only(model: Any) -> None:
    """No function, number, string or None is a leaf, however deep it stands in containers."""
    assert all(isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct) for x in jax.tree.leaves(model))


@given(modules(with_marks=True))
def test_unflatten_undoes_flatten(model: Any) -> None:
    """A model taken apart and put together is equal, has the same structure and the same text."""
    leaves, structure = jax.tree.flatten(model)
    again = jax.tree.unflatten(structure, leaves)
    assert again == model
    assert hash(again) == hash(model)
    assert repr(again) == repr(model)
    assert jax.tree.structure(again) == structure
    assert all(a is b for a, b in zip(jax.tree.leaves(again), leaves, strict=True))


class Keeps(Module):
    x: Any


class Record(NamedTuple):
    one: Any
    two: Any


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in another"])
def test_a_none_in_a_named_tuple_is_no_position(inside: bool) -> None:
    """In a tree of None it is told from the None that stands for an array, as in a list or a dict."""
    record = Record(jnp.ones(2), None)
    model = Keeps(Record(record, jnp.ones(3)) if inside else record)
    nones = jax.tree.map(lambda _: None, model)
    assert jax.tree.structure(nones, is_leaf=lambda x: x is None) == jax.tree.structure(model)
    back = jax.tree.map(lambda _, leaf: leaf, nones, model, is_leaf=lambda x: x is None)
    assert back == model
    assert type(back.x) is Record


@given(modules(with_marks=True), st.sampled_from(PLACED))
def test_positions_survive_any_leaf(model: Any, placed: Any) -> None:
    """A tree of `None`, False, shapes or shardings has all positions of the model, and leads back to it."""
    leaves, structure = jax.tree.flatten(model)
    odd = jax.tree.map(lambda _: placed, model)
    found = jax.tree.leaves(odd, is_leaf=lambda x: x is placed)
    assert [x is placed for x in found] == [True] * len(leaves)
    back = jax.tree.map(lambda _, leaf: leaf, odd, model, is_leaf=lambda x: x is placed)
    assert jax.tree.structure(back) == structure
    assert back == model


@given(modules(with_marks=True))
def test_tree_map_is_a_map(model: Any) -> None:
    """Mapping the identity changes nothing, two maps are the map of both functions, further trees go along by place."""
    assert jax.tree.map(lambda x: x, model) == model
    shapes = jax.tree.map(lambda x: x.shape, model)
    once = jax.tree.map(lambda x: f"{x.shape}", model)
    twice = jax.tree.map(lambda text: text + "!", once)
    assert twice == jax.tree.map(lambda x: f"{x.shape}!", model)
    assert jax.tree.structure(twice) == jax.tree.structure(model)
    assert jax.tree.map(lambda x, text: text, model, twice) == twice
    assert (shapes == once) == (not jax.tree.leaves(model))


@given(modules(with_marks=True))
def test_one_array_everywhere_ties_nothing(model: Any) -> None:
    """A `tree.map` that returns one array for every leaf leaves ties and positions as they were."""
    same = jnp.zeros(3)
    mapped = jax.tree.map(lambda _: same, model)
    assert jax.tree.structure(mapped) == jax.tree.structure(model)
    assert ties(mapped) == ties(model)


@given(modules(with_marks=True))
def test_paths_lead_to_their_leaves(model: Any) -> None:
    """Every key path of JAX's, also as text, leads to the leaf that JAX names by it."""
    for path, leaf in jax.tree.leaves_with_path(model):
        steps = one_by_one(path)
        assert value_at(model, steps) is leaf
        assert resolve(model, show_path(path)) == steps


@given(modules(with_marks=True))
def test_tied_places_read_what_they_are_tied_to(model: Any) -> None:
    """After any rebuild the second place holds the very array, or the equal module, of the first."""
    for tied in (model, jax.tree.map(lambda x: x, model), pickle.loads(pickle.dumps(model))):
        assert [repr(t) for t in ties(tied)] == [repr(t) for t in ties(model)]
        for tie in ties(tied):
            here, there = reach(tied, tie.place), reach(tied, tie.source)
            assert here == there if isinstance(there, Module) else here is there
            assert all(a is b for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True))


@given(modules(with_marks=True))
def test_copies_are_equal(model: Any) -> None:
    """Pickling and both kinds of copy give an equal model of the same structure."""
    for again in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        assert again == model
        assert jax.tree.structure(again) == jax.tree.structure(model)
        assert repr(again) == repr(model)


@given(modules(with_marks=True))
def test_any_array_changed_makes_another_model(model: Any) -> None:
    """Equality looks at every leaf, and at dtype and shape as well as values."""
    leaves, structure = jax.tree.flatten(model)
    for i in range(len(leaves)):
        other = [*leaves[:i], jnp.full((2,), 77, jnp.int8), *leaves[i + 1 :]]
        assert jax.tree.unflatten(structure, other) != model


def taken_apart(tree: Any) -> list[Any]:
    """The leaves as they cross a boundary: of typed keys their numbers."""
    return [x for leaf in jax.tree.leaves(tree) for x in dispatch_flatten(leaf)[0]]


@given(modules(with_marks=True))
def test_the_boundary_changes_nothing_but_the_form(model: Any) -> None:
    """At the boundary, a model has the same leaves in the same order, and comes back equal."""
    leaves, structure = dispatch_flatten(model)
    assert all(a is b for a, b in zip(leaves, taken_apart(model), strict=True))
    back = structure.unflatten(leaves)
    assert dispatch_flatten(back)[1] == structure
    assert set(vars(back)) == {"_flat"}, "attributes are to be built when they are read"
    assert jax.tree.structure(back) == jax.tree.structure(model)
    assert back == model
    assert repr(back) == repr(model)
    assert [repr(t) for t in ties(back)] == [repr(t) for t in ties(model)]


@given(modules(with_marks=True), modules(with_marks=True))
def test_structures_are_equal_at_the_boundary_as_elsewhere(model: Any, other: Any) -> None:
    """Two models share what was compiled for one of them exactly if they have one structure, and keys in one place."""
    same = jax.tree.structure(model) == jax.tree.structure(other)
    are_keys = [[jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(m)] for m in (model, other)]
    at_boundary = dispatch_flatten(model)[1] == dispatch_flatten(other)[1]
    assert at_boundary == (same and are_keys[0] == are_keys[1])
    assert model._flat[1] is jax.tree.map(lambda x: x, model)._flat[1]


@given(modules(with_marks=True))
def test_jit_takes_and_returns_modules(model: Any) -> None:
    """`jax.jit` takes a model whole; inside, leaves are tracers, structure is as it was."""
    real = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, model)
    seen = []

    def f(m: Any) -> Any:
        seen.append((jax.tree.structure(m), all(isinstance(x, Tracer) for x in jax.tree.leaves(m))))
        return jax.tree.map(lambda x: x, m)

    compiled = jax.jit(f)
    first, second = compiled(real), compiled(real)
    assert seen == [(jax.tree.structure(real), True)]
    assert jax.tree.structure(first) == jax.tree.structure(second) == jax.tree.structure(real)
    assert first == second


class Two(Module):
    a: Any
    b: Any


def test_is_leaf_stops_at_submodules() -> None:
    """A function of modules can be mapped over a tree; structure beside them stays, labels stand in their places."""
    model = Two([Two(jnp.ones(2), 1), "x", Two(jnp.ones(2), 2)], None)
    labels = jax.tree.map(lambda m: "here", model, is_leaf=lambda m: isinstance(m, Two) and m.b is not None)
    assert labels.a == ["here", "x", "here"]
    assert jax.tree.leaves(labels) == ["here", "here"]


def test_prefix_trees() -> None:
    """A shorter tree of one structure goes along with a model, as `vmap`'s axes do."""
    model = Two(Two(jnp.ones((3, 2)), jnp.ones(3)), jnp.ones(4))
    axes = jax.tree.map(lambda m: 0 if isinstance(m, Two) else None, model, is_leaf=lambda m: m is model.a)
    assert axes.a == 0
    assert axes.b is None
    got = jax.vmap(lambda m: m.a.a.sum() + m.b.sum(), in_axes=(axes,))(model)
    np.testing.assert_allclose(got, [6.0, 6.0, 6.0])


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ([1], [True]), ({"k": 1}, {"k": 2})])
def test_structure_tells_values_apart(one: Any, other: Any) -> None:
    """What Python calls equal and a program does not (1 and True, 0.0 and -0.0) makes two structures."""
    assert jax.tree.structure(Two(one, None)) != jax.tree.structure(Two(other, None))
    assert jax.tree.structure(Two(one, None)) == jax.tree.structure(Two(copy.deepcopy(one), None))


class Layers(Module):
    items: Any

    def __call__(self, x: Any) -> Any:
        for item in self.items.values() if isinstance(self.items, dict) else self.items:
            x = item(x)
        return x


def test_the_order_of_an_ordered_dict_is_structure() -> None:
    """Layers are called in the order in which they were given, after every rebuild too; two orders are two models."""
    items = OrderedDict(z=eqx.nn.Linear(2, 3, key=jax.random.key(0)), act=jnp.tanh, a=Layers(OrderedDict(b=1, a=2)))
    model = Layers(items)
    rebuilt = [jax.jit(lambda m: m)(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    edited = [at(model).items["act"].set(None), at(model).items["act"].set(jnp.sin)]
    for each in (model, *rebuilt, *edited):
        assert [*each.items] == ["z", "act", "a"]
        assert [*each.items["a"].items] == ["b", "a"]
    assert all(each == model for each in rebuilt)
    assert model != Layers(OrderedDict(reversed(items.items())))


def test_orbax_restores_lists_in_which_not_all_items_hold_data(tmp_path: Path) -> None:
    """An activation between two layers, a layer that is tied to one before it, a node of others with a function."""
    other = Other(jnp.ones(2))
    layer = Layers((other, jnp.zeros(2)))
    model = Layers([layer, jnp.tanh, layer, Layers((1, jnp.ones(3)))])
    checkpointer = orbax.StandardCheckpointer()
    checkpointer.save(tmp_path / "model", model)
    checkpointer.wait_until_finished()
    assert checkpointer.restore(tmp_path / "model", jax.tree.map(jnp.zeros_like, model)) == model


def test_modules_may_stand_in_each_other_deeply() -> None:
    """What is data is decided from the inside, not on Python's stack: 150 modules in one another were too many."""

    class Scaled(Module):
        inner: Any
        scale: jax.Array

        def __call__(self, x: Any) -> Any:
            return (x if self.inner is None else self.inner(x)) * self.scale

    model = None
    for _ in range(300):
        model = Scaled((model,), jnp.ones(())) if isinstance(model, Scaled) else Scaled(None, jnp.ones(()))
    assert len(jax.tree.leaves(model)) == 300
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree))(model)
    assert jax.tree.structure(doubled) == jax.tree.structure(model)
    assert sum(jax.tree.leaves(doubled)) == 600


def test_what_stands_in_a_module_is_asked_once_it_is_in_two_places() -> None:
    """Else a look at modules in one another would take the cube of how many they are."""
    model: Any = jnp.ones(2)
    for _ in range(30):
        model = Two(model, None)
    with mock.patch.object(_decide, "_holds_leaves", side_effect=AssertionError):
        assert len(jax.tree.leaves(model)) == 1
        with pytest.raises(AssertionError):
            jax.tree.leaves(Two([Two(model, 1)] * 2, None))


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ({"a": jnp.ones(2)}, {"b": jnp.ones(2), "c": 3}, "+ keys 'b', 'c', ['c']=3"),
        ({"a": jnp.ones(2)}, {"b": jnp.ones(2)}, "+ keys 'b'"),
        (None, jnp.zeros(2), "so the symmetric difference on key sets is\n    a"),
    ],
    ids=["structure in a dict", "dict", "number of arrays"],
)
def test_errors_on_two_structures_tell_them_apart(one: Any, other: Any, text: str) -> None:
    """JAX's own errors name what differs: the keys of a dict, and the fields that are arrays in one model only."""
    with pytest.raises(ValueError, match="pytree structure error") as caught:
        jax.tree.map(jnp.add, Two(one, jnp.ones(1)), Two(other, jnp.ones(1)))
    assert text in str(caught.value).replace("\n    .", "\n    ")
