"""What users are told when a tree cannot be written, or a file cannot be read or does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..._errors import LONGEST_VALUE, AerogelError, ErrorText, StatedError, _show_as_part_of, clip


def shown(name: str) -> str:
    """A name as it may stand in a message: what a file says does not fill the screen, and moves no cursor."""
    return name if name.isprintable() and len(name) <= LONGEST_VALUE else clip(name)


@dataclass(eq=False, kw_only=True)
class FileError(StatedError, ValueError):
    """A file that is not a whole and consistent safetensors file.

    Attributes:
        what: a sentence that says which rule of the format does not hold.
        place: the file and, where it is known, the tensor.
        got: what stands in the file.
        wanted: what should stand there.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG106"

    to_fix: str = "save or download the file again; nothing of it was loaded"


@dataclass(frozen=True)
class Difference:
    """One leaf that a file and a tree do not agree on.

    Attributes:
        kind: the file lacks it, the tree lacks it, both have it with another shape or dtype, or the file has two
            different arrays for places that are tied in the tree.
        name: its path.
        in_file: its dtype and shape in the file, `f32[3]`; None if it is missing there.
        in_tree: likewise in the tree.
    """

    kind: Literal["missing", "unexpected", "shape", "dtype", "copies"]
    name: str
    in_file: str | None = None
    in_tree: str | None = None

    def line(self, width: int) -> str:
        """`shape       head.bias  f32[3] in the file, f32[4] in the tree`."""
        sides = [f"{text} in the {place}" for text, place in ((self.in_file, "file"), (self.in_tree, "tree")) if text]
        return f"{self.kind:<11} {shown(self.name):<{width}}  {', '.join(sides)}"


@dataclass(eq=False, kw_only=True)
class MismatchError(AerogelError, ValueError):
    """A file whose leaves are not those of the tree that it is loaded into. Nothing was read.

    Attributes:
        place: the file, and what it was saved from.
        differences: all of them, in the order of the tree.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG107"

    place: str
    differences: Sequence[Difference]
    to_fix: str

    def text(self) -> ErrorText:
        count = len(self.differences)
        width = max(len(shown(each.name)) for each in self.differences)
        return ErrorText(
            what=f"the file and the tree differ in {count} {'leaf' if count == 1 else 'leaves'}.",
            where=self.place,
            got="\n".join(each.line(width).rstrip() for each in self.differences),
            to_fix=self.to_fix,
        )


class SaveError(StatedError, TypeError):
    """A leaf that cannot be written to a file. The file is as it was.

    Attributes:
        what: a sentence that says why not.
        place: the leaf, as a path.
        got: what stands there.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG108"


_show_as_part_of("aerogel", FileError, MismatchError, SaveError)
