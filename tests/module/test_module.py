"""Classes of modules: fields, `__init__`, inheritance, abstract classes, immutability, and the text of errors."""

import contextlib
import dataclasses
import functools
import inspect
from abc import abstractmethod
from collections import OrderedDict
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from aerogel.module import AbstractField, BoundMethod, FieldError, FrozenError, Module, StructureError, field

T = TypeVar("T")


class Linear(Module):
    weight: jax.Array
    bias: jax.Array | None = None
    n_in: int = field(default=3, kw_only=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.weight @ x

    def scaled(self, x: jax.Array, by: float) -> jax.Array:
        return by * self(x)


def half(x: Any) -> Any:
    """A function that is a default: `own.act` must not bind it."""
    return x / 2


class Own(Module):
    items: list[Any]
    act: Any = half
    count: int = 0
    cache: dict[str, Any] = field(default_factory=dict)

    def __init__(self, n: int) -> None:
        self.items = []
        for _ in range(n):
            self.items.append(Linear(jnp.ones((2, 3))))
        self.count = n


def test_written_init_is_that_of_a_dataclass() -> None:
    """Positional, keyword-only and default arguments are as `dataclasses` has them; so are its fields."""
    one = Linear(jnp.ones((2, 3)), n_in=4)
    assert (one.bias, one.n_in) == (None, 4)
    assert [f.name for f in dataclasses.fields(one)] == ["weight", "bias", "n_in"]
    with pytest.raises(TypeError, match="positional"):
        Linear(jnp.ones(2), None, 3)  # type: ignore[misc]


def test_own_init_may_build_its_containers_and_leave_out_defaults() -> None:
    """Inside `__init__` a list is a list; after it, it is frozen, and fields without a value have their defaults."""
    own = Own(2)
    assert own.items == [Linear(jnp.ones((2, 3)))] * 2
    assert own.act is half, "a function that is a default is no method"
    assert own.cache == {}
    assert len(jax.tree.leaves(own)) == 2
    with pytest.raises(FrozenError, match=r"model\.items"):
        own.items.append(1)
    with pytest.raises(FrozenError, match=r"\.items\.set"):
        jax.tree.map(lambda x: x, own).items.append(1)
    with pytest.raises(FrozenError):
        own.cache["k"] = 1


@pytest.mark.parametrize("change", [lambda m: setattr(m, "n_in", 4), lambda m: delattr(m, "n_in")])
def test_nothing_changes_after_init(change: Any) -> None:
    """Setting and deleting raise, on new modules and on those that came out of a transformation."""
    for module in (Linear(jnp.ones(3)), jax.tree.map(lambda x: x, Linear(jnp.ones(3)))):
        with pytest.raises(FrozenError, match="after `__init__`") as caught:
            change(module)
        assert isinstance(caught.value, dataclasses.FrozenInstanceError)
        assert module.n_in == 3


def test_every_mutator_of_containers_is_refused() -> None:
    """No method of list or dict that changes it gets past; each one that exists is tried."""

    class Holder(Module):
        numbers: list[int]
        named: dict[str, int]

    holder = Holder([3, 1, 2], {"k": 3})
    for frozen in (holder.numbers, holder.named):
        base = type(frozen).__mro__[1]
        harmless = {"__new__", "__getattribute__", "__class_getitem__", "__init_subclass__"}
        before = base(frozen)
        for name in set(vars(base)) - harmless:
            arguments = {"__setitem__": (0, 1), "insert": (0, 1), "update": ({"k": 1},), "setdefault": ("k", 1)}
            arguments |= {"__init__": ([9],)} if base is list else {"__init__": ({"k": 9},)}
            arguments |= {"extend": ([1],), "__iadd__": ([1],), "__ior__": ({"k": 1},), "__imul__": (2,)}
            arguments |= dict.fromkeys(["append", "remove", "__delitem__"], (0,))
            with contextlib.suppress(FrozenError, TypeError, KeyError, ValueError, IndexError):
                getattr(frozen, name)(*arguments.get(name, ()))
            assert base(frozen) == before, f"{base.__name__}.{name} changed a frozen one"


class Base(Module):
    a: int
    log: list[str] = field(default_factory=list)

    def __init__(self, a: int) -> None:
        self.a = a
        self.log = ["Base"]

    def __check_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


class Child(Base):
    b: int = 7

    def __check_init__(self) -> None:
        if self.b < self.a:
            raise ValueError("b is too small")


class Grandchild(Child):
    def __init__(self, a: int) -> None:
        super().__init__(a)
        self.b = 2 * a


def test_what_is_made_with_the_class_of_a_container_is_pythons_own() -> None:
    """`type(items)(...)` is how Python programs copy what they were given, and may change the copy."""

    class Holder(Module):
        numbers: list[Any]
        named: dict[str, Any]
        ordered: Any
        pair: Any

    x = jnp.ones(2)
    holder = Holder([1, x], {"k": x}, OrderedDict(b=x, a=1), (x, "name"))
    values = holder.numbers, holder.named, holder.ordered, holder.pair
    for value, wanted in zip(values, (list, dict, OrderedDict, tuple), strict=True):
        made = type(value)(value)
        assert type(made) is wanted
        assert made == value


def test_inheritance_is_pythons() -> None:
    """A class without `__init__` has its parent's, with defaults for its own fields; `super().__init__` works."""
    assert (Child(3).a, Child(3).b, Child(3).log) == (3, 7, ["Base"])
    assert (Grandchild(4).a, Grandchild(4).b) == (4, 8)


def test_every_check_in_the_mro_runs() -> None:
    """A subclass's check adds to those of its bases."""
    with pytest.raises(ValueError, match="negative"):
        Child(-1)
    with pytest.raises(ValueError, match="too small"):
        Child(9)


class AbstractShape(Module):
    sides: AbstractField[int]

    @abstractmethod
    def area(self) -> jax.Array: ...


class Square(AbstractShape):
    side: jax.Array

    @property
    def sides(self) -> int:  # type: ignore[override]
        return 4

    def area(self) -> jax.Array:
        return self.side**2


def test_abstract_classes_and_fields() -> None:
    """What lacks a method or a field cannot be built; a property is as good as a field."""

    class NoSides(AbstractShape):
        def area(self) -> jax.Array:
            return jnp.ones(())

    classes: tuple[Any, ...] = (AbstractShape, NoSides)
    for cls in classes:
        with pytest.raises(TypeError, match="abstract"):
            cls()
    square: Any = Square
    assert square(jnp.ones(()) * 3).area() == 9

    class WithField(NoSides):
        sides: int

    assert WithField(5).sides == 5


def test_generics_class_methods_and_properties() -> None:
    """`Box[int](...)` is a `Box`; class and static methods and properties are Python's."""

    class Box(Module, Generic[T]):
        item: T

        @classmethod
        def of(cls, item: T) -> "Box[T]":
            return cls(item)

        @staticmethod
        def name() -> str:
            return "box"

        @property
        def twice(self) -> tuple[T, T]:
            return self.item, self.item

    box = Box[int](3)
    assert box == Box.of(3)
    assert (box.twice, box.name()) == ((3, 3), "box")


def test_fields_convert_hold_structure_or_data() -> None:
    """A converter runs on assignment and on defaults; `static` keeps NumPy's arrays; `dynamic` makes arrays."""

    class Mixed(Module):
        a: Any = field(converter=jnp.asarray)
        b: Any = field(static=True)
        c: Any = field(dynamic=True, default=0.5)

    one = Mixed([1, 2], np.arange(3))
    assert [str(p[-1]) for p, _ in jax.tree.leaves_with_path(one)] == [".a", ".c"]
    assert jax.tree.structure(one) == jax.tree.structure(Mixed([3, 4], np.arange(3), 2))
    assert jax.tree.structure(one) != jax.tree.structure(Mixed([3, 4], np.arange(4)))

    class OwnMixed(Mixed):
        def __init__(self) -> None:
            self.a = 1
            self.b = "x"
            assert isinstance(self.a, jax.Array)

    assert len(jax.tree.leaves(OwnMixed())) == 2


def test_post_init_and_init_vars() -> None:
    """`__post_init__` sets what `__init__` leaves out."""

    class Post(Module):
        a: int
        start: dataclasses.InitVar[int]
        b: list[int] = field(init=False)

        def __post_init__(self, start: int) -> None:
            self.b = [start]
            self.b.append(self.a)

    assert Post(1, 5).b == [5, 1]
    with pytest.raises(FrozenError):
        Post(1, 5).b.append(3)


def test_bound_methods() -> None:
    """A method is Python's own; held by another module it is a pytree with its module's leaves."""
    linear = Linear(jnp.ones((2, 3)))
    assert type(linear.scaled).__name__ == "method"

    class Holder(Module):
        f: Any

    holder = Holder(linear.scaled)
    assert isinstance(holder.f, BoundMethod)
    assert [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(holder)] == [".f.__self__.weight"]
    np.testing.assert_array_equal(holder.f(jnp.ones(3), 2.0), linear.scaled(jnp.ones(3), 2.0))
    doubled = jax.tree.map(lambda w: 2 * w, holder)
    np.testing.assert_array_equal(doubled.f(jnp.ones(3), 2.0), linear.scaled(jnp.ones(3), 4.0))
    np.testing.assert_array_equal(jax.vmap(linear)(jnp.ones((5, 3))), 3 * jnp.ones((5, 2)))
    np.testing.assert_array_equal(jax.jit(linear)(jnp.ones(3)), 3 * jnp.ones(2))


class Record(NamedTuple):
    data: Any
    name: Any


def test_nodes_of_others_are_split() -> None:
    """Arrays of an Equinox module or a named tuple are leaves, its functions structure; it comes back as it was."""

    class Holder(Module):
        net: Any
        record: Any

    holder = Holder(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), Record(jnp.ones(2), "name"))
    assert len(jax.tree.leaves(holder)) == 5
    out = jax.jit(lambda h: (h, h.net(jnp.ones(2)), h.record.data))(holder)
    assert type(out[0].net) is eqx.nn.MLP
    assert out[0].record.name == "name"
    odd = jax.tree.map(lambda _: None, holder)
    assert jax.tree.structure(jax.tree.map(lambda _: 0, odd, is_leaf=lambda x: x is None)) == jax.tree.structure(holder)


