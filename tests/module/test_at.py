"""Edits by path: the copy differs where it was asked to, and nowhere else."""

import collections
import dataclasses
import enum
from typing import Any, NamedTuple
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel.module import (
    FieldError,
    FrozenError,
    Module,
    PathError,
    StructureError,
    TieError,
    _edit,
    at,
    field,
    tie,
    ties,
    untie,
)
from aerogel.module._paths import outermost, show_path
from aerogel.module._steps import home, one_by_one, value_at
from module.drawn import arrays, modules, values


class Linear(Module):
    weight: Any
    bias: Any = None
    use_relu: bool = False


class Tall(Linear):
    pass


class Model(Module):
    embed: Linear
    layers: Any
    head: Linear

    def __init__(self) -> None:
        self.embed = Linear(jnp.arange(9.0).reshape(3, 3), jnp.ones(3))
        block = Linear(jnp.ones((3, 3)), jnp.ones(3))
        self.layers = [block, block, Linear(jnp.ones((2, 2)))]
        self.head = Linear(self.embed.weight)


class Empty(Module):
    pass


class Pair(NamedTuple):
    first: Any
    second: Any


class Any3(Module):
    a: Any = None
    b: Any = None
    c: Any = None


MODEL = Model()
W = jnp.full((4, 4), 7.0)


def tie_texts(model: Any) -> list[str]:
    """The ties of a model, as text."""
    return [repr(t) for t in ties(model)]


def test_one_leaf_is_set() -> None:
    """Another shape and dtype too; everything else is the very same object."""
    new = at(MODEL).layers[2].weight.set(W.astype(jnp.bfloat16))
    assert new.layers[2].weight.dtype == jnp.bfloat16
    assert new.embed is MODEL.embed
    assert new.layers[0] is MODEL.layers[0]
    assert MODEL.layers[2].weight.shape == (2, 2)
    assert tie_texts(new) == tie_texts(MODEL)
    assert type(new.layers) is type(MODEL.layers)


@pytest.mark.parametrize("path", ["embed.weight", "head.weight"])
def test_either_place_of_a_tie_sets_the_one_leaf(path: str) -> None:
    """Setting the second place sets the first, and the tie stays."""
    for new in (at(MODEL)[path].set(W), at(MODEL)[path].apply(lambda _: W)):
        assert new.head.weight is new.embed.weight is W
        assert tie_texts(new) == tie_texts(MODEL)


def test_a_part_of_a_tied_module() -> None:
    """One block at two depths is edited at both."""
    new = at(MODEL).layers[1].bias.set(W)
    assert new.layers[0].bias is new.layers[1].bias is W
    assert tie_texts(new) == tie_texts(MODEL)


def test_replacing_what_holds_a_tied_place_ends_the_tie() -> None:
    """A new head has its own weight; one that holds the same array stays tied."""
    own = at(MODEL).head.replace(Linear(W))
    assert tie_texts(own) == ["layers[1] = layers[0]"]
    assert own.head.weight is W
    assert own.embed is MODEL.embed
    kept = at(MODEL).head.replace(Linear(MODEL.embed.weight, W))
    assert tie_texts(kept) == tie_texts(MODEL)
    assert kept.head.bias is W


def test_replacing_the_source_of_a_tie() -> None:
    """Its second place follows if there still is such a leaf, else it keeps its value, as a leaf of its own."""
    followed = at(MODEL).embed.set(Tall(W))
    assert followed.head.weight is W
    assert tie_texts(followed) == tie_texts(MODEL)
    gone = at(MODEL).embed.set("nothing")
    assert gone.head.weight is MODEL.embed.weight
    assert tie_texts(gone) == ["layers[1] = layers[0]"]
    assert len(jax.tree.leaves(gone)) == 4
    direct = at(Any3(Linear(W), W)).a.set("nothing")
    assert jax.tree.leaves(direct)[0] is direct.b is W
    assert at(Any3(W, W)).b.set(None).a is None, "it is one parameter: it is gone in both places"


