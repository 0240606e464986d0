"""`load`: a safetensors file into the arrays of a tree."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from ..._errors import UsageError
from ..._jax import Tracer, with_weak_type
from ._archive import Archive, opened
from ._errors import Difference
from ._fit import Fit, fit, refusal
from ._names import Convention, Rename, checked_convention, name_of, renaming, tied_names
from ._spec import NUMBERS, Spec, spec_of
from ._transform import Transform, transformed, transformed_spec

T = TypeVar("T")


@overload
def load(
    path: str | os.PathLike[str],
    like: None = None,
    *,
    strict: bool = True,
    cast: bool = False,
    rename: Rename = None,
    transform: Transform = None,
    convention: Convention = "aerogel",
) -> dict[str, Any]: ...
@overload
def load(
    path: str | os.PathLike[str],
    like: T,
    *,
    strict: bool = True,
    cast: bool = False,
    rename: Rename = None,
    transform: Transform = None,
    convention: Convention = "aerogel",
) -> T: ...
def load(
    path: str | os.PathLike[str],
    like: Any = None,
    *,
    strict: bool = True,
    cast: bool = False,
    rename: Rename = None,
    transform: Transform = None,
    convention: Convention = "aerogel",
) -> Any:
    """The tree `like` with the arrays of a safetensors file in the place of its own.

    Which leaf is which is told by path, and all differences are found before any array is read. Where `like` has a JAX
    array or a shape, there will be a JAX array with the same sharding: each device gets its part of the file. Where it
    has a NumPy array or a number of Python's, there will be one. What is no data in `like` (functions, texts) stays.

    Any safetensors file will do. A place that is tied in `like` may stand in the file under both names, if the arrays
    are equal; a place that was tied when the file was saved may be untied in `like`. The file is not trusted: it
    cannot make `load` execute anything, or hold more memory than the file is large.

    Args:
        path: the file.
        like: a module or another pytree, of arrays or of shapes (`jax.eval_shape` of what makes the model), which may
            have shardings. Without it the result is a dict of NumPy arrays by their names.
        strict: whether file and tree must have the same leaves. If not, leaves that only the file has are left there,
            and arrays that only `like` has are taken from it.
        cast: whether to convert dtypes: to wider and narrower ones, and from bool to integers to floats to complex.
        rename: from names in the file to names of the tree: a function, or a mapping in which `*` stands for any text.
            What the function returns None for is not looked at.
        transform: what is done to arrays of the file: a function of a leaf's name in the tree and a NumPy array, or a
            mapping from names, in which `*` stands for any text, to functions of the array. It is asked with zeros
            first, for the shape.
        convention: how the leaves of `like` are called: "aerogel" for `layers[0].weight`, "torch" for
            `layers.0.weight`.

    Raises:
        MismatchError: file and tree differ; all differences are listed.
        FileError: the file is not a whole and consistent safetensors file.
        OSError: it cannot be read.

    >>> import os, tempfile
    >>> import aerogel as ag, jax, jax.numpy as jnp
    >>> file = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> ag.save(file, [jnp.arange(3), jnp.ones(2)])
    >>> ag.load(file, like=[jax.ShapeDtypeStruct((3,), jnp.int32), jnp.zeros(2)])
    [Array([0, 1, 2], dtype=int32), Array([1., 1.], dtype=float32)]
    """
    checked_convention(convention, "load")
    if isinstance(like, type):
        wanted, to_fix = "a model, or the shapes of one", "like=jax.eval_shape(make_model), or a model that was made"
        raise UsageError(argument="like", got=like, wanted=wanted, function="load", to_fix=to_fix)
    with opened(path) as archive:
        entries, aliases = _renamed(archive, rename)
        if like is None:
            return {to: _Source(archive, name, transform, to).as_it_is() for to, name in entries.items()}
        flat, structure = jax.tree_util.tree_flatten_with_path(like)
        wanted = _wanted(flat, convention)
        specs = {to: leaf.spec for to, leaf in wanted.items()}
        found = {to: transformed_spec(transform, to, archive.manifest.leaves[name]) for to, name in entries.items()}
        ties = {place: leaf for place, (leaf, via) in tied_names(like, convention).items() if via is None}
        fitting = fit(specs, found, ties, aliases, cast)
        _check(fitting, wanted, entries, archive, strict)
        made = [leaf for _, leaf in flat]
        for to, source in fitting.sources.items():
            leaf = wanted[to]
            made[leaf.index] = _made(leaf.value, leaf.spec, _Source(archive, entries[source], transform, source))
    return structure.unflatten(made)


@dataclass(frozen=True)
class _Leaf:
    """A leaf of `like` that holds data: which one, its value, what it is."""

    index: int
    value: Any
    spec: Spec


def _wanted(flat: list[tuple[Any, Any]], convention: Convention) -> dict[str, _Leaf]:
    """The leaves of a tree that hold data, by name."""
    found: dict[str, _Leaf] = {}
    for index, (place, value) in enumerate(flat):
        name, spec = name_of(place, convention), spec_of(value)
        if spec is None:
            continue
        if name in found:
            wanted = "a tree whose leaves have different names"
            raise UsageError(argument="like", got=name, wanted=wanted, function="load")
        found[name] = _Leaf(index, value, spec)
    return found


def _renamed(archive: Archive, rename: Rename) -> tuple[dict[str, str], dict[str, str]]:
    """The names of the file's entries by their new ones, and the new aliases."""
    renamed = renaming(rename)
    entries: dict[str, str] = {}
    for name in archive.manifest.leaves:
        to = renamed(name)
        if to in entries:
            got, wanted = f"{entries[to]!r} and {name!r} to {to!r}", "different names for different leaves"
            raise UsageError(argument="rename", got=got, wanted=wanted, function="load")
        if to is not None:
            entries[to] = name
    pairs = [(renamed(place), renamed(name)) for place, name in archive.manifest.aliases.items()]
    return entries, {place: name for place, name in pairs if place is not None and name is not None}


