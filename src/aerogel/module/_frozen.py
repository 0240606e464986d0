"""Parameters that are not trained: marks in the structure of the modules that hold them.

A frozen array stays a leaf, so it is passed to compiled functions as all others are. To differentiation it is a
constant wherever JAX builds the module with tracers (see `_stop`), under `jax.grad` and all the rest. `ag.grad` gives
None for it, and `ag.partition(model, ag.trainable)` leaves it out of what an optimiser sees.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from .._errors import UsageError
from ._decide import form_if_node
from ._form import Form, always_frozen
from ._holes import copied, fill
from ._kinds import Kind, kind_of
from ._paths import Path, show_path
from ._select import Where, leaf_mask
from ._steps import leaf_paths, part, with_parts
from ._stop import stopped

T = TypeVar("T")


def freeze(tree: T, where: Where | None = None) -> T:
    """The tree in which the arrays that `where` means are frozen: constants to every differentiation.

    The marks are part of the structure of the innermost module around each array: they stay through every
    transformation and edit, and go with the module wherever it is put. An array that is tied is frozen in all its
    places. Gradients with respect to the tree are zero there with `jax.grad`, whose result has all leaves, and None
    with `ag.grad`. An optimiser holds state for what it is given: give it `ag.partition(model, ag.trainable)[0]`.

    Args:
        tree: a module, or a pytree with modules in it.
        where: which arrays; all by default.

    Raises:
        PathError: `where` fits nothing.
        UsageError: an array stands in no module.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> class Line(ag.Module):
    ...     slope: object
    ...     offset: object
    >>> line = ag.freeze(Line(jnp.ones(2), jnp.ones(2)), "offset")
    >>> line
    Line(slope=f32[2], offset=frozen(f32[2]))
    >>> grads = jax.grad(lambda m: (m.slope + m.offset).sum())(line)
    >>> print(grads.slope, grads.offset)
    [1. 1.] [0. 0.]
    """
    return _with_marks(tree, where, True)


def unfreeze(tree: T, where: Where | None = None) -> T:
    """The tree in which the arrays that `where` means, all by default, are not frozen.

    Inside of a function that is being differentiated by the tree this comes too late: there they are constants already.

    Raises:
        PathError, UsageError: see `freeze`.
    """
    return _with_marks(tree, where, False)


def frozen(tree: Any) -> list[Any]:
    """The leaves of a tree that are frozen. As a `where`, the choice of them: `ag.partition(model, ag.frozen)`."""
    return [leaf for leaf, is_frozen in zip(jax.tree.leaves(tree), frozen_mask(tree), strict=True) if is_frozen]


def trainable(tree: Any) -> list[Any]:
    """The arrays of a tree with respect to which gradients are taken: inexact ones that are not frozen.

    As a `where`, the choice of them: `params, rest = ag.partition(model, ag.trainable)`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.trainable({"weight": jnp.ones(2), "steps": jnp.array(3)})
    [Array([1., 1.], dtype=float32)]
    """
    leaves = zip(jax.tree.leaves(tree), frozen_mask(tree), strict=True)
    return [leaf for leaf, is_frozen in leaves if is_inexact(leaf) and not is_frozen]


def is_inexact(leaf: Any) -> bool:
    """Whether a leaf is an array, or the shape of one, of real or complex floating-point numbers."""
    return kind_of(leaf) is Kind.ARRAY and jax.dtypes.issubdtype(leaf.dtype, jax.numpy.inexact)


def frozen_mask(tree: Any) -> tuple[bool, ...]:
    """For each leaf, in the order of `jax.tree.leaves(tree)`, whether it is frozen."""
    structure = jax.tree.structure(tree)
    if not _has_marks(structure):
        return (False,) * structure.num_leaves
    return tuple(_is_frozen(tree, path) for path in leaf_paths(tree))


def state_mask(tree: Any) -> tuple[bool, ...]:
    """For each leaf, in the order of `jax.tree.leaves(tree)`, whether it is the value of a variable."""
    structure = jax.tree.structure(tree)
    if not _has_marks(structure):
        return (False,) * structure.num_leaves
    return tuple(_is_state(tree, path) for path in leaf_paths(tree))


def _has_marks(structure: Any) -> bool:
    """Whether there is a mark anywhere: to ask the nodes once is cheaper than to follow the path of each leaf."""
    pending = [structure]
    while pending:
        each = pending.pop()
        cls, form = each.node_data() or (None, None)
        if hasattr(cls, "_constant_fields") or (isinstance(form, Form) and form.frozen):
            return True
        pending += each.children()
    return False


def _is_constant(node: Any, key: Any) -> bool:
    return getattr(key, "name", None) in getattr(type(node), "_constant_fields", ())


def _is_state(node: Any, path: Path) -> bool:
    for key in path:
        if _is_constant(node, key):
            return True
        node = part(node, key)
    return False


def _is_frozen(node: Any, path: Path) -> bool:
    for depth, key in enumerate(path):
        if _is_constant(node, key):
            return True
        form = form_if_node(node)
        if form is not None and form.frozen and (form.slot_of(key), show_path(path[depth + 1 :])) in form.frozen:
            return True
        node = part(node, key)
    return False


def _with_marks(tree: Any, where: Where | None, are_frozen: bool) -> Any:
    paths = [path for path, meant in zip(leaf_paths(tree), leaf_mask(tree, where), strict=True) if meant]
    # Layers of one kind have one form: to look the marked one up takes longer than all else.
    new, in_no_module = _marked(tree, paths, are_frozen, functools.cache(_form_with))
    if in_no_module and are_frozen:
        raise UsageError(
            argument="where",
            got=show_path(in_no_module[0]),
            wanted="arrays in modules, which keep the mark",
            to_fix="put it into a module, or keep it apart: ag.partition(tree, where)",
        )
    return new


def _marked(node: Any, paths: list[Path], are_frozen: bool, form_with: Callable[..., Form]) -> tuple[Any, list[Path]]:
    """The node with marks, and the paths of the leaves for which there was no place to put one."""
    below: dict[Any, list[Path]] = {}
    for path in paths:
        if path:
            below.setdefault(path[0], []).append(path[1:])
    parts, here = {}, [path for path in paths if not path]
    for key, inner in below.items():
        parts[key], unplaced = _marked(part(node, key), inner, are_frozen, form_with)
        here += [(key, *path) for path in unplaced]
    form = form_if_node(node)
    if form is None or kind_of(node) is not Kind.NODE:
        return with_parts(node, parts) if parts else node, here
    marks = frozenset((form.slot_of(path[0]), show_path(path[1:])) for path in here)
    new_form = form_with(form, marks, are_frozen)
    values = {form.slot_of(key): value for key, value in parts.items()}
    for slot, rest in marks if are_frozen else ():
        values[slot] = stopped(values.get(slot, form.get(node, slot)), rest)
    new = copied(node, form, new_form, values)
    fill(new, new_form)
    return new, []


def _form_with(form: Form, marks: frozenset[tuple[Any, str]], are_frozen: bool) -> Form:
    wanted = set(form.frozen) | marks if are_frozen else set(form.frozen) - marks | set(always_frozen(form.cls))
    order = {slot: i for i, slot in enumerate(form.order(form.slots))}
    return form.replace(frozen=sorted(wanted, key=lambda mark: (order.get(mark[0], -1), mark[1])))
