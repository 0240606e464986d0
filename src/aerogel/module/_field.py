"""What a class says about one of its attributes."""

import dataclasses
from collections.abc import Callable
from types import EllipsisType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args, get_origin

from ._errors import FieldError

T = TypeVar("T")
_META = "aerogel"

# A name or None for each axis; `...` at the end stands for the axes that follow, of an array or of what is inside.
Axes: TypeAlias = tuple[str | EllipsisType | None, ...]


@dataclasses.dataclass(frozen=True)
class Spec:
    """How a field's value gets into a module.

    Attributes:
        converter: is called with the value, and what it returns is kept.
        static: the value is structure, whatever it is.
        dynamic: the value is data: numbers in it become arrays.
        axes: names of the axes of its arrays.
    """

    converter: Callable[[Any], Any] | None = None
    static: bool = False
    dynamic: bool = False
    axes: "Axes" = ()


def field(
    *,
    converter: Callable[[Any], Any] | None = None,
    static: bool = False,
    dynamic: bool = False,
    axes: Axes = (),
    default: Any = dataclasses.MISSING,
    default_factory: Callable[[], Any] | Any = dataclasses.MISSING,
    init: bool = True,
    repr: bool = True,
    kw_only: bool | Any = dataclasses.MISSING,
    metadata: dict[Any, Any] | None = None,
) -> Any:
    """The declaration of one attribute of a module: `width: int = ag.field(static=True)`.

    Args:
        converter: is called with every value that `__init__` gives the attribute; what it returns is kept.
        static: the value is structure and never data. A NumPy array in it is compared by value; an array of JAX's
            is refused.
        dynamic: the value is data. Numbers, also in lists, tuples and dicts, become arrays, so that changing one
            does not compile a function anew.
        axes: names of the axes of the arrays in it, for the rules of `ag.shard`: `("out", "in")`. Axes in front of
            them, such as `vmap` adds, have none. `...` at the end stands for further axes: those that a kernel has,
            `("out", "in", ...)`, or all that a module in the field has, `("layers", ...)`.
        default: the value of the attribute where `__init__` gives none.
        default_factory: makes that value.
        init: whether the `__init__` that Aerogel writes takes it.
        repr: whether `repr` shows it.
        kw_only: whether that `__init__` takes it by name only.
        metadata: anything, for others to read from `dataclasses.fields`.

    Raises:
        FieldError: `static` and `dynamic` are both asked for, or `...` stands before the end of `axes`.

    >>> import aerogel as ag
    >>> class Scale(ag.Module):
    ...     factor: float = ag.field(dynamic=True, default=1.0)
    >>> Scale(2.0)
    Scale(factor=f32[])
    """
    if static and dynamic:
        raise FieldError(
            what="a field is either structure or data.",
            place="field(static=True, dynamic=True)",
            to_fix="drop one of them, or both: arrays are data and everything else is structure",
        )
    if ... in axes[:-1]:
        raise FieldError(
            what="`...` stands for the axes that follow.",
            place=f"field(axes={axes!r})",
            to_fix="write it last, and None for an axis without a name: axes=(None, 'in', ...)",
        )
    spec = Spec(converter, static, dynamic, tuple(axes))
    options: dict[str, Any] = {"default": default, "default_factory": default_factory, "kw_only": kw_only}
    return dataclasses.field(init=init, repr=repr, metadata={**(metadata or {}), _META: spec}, **options)


def spec_of(declared: "dataclasses.Field[Any]") -> Spec:
    """What `field` was told; a plain annotation tells nothing."""
    return declared.metadata.get(_META, Spec())


_NUMBERS = {"int", "float", "complex", "bool"}
_UNIONS = {get_origin(int | None), get_origin(int | Literal[0])}  # two classes before Python 3.14
_BESIDE_NUMBERS = {"None", "NoneType", "Literal"}


def is_number(annotation: Any) -> bool:
    """Whether an annotation, evaluated or not, says that a number of Python's is meant: `int`, `float | None`."""
    if isinstance(annotation, str):
        names = {part.partition("[")[0].rpartition(".")[2].strip() for part in annotation.split("|")}
    else:
        parts = get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,)
        names = {getattr(part, "__name__", "") for part in parts}
    return bool(names & _NUMBERS) and names <= _NUMBERS | _BESIDE_NUMBERS


if TYPE_CHECKING:
    AbstractField: TypeAlias = Annotated[T, "a subclass gives it"]
else:

    class AbstractField:
        """An attribute that a concrete subclass must have, as a field, a property or a class attribute.

        `weight: ag.AbstractField[jax.Array]` in a class makes it abstract until a subclass has `weight`.
        """

        of: ClassVar[Any]

        def __class_getitem__(cls, item: Any) -> Any:
            return type("AbstractField", (AbstractField,), {"of": item})


# `aerogel.compat.equinox` has other names for it.
_ABSTRACT = ("AbstractField", "AbstractVar", "AbstractClassVar")


def is_abstract(annotation: Any) -> bool:
    """Whether an annotation, evaluated or not, is an `AbstractField[...]`."""
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2].strip() in _ABSTRACT
    return isinstance(annotation, type) and annotation.__name__ == "AbstractField"
