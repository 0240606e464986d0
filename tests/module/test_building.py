"""Assignments to finished parts of a module whose `__init__` runs: as in ordinary Python, and unseen from outside."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel.module import FieldError, FrozenError, Module, TieError, field, ties


class Child(Module):
    weight: Any
    bias: Any = None

    def __call__(self, x: Any) -> Any:
        return x * self.weight


class Holder(Module):
    x: Any


class PlainChild:
    """What a `Child` would be if modules could change."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self.weight, self.bias = weight, bias


class PlainHolder:
    """What a `Holder` would be."""

    def __init__(self, x: Any) -> None:
        self.x = x


class Owner(Module):
    a: Any
    b: Any
    c: Any

    def __init__(self, parts: list[Any], then: Callable[[Any], Any]) -> None:
        self.a, self.b, self.c = parts
        then(self)


def made(layout: Any, children: list[Any], hold: Callable[[Any], Any]) -> Any:
    """The objects that a drawn layout describes."""
    match layout:
        case int():
            return children[layout % len(children)]
        case ("hold", inner):
            return hold(made(inner, children, hold))
        case dict():
            return {key: made(inner, children, hold) for key, inner in layout.items()}
        case _:
            return type(layout)(made(inner, children, hold) for inner in layout)


def steps_to_children(layout: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """How each child of a layout is reached: names and indices."""
    match layout:
        case int():
            return [path]
        case ("hold", inner):
            return steps_to_children(inner, (*path, "x"))
        case dict():
            return [p for key, inner in layout.items() for p in steps_to_children(inner, (*path, key))]
        case _:
            return [p for i, inner in enumerate(layout) for p in steps_to_children(inner, (*path, i))]


def walked(value: Any, path: tuple[Any, ...]) -> Any:
    """What stands at the end of such a path."""
    for step in path:
        value = value[step] if isinstance(value, list | tuple | dict) else getattr(value, step)
    return value


def finished(value: Any, known: dict[int, Any]) -> Any:
    """The modules that plain objects describe, one for each object."""
    if isinstance(value, PlainChild | PlainHolder):
        if id(value) not in known:
            inside = [finished(each, known) for each in vars(value).values()]
            known[id(value)] = (Child if isinstance(value, PlainChild) else Holder)(*inside)
        return known[id(value)]
    if isinstance(value, dict):
        return {key: finished(each, known) for key, each in value.items()}
    return type(value)(finished(each, known) for each in value) if isinstance(value, list | tuple) else value


layouts = st.recursive(
    st.integers(0, 2),
    lambda inner: st.one_of(
        st.tuples(st.just("hold"), inner),
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=2).map(tuple),
        st.fixed_dictionaries({"k": inner, "l": inner}),
    ),
    max_leaves=4,
)


