"""What users are told by the training kit."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from aerogel._errors import AerogelError, ErrorText, _show_as_part_of


@dataclass(eq=False, kw_only=True)
class MissingExtraError(AerogelError, ImportError):
    """A package that Aerogel can do without is not installed, and what was asked for cannot.

    Attributes:
        package: the package that is missing, as it is called in imports.
        purpose: what it is for.
        extra: the extra of Aerogel's that brings it.
    """

    code: ClassVar[str] = "AG701"

    package: str
    purpose: str
    extra: str

    def text(self) -> ErrorText:
        return ErrorText(
            what=f"`{self.package}` is not installed.",
            where=self.purpose,
            to_fix=f"pip install 'aerogel[{self.extra}]'",
        )


def imported(package: str, purpose: str) -> Any:
    """A package of the extra `train`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        root = package.partition(".")[0]
        if error.name != root:
            raise  # it is there, and lacks something itself
        raise MissingExtraError(package=root, purpose=purpose, extra="train") from None


_show_as_part_of("aerogel", MissingExtraError)
