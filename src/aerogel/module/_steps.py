"""One step down any tree: the keys of a node's parts, and the part at a key. Modules, containers, other pytrees."""

import copy
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import jax

from ._decide import form_if_node
from ._errors import PathError
from ._form import MISSING
from ._holes import copied, fill
from ._kinds import Kind, kind_of
from ._late import late_values
from ._paths import Path, one_by_one, read_path, show_path, step_name


def keys_below(node: Any) -> list[Any]:
    """JAX's keys of the parts of a node that hold data, tied ones included, in the order of the leaves."""
    form = form_if_node(node)
    if form is None:
        return [key for key, _ in _opened(node)]
    return list(form.keys)


def parts_below(node: Any) -> list[tuple[Any, Any]]:
    """The same keys, each with what stands there; MISSING for what is computed when it is read, or is not there."""
    form = form_if_node(node)
    if form is None:
        return _opened(node)
    late = late_values(node)
    if not form.holes and not late:
        return list(zip(form.keys, form.read(node), strict=True))
    values = [MISSING if slot in late else form.get(node, slot) for slot in form.places]
    return list(zip(form.keys, values, strict=True))


def static_keys(node: Any) -> list[Any]:
    """The keys of the parts that are structure: what the form says, and other fields of dataclasses of others."""
    form = form_if_node(node)
    if form is not None:
        return [form.entry(slot) for slot, _ in form.statics]
    names = getattr(type(node), "__dataclass_fields__", {}) if is_node(node) else {}
    known = {step_name(key) for key, _ in _opened(node)}
    return [jax.tree_util.GetAttrKey(name) for name in names if name not in known and hasattr(node, name)]


def nodes_below(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All nodes of a tree, itself included, each with its path; those in structure too."""
    yield path, tree
    for key in (*(key for key, _ in parts_below(tree)), *static_keys(tree)):
        value = part(tree, key)
        if value is not MISSING and is_node(value):
            yield from nodes_below(value, (*path, key))


def is_node(value: Any) -> bool:
    """Whether JAX sees a node in `value`, and not a leaf."""
    if kind_of(value) is Kind.ARRAY:
        return False
    if form_if_node(value) is not None:
        return True
    opened = jax.tree.leaves(value, is_leaf=_is_not(value))
    return not (len(opened) == 1 and opened[0] is value)


def part(node: Any, key: Any) -> Any:
    """The value at a key, data or structure; MISSING if there is none."""
    form = form_if_node(node)
    if form is not None:
        slot = form.slot_of(key)
        if slot is MISSING:
            return MISSING
        value = form.get(node, slot)
        return dict(form.statics).get(slot, MISSING) if value is MISSING and form.statics else value
    found = next((child for known, child in _opened(node) if known == key), MISSING)
    if found is MISSING and key in static_keys(node):
        return getattr(node, key.name)
    return found


def leaf_paths(tree: Any) -> list[Path]:
    """The paths of the leaves, in their order, one key for each step."""
    return [one_by_one(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def value_at(tree: Any, path: Path) -> Any:
    """The value at a path; MISSING if it leads nowhere."""
    for key in path:
        tree = part(tree, key)
        if tree is MISSING:
            return MISSING
    return tree


def with_parts(node: Any, parts: dict[Any, Any]) -> Any:
    """The node with other values at some keys, of the form that it has."""
    form = form_if_node(node)
    if form is not None:
        new = copied(node, form, form, {form.slot_of(key): value for key, value in parts.items()})
        fill(new, form)
        return new
    keys = keys_below(node)
    children, structure = jax.tree.flatten(node, is_leaf=_is_not(node))
    if any(key in parts for key in keys):
        children = [parts.get(key, child) for key, child in zip(keys, children, strict=True)]
        new = jax.tree.unflatten(structure, children)
    else:
        new = copy.copy(node)
    for key, value in parts.items():
        if key not in keys:
            object.__setattr__(new, key.name, value)  # its class may be a frozen dataclass
    return new


def home(tree: Any, path: Path) -> tuple[Path, bool]:
    """The path at which the data of a place stands, past all ties; and whether the place is a function of them."""
    node, computed = tree, False
    for depth in range(len(path)):
        form = form_if_node(node)
        for tie in () if form is None else form.ties:
            if path[depth : depth + len(tie.place)] == tie.place:
                path = (*path[:depth], *tie.source, *path[depth + len(tie.place) :])
                found, by_inner = home(tree, path)
                return found, computed or by_inner or tie.via is not None
        if depth + 1 < len(path):
            node = part(node, path[depth])
    return path, computed


def resolve(tree: Any, text: str, statics: bool = False) -> Path:
    """JAX's keys for a path as users write it.

    Args:
        tree: any pytree.
        text: `layers[0].weight`, or `layers.0.weight`.
        statics: whether the path may lead to structure.

    Raises:
        PathError: it leads nowhere; the nearest paths that exist are named.
    """
    node, path = tree, ()
    for step in read_path(text) or (None,):
        key = key_of_step(node, step, statics)
        if key is None:
            raise no_path(tree, text)
        path = (*path, key)
        node = part(node, key)
    return path


def key_of_step(node: Any, step: Any, statics: bool = False) -> Any:
    """The key of a node that a step means; None for none. An index may count from the end."""
    if isinstance(step, int) and step < 0 and isinstance(node, list | tuple):
        step += len(node)
    form = form_if_node(node)
    if form is not None:
        return form.key_named(step, statics)
    keys = keys_below(node) + (static_keys(node) if statics else [])
    exact = next((key for key in keys if step_name(key) == step), None)
    return next((key for key in keys if str(step_name(key)) == str(step)), None) if exact is None else exact


def no_path(tree: Any, text: str) -> PathError:
    """The error for a path that leads nowhere."""
    nearest = get_close_matches(text, _known_paths(tree), n=3) or _paths_from_where_it_ends(tree, text)[:3]
    return PathError(path=text, inside=type(tree).__name__, nearest=nearest)


def _paths_from_where_it_ends(tree: Any, text: str) -> list[str]:
    node, path = tree, ()
    for step in read_path(text):
        key = key_of_step(node, step, statics=True)
        if key is None:
            break
        node, path = part(node, key), (*path, key)
    return [show_path((*path, key)) for key in (*keys_below(node), *static_keys(node))]


def _known_paths(tree: Any) -> list[str]:
    found: list[str] = []
    pending: list[tuple[Path, Any]] = [((), tree)]
    while pending:
        path, node = pending.pop()
        for key, value in parts_below(node):
            found.append(show_path((*path, key)))
            pending.append(((*path, key), value))
        found += [show_path((*path, key)) for key in static_keys(node)]
    return found


def _opened(node: Any) -> list[tuple[Any, Any]]:
    if kind_of(node) in (Kind.ARRAY, Kind.ATOM):
        return []
    found = jax.tree_util.tree_flatten_with_path(node, is_leaf=_is_not(node))[0]
    return [(path[0], child) for path, child in found if path]


def _is_not(node: Any) -> Any:
    return lambda value: value is not node
