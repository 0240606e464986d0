"""`Module`: a class of immutable objects that are pytrees, whose leaves are arrays and nothing else."""

import copy
import dataclasses
import inspect
from abc import ABCMeta, update_abstractmethods
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, dataclass_transform

import jax

from . import _boundary
from ._building import assign, running, settle
from ._class import (
    check_class,
    default_of,
    drop_bound_defaults,
    hidden_by_fields,
    require,
    shield,
    take_back,
    taken_out,
)
from ._compare import are_equal, hash_of
from ._decide import default_modules
from ._display import show
from ._errors import FieldError, FrozenError
from ._field import field, is_number, spec_of
from ._form import BUILDING, MISSING, Form, new, put
from ._freeze import UNTOUCHED, freeze
from ._init import converter_of, give_init, written_check
from ._kinds import KINDS, Kind
from ._late import Late, is_lazy
from ._pickling import reduced

# A class may inherit from protocols too, so the metaclass has to be one of theirs.
_ProtocolMeta: type[ABCMeta] = type(Protocol)  # pyright: ignore[reportAssignmentType]


# Not `frozen_default`: checkers would then refuse `self.weight = ...` in a class's own `__init__` too.
@dataclass_transform(field_specifiers=(field, dataclasses.field))
class ModuleMeta(_ProtocolMeta):
    """Makes classes of modules: declares their fields, writes their `__init__`, finishes their instances."""

    _fields_in_order: tuple[str, ...]
    _static_fields: frozenset[str]
    _number_fields: frozenset[str]
    _converters: dict[str, Callable[[Any], Any] | None]
    _checks: tuple[Callable[[Any], None], ...]
    _defaults: dict[str, tuple[Any, Callable[[], Any] | None]]
    _is_finished: Callable[[Any], bool]
    _construction: tuple[bool, bool, tuple[Callable[[Any], None], ...]]
    _abstract_fields: frozenset[str]

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        is_abstract: bool = False,
        strict: bool = False,  # classes written for Equinox have it; it means nothing there any more either
        **kwargs: Any,
    ) -> "ModuleMeta":
        if bases:  # a slot would hide an attribute that is built when it is read, and saves nothing beside `__dict__`
            namespace.pop("__slots__", None)
        cls = super().__new__(mcs, name, bases, namespace, **kwargs)
        if bases:
            check_class(cls)
            shield(cls)
            take_back(cls, Module)
        abstract = taken_out(cls)
        hidden = hidden_by_fields(cls)
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        for field_name in hidden:
            setattr(cls, field_name, Late(field_name, MISSING))
        update_abstractmethods(cls)
        cls.__doc__ = namespace.get("__doc__")  # `dataclass` writes one without arguments: it does not know `__init__`
        require(cls, abstract)  # after the abstract methods were counted anew
        if is_abstract:  # by a name that no class has, so subclasses are concrete again
            cls.__abstractmethods__ |= {"is_abstract"}
        declared = dataclasses.fields(cls)  # type: ignore[arg-type]
        cls._fields_in_order = tuple(f.name for f in declared)
        cls._static_fields = frozenset(f.name for f in declared if spec_of(f).static)
        cls._number_fields = frozenset(f.name for f in declared if is_number(f.type))
        cls._converters = {f.name: converter_of(name, f) for f in declared}
        cls._checks = tuple(vars(c)["__check_init__"] for c in cls.__mro__ if "__check_init__" in vars(c))
        cls._defaults = {f.name: default_of(f) for f in declared if default_of(f) != (MISSING, None)}
        # One look-up in the class for all that its construction depends on: each costs as much as to set an attribute.
        cls._construction = (cls.__new__ is not object.__new__, give_init(cls, declared), cls._checks)
        _give_setattr(cls)
        drop_bound_defaults(cls)
        read_from_class = {name: default for name, (default, _) in cls._defaults.items() if default is not MISSING}
        cls._is_finished = written_check(cls._fields_in_order, read_from_class)
        default_modules.update(id(f.default) for f in declared if KINDS.get(type(f.default)) is Kind.NODE)
        KINDS[cls] = Kind.NODE
        UNTOUCHED.add(cls)
        _boundary.register(cls)
        return cls

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "__dataclass_params__" and "_construction" in vars(cls):  # the first thing that `dataclass` does
            raise FieldError(
                what="a module is a dataclass already.",
                place=f"@dataclass class {cls.__module__}.{cls.__name__}",
                to_fix="drop the decorator: it would forget what `ag.field` says, and compare arrays by `==`",
            )
        super().__setattr__(name, value)

    # Those of protocols look at structure, at a price.
    __instancecheck__ = ABCMeta.__instancecheck__
    __subclasscheck__ = ABCMeta.__subclasscheck__

    if not TYPE_CHECKING:  # checkers read `__init__` only if a metaclass leaves calls alone

        def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:  # a field may be called `cls`
            has_own_new, is_finished_by_init, checks = cls._construction
            if has_own_new:
                module = cls.__new__(cls, *args, **kwargs)
                if not isinstance(module, cls):
                    return module
            else:
                module = new(cls)
            if is_finished_by_init:
                module.__init__(*args, **kwargs)
            else:  # bound methods: CPython finds them faster than what a class with a metaclass has
                _set_form(module, BUILDING)
                if kwargs:
                    module.__init__(*args, **kwargs)
                else:  # to hand on an empty dict costs a dict
                    module.__init__(*args)
                if not module._is_finished():
                    _finish(cls, module)
            _set_form(module, None)
            if checks:
                for check in checks:
                    check(module)
            return module

        @property
        def __signature__(cls) -> inspect.Signature:
            """The arguments of `__init__`, for `inspect` and `help`: `__call__` takes any."""
            of_init = inspect.signature(cls.__init__)
            return of_init.replace(parameters=[*of_init.parameters.values()][1:])


