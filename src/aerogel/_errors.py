"""The errors that users see, and the one form in which all of them are written.

Every text has up to four lines: what is wrong, where, what was got and what was wanted, and what to do. The code in
front of it names a page of `docs/errors`. An error keeps what it knows as fields, so that a program can read it.

    aerogel.UsageError: [AG001] 'fst' is not a value that `numerics` takes.
      where    argument `numerics` of `optimize`
      got      'fst'   (wanted 'strict' or 'fast')
      to fix   write numerics='fast'
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

INDENT = " " * 11  # the width of "  where    "
LONGEST_VALUE = 200


@dataclass(frozen=True)
class ErrorText:
    """The four lines of an error, not laid out yet. A line with nothing to say is left out."""

    what: str
    where: str | None = None
    got: str | None = None
    wanted: str | None = None
    to_fix: str | None = None

    def render(self, code: str) -> str:
        """The text, without a newline at its end. Values of several lines are indented below their label."""
        got = f"{self.got}   (wanted {self.wanted})" if self.got and self.wanted else self.got
        labelled = [("where", self.where), ("got", got), ("to fix", self.to_fix)]
        lines = [f"[{code}] {self.what}"]
        lines += [f"  {label:<9}" + text.replace("\n", "\n" + INDENT) for label, text in labelled if text]
        return "\n".join(lines)


class AerogelError(Exception, ABC):
    """Base of every error and warning that Aerogel raises by itself.

    Laws (tests/test_errors.py runs them on every final class):
    1. The class also derives from the built-in that fits best.
    2. `code` is used by no other class, and `docs/errors/<code>.md` shows the text.
    3. An error survives pickling, so that it can leave the process that raised it.
    4. Tracebacks name the class by the door that users import it from.
    """

    code: ClassVar[str]

    @abstractmethod
    def text(self) -> ErrorText:
        """The parts of the message, made from the fields."""

    def __str__(self) -> str:
        return self.text().render(self.code)

    def __reduce__(self) -> tuple[Any, ...]:
        # The inherited one calls the class with `args`, which are empty: fields are given by keyword.
        return type(self).__new__, (type(self),), self.__dict__


@dataclass(eq=False, kw_only=True)
class StatedError(AerogelError):
    """Base of errors whose fields are the lines of their text: whoever raises one writes these.

    Attributes:
        what: a sentence that says what is wrong.
        place: where, as a path or as code.
        to_fix: what to do.
        got: what was found there, where that helps.
        wanted: what should have been there.
    """

    what: str
    place: str
    to_fix: str
    got: str | None = None
    wanted: str | None = None

    def text(self) -> ErrorText:
        return ErrorText(what=self.what, where=self.place, got=self.got, wanted=self.wanted, to_fix=self.to_fix)


@dataclass(eq=False, kw_only=True)
class UsageError(AerogelError, ValueError):
    """An argument that a public function cannot take.

    Attributes:
        argument: its name.
        got: the value.
        wanted: the values it takes, or a phrase that describes them.
        function: the public function, when the place that found the mistake knows it.
        to_fix: what to do; by default the `wanted` value that is nearest is proposed, or all of them.
    """

    code: ClassVar[str] = "AG001"

    argument: str
    got: object
    wanted: Sequence[object] | str
    function: str | None = None
    to_fix: str | None = None

    def text(self) -> ErrorText:
        of = f" of `{self.function}`" if self.function else ""
        return ErrorText(
            what=f"{clip(self.got)} is not a value that `{self.argument}` takes.",
            where=f"argument `{self.argument}`{of}",
            got=clip(self.got),
            wanted=self.wanted if isinstance(self.wanted, str) else one_of(self.wanted),
            to_fix=self.to_fix or self._proposal(),
        )

    def _proposal(self) -> str:
        if isinstance(self.wanted, str):
            return f"pass {self.wanted}"
        names = [name for name in self.wanted if isinstance(name, str)]
        near = get_close_matches(str(self.got), names, n=1) or self.wanted
        return f"write {' or '.join(f'{self.argument}={value!r}' for value in near)}"


@dataclass(eq=False, kw_only=True)
class InternalError(AerogelError, RuntimeError):
    """A mistake of Aerogel's own, with what is needed to look into it.

    Attributes:
        what: a sentence that says which promise was broken.
        program: the program at hand, as text.
        where: the user's line, if known.
    """

    code: ClassVar[str] = "AG002"

    what: str
    program: str
    where: str | None = None

    def text(self) -> ErrorText:
        return ErrorText(
            what=self.what,
            where=self.where,
            got=self.program,
            to_fix="report this with the program above; until then, call the function without `ag.optimize`",
        )


@dataclass(eq=False, kw_only=True)
class ProgramCheckError(AerogelError, TypeError):
    """A program that is not well formed or not well typed.

    Attributes:
        what: a sentence that says which rule of programs does not hold.
        where: the equation, as the printer shows it, after the user's line.
        got: the type or value found there.
        wanted: the one that should stand there.
    """

    code: ClassVar[str] = "AG201"

    what: str
    where: str | None = None
    got: str | None = None
    wanted: str | None = None

    def text(self) -> ErrorText:
        return ErrorText(
            what=self.what,
            where=self.where,
            got=self.got,
            wanted=self.wanted,
            to_fix="mend the pass or rule that made this program; the report names it",
        )


@dataclass(eq=False, kw_only=True)
class PassFailedWarning(AerogelError, RuntimeWarning):
    """A pass failed; the program was left as it was, so results are right and may be slower.

    With AEROGEL_STRICT=1 in the environment the error itself is raised instead.

    Attributes:
        pass_name: the pass.
        reason: the error, in a line or more.
        function: the function that was being optimised, if known.
        where: the user's line, if known.
    """

    code: ClassVar[str] = "AG202"

    pass_name: str
    reason: str
    function: str | None = None
    where: str | None = None

    def text(self) -> ErrorText:
        on = f" on `{self.function}`" if self.function else ""
        return ErrorText(
            what=f"pass '{self.pass_name}' failed{on}; the program was left as it was.",
            where=self.where,
            got=self.reason,
            to_fix="AEROGEL_STRICT=1 shows the whole traceback; please report it, unless the pass is your own",
        )


@dataclass(eq=False, kw_only=True)
class Disagreement(AerogelError, AssertionError):
    """The optimised function gave another result than the function as it stands.

    Attributes:
        function: the function that was verified.
        path: the first result that differs, as a path: `result['loss']`.
        got: what the optimised function gave there: a value, a type or a structure.
        wanted: what the function itself gave.
        error: the size of the difference, with its unit; None where none can be given (types, structures).
        tolerance: the largest size that would have passed, with its unit.
    """

    code: ClassVar[str] = "AG301"

    function: str
    path: str
    got: object
    wanted: object
    error: str | None = None
    tolerance: str | None = None

    def text(self) -> ErrorText:
        size = f" by {self.error}" if self.error else ""
        allowed = f" ({self.tolerance} is allowed)" if self.tolerance else ""
        return ErrorText(
            what=f"`{self.function}` and its optimised form differ{size}{allowed}.",
            where=self.path,
            got=str(self.got),
            wanted=str(self.wanted),
            to_fix='try numerics="strict"; if the results still differ, report it',
        )


def one_of(values: Sequence[object]) -> str:
    """`'a'`, `'a' or 'b'`, `'a', 'b' or 'c'`."""
    shown = [repr(value) for value in values]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} or {shown[-1]}"


def clip(value: object) -> str:
    """`repr(value)`, cut where it would fill the screen: of a model the first line, with its class."""
    shown = repr(value)
    return shown if len(shown) <= LONGEST_VALUE else shown[: LONGEST_VALUE - 3].split("\n")[0] + "..."


def _show_as_part_of(door: str, *classes: type) -> None:
    for cls in classes:
        cls.__module__ = door


# Law 4: this file is private, the doors are not.
_show_as_part_of("aerogel", AerogelError, UsageError, InternalError, Disagreement)
_show_as_part_of("aerogel.compiler", ProgramCheckError, PassFailedWarning)
