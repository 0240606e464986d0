"""Classes as Python programmers write them beside models: slots, properties, `__getattr__`, `__new__`, odd names."""

import dataclasses
import functools
from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.module import FieldError, Module, StructureError


def crossed(module: Any) -> Any:
    """The module as it comes out of a compiled function."""
    return jax.jit(lambda module: module)(module)


def test_slots_are_fields_as_others() -> None:
    """A class that names its fields in `__slots__` crosses the boundary as one that does not."""

    class Slotted(Module):
        __slots__ = ("weight",)
        weight: Any
        name: str = "x"

    out = crossed(Slotted(jnp.ones(2)))
    assert out == Slotted(jnp.ones(2))
    np.testing.assert_array_equal(crossed(out).weight, 1)


def test_a_field_hides_a_property_or_an_abstract_method_of_a_base() -> None:
    """It makes the class concrete, has no default from there, and is read after every crossing."""

    class Base(Module):
        @property
        @abstractmethod
        def size(self) -> Any: ...

        @abstractmethod
        def act(self, x: Any) -> Any: ...

        @property
        def twice(self) -> Any:
            return 2 * self.size

        @functools.cached_property
        def label(self) -> str:
            return "base"

    class Net(Base):
        size: Any
        act: Any
        label: str  # type: ignore[assignment]

    with pytest.raises(TypeError, match="missing 3 required positional arguments: 'size', 'act', and 'label'"):
        Net()  # type: ignore[call-arg]
    for net in (Net(jnp.ones(2), jnp.tanh, "net"), crossed(Net(jnp.ones(2), jnp.tanh, "net"))):
        assert (net.twice[0], net.act, net.label) == (2, jnp.tanh, "net")
    assert not hasattr(Net, "size")


class Inner(Module):
    kernel: Any
    head: Any = None


class Wrapper(Module):
    inner: Any
    head: Any
    scale: float = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_getattr_that_asks_another_module_is_asked_for_its_attributes_only() -> None:
    """A wrapper of a module with a tie by a function stays itself: read, edited, crossed, built in an `__init__`."""

    class Outer(Module):
        wrapper: Wrapper

        def __init__(self) -> None:
            inner = ag.tie(Inner(jnp.ones((2, 3)), jnp.ones((3, 2))), "head", "kernel", via=jnp.transpose)
            self.wrapper = Wrapper(inner, jnp.ones(5))
            self.wrapper.head = jnp.zeros(5)

    wrapper = Outer().wrapper
    edited = ag.at(wrapper).scale.set(1.0)
    for each in (wrapper, crossed(wrapper), crossed(Outer()).wrapper, edited, crossed(edited)):
        assert (each.head.shape, each.kernel.shape, each.inner.head.shape) == ((5,), (2, 3), (3, 2))
        assert each == wrapper
    with pytest.raises(AttributeError, match="'Inner' object has no attribute 'nothing'"):
        _ = wrapper.nothing


def test_a_new_that_returns_something_else() -> None:
    """`__init__` and its checks are for instances of the class, as in Python."""

    class Make(Module):
        x: Any

        def __new__(cls, x: Any) -> Any:
            return "none" if x is None else super().__new__(cls)

    assert Make(None) == "none"
    assert Make(3).x == 3


def test_fields_may_have_names_that_aerogel_or_python_uses_elsewhere() -> None:
    """Of a metaclass's methods, of what the written `__init__` calls, and of its own first argument."""
    names = ["register", "mro", "self", "cls", "_self", "_put", "_type", "_freeze", "_missing", "m", "v"]
    odd: Any = type("Odd", (Module,), {"__annotations__": dict.fromkeys(names, Any)})
    one = odd(*range(len(names) - 1), jnp.ones(2))
    assert [getattr(one, name) for name in names[:-1]] == list(range(len(names) - 1))
    assert crossed(one) == one
    assert odd(**{name: getattr(one, name) for name in names}) == one
    with pytest.raises(TypeError, match="missing"):
        odd()