_CALL = vars(ModuleMeta)["__call__"].__code__


def _give_setattr(cls: ModuleMeta) -> None:
    """Each class has a `__setattr__` of its own that knows its fields: setting one in `__init__` costs one look-up."""
    plain = frozenset(name for name, convert in cls._converters.items() if convert is None)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        try:
            if self._form is BUILDING and name in plain:
                put(self, name, value)
                return
        except AttributeError:  # it came out of a compiled function, and nobody looked at it yet
            pass
        _set_with_care(self, name, value)

    cls.__setattr__ = __setattr__  # type: ignore[method-assign, assignment]


def _set_with_care(module: Any, name: str, value: Any) -> None:
    cls = type(module)
    if is_lazy(module) or module._form is not BUILDING:
        _set_in_owner(module, name, value)
    elif name in cls._converters:
        put(module, name, cls._converters[name](value))
    elif hasattr(getattr(cls, name, None), "__set__"):
        put(module, name, value)
    else:
        raise FieldError(
            what=f"`{name}` is not declared as a field.",
            place=f"{cls.__name__}.__init__",
            to_fix=f"declare it in the class: {name}: {type(value).__name__}",
        )


def _set_in_owner(module: Any, name: str, value: Any) -> None:
    """Sets an attribute of a finished module, which is to be a part of one whose `__init__` runs."""
    cls = type(module)
    construction = running(_CALL)
    if construction is None or name not in cls._converters or not assign(construction, module, name, value):
        is_inside = construction is not None and name in cls._converters
        if construction is None and hasattr(type(getattr(module, name, None)), "_constant_fields"):
            raise FrozenError(
                place=f"{cls.__name__}.{name}",
                action=f"model.{name} = ...",
                edit=f".{name}",
                to_fix=f"update the variable: model.{name}.set(value), in a call of ag.stateful",
            )
        fix = f"self holds the part: self.part.{name} = ...; else: part = ag.at(part).{name}.set(value)"
        raise FrozenError(
            place=f"{cls.__name__}.{name}",
            action=f"model.{name} = ...",
            edit=f".{name}",
            to_fix=f"write it from `self`, once {fix}" if is_inside else None,
        )


