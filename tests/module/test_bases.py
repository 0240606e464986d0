"""What a class of modules may inherit from beside modules, and where its `__init__`, `==` and `repr` come from."""

import dataclasses
from abc import abstractmethod
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel.module import FieldError, Module


@runtime_checkable
class Act(Protocol):
    """A protocol without an `__init__`."""

    size: Any

    def __call__(self, x: Any) -> Any: ...


class Own(Module):
    """A module with an `__init__` of its author's."""

    weight: Any

    def __init__(self, n: int) -> None:
        self.weight = jnp.ones(n)


class Named(Module):
    """A mixin: no fields, no `__init__`."""

    def name(self) -> str:
        return type(self).__name__


class AbstractNamed(Module):
    """A mixin that leaves something open."""

    @abstractmethod
    def name(self) -> str: ...


@dataclasses.dataclass
class Sizes:
    """A dataclass, with `==`, `repr` and no `hash` for its own fields."""

    width: int


def test_a_mixin_without_fields_does_not_hide_the_init_of_another_base() -> None:
    """As in Python, where a class that wrote no `__init__` has none."""

    class First(Named, Own):
        depth: int = 2

    class Second(AbstractNamed, Own):
        def name(self) -> str:
            return "second"

    assert (First(3).weight.shape, First(3).depth, First(3).name()) == ((3,), 2, "First")
    assert Second(3).weight.shape == (3,)
    assert len(jax.tree.leaves(First(3))) == 1


def test_the_init_of_code_that_has_no_file_stays() -> None:
    """`python -c` and `exec` name their file "<string>", as `dataclasses` does for what it writes."""
    scope: dict[str, Any] = {"ag": ag, "jnp": jnp, "__name__": __name__}
    body = "    weight: object\n    def __init__(self, n):\n        self.weight = jnp.ones(n)\n"
    exec(f"class Net(ag.Module):\n{body}class Sub(Net):\n    depth: int = 1", scope)
    assert scope["Net"](3).weight.shape == (3,)
    assert scope["Sub"](3).weight.shape == (3,)


@pytest.mark.parametrize("bases", [(Module, Act), (Act, Module)])
def test_a_protocol_among_the_bases(bases: tuple[Any, ...]) -> None:
    """It asks for members and gives no `__init__`; nothing else of the module changes."""

    class Scale(*bases):
        size: Any
        factor: float = 2.0

        def __call__(self, x: Any) -> Any:
            return self.factor * x

    class Bare(*bases):
        size: int = 0

    class WithInit(Act, Own):
        size: int = 0

        def __call__(self, x: Any) -> Any:
            return x

    scale = Scale(jnp.ones(2))
    assert isinstance(scale, Act)
    assert isinstance(scale, Module)
    assert not isinstance(Act, Module)
    assert jax.jit(lambda module, x: module(x))(scale, 3.0) == 6.0
    assert Bare().size == 0
    assert WithInit(3).weight.shape == (3,)


@pytest.mark.parametrize("bases", [(Module, Sizes), (Sizes, Module)])
def test_a_dataclass_among_the_bases_does_not_compare_for_the_module(bases: tuple[Any, ...]) -> None:
    """Its `==` and `repr` know its own fields only, and it leaves no `hash`."""

    class Net(*bases):
        weight: Any

    assert Net(1, jnp.ones(2)) == Net(1, jnp.ones(2)) != Net(1, jnp.zeros(2))
    assert hash(Net(1, jnp.ones(2))) == hash(Net(1, jnp.ones(2)))
    assert repr(Net(1, jnp.ones(2))) == "Net(width=1, weight=f32[2])"


def test_what_the_author_of_a_dataclass_wrote_stays() -> None:
    """Only what `dataclasses` wrote is taken back."""

    class Told(Sizes):
        def __repr__(self) -> str:
            return "told"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Told)

        def __hash__(self) -> int:
            return 7

    class Net(Told, Module):
        weight: Any

    assert (repr(Net(1, jnp.ones(2))), hash(Net(1, jnp.ones(2)))) == ("told", 7)
    assert Net(1, jnp.ones(2)) == Net(2, jnp.zeros(2))


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"eq": False}])
def test_a_module_is_no_dataclass_twice(options: dict[str, bool]) -> None:
    """The decorator would lose defaults and what `ag.field` says: it is refused in the class statement."""
    with pytest.raises(FieldError, match="is a dataclass already"):

        @dataclasses.dataclass(**options)
        class Net(Module):
            weight: Any
