"""What users are told when a module cannot be built, changed or walked."""

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

from .._errors import AerogelError, ErrorText, StatedError, _show_as_part_of, clip


@dataclass(eq=False, kw_only=True)
class FrozenError(AerogelError, FrozenInstanceError):
    """A module, or a container in it, was to be changed after `__init__`.

    Attributes:
        place: what was to be changed, as a path: `model.layers[0].weight`.
        action: what was tried, as code: `.append(...)`.
        edit: the path to write after `ag.at(model)`.
        to_fix: what to do, where that is not an edit.
    """

    code: ClassVar[str] = "AG101"

    place: str
    action: str
    edit: str
    to_fix: str | None = None

    def text(self) -> ErrorText:
        return ErrorText(
            what="modules and the containers in them do not change after `__init__`.",
            where=self.place,
            got=self.action,
            to_fix=self.to_fix or f"make a changed copy: new = ag.at(model){self.edit}.set(value)",
        )


@dataclass(eq=False, kw_only=True)
class StructureError(AerogelError, TypeError):
    """A value that cannot be part of a module's structure, which is hashed and compared by value.

    Attributes:
        what: a sentence that says why not.
        place: where the value stands, as a path.
        got: the value.
        wanted: what can stand there.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG102"

    what: str
    place: str
    got: object
    wanted: str
    to_fix: str

    def text(self) -> ErrorText:
        shown = f"{type(self.got).__name__}: {clip(self.got)}"
        return ErrorText(what=self.what, where=self.place, got=shown, wanted=self.wanted, to_fix=self.to_fix)


class FieldError(StatedError, TypeError):
    """A class whose fields contradict each other, or an `__init__` that does not fit them.

    Attributes:
        what: a sentence that says what does not fit.
        place: the class or the attribute.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG103"


@dataclass(eq=False, kw_only=True)
class PathError(AerogelError, LookupError):
    """A path that leads nowhere.

    Attributes:
        path: the path, as it was written.
        inside: what it was looked for in: a class name.
        nearest: paths that exist and look like it.
    """

    code: ClassVar[str] = "AG104"

    path: str
    inside: str
    nearest: Sequence[str] = ()

    def text(self) -> ErrorText:
        near = " or ".join(repr(path) for path in self.nearest)
        return ErrorText(
            what=f"{self.path!r} is no path of this {self.inside}.",
            where=self.path,
            to_fix=f"write {near}" if near else "print the model: its fields are the first steps of its paths",
        )


class TieError(StatedError, ValueError):
    """A tie that cannot be made or ended.

    Attributes:
        what: a sentence that says why not.
        place: the path that was to be tied or untied.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG105"


class StateError(StatedError, ValueError):
    """An update of a variable that cannot be made where it stands.

    Attributes:
        what: a sentence that says why not.
        place: the variable, as a path: `model.norm.mean`.
        to_fix: what to do.
        got: the value's type, where that is what does not fit.
        wanted: the variable's type.
    """

    code: ClassVar[str] = "AG111"


class ShardError(StatedError, ValueError):
    """A rule that cannot spread a leaf over a mesh, or that no leaf follows.

    Attributes:
        what: a sentence that says why not.
        place: the leaf, as a path with its type, or the rule.
        to_fix: what to do.
        got: what the rule says.
        wanted: what it could say.
    """

    code: ClassVar[str] = "AG112"


_show_as_part_of("aerogel", FrozenError, StructureError, FieldError, PathError, TieError, StateError, ShardError)