W = jnp.ones(2)


def test_a_tuple_with_nodes_without_leaves_stays_a_tuple() -> None:
    """Optax maps over what it stored beside what it made: the states of its chains hold empty named tuples."""

    class Trainer(Module):
        weight: Any
        state: Any

    transform = optax.MultiSteps(optax.chain(optax.identity(), optax.adam(0.1)), 2)
    trainer = Trainer(W, transform.init(W))

    @jax.jit
    def step(trainer: Trainer) -> Trainer:
        updates, state = transform.update(trainer.weight, trainer.state, trainer.weight)
        return Trainer(trainer.weight + updates, state)

    new = step(step(trainer))
    assert jax.tree.structure(new) == jax.tree.structure(trainer)
    np.testing.assert_allclose(new.weight, 0.9, rtol=1e-5)
    assert type(Linear((W, ())).weight) is tuple


@pytest.mark.parametrize(
    "held",
    [
        (jnp.zeros(3), eqx.nn.MLP(1, 1, 1, 0, key=jax.random.key(0)), Record(W, "name")),
        Record(W, "name"),
        (1, Record(W, "name")),
        Record("name", Record(W, 2)),
        Record(1, Linear(W)),
        Record((W, 1), Record(1, 2)),
    ],
    ids=["with Equinox", "record", "record in a tuple", "record in a record", "module in a record", "deeper"],
)
def test_nodes_of_others_are_split_wherever_they_stand_and_may_be_tied(held: Any) -> None:
    """In tuples and in each other too; an array in one that also stands elsewhere is one leaf with one gradient."""

    def arrays_in(tree: Any) -> list[Any]:
        return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]

    class Pair(Module):
        one: Any
        other: Any

    for one, number in ((jnp.zeros(2), len(arrays_in(held)) + 1), (W, len(arrays_in(held)))):
        pair = Pair(one, held)
        assert len(jax.tree.leaves(pair)) == len(arrays_in(pair)) == number
        assert jax.tree.structure(jax.jit(lambda p: p)(pair)) == jax.tree.structure(pair)
    grads = jax.grad(lambda p: sum(jnp.sum(x) for x in (p.one, *arrays_in(p.other))))(pair)
    np.testing.assert_array_equal(grads.one, [2, 2])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Linear([1, bytearray()]), StructureError, r"Linear.weight\[1\]"),  # type: ignore[arg-type]
        (lambda: jax.tree.leaves(Static(jnp.ones(2))), StructureError, "np.asarray"),
        (lambda: Undeclared(), FieldError, "declare it in the class: typo: int"),
        (lambda: Unset(), FieldError, "`x` without a value"),
        (lambda: OwnMethod(), FieldError, "method of itself"),
        (lambda: field(static=True, dynamic=True), FieldError, "either structure or data"),
        (lambda: Dynamic("text"), StructureError, "data only"),
        (
            lambda: type("Named", (Module,), {"__annotations__": {"_form": int}}),
            FieldError,
            "choose another name: form",
        ),
        (lambda: type("Named", (Module,), {"_checks": lambda self: 1}), FieldError, "choose another name: checks"),
    ],
)
def test_mistakes_are_named(make: Any, error: type[Exception], text: str) -> None:
    """Each mistake says where it is and what to write."""
    with pytest.raises(error, match=text):
        make()


