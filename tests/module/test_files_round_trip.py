"""What is saved comes back: every dtype, every tree, every module, onto the devices that `like` names."""

import dataclasses
from typing import Any, NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from jax.sharding import NamedSharding, PartitionSpec

import aerogel as ag
from aerogel.module.files._encoding import ENCODINGS
from module.drawn import modules
from module.saved import JAX_DTYPES, bits, check_same, new_file, real, trees, zeros_like


@given(modules(with_marks=True))
def test_modules_come_back(model: Any) -> None:
    """Any module, into one of other values: equal, of the same structure, with the same ties, and each leaf once."""
    model = real(model)
    with new_file() as path:
        ag.save(path, model)
        again = ag.load(path, like=zeros_like(model))
        assert len(ag.load(path)) == len(jax.tree.leaves(model))
    check_same(again, model)
    assert repr(ag.ties(again)) == repr(ag.ties(model)) if isinstance(model, ag.Module) else True


@given(modules(with_marks=True))
def test_modules_of_shapes_are_filled(model: Any) -> None:
    """`like` may be shapes only; then every leaf is an array of JAX's."""
    model = jax.tree.map(jnp.asarray, real(model))
    with new_file() as path:
        ag.save(path, model)
        check_same(ag.load(path, like=jax.eval_shape(lambda: model)), model)


@given(trees().filter(lambda tree: tree is not None))  # `like=None` is no tree: it asks for what the file holds
def test_plain_trees_come_back(tree: Any) -> None:
    """Any pytree of arrays, keys and numbers, whatever its keys are called; other leaves are those of `like`."""
    with new_file() as path:
        ag.save(path, tree)
        check_same(ag.load(path, like=zeros_like(tree)), tree)
        first = path.read_bytes()
        ag.save(path, tree)
        assert path.read_bytes() == first, "one tree makes one file"


@pytest.mark.parametrize("name", sorted(ENCODINGS))
@pytest.mark.parametrize("shape", [(), (5,), (0, 2), (2, 3)])
def test_every_dtype(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """Each dtype keeps its values, in NumPy's and, if JAX has it, in JAX's arrays."""
    dtype = ENCODINGS[name].dtype
    array = np.asarray(rng.integers(-1 if name.startswith("int") else 0, 1, shape, endpoint=True)).astype(dtype)
    with new_file() as path, jax.enable_x64(True):
        tree = [array, jnp.asarray(array)] if name in JAX_DTYPES else [array]
        ag.save(path, tree)
        check_same(ag.load(path, like=zeros_like(tree)), tree)
        assert [a.dtype for a in ag.load(path).values()] == [dtype] * len(tree)


def test_views_and_byte_orders() -> None:
    """Arrays that do not lie in memory as they are written: transposed, stepped, reversed, big-endian."""
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    tree = {"t": array.T, "s": array[::2, ::-1], "b": array.astype(">i4"), "c": array.astype(complex).T}
    with new_file() as path:
        ag.save(path, tree)
        for name, loaded in ag.load(path, like=tree).items():
            np.testing.assert_array_equal(loaded, tree[name])
            assert loaded.dtype.isnative
            assert loaded.flags.writeable


def test_weak_types_follow_like() -> None:
    """A temperature that gives way to bf16 still does after loading, and what did not does not."""
    tree = {"weak": jnp.asarray(1.5), "strong": jnp.float32(1.5)}
    with new_file() as path:
        ag.save(path, tree)
        for like in (tree, jax.eval_shape(lambda: tree)):
            loaded = ag.load(path, like=like)
            assert (loaded["weak"].weak_type, loaded["strong"].weak_type) == (True, False)


def test_without_like() -> None:
    """A file can be looked into without a tree: NumPy arrays, keys and numbers by their names."""
    tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "key": jax.random.key(1, impl="rbg"), "n": 3, "f": "left out"}
    with new_file() as path:
        ag.save(path, tree)
        found = ag.load(path)
    assert set(found) == {"['w']", "['key']", "['n']"}
    assert type(found["['w']"]) is np.ndarray
    assert bits(found["['key']"]) == bits(tree["key"])
    assert found["['n']"] == 3


