"""`ag.at(model).layers[0].weight.set(w)`: changed copies of immutable trees, written as the path to the change."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from ._edit import Changes, edited
from ._errors import FrozenError, PathError, TieError
from ._form import MISSING
from ._kinds import Kind, kind_of
from ._late import late_values
from ._paths import Path, outermost, show_path, step_name
from ._select import Pair, Where, is_pattern, reached
from ._steps import home, is_node, key_of_step, keys_below, leaf_paths, no_path, static_keys, value_at

T = TypeVar("T")


def at(tree: T, where: Where | None = None) -> "At[T]":
    """A place in a tree, or several, to read or to make a changed copy with.

    Attributes and indices go further down: `ag.at(model).layers[0].weight`. Paths and patterns do so at once, and
    also lead to fields that are called `set`, `apply`, `get` or `replace`: `ag.at(model)["layers.*.bias"]`,
    `ag.at(model)["set"]`. Types, predicates and functions choose many places: `ag.at(model, nn.Linear)`.

    The end is one of `.set(value)`, `.apply(function)`, `.replace(part)`, `.replace(name=value, ...)` and `.get()`.
    A copy shares every array that was not changed. Shapes, dtypes and what is data may change; `__check_init__` runs
    again on what changed. Either place of a tie stands for the one leaf: setting one sets both.

    Args:
        tree: a module, or any pytree.
        where: which places; the whole tree by default. `ag.Where` says what it may be.

    Raises:
        PathError: a path leads nowhere; the nearest ones are named.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> class Linear(ag.Module):
    ...     weight: object
    ...     bias: object = None
    >>> model = {"layers": [Linear(jnp.ones((2, 3))), Linear(jnp.ones((3, 2)))]}
    >>> ag.at(model)["layers"][0].bias.set(jnp.zeros(2))["layers"][0]
    Linear(weight=f32[2,3], bias=f32[2])
    >>> ag.at(model, "**.weight").apply(jnp.transpose)["layers"][0]
    Linear(weight=f32[3,2], bias=None)
    >>> ag.at(model)["layers"][1].replace(weight=jnp.ones(4), bias=jnp.ones(4))["layers"][1]
    Linear(weight=f32[4], bias=f32[4])
    """
    return At(tree, [()], is_one=True) if where is None else At(tree, [()], is_one=True)[where]


class At(Generic[T]):
    """Places in a tree. Made by `at`, which says what can be done with them."""

    __slots__ = ("_are_homes", "_is_one", "_paths", "_tree")

    def __init__(self, tree: T, paths: list[Path], is_one: bool, are_homes: bool = False) -> None:
        self._tree = tree
        self._paths = paths
        self._is_one = is_one
        self._are_homes = are_homes  # whether it is known that data stands at all of the paths, and nothing is tied

    def __getattr__(self, name: str) -> "At[T]":
        if name.startswith("_") and not self._has(name):  # Python and notebooks ask for such names to see what is there
            raise AttributeError(name)
        return self._step(name)

    def __dir__(self) -> list[str]:
        keys = [key for path in self._paths for key in _all_keys(value_at(self._tree, path))]
        return sorted({*super().__dir__(), *(name for key in keys if isinstance(name := step_name(key), str))})

    def __setitem__(self, where: Any, value: Any) -> None:
        raise self._unfinished(f"[{where!r}] = ...", self[where])

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in At.__slots__:
            raise self._unfinished(f".{name} = ...", self._step(name))
        object.__setattr__(self, name, value)

    __iter__ = None  # else Python would count up `[0]`, `[1]`, ...

    def __getitem__(self, where: Any) -> "At[T]":
        if isinstance(where, slice):
            paths = [(*path, key) for path in self._paths for key in keys_below(value_at(self._tree, path))[where]]
            return At(self._tree, paths, is_one=False)
        step = where if isinstance(where, int | str) else int(where) if isinstance(where, np.integer) else repr(where)
        if isinstance(step, int) or self._has(step):
            return self._step(step)
        pairs = [(path, each) for path in self._paths for each in self._reached(path, where)]
        paths = [(*path, *found) for path, (found, _) in pairs]
        is_one = self._is_one and isinstance(where, str) and not is_pattern(where)
        are_homes = all(path == () and found == its_home for path, (found, its_home) in pairs)
        return At(self._tree, paths if is_one or are_homes else self._each_once(paths), is_one, are_homes)

    def get(self) -> Any:
        """What stands here; a list where several places were asked for."""
        found = [value_at(self._tree, path) for path in self._paths]
        return found[0] if self._is_one else found

    def set(self, value: Any) -> T:
        """The tree with `value` here, in each place if there are several.

        A part that is tied elsewhere in `value`'s place keeps its tie if `value` holds the same array there.

        Raises:
            StructureError: the value cannot be part of a module.
            TieError: the place is a function of another one, to which it is tied.
        """
        return self._edited({place: value for _, place in self._homes()})

    def apply(self, function: Callable[[Any], Any]) -> T:
        """The tree with `function` of what stands here, in each place.

        Where it gives a part of the structure that was there, ties stay: a leaf that is tied to a place further out
        is changed there.

        Raises:
            StructureError, TieError: see `set`.
        """
        changes: Changes = {}
        for path, place in self._homes():
            old = value_at(self._tree, path)
            new = function(old)
            if not is_node(old) or not _is_alike(new, old):
                changes[place] = new
            elif new is not old:
                self._change_leaves(place, old, new, changes)
        return self._edited(changes)

    def replace(self, part: Any = MISSING, /, **fields: Any) -> T:
        """The tree with another part here, or with other values of some of the part's fields, all at once.

        Raises:
            PathError: the part has no field of that name.
            StructureError, TieError: see `set`.
        """
        if not fields:
            return self.set(part) if part is not MISSING else self._tree
        if part is not MISSING:
            raise TypeError("replace() takes a part or fields by name, not both")
        places = [(At(self._tree, self._paths, self._is_one)._step(name), value) for name, value in fields.items()]
        return self._edited({place: value for each, value in places for _, place in each._homes()})

    def __repr__(self) -> str:
        shown = [show_path(path, root=f"at({type(self._tree).__name__})") for path in self._paths]
        return shown[0] if self._is_one else f"[{', '.join(shown)}]"

    def _unfinished(self, action: str, place: "At[T]") -> FrozenError:
        path = show_path(place._paths[0], root="ag.at(model)") if place._is_one else "ag.at(model, ...)"
        edit = path.removeprefix("ag.at(model)")
        return FrozenError(place=path, action=action, edit=edit, to_fix=f"make a changed copy: new = {path}.set(value)")

    def _has(self, step: str) -> bool:
        return all(key_of_step(value_at(self._tree, path), step, statics=True) is not None for path in self._paths)

    def _reached(self, path: Path, where: Any) -> list[Pair]:
        try:
            return reached(value_at(self._tree, path), where)
        except PathError as error:
            raise no_path(self._tree, f"{show_path(path)}.{error.path}".lstrip(".")) from None

    def _step(self, step: Any) -> "At[T]":
        paths = []
        for path in self._paths:
            key = key_of_step(value_at(self._tree, path), step, statics=True)
            if key is None:
                here = show_path(path)
                raise no_path(self._tree, f"{here}[{step}]" if isinstance(step, int) else f"{here}.{step}".lstrip("."))
            paths.append((*path, key))
        return At(self._tree, paths, self._is_one)

    def _each_once(self, paths: list[Path]) -> list[Path]:
        return list({home(self._tree, path): path for path in reversed(paths)}.values())[::-1]

    def _homes(self) -> list[Pair]:
        if self._are_homes:
            return [(path, path) for path in self._paths]
        found: dict[Path, Path] = {}
        for path in self._paths:
            place, is_computed = home(self._tree, path)
            if is_computed:
                raise _computed(path, place)
            found.setdefault(place, path)
        return [(path, place) for place, path in found.items()]

    def _change_leaves(self, place: Path, old: Any, new: Any, changes: Changes) -> None:
        """Adds the leaves of a part that changed, each at its own home."""
        for below, value, before in zip(leaf_paths(new), jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
            leaf_home, is_computed = home(self._tree, (*place, *below))
            if is_computed:
                if not _is_late(new, below) and leaf_home not in changes:
                    raise _computed((*place, *below), leaf_home)
            elif value is not before:
                changes.setdefault(leaf_home, value)

    def _edited(self, changes: Changes) -> T:
        return edited(self._tree, {path: changes[path] for path in outermost(changes)})


def _all_keys(node: Any) -> list[Any]:
    return keys_below(node) + static_keys(node)


def _is_alike(new: Any, old: Any) -> bool:
    """Whether arrays changed and nothing else."""
    is_same = jax.tree.structure(new) == jax.tree.structure(old)
    return is_same and all(kind_of(leaf) is Kind.ARRAY for leaf in jax.tree.leaves(new))


def _is_late(part: Any, path: Path) -> bool:
    """Whether a part still computes what stands at a path."""
    return path[-1].name in late_values(value_at(part, path[:-1]))


def _computed(path: Path, place: Path) -> TieError:
    return TieError(
        what="this place is a function of another one, to which it is tied.",
        place=show_path(path),
        to_fix=f"change {show_path(place)}, or end the tie first: ag.untie(model, {show_path(path)!r})",
    )
