"""`eqx.nn.State` beyond what the scripts show: custom layers, loops, parts of models, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from aerogel.compat import equinox as eqx


class Counter(eqx.Module):
    """Adds the number of calls before this one."""

    index: Any

    def __init__(self, first: Any = 0) -> None:
        self.index = eqx.nn.StateIndex(first)

    def __call__(self, x: Any, state: Any) -> Any:
        count = state.get(self.index)
        return x + count, state.set(self.index, count + 1)


class Twice(eqx.Module):
    """One counter in two places, and another one."""

    one: Counter
    same: Counter
    other: Counter

    def __init__(self) -> None:
        self.one = self.same = Counter()
        self.other = Counter(jnp.array(10))

    def __call__(self, x: Any, state: Any) -> Any:
        for layer in (self.one, self.same, self.other):
            x, state = layer(x, state)
        return x, state


def test_a_layer_in_two_places_has_one_value() -> None:
    """It is one layer, compiled or not; others have values of their own."""
    model, state = eqx.nn.make_with_state(Twice)()
    x, state = eqx.filter_jit(lambda model, x, state: model(x, state))(model, jnp.float32(0), state)
    assert x == 0 + 1 + 10
    assert [int(state.get(layer.index)) for layer in (model.one, model.same, model.other)] == [2, 2, 11]


def test_a_state_is_carried_by_a_loop() -> None:
    """Its types stay the same from step to step, from a first value that is a number too."""
    model, state = eqx.nn.make_with_state(Counter)(0.0)

    def step(state: Any, x: Any) -> Any:
        y, state = model(x, state)
        return state, y

    state, ys = jax.lax.scan(step, state, jnp.zeros(3))
    assert ys.tolist() == [0.0, 1.0, 2.0]
    assert not state.set(model.index, 7.0).get(model.index).weak_type


def test_parts_of_a_model_have_parts_of_its_state() -> None:
    """Also a new module that holds nothing but indices; an update of a part ends the old state."""
    model, state = eqx.nn.make_with_state(Twice)()

    class Holder(eqx.Module):
        inner: Any

    part = state.substate([Holder(model.other)])
    assert jax.tree.leaves(part) == [10]
    _, part = model.other(0, part)
    assert state.update(part).get(model.other.index) == 11
    with pytest.raises(ValueError, match="an old state was used again"):
        state.get(model.other.index)


def test_a_value_may_be_a_tree() -> None:
    """It comes out in Python's own containers, as it went in, and what `init` holds may be set again."""
    first = {"buffer": [jnp.zeros(2), (1, None)], "count": 0}
    model, state = eqx.nn.make_with_state(Counter)(first)
    value = state.get(model.index)
    assert jax.tree.structure(value) == jax.tree.structure(first)
    value["buffer"][0] = value["buffer"][0] + 1
    assert state.set(model.index, value).get(model.index)["buffer"][0].tolist() == [1.0, 1.0]


def test_what_a_state_refuses() -> None:
    """Another dtype, another structure, a part that is none, an index of another model, first values that are gone."""
    model, state = eqx.nn.make_with_state(Counter)()
    for wrong in (1.5, jnp.zeros(2, int), (1,)):
        with pytest.raises(eqx.CompatError, match=r"State\.set, Counter\.index"):
            state.set(model.index, wrong)
    other, others = eqx.nn.make_with_state(Twice)()
    with pytest.raises(eqx.CompatError, match="no part of this one"):
        state.update(others)
    with pytest.raises(eqx.CompatError, match="a StateIndex of the model"):
        state.get(other.one.index)
    with pytest.raises(eqx.CompatError, match="in another State already"):
        eqx.nn.State(model)
    assert repr(state.set(model.index, 1)) == "State({'Counter.index': i32[]})"
    assert repr(state) == "State(~old~)"