def _finish(cls: ModuleMeta, module: Any) -> None:
    """Freezes what an `__init__` left, and gives fields that it left out their defaults."""
    settle(module)
    for name in cls._fields_in_order:
        value = getattr(module, name, MISSING)
        if value is MISSING or value is module or name in cls._defaults:
            value = _mended(cls, module, name, value)
        if type(value) not in UNTOUCHED:
            put(module, name, freeze(value, f"{cls.__name__}.{name}"))


def _mended(cls: ModuleMeta, module: Any, name: str, value: Any) -> Any:
    """The value of a field that `__init__` may not have set, or that it set wrongly."""
    if value is module:
        raise FieldError(
            what="a module cannot stand in itself.",
            place=f"{cls.__name__}.{name}",
            to_fix="leave the attribute out: methods have `self`",
        )
    default, factory = cls._defaults.get(name, (MISSING, None))
    if value is MISSING and factory is not None:
        setattr(module, name, factory())
    elif default is not MISSING and (value is MISSING or value is default):  # not set, or set to what the class says
        setattr(module, name, default)
    elif value is MISSING:
        unset = [each for each in cls._fields_in_order if not hasattr(module, each)]
        raise FieldError(
            what=f"`__init__` left {', '.join(f'`{each}`' for each in unset)} without a value.",
            place=f"{cls.__name__}.__init__",
            to_fix=f"set `self.{unset[0]}` in it, or declare a default: ag.field(default=...)",
        )
    return getattr(module, name)


class Module(metaclass=ModuleMeta):
    """Base of all modules: a class of frozen objects with declared fields, each object a pytree.

    Arrays are the leaves (of JAX and NumPy, tracers, shapes); modules, and lists, tuples and dicts with data in them,
    are nodes; everything else is structure, compared by value. This is decided when an object is built and stays: a
    transformation may put anything in the place of a leaf.

    `__init__` is written from the fields unless the class, or a base of it, has its own. After `__init__` the
    `__check_init__` of every class in the MRO runs, if there is one, and nothing can be set any more. An array or a
    module that `__init__` leaves in two places is one leaf, or one subtree: see `ties`.

    A class has no objects of its own while a method or field of it is abstract, and with `is_abstract=True` in its
    head: `class Layer(ag.Module, is_abstract=True)`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> class Linear(ag.Module):
    ...     weight: jax.Array
    ...     use_relu: bool = False
    ...     def __call__(self, x):
    ...         y = self.weight @ x
    ...         return jax.nn.relu(y) if self.use_relu else y
    >>> Linear(jnp.ones((4, 3)))
    Linear(weight=f32[4,3], use_relu=False)
    >>> jax.jit(lambda model, x: model(x))(Linear(jnp.ones((4, 3))), jnp.ones(3))
    Array([3., 3., 3., 3.], dtype=float32)
    """

    __slots__ = ("__dict__", "__weakref__", "_form", "_late", "_shadow")
    _flat = _boundary.FirstCrossing()

    if TYPE_CHECKING:
        _form: ClassVar[Form]  # a slot; annotated for checkers only, else it were a field

    def __delattr__(self, name: str) -> None:
        if not is_lazy(self) and self._form is BUILDING:
            object.__delattr__(self, name)
            return
        where = {"place": f"{type(self).__name__}.{name}", "action": f"del model.{name}", "edit": f".{name}"}
        to_fix = f"put None there: self.part.{name} = None" if running(_CALL) is not None else None
        raise FrozenError(**where, to_fix=to_fix)

    def __eq__(self, other: object) -> Any:
        return are_equal(self, other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash_of(self)

    def __repr__(self) -> str:
        return show(self)

    def __reduce__(self) -> Any:
        return reduced(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return jax.tree.map(lambda leaf: copy.deepcopy(leaf, memo), self)


# The slot's own setter takes half of the time that `put` takes: this runs twice for every module.
_set_form: Callable[[Any, Any], None] = vars(Module)["_form"].__set__