class Static(Module):
    x: Any = field(static=True)


class Dynamic(Module):
    x: Any = field(dynamic=True)


class Undeclared(Module):
    def __init__(self) -> None:
        self.typo = 1


class Unset(Module):
    x: int

    def __init__(self) -> None:
        pass


class OwnMethod(Module):
    f: Any

    def __init__(self) -> None:
        self.f = self.method

    def method(self) -> None:
        """Does nothing."""


class Shown(Module):
    x: Any


def test_repr_of_a_partial_has_no_addresses() -> None:
    """Its function by name and its arguments as everything else, whether they are structure or data."""
    assert repr(Shown(functools.partial(jnp.sum, axis=0))) == "Shown(x=partial(sum, axis=0))"
    assert repr(Shown(jax.tree_util.Partial(max, jnp.ones(2), 3))) == "Shown(x=Partial(max, f32[2], 3))"


def test_repr_of_many_levels_ends() -> None:
    """Python's stack does not, and nobody reads so far."""

    class Holder(Module):
        inner: Any

    node = Holder(jnp.ones(2))
    for _ in range(600):
        node = Holder(node)
    assert repr(node).count("Holder") < 200
    assert "..." in repr(node)


def test_repr_reads_like_code() -> None:
    """Arrays by dtype and shape, functions by name, a line per field where one line is too long."""
    assert repr(Linear(jnp.ones((2, 3), jnp.bfloat16))) == "Linear(weight=bf16[2,3], bias=None, n_in=3)"
    assert repr(Linear(jax.random.key(0))) == "Linear(weight=key<fry>[], bias=None, n_in=3)"
    held = Shown(Record(Linear(jnp.ones(2)).scaled, jnp.ones(2)))
    assert repr(held) == "Shown(x=Record(data=Linear(weight=f32[2], bias=None, n_in=3).scaled, name=f32[2]))"
    assert repr(Own(3)) == "\n".join(
        [
            "Own(",
            "  items=[",
            *["    Linear(weight=f32[2,3], bias=None, n_in=3),"] * 3,
            "  ],",
            "  act=half,",
            "  count=3,",
            "  cache={},",
            ")",
        ]
    )


def test_a_class_tells_its_arguments() -> None:
    """`inspect.signature`, and with it `help` and editors, give those of `__init__`, written, own or inherited."""

    class Written(Module):
        size: int
        scale: float = 2.0

    class Inherits(Written):
        """With a docstring."""

    class Own(Module):
        size: int

        def __init__(self, size: int, *, twice: bool = False) -> None:
            self.size = 2 * size if twice else size

    assert list(inspect.signature(Written).parameters) == ["size", "scale"]
    assert inspect.signature(Inherits) == inspect.signature(Written)
    assert list(inspect.signature(Own).parameters) == ["size", "twice"]
    assert Written.__doc__ is None
    assert Inherits.__doc__ == "With a docstring."