def test_apply_writes_through_ties() -> None:
    """A function that keeps the structure changes the one leaf, also where that stands outside of the part."""
    doubled = at(MODEL).head.apply(lambda m: jax.tree.map(lambda x: 2 * x, m))
    np.testing.assert_array_equal(doubled.embed.weight, 2 * MODEL.embed.weight)
    assert doubled.head.weight is doubled.embed.weight
    assert tie_texts(doubled) == tie_texts(MODEL)
    every = at(MODEL, Linear).apply(lambda m: jax.tree.map(lambda x: 2 * x, m))
    assert every == jax.tree.map(lambda x: 2 * x, MODEL)
    assert at(MODEL).apply(lambda m: m) is MODEL


def test_a_place_that_is_a_function_of_another() -> None:
    """It cannot be set, it follows its source, and the rest of its module can change."""
    model = tie(untie(MODEL, "head.weight"), "head.weight", "embed.weight", via=jnp.transpose)
    with pytest.raises(TieError, match=r"change embed.weight, or end the tie first: ag.untie\(model, 'head.weight'\)"):
        at(model).head.weight.set(W)
    with pytest.raises(TieError, match="function of another"):
        at(model).head.apply(lambda m: jax.tree.map(lambda x: 2 * x, m))
    new = at(model).embed.weight.set(jnp.ones((2, 3)))
    assert new.head.weight.shape == (3, 2)
    wide = at(model).head.bias.set(W)
    np.testing.assert_array_equal(wide.head.weight, MODEL.embed.weight.T)
    assert tie_texts(wide) == tie_texts(model)
    assert at(model).head.apply(lambda m: at(m).use_relu.set(True)).head.use_relu
    np.testing.assert_array_equal(at(model).head.weight.get(), MODEL.embed.weight.T)
    gone = at(model).embed.weight.set(None)
    np.testing.assert_array_equal(gone.head.weight, MODEL.embed.weight.T)
    assert gone.head.weight is gone.head.weight, "it is computed once more, for good"
    assert tie_texts(gone) == ["layers[1] = layers[0]"]


def test_data_becomes_structure_and_the_other_way() -> None:
    """What an edit puts in is looked at as in `__init__`; lists are frozen on the way in."""
    assert len(jax.tree.leaves(at(MODEL).embed.bias.set(None))) == len(jax.tree.leaves(MODEL)) - 1
    more = at(MODEL).head.bias.set(jnp.ones(3))
    assert len(jax.tree.leaves(more)) == len(jax.tree.leaves(MODEL)) + 1
    assert at(MODEL).head.use_relu.set(True).head.use_relu is True
    assert jax.tree.structure(at(MODEL).head.use_relu.set(True)) != jax.tree.structure(MODEL)
    listed = at(MODEL).layers.set([Linear(W)])
    with pytest.raises(FrozenError):
        listed.layers.append(1)
    mixed = at(Any3((W, 2), [1, 2], {"k": W + 1}))["a"][1].set(W)
    assert len(jax.tree.leaves(mixed)) == 3
    assert len(jax.tree.leaves(at(mixed).a[0].set("x"))) == 2
    assert at(mixed).b[0].set(5).b == [5, 2]
    assert len(jax.tree.leaves(at(mixed).b[0].set(W))) == 4
    assert jax.tree.structure(at(mixed).c["k"].set(None)) == jax.tree.structure(Any3((W, W + 1), [1, 2], {"k": None}))


def test_a_new_form_is_what_the_constructor_would_give() -> None:
    """The structure after an edit is that of a module which was built with these values."""
    before = Any3(W, "x", [Linear(W + 1), (W + 2, 1)])
    after = at(before).b.set(W + 3)
    assert jax.tree.structure(after) == jax.tree.structure(Any3(W, W + 3, [Linear(W + 1), (W + 2, 1)]))
    again = at(at(after).b.set("x")).c[1][1].set(1)
    assert jax.tree.structure(again) == jax.tree.structure(before)