@settings(max_examples=40)
@given(st.lists(layouts, min_size=3, max_size=3), st.booleans(), st.data())
def test_assignments_are_those_of_ordinary_python(layout: list[Any], is_passed: bool, data: st.DataObject) -> None:
    """A model whose `__init__` assigns to parts of parts is the model that the same lines make of mutable objects.

    Same values, same ties, and what was passed to `__init__` is as it was.
    """
    arrays = [jnp.full(2, float(i)) for i in range(8)]
    paths = [("abc"[p[0]], *p[1:]) for p in steps_to_children(layout)]
    some = st.tuples(st.sampled_from(paths), st.sampled_from(["weight", "bias"]))
    plan = data.draw(st.lists(st.tuples(some, st.integers(6, 7) | st.none() | some), min_size=1, max_size=4))

    def perform(owner: Any) -> None:
        for (path, name), what in plan:
            value = walked(owner, (*what[0], what[1])) if isinstance(what, tuple) else what
            value = arrays[value] if isinstance(value, int) else value
            # A module without any array is tied to nothing: weights stay arrays, so that ties do not hang on the order.
            if value is not None or name == "bias":
                setattr(walked(owner, path), name, value)

    def built(make: Callable[..., Any], hold: Callable[..., Any]) -> list[Any]:
        children = [make(arrays[2 * i], arrays[2 * i + 1]) for i in range(3)]
        return [made(each, children, hold) for each in layout]

    class Mutable:
        a: Any
        b: Any
        c: Any

    plain = Mutable()
    plain.a, plain.b, plain.c = built(PlainChild, PlainHolder)
    perform(plain)
    known: dict[int, Any] = {}
    wanted = Owner([finished(each, known) for each in (plain.a, plain.b, plain.c)], lambda _: None)

    parts = built(Child, Holder)
    before = jax.tree.map(lambda x: x, parts)
    if is_passed:
        model = Owner(parts, perform)
    else:

        def build_and_perform(owner: Any) -> None:
            owner.a, owner.b, owner.c = built(Child, Holder)
            perform(owner)

        model = Owner([None, None, None], build_and_perform)
    assert jax.tree.structure(parts) == jax.tree.structure(before)
    assert all(x is y for x, y in zip(jax.tree.leaves(parts), jax.tree.leaves(before), strict=True))
    for each in ("a", "b", "c"):
        for path in steps_to_children(layout["abc".index(each)], (each,)):
            for name in ("weight", "bias"):
                assert walked(model, (*path, name)) is walked(wanted, (*path, name))
    assert len(jax.tree.leaves(model)) == len(jax.tree.leaves(wanted))
    assert ties(model) == ties(wanted)
    assert model == wanted


def test_a_part_held_twice_is_tied_as_if_it_had_been_assigned_before() -> None:
    """`a.weight = b.weight`, where a list holds `a` twice and `b` once, gives the ties of finished parts."""
    layout: list[Any] = [0, 2, ("hold", [0, 2, 0])]

    def then(self: Any) -> None:
        self.a.weight = self.b.weight

    weight = jnp.full(2, 4.0)

    def parts(first: jax.Array) -> list[Any]:
        children = [Child(first, jnp.zeros(2)), None, Child(weight, jnp.ones(2))]
        return [made(each, children, Holder) for each in layout]

    model, wanted = Owner(parts(jnp.ones(2)), then), Owner(parts(weight), lambda _: None)
    assert ties(model.c) == ties(wanted.c)
    assert model == wanted


class Tied(Module):
    embed: Child
    head: Child

    def __init__(self, embed: Any = None) -> None:
        self.embed = Child(jnp.arange(3.0)) if embed is None else embed
        self.head = Child(jnp.zeros(3), jnp.ones(3))
        self.head.weight = self.embed.weight


def test_a_head_is_tied_to_an_embedding_by_assigning_its_weight() -> None:
    """`self.head.weight = self.embed.weight` makes one leaf, one gradient and one entry of `ag.ties`."""
    model = Tied()
    assert [repr(tie) for tie in ties(model)] == ["head.weight = embed.weight"]
    assert len(jax.tree.leaves(model)) == 2
    grads = jax.grad(lambda m: m.head(m.embed(2.0)).sum())(model)
    np.testing.assert_allclose(grads.embed.weight, 4 * jnp.arange(3.0))
    assert model == jax.tree.map(lambda x: x, model)


class Outer(Module):
    inner: Any

    def __init__(self, inner: Any, then: Callable[[Any], Any]) -> None:
        self.inner = inner
        then(self)


def test_a_tie_inside_of_a_finished_part_is_held_by_the_part() -> None:
    """Two places of one part that an outer `__init__` makes the same are tied in the part, which keeps the tie."""

    def then(self: Any) -> None:
        self.inner.x[0].weight = self.inner.x[1].weight

    outside = Holder([Child(jnp.ones(2)), Child(jnp.zeros(2))])
    model = Outer(outside, then)
    assert [repr(tie) for tie in ties(model.inner)] == ["x[1].weight = x[0].weight"]
    assert ties(outside) == ()


