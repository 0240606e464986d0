"""The errors of rules."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..._errors import AerogelError, ErrorText


@dataclass(eq=False, kw_only=True)
class RuleError(AerogelError, TypeError):
    """A rule that is not well formed: its functions take other arguments, or return other types.

    Attributes:
        rule: its name.
        what: what is wrong with it, to stand behind the name.
        where: the line of the function, or of the site.
        got: what was found there.
        wanted: what should stand there.
        to_fix: what to do.
    """

    code: ClassVar[str] = "AG203"

    rule: str
    what: str
    to_fix: str
    where: str | None = None
    got: str | None = None
    wanted: str | None = None

    def text(self) -> ErrorText:
        """The parts of the message."""
        return ErrorText(f"rule '{self.rule}' {self.what}", self.where, self.got, self.wanted, self.to_fix)


@dataclass(eq=False, kw_only=True)
class RuleCheckError(AerogelError, AssertionError):
    """A rule, or a pass, that does not do what it claims.

    Attributes:
        rule: its name.
        what: which claim does not hold, to stand behind the name.
        where: the function that was tried, and the types of its arguments.
        got: what came out.
        wanted: what should have.
        to_fix: what to do.
        noun: "rule" or "pass".
    """

    code: ClassVar[str] = "AG204"

    rule: str
    what: str
    where: str
    to_fix: str
    got: str | None = None
    wanted: str | None = None
    noun: str = "rule"

    def text(self) -> ErrorText:
        """The parts of the message."""
        return ErrorText(f"{self.noun} '{self.rule}' {self.what}", self.where, self.got, self.wanted, self.to_fix)


@dataclass(eq=False, kw_only=True)
class RewriteCycle(AerogelError, RecursionError):
    """Rules that undo each other, or one that fires on what it writes: rewriting would not end.

    Attributes:
        rules: their names.
        where: the line at which they fired last.
        rounds: how often all rules were tried; None where the program came back to a form that it had before.
    """

    code: ClassVar[str] = "AG207"

    rules: Sequence[str]
    where: str | None = None
    rounds: int | None = None

    def text(self) -> ErrorText:
        """The parts of the message."""
        names = " and ".join(f"'{name}'" for name in self.rules)
        one = len(self.rules) == 1
        if self.rounds is not None:
            what = f"{names} still {'fires' if one else 'fire'} after {self.rounds} rounds."
        else:
            what = f"{names} {'undoes what it does' if one else 'undo each other'}."
        fix = "add a condition with `when`, so that it leaves alone what it writes" if one else "drop one of them"
        return ErrorText(what, self.where, None, None, fix)


RewriteCycle.__module__ = "aerogel.compiler"  # the doors they are imported from
RuleError.__module__ = RuleCheckError.__module__ = "aerogel"
