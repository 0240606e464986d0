"""Frozen parameters: constants to differentiation, leaves to everything else, nothing to an optimiser."""

import copy
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel import UsageError
from aerogel.module import Module, at, combine, freeze, frozen, partition, tie, ties, trainable, unfreeze, untie
from aerogel.module._frozen import frozen_mask
from module.drawn import modules


class Linear(Module):
    weight: Any
    bias: Any = None

    def __call__(self, x: Any) -> Any:
        return self.weight @ x if self.bias is None else self.weight @ x + self.bias


class Model(Module):
    embed: Linear
    pair: Any
    steps: Any
    head: Linear

    def __init__(self) -> None:
        self.embed = Linear(jnp.eye(3) / 2, jnp.ones(3))
        self.pair = (jnp.ones(3), jnp.ones(3))
        self.steps = jnp.array(0)
        self.head = Linear(self.embed.weight)

    def __call__(self, x: Any) -> Any:
        return self.head(jnp.tanh(self.embed(x)) * self.pair[0] * self.pair[1]).sum()


X = jnp.array([1.0, 2.0, 3.0])
MODEL = Model()


def loss(params: Any, rest: Any) -> Any:
    """The loss as a function of one half."""
    return combine(params, rest)(X)


def shown(tree: Any) -> list[bool]:
    """Which leaves are not all zero."""
    return [bool(np.any(np.asarray(leaf))) for leaf in jax.tree.leaves(tree)]


TRANSFORMED: dict[str, Any] = {
    "grad": lambda f, m: jax.grad(f)(m),
    "jit": lambda f, m: jax.jit(jax.grad(f))(m),
    "twice": lambda f, m: jax.jit(jax.grad(f))(jax.jit(lambda m: m)(m)),
    "vjp": lambda f, m: jax.vjp(f, m)[1](1.0)[0],
    "linearize": lambda f, m: jax.linear_transpose(jax.linearize(f, m)[1], m)(1.0)[0],
    "checkpoint": lambda f, m: jax.grad(jax.checkpoint(f))(m),
    "scan": lambda f, m: jax.grad(lambda m: jax.lax.scan(lambda c, _: (c, f(c)), m, None, length=2)[1].sum())(m),
    "vmap": lambda f, m: jax.tree.map(
        lambda x: x[0], jax.vmap(jax.grad(f))(jax.tree.map(lambda x: jnp.stack([x, x]), m))
    ),
    "jvp": lambda f, m: jax.tree.unflatten(
        jax.tree.structure(m),
        [
            jax.jvp(f, (m,), (jax.tree.unflatten(jax.tree.structure(m), list(map(jnp.asarray, one))),))[1]
            for one in [
                [jnp.ones_like(x) * (i == j) for j, x in enumerate(jax.tree.leaves(m))]
                for i in range(len(jax.tree.leaves(m)))
            ]
        ],
    ),
}


@pytest.mark.parametrize("how", TRANSFORMED)
def test_plain_jax_sees_constants(how: str) -> None:
    """Under JAX's own transformations a frozen leaf has derivative zero in all its places, others have theirs."""
    floats = at(MODEL).steps.set(None)
    model = freeze(floats, ("head.weight", "pair[1]"))
    grads = TRANSFORMED[how](lambda m: m(X), model)
    assert shown(grads) == [False, True, True, False]
    free = TRANSFORMED[how](lambda m: m(X), floats)
    np.testing.assert_allclose(grads.embed.bias, free.embed.bias, rtol=1e-6)
    assert shown(free) == [True] * 4
    assert shown(TRANSFORMED[how](lambda m: m(X), unfreeze(model))) == [True] * 4


