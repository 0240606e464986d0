"""Files that do not fit their tree, and how a user makes them fit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from module.saved import bits, check_same, new_file


class Linear(ag.Module):
    weight: Any
    bias: Any


class Model(ag.Module):
    embed: Any
    layers: Any
    head: Any


def model(value: float = 1.0, tied: bool = True) -> Model:
    """A model whose head may be its embedding."""
    embed = jnp.full((4, 2), value)
    layers = [Linear(jnp.full((2, 2), value + i), jnp.full(2, value)) for i in range(2)]
    return Model(embed, layers, embed if tied else jnp.full((4, 2), value))


def test_all_differences_in_one_error(golden: Any) -> None:
    """Missing, unexpected and mismatched leaves are listed together, in the order of the tree, with both types."""
    like = Model(
        jnp.zeros((4, 3)),
        [Linear(jnp.zeros((2, 2), jnp.bfloat16), None), Linear(jnp.ones(2), jax.random.key(0))],
        {"new": jnp.ones(1)},
    )
    with new_file() as path:
        ag.save(path, model())
        with pytest.raises(ag.MismatchError) as caught:
            ag.load(path, like=like)
    golden("errors/AG107-all.txt", str(caught.value))
    kinds = [(each.kind, each.name) for each in caught.value.differences]
    assert kinds == [
        ("shape", "embed"),
        ("dtype", "layers[0].weight"),
        ("shape", "layers[1].weight"),
        ("shape", "layers[1].bias"),
        ("missing", "head['new']"),
        ("unexpected", "layers[0].bias"),
    ]


def test_advice_names_the_new_name() -> None:
    """Where one leaf is missing and one alike is left over, the message proposes the renaming, which then works."""
    with new_file() as path:
        ag.save(path, {"weigth": jnp.ones(2), "bias": jnp.ones(3)})
        with pytest.raises(ag.MismatchError) as caught:
            ag.load(path, like={"weight": jnp.zeros(2), "bias": jnp.zeros(3)})
        rename = {"['weigth']": "['weight']"}
        assert f"rename={rename}" in str(caught.value)
        check_same(
            ag.load(path, like={"weight": jnp.zeros(2), "bias": jnp.zeros(3)}, rename=rename),
            {"weight": jnp.ones(2), "bias": jnp.ones(3)},
        )


def test_not_strict() -> None:
    """What only the file has is left there, what only `like` has stays; a shape that differs is an error as before."""
    like = {"a": jnp.zeros(2), "new": jnp.full(3, 7.0)}
    with new_file() as path:
        ag.save(path, {"a": jnp.ones(2), "old": jnp.ones(5)})
        check_same(ag.load(path, like=like, strict=False), {"a": jnp.ones(2), "new": jnp.full(3, 7.0)})
        with pytest.raises(ag.MismatchError, match="shape"):
            ag.load(path, like={"a": jnp.zeros(3)}, strict=False)
        with pytest.raises(ag.MismatchError) as caught:  # a shape has no values that could stay
            ag.load(path, like=jax.eval_shape(lambda: like), strict=False)
        assert [each.name for each in caught.value.differences] == ["['new']"]


CASTS = [
    (np.float32, np.float16, True),
    (np.float16, np.float64, True),
    (np.int8, np.float32, True),
    (np.bool_, np.int32, True),
    (np.float32, np.complex64, True),
    (np.float32, np.int32, False),
    (np.complex64, np.float32, False),
    (np.int32, np.bool_, False),
]


@pytest.mark.parametrize(("saved", "wanted", "can"), CASTS)
def test_casting_only_when_asked(saved: type, wanted: type, can: bool) -> None:
    """Another dtype is an error; with `cast=True` it is converted if the values have a meaning there."""
    array = np.array([0, 1, 1], saved)
    with new_file() as path:
        ag.save(path, array)
        with pytest.raises(ag.MismatchError, match="dtype"):
            ag.load(path, like=np.zeros(3, wanted))
        if can:
            check_same(ag.load(path, like=np.zeros(3, wanted), cast=True), array.astype(wanted))
        else:
            with pytest.raises(ag.MismatchError, match="dtype"):
                ag.load(path, like=np.zeros(3, wanted), cast=True)


def test_casting_numbers_and_small_floats() -> None:
    """Python's numbers and 0-d arrays go into each other; bf16 and fp8 convert as other floats do."""
    with new_file() as path:
        ag.save(path, [2, jnp.bfloat16(2), jnp.ones(2, jnp.float8_e5m2), 3])
        like = [0.0, 0.0, jnp.zeros(2, jnp.bfloat16), jnp.float32(0)]
        check_same(ag.load(path, like=like, cast=True), [2.0, 2.0, jnp.ones(2, jnp.bfloat16), jnp.float32(3)])


