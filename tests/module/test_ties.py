"""One parameter in two places: one leaf, one gradient, whatever is done to the tree."""

import functools
import pickle
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel.module import Module, PathError, TieError, tie, ties, untie


class Linear(Module):
    weight: Any
    bias: Any = None

    def __call__(self, x: Any) -> Any:
        return self.weight @ x


class Model(Module):
    embed: Linear
    blocks: Any
    head: Linear

    def __init__(self) -> None:
        self.embed = Linear(jnp.arange(9.0).reshape(3, 3) / 9)
        block = Linear(jnp.ones((3, 3)) / 3)
        self.blocks = [block, block, block]
        self.head = Linear(self.embed.weight, jnp.zeros(3))

    def __call__(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = jnp.tanh(block(x))
        return self.head(x).sum()


class Outer(Module):
    model: Model
    other: Any


class Tall(Module):
    embed: Linear
    head: Linear


def by_hand(embed: Any, block: Any, x: Any) -> Any:
    """The same function of its two parameters."""
    y = embed @ x
    for _ in range(3):
        y = jnp.tanh(block @ y)
    return (embed @ y).sum()


X = jnp.array([1.0, 2.0, 3.0])


def test_ties_are_found_when_init_ends() -> None:
    """A shared array and a shared block have one place each; the other places are named in `repr`."""
    model = Model()
    found = [repr(t) for t in ties(model)]
    assert found == ["blocks[1] = blocks[0]", "blocks[2] = blocks[0]", "head.weight = embed.weight"]
    assert len(jax.tree.leaves(model)) == 3
    assert "weight=embed.weight" in repr(model)
    assert repr(model).count("blocks[0]") == 2
    assert len(jax.tree.leaves(model.head)) == 2, "alone, the head has its weight"


@pytest.mark.parametrize("via", ["plain", "jit", "vjp", "checkpoint", "jvp", "scan", "vmap"])
def test_gradients_are_summed(via: str) -> None:
    """The gradient of a tied weight is the sum over its places, under every transformation."""
    model = Model()

    def f(m: Any) -> Any:
        return m(X)

    wanted = jax.grad(by_hand, argnums=(0, 1))(model.embed.weight, model.blocks[0].weight, X)
    ones = jax.tree.map(jnp.ones_like, model)
    match via:
        case "plain":
            grads = jax.grad(f)(model)
        case "jit":
            grads = jax.jit(jax.grad(f))(model)
        case "vjp":
            (grads,) = jax.vjp(f, model)[1](jnp.ones(()))
        case "checkpoint":
            grads = jax.grad(jax.checkpoint(f))(model)
        case "jvp":
            tangent = jax.jvp(f, (model,), (ones,))[1]
            np.testing.assert_allclose(tangent, sum(w.sum() for w in wanted), rtol=1e-5)
            return
        case "scan":
            grads = jax.grad(lambda m: jax.lax.scan(lambda c, _: (c, c(X)), m, None, length=2)[1].sum() / 2)(model)
        case _:
            grads = jax.vmap(jax.grad(lambda m, x: m(x)), in_axes=(None, 0))(model, X[None])
            grads = jax.tree.map(lambda g: g[0], grads)
    np.testing.assert_allclose(grads.embed.weight, wanted[0], rtol=1e-5)
    np.testing.assert_allclose(grads.blocks[2].weight, wanted[1], rtol=1e-5)
    assert grads.head.weight is grads.embed.weight


def test_optimisers_hold_one_state() -> None:
    """Adam has one moment per parameter, and its step moves both places."""
    model, adam = Model(), optax.adam(0.1)
    state = adam.init(model)  # type: ignore[arg-type]
    assert len(jax.tree.leaves(state)) == 2 * 3 + 1
    updates, _ = adam.update(jax.grad(lambda m: m(X))(model), state)
    new: Any = optax.apply_updates(model, updates)  # type: ignore[arg-type]
    assert new.head.weight is new.embed.weight
    assert jax.tree.structure(new) == jax.tree.structure(model)


def test_ties_over_three_levels() -> None:
    """A tie inside a tied module, and one from further out to a place that others are tied to."""
    model = Model()
    outer = Outer(model, {"first": model.embed.weight, "again": model})
    assert len(jax.tree.leaves(outer)) == 3
    doubled = jax.tree.map(lambda x: 2 * x, outer)
    assert doubled.other["first"] is doubled.model.head.weight
    assert doubled.other["again"].head.weight is doubled.model.embed.weight
    before = Outer(model.head, [Outer(model, None)])  # type: ignore[arg-type]
    assert len(jax.tree.leaves(before)) == 3
    tripled = jax.tree.map(lambda x: 3 * x, before)
    assert tripled.other[0].model.embed.weight is tripled.model.weight
    assert tripled.other[0].model.head.weight is tripled.model.weight


class Pair(Module):
    a: Any
    b: Any


def test_a_tie_to_a_place_that_is_tied_further_out() -> None:
    """The inner module's second place follows its first, which follows the outer module's."""
    weight = jnp.ones(3)
    nested = Pair(weight, Pair(weight, weight))
    assert [repr(t) for t in ties(nested)] == ["b.a = a", "b.b = b.a"]
    doubled = jax.tree.map(lambda x: 2 * x, nested)
    assert doubled.b.b is doubled.b.a
    assert doubled.b.a is doubled.a
    assert doubled.a[0] == 2


def test_untied_stays_untied() -> None:
    """What `untie` ends is two leaves, also in a module built around it later; nothing is found at flattening."""
    free = untie(Model(), "head.weight")
    assert len(jax.tree.leaves(free)) == 4
    assert "head.weight" not in map(repr, ties(free))
    outer = Outer(free, jnp.ones(1))
    assert len(jax.tree.leaves(outer)) == 5
    assert free.head.weight is free.embed.weight, "the arrays are still the same"
    assert len(jax.tree.leaves(jax.tree.map(lambda x: x, free))) == 4


def test_tie_by_a_function() -> None:
    """The second place reads the function of the first, holds no array, and survives any leaf."""
    model = Tall(Linear(jnp.arange(6.0).reshape(2, 3)), Linear(jnp.zeros((3, 2))))
    tied = tie(model, "head.weight", "embed.weight", via=jnp.transpose)
    assert len(jax.tree.leaves(tied)) == 1
    assert "weight=transpose(embed.weight)" in repr(tied)
    for each in (tied, jax.tree.map(lambda x: x, tied), pickle.loads(pickle.dumps(tied))):
        np.testing.assert_array_equal(each.head.weight, each.embed.weight.T)
        assert vars(each.head).keys() == {"bias"}, "no copy is kept"
    grads = jax.grad(lambda m: (m.head.weight @ (m.embed.weight @ X)).sum())(tied)
    w = model.embed.weight
    np.testing.assert_allclose(grads.embed.weight, jax.grad(lambda w: (w.T @ (w @ X)).sum())(w), rtol=1e-5)
    assert jax.tree.structure(jax.tree.map(lambda _: False, tied)) == jax.tree.structure(tied)
    free = untie(tied, "head.weight")
    np.testing.assert_array_equal(free.head.weight, w.T)
    assert len(jax.tree.leaves(free)) == 2


def test_an_attribute_that_is_a_function_comes_out_of_compiled_functions() -> None:
    """The outermost module builds its attributes when they are read, and this one is computed then."""
    model = tie(Outer(jnp.ones((2, 3)), jnp.zeros((3, 2))), "other", "model", via=jnp.transpose)  # type: ignore[arg-type]
    double = jax.jit(lambda m: jax.tree.map(lambda x: 2 * x, m))
    for _ in range(2):  # the first call is not answered by JAX's C++ code
        out = double(model)
        np.testing.assert_array_equal(out.other, np.full((3, 2), 2.0))
        assert ties(out) == ties(model)


@pytest.mark.parametrize(
    ("place", "source"),
    [("head.weight", "head.bias"), ("blocks[2]", "embed"), ("head", "embed"), ("embed.weight", "blocks.0.weight")],
)
def test_tie_and_untie_are_inverse(place: str, source: str) -> None:
    """What is tied by path is one leaf, and two again when the tie ends."""
    model = untie(untie(untie(Model(), "blocks[1]"), "blocks[2]"), "head.weight")
    model = ag.at(model).head.bias.set(jnp.zeros((3, 3)))
    count = len(jax.tree.leaves(model))
    tied = tie(model, place, source)
    assert len(ties(tied)) == 1
    assert len(jax.tree.leaves(tied)) < count
    again = jax.tree.map(lambda x: x + 1, tied)
    assert ties(again) == ties(tied)
    free = untie(again, place)
    assert len(jax.tree.leaves(free)) >= count - 1
    assert ties(free) == ()


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda m: tie(m, "head.wieght", "embed.weight"), PathError, "'head.weight'|'embed.weight'"),
        (lambda m: tie(m, "head.weight", "embed.weight"), TieError, "tied already"),
        (lambda m: tie(m, "embed", "embed.weight"), TieError, "to a part of it"),
        (lambda m: tie(m, "blocks[0]", "embed", via=lambda x: x), TieError, "attribute of a module"),
        (lambda m: untie(m, "embed.weight"), TieError, "blocks\\[1\\], blocks\\[2\\], head.weight"),
        (lambda m: untie(m, ""), PathError, "no path"),
    ],
)
def test_mistakes_are_named(act: Any, error: type[Exception], text: str) -> None:
    """Wrong paths name the nearest ones; ties that cannot be say why."""
    with pytest.raises(error, match=text):
        act(Model())


