"""Writing a file so that its name always leads to a whole one: the old, or the new."""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO

from ..._errors import UsageError


@contextmanager
def replacing(path: str | os.PathLike[str], token: str | None = None) -> Generator[IO[bytes]]:
    """A file to write to, which takes the place of `path` when the block ends, and not if it raises.

    It is written beside `path` under another name, `.aerogel-<token>.tmp`, brought to the disk, and renamed; the token
    is random unless it is given. A process that is killed leaves `path` as it was, and perhaps that file. A link stays
    a link: what it leads to is replaced. The permissions of a file that is there stay; else they are those of any new
    file.

    Raises:
        OSError: as `open(path, "wb")` would.
        UsageError: something other than a file stands at `path`.
    """
    target = os.path.realpath(os.fsdecode(path))
    mode = _mode_of(target)
    folder = os.path.dirname(target)
    os.stat(folder)  # where there is none, the error names it, and not the file that is written first
    temporary = temporary_name(path, token or secrets.token_hex(8))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _bring_to_disk(folder)


def temporary_name(path: str | os.PathLike[str], token: str) -> str:
    """The name under which the file is written."""
    return os.path.join(os.path.dirname(os.path.realpath(os.fsdecode(path))), f".aerogel-{token}.tmp")


def _mode_of(target: str) -> int | None:
    """The permissions of a file that may be replaced; None if there is none."""
    try:
        found = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not stat.S_ISREG(found.st_mode):  # a device or a pipe would be gone
        raise UsageError(argument="path", got=target, wanted="the name of an ordinary file", function="save")
    if not os.access(target, os.W_OK):  # renaming would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    return stat.S_IMODE(found.st_mode)


def _bring_to_disk(folder: str) -> None:
    """The new name too, where the system lets folders be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