@pytest.mark.parametrize("placed", [False, None, "label", 1])
def test_trees_that_are_no_models_keep_their_positions(placed: Any) -> None:
    """A mask, or a tree of labels, stays one: a place that holds no array stays a leaf, alone and as a whole part."""
    mask = jax.tree.map(lambda _: placed, MODEL)
    structure = jax.tree.structure(mask, is_leaf=lambda x: x is None)
    one = at(mask).layers[2].weight.set(True)
    assert jax.tree.structure(one, is_leaf=lambda x: x is None) == structure
    assert jax.tree.leaves(at(mask).head.set(True), is_leaf=lambda x: x is None)[-1] is True
    assert jax.tree.map(lambda m, _: m, one, MODEL, is_leaf=lambda x: x is None) is not None


class Checked(Module):
    weight: Any
    bias: Any
    seen: Any = field(default=(), static=True)

    def __check_init__(self) -> None:
        if self.weight.shape[0] != self.bias.shape[0]:
            raise ValueError("weight and bias differ")


class Converted(Module):
    x: Any = field(converter=jnp.asarray)
    n: int = field(static=True, default=0)


class Tied(Module):
    source: Any
    checked: Checked

    def __init__(self) -> None:
        self.source = jnp.ones((3, 2))
        self.checked = Checked(self.source, jnp.ones(3))


def test_invariants_are_checked_once_at_the_end() -> None:
    """`__check_init__` refuses a bad edit, also one that comes by a tie; several fields may change together."""
    model = [Checked(jnp.ones((3, 2)), jnp.ones(3))]
    with pytest.raises(ValueError, match="differ"):
        at(model)[0].bias.set(jnp.ones(4))
    new = at(model)[0].replace(weight=jnp.ones((4, 2)), bias=jnp.ones(4))
    assert new[0].bias.shape == (4,)
    with pytest.raises(ValueError, match="differ"):
        at(Tied()).source.set(jnp.ones((5, 2)))
    assert at(jax.tree.map(lambda _: 0, model))[0].bias.set(1)[0].bias == 1, "a tree of numbers is not checked"


def test_converters_and_static_fields() -> None:
    """A field's value goes through its converter, and a static one takes no array of JAX's."""
    assert isinstance(at(Converted(1.0)).x.set(2.0).x, jax.Array)
    assert isinstance(at(Converted(1.0)).x.set(np.ones(2)).x, jax.Array), "an array for an array too"
    with pytest.raises(StructureError, match=r"Converted\.n"):
        at(Converted(1.0)).n.set(jnp.ones(2))


class Odd(Module):
    set: Any
    get: Any
    _tree: Any


def test_fields_named_as_the_verbs() -> None:
    """They are reached by name in brackets."""
    odd = Odd(1, W, W)
    assert at(odd)["set"].set(2).set == 2
    assert at(odd)["get"].get() is W
    assert at(odd)["_tree"].set(3)._tree == 3


def test_a_place_is_no_collection() -> None:
    """Python's own questions are answered, so that notebooks and `hasattr` work; loops are refused."""
    assert {"weight", "bias", "use_relu", "set"} <= set(dir(at(MODEL).head))
    assert not hasattr(at(MODEL), "_repr_html_")
    with pytest.raises(TypeError, match="not iterable"):
        list(at(MODEL).layers)


Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Data:
    x: Any
    name: str = dataclasses.field(default="a", metadata={"static": True})


