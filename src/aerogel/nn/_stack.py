"""Identical layers, kept as one layer with stacked arrays, and applied by a loop."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from aerogel._errors import UsageError
from aerogel.module import Module, at, field
from aerogel.module._display import show_type
from aerogel.module._paths import show_path
from aerogel.module._variable import Bound, is_variable
from aerogel.transform import assign, stateful
from aerogel.transform._static import Static, is_static, reveal

from ._check import shown, types_of
from ._errors import InputError
from ._position import StandIn, position_of
from ._sequential import called

L = TypeVar("L", bound=Any)
M = TypeVar("M", bound=Any)
Remat = Literal["none", "all", "sqrt"] | Sequence[str] | Callable[..., bool]


class Stack(Module, Generic[L]):
    """`n` layers of one kind, one after the other, kept stacked: one leaf per parameter, one compiled body.

    A call gives the result of the last layer; each must return what it takes, in shape and dtype. Further arguments go
    to every layer as they are. A key is split, and each layer is given its own. Variables in the layers are updated as
    anywhere, in a call through `ag.stateful`.

    `stack[i]` is a layer, `stack[a:b]` a shorter stack, `list(stack)` all layers; `Stack.from_list` is the way back.

    Attributes:
        layers: a layer, each of whose arrays has one more leading axis of size `n`.

    Args:
        make_layer: makes one layer from a key.
        n: the number of layers.
        remat: what a gradient computes again instead of storing it: "none"; "all" between layers; "sqrt", all but
            about twice the square root of `n` points between layers; names that `jax.ad_checkpoint.checkpoint_name`
            gave: they alone are stored; or a policy of `jax.checkpoint_policies`, such as one that offloads.
        unroll: how many layers the body of the loop has.
        key: is split; each layer is drawn as `make_layer` draws it.

    Raises:
        InputError: called, a layer returns something else than it takes.
        UsageError: `remat` is none of these.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> stack = ag.nn.Stack(lambda key: ag.nn.Linear(3, 3, key=key), 4, key=jax.random.key(0))
    >>> stack(jnp.ones((8, 3))).shape, stack.layers.weight.shape, stack[1].weight.shape, len(stack[1:])
    ((8, 3), (4, 3, 3), (3, 3), 3)
    """

    layers: L = field(axes=("layers", ...))
    n: int
    remat: Remat
    unroll: int

    def __init__(
        self,
        make_layer: Callable[[jax.Array], L],
        n: int,
        remat: Remat = "none",
        unroll: int = 1,
        *,
        key: jax.Array,
    ) -> None:
        if n < 0:
            raise UsageError(argument="n", got=n, wanted="a number of layers, 0 or more", function="Stack")
        self.layers = reveal(jax.vmap(lambda key: _hidden(make_layer(key)))(jax.random.split(key, n)))
        self.n = n
        self.remat = _checked(remat)
        self.unroll = unroll

    @staticmethod
    def from_list(layers: Sequence[M], remat: Remat = "none", unroll: int = 1) -> "Stack[M]":
        """The stack of layers that are there already.

        Raises:
            UsageError: there is none, or they differ in structure, shapes or dtypes.
        """
        hidden = [_hidden(layer) for layer in layers]
        kinds = {types_of(layer) for layer in hidden}
        if len(kinds) != 1:
            wanted = "one layer or more, all of one structure, with arrays of one shape and dtype"
            raise UsageError(argument="layers", got=list(layers), wanted=wanted, function="Stack.from_list")
        stack = Stack(lambda _: layers[0], len(layers), remat, unroll, key=jax.random.key(0))
        return at(stack).layers.set(reveal(jax.tree.map(lambda *each: jnp.stack(each), *hidden)))

    def __call__(self, x: Any, *args: Any, key: jax.Array | None = None, **kwargs: Any) -> Any:
        """The result of the last layer."""
        self._check_stacked()
        x = jax.tree.map(jnp.asarray, x)
        keys = None if key is None else jax.random.split(key, self.n)
        nodes = jax.tree.leaves(self.layers, is_leaf=is_variable)
        has_state = any(isinstance(node, Bound) for node in nodes)

        def step(x: Any, each: Any) -> tuple[Any, Any]:
            layer, one_key = each
            layer = reveal(layer)
            if has_state:
                out, new = stateful(self._one)(layer, x, one_key, args, kwargs)
            else:
                out, new = self._one(layer, x, one_key, args, kwargs), None
            self._check(x, out)
            return out, _hidden(new)

        x, new = self._looped(step, x, (_hidden(self.layers), keys))
        if has_state:
            assign(self.layers, reveal(new))
        return x

    def map(self, function: Callable[..., Any], *each: Any) -> "Stack[Any]":
        """The stack of `function(layer)` for each layer; it is traced once, by `jax.vmap`.

        Further trees have an axis of `n` in front, and each layer is given its own part, such as a key of its own:
        `stack.map(lambda layer, key: ..., jax.random.split(key, n))`.
        """

        def one(layer: Any, *own: Any) -> Any:
            return _hidden(function(reveal(layer), *own))

        return at(self).layers.set(reveal(jax.vmap(one)(_hidden(self.layers), *each)))

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, index: int) -> L: ...
    @overload
    def __getitem__(self, index: slice) -> "Stack[L]": ...
    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            if isinstance(index, int | np.integer) and not -self.n <= index < self.n:
                raise IndexError(f"a stack of {self.n} layers has no layer {index}")
            return self._part(index)
        return at(self).replace(layers=self._part(index), n=len(range(self.n)[index]))

    def _part(self, index: int | slice) -> Any:
        return reveal(jax.tree.map(lambda array: array[index], _hidden(self.layers)))

    def __iter__(self) -> Iterator[L]:
        return (self[i] for i in range(self.n))

    def _one(self, layer: Any, x: Any, key: Any, args: Any, kwargs: Any) -> Any:
        stand_in = StandIn(layer, "layers")
        return called(stand_in.layer, x, *args, key=key, **kwargs)

    def _check_stacked(self) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(_hidden(self.layers)):
            if np.shape(leaf)[:1] != (self.n,):
                raise InputError(
                    what=f"{show_path(path)} in the layers of a stack is not stacked.",
                    place=position_of(self),
                    got=shown(leaf),
                    wanted=show_type(str(leaf.dtype), (self.n, "...")),
                    to_fix="change each layer by itself: stack.map(lambda layer: ...)",
                )

    def _check(self, x: Any, out: Any) -> None:
        got, wanted = (types_of(tree) for tree in (out, x))
        if got != wanted:
            raise InputError(
                what="a layer of a stack must return what it takes, in shape and dtype.",
                place=position_of(self),
                got=", ".join(shown(leaf) for leaf in jax.tree.leaves(out)),
                wanted=", ".join(shown(leaf) for leaf in jax.tree.leaves(x)),
                to_fix="cast the input, or give the layers other sizes; layers that differ: nn.Sequential",
            )

    def _looped(self, step: Callable[[Any, Any], tuple[Any, Any]], x: Any, each: Any) -> tuple[Any, Any]:
        if self.remat == "sqrt":
            return _in_blocks(step, x, each, self.n, self.unroll)
        if self.remat != "none":
            policy = self.remat if callable(self.remat) else None
            if policy is None and self.remat != "all":
                policy = jax.checkpoint_policies.save_only_these_names(*self.remat)  # type: ignore[misc]
            step = jax.checkpoint(step, prevent_cse=False, policy=policy)
        return jax.lax.scan(step, x, each, self.n, unroll=self.unroll)


def _hidden(tree: Any) -> Any:
    """The tree whose leaves are its arrays alone: those of Equinox's modules are numbers, bools and functions too."""

    def is_fixed(leaf: Any) -> bool:
        return is_static(leaf) or isinstance(leaf, bool | int | float | complex)

    if not any(map(is_fixed, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(lambda leaf: Static(leaf) if is_fixed(leaf) else leaf, tree)


def _in_blocks(step: Any, x: Any, each: Any, n: int, unroll: int) -> tuple[Any, Any]:
    """The loop in about sqrt(n) blocks: stored is what lies between blocks, and between layers of the one at hand."""
    size = max(1, math.isqrt(n))
    whole = n - n % size
    step = jax.checkpoint(step, prevent_cse=False)

    @jax.checkpoint
    def block(x: Any, some: Any) -> tuple[Any, Any]:
        return jax.lax.scan(step, x, some, unroll=unroll)

    blocks = jax.tree.map(lambda a: a[:whole].reshape(whole // size, size, *a.shape[1:]), each)
    x, new = jax.lax.scan(block, x, blocks, whole // size)
    new = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), new)
    if whole == n:
        return x, new
    x, last = block(x, jax.tree.map(lambda a: a[whole:], each))
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), new, last)


def _checked(remat: Any) -> Remat:
    if isinstance(remat, str) and remat not in ("none", "all", "sqrt"):
        raise UsageError(argument="remat", got=remat, wanted=["none", "all", "sqrt"], function="Stack")
    if not isinstance(remat, str) and not callable(remat) and not isinstance(remat, Sequence):
        wanted = "'none', 'all', 'sqrt', names, or a policy of jax.checkpoint_policies"
        raise UsageError(argument="remat", got=remat, wanted=wanted, function="Stack")
    known: Any = remat if isinstance(remat, str) or callable(remat) else tuple(remat)
    return known