def test_a_parts_own_tie_stays() -> None:
    """Either place of a tie stands for the one leaf, as for `ag.at`: assigning to one changes both."""
    tied = Tied()
    for name in ("embed", "head"):

        def then(self: Any, name: str = name) -> None:
            getattr(self.inner, name).weight = jnp.full(3, 7.0)

        model = Outer(tied, then)
        assert [repr(tie) for tie in ties(model.inner)] == ["head.weight = embed.weight"]
        assert model.inner.head.weight is model.inner.embed.weight
        assert model.inner == ag.at(tied)[name].weight.set(jnp.full(3, 7.0))
    assert float(tied.embed.weight[1]) == 1.0


def test_a_place_that_is_computed_is_not_assigned() -> None:
    """A weight that is the transpose of another one has no value of its own."""
    tied = ag.tie(Tied(), "head.bias", "embed.weight", via=jnp.negative)

    def then(self: Any) -> None:
        self.inner.head.bias = jnp.ones(3)

    with pytest.raises(TieError, match="function of another"):
        Outer(tied, then)


class Checked(Module):
    weight: Any = field(converter=jnp.asarray)
    bias: Any
    size: int = field(static=True, default=2)

    def __check_init__(self) -> None:
        if self.weight.shape != (self.size,) or self.bias.shape != (self.size,):
            raise ValueError("weight and bias are to have one size")


def test_checks_run_when_all_is_assigned() -> None:
    """A part's `__check_init__` sees what the outer `__init__` left, once; an error says whose doing it was.

    The part's converters are called, and its static fields can be assigned.
    """

    def grow(self: Any) -> None:
        self.inner[0].weight = [1.0, 2.0, 3.0]
        self.inner[0].size = 3
        self.inner[0].bias = np.ones(3)

    part = Checked(jnp.ones(2), jnp.ones(2))
    model = Outer([part], grow)
    assert isinstance(model.inner[0].weight, jax.Array)
    assert (model.inner[0].size, part.size) == (3, 2)

    def break_it(self: Any) -> None:
        self.inner[0].weight = [1.0, 2.0, 3.0]

    with pytest.raises(ValueError, match="one size") as caught:
        Outer([part], break_it)
    assert caught.value.__notes__ == [
        "`__check_init__` of Checked ran again: `__init__` of Outer assigned to a part of `inner`"
    ]
    Outer([part], lambda self: None)


class Doubling(Module):
    weight: Any = field(converter=lambda w: 2 * w)

    def __check_init__(self) -> None:
        if float(self.weight[0]) < 0:
            self.weight = -self.weight  # type: ignore[misc]


class Converting(Module):
    x: Any = field(converter=lambda part: Doubling(part.weight))


def test_converters_run_once_and_checks_do_not_assign() -> None:
    """A part in several places is converted once; a `__check_init__` that runs again cannot assign to its module."""

    def then(self: Any) -> None:
        self.a.weight = jnp.ones(2)

    converting = Converting(Doubling(jnp.zeros(2)))
    part = converting.x
    model = Owner([part, converting, Holder([part])], then)
    assert [float(x.weight[0]) for x in (model.a, model.b.x, model.c.x[0])] == [2.0] * 3
    assert len(jax.tree.leaves(model)) == 1

    def negative(self: Any) -> None:
        self.a.weight = -jnp.ones(2)

    with pytest.raises(FrozenError, match="changed copy"):
        Owner([part, None, None], negative)


class Base(Module):
    part: Child

    def __init__(self) -> None:
        self.part = Child(jnp.ones(2))
        self.part.bias = jnp.zeros(2)


class Sub(Base):
    other: Child

    def __init__(self) -> None:
        super().__init__()
        self.part.weight = jnp.full(2, 5.0)
        self.other = Child(self.part.weight)


class AfterFields(Module):
    part: Child
    last: Child

    def __post_init__(self) -> None:
        self.last.weight = self.part.weight


def test_inheritance_and_written_inits() -> None:
    """It works in an `__init__` that calls its base's, and in a `__post_init__`."""
    sub = Sub()
    assert float(sub.part.weight[0]) == 5.0
    assert sub.part.bias is not None
    assert [repr(tie) for tie in ties(sub)] == ["other.weight = part.weight"]
    parts = Child(jnp.ones(2)), Child(jnp.zeros(2))
    assert [repr(tie) for tie in ties(AfterFields(*parts))] == ["last.weight = part.weight"]
    assert float(parts[1].weight[0]) == 0.0