def test_a_tree_of_one_leaf() -> None:
    """An array alone is a tree too."""
    with new_file() as path:
        ag.save(path, jnp.arange(3))
        assert list(ag.load(path)) == ["value"]
        check_same(ag.load(path, like=jnp.zeros(3, int)), jnp.arange(3))


class Layer(ag.Module):
    weight: Any
    bias: Any
    act: Any = jax.nn.relu


class Model(ag.Module):
    embed: Any
    layers: Any
    head: Any
    steps: int

    def __init__(self, size: int) -> None:
        self.embed = Layer(jnp.arange(4.0 * size).reshape(4, size), None)
        self.layers = [Layer(jnp.full((size, size), i + 1.0), jnp.zeros(size)) for i in range(2)]
        self.head = Layer(self.embed.weight, jnp.ones(4))
        self.steps = 3


class Training(NamedTuple):
    model: Any
    optimiser: Any
    key: Any
    step: int


def test_a_whole_training_state() -> None:
    """Model, optimiser state, key and counter: one file; what is tied in the model is tied in both moments."""
    model = Model(3)
    state = Training(model, optax.adam(1e-3).init(model), jax.random.key(7), 12)
    with new_file() as path:
        ag.save(path, {"state": state})
        again = ag.load(path, like={"state": zeros_like(state)})["state"]
        names = set(ag.load(path))
    check_same(again, state)
    assert again.model.head.weight is again.model.embed.weight
    assert "['state'].optimiser[0].mu.embed.weight" in names
    assert not any(name.endswith("head.weight") for name in names)


def test_other_libraries() -> None:
    """Equinox modules, whose functions stay, and Flax NNX states, alone and inside a module of ours."""
    linear = equinox.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    tree = {"eqx": linear, "nnx": state, "ours": Layer(linear, [state])}
    with new_file() as path:
        ag.save(path, tree)
        check_same(ag.load(path, like=zeros_like(tree)), tree)


def test_dataclasses_of_jax() -> None:
    """What `jax.tree_util.register_dataclass` makes a tree is one."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Point:
        x: Any
        y: Any

    with new_file() as path:
        ag.save(path, Point(jnp.ones(2), 1.5))
        assert set(ag.load(path)) == {"x", "y"}
        loaded = ag.load(path, like=Point(jnp.zeros(2), 0.0))
    assert loaded.y == 1.5
    assert bits(loaded.x) == bits(jnp.ones(2))


def test_refs_are_saved_by_their_values() -> None:
    """A mutable array is read when it is saved; loading makes a new one and leaves that of `like` alone."""
    ref, like = jax.new_ref(jnp.arange(3.0)), jax.new_ref(jnp.zeros(3))
    with new_file() as path:
        ag.save(path, [ref])
        (loaded,) = ag.load(path, like=[like])
    assert isinstance(loaded, jax.Ref)
    assert bits(loaded[...]) == bits(ref[...])
    assert not like[...].any()


def mesh() -> Any:
    """Eight devices in a grid."""
    return jax.make_mesh((4, 2), ("x", "y"))


SPECS = [PartitionSpec("x", "y"), PartitionSpec(None, "y"), PartitionSpec(("x", "y")), PartitionSpec()]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int4", "complex64", "float8_e3m4"])
def test_sharded_arrays(spec: PartitionSpec, dtype: str) -> None:
    """Arrays on eight devices are gathered into the file; shapes with a sharding bring them back as they lay."""
    sharding = NamedSharding(mesh(), spec)
    array = jax.device_put(np.arange(8 * 4 * 3).reshape(8, 4, 3).astype(ENCODINGS[dtype].dtype), sharding)
    with new_file() as path:
        ag.save(path, {"w": array})
        for like in (array, jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)):
            loaded = ag.load(path, like={"w": like})["w"]
            assert loaded.sharding == sharding
            check_same(loaded, array)
            for mine, theirs in zip(loaded.addressable_shards, array.addressable_shards, strict=True):
                assert bits(mine.data) == bits(theirs.data)


def test_no_device_gets_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sharded array is read in the pieces that the devices hold, cast or not; the file is never read as a whole."""
    from aerogel.module.files import _archive

    shapes = []
    read_box = _archive.read_box

    def spy(*args: Any) -> Any:
        shapes.append((found := read_box(*args)).shape)
        return found

    monkeypatch.setattr(_archive, "read_box", spy)
    like = jax.ShapeDtypeStruct((8, 4), jnp.float16, sharding=NamedSharding(mesh(), PartitionSpec("x", "y")))
    with new_file() as path:
        ag.save(path, np.arange(32, dtype=np.float32).reshape(8, 4))
        loaded = ag.load(path, like=like, cast=True)
    np.testing.assert_array_equal(loaded, np.arange(32).reshape(8, 4))
    assert set(shapes) == {(2, 2)}


