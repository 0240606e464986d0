"""When rules run: before the passes, after them, or last of all."""

from enum import StrEnum
from typing import Protocol

from ..._errors import UsageError
from ..exactness import Exactness
from ..pipeline import Context


class Stage(StrEnum):
    """Where in the compiler a rule has its place.

    "before": in front of the passes, whatever becomes of the program. What is written is differentiated and batched.
    "after": behind the passes, and not in a program whose derivative is still to be taken: closed forms, unrolling
    and what else has a derivative that costs more than that of what it replaces.
    "final": behind all others, feeding no other rule, and not in such a program either: what pays only because of how
    one backend compiles it.
    """

    BEFORE = "before"
    AFTER = "after"
    FINAL = "final"


class Staged(Protocol):
    """What a rule says about where it applies."""

    stage: Stage
    platforms: tuple[str, ...] | None
    exactness: Exactness


def stage_of(stage: str, function: str) -> Stage:
    """The stage of that name.

    Raises:
        UsageError: there is none.
    """
    words = [one.value for one in Stage]
    if stage not in words:
        raise UsageError(argument="stage", got=stage, wanted=words, function=function)
    return Stage(stage)


def platforms_of(platforms: object, function: str) -> tuple[str, ...] | None:
    """Names of platforms as a tuple; one name alone would be taken for its letters.

    Raises:
        UsageError: they are something else.
    """
    if platforms is None:
        return None
    if isinstance(platforms, list | tuple | set | frozenset) and all(isinstance(one, str) for one in platforms):
        return tuple(sorted(platforms))
    wanted = 'names of platforms: ("cpu",)'
    raise UsageError(argument="platforms", got=platforms, wanted=wanted, function=function)


def elsewhere(rule: Staged, context: Context) -> str | None:
    """Why a rule has no place in this program at all; None if it has."""
    if rule.platforms is not None and context.platform not in rule.platforms:
        return f"it is for {' and '.join(rule.platforms)}, and this program runs on {context.platform}"
    if rule.stage is not Stage.BEFORE and context.before_differentiation:
        return "it applies after differentiation, and the derivative of this program is still to be taken"
    return None


def not_allowed(rule: Staged, allowed: frozenset[Exactness]) -> str | None:
    """Why a setting of `numerics` forbids a rule that the user named; promises and draws come with "fast"."""
    by_name = rule.exactness in (Exactness.ASSUMES, Exactness.OTHER_BITS)
    if rule.exactness in allowed or (by_name and Exactness.FINITE in allowed):
        return None
    return f"it is `{rule.exactness}`, which this setting of `numerics` does not allow"