def test_any_pytree() -> None:
    """Dicts, lists, tuples, named tuples, dataclasses and Equinox modules are copied with one part changed."""
    tree = {"a": [Point(1, (2, 3))], "d": collections.OrderedDict(z=1), "n": None, "x": Data(W)}
    assert at(tree)["a"][0].y[1].set(9)["a"] == [Point(1, (2, 9))]
    assert type(at(tree)["d"]["z"].set(2)["d"]) is collections.OrderedDict
    assert at(tree)["n"].set(5)["n"] == 5
    renamed = at(tree)["x"].name.set("b")["x"]  # `==` of dataclasses compares arrays since Python 3.13
    assert type(renamed) is Data
    assert renamed.x is W
    assert renamed.name == "b"
    assert at(tree)["x"].x.set(1)["x"] == Data(1)
    assert tree["a"] == [Point(1, (2, 3))]
    net = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    assert at(net).layers[0].weight.set(W).layers[0].weight is W
    assert at(net).width_size.set(7).width_size == 7
    held = at(Any3(net, net.layers[0].bias)).a.layers[0].weight.set(W)
    assert held.a.layers[0].weight is W
    assert held.a.activation is net.activation
    assert jax.tree.structure(held) == jax.tree.structure(Any3(net, net.layers[0].bias))
    assert at(W).set(1) == 1
    assert at({"a": {"0": 5, "x.y": 6}})["a.0"].get() == 5
    assert at({"a": {"0": 5, "x.y": 6}})["a"]["x.y"].get() == 6
    assert at(tree)["a[-1].x"].get() == at(tree)["a"][-1].x.get() == 1


def test_many_places() -> None:
    """By type, pattern, predicate, slice and several at once; steps after it go on from each place."""
    zero = at(MODEL, "**.bias").apply(jnp.zeros_like)
    assert float(zero.embed.bias.sum() + zero.layers[0].bias.sum()) == 0
    assert len(at(MODEL, Linear).get()) == 4
    assert [b is None for b in at(MODEL, Linear).bias.get()] == [False, False, True, True]
    relu = at(MODEL, Linear).use_relu.set(True)
    assert [m.use_relu for m in at(relu, Linear).get()] == [True] * 4
    cut = at(MODEL).layers[1:].weight.set(W)
    assert cut.layers[1].weight is cut.layers[0].weight is W
    assert at(MODEL, lambda path, x: x.ndim == 1).apply(lambda x: x[:2]).embed.bias.shape == (2,)
    assert at(MODEL, (lambda m: m.head, "embed.bias")).get() == [MODEL.head, MODEL.embed.bias]
    assert at(MODEL, set).apply(lambda _: 1 / 0) == MODEL
    assert repr(at(MODEL).layers[0]) == "at(Model).layers[0]"
    assert repr(at(MODEL)["**.bias"]).startswith("[at(Model).embed.bias, ")


class Colour(enum.Enum):
    """Keys of a dict that are no text."""

    RED = 1


KEYS = ["a.b", "a]b", "*", "**", "?", "[0]", "it's", "", "-1", "3", 3, 1.5, None, (1, "x"), Colour.RED, int, b"x"]


@pytest.mark.parametrize("key", KEYS, ids=[repr(key) for key in KEYS[:-3]] + ["enum", "class", "bytes"])
def test_any_key_of_a_dict(key: Any) -> None:
    """Each key leads to its own value, in brackets and as the path that is written for it."""
    model = Any3({each: jnp.full(2, float(k)) for k, each in enumerate(KEYS)})
    [path] = [path for path, leaf in jax.tree.leaves_with_path(model) if leaf is model.a[key]]
    written = show_path(path)
    for new in (at(model).a[key].set(W), at(model)[written].set(W), at(model, (written,)).set(W)):
        assert [each for each in new.a if new.a[each] is W] == [key]


def test_indices_in_patterns() -> None:
    """An index in a pattern may count from the end, as in a path; one of NumPy's is an index."""
    assert at(MODEL, "layers[-1].*").get() == at(MODEL, "layers[2].*").get()
    assert at(MODEL, "**.layers[-1].weight").get() == [MODEL.layers[-1].weight]
    assert at(MODEL).layers[np.int64(1)].get() is MODEL.layers[1]