def test_a_parts_list_is_assigned_and_not_changed() -> None:
    """Lists of `self` are Python's own; that of a finished part is replaced, and refuses to change with that advice."""

    class Grows(Module):
        own: list[Any]
        part: Holder

        def __init__(self, how: Callable[[Any], Any]) -> None:
            self.own = []
            self.own.append(jnp.ones(1))
            self.part = Holder([Child(jnp.ones(2))])
            how(self)

    def assign(self: Any) -> None:
        self.part.x = [*self.part.x, Child(jnp.zeros(2))]
        self.part.x = [*self.part.x, Child(self.own[0])]

    model = Grows(assign)
    assert [c.weight.shape for c in model.part.x] == [(2,), (2,), (1,)]
    assert [repr(tie) for tie in ties(model)] == ["part.x[2].weight = own[0]"]
    for change in (lambda self: self.part.x.append(1), lambda self: self.part.x.__setitem__(0, 1)):
        with pytest.raises(FrozenError, match=r"self\.part\.x = value"):
            Grows(change)


class WithDefault(Module):
    part: Child = Child(np.ones(2))

    def __init__(self) -> None:
        self.part.weight = jnp.zeros(2)


def test_a_default_of_a_class_stays() -> None:
    """A part that is a default of its field is copied for the instance."""
    assert float(WithDefault().part.weight[0]) == 0.0
    assert float(WithDefault.part.weight[0]) == 1.0


def test_methods_of_a_part_go_along() -> None:
    """A method that is held, as it is or in a finished module, is that of the changed part."""

    def then(self: Any) -> None:
        self.a.weight = jnp.full(2, 3.0)

    child = Child(jnp.ones(2))
    model = Owner([child, child.__call__, Holder(child.__call__)], then)
    assert [float(f(1.0)[0]) for f in (model.a, model.b, model.c.x)] == [3.0] * 3
    assert len(jax.tree.leaves(model)) == 1


class Taker(Module):
    kept: Any

    def __init__(self, given: Any, keep: bool) -> None:
        self.kept = given if keep else None
        given.weight = jnp.full(2, 9.0)


def test_only_the_module_that_is_being_built_changes() -> None:
    """An `__init__` that is given a part of another module changes its own copy, or is told that it has none."""
    seen = []

    def then(self: Any) -> None:
        seen.append(Taker(self.inner, keep=True))

    child = Child(jnp.ones(2))
    assert Outer(child, then).inner is child
    assert float(seen[0].kept.weight[0]) == 9.0
    with pytest.raises(FrozenError, match="write it from `self`"):
        Outer(child, lambda self: Taker(self.inner, keep=False))


def test_what_no_module_holds_stays_frozen() -> None:
    """A part before it is assigned, an old copy in a variable, and everything after `__init__` refuse to change."""

    class Early(Module):
        part: Any

        def __init__(self) -> None:
            part = Child(jnp.ones(2))
            part.weight = jnp.zeros(2)  # type: ignore[misc]
            self.part = part

    with pytest.raises(FrozenError, match="write it from `self`"):
        Early()

    def by_an_old_name(self: Any) -> None:
        old = self.inner
        old.weight = jnp.zeros(2)
        old.bias = jnp.zeros(2)

    with pytest.raises(FrozenError, match="write it from `self`"):
        Outer(Child(jnp.ones(2)), by_an_old_name)

    class Late(Module):
        part: Any

        def __check_init__(self) -> None:
            self.part.weight = jnp.zeros(2)

    with pytest.raises(FrozenError, match="changed copy"):
        Late(Child(jnp.ones(2)))
    assert not hasattr(Child(jnp.ones(2)), "nothing")
    with pytest.raises(FrozenError, match="changed copy"):
        Outer(Child(jnp.ones(2)), lambda self: setattr(self.inner, "nothing", 1))


