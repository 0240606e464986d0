"""What ties promise, under everything that JAX and Optax do: one leaf, one gradient, one state.

Each case is a model, the same function written of its separate parameters, and where these stand in the model. The
gradients of the function by hand are sums over all places by construction.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from aerogel.module import Module, at, combine, freeze, frozen, partition, tie, ties, trainable
from aerogel.module._steps import value_at


class Linear(Module):
    weight: Any
    bias: Any = None

    def __call__(self, x: Any) -> Any:
        y = self.weight @ x
        return y if self.bias is None else y + self.bias


class Two(Module):
    a: Any
    b: Any


class Tower(Module):
    blocks: Any

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = jnp.tanh(block(x))
        return x


class LanguageModel(Module):
    embed: Linear
    head: Linear

    def __call__(self, x: Any) -> Any:
        return self.head(jnp.tanh(self.embed(x)))


class Siamese(Module):
    left: Tower
    right: Tower
    scale: Any

    def __call__(self, x: Any) -> Any:
        return self.scale * self.left(x) * self.right(x[::-1])


class Nested(Module):
    first: Any
    inner: Two

    def __call__(self, x: Any) -> Any:
        return self.first(jnp.tanh(self.inner.a.a(jnp.tanh(self.inner.b(x)))))


W = jnp.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.6], [-0.1, 0.2, 0.7]])
V = jnp.array([[0.1, 0.2, 0.3], [-0.4, 0.5, 0.6]])
B = jnp.array([0.1, 0.2, -0.3])
W2 = W + 1
X = jnp.array([1.0, -2.0, 0.5])


@dataclass
class Case:
    """A model with ties.

    Attributes:
        model: it.
        by_hand: its function, of its parameters as separate arguments, then the input.
        at: where the parameters stand.
        tied: its ties, as text.
        frozen: how many of the parameters are frozen.
    """

    model: Any
    by_hand: Callable[..., Any]
    at: tuple[str, ...]
    tied: tuple[str, ...]
    frozen: int = 0

    @property
    def params(self) -> list[Any]:
        """The parameters."""
        return [at(self.model)[path].get() for path in self.at]


def tower(block: Any, bias: Any, x: Any) -> Any:
    """One block three times."""
    for _ in range(3):
        x = jnp.tanh(block @ x + bias)
    return x


shared = Linear(W, B)
CASES = {
    "head": Case(
        LanguageModel(Linear(W, B), Linear(W)),
        lambda w, b, x: w @ jnp.tanh(w @ x + b),
        ("embed.weight", "embed.bias"),
        ("head.weight = embed.weight",),
    ),
    "transposed": Case(
        tie(LanguageModel(Linear(V), Linear(jnp.ones((3, 2)), B)), "head.weight", "embed.weight", via=jnp.transpose),
        lambda v, b, x: v.T @ jnp.tanh(v @ x) + b,
        ("embed.weight", "head.bias"),
        ("head.weight = transpose(embed.weight)",),
    ),
    "depths": Case(
        Tower([shared, shared, shared]),
        tower,
        ("blocks[0].weight", "blocks[0].bias"),
        ("blocks[1] = blocks[0]", "blocks[2] = blocks[0]"),
    ),
    "siamese": Case(
        Siamese(encoder := Tower([shared, shared, shared]), encoder, jnp.array(2.0)),
        lambda w, b, s, x: s * tower(w, b, x) * tower(w, b, x[::-1]),
        ("left.blocks[0].weight", "left.blocks[0].bias", "scale"),
        ("right = left", "left.blocks[1] = left.blocks[0]", "left.blocks[2] = left.blocks[0]"),
    ),
    "three levels": Case(
        Nested(Linear(W), Two(Two(Linear(W, B), B), Linear(W))),
        lambda w, b, x: w @ jnp.tanh(w @ jnp.tanh(w @ x) + b),
        ("first.weight", "inner.a.a.bias"),
        ("inner.a.a.weight = first.weight", "inner.b.weight = inner.a.a.weight", "inner.a.b = inner.a.a.bias"),
    ),
    "made later": Case(
        tie(LanguageModel(Linear(W), Linear(W + 1, B)), "embed.weight", "head.weight"),
        lambda w, b, x: w @ jnp.tanh(w @ x) + b,
        ("head.weight", "head.bias"),
        ("embed.weight = head.weight",),
    ),
    "frozen": Case(
        freeze(LanguageModel(Linear(W, B), Linear(W)), "head.weight"),
        lambda w, b, x: jax.lax.stop_gradient(w) @ jnp.tanh(jax.lax.stop_gradient(w) @ x + b),
        ("embed.weight", "embed.bias"),
        ("head.weight = embed.weight",),
        frozen=1,
    ),
    "edited": Case(
        at(LanguageModel(Linear(W2, B), Linear(W2))).head.weight.set(W),
        lambda w, b, x: w @ jnp.tanh(w @ x + b),
        ("embed.weight", "embed.bias"),
        ("head.weight = embed.weight",),
    ),
}


def loss(model: Any, x: Any) -> Any:
    """A number."""
    return (model(x) ** 2).sum()


def gradients_by_hand(case: Case, x: Any = X) -> tuple[Any, ...]:
    """The gradient of the loss with respect to each parameter."""
    numbers = tuple(range(len(case.at)))
    return jax.grad(lambda *p: (case.by_hand(*p) ** 2).sum(), argnums=numbers)(*case.params, x)


def unit(case: Case, model: Any) -> Any:
    """A tangent of the model, and none for what is no float."""
    return jax.tree.map(lambda leaf: jnp.sin(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), model)


def summed(f: Any) -> Any:
    """The function over two steps of a scan in which the model is carried, and halved."""
    return lambda m, x: jax.lax.scan(lambda c, _: (c, f(c, x)), m, None, length=2)[1].sum() / 2


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda m: jax.grad(loss)(m, X),
    "jit": lambda m: jax.jit(jax.grad(loss))(m, X),
    "twice": lambda m: jax.jit(jax.grad(loss))(jax.jit(lambda m: m)(m), X),
    "vjp": lambda m: jax.vjp(lambda m: loss(m, X), m)[1](jnp.ones(()))[0],
    "linearize": lambda m: jax.linear_transpose(jax.linearize(lambda m: loss(m, X), m)[1], m)(jnp.ones(()))[0],
    "vmap": lambda m: jax.tree.map(lambda g: g.sum(0) / 2, jax.vmap(jax.grad(loss), (None, 0))(m, jnp.stack([X, X]))),
    "mapped": lambda m: jax.tree.map(
        lambda g: g[0], jax.vmap(jax.grad(loss), (0, None))(jax.tree.map(lambda x: jnp.stack([x, x]), m), X)
    ),
    "scan": lambda m: jax.grad(summed(loss))(m, X),
    "checkpoint": lambda m: jax.grad(jax.checkpoint(loss))(m, X),
    "jacrev": lambda m: jax.jacrev(loss)(m, X),
    "jacfwd": lambda m: jax.jacfwd(loss)(m, X),
}


@pytest.mark.parametrize("name", CASES)
def test_one_leaf_per_parameter(name: str) -> None:
    """A tied place holds no data; ties survive a map to one array everywhere, which makes none; so does the text."""
    case = CASES[name]
    assert [repr(t) for t in ties(case.model)] == list(case.tied)
    assert len(jax.tree.leaves(case.model)) == len(case.at)
    assert len(frozen(case.model)) == case.frozen
    same = jnp.zeros(3)
    for other in (
        jax.tree.map(lambda _: same, case.model),
        pickle.loads(pickle.dumps(case.model)),
        jax.eval_shape(lambda: case.model),
        jax.jit(lambda m: m)(case.model),
    ):
        assert ties(other) == ties(case.model)
        assert jax.tree.structure(other) == jax.tree.structure(case.model)


@pytest.mark.parametrize("how", GRADIENTS)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_summed(name: str, how: str) -> None:
    """The gradient of the one leaf is the sum over its places, and is read in all of them."""
    case = CASES[name]
    grads = GRADIENTS[how](case.model)
    assert jax.tree.structure(grads) == jax.tree.structure(case.model)
    for path, wanted in zip(case.at, gradients_by_hand(case), strict=True):
        np.testing.assert_allclose(at(grads)[path].get(), wanted, rtol=2e-4, atol=1e-5)
    for each in ties(grads):
        if each.via is None:
            here, there = value_at(grads, each.place), value_at(grads, each.source)
            assert all(a is b for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_tangents_and_hessians(name: str) -> None:
    """Forward mode moves all places at once; second derivatives are those of the function by hand."""
    case = CASES[name]
    numbers = tuple(range(len(case.at)))

    def by_hand(*params: Any) -> Any:
        return (case.by_hand(*params, X) ** 2).sum()

    direction = unit(case, case.model)
    along = tuple(at(direction)[path].get() for path in case.at)
    wanted = jax.jvp(by_hand, tuple(case.params), along)[1]
    np.testing.assert_allclose(jax.jvp(lambda m: loss(m, X), (case.model,), (direction,))[1], wanted, rtol=1e-4)
    np.testing.assert_allclose(jax.linearize(lambda m: loss(m, X), case.model)[1](direction), wanted, rtol=1e-4)
    found = jax.hessian(loss)(case.model, X)
    second = jax.hessian(by_hand, argnums=numbers)(*case.params)
    for i, path in enumerate(case.at):
        for j, other in enumerate(case.at):
            got = at(at(found)[path].get())[other].get()
            np.testing.assert_allclose(got, second[i][j], rtol=1e-3, atol=1e-4)


def labels_of(case: Case, model: Any) -> Any:
    """The first parameter is trained by one optimiser, the others by another."""
    first = jax.tree.map(lambda _: "b", model)
    return at(first)[case.at[0]].set("a")


OPTIMISERS: dict[str, Callable[[Case, Any], Any]] = {
    "sgd": lambda case, m: optax.sgd(0.1, momentum=0.9),
    "adam": lambda case, m: optax.adam(0.1),
    "masked": lambda case, m: optax.masked(optax.adam(0.1), lambda _: labels_to_mask(labels_of(case, m))),
    "multi_transform": lambda case, m: optax.multi_transform(
        {"a": optax.sgd(0.1), "b": optax.adam(0.1)},
        lambda _: labels_of(case, m),  # labels as a model can be called
    ),
}


def labels_to_mask(labels: Any) -> Any:
    """True for the first parameter."""
    return jax.tree.map(lambda label: label == "a", labels)


@pytest.mark.parametrize("how", OPTIMISERS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "frozen"])
def test_optimisers_see_one_parameter(name: str, how: str) -> None:
    """Two steps of an optimiser on the model are two steps on the list of its parameters."""
    case = CASES[name]
    flat = {path: value for path, value in zip(case.at, case.params, strict=True)}

    def flat_loss(params: Any) -> Any:
        return (case.by_hand(*(params[path] for path in case.at), X) ** 2).sum()

    flat_labels = {path: "a" if path == case.at[0] else "b" for path in case.at}
    match how:
        case "masked":
            flat_optimiser: Any = optax.masked(optax.adam(0.1), labels_to_mask(flat_labels))
        case "multi_transform":
            flat_optimiser = optax.multi_transform({"a": optax.sgd(0.1), "b": optax.adam(0.1)}, flat_labels)
        case _:
            flat_optimiser = OPTIMISERS[how](case, None)
    model, optimiser = case.model, OPTIMISERS[how](case, case.model)
    state, flat_state = optimiser.init(model), flat_optimiser.init(flat)
    assert len(jax.tree.leaves(state)) == len(jax.tree.leaves(flat_state))
    for _ in range(2):
        updates, state = optimiser.update(jax.grad(loss)(model, X), state, model)
        model = optax.apply_updates(model, updates)
        flat_updates, flat_state = flat_optimiser.update(jax.grad(flat_loss)(flat), flat_state, flat)
        flat = optax.apply_updates(flat, flat_updates)
    assert jax.tree.structure(model) == jax.tree.structure(case.model)
    for path, wanted in flat.items():
        np.testing.assert_allclose(at(model)[path].get(), wanted, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(model(X), case.by_hand(*(flat[path] for path in case.at), X), rtol=1e-3, atol=1e-5)


def test_a_tie_to_a_frozen_parameter_has_no_state() -> None:
    """Neither gradient nor moments for the frozen leaf, at any of its places."""
    case = CASES["frozen"]
    params, rest = partition(case.model, trainable)
    optimiser = optax.adam(0.1)
    state = optimiser.init(params)
    assert len(jax.tree.leaves(state)) == 2 * 1 + 1
    grads = jax.grad(lambda p: loss(combine(p, rest), X))(params)
    assert grads.head.weight is grads.embed.weight is None
    updates, _ = optimiser.update(grads, state, params)
    new = combine(optax.apply_updates(params, updates), case.model)
    assert new.head.weight is case.model.embed.weight
    np.testing.assert_allclose(grads.embed.bias, gradients_by_hand(case)[1], rtol=1e-5)
