"""What the parts of a model do in one call of it: their results' types and their flops, found by tracing it once.

While the model is traced, a call of one of its parts goes through a `jit` that is named after the part. The program
then holds each part's own program, however it was called, and the cost model says what that costs.
"""

import contextlib
import threading
import types
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import numpy as np

from aerogel import _jax
from aerogel.compiler.cost import program_cost
from aerogel.module._paths import Path
from aerogel.module._places import Skeleton, places_of

from .stateful import stateful

_TAG = "aerogel_part_"


@dataclass
class Called:
    """What one part did.

    Attributes:
        output: its result the first time, with types in place of arrays.
        flops: of all calls together, those in a loop's body as often as it runs.
    """

    output: Any
    flops: int = 0


def calls_of(model: Any, args: Any, kwargs: Any) -> dict[Path, Called]:
    """What each part of a model did in `model(*args, **kwargs)`, by its path; the model itself is at `()`.

    Nothing is computed and no array is made: arrays may be shapes. A part that is rebuilt before it is called (layers
    that a `scan` takes from a stack) counts as a piece of what calls it.
    """
    leaves, structure = jax.tree.flatten((model, args, kwargs))
    is_input = [isinstance(x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct) for x in leaves]
    watch = _Watch()

    def run(*traced: Any) -> Any:
        given = iter(traced)
        whole = [next(given) if yes else x for x, yes in zip(leaves, is_input, strict=True)]
        return stateful(called)(*jax.tree.unflatten(structure, whole))[0]

    def called(its_model: Any, its_args: Any, its_kwargs: Any) -> Any:
        with watch.over(its_model):
            result = its_model(*its_args, **its_kwargs)
        watch.found.setdefault((), Called(jax.tree.map(_type_of, result)))  # its class may hide how it is called
        return _arrays_of(result)

    program = jax.make_jaxpr(run)(*(x for x, yes in zip(leaves, is_input, strict=True) if yes))
    watch.add_flops(program.jaxpr, 1)
    watch.found[()].flops = int(program_cost(program).flops)
    return watch.found


class _Watch:
    """Sees the calls of a model's parts in one thread, while one model is traced."""

    _lock = threading.RLock()  # classes are shared by all threads, and put back as they were

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.parts: dict[int, Path] = {}
        self.active: list[Path] = []
        self.names: list[Path] = []
        self.found: dict[Path, Called] = {}

    @contextlib.contextmanager
    def over(self, model: Any) -> Generator[None, None, None]:
        """While it lasts, calls of the model's parts are seen."""
        classes: set[type] = set()
        for place in places_of(model, Skeleton(model)):
            if not place.is_static and not place.is_computed and not place.is_leaf:
                self.parts.setdefault(id(place.value), place.home)
                classes.update(base for base in type(place.value).__mro__ if _calls(base))
        with self._lock:
            before = {cls: vars(cls)["__call__"] for cls in classes}
            try:
                for cls, call in before.items():
                    type.__setattr__(cls, "__call__", self._seen(call))
                yield
            finally:
                for cls, call in before.items():
                    type.__setattr__(cls, "__call__", call)

    def add_flops(self, jaxpr: Any, times: int) -> None:
        """Adds what each named program in a program costs."""
        for eqn in jaxpr.eqns:
            name = str(eqn.params.get("name", ""))
            inner = [getattr(each, "jaxpr", each) for each in _jax.jaxprs_in_params(eqn.params)]
            if name.startswith(_TAG):
                path = self.names[int(name.removeprefix(_TAG))]
                self.found[path].flops += times * int(program_cost(inner[0]).flops)
            runs = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
            for each in inner:
                self.add_flops(each, runs)

    def _seen(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def seen(part: Any, *args: Any, **kwargs: Any) -> Any:
            path = self.parts.get(id(part))
            if path is None or path in self.active or threading.get_ident() != self.thread:
                return call(part, *args, **kwargs)
            self.active.append(path)
            try:
                return self._named(path, lambda *a, **k: call(part, *a, **k), args, kwargs)
            finally:
                self.active.remove(path)

        return seen

    def _named(self, path: Path, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The call, as a `jit` with a name that says which part it is. What is no array goes past it."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        results: list[Any] = []

        def run(*traced: Any) -> Any:
            given = iter(traced)
            its_args, its_kwargs = structure.unflatten([next(given) if _is_array(x) else x for x in leaves])
            results.append(call(*its_args, **its_kwargs))
            return _arrays_of(results[-1])

        run.__name__ = f"{_TAG}{len(self.names)}"
        self.names.append(path)
        arrays = iter(jax.jit(run)(*filter(_is_array, leaves)))
        result = jax.tree.map(lambda x: next(arrays) if _is_array(x) else x, results[-1])
        self.found.setdefault(path, Called(jax.tree.map(_type_of, result)))
        return result


def _calls(cls: type) -> bool:
    return isinstance(vars(cls).get("__call__"), types.FunctionType)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | _jax.Tracer)


def _arrays_of(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if _is_array(x)]


def _type_of(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if _is_array(x) else x
