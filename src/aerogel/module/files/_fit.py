"""What a file and a tree have in common, and all that they have not, before any array is read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

import jax.numpy as jnp

from ._encoding import ENCODINGS
from ._errors import Difference, MismatchError
from ._names import followed
from ._spec import Spec

MOST_TRIED = 50  # names that are compared for a proposal


@dataclass(frozen=True)
class Fit:
    """Which entry of a file goes to which leaf of a tree.

    Attributes:
        sources: by the leaf's name, the entry's name.
        copies: pairs of entries that stand for two places tied in the tree, and so must be equal.
        differences: where file and tree differ, in the order of the tree; unexpected entries last.
    """

    sources: Mapping[str, str]
    copies: Iterable[tuple[str, str]]
    differences: tuple[Difference, ...]


def fit(
    wanted: Mapping[str, Spec],
    found: Mapping[str, Spec],
    ties: Mapping[str, str],
    aliases: Mapping[str, str],
    cast: bool,
) -> Fit:
    """Pairs the leaves of a tree with the entries of a file.

    Args:
        wanted: the tree's leaves by name.
        found: the file's entries by name.
        ties: tied places of the tree, and the leaves that they are read from.
        aliases: further names of entries, from ties in the file.
        cast: whether another dtype will do.
    """
    aliases = followed(aliases)
    places: dict[str, list[str]] = {}
    for place, name in followed(ties).items():
        places.setdefault(name, []).append(place)
    sources, copies, differences = {}, [], []
    for name, spec in wanted.items():
        names = [aliases.get(each, each) for each in (name, *places.get(name, ()))]
        entries = list(dict.fromkeys(each for each in names if each in found))
        if not entries:
            differences.append(Difference("missing", name, in_tree=str(spec)))
            continue
        sources[name] = entries[0]
        copies += [(entries[0], other) for other in entries[1:]]
        differences += [_difference(name, found[each], spec, cast) for each in entries]
    used = {*sources.values(), *(other for _, other in copies)}
    differences += [Difference("unexpected", name, in_file=str(found[name])) for name in found if name not in used]
    return Fit(sources, copies, tuple(each for each in differences if each is not None))


def _difference(name: str, found: Spec, wanted: Spec, cast: bool) -> Difference | None:
    if found.shape != wanted.shape:
        return Difference("shape", name, str(found), str(wanted))
    if found != wanted and not (cast and can_cast(found, wanted)):
        return Difference("dtype", name, str(found), str(wanted))
    return None


def can_cast(found: Spec, wanted: Spec) -> bool:
    """Whether values of one dtype have a meaning in another: floats have none as integers, nor complex ones as real."""
    if "key" in (found.kind, wanted.kind) or (wanted.kind == "array" and wanted.dtype not in ENCODINGS):
        return False
    return _rank(found) <= _rank(wanted)


def _rank(spec: Spec) -> int:
    dtype = spec.encoding.dtype
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next(rank for rank, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))


def refusal(differences: Iterable[Difference], place: str) -> MismatchError:
    """The error that lists all differences, with the step that would end most of them."""
    differences = tuple(differences)
    return MismatchError(place=place, differences=differences, to_fix=_advice(differences))


def _advice(differences: tuple[Difference, ...]) -> str:
    missing = {each.name: each.in_tree for each in differences if each.kind == "missing"}
    unexpected = {each.name: each.in_file for each in differences if each.kind == "unexpected"}
    for name, spec in islice(missing.items(), MOST_TRIED):
        alike = list(islice((other for other, its in unexpected.items() if its == spec), MOST_TRIED))
        near = get_close_matches(name, alike, n=1, cutoff=0.4)
        if near:
            return f"if the names changed: load(..., rename={{{near[0]!r}: {name!r}}})"
    kinds = {each.kind for each in differences}
    if kinds == {"dtype"}:
        if any("key<" in f"{each.in_file} {each.in_tree}" for each in differences):
            return "give `like` keys where the file has them, of its kind: jax.random.key(0, impl=...)"
        return "to convert: load(..., cast=True), which goes from integers to floats and not back"
    if kinds == {"copies"}:
        return "untie the places in `like`, or drop one of the arrays with `rename`"
    if kinds <= {"missing", "unexpected"}:
        return "to load what both have, and keep the rest of `like`: load(..., strict=False)"
    return "load into the model that the file was saved from; `rename` and `transform` adapt another one's"
