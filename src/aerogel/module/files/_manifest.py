"""The manifest: what the leaves of a file are, where safetensors' own header cannot say it.

It is a text in the metadata of that header, under the name `aerogel`, so that there is one file, which is whole or not
there, and which every reader of safetensors can read. It says for each leaf its shape and dtype as JAX has them, which
places were tied to which, and the class of the tree. It holds no structure: that comes from `like`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..._errors import clip
from ._encoding import ENCODINGS, NATIVE
from ._errors import FileError, shown
from ._safetensors import Header, Stored, checked_shape, parsed
from ._spec import NUMBERS, Spec

SCHEMA = 1
NAME = "aerogel"


@dataclass(frozen=True)
class Manifest:
    """What is known of a file.

    Attributes:
        leaves: what each array of the file is.
        aliases: further names of leaves, from ties.
        tree: the class of the tree that was saved, if known.
    """

    leaves: Mapping[str, Spec]
    aliases: Mapping[str, str]
    tree: str | None = None


def written(leaves: Mapping[str, Spec], ties: Mapping[str, tuple[str, str | None]], tree: str) -> str:
    """The manifest as JSON. `ties` maps tied places to where they are read from, and by which function."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "tree": tree,
            "leaves": {
                name: {"kind": spec.kind, "dtype": spec.dtype, "shape": list(spec.shape)}
                for name, spec in leaves.items()
            },
            "ties": {
                place: {"source": source} | ({} if via is None else {"via": via})
                for place, (source, via) in ties.items()
            },
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def manifest_of(header: Header, place: str) -> Manifest:
    """What a file's header says, with a manifest or without: any safetensors file will do.

    Raises:
        FileError: the manifest is not valid, or does not fit the rest of the header.
    """
    # PyTorch's `save_model` keeps one of several shared tensors, and the names of the others as metadata.
    aliases = {name: to for name, to in header.metadata.items() if to in header.arrays and name not in header.arrays}
    if NAME not in header.metadata:
        leaves = {
            name: Spec("array", str(NATIVE[array.dtype].dtype), array.shape) for name, array in header.arrays.items()
        }
        return Manifest(leaves, aliases)
    place = f"{place}: manifest"
    said = parsed(header.metadata[NAME], place)
    schema = said.get("schema")
    if type(schema) is not int or schema < 1:
        raise FileError(what="the manifest has no schema version.", place=place, got=clip(schema))
    if schema > SCHEMA:
        raise FileError(
            what="the file was written by a later version of Aerogel.",
            place=place,
            got=f"schema {schema}",
            wanted=f"at most {SCHEMA}",
            to_fix="upgrade aerogel",
        )
    leaves = _leaves(said.get("leaves"), header.arrays, place)
    return Manifest(leaves, aliases | _aliases(said.get("ties"), place), _tree(said.get("tree"), place))


def _leaves(said: Any, arrays: Mapping[str, Stored], place: str) -> dict[str, Spec]:
    if type(said) is not dict or said.keys() != arrays.keys():
        raise FileError(what="the manifest and the header name different arrays.", place=place)
    found = {}
    for name, entry in said.items():  # in the order of the tree; that of the header is the file's
        here = f"{place}: {shown(name)}"
        array = arrays[name]
        found[name] = _spec(entry, here)
        if not found[name].is_stored_as(array):
            got = f"{array.dtype}{list(array.shape)}"
            raise FileError(what="the header contradicts the manifest.", place=here, got=got, wanted=str(found[name]))
    return found


def _spec(said: Any, place: str) -> Spec:
    if type(said) is not dict or not {"kind", "dtype", "shape"} <= said.keys():
        raise FileError(what="a leaf has a kind, a dtype and a shape.", place=place, got=clip(said))
    kind, dtype, shape = said["kind"], said["dtype"], checked_shape(said["shape"], place)
    known = {"array": ENCODINGS, "number": NUMBERS}.get(kind) if type(kind) is str else None
    is_key = kind == "key" and type(dtype) is str and shown(dtype) == dtype
    if not is_key and (known is None or type(dtype) is not str or dtype not in known):
        raise FileError(what="the manifest names an unknown dtype.", place=place, got=clip((kind, dtype)))
    if kind == "number" and shape:
        raise FileError(what="a number has no shape.", place=place, got=clip(list(shape)))
    return Spec(cast(Any, kind), dtype, shape)


def _aliases(said: Any, place: str) -> dict[str, str]:
    if type(said) is not dict or not all(type(tie) is dict and type(tie.get("source")) is str for tie in said.values()):
        raise FileError(what="a tie has a source.", place=place, got=clip(said))
    return {name: tie["source"] for name, tie in said.items() if "via" not in tie}


def _tree(said: Any, place: str) -> str:
    if type(said) is not str:
        raise FileError(what="the class of the tree is a text.", place=place, got=clip(said))
    return shown(said)
