"""A stack is the layers that it was made of: one after the other, under gradients, with state, keys and ties."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax, nn

KEY = jax.random.key(0)
XS = jax.random.normal(jax.random.key(1), (2, 3))


def make(key: Any) -> Any:
    """A layer of two, one of which draws random numbers."""
    return nn.Sequential(nn.Linear(3, 3, key=key), jnp.tanh, nn.Dropout(0.5))


def count_of(f: Callable[..., Any], *args: Any, primitive: str) -> int:
    """How often a primitive stands in the function's program, at any depth."""

    def walk(jaxpr: Any) -> int:
        inner = (each for eqn in jaxpr.eqns for each in _jax.jaxprs_in_params(eqn.params))
        return sum(eqn.primitive.name == primitive for eqn in jaxpr.eqns) + sum(map(walk, inner))

    return walk(jax.make_jaxpr(f)(*args).jaxpr)


def test_layers_are_drawn_as_they_are_alone() -> None:
    """Layer i is what the constructor makes of the i-th key, and goes to a list and back."""
    stack = nn.Stack(make, 3, key=KEY)
    alone = [make(key) for key in jax.random.split(KEY, 3)]
    for got, wanted in zip(stack, alone, strict=True):
        assert jax.tree.structure(got) == jax.tree.structure(wanted)
        np.testing.assert_array_equal(got[0].weight, wanted[0].weight)
    again = nn.Stack.from_list(alone)
    assert jax.tree.structure(again) == jax.tree.structure(stack)
    np.testing.assert_array_equal(again.layers[0].weight, stack.layers[0].weight)
    assert stack[-1][0].weight.tolist() == stack[2][0].weight.tolist()
    assert len(stack[::2]) == 2
    with pytest.raises(IndexError):
        stack[3]