def test_a_module_cannot_stand_in_its_own_part() -> None:
    """`self.inner.bias = self` would be a tree without end."""
    with pytest.raises(FieldError, match="not finished"):
        Outer(Child(jnp.ones(2)), lambda self: setattr(self.inner, "bias", self))


@pytest.mark.parametrize(
    "held",
    [lambda self: [self], lambda self: {"x": (1, self)}, Child],
    ids=["list", "tuple in a dict", "part"],
)
@pytest.mark.parametrize("use", [repr, jax.tree.leaves, ag.count_params])
def test_a_module_cannot_stand_in_what_it_holds(held: Any, use: Any) -> None:
    """`self.items = [self]` would be a tree without end; whoever looks at it first is told so, and not of recursion."""

    class Holder(ag.Module):
        items: Any

        def __init__(self) -> None:
            self.items = held(self)

    holder = Holder()
    for _ in range(2):
        with pytest.raises(FieldError, match="a module cannot stand in itself"):
            use(holder)


def test_deleting_in_an_init() -> None:
    """An attribute of the module that is being built can be deleted and set anew; one of a part is to be None."""

    def again(self: Any) -> None:
        del self.inner
        self.inner = 3

    assert Outer(1, again).inner == 3
    with pytest.raises(FrozenError, match=r"put None there: self\.part\.bias = None"):
        Outer(Child(jnp.ones(2), jnp.ones(2)), lambda self: delattr(self.inner, "bias"))


def test_threads_build_at_once() -> None:
    """Modules that hold one and the same part are built in several threads: each has its own copy of it."""
    shared = Holder([Child(jnp.ones(2)), Child(jnp.ones(2))])
    gate, models = threading.Barrier(8), {}

    def build(i: int) -> None:
        def then(self: Any) -> None:
            gate.wait()
            self.inner.x[1].weight = i
            self.inner.x[0].weight = self.inner.x[1].weight

        models[i] = Outer(shared, then)

    threads = [threading.Thread(target=build, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(m.inner.x[0].weight, m.inner.x[1].weight) for _, m in sorted(models.items())] == [(i, i) for i in range(8)]
    assert copy.deepcopy(shared) == Holder([Child(jnp.ones(2)), Child(jnp.ones(2))])


def test_under_transformations() -> None:
    """A model may be built, with assignments, inside of `jit`, and of parts that came out of one."""

    @jax.jit
    def build(weight: jax.Array) -> Tied:
        return Tied(Child(weight))

    model = build(jnp.ones(3))
    assert [repr(tie) for tie in ties(model)] == ["head.weight = embed.weight"]
    again = Tied(jax.jit(lambda m: m)(Child(jnp.ones(3))))
    assert again == Tied(Child(jnp.ones(3)))


class Probing(Module):
    weight: jax.Array
    items: list[Any]
    size: int

    def __init__(self, probe: Any) -> None:
        self.weight = jnp.ones(3)
        self.items = [jnp.ones(2)]
        self.size = len(probe(self))
        self.weight = jnp.zeros(3)

    def scaled(self, x: Any) -> Any:
        return self.weight * x

    @ag.jit
    def compiled(self, x: Any) -> Any:
        return self.weight * x


@pytest.mark.parametrize(
    "probe",
    [
        lambda self: self.compiled(2.0),
        lambda self: ag.jit(self.scaled)(2.0),
        lambda self: jax.vmap(lambda m, x: m.scaled(x), in_axes=(None, 0))(self, jnp.ones(3)),
        lambda self: jax.tree.map(lambda x: 2 * x, self).weight,
        lambda self: "xxx" if repr(self) == "Probing(weight=f32[3], items=[f32[2]])" else "",
    ],
)
def test_an_init_may_use_what_it_has_set_so_far(probe: Any) -> None:
    """A module whose `__init__` runs is a pytree of its attributes as they stand; nothing of that is kept."""
    probing = Probing(probe)
    assert probing.size == 3
    assert not jax.jit(lambda m: m)(probing).weight.any()
    with pytest.raises(FieldError, match="before its `__init__` is over"):
        Probing(ties)