def _check(
    fitting: Fit, wanted: Mapping[str, _Leaf], entries: Mapping[str, str], archive: Archive, strict: bool
) -> None:
    """Raises what stands against loading."""
    place = archive.place + (f", saved from a `{archive.manifest.tree}`" if archive.manifest.tree else "")
    differences = [each for each in fitting.differences if strict or not _can_stay(each, wanted)]
    if differences:
        raise refusal(differences, place)
    unequal = [
        Difference("copies", name, in_file=f"not what {first} is")
        for first, name in fitting.copies
        if not archive.are_equal(entries[first], entries[name])
    ]
    if unequal:
        raise refusal(unequal, place)


def _can_stay(difference: Difference, wanted: Mapping[str, _Leaf]) -> bool:
    if difference.kind == "missing":
        return not isinstance(wanted[difference.name].value, jax.ShapeDtypeStruct)
    return difference.kind == "unexpected"


class _Source:
    """Where the values of a leaf come from: an entry of a file, and what the user wants done to it."""

    def __init__(self, archive: Archive, name: str, transform: Transform, to: str) -> None:
        self.archive, self.name, self.transform, self.to = archive, name, transform, to
        self.spec = archive.manifest.leaves[name]

    @cached_property
    def whole(self) -> np.ndarray:
        """All of it."""
        array = self.archive.read(self.name)
        if self.spec.kind != "array":
            return array
        return transformed(self.transform, self.to, array, transformed_spec(self.transform, self.to, self.spec))

    def part(self, box: Sequence[slice]) -> np.ndarray:
        """A part of it, without reading the rest where there is nothing to be done to the whole."""
        if self.transform is None or self.spec.kind != "array":
            return self.archive.read(self.name, box)
        return self.whole[tuple(box)]

    def as_it_is(self) -> Any:
        """What was saved: a NumPy array, keys, or a number."""
        if self.spec.kind == "key":
            return self.archive.keys(self.name)
        return self.whole.item() if self.spec.kind == "number" else self.whole


def _made(leaf: Any, spec: Spec, source: _Source) -> Any:
    """A leaf like `leaf`, which `spec` describes, with the values of `source`."""
    sharding = _sharding_of(leaf)
    if spec.kind == "key":
        keys = source.archive.keys(source.name)
        if sharding is None:
            return keys
        # `device_put` knows no devices of other processes.
        return jax.make_array_from_callback(spec.shape, sharding, lambda box: keys[box or ()])
    if spec.kind == "number":
        return NUMBERS[spec.dtype](source.whole.item())
    dtype = spec.encoding.dtype
    if isinstance(leaf, np.ndarray | np.generic):
        array = source.whole.astype(dtype, copy=False)
        return array if isinstance(leaf, np.ndarray) else array[()]
    if sharding is None:
        array = jnp.asarray(source.whole.astype(dtype, copy=False))
    else:
        array = jax.make_array_from_callback(
            spec.shape, sharding, lambda box: source.part(box or ()).astype(dtype, copy=False), dtype=dtype
        )
    if getattr(leaf, "weak_type", False):
        array = with_weak_type(array)
    return jax.new_ref(array) if isinstance(leaf, jax.Ref) else array


def _sharding_of(leaf: Any) -> Any:
    """Where the leaf is to be; None for wherever JAX puts an array that nobody gave a place. Tracers are nowhere."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _with_devices(leaf.sharding)
    is_placed = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed
    return leaf.sharding if is_placed else None


def _with_devices(sharding: Any) -> Any:
    """The sharding on the mesh in use, if it came from a trace, where meshes have no devices.

    Raises:
        UsageError: no mesh of that form is in use.
    """
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, AbstractMesh):
        return sharding
    mesh = jax.sharding.get_mesh()
    if mesh.abstract_mesh != sharding.mesh:
        wanted = "shapes whose shardings have devices"
        to_fix = "load inside of `with jax.set_mesh(mesh):`, as the shapes were made"
        raise UsageError(argument="like", got=sharding, wanted=wanted, function="load", to_fix=to_fix)
    return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
