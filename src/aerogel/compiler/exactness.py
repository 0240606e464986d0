"""How exact a rewrite is, and which ones a setting of `numerics` allows."""

from enum import StrEnum

from aerogel._errors import UsageError


class Exactness(StrEnum):
    """What a rewrite may do to the numbers, from nothing to a promise by the user."""

    BITWISE = "bitwise"
    NO_WORSE = "no_worse"
    REASSOCIATES = "reassociates"
    FINITE = "finite"
    ASSUMES = "assumes"
    OTHER_BITS = "other_bits"


ALLOWED = {
    "strict": frozenset({Exactness.BITWISE, Exactness.NO_WORSE}),
    "fast": frozenset({Exactness.BITWISE, Exactness.NO_WORSE, Exactness.REASSOCIATES, Exactness.FINITE}),
}


def allowed(numerics: str, function: str | None = None) -> frozenset[Exactness]:
    """The exactness classes that `numerics` ("strict" or "fast") lets fire by themselves.

    Raises:
        UsageError: any other word; it was given to the public `function`.
    """
    if numerics not in ALLOWED:
        raise UsageError(argument="numerics", got=numerics, wanted=sorted(ALLOWED), function=function)
    return ALLOWED[numerics]
