"""What users are told by transformations."""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._errors import AerogelError, ErrorText, StatedError, _show_as_part_of


@dataclass(eq=False, kw_only=True)
class TooManyTraces(AerogelError, AssertionError):
    """A function was traced more often than `assert_max_traces` allows.

    Attributes:
        function: its name.
        traces: how often it was traced, this time included.
        allowed: how often it may be.
        changes: what changed in its arguments since the nearest earlier trace, a line each; "" if there was none.
    """

    code: ClassVar[str] = "AG302"

    function: str
    traces: int
    allowed: int
    changes: str

    def text(self) -> ErrorText:
        often = f" more than {self.allowed} time{'s' * (self.allowed > 1)}" if self.allowed else ""
        return ErrorText(
            what=f"`{self.function}` was traced{often}.",
            where=f"trace {self.traces} of `{self.function}`",
            got=self.changes or "its first arguments",
            to_fix="keep shapes, dtypes and static values the same from call to call, or trace it before the block",
        )


@dataclass(eq=False, kw_only=True)
class TuneFileWarning(AerogelError, RuntimeWarning):
    """What an earlier tuning has stored cannot be read; the program is measured anew, and the file replaced.

    Attributes:
        path: the file.
        reason: what is wrong with it.
    """

    code: ClassVar[str] = "AG306"

    path: str
    reason: str

    def text(self) -> ErrorText:
        return ErrorText(
            what="what tuning has stored cannot be read; the program is measured again.",
            where=self.path,
            got=self.reason,
            to_fix="nothing: the file is written anew; if this comes back, look for who else writes to that folder",
        )


class GradientError(StatedError, TypeError):
    """A gradient of something, or with respect to something, that has none.

    Attributes:
        what: a sentence that says what is missing.
        place: the function and argument.
        got: what is there.
        wanted: what has a gradient.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG303"


@dataclass(eq=False, kw_only=True)
class CarryError(AerogelError, TypeError):
    """A loop's body returned another structure than the one that it got.

    Attributes:
        loop: the function: "scan".
        path: the first position that differs: `carry.layers[0].scale`.
        got: what the body returned there.
        wanted: what it was given.
    """

    code: ClassVar[str] = "AG304"

    loop: str
    path: str
    got: str
    wanted: str

    def text(self) -> ErrorText:
        return ErrorText(
            what=f"the body of `{self.loop}` must return a carry of the structure that it got.",
            where=self.path,
            got=self.got,
            wanted=self.wanted,
            to_fix="what is no array stays the same from step to step: make it an array, or keep it out of the carry",
        )


@dataclass(eq=False, kw_only=True)
class ArgumentsError(AerogelError, TypeError):
    """What was compiled ahead of time was called with arguments for which it was not compiled.

    Attributes:
        function: its name.
        changes: what differs from what `lower`, `trace` or `prepare` was given, a line each.
    """

    code: ClassVar[str] = "AG305"

    function: str
    changes: str

    def text(self) -> ErrorText:
        return ErrorText(
            what=f"`{self.function}` was compiled ahead of time for other arguments.",
            where=f"a call of the compiled `{self.function}`",
            got=self.changes,
            to_fix="pass what it was compiled for; for these: compile it again, or ag.jit(f)(...)",
        )


class MemoryTakenError(StatedError, RuntimeError):
    """A prepared function was given an array whose memory an earlier call, or this one, gives to its result.

    Attributes:
        what: a sentence that says so.
        place: the call.
        got: the arrays, a line each.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG311"


class DerivativeError(StatedError, AssertionError):
    """A derivative that is not the one which the values of a function show.

    Attributes:
        what: a sentence that says so.
        place: the function, and in which modes it was differentiated.
        got: for each argument that shows it an entry, with what was got and wanted, a line each.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG312"


_show_as_part_of("aerogel", TooManyTraces, GradientError, CarryError, ArgumentsError)
_show_as_part_of("aerogel", DerivativeError, MemoryTakenError, TuneFileWarning)
