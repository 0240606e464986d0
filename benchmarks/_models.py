"""Models of many small layers, in all the ways in which people write them, for claims about the boundary of `jit`."""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag

from ._timing import Quartiles

WIDTH = 4


class Linear(ag.Module):
    """A matrix and a vector."""

    weight: jax.Array
    bias: jax.Array

    def __call__(self, x):
        """The output."""
        return self.weight @ x + self.bias


class Chain(ag.Module):
    """Layers one after the other."""

    layers: list[Linear]

    def __call__(self, x):
        """The output."""
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


def chain(layers: int) -> Chain:
    return Chain([Linear(jnp.eye(WIDTH), jnp.full(WIDTH, float(i))) for i in range(layers)])


class SmallestNode:
    """What any node that Python knows of must do, and no more: hold leaves, hand them out, take them back."""

    __slots__ = ("pair",)

    def __init__(self, structure: Any, children: Any) -> None:
        self.pair = children, structure


jax.tree_util.register_pytree_node(SmallestNode, operator.attrgetter("pair"), SmallestNode)


def smallest_node(tree: Any) -> SmallestNode:
    """The leaves of a tree in one node."""
    leaves, structure = jax.tree.flatten(tree)
    return SmallestNode(structure, (tuple(leaves),))


def adam_state(params: Any) -> Any:
    import optax

    return optax.adam(1e-3).init(params)


def first_sum(tree: Any, x: jax.Array) -> jax.Array:
    """As little as possible, so that only the boundary shows."""
    return jax.tree.leaves(tree)[0].sum() + x


def scaled(tree: Any, x: jax.Array) -> Any:
    """An update of every array that is a float."""
    return jax.tree.map(lambda a: a * x if jnp.issubdtype(a.dtype, jnp.floating) else a + 1, tree)


def seconds_per_call(
    calls: Sequence[Callable[[], Any]], rounds: int, repeats: int, *, seed: int = 0
) -> list[np.ndarray]:
    """Seconds per call, by round, for each of several. A call returns what is to be waited for at the end.

    The order is drawn anew in each round: who runs after whom matters more than what is measured here.
    """
    draw = random.Random(seed)
    found: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(20):
            jax.block_until_ready(call())
    order = list(range(len(calls)))
    for _ in range(rounds):
        draw.shuffle(order)
        for i in order:
            start = time.perf_counter()
            for _ in range(repeats - 1):
                calls[i]()
            jax.block_until_ready(calls[i]())
            found[i].append((time.perf_counter() - start) / repeats)
    return [np.array(each) for each in found]


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> Quartiles:
    return Quartiles.of(numerator / denominator)


def stepping(f: Callable[..., Any], state: Any, x: Any) -> Callable[[], Any]:
    """Calls `f` on its own last result, as a training loop does."""

    def call() -> Any:
        nonlocal state
        state = f(state, x)
        return state

    return call