@pytest.mark.parametrize("places", [("model.weight", "other"), ("other", "model.weight")])
def test_places_in_nodes_of_others_are_not_tied_in_silence(places: tuple[str, str]) -> None:
    """Another library's node keeps no ties: one into it would be lost."""
    model = Outer(eqx.nn.Linear(2, 2, key=jax.random.key(0)), jnp.ones((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(TieError, match="model is a Linear"):
        tie(model, *places)
    with pytest.raises(TieError, match="this is a dict"):
        tie({"a": X, "b": X}, "a", "b")


class Named(NamedTuple):
    data: Any
    act: Any


class Part(eqx.Module):
    data: Any
    act: Any


class Four(Module):
    a: Any
    b: Any
    inner: Any
    items: list[Any]


@pytest.mark.parametrize("kind", [Named, Part])
@pytest.mark.parametrize("place", ["b", "inner.a", "items[0]", "items[1].b"])
def test_parts_of_others_are_tied_whole(kind: Any, place: str) -> None:
    """What is read there has the source's structure, not what stood there, also in a part of the model alone."""
    parts = [kind(n * jnp.ones(2), act) for n, act in enumerate((max, min, abs, len, sum))]
    model = Four(*parts[:2], Pair(parts[2], 1), [parts[3], Pair(1, parts[4])])
    tied = tie(model, place, "a")
    assert len(jax.tree.leaves(tied)) == 4
    for changed, act in ((tied, max), (ag.at(tied).a.set(kind(jnp.zeros(2), repr)), repr), (untie(tied, place), max)):
        for whole in (changed, jax.jit(lambda m: m)(changed), pickle.loads(pickle.dumps(changed))):
            assert whole == changed
            assert ag.at(whole)[place].get().act is act
            for name in ("inner", "items[1]"):
                part = ag.at(whole)[name].get()
                assert jax.tree.map(lambda x: x, part) == part
                assert len(jax.tree.leaves(part)) == 1


def test_ties_of_ours_in_nodes_of_others_are_listed_and_ended() -> None:
    """In an Equinox module, in a dict, and in such a node that stands in a module."""
    tied = Pair(X, X)
    part = cast(Any, Part)
    whole = {"a": Pair(part(tied, max), [1, part(Pair(X, X), None)]), "b": [tied]}
    names = ["['a'].a.data.b = ['a'].a.data.a", "['a'].b[1].data.b = ['a'].b[1].data.a", "['b'][0].b = ['b'][0].a"]
    assert [repr(each) for each in ties(whole)] == names
    count = len(jax.tree.leaves(whole))
    for k, name in enumerate(names):
        new = untie(whole, name.partition(" = ")[0])
        assert [repr(each) for each in ties(new)] == names[:k] + names[k + 1 :]
        assert len(jax.tree.leaves(new)) == count + 1


class Both(Module):
    there: Any
    back: Any

    def __init__(self, weight: Any) -> None:
        self.there = self.back = weight


class Stacked(Module):
    layers: Both

    def __call__(self, x: Any) -> Any:
        return jax.lax.scan(lambda x, layer: (layer.back @ jnp.tanh(layer.there @ x), None), x, self.layers)[0].sum()


@pytest.mark.parametrize("mapped", [jax.vmap, ag.vmap])
def test_layers_that_are_built_under_vmap_keep_their_ties(mapped: Any) -> None:
    """One leaf with the layers along its first axis, in what is taken out of it too; one gradient, the sum."""
    weights = jnp.stack([jnp.eye(3) / 2, jnp.arange(9.0).reshape(3, 3) / 9])
    model = Stacked(mapped(Both)(weights))
    assert [repr(each) for each in ties(model)] == ["layers.back = layers.there"]
    assert [leaf.shape for leaf in jax.tree.leaves(model)] == [(2, 3, 3)]
    assert len(ties(jax.tree.map(lambda x: x[0], model.layers))) == 1

    def by_hand(there: Any, back: Any) -> Any:
        return (back[1] @ jnp.tanh(there[1] @ (back[0] @ jnp.tanh(there[0] @ X)))).sum()

    grads = jax.jit(jax.grad(lambda m: m(X)))(model)
    np.testing.assert_allclose(grads.layers.back, sum(jax.grad(by_hand, (0, 1))(weights, weights)), rtol=1e-5)


WIDE = Tall(Linear(jnp.ones((2, 3)), jnp.ones(2)), Linear(jnp.ones((3, 2)), jnp.ones(3)))


@pytest.mark.parametrize(
    ("place", "source", "got", "wanted", "via"),
    [
        ("head.weight", "embed.weight", "f32[2,3]", "f32[3,2]", "jnp.transpose"),
        ("head.bias", "embed.bias", "f32[2]", "f32[3]", "..."),
        ("head.bias", "embed.weight", "f32[2,3]", "f32[3]", "..."),
        ("head", "embed.weight", "f32[2,3]", "Linear", "..."),
        ("head.bias", "embed", "Linear", "f32[3]", "..."),
    ],
)
def test_places_of_two_shapes_are_not_tied_in_silence(place: str, source: str, got: str, wanted: str, via: str) -> None:
    """Without a function between them, what is read would have another shape than what stood there."""
    with pytest.raises(TieError) as caught:
        tie(WIDE, place, source)
    error = caught.value
    assert (error.place, error.got, error.wanted) == (place, f"{got} at {source}", wanted)
    assert f"via={via})" in str(error)


def test_parts_of_two_shapes_are_not_tied_in_silence() -> None:
    """The first array in them that does not fit is named; parts of which one has more arrays may be tied."""
    with pytest.raises(TieError) as caught:
        tie(WIDE, "head", "embed")
    assert (caught.value.place, caught.value.got) == ("head.weight", "f32[2,3] at embed.weight")
    without_bias = ag.at(WIDE).head.set(Linear(jnp.zeros((2, 3))))
    assert len(jax.tree.leaves(tie(without_bias, "head", "embed"))) == 2
    labels = jax.tree.map(lambda _: "label", without_bias)
    assert len(jax.tree.leaves(tie(labels, "head.weight", "embed.bias"))) == 2, "labels have no shapes"


class Five(Module):
    a: Any
    b: Any
    c: Any
    d: Any
    e: Any


def five_parts() -> Five:
    """A model with several parts and without ties."""
    a, b, c, e = (Linear(jnp.full(2, float(i)), jnp.full(2, i + 0.5)) for i in range(4))
    return Five(a, b, c, [jnp.full(2, float(i)) for i in range(5, 8)], e)


@settings(max_examples=30)
@given(
    st.permutations([("b.weight", "a.weight"), ("b.bias", "a.bias"), ("c", "a"), ("d[1]", "d[0]"), ("e.bias", "d[2]")])
)
def test_the_order_of_tying_is_forgotten(pairs: list[tuple[str, str]]) -> None:
    """Two models with the same ties are equal and have one structure, in whatever order somebody tied them."""
    first, second = (
        functools.reduce(lambda m, pair: ag.tie(m, *pair), each, five_parts()) for each in (sorted(pairs), pairs)
    )
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert first == second
    assert ties(first) == ties(second)


@settings(max_examples=30)
@given(st.permutations(["a.weight", "c.weight", "c.bias"]))
def test_a_tie_inside_a_source_is_filled_first(places: list[str]) -> None:
    """What is read from a part that has a tied place itself reads that place's value, whichever was tied first."""
    source = {"a.weight": "b.weight", "c.weight": "d[0]", "c.bias": "d[1]"}
    model = functools.reduce(lambda m, place: ag.tie(m, place, source[place]), places, ag.tie(five_parts(), "e", "c"))
    changed = jax.tree.map(lambda x: x + 100, model)
    np.testing.assert_array_equal(changed.e.weight, changed.d[0])
    np.testing.assert_array_equal(changed.e.bias, changed.d[1])
    np.testing.assert_array_equal(changed.a.weight, changed.b.weight)
    assert ties(model)[-1] == ties(ag.tie(five_parts(), "e", "c"))[0]


def test_slips_in_a_tie_are_told() -> None:
    """Places are named by text: an array or a module does not say where it stands."""
    model = five_parts()
    for call in (lambda: tie(model, model.a.weight, "b.weight"), lambda: untie(model, 3)):  # type: ignore[arg-type]
        with pytest.raises(ag.UsageError, match="a path as text"):
            call()
