"""Every position in a tree, with what a compiled function tells it from others by: so trees are compared by path."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax

from aerogel import _jax
from aerogel._errors import clip
from aerogel.module._decide import form_of
from aerogel.module._form import Form
from aerogel.module._kinds import Kind, kind_of
from aerogel.module._late import late_values
from aerogel.module._paths import Path
from aerogel.module._values import key_of

from ._static import is_static

_jax.exclude_from_tracebacks(__file__)


@dataclass(frozen=True)
class Position:
    """One position of the arguments: a leaf's type, a static value, or a node. Equal by `key`."""

    key: Any
    text: str = field(compare=False)


def positions_of(value: Any, path: Path, arrays: bool = True) -> Iterator[tuple[Path, Position]]:
    """All positions in a tree, from the root down, with their paths. Without `arrays`, an array is just that."""
    if value is None:
        yield path, Position(None, "None")
    elif kind_of(value) is Kind.NODE:
        form = form_of(value)
        yield path, _node(value, form)
        for slot, static in form.statics:
            yield (*path, form.entry(slot)), _static(static)
        late = late_values(value)  # what a tie computes from another place says nothing new, and may not take this leaf
        for slot in form.slots:
            if slot in late:
                continue
            yield from positions_of(form.get(value, slot), (*path, form.entry(slot)), arrays)
    elif jax.tree_util.all_leaves([value]):
        yield path, _static(value) if is_static(value) else _array(value, arrays)
    else:
        below, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
        yield path, Position(structure, type(value).__name__)
        for key, child in below:
            yield from positions_of(child, (*path, *key), arrays)


def _node(value: Any, form: Form) -> Position:
    marks = (*(str(tie) for tie in form.ties), *(f"frozen {place}" for place in form.frozen_places))
    told = f" with {', '.join(marks)}" if marks else ""
    return Position((type(value), form.slots, form.holes, marks, form.ordered), f"{type(value).__name__}{told}")


def _array(value: Any, with_type: bool) -> Position:
    if not with_type:
        return Position("an array", "an array")
    aval = jax.typeof(value)
    weak = " (weakly typed)" if getattr(value, "weak_type", False) else ""
    mesh = _jax.mesh_of(aval)
    axes = [] if mesh is None else [f"{name}={size}" for name, size in mesh.shape.items()]
    where = f" on a mesh of {', '.join(axes)}" if axes else ""
    text = f"{aval.str_short(short_dtypes=True)}{weak}{where}"
    return Position(text, text)


def _static(value: Any) -> Position:
    return Position(key_of(value, "argument"), getattr(value, "__qualname__", clip(value)))