def test_inside_of_what_is_differentiated() -> None:
    """Freezing there stops gradients from then on; a value that is set in a frozen place is a constant too."""
    model = at(MODEL).steps.set(None)
    grads = jax.grad(lambda m: freeze(m, ("embed", "pair[0]"))(X))(model)
    assert shown(grads) == [False, False, False, True]
    frozen_head = freeze(model, "embed.weight")
    assert not np.any(jax.grad(lambda w: at(frozen_head).head.weight.set(w)(X))(MODEL.embed.weight))
    assert np.any(jax.grad(lambda w: at(unfreeze(frozen_head)).head.weight.set(w)(X))(MODEL.embed.weight))


def test_aerogels_own_gradients_are_none() -> None:
    """`ag.grad` has no leaf for what is frozen, alone and compiled, and the same gradients for the rest."""
    model = freeze(MODEL, ("embed.weight", "pair[1]"))
    free = jax.grad(lambda m: m(X))(at(MODEL).steps.set(None))
    for grad in (ag.grad(lambda m: m(X)), ag.jit(ag.grad(lambda m: m(X)))):
        grads = grad(model)
        assert grads.embed.weight is grads.head.weight is grads.pair[1] is grads.steps is None
        np.testing.assert_allclose(grads.embed.bias, free.embed.bias, rtol=1e-5)


def test_optimisers_hold_nothing_for_them() -> None:
    """Half of a model has no leaf where the other half has one: no moments, no weight decay, no gradient."""
    model = freeze(MODEL, "embed")
    params, rest = partition(model, trainable)
    adam = optax.adamw(0.1, weight_decay=0.5)
    state = adam.init(params)  # type: ignore[arg-type]
    assert len(jax.tree.leaves(state)) == 2 * 2 + 1
    grads = jax.grad(loss)(params, rest)
    assert grads.embed.weight is grads.head.weight is grads.steps is None
    updates, state = adam.update(grads, state, params)  # type: ignore[arg-type]
    new = combine(optax.apply_updates(params, updates), model)  # type: ignore[arg-type]
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert new.embed.weight is new.head.weight is model.embed.weight
    assert new.embed.bias is model.embed.bias
    assert float(new.pair[0][0]) != 1


def test_a_tie_to_a_frozen_parameter() -> None:
    """Frozen in one place is frozen in all; a place that is untied is a parameter of its own, and trained."""
    model = freeze(MODEL, "head.weight")
    assert len(frozen(model)) == 1
    assert frozen(model)[0] is model.embed.weight
    assert [repr(t) for t in ties(model)] == ["head.weight = embed.weight"]
    assert "embed=Linear(weight=frozen(f32[3,3])" in repr(model)
    free = untie(model, "head.weight")
    grads = jax.grad(lambda m: m(X))(at(free).steps.set(None))
    assert shown(grads.embed) == [False, True]
    assert shown(grads.head) == [True]
    late = tie(free, "head.weight", "embed.weight", via=jnp.transpose)
    assert shown(jax.grad(lambda m: m(X))(at(late).steps.set(None))) == [False, True, True, True]
    one = tie(at(freeze(free, "head.weight")).steps.set(None), "head.weight", "pair[0]", via=jnp.diag)
    assert shown(jax.grad(lambda m: m(X))(one)) == [False, True, True, True]


def test_marks_stay_and_go_with_the_module() -> None:
    """Through maps, edits of values, pickling, copies, the boundary, other owners; a new part has none."""
    model = freeze(MODEL, ("embed.bias", "pair[1]"))
    mask = frozen_mask(model)
    assert mask == (False, True, False, True, False)
    for again in (
        jax.tree.map(lambda x: x + 1, model),
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
        jax.jit(lambda m: m)(model),
        at(model).embed.bias.set(X),
        at(model)["**"].apply(lambda m: jax.tree.map(jnp.sin, m)),
        freeze(unfreeze(model, "pair[1]"), "pair[1]"),
    ):
        assert frozen_mask(again) == mask
        assert jax.tree.structure(again) == jax.tree.structure(model)
    assert frozen_mask([model.embed]) == (False, True)
    assert frozen_mask(at(model).embed.replace(MODEL.embed))[:2] == (False, False)
    assert frozen_mask(at(model).embed.bias.set(None)) == (False, False, True, False)
    assert frozen_mask(at(model).pair.set(MODEL.pair)) == (False, True, False, False, False)
    assert jax.tree.structure(unfreeze(model)) == jax.tree.structure(MODEL)
    assert jax.tree.structure(model) != jax.tree.structure(MODEL)