@pytest.mark.parametrize(
    ("n", "remat"),
    [(5, "none"), (5, "all"), (5, "sqrt"), (1, "sqrt"), (3, ("kept",)), (3, jax.checkpoint_policies.dots_saveable)],
)
def test_a_stack_computes_what_its_layers_do(n: int, remat: Any) -> None:
    """Results and gradients are those of a Python loop with the same keys, whatever is computed again."""
    stack = nn.Stack(make, n, remat, key=KEY)

    def by_loop(stack: Any, x: Any) -> Any:
        for layer, key in zip(stack, jax.random.split(KEY, n), strict=True):
            x = layer(x, key=key)
        return (x**2).sum()

    def at_once(stack: Any, x: Any) -> Any:
        return (stack(x, key=KEY) ** 2).sum()

    both = jax.jit(lambda *args: [jax.value_and_grad(f, (0, 1))(*args) for f in (by_loop, at_once)])(stack, XS)
    for got, wanted in zip(jax.tree.leaves(both[1]), jax.tree.leaves(both[0]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_the_body_is_there_once() -> None:
    """A stack's program has one loop, whatever its length; one that is computed again has the same layer inside."""
    sizes = [count_of(ag.inference(nn.Stack(make, n, key=KEY)), XS, primitive="dot_general") for n in (2, 9)]
    assert sizes == [1, 1]
    blocks = nn.Stack(lambda key: nn.Linear(3, 3, key=key), 10, "sqrt", key=KEY)
    assert count_of(blocks, XS, primitive="scan") == 3  # blocks, a block, and the rest


def test_less_is_stored() -> None:
    """What a gradient keeps falls from "none" to "all", and again to "sqrt"."""

    def stored(remat: Any) -> int:
        stack = nn.Stack(lambda key: nn.MLP(32, 32, 32, 2, jnp.tanh, key=key), 36, remat, key=KEY)
        xs = jnp.ones((512, 32))
        step = jax.jit(jax.grad(lambda stack, xs: stack(xs).sum()))
        return step.lower(stack, xs).compile().memory_analysis().temp_size_in_bytes

    kept = [stored(remat) for remat in ("none", "all", "sqrt")]
    assert kept[0] > 1.5 * kept[1] > 1.5 * 1.5 * kept[2]


def test_state_in_a_stack_is_each_layer_s_own() -> None:
    """Batch statistics of layers in a stack are those of layers in a row, with blocks and without."""

    def layer(key: Any) -> Any:
        return nn.Sequential(nn.Linear(3, 3, key=key), nn.BatchNorm(3))

    xs = jax.random.normal(KEY, (16, 3))
    apply = jax.jit(ag.stateful(lambda model, x: model(x)))
    row = nn.Sequential([layer(key) for key in jax.random.split(KEY, 5)])
    wanted, row = apply(row, xs)
    for remat in ("none", "sqrt"):
        stack = nn.Stack(layer, 5, remat, key=KEY)
        got, stack = apply(stack, xs)
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        for one, other in zip(stack, row, strict=True):
            np.testing.assert_allclose(one[1].running_var.value, other[1].running_var.value, atol=1e-5)
    calm = ag.inference(stack)
    assert calm(xs).shape == (16, 3)


def test_ties_inside_of_a_layer_stay() -> None:
    """A weight that stands twice in a layer is one leaf of the stack."""

    class Twice(ag.Module):
        one: nn.Linear
        two: nn.Linear

        def __init__(self, key: Any) -> None:
            self.one = nn.Linear(3, 3, key=key)
            self.two = nn.Linear(3, 3, key=key)
            self.two.weight = self.one.weight

        def __call__(self, x: Any) -> Any:
            return self.two(self.one(x))

    stack = nn.Stack(Twice, 4, key=KEY)
    assert len(jax.tree.leaves(stack)) == 3
    by_loop = XS
    for layer in stack:
        by_loop = layer(by_loop)
    np.testing.assert_allclose(stack(XS), by_loop, rtol=1e-5)


def test_mistakes_are_told() -> None:
    """A layer that changes the type, layers that differ, and a policy that is none."""

    class Model(ag.Module):
        body: nn.Stack[Any]

        def __call__(self, x: Any) -> Any:
            return self.body(x)

    model = Model(nn.Stack(lambda key: nn.Linear(3, 4, key=key), 2, key=KEY))
    with pytest.raises(nn.InputError, match="a layer of a stack must return what it takes") as caught:
        model(XS)
    assert caught.value.place == "model.body (Stack)"
    with pytest.raises(nn.InputError) as caught:
        model(jnp.ones(5))
    assert caught.value.place == "model.body.layers (Linear)"
    with pytest.raises(ag.UsageError, match="all of one structure"):
        nn.Stack.from_list([nn.Linear(3, 3, key=KEY), nn.Linear(3, 4, key=KEY)])
    with pytest.raises(ag.UsageError, match="write remat='sqrt'"):
        nn.Stack(make, 2, "sqr", key=KEY)


def test_a_stack_under_vmap_and_editing() -> None:
    """Stacks are modules: mapped, edited by path, and mapped over their layers."""
    stack = nn.Stack(lambda key: nn.Linear(3, 3, key=key), 4, key=KEY)
    np.testing.assert_allclose(jax.vmap(stack)(XS), stack(XS), rtol=1e-5)
    assert ag.at(stack).layers.bias.set(jnp.zeros((4, 3)))[2].bias.tolist() == [0.0] * 3
    assert stack.map(lambda layer: ag.at(layer).weight.apply(jnp.transpose))[1].weight.T.tolist() == (
        stack[1].weight.tolist()
    )


def test_each_layer_of_a_stack_is_changed_with_its_own_key() -> None:
    """What `map` is given besides is divided among the layers: changes of low rank that are drawn apart."""
    stack = nn.Stack(lambda key: nn.Linear(3, 3, key=key), 4, key=KEY)

    def tuned(layer: Any, key: Any) -> Any:
        return ag.at(layer).weight.apply(lambda weight: nn.LoRA(weight, 2, key=key))

    keys = jax.random.split(KEY, 4)
    got = stack.map(tuned, keys)
    for i, layer in enumerate(stack):
        np.testing.assert_array_equal(got[i].weight.a, tuned(layer, keys[i]).weight.a)
    assert len({float(a.sum()) for a in got.layers.weight.a}) == 4
    np.testing.assert_array_equal(got(XS), stack(XS))


class Foreign(eqx.Module):
    """A block of Equinox's layers, among whose leaves are bools, numbers and functions."""

    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, key: Any) -> None:
        self.mlp = eqx.nn.MLP(3, 3, 8, 1, key=key)
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        return self.dropout(x + jax.vmap(self.mlp)(x), key=key)


@pytest.mark.parametrize("remat", ["none", "all", "sqrt"])
def test_layers_of_another_library_stack(remat: Any) -> None:
    """Equinox's modules as they are: applied, indexed, changed and made of a list, with keys, as one by one."""
    keys = jax.random.split(KEY, 5)
    by_hand = XS
    for key in keys:
        by_hand = Foreign(key)(by_hand, key=key)
    stack = nn.Stack(Foreign, 5, remat, key=KEY)
    run = ag.jit(lambda stack, x, key: stack(x, key=key))

    def changed(layer: Foreign) -> Foreign:
        assert layer.dropout.inference is False  # as it is in one layer, and not hidden
        return eqx.tree_at(lambda layer: layer.dropout, layer, eqx.nn.Dropout(0.5))

    for each in (stack, nn.Stack.from_list(list(stack), remat), stack.map(changed)):
        np.testing.assert_allclose(run(each, XS, KEY), by_hand, rtol=1e-5)
        assert each[1:3].layers.dropout.inference is False
    grads = ag.jit(ag.grad(lambda stack: run(stack, XS, KEY).sum()))(stack)
    one_by_one = jax.grad(lambda arrays: by_hand_of(arrays).sum())
    arrays, rest = eqx.partition([*stack], eqx.is_array)

    def by_hand_of(arrays: Any) -> Any:
        x = XS
        for layer, key in zip(eqx.combine(arrays, rest), keys, strict=True):
            x = layer(x, key=key)
        return x

    for i, wanted in enumerate(one_by_one(arrays)):
        np.testing.assert_allclose(grads.layers.mlp.layers[1].weight[i], wanted.mlp.layers[1].weight, rtol=1e-4)
    assert ag.inference(stack).layers.dropout.inference is True


def test_a_sequence_gives_keys_to_layers_of_another_library() -> None:
    """Inside of `jit` too, where Equinox's layers cannot be hashed; functions of JAX's are given none."""
    linear, dropout = eqx.nn.Linear(3, 3, key=KEY), eqx.nn.Dropout(0.5)
    model = nn.Sequential(linear, jax.nn.relu, jax.jit(jnp.sin), dropout)
    x = jnp.ones(3)
    wanted = dropout(jnp.sin(jax.nn.relu(linear(x))), key=jax.random.split(KEY, 4)[3])
    np.testing.assert_allclose(jax.jit(lambda model, x, key: model(x, key=key))(model, x, KEY), wanted, rtol=1e-6)