@pytest.mark.parametrize("text", ["layers[*", "layers[*].weight[", "*]", "a['*'", r"a['\x*'].*"])
def test_a_text_that_is_no_path_means_nothing(text: str) -> None:
    """A slip of the pen in a pattern is an error, and not the whole model."""
    with pytest.raises(PathError, match="is no path of this Model"):
        at(MODEL, text)


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda: at(MODEL).layrs, PathError, "'layrs' is no path of this Model"),
        (lambda: at(MODEL).layers[7], PathError, r"layers\[7\].*\n.*\n.*'layers\[2\]'"),
        (lambda: at(MODEL).layers[0].wieght.set(1), PathError, r"'layers\[0\].weight'"),
        (lambda: at(MODEL).layers.append(Linear(W)), PathError, "layers.append"),
        (lambda: at(MODEL)["**.nothing"], PathError, "nothing"),
        (lambda: at(MODEL).head.replace(Linear(W), bias=W), TypeError, "not both"),
        (lambda: at(MODEL).head.use_relu.set(object), None, ""),
        (lambda: at(Any3()).a.set(bytearray(1)), StructureError, "Any3.a"),
        (lambda: at(Any3(W)).replace(d=1), PathError, "'d'"),
        (lambda: at(Any3({"k": W})).a["zzz"], PathError, r"'a.zzz' is no path of this Any3(.*\n)*.*\['k'\]"),
        (lambda: setattr(at(MODEL), "head", 1), AttributeError, "head"),
    ],
)
def test_mistakes_are_named(act: Any, error: type[Exception] | None, text: str) -> None:
    """Steps that lead nowhere name the nearest paths; values that cannot stand in a module name the place."""
    if error is None:
        act()
        return
    with pytest.raises(error, match=text):
        act()


@given(modules(), st.data())
def test_setting_a_leaf_to_itself_changes_nothing(model: Any, data: st.DataObject) -> None:
    """Each place of each leaf, tied ones too, can be set to what it holds; the model is the same."""
    for path, leaf in jax.tree.leaves_with_path(model):
        again = at(model)[show_path(path)].set(leaf)
        assert jax.tree.structure(again) == jax.tree.structure(model)
        assert again == model
        assert repr(again) == repr(model)
    for each in ties(model):
        place = at(model)[show_path(each.place)]
        assert place.set(place.get()) == model


@given(modules(), st.data())
def test_setting_a_leaf_changes_that_leaf(model: Any, data: st.DataObject) -> None:
    """A new array is read where it was put, and all other leaves are the very ones that were there."""
    found = jax.tree.leaves_with_path(model)
    if not found:
        return
    i = data.draw(st.integers(0, len(found) - 1))
    new = at(model)[show_path(found[i][0])].set(W)
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert jax.tree.leaves(new)[i] is W
    assert all(a is b for j, (a, (_, b)) in enumerate(zip(jax.tree.leaves(new), found, strict=True)) if j != i)
    for each in ties(model):
        assert jax.tree.leaves(value_at(new, each.place)) == jax.tree.leaves(value_at(new, home(new, each.place)[0]))


@given(modules(), st.data())
def test_an_edit_is_a_construction(model: Any, data: st.DataObject) -> None:
    """Where no tie is concerned, setting a field gives the structure that the class gives for these values."""
    names = type(model)._fields_in_order
    tied = {str(path[0]) for t in ties(model) for path in (t.place, t.source)}
    free = [name for name in names if f".{name}" not in tied and name != "s"]
    if not free:
        return
    name, value = data.draw(st.sampled_from(free)), data.draw(values(arrays()))
    wanted = type(model)(*(value if each == name else getattr(model, each) for each in names))
    new = at(model)[name].set(value)
    assert jax.tree.structure(new) == jax.tree.structure(wanted)
    assert new == wanted
    assert at(new)[name].set(getattr(model, name)) == model