def test_other_libraries_modules_inside() -> None:
    """The arrays of an Equinox module in one of ours can be frozen; alone it has nowhere to keep the mark."""

    class Holder(Module):
        net: Any

        def __call__(self, x: Any) -> Any:
            return self.net(x).sum()

    holder = freeze(Holder(eqx.nn.MLP(3, 2, 2, 1, activation=jnp.tanh, key=jax.random.key(0))), "net.layers.*.weight")
    assert frozen_mask(holder) == (True, False, True, False)
    assert shown(jax.grad(lambda m: m(X))(holder)) == [False, True, False, True]
    with pytest.raises(UsageError, match="arrays in modules"):
        freeze(holder.net)
    assert frozen_mask(freeze({"a": [holder]}, "**.bias")) == (True, True, True, True)


class Other(eqx.Module):
    """A node with structure, and one of ours in it."""

    part: Any
    act: Any = max


def test_our_modules_in_nodes_of_others_keep_their_marks() -> None:
    """What is frozen in them, and their variables, are that in whatever node they stand."""

    class Holder(Module):
        other: Other

        def __call__(self) -> Any:
            self.other.part.bias.set(self.other.part.bias + 1)
            return self.other.part.weight.sum()

    inner = Linear(X, ag.Variable(jnp.zeros(())))
    for holder in (freeze(Holder(Other(inner)), "other.part.weight"), Holder(Other(freeze(inner)))):
        assert trainable(holder) == []
        assert jax.jit(lambda m: m)(holder) == holder
        assert not jax.grad(lambda m: m.other.part.weight.sum())(holder).other.part.weight.any()
        assert at(holder)[Linear].get() == [holder.other.part]
        _, new = ag.stateful(Holder.__call__)(holder)
        assert new.other.part.bias.value == 1
    assert frozen_mask(unfreeze(holder)) == (False, True)


@given(modules(), st.data())
def test_freezing_is_by_leaf(model: Any, data: st.DataObject) -> None:
    """Any choice of leaves is what is frozen, in either order of asking, and unfreezing gives the model back."""
    chosen = data.draw(st.lists(st.booleans(), min_size=(n := len(jax.tree.leaves(model))), max_size=n))

    def where(tree: Any) -> Any:
        return [leaf for leaf, is_chosen in zip(jax.tree.leaves(tree), chosen, strict=True) if is_chosen]

    marked = freeze(model, where)
    assert list(frozen_mask(marked)) == chosen
    assert unfreeze(marked) == model
    assert jax.tree.structure(unfreeze(marked)) == jax.tree.structure(model)
    one_by_one = model
    for path, is_chosen in reversed(list(zip(jax.tree.leaves_with_path(model), chosen, strict=True))):
        text = jax.tree_util.keystr(path[0])
        one_by_one = freeze(one_by_one, text.lstrip(".")) if is_chosen else one_by_one
    assert jax.tree.structure(one_by_one) == jax.tree.structure(marked)
    taken, left = partition(marked, frozen)
    assert len(jax.tree.leaves(taken)) == sum(chosen)
    assert combine(taken, left) == marked


def test_a_rebuilt_model_is_stopped_once() -> None:
    """Maps over a model with a frozen leaf, inside of one trace, add no equation each."""

    class Line(Module):
        slope: Any
        offset: Any

    def rebuilt(line: Any) -> Any:
        for _ in range(4):
            line = jax.tree.map(lambda x: x, line)
        return line.slope + line.offset

    program = jax.make_jaxpr(rebuilt)(freeze(Line(jnp.ones(2), jnp.ones(2)), "offset"))
    assert [equation.primitive.name for equation in program.eqns] == ["stop_gradient", "add"]