def test_blocks_of_large_rows(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Parts are read in blocks, and rows that are larger than a block piece by piece: the same values for any size."""
    from aerogel.module.files import _safetensors

    array = rng.integers(0, 99, (3, 5, 4, 2))
    boxes = [np.s_[1:3, 2:4, 1:3, :], np.s_[:, :, :, 1:2], np.s_[0:1, :, 1:4, :], np.s_[2:3], np.s_[:, 1:1]]
    with new_file() as path:
        ag.save(path, array)
        for block in (16, 64, 200, 1 << 24):
            monkeypatch.setattr(_safetensors, "BLOCK_BYTES", block)
            for box in boxes:
                full = (
                    (*np.atleast_1d(np.array(box, object)), *[slice(None)] * 4)[:4] if isinstance(box, tuple) else box
                )
                full = full if isinstance(full, tuple) else (full, *[slice(None)] * 3)
                with open(path, "rb") as file:
                    header = _safetensors.read_header(file, "file")
                    got = _safetensors.read_box(file, "file", header.size, header.arrays["value"], full)
                np.testing.assert_array_equal(got, array[box])


def test_arrays_keep_no_copy_of_what_was_saved() -> None:
    """JAX keeps what NumPy was given of a sharded array; saving a model must not hold all of it twice."""
    array = jax.device_put(jnp.arange(8.0), NamedSharding(mesh(), PartitionSpec("x")))
    with new_file() as path:
        ag.save(path, array)
    assert array._npy_value is None
    np.asarray(array)
    assert array._npy_value is not None, "the attribute's name is still the one"


def test_uncommitted_arrays_stay_so() -> None:
    """An array that nobody gave a place may still be computed with one on any device; a placed one comes back there."""
    device = jax.devices()[3]
    with new_file() as path:
        ag.save(path, [jnp.ones(2), jnp.ones(2)])
        free, placed = ag.load(path, like=[jnp.zeros(2), jax.device_put(jnp.zeros(2), device)])
    assert not free.committed
    assert placed.devices() == {device}


def test_shapes_made_under_a_mesh() -> None:
    """`eval_shape` of a constructor that shards tells axes and no devices: those are the mesh's that is in use."""
    sharding = NamedSharding(mesh(), PartitionSpec("x", "y"))

    def make() -> Any:
        return {"w": jax.device_put(jnp.arange(32.0).reshape(8, 4), sharding), "key": jax.random.key(0)}

    with new_file() as path:
        ag.save(path, make())
        with jax.set_mesh(mesh()):
            shapes = jax.eval_shape(make)
            assert isinstance(shapes["w"].sharding.mesh, jax.sharding.AbstractMesh)
            loaded = ag.load(path, like=shapes)
            check_same(loaded, make())
        assert loaded["w"].sharding == sharding
        with pytest.raises(ag.UsageError, match="set_mesh"):
            ag.load(path, like=shapes)


def test_loading_into_traced_arrays() -> None:
    """Inside jit, `like` may be the function's own argument: what is loaded is a constant of the program."""
    tree = {"w": jnp.arange(3.0), "key": jax.random.key(0)}
    with new_file() as path:
        ag.save(path, tree)
        check_same(jax.jit(lambda like: ag.load(path, like=like))(zeros_like(tree)), tree)
