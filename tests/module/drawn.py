"""Random modules: drawn classes, generic ones too, and instances of them.

They have nested containers, nodes of others, structure, `None`s, variables, shared parts and frozen leaves.
"""

import functools
import types
from collections import OrderedDict
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from aerogel.module import Module, Variable, field, freeze
from aerogel.module._paths import show_path

T = TypeVar("T")
NAMES = ("a", "b", "c")


class Record(NamedTuple):
    """A named tuple of anything."""

    one: Any
    two: Any


class Other(eqx.Module):
    """Another library's node, with a leaf that is no array."""

    array: Any
    function: Any = max


@functools.cache
def drawn_class(names: tuple[str, ...], static: str | None, own_init: bool) -> type:
    """The class with these fields. It is found by name here, so that its instances can be pickled."""
    name = f"Drawn_{'_'.join(names)}_{static}_{own_init}"
    body: dict[str, Any] = {"__annotations__": dict.fromkeys(names, Any), "__module__": __name__, "__qualname__": name}
    if static:
        body["__annotations__"][static] = Any
        body[static] = field(static=True, default="unset")
    if own_init:

        def __init__(self: Any, *values: Any) -> None:
            for field_name, value in zip(names, values, strict=False):
                setattr(self, field_name, value)
            if static and len(values) > len(names):
                setattr(self, static, values[-1])

        body["__init__"] = __init__
    bases = (Module, Generic[T]) if own_init else (Module,)  # type: ignore[misc]
    cls = types.new_class(name, bases, exec_body=lambda namespace: namespace.update(body))
    globals()[name] = cls
    return cls


def __getattr__(name: str) -> Any:
    """Classes that another process drew: pickle asks for them."""
    if not name.startswith("Drawn_"):
        raise AttributeError(name)
    *names, static, own_init = name.split("_")[1:]
    return drawn_class(tuple(n for n in names if n), None if static == "None" else static, own_init == "True")


def double(x: Any) -> Any:
    """A function that stands in structure."""
    return 2 * x


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """A new array each time, so that nothing is shared by accident."""
    shape = draw(st.sampled_from([(), (2,), (2, 3), (0, 2)]))
    made = [
        lambda: jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape) + draw(st.integers(0, 3)),
        lambda: jnp.ones(shape, jnp.bfloat16) * 2,
        lambda: np.full(shape, draw(st.integers(0, 3)), np.int32),
        lambda: jax.random.key(draw(st.integers(0, 3))),
        lambda: jax.ShapeDtypeStruct(shape, jnp.float16),
    ]
    return draw(st.sampled_from(made))()


statics = st.sampled_from(
    [None, True, 1, 1.0, -0.0, float("nan"), "relu", double, jax.nn.relu, np.dtype("int8"), int, ..., (3, "same")]
)


def values(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What a field may hold."""
    return st.recursive(
        parts | statics,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from(["k", "l", "m"]), inner, max_size=2),
            st.dictionaries(st.sampled_from(["m", "l", "k"]), inner, max_size=2).map(OrderedDict),
            st.builds(Record, inner, inner),
            st.builds(Other, arrays() | modules_of(inner)),
            modules_of(inner),
        ),
        max_leaves=6,
    )


@st.composite
def modules_of(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    """A module with drawn fields."""
    names = tuple(NAMES[: draw(st.integers(0, 3))])
    static = draw(st.sampled_from([None, "s"]))
    own_init = draw(st.booleans())
    cls: Any = drawn_class(names, static, own_init)
    cls = cls[int] if own_init and draw(st.booleans()) else cls
    given_values = [draw(inner) for _ in names]
    if static and draw(st.booleans()):
        given_values.append(draw(statics | st.lists(statics, max_size=2)))
    return cls(*given_values)


@st.composite
def modules(draw: st.DrawFn, with_marks: bool = False) -> Any:
    """A module in which arrays and modules may stand in several places.

    With marks there may be variables too, which may stand in several places, and leaves may be frozen.
    """
    variables = [st.builds(Variable, arrays())] if with_marks else []
    shared = draw(st.lists(st.one_of(arrays(), *variables), max_size=2))
    parts = st.one_of(arrays(), *variables, *map(st.just, shared))
    shared_modules = draw(st.lists(modules_of(parts), max_size=2))
    model = draw(modules_of(values(st.one_of(parts, *map(st.just, shared_modules)))))
    paths = [show_path(path) for path, _ in jax.tree.leaves_with_path(model)] if with_marks else []
    chosen = draw(st.sets(st.sampled_from(paths), max_size=2)) if paths else set()
    return freeze(model, lambda path, _: path in chosen) if chosen else model
