"""Halves of trees, maps over chosen leaves, casts and counts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerogel.module import Module, Variable, cast, combine, count_params, freeze, map_leaves, partition, ties
from aerogel.module._paths import show_path
from module.drawn import modules


class Linear(Module):
    weight: Any
    bias: Any = None


class Model(Module):
    embed: Linear
    head: Linear
    key: Any
    steps: Any

    def __init__(self) -> None:
        self.embed = Linear(jnp.ones((3, 2)), np.ones(2, np.float16))
        self.head = Linear(self.embed.weight, jnp.ones(2, jnp.complex64))
        self.key = jax.random.key(0)
        self.steps = jnp.array([1, 2])


MODEL = Model()


@given(modules(), st.data())
def test_combine_undoes_partition(model: Any, data: st.DataObject) -> None:
    """Each leaf is in one half, None stands in the other, and together they are the model, in either order."""
    leaves = jax.tree.leaves(model)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(leaves), max_size=len(leaves)))
    paths = [show_path(path) for path, _ in jax.tree.leaves_with_path(model)]
    wanted = [path for path, is_chosen in zip(paths, chosen, strict=True) if is_chosen]
    taken, rest = partition(model, wanted)
    assert len(jax.tree.leaves(taken)) == sum(chosen)
    assert len(jax.tree.leaves(rest)) == len(leaves) - sum(chosen)
    for both in (combine(taken, rest), combine(rest, taken), combine(taken, model)):
        assert jax.tree.structure(both) == jax.tree.structure(model)
        assert all(a is b for a, b in zip(jax.tree.leaves(both), leaves, strict=True))
        assert ties(both) == ties(model)


@given(modules())
def test_cast_changes_floats_only(model: Any) -> None:
    """There and back is the identity on types; integers, keys, structure and ties are untouched."""
    low = cast(model, jnp.bfloat16)
    assert jax.tree.structure(low) == jax.tree.structure(model)
    for leaf, before in zip(jax.tree.leaves(low), jax.tree.leaves(model), strict=True):
        is_float = jax.dtypes.issubdtype(before.dtype, np.floating)
        assert leaf.dtype == (jnp.bfloat16 if is_float else before.dtype)
        assert is_float or leaf is before
        assert type(leaf) is type(before)
    assert cast(low, jnp.bfloat16) == low
    wide = cast(low, np.float32)
    assert [x.dtype for x in jax.tree.leaves(cast(wide, "bfloat16"))] == [x.dtype for x in jax.tree.leaves(low)]


@given(modules())
def test_map_leaves_is_tree_map(model: Any) -> None:
    """Without `where` it is JAX's map, with paths as text; with it other leaves are the very same."""
    placed = map_leaves(lambda path, _: path, model, with_path=True)
    assert jax.tree.leaves(placed) == [show_path(path) for path, _ in jax.tree.leaves_with_path(model)]
    assert map_leaves(lambda _: 1 / 0, model, where=[]) == model


def test_cast_of_complex_and_of_chosen_parts() -> None:
    """Complex numbers are not cut in half; a part can be cast alone, through its tie; tracers can be cast."""
    assert cast(MODEL, jnp.float16).head.bias.dtype == jnp.complex64
    assert cast(MODEL, jnp.complex64).embed.weight.dtype == jnp.complex64
    head = cast(MODEL, jnp.bfloat16, "head")
    assert (head.embed.weight.dtype, head.embed.bias.dtype) == (jnp.bfloat16, np.float16)
    assert head.head.weight is head.embed.weight
    assert jax.eval_shape(lambda m: cast(m, jnp.bfloat16), MODEL).embed.weight.dtype == jnp.bfloat16
    assert cast(jax.eval_shape(lambda: MODEL), jnp.bfloat16).embed.weight.dtype == jnp.bfloat16
    assert isinstance(cast(MODEL, np.float32).embed.bias, np.ndarray)


def test_map_leaves_over_several_trees() -> None:
    """Leaves of further trees come along; parts of them where a tree is longer."""
    added = map_leaves(lambda a, b: a + b, {"a": 1, "b": 2}, {"a": 10, "b": 20}, where="b")
    assert added == {"a": 1, "b": 22}
    assert map_leaves(lambda a, b: (a, b), [1], [{"x": 2}]) == [(1, {"x": 2})]


def test_combine_takes_a_whole_part_for_none() -> None:
    """None may stand for a part in an earlier tree; the first tree that has a leaf wins."""
    assert combine({"a": None, "b": 1}, {"a": [1, 2], "b": 5}) == {"a": [1, 2], "b": 1}
    assert combine({"a": [1, None]}, {"a": [3, 4]}, {"a": [5, 6]}) == {"a": [1, 4]}
    assert combine() is None
    with pytest.raises(ValueError, match="pytree structure error"):
        combine({"a": 1}, {"b": 1})


def test_parameters_are_counted_once() -> None:
    """Tied ones once, integers and keys not at all; by part, by dtype, by anything; of shapes as of arrays."""
    assert count_params(MODEL) == 6 + 2 + 2
    assert count_params(MODEL, "head") == 6 + 2
    assert count_params(MODEL, by="part") == {"embed": 8, "head": 2}
    assert count_params(MODEL, by="dtype") == {"float32": 6, "float16": 2, "complex64": 2}
    assert count_params(MODEL, by=lambda path, x: x.ndim) == {2: 6, 1: 4}
    assert count_params(jax.eval_shape(lambda: MODEL)) == 10
    assert count_params(jax.ShapeDtypeStruct((10**6, 10**6), jnp.bfloat16)) == 10**12
    assert count_params([]) == 0


def test_variables_are_no_parameters() -> None:
    """What a forward pass updates is state: it is not counted, whatever is asked for. Frozen parameters are."""
    model = Linear([Variable(jnp.ones(3)), jnp.ones(2)], Variable(1.0))
    assert count_params(model) == 2
    assert count_params(model, by="part") == {"weight": 2}
    assert count_params(freeze(model, "weight[1]")) == 2
    assert count_params(jax.eval_shape(lambda: model)) == 2
