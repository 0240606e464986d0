"""What users of Equinox's names are told."""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._errors import AerogelError, ErrorText, StatedError, _show_as_part_of


# Equinox raises the one or the other, and scripts catch what Equinox raises.
class CompatError(StatedError, ValueError, RuntimeError):
    """A call of one of Equinox's functions that cannot be done.

    Attributes:
        what: a sentence that says why not.
        place: the function, and the argument or the path of a leaf.
        to_fix: what to do.
        got: what is there.
        wanted: what it takes.
    """

    code: ClassVar[str] = "AG501"


@dataclass(eq=False, kw_only=True)
class _Missing(AerogelError):
    """Base of the errors about a name."""

    missing: str
    namespace: str
    to_fix: str

    def text(self) -> ErrorText:
        return ErrorText(what=f"{self.namespace} has no {self.missing!r}.", where=self._where(), to_fix=self.to_fix)

    def _where(self) -> str:
        return self.namespace


class MissingNameError(_Missing, AttributeError):
    """A name that Equinox may have and `aerogel.compat.equinox` has not.

    Attributes:
        missing: the name.
        namespace: where it was looked for: `aerogel.compat.equinox.nn`.
        to_fix: why it is not there, and what to do.
    """

    code: ClassVar[str] = "AG502"


# Python replaces an AttributeError in an import statement by an ImportError of its own, without its text.
class MissingImportError(_Missing, ImportError):
    """Such a name, in an import statement.

    Attributes:
        missing, namespace, to_fix: see `MissingNameError`.
    """

    code: ClassVar[str] = "AG503"

    def _where(self) -> str:
        return f"from {self.namespace} import {self.missing}"


_show_as_part_of("aerogel.compat.equinox", CompatError, MissingNameError, MissingImportError)
