"""`shard` and `shard_init`: a tree spread over devices, and one that is made there."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from .._jax import is_traced, original_jit
from ._kinds import Kind, kind_of
from ._shardings import ShardRules, shardings

T = TypeVar("T")


def shard(tree: T, mesh: Mesh | AbstractMesh, rules: ShardRules, *, like: Any = None) -> T:
    """The tree with its arrays spread over the devices of a mesh, as the rules say: see `ag.shardings`.

    What is computed from it under `jax.jit` and `ag.jit` is spread by XLA, with the collectives that this takes: a
    function needs no change. Inside of a compiled function it is a constraint on traced values. Shapes are given
    shardings: `ag.load(file, like=ag.shard(shapes, mesh, rules))` reads a model onto its devices. What is no array in
    trees of other libraries stays.

    Args:
        tree: a module or any pytree. A model that does not fit on one device is made by `ag.shard_init`.
        mesh: as `jax.make_mesh` makes it.
        rules: as for `ag.shardings`.
        like: as for `ag.shardings`: `ag.shard(optimizer.init(model), mesh, rules, like=model)`.

    Raises:
        ShardError, PathError: as for `ag.shardings`.

    >>> import jax, aerogel as ag
    >>> mesh = jax.make_mesh((1, 1), ("data", "model"))
    >>> layer = ag.shard(ag.nn.Linear(4, 8, key=jax.random.key(0)), mesh, {"weight": {"out": "model"}})
    >>> layer.weight.sharding.spec, layer.bias.sharding.spec
    (P('model', None), P())
    """
    return jax.tree.map(_placed, tree, shardings(tree, mesh, rules, like=like))


def shard_init(make: Callable[[], T], mesh: Mesh | AbstractMesh, rules: ShardRules) -> T:
    """What `make` returns, made on the devices of a mesh: each computes its part, and none ever holds the whole.

    The numbers are those of `make()`, up to the last digits of what it computes. It is traced, as by `jax.jit`.

    Args:
        make: a function without arguments: `lambda: Model(key=key)`. It may return several things: a model and the
            state of its optimiser.
        mesh: as `jax.make_mesh` makes it.
        rules: as for `ag.shardings`, for what `make` returns.

    Raises:
        ShardError, PathError: as for `ag.shardings`, before anything is computed.

    >>> import jax, aerogel as ag
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> make = lambda: ag.nn.Linear(4, 8, key=jax.random.key(0))
    >>> ag.shard_init(make, mesh, {"**": "data"}).weight.sharding.spec
    P('data',)
    """
    places = shardings(jax.eval_shape(make), mesh, rules)
    return original_jit(make, out_shardings=places)()


def _placed(leaf: Any, sharding: NamedSharding) -> Any:
    if is_traced(leaf):
        is_typed = AxisType.Explicit in sharding.mesh.axis_types
        return (jax.sharding.reshard if is_typed else jax.lax.with_sharding_constraint)(leaf, sharding)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.update(sharding=sharding)
    if kind_of(leaf) is Kind.ARRAY or isinstance(leaf, int | float | complex | np.generic):
        return jax.device_put(leaf, sharding)
    return leaf
