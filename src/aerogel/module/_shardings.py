"""`shardings`: from rules to the sharding of each leaf."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .._errors import UsageError, one_of
from ._axes import AxisNames, Names
from ._display import show_type
from ._errors import ShardError
from ._paths import Path, show_path
from ._select import leaf_mask
from ._steps import leaf_paths

MeshAxes: TypeAlias = str | tuple[str, ...] | None
Spread: TypeAlias = PartitionSpec | Mapping[str, MeshAxes] | str | tuple[str, ...]
# Mappings do not vary in their keys for checkers: `Mapping[Where, Spread]` would take no dict of strings.
ShardRules: TypeAlias = Mapping[Any, Spread]


def shardings(tree: Any, mesh: Mesh | AbstractMesh, rules: ShardRules, *, like: Any = None) -> Any:
    """A tree with a `NamedSharding` in the place of each leaf: for `in_shardings`, `out_shardings`, `ag.load`.

    The keys of `rules` say which leaves are meant, as in `ag.at` (see `ag.Where`): a path or pattern, a type, a
    function. Each leaf follows the first rule that means it; one that none means is whole on every device. A rule is

    * a `PartitionSpec`, whose entries belong to the axes of the leaf from the first on;
    * a mapping from names of axes, which fields give (`ag.field(axes=...)`), to axes of the mesh:
      `{"out": "model", "in": "data"}`. A name that a leaf does not have is not looked at;
    * axes of the mesh, `"data"` or `("data", "model")`: the leaf is spread over them along its largest axis that
      divides, the last of several, and is whole on every device if none does.

    Args:
        tree: a module or any pytree, of arrays or of shapes.
        mesh: the devices and the names of their axes.
        rules: from where to how; `{}` leaves everything whole.
        like: the tree that the rules are about, where `tree` belongs to it, as the state of an optimiser does. A leaf
            of `tree` is sharded as the leaf of `like` whose path its own ends in, if both have one shape, and is whole
            else.

    Raises:
        UsageError: `mesh` is no mesh, `rules` no mapping, or a rule none of these.
        ShardError: the mesh has no such axis, an axis does not divide, a rule has more entries than an array has axes,
            no axis has that name, or no leaf follows a rule.
        PathError: a path or pattern fits nothing.

    >>> import jax, aerogel as ag
    >>> mesh = jax.make_mesh((1, 1), ("data", "model"))
    >>> mlp = ag.nn.MLP(4, 8, 16, 2, key=jax.random.key(0))
    >>> found = ag.shardings(mlp, mesh, {"layers[0]": {"out": "model"}, "**.weight": {"in": "model"}})
    >>> [layer.weight.spec for layer in found.layers]
    [P('model', None), P(None, 'model'), P(None, 'model')]
    """
    if not isinstance(rules, Mapping):
        wanted = "a mapping from where to how: {'**.weight': {'out': 'model'}}"
        raise UsageError(argument="rules", got=rules, wanted=wanted, function="shardings")
    if not isinstance(mesh, Mesh | AbstractMesh):
        wanted = "a mesh: jax.make_mesh((2, 4), ('data', 'model'))"
        raise UsageError(argument="mesh", got=mesh, wanted=wanted, function="shardings")
    for spread in rules.values():
        if not isinstance(spread, PartitionSpec | Mapping | str | tuple | list):
            wanted = "rules of a PartitionSpec, a mapping from names of axes, or axes of the mesh"
            fix = "write P() for what is to be whole"
            raise UsageError(argument="rules", got=spread, wanted=wanted, function="shardings", to_fix=fix)
    found = _specs(tree if like is None else like, mesh, rules)
    if like is not None:
        found = _inherited(tree, like, found)
    return jax.tree.structure(tree).unflatten([NamedSharding(mesh, spec) for spec in found])


@dataclass(frozen=True)
class _Leaf:
    """A leaf: its path, its shape, the names of its axes, and how it prints."""

    path: Path
    shape: tuple[int, ...]
    names: Names
    text: str


def _specs(tree: Any, mesh: Mesh | AbstractMesh, rules: ShardRules) -> list[PartitionSpec]:
    """How the rules spread the leaves, in their order."""
    names = AxisNames(tree)
    leaves = [
        _Leaf(path, np.shape(leaf), names.of(path, np.ndim(leaf)), f"{show_path(path) or 'the array'}: {_type(leaf)}")
        for path, leaf in zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True)
    ]
    specs: dict[int, PartitionSpec] = {}
    for where, spread in rules.items():
        rule = _Rule(where, spread, mesh)
        meant = [k for k, is_meant in enumerate(leaf_mask(tree, where)) if is_meant]
        left = [k for k in meant if k not in specs]
        rule.check_used(bool(meant), [leaves[k] for k in left])
        specs.update((k, rule.spec(leaves[k])) for k in left)
    return [specs.get(k, PartitionSpec()) for k in range(len(leaves))]


def _type(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    return type(leaf).__name__ if dtype is None else show_type(str(dtype), np.shape(leaf))


def _inherited(tree: Any, like: Any, specs: list[PartitionSpec]) -> list[PartitionSpec]:
    """For each leaf of `tree` how the leaf of `like` is spread that it belongs to."""
    known = {
        (path, np.shape(leaf)): spec
        for path, leaf, spec in zip(leaf_paths(like), jax.tree.leaves(like), specs, strict=True)
    }
    found: list[PartitionSpec] = []
    for path, leaf in zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True):
        ends = ((path[n:], np.shape(leaf)) for n in range(len(path) + 1))
        found.append(next((known[end] for end in ends if end in known), PartitionSpec()))
    return found


@dataclass(frozen=True)
class _Rule:
    """One rule: which leaves are meant, how they are spread, over which mesh."""

    where: Any
    spread: Spread
    mesh: Mesh | AbstractMesh

    @property
    def place(self) -> str:
        return f"rules[{getattr(self.where, '__name__', None) or repr(self.where)}]"

    def check_used(self, means_some: bool, leaves: Sequence[_Leaf]) -> None:
        """Refuses a rule that no leaf follows, and one by names that no leaf has."""
        if not leaves:
            raise ShardError(
                what="earlier rules take every leaf that this one means." if means_some else "the rule means no leaf.",
                place=self.place,
                got=str(self.spread),
                to_fix="put it before those that mean more" if means_some else "name leaves, or what is around them",
            )
        names = {name for leaf in leaves for name in leaf.names if name is not None}
        for name in self.spread if isinstance(self.spread, Mapping) else ():
            if name not in names:
                near = get_close_matches(name, names, n=1)
                raise ShardError(
                    what=f"no leaf that the rule means has an axis named {name!r}.",
                    place=self.place,
                    got=str(self.spread),
                    wanted=one_of(sorted(names)) or None,
                    to_fix=f"write {near[0]!r}"
                    if near
                    else "name axes in the class, ag.field(axes=...), or use a PartitionSpec",
                )

    def spec(self, leaf: _Leaf) -> PartitionSpec:
        """How the rule spreads a leaf.

        Raises:
            ShardError: it cannot.
        """
        if isinstance(self.spread, PartitionSpec):
            spec = self.spread
        elif isinstance(self.spread, Mapping):
            by_name = self.spread
            spec = PartitionSpec(*(None if name is None else by_name.get(name) for name in leaf.names))
        else:
            spec = self._along_largest(leaf)
        self._check(spec, leaf)
        return spec

    def _along_largest(self, leaf: _Leaf) -> PartitionSpec:
        axes = self.spread if isinstance(self.spread, str) else tuple(self.spread)
        parts = self._parts(axes)
        sizes = [n if n % parts == 0 else 0 for n in leaf.shape]
        if not any(sizes):
            return PartitionSpec()
        # The last of several: of a square weight [out, in] the axis that is summed over. XLA gathers such a weight; one
        # that is split along `out` has it add up activations, 1.6 times the bytes in a stack of transformer blocks.
        largest = max(range(len(sizes)), key=lambda k: (sizes[k], k))
        return PartitionSpec(*[None] * largest, axes)

    def _parts(self, axes: MeshAxes) -> int:
        """How many parts an axis has that is spread over these axes of the mesh."""
        several = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
        for axis in several:
            if axis not in self.mesh.shape:
                near = get_close_matches(str(axis), self.mesh.axis_names, n=1) or self.mesh.axis_names
                raise ShardError(
                    what=f"the mesh has no axis {axis!r}.",
                    place=self.place,
                    got=str(self.spread),
                    wanted=one_of(self.mesh.axis_names),
                    to_fix=f"write {one_of(near)}",
                )
        return math.prod(self.mesh.shape[axis] for axis in several)

    def _check(self, spec: PartitionSpec, leaf: _Leaf) -> None:
        def refusal(what: str, to_fix: str, wanted: str | None = None) -> ShardError:
            place = f"{leaf.text}, by {self.place}"
            return ShardError(what=what, place=place, got=str(self.spread), wanted=wanted, to_fix=to_fix)

        if len(spec) > len(leaf.shape):
            raise refusal(
                f"{len(spec)} entries are for an array of {len(spec)} axes or more.",
                "leave some out, or mean fewer leaves: a rule for others goes before this one",
                f"{len(leaf.shape)} at most",
            )
        used: set[str] = set()
        for k, (entry, size) in enumerate(zip(spec, leaf.shape, strict=False)):
            several = set(entry if isinstance(entry, tuple) else () if entry is None else (entry,))
            parts = self._parts(entry)
            if used & several:
                what = f"{one_of(sorted(used & several))} would split two axes of one array."
                raise refusal(what, "split one of them: a rule for this leaf goes before this one")
            if size % parts:
                what = f"axis {k} of size {size} cannot be split into {parts} equal parts."
                raise refusal(what, "write None there, in a rule for this leaf before this one", f"a divisor of {size}")
            used |= several
