"""What users of Equinox's names are told."""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._errors import AerogelError, ErrorText, _show_as_part_of


# Equinox raises the one or the other, and scripts catch what Equinox raises.
@dataclass(eq=False, kw_only=True)
class CompatError(AerogelError, ValueError, RuntimeError):
    """A call of one of Equinox's functions that cannot be done.

    Attributes:
        what: a sentence that says why not.
        place: the function, and the argument or the path of a leaf.
        to_fix: what to do.
        got: what is there.
        wanted: what it takes.
    """

    code: ClassVar[str] = "AG501"

    what: str
    place: str
    to_fix: str
    got: str | None = None
    wanted: str | None = None

    def text(self) -> ErrorText:
        return ErrorText(what=self.what, where=self.place, got=self.got, wanted=self.wanted, to_fix=self.to_fix)


@dataclass(eq=False, kw_only=True)
class MissingNameError(AerogelError, AttributeError):
    """A name that Equinox may have and `aerogel.compat.equinox` has not.

    Attributes:
        missing: the name.
        namespace: where it was looked for: `aerogel.compat.equinox.nn`.
        to_fix: why it is not there, and what to do.
    """

    code: ClassVar[str] = "AG502"

    missing: str
    namespace: str
    to_fix: str

    def text(self) -> ErrorText:
        return ErrorText(what=f"{self.namespace} has no {self.missing!r}.", where=self.namespace, to_fix=self.to_fix)


_show_as_part_of("aerogel.compat.equinox", CompatError, MissingNameError)
