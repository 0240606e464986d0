"""Ties as users see them: listed, made and ended by path."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from .._errors import UsageError
from ._decide import division_of, form_if_node, form_of
from ._display import show_array
from ._errors import TieError
from ._form import AttributeForm, Form, Tie
from ._holes import copied, implanted, punched, reach
from ._kinds import Kind, kind_of
from ._late import late_values
from ._paths import Path, show_path
from ._steps import keys_below, leaf_paths, part, parts_below, resolve, value_at, with_parts

M = TypeVar("M")


def ties(model: Any) -> tuple[Tie, ...]:
    """The ties in a model, each once, with paths from `model`: its own in the order of its fields, then its parts'.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> class Pair(ag.Module):
    ...     a: object
    ...     b: object
    >>> w = jnp.ones(3)
    >>> ag.ties(Pair(w, w))
    (b = a,)
    """
    return tuple(_ties_below(model, ()))


def _ties_below(node: Any, path: Path) -> list[Tie]:
    form = form_if_node(node)
    if form is None:  # another library's node, in which modules may stand
        return [tie for key, value in parts_below(node) for tie in _ties_below(value, (*path, key))]
    found = [tie.within(path) for tie in _in_order_of_fields(node, form.ties)]
    tied = {tie.place for tie in found}
    for slot in form.slots:
        if slot in late_values(node):
            continue  # computed, and maybe not from an array
        place = (*path, form.entry(slot))
        found += [tie for tie in _ties_below(form.get(node, slot), place) if not _is_below(tie.place, tied)]
    return found


def _in_order_of_fields(node: Any, found: tuple[Tie, ...]) -> list[Tie]:
    @functools.cache
    def ranks(path: Path) -> dict[Any, int]:
        return {key: rank for rank, key in enumerate(keys_below(reach(node, path)))}

    return sorted(found, key=lambda tie: [ranks(tie.place[:depth])[key] for depth, key in enumerate(tie.place)])


def _is_below(path: Path, places: set[Path]) -> bool:
    return any(path[:n] in places for n in range(1, len(path)))


def tie(model: M, place: str, source: str, via: Callable[[Any], Any] | None = None) -> M:
    """The model in which what stands at `place` is read from `source`: one leaf, or one subtree.

    What stood at `place` is dropped: arrays of the shapes that are at `source`. With `via`, reading `place` gives `via`
    of what stands at `source`, computed at every read.

    Args:
        model: a module.
        place: a path: "head.weight", "layers[0].bias".
        source: another one.
        via: a function of the source, such as `jnp.transpose`.

    Raises:
        PathError: one of the paths leads nowhere.
        TieError: the paths overlap or lead into a node of another library, one of them is tied already, the shapes
            differ and no `via` is given, or `via` is asked for in a list, tuple or dict.
    """
    to, origin = _place(model, place, "place", "tie"), _place(model, source, "source", "tie")
    _check_apart(to, origin, place)
    _check_ours(model, to, place)
    _check_ours(model, origin, source)
    _check_free(model, to, place)
    _check_free(model, origin, source)
    if via is None:
        _check_shapes(model, to, origin)
    elif not isinstance(form_if_node(reach(model, to[:-1])), AttributeForm):
        raise TieError(
            what="a place that is computed must be an attribute of a module.",
            place=place,
            to_fix="tie the module that holds it, or give the list's items attributes",
        )
    depth = _owner_depth(model, to, origin)
    made = Tie(to[depth:], origin[depth:], via)
    return _edited(model, to[:depth], lambda owner: _with_tie(owner, made))


def untie(model: M, place: str) -> M:
    """The model in which the tied `place` is a leaf, or subtree, of its own, with the value that it has now.

    Raises:
        PathError: the path leads nowhere.
        TieError: nothing is tied there.
    """
    to = _place(model, place, "place", "untie")
    for depth in range(len(to)):
        form = form_if_node(value_at(model, to[:depth]))
        if form is not None and any(t.place == to[depth:] for t in form.ties):
            return _edited(model, to[:depth], lambda owner, d=depth: _without_tie(owner, to[d:]))
    known = [show_path(t.place) for t in ties(model)]
    raise TieError(
        what="nothing is tied there.",
        place=place,
        to_fix=f"name one of the tied places: {', '.join(known)}" if known else "nothing: the model has no ties",
    )


def _place(model: Any, text: str, argument: str, function: str) -> Path:
    if not isinstance(text, str):
        got = jax.typeof(text) if isinstance(text, jax.Array) else text
        wanted = "a path as text, such as 'layers[0].weight'"
        raise UsageError(argument=argument, got=got, wanted=wanted, function=function)
    return resolve(model, text)


def _check_apart(to: Path, origin: Path, place: str) -> None:
    shorter = min(len(to), len(origin))
    if to[:shorter] == origin[:shorter]:
        raise TieError(
            what="a place cannot be tied to itself, or to a part of it.", place=place, to_fix="name two places apart"
        )


def _check_ours(model: Any, path: Path, text: str) -> None:
    for depth in range(len(path)):
        node = reach(model, path[:depth])
        if form_if_node(node) is None:
            found = f"{show_path(path[:depth]) or 'this'} is a {type(node).__name__}"
            raise TieError(
                what=f"ties lead through modules, and lists, tuples and dicts in them; {found}.",
                place=text,
                to_fix="tie the part as a whole, or make its class a Module" if depth else "pass a module",
            )


def _check_free(model: Any, path: Path, text: str) -> None:
    for known in ties(model):
        if path[: len(known.place)] == known.place:
            raise TieError(
                what=f"this place is tied already: {known!r}.",
                place=text,
                to_fix=f"name {show_path((*known.source, *path[len(known.place) :]))}, or end that tie first: ag.untie",
            )


def _check_shapes(model: Any, to: Path, origin: Path) -> None:
    """What is read from another place is what stood there: an array of that shape, a part with arrays of those shapes.

    Parts of two kinds are compared as far as they have the same paths.
    """
    here, there = _arrays_below(model, to), _arrays_below(model, origin)
    if here and there and ((() in here) != (() in there)):
        unlike = [()]
    else:
        unlike = [path for path in here if path in there and here[path].shape != there[path].shape]
    for path in unlike:
        place, source = show_path((*to, *path)), show_path((*origin, *path))
        via = "jnp.transpose" if _are_transposed(here.get(path), there.get(path)) else "..."
        raise TieError(
            what="two places that are one must have one shape.",
            place=place,
            got=f"{_told(there.get(path, reach(model, origin)))} at {source}",
            wanted=_told(here.get(path, reach(model, to))),
            to_fix=f"say what is read there: ag.tie(model, {place!r}, {source!r}, via={via})",
        )


def _are_transposed(one: Any, other: Any) -> bool:
    return one is not None and other is not None and one.shape == other.shape[::-1]


def _told(value: Any) -> str:
    return show_array(value) if kind_of(value) is Kind.ARRAY else type(value).__name__


def _arrays_below(model: Any, path: Path) -> dict[Path, Any]:
    part = reach(model, path)
    found = zip(leaf_paths(part), jax.tree.leaves(part), strict=True)
    return {below: leaf for below, leaf in found if kind_of(leaf) is Kind.ARRAY}


def _owner_depth(model: Any, to: Path, origin: Path) -> int:
    """How far down both paths go together, to a module."""
    depth = 0
    for n in range(min(len(to), len(origin))):
        if to[:n] != origin[:n]:
            break
        if isinstance(form_if_node(reach(model, to[:n])), AttributeForm):
            depth = n
    return depth


def _edited(node: Any, path: Path, edit: Callable[[Any], Any]) -> Any:
    if not path:
        return edit(node)
    form = form_if_node(node)
    if form is None:
        return with_parts(node, {path[0]: _edited(part(node, path[0]), path[1:], edit)})
    slot = form.slot_of(path[0])
    return copied(node, form, form, {slot: _edited(form.get(node, slot), path[1:], edit)})


def _with_tie(owner: Any, made: Tie) -> Any:
    form = form_of(owner)
    value = reach(owner, made.source)
    # The tied place inside first: where it was a leaf, it is one no more.
    final = tied_form(form, made)
    if len(made.place) == 1:
        whole = copied(owner, form, form.without(form.slot_of(made.place[0])), leave_out=form.slot_of(made.place[0]))
    else:
        slot = form.slot_of(made.place[0])
        whole = copied(owner, form, form, {slot: punched(form.get(owner, slot), made.place[1:])})
    filled = implanted(whole, made.place, value, made.via)
    return copied(filled, form_of(filled), final)


def tied_form(form: Form, made: Tie) -> Form:
    """The form of a module with one more tie, whose paths are from it and are not tied yet."""
    direct = form.without(form.slot_of(made.place[0])) if len(made.place) == 1 else form
    return direct.replace(ties=[*form.ties, made])


def _without_tie(owner: Any, place: Path) -> Any:
    form = form_of(owner)
    kept = form.replace(ties=[t for t in form.ties if t.place != place])
    value = reach(owner, place)
    if len(place) == 1:
        slot = form.slot_of(place[0])
        return copied(owner, form, kept.restored(slot, division_of(value, show_path(place))), {slot: value})
    changed = copied(owner, form, kept)
    return _edited(changed, place[:-1], lambda parent: _set(parent, place[-1], value))


def _set(parent: Any, key: Any, value: Any) -> Any:
    form = form_if_node(parent)
    assert form is not None, "the path was resolved"
    return copied(parent, form, form, {form.slot_of(key): value})