def test_a_shape_of_64_bits_without_x64() -> None:
    """JAX would halve the precision in silence: with x64 off, f64 in the file is a difference, a cast when asked."""
    with new_file() as path:
        ag.save(path, np.ones(2))
        like = jax.ShapeDtypeStruct((2,), np.float64)
        with pytest.raises(ag.MismatchError, match=r"f64\[2\] in the file, f32\[2\] in the tree"):
            ag.load(path, like=like)
        assert ag.load(path, like=like, cast=True).dtype == np.float32
        with jax.enable_x64(True):
            assert ag.load(path, like=like).dtype == np.float64


def test_keys_are_not_cast() -> None:
    """Keys of another implementation, and raw data of keys, are no keys of this one."""
    with new_file() as path:
        ag.save(path, [jax.random.key(0), jax.random.key_data(jax.random.key(0))])
        for like in (jax.random.key(0, impl="rbg"), jnp.zeros((), jnp.uint32)):
            with pytest.raises(ag.MismatchError, match=r"dtype(.|\n)*to fix +give `like` keys"):
                ag.load(path, like=[like, jnp.zeros(2, jnp.uint32)], cast=True)
        with pytest.raises(ag.MismatchError, match=r"u32\[2\] in the file, key<threefry2x32>\[\] in the tree"):
            ag.load(path, like=[jax.random.key(0), jax.random.key(0)], cast=True)


def test_renaming_by_patterns_and_functions() -> None:
    """`*` stands for any text; the first pattern wins; a function may leave things out."""
    with new_file() as path:
        ag.save(path, model(2.0))
        like = {"encoder": model(), "steps": jnp.float32(5)}
        rename = {"layers[1].*": "['encoder'].layers[1].*", "*": "['encoder'].*"}
        loaded = ag.load(path, like=like, rename=rename, strict=False)
        check_same(loaded, {"encoder": model(2.0), "steps": jnp.float32(5)})
        for drop in (lambda name: name if "bias" in name else None, {"*.bias": "*.bias", "*": "dropped.*"}):
            partly = ag.load(path, like=model(), rename=drop, strict=False)
            assert bits(partly.layers[0].bias) == bits(model(2.0).layers[0].bias)
            assert bits(partly.embed) == bits(model().embed)


def test_renaming_on_the_way_out() -> None:
    """`save` renames too, ties included; what a function returns None for is not written."""
    with new_file() as path:
        ag.save(path, model(), rename=lambda name: None if "layers" in name else f"x.{name}")
        assert set(ag.load(path)) == {"x.embed"}
        like = model(0.0, tied=False)
        loaded = ag.load(path, like=like, rename={"x.*": "*"}, strict=False)
        assert bits(loaded.head) == bits(model().embed)


def test_renamings_that_collide() -> None:
    """Two leaves under one name are an error on both ways, and the file is as it was."""
    with new_file() as path:
        ag.save(path, [1, 2])
        with pytest.raises(ag.UsageError, match="rename"):
            ag.load(path, like=[0], rename={"*": "[0]"})
        with pytest.raises(ag.SaveError, match="one name"):
            ag.save(path, [3, 4], rename={"*": "same"})
        assert ag.load(path, like=[0, 0]) == [1, 2]
        with pytest.raises(ag.UsageError, match="as many"):
            ag.load(path, like=[0], rename={"a": "*"})


