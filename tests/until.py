"""A property test that stops drawing examples after some time."""

import functools
import time
from collections.abc import Callable
from typing import Any

from hypothesis.errors import HypothesisException


def until(seconds: float, test: Callable[..., None]) -> Callable[..., None]:
    """`test`, which does nothing any more so many seconds after its first call, unless it has failed.

    A failing example is run again and made smaller, however long that takes.
    """
    first: float | None = None
    failed = False

    @functools.wraps(test)
    def bounded(*args: Any, **kwargs: Any) -> None:
        nonlocal first, failed
        first = time.monotonic() if first is None else first
        if not failed and time.monotonic() - first > seconds:
            return
        try:
            test(*args, **kwargs)
        except HypothesisException:  # `assume`
            raise
        except Exception:
            failed = True
            raise

    return bounded