@pytest.mark.parametrize("kept", [None, "text"])
@pytest.mark.parametrize("value", [[], None, "other", [Empty()], W], ids=["list", "none", "text", "modules", "array"])
def test_structure_in_a_record_holds_no_place(kept: Any, value: Any) -> None:
    """A record of a module without arrays and of structure: what is put in its place is what the class makes of it."""
    wanted, new = Any3(value), at(Any3(Pair(Empty(), kept))).a.set(value)
    assert jax.tree.structure(new) == jax.tree.structure(wanted)
    assert new == wanted
    labelled = jax.tree.map(lambda x: None, Any3(Pair(W, kept)))
    assert jax.tree.leaves(at(labelled).a.set(None), is_leaf=lambda x: x is None) == [None]


@given(modules())
def test_apply_to_every_module_is_a_map(model: Any) -> None:
    """Casting through each submodule is casting the model: no tie is lost, no leaf done twice."""
    real = jax.tree.map(lambda x: jnp.ones(x.shape, jnp.float32), model)
    wanted = jax.tree.map(lambda x: x * 3, real)
    for where in (Module, lambda m: m, "**", [Module, "**"]):
        assert at(real, where).apply(lambda m: jax.tree.map(lambda x: x * 3, m)) == wanted


@given(modules(with_marks=True), st.data())
def test_the_short_way_of_an_edit_is_the_long_one(model: Any, data: st.DataObject) -> None:
    """A node that gets arrays and modules for such ones keeps its form: deciding anew would give the same."""
    paths = [one_by_one(path) for path, _ in jax.tree.leaves_with_path(model)]
    owners = [path[:-1] for path in paths]
    chosen = data.draw(st.sets(st.sampled_from(paths + owners), min_size=1, max_size=3)) if paths else set()
    new = st.sampled_from([jnp.zeros(2), np.ones(1, np.int8), Linear(W), None, "text", [jnp.ones(1)]])
    changes = {path: data.draw(new) for path in outermost(sorted(chosen, key=show_path))}
    short = _edit.edited(model, changes)
    with mock.patch.object(_edit, "_fits", return_value=False):
        long = _edit.edited(model, changes)
    assert jax.tree.structure(short) == jax.tree.structure(long)
    assert (repr(short), ag.ties(short)) == (repr(long), ag.ties(long))
    for path in [(), *(place for each in ag.ties(short) for place in (each.place, each.source))]:
        parts = (jax.tree.leaves(value_at(each, path)) for each in (short, long))
        assert all(a is b for a, b in zip(*parts, strict=True))


def test_what_is_frozen_is_decided_anew() -> None:
    """The mark goes with the array: a module in its place is not frozen, another array is."""
    model = ag.freeze(Any3(W, W + 1, W + 2), "a")
    assert ag.frozen(at(model).a.set(Linear(W))) == []
    assert len(ag.frozen(at(model).a.set(W + 3))) == 1
    assert float(jax.grad(lambda m: at(m).a.set(m.b).a.sum())(model).b.sum()) == 0.0


def test_a_place_is_not_assigned_to() -> None:
    """`ag.at(model).x = 1` changes nothing: the error shows how to make a changed copy."""
    place = ag.at(LAYERS)
    with pytest.raises(ag.FrozenError, match=r"ag\.at\(model\)\['a'\]\[0\]\.set\(value\)"):
        place["a"][0] = 1  # type: ignore[index]
    with pytest.raises(ag.FrozenError, match=r"ag\.at\(model\)\['m'\]\.value\.set\(value\)"):
        place["m"].value = 1  # type: ignore[attr-defined]
    with pytest.raises(ag.PathError):
        place["m"].valu = 1  # type: ignore[attr-defined]


LAYERS = {"a": [1, 2], "m": ag.Variable(jnp.ones(2))}


def test_a_module_cannot_be_edited_into_itself() -> None:
    """An unknown field cannot be added by an edit."""
    with pytest.raises((PathError, FieldError)):
        at(MODEL).nothing.set(1)