class Scaled(Module):
    """What has a method to be partial."""

    weight: Any

    def act(self, n: int, x: Any) -> Any:
        return n * self.weight * x

    def __call__(self, x: Any) -> Any:
        return self.act(1, x)


FULL = Scaled(jnp.ones(2))


class Late(Module):
    """A base with a default."""

    first: int = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """A frozen dataclass."""

    rate: float


class Watched:
    """A class that says what is set."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise NotImplementedError


@dataclasses.dataclass
class Sizes:
    """Fields that a dataclass declares, and an `__init__` that it writes."""

    width: int
    names: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Fixed:
    """A field that a dataclass declares, and an `__init__` that its author wrote."""

    width: int

    def __init__(self) -> None:
        self.width = 7


def test_a_dataclass_beside_the_modules() -> None:
    """Its fields come first, as in a dataclass that inherits from it; an `__init__` of its author's stays."""

    class First(Sizes, Module):
        weight: Any = None

    class Second(Module, Sizes):
        weight: Any = None

    class Third(First):
        depth: int = 1

    for cls in (First, Second, Third):
        model = cls(2, ["a"], weight=jnp.ones(2))
        assert (model.width, list(model.names)) == (2, ["a"])
        assert len(jax.tree.leaves(crossed(model))) == 1

    class Fourth(Fixed, Module):
        depth: int = 1

    assert (Fourth().width, Fourth().depth) == (7, 1)


def test_a_static_call() -> None:
    """A model whose `__call__` has no `self`, of which Python 3.11 says that it has no argument."""

    class Static(Module):
        weight: Any

        @staticmethod
        def __call__(x: Any) -> Any:
            return x + 1

    assert float(ag.jit(Static(jnp.ones(2)))(1.0)) == 2


def test_a_partial_with_a_module_among_its_arguments_is_data() -> None:
    """As the error below advises; and a partial of a module without arrays is structure."""
    held = Inner(jax.tree_util.Partial(Scaled.act, FULL, 2))
    assert len(jax.tree.leaves(held)) == 1
    grads = jax.grad(lambda held: held.kernel(3.0).sum())(held)
    np.testing.assert_array_equal(grads.kernel.args[0].weight, 6)
    assert crossed(Inner(functools.partial(Scaled(None).act, 2), jnp.ones(2))).kernel.args == (2,)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: type("A", (Late,), {"__annotations__": {"b": int}}),
            FieldError,
            "`b` has no default.*`first`",
        ),
        (lambda: type("A", (Module, Options), {}), FieldError, "frozen dataclass for a base: `Options`"),
        (lambda: type("A", (Module,), {"__setattr__": object.__setattr__}), FieldError, "`A.__setattr__` would never"),
        (lambda: type("A", (Watched, Module), {}), FieldError, "`Watched.__setattr__` would never be called"),
        (lambda: Inner(functools.partial(jnp.add, jnp.ones(2))), StructureError, "jax.tree_util.Partial in place of"),
        (lambda: Inner(functools.partial(FULL.act, 2)), StructureError, r"Partial\(Scaled.act, module, ...\)"),
        (lambda: Inner([functools.partial(FULL, 2)]), StructureError, r"Partial\(Scaled.__call__, module, ...\)"),
        (lambda: Inner(jax.tree_util.Partial(FULL.act, 2)), StructureError, r"Partial\(Scaled.act, module, ...\)"),
    ],
    ids=[
        "order",
        "frozen base",
        "own setattr",
        "setattr of a base",
        "partial",
        "partial of a method",
        "partial of a module",
        "partial of JAX's",
    ],
)
def test_mistakes_are_named(make: Any, error: type[Exception], text: str) -> None:
    """Each says which field, base or array it is, and what to write."""
    with pytest.raises(error, match=text):
        make()
