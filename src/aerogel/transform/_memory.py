"""Sizes of memory as users write them."""

import re
from typing import Any

from aerogel._errors import UsageError

UNITS = {
    "B": 1,
    **{f"{p}B": 1000**k for k, p in enumerate("kMGT", 1)},
    **{f"{p}iB": 1024**k for k, p in enumerate("KMGT", 1)},
}


def bytes_of(size: Any, function: str) -> int:
    """A size in bytes: a number of them, or a text such as "4 GB" or "512 MiB".

    Raises:
        UsageError: it is something else, or not above zero.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", size) if isinstance(size, str) else None
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    if found is not None and found[2].lower() in units:
        number = int(float(found[1]) * units[found[2].lower()])
    else:
        number = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if number <= 0:
        wanted = f'a number of bytes, or a text such as "4 GB" (units: {", ".join(UNITS)})'
        raise UsageError(argument="memory_limit", got=size, wanted=wanted, function=function)
    return number
