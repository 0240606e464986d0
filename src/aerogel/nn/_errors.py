"""What users are told by layers."""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._errors import AerogelError, ErrorText, _show_as_part_of


@dataclass(eq=False, kw_only=True)
class InputError(AerogelError, ValueError):
    """A layer was called with an array of a shape or dtype that it does not take.

    Attributes:
        what: a sentence that says what does not fit.
        place: the layer, as a path from the model that was called.
        got: the type that it was called with.
        wanted: the type that it takes; "..." stands for any leading axes.
        to_fix: what to do, where that is more than to pass what is wanted.
    """

    code: ClassVar[str] = "AG601"

    what: str
    place: str
    got: str
    wanted: str
    to_fix: str | None = None

    def text(self) -> ErrorText:
        return ErrorText(what=self.what, where=self.place, got=self.got, wanted=self.wanted, to_fix=self.to_fix)


@dataclass(eq=False, kw_only=True)
class MissingKeyError(AerogelError, TypeError):
    """A layer that draws random numbers was called without a key.

    Attributes:
        place: the layer, as a path from the model that was called.
    """

    code: ClassVar[str] = "AG602"

    place: str

    def text(self) -> ErrorText:
        return ErrorText(
            what="a layer that draws random numbers was called without a key.",
            where=self.place,
            to_fix="pass one, model(x, key=key), on to the layer; to use it without: ag.inference(model)",
        )


_show_as_part_of("aerogel.nn", InputError, MissingKeyError)
