"""What is said of a name that is not there: why, or which names are like it."""

import dis
import sys
import types
from collections.abc import Iterable
from difflib import get_close_matches

from ._errors import MissingImportError, MissingNameError

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def refusal(
    name: str, namespace: str, known: Iterable[str], reason: str | None = None
) -> MissingNameError | MissingImportError:
    """The error for a module's `__getattr__` to raise: an ImportError if an import statement asks it.

    Args:
        name: what is not there.
        namespace: the module's name.
        known: the names that are.
        reason: why it is not there, and what to do; else the nearest names are proposed.
    """
    near = " or ".join(f"`{each}`" for each in get_close_matches(name, known, n=2))
    other = f"look at dir({namespace}); for a name of Equinox's: `import equinox`"
    to_fix = reason or (f"write {near}" if near else other)
    cls = MissingImportError if _imports(sys._getframe(2)) else MissingNameError
    return cls(missing=name, namespace=namespace, to_fix=to_fix)


def _imports(frame: types.FrameType) -> bool:
    """Whether a frame is at the part of an import statement that takes a name out of a module."""
    return frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM
