"""What tuning found, one small file for each program, in the folder for what Aerogel measured."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from aerogel.compiler.cost.calibrated import cache_folder, write
from aerogel.compiler.pipeline import warn_caller

from ._errors import TuneFileWarning

MOST = 2000  # files; the ones that were used longest ago go first


@dataclass(frozen=True)
class Choice:
    """The fastest form of a program.

    Attributes:
        natural: whether that is the program as it stood.
        left_out: passes and rules that make it slower.
        ratio: its time over that of the program as it stood.
    """

    natural: bool
    left_out: tuple[str, ...]
    ratio: float


def file_of(key: str) -> Path:
    """Where the choice for a program is kept."""
    return cache_folder() / "tuned" / f"{key}.json"


def stored(path: Path) -> Choice | None:
    """The choice in a file; None, with a warning, if it holds something else, and None if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        found = json.loads(text)
        natural, left_out, ratio = found["natural"], found["left_out"], found["ratio"]
        if not (isinstance(natural, bool) and isinstance(ratio, float) and all(isinstance(x, str) for x in left_out)):
            raise ValueError("its entries are of other types")
    except (ValueError, KeyError, TypeError) as error:
        warn_caller(TuneFileWarning(path=str(path), reason=f"{type(error).__name__}: {error}"))
        return None
    _touch(path)
    return Choice(natural, tuple(left_out), ratio)


def _touch(path: Path) -> None:
    """Notes that a file was used."""
    try:
        os.utime(path)
    except OSError:  # a folder that may be read only: then it may not be tidied either
        return


def store(path: Path, choice: Choice) -> None:
    """Keeps a choice. Other processes see the old file or the new one, and at most `MOST` of them are kept.

    A folder that cannot be written to keeps nothing.
    """
    try:
        write(path, asdict(choice))
        with os.scandir(path.parent) as entries:
            files = [(used, entry.path) for entry in entries if (used := _last_use(entry)) is not None]
    except OSError:
        return
    for _, old in sorted(files)[: max(0, len(files) - MOST)]:
        Path(old).unlink(missing_ok=True)


def _last_use(entry: "os.DirEntry[str]") -> float | None:
    """When a file was used; None if it is gone by now: other processes write and tidy too."""
    try:
        return entry.stat().st_mtime if entry.is_file() else None
    except FileNotFoundError:
        return None
