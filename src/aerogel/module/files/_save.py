"""`save`: the arrays of a tree into a safetensors file."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..._errors import clip
from ..._jax import Tracer
from . import _manifest
from ._encoding import ENCODINGS
from ._errors import SaveError
from ._names import Convention, Rename, checked_convention, leaves_by_path, name_of, renaming, tied_names
from ._replace import replacing
from ._safetensors import METADATA, Stored, header_bytes, in_file_order
from ._spec import NUMBERS, Spec, is_key, spec_of
from ._together import Part, is_divided, write_together
from ._transform import Transform, has_transform, transformed, transformed_spec


def save(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    rename: Rename = None,
    transform: Transform = None,
    convention: Convention = "aerogel",
) -> None:
    """Writes the arrays of a tree to a safetensors file, which takes the place of `path` only when it is complete.

    Each leaf is written once, under its path: tied places are one leaf. JAX and NumPy arrays of all dtypes, typed keys
    of random numbers, and Python's numbers are written. What else is a leaf in trees of other libraries (functions,
    texts) is structure, as it is in modules: `load` takes it from `like`. Arrays on several devices are gathered one
    after the other.

    Where several processes run one program, each writes what it is told to, without a word to the others. But if an
    array is divided among them, they write one file together, each its own parts: then all must call `save`, with one
    path on a file system that they share, and none returns before the file is whole.

    Args:
        path: the file. Its folder must be there.
        tree: a module, or any pytree.
        rename: from names of the tree to names in the file: a function, or a mapping in which `*` stands for any text.
            Leaves for which the function returns None are left out.
        transform: what is done to arrays before they are written: a function of a leaf's name in the tree and its NumPy
            array, or a mapping from names, in which `*` stands for any text, to functions of the array.
        convention: how leaves are called: "aerogel" writes `layers[0].weight`, "torch" writes `layers.0.weight` and
            notes tied places as PyTorch's `save_model` does.

    Raises:
        SaveError: a leaf cannot be written, or two would have one name. The file is as it was.
        OSError: the file cannot be written. It is as it was.

    >>> import os, tempfile
    >>> import aerogel as ag, jax.numpy as jnp
    >>> file = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> ag.save(file, {"weight": jnp.ones((2, 3)), "step": 7})
    >>> ag.load(file, like={"weight": jnp.zeros((2, 3)), "step": 0})["step"]
    7
    """
    checked_convention(convention, "save")
    renamed = renaming(rename)
    items: dict[str, _Item] = {}
    for place, leaf in leaves_by_path(tree):
        name = name_of(place, convention)
        to = renamed(name)
        if to is not None and (spec := _spec_of(leaf, name, has_transform(transform, name))) is not None:
            _check_name(to, name, items)
            items[to] = _Item(name, leaf, spec, _stored(leaf, transformed_spec(transform, name, spec), name))
    ties = {
        to: (source, via)
        for place, (leaf, via) in tied_names(tree, convention).items()
        if (to := renamed(place)) is not None and (source := renamed(leaf)) is not None
    }
    leaves = {to: item.outgoing[0] for to, item in items.items()}
    metadata = {_manifest.NAME: _manifest.written(leaves, ties, type(tree).__name__)}
    if convention == "torch":
        metadata = {place: to for place, (to, via) in ties.items() if via is None} | {"format": "pt"} | metadata
    _write(path, items, metadata, transform)


@dataclass(frozen=True)
class _Item:
    """A leaf to be written: its name in the tree, its value, what it is, and what it becomes in the file."""

    name: str
    leaf: Any
    spec: Spec
    outgoing: tuple[Spec, Stored]


def _write(
    path: str | os.PathLike[str], items: Mapping[str, _Item], metadata: Mapping[str, str], transform: Transform
) -> None:
    placed = in_file_order({to: item.outgoing[1] for to, item in items.items()})
    start = header_bytes(placed, metadata)
    if any(is_divided(item.leaf) for item in items.values()):
        nbytes = sum(stored.nbytes for stored in placed.values())
        write_together(path, start, nbytes, _own_parts(items, placed, transform))
        return
    with replacing(path) as file:
        file.write(start)
        for to in placed:
            file.write(_encoded(items[to], transform).reshape(-1).view(np.uint8).data)


def _encoded(item: _Item, transform: Transform) -> np.ndarray:
    """All of a leaf, as it is written."""
    array = _on_host(item.leaf, item.spec)
    if item.spec.kind == "array":
        array = transformed(transform, item.name, array, item.outgoing[0])
    return item.outgoing[0].encoding.encode(array)


def _own_parts(items: Mapping[str, _Item], placed: Mapping[str, Stored], transform: Transform) -> Iterator[Part]:
    """What this process writes of the leaves: of divided ones its shards, of others all if it is the first."""
    for to, stored in placed.items():
        item = items[to]
        if is_divided(item.leaf):
            for shard in item.leaf.addressable_shards:
                if shard.replica_id == 0:
                    data = jax.random.key_data(shard.data) if is_key(shard.data) else shard.data
                    # JAX gives the index of keys with the axis of their data, 0.10.2.
                    box = [*shard.index[: item.leaf.ndim], *[slice(None)] * (len(stored.shape) - item.leaf.ndim)]
                    yield stored, box, item.outgoing[0].encoding.encode(np.asarray(data))
        elif jax.process_index() == 0:
            yield stored, [slice(None)] * len(stored.shape), _encoded(item, transform)


def _spec_of(leaf: Any, name: str, transforms: bool) -> Spec | None:
    """What a leaf is, if its value can be had.

    Raises:
        SaveError: it cannot.
    """
    spec = spec_of(leaf)
    reason = _reason_against(leaf, spec, transforms)
    if reason is not None:
        what, to_fix = reason
        raise SaveError(what=what, place=name, got=str(spec) if spec else clip(leaf), to_fix=to_fix)
    return spec


def _reason_against(leaf: Any, spec: Spec | None, transforms: bool) -> tuple[str, str] | None:
    if isinstance(leaf, Tracer):
        return "a traced array has no values yet.", "save outside of jit, grad and vmap"
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return "a shape has no values.", "save a tree of arrays"
    if is_divided(leaf) and transforms:
        return "a transform needs the whole array, and each process has a part.", "transform it when it is loaded"
    if isinstance(leaf, np.ndarray) and (spec is None or spec.dtype not in ENCODINGS):
        return "this dtype cannot be written.", "make it an array of numbers, or a field with `static=True`"
    if type(leaf) is int and not -(2**63) <= leaf < 2**63:
        return "the number does not fit into 64 bits.", "make it a float, or structure"
    return None


def _check_name(to: str, name: str, taken: Mapping[str, Any]) -> None:
    if to in taken or to == METADATA:
        what = "two leaves would have one name." if to in taken else "safetensors keeps this name for itself."
        raise SaveError(what=what, place=name, got=to, to_fix="give it another one with `rename`")
    if not _is_utf8(to):
        what = "the name cannot be written in UTF-8."
        raise SaveError(what=what, place=ascii(name), got=ascii(to), to_fix="give it another one with `rename`")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stored(leaf: Any, spec: Spec, name: str) -> tuple[Spec, Stored]:
    if spec.kind == "array" and spec.dtype not in ENCODINGS:
        raise SaveError(
            what="this dtype cannot be written.", place=name, got=str(spec), to_fix="cast it first: ag.cast"
        )
    shape = jax.eval_shape(jax.random.key_data, leaf).shape if spec.kind == "key" else spec.shape + spec.encoding.tail
    return spec, Stored(spec.encoding.stored, shape)


def _on_host(leaf: Any, spec: Spec) -> np.ndarray:
    """The values of one leaf, whole."""
    if type(leaf) in NUMBERS.values():
        return np.asarray(leaf, spec.encoding.dtype)
    if isinstance(leaf, jax.Ref):
        leaf = leaf[...]
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable:  # each process has all of it
            leaf = leaf.addressable_data(0)
        leaf = jax.random.key_data(leaf) if is_key(leaf) else leaf
        # An array keeps what NumPy was given of it: a second copy of the model, in the end. A twin is dropped with it.
        parts = [shard.data for shard in leaf.addressable_shards]
        leaf = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)
    return np.asarray(leaf)