def test_transforms() -> None:
    """A function of the user's stands between: by pattern or by name, on both ways, for sharded arrays too."""
    array = jnp.arange(6.0).reshape(2, 3)
    mesh = jax.make_mesh((2,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    tree = {"w": array, "b": jnp.ones(3), "n": 2, "key": jax.random.key(1)}
    with new_file() as path:
        ag.save(path, tree, transform={"*'w'*": np.transpose})
        assert ag.load(path)["['w']"].shape == (3, 2)
        like = tree | {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=sharding)}
        loaded = ag.load(path, like=like, transform=lambda name, x: x.T if "w" in name else x)
        check_same(loaded, tree)
        assert loaded["w"].sharding == sharding
        with pytest.raises(ag.MismatchError, match="shape"):
            ag.load(path, like=tree)


def test_transforms_that_return_nothing() -> None:
    """A transform that forgets to return is told so, and nothing is written."""
    with new_file() as path:
        with pytest.raises(ag.UsageError, match="transform"):
            ag.save(path, {"w": jnp.ones(2)}, transform=lambda name, x: None)
        assert not path.exists()


def test_transforms_that_go_by_values() -> None:
    """What a transform makes of zeros decides the header: if the array becomes something else, that is an error."""

    def by_value(x: np.ndarray) -> np.ndarray:
        return x.astype(np.int32) if x.any() else x

    with new_file() as path:
        with pytest.raises(ag.UsageError, match="zeros"):
            ag.save(path, np.ones(2, np.float32), transform={"*": by_value})
        assert not path.exists()
        ag.save(path, np.ones(2, np.float32))
        with pytest.raises(ag.UsageError, match="zeros"):
            ag.load(path, like=np.ones(2, np.float32), transform={"*": by_value})


def test_ties_in_the_file_and_in_the_tree() -> None:
    """A file of a tied model fills an untied one, and the other way round, if both copies are equal."""
    with new_file() as path:
        ag.save(path, model(2.0))
        check_same(ag.load(path, like=model(tied=False)), model(2.0, tied=False))
        ag.save(path, model(3.0, tied=False))
        loaded = ag.load(path, like=model())
        check_same(loaded, model(3.0))
        assert loaded.head is loaded.embed


def test_unequal_copies_are_refused() -> None:
    """Two different arrays for one leaf: neither is taken in silence."""
    with new_file() as path:
        ag.save(path, Model(jnp.ones((4, 2)), [], jnp.zeros((4, 2))))
        embed = jnp.zeros((4, 2))
        with pytest.raises(ag.MismatchError, match=r"copies .*head"):
            ag.load(path, like=Model(embed, [], embed))


def test_a_tied_block_and_a_tie_in_a_plain_tree() -> None:
    """Ties of whole blocks, inside dicts that are no modules, work leaf by leaf."""
    block = Linear(jnp.ones((2, 2)), jnp.ones(2))
    tied, untied = Model(block, [], block), Model(block, [], Linear(jnp.zeros((2, 2)), jnp.zeros(2)))
    with new_file() as path:
        ag.save(path, {"m": tied})
        assert len(ag.load(path)) == 2
        assert bits(ag.load(path, like={"m": untied})["m"].head.weight) == bits(block.weight)


def test_a_computed_tie_is_noted_and_not_written() -> None:
    """A place that is the transpose of another holds no data in the file either."""
    tied = ag.tie(Model(jnp.arange(8.0).reshape(4, 2), [], jnp.zeros((2, 4))), "head", "embed", jnp.transpose)
    with new_file() as path:
        ag.save(path, tied)
        assert set(ag.load(path)) == {"embed"}
        assert b'\\"via\\":\\"transpose\\"' in path.read_bytes()
        like = ag.tie(Model(jnp.zeros((4, 2)), [], jnp.zeros((2, 4))), "head", "embed", jnp.transpose)
        np.testing.assert_array_equal(ag.load(path, like=like).head, np.arange(8.0).reshape(4, 2).T)
        with pytest.raises(ag.MismatchError, match=r"missing +head"):
            ag.load(path, like=Model(jnp.zeros((4, 2)), [], jnp.zeros((2, 4))))


REFUSED = {
    "shape": (lambda: jax.ShapeDtypeStruct((2,), jnp.float32), "no values"),
    "text array": (lambda: np.array(["a"]), "cannot be written"),
    "object array": (lambda: np.array([None]), "cannot be written"),
    "long double": (lambda: np.ones(2, np.longdouble), "cannot be written"),
    "long double scalar": (lambda: np.longdouble(2), "cannot be written"),
    "large int": (lambda: 2**63, "64 bits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_leaves_that_cannot_be_saved(name: str) -> None:
    """Each is an error that names the leaf, and there is no file."""
    make, text = REFUSED[name]
    with new_file() as path:
        with pytest.raises(ag.SaveError, match=text) as caught:
            ag.save(path, {"a": [1, make()]})
        assert "['a'][1]" in str(caught.value)
        assert not path.exists()


def test_traced_arrays_cannot_be_saved() -> None:
    """Inside jit there is nothing to write yet; the message says so, and where."""
    with new_file() as path, pytest.raises(ag.SaveError, match="traced"):
        jax.jit(lambda x: ag.save(path, {"x": x}))(1.0)


def test_names_that_the_format_keeps() -> None:
    """A leaf cannot be called as safetensors calls its metadata, nor what UTF-8 cannot write."""
    with new_file() as path:
        for name in ("__metadata__", "\ud800"):
            with pytest.raises(ag.SaveError):
                ag.save(path, [1], rename={"*": name})
        ag.save(path, {"\ud800": 1})
        assert ag.load(path, like={"\ud800": 0}) == {"\ud800": 1}


def test_a_class_is_no_model() -> None:
    """`like=Model` is a slip for a model: told as that, and not as a list of all that the class lacks."""
    with new_file() as path:
        ag.save(path, model(2.0))
        with pytest.raises(ag.UsageError, match="eval_shape"):
            ag.load(path, like=type(model()))


def test_conventions() -> None:
    """PyTorch's names have dots between all steps; two leaves that only differ in that cannot be told apart there."""
    with new_file() as path:
        ag.save(path, model(2.0), convention="torch")
        assert set(ag.load(path)) == {"embed", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"}
        check_same(ag.load(path, like=model(), convention="torch"), model(2.0))
        with pytest.raises(ag.MismatchError):
            ag.load(path, like=model())
        with pytest.raises(ag.SaveError, match="one name"):
            ag.save(path, {"a.b": 1, "a": {"b": 2}}, convention="torch")
        with pytest.raises(ag.UsageError, match="like"):
            ag.load(path, like={"a.b": 1, "a": {"b": 2}}, convention="torch")
        with pytest.raises(ag.UsageError, match="convention"):
            ag.save(path, model(), convention="pytorch")  # pyright: ignore[reportArgumentType]
