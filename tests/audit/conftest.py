"""Runs of real interpreters: a script under `python` and under `aerogel run`."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerogel._launch import RunOptions
from aerogel.audit._session import Session

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it wrote. Addresses of objects are not compared."""

    status: int
    out: str
    err: str


def start(command: Sequence[str], folder: Path, **options: Any) -> "subprocess.Popen[str]":
    """A process in `folder` that can import Aerogel; both kinds of run get the same environment."""
    env = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=env, text=True, **(pipes | options))


def end(process: "subprocess.Popen[str]", stdin: str = "") -> Ended:
    """What came of a process."""
    out, err = process.communicate(stdin, timeout=200)
    return Ended(process.returncode, *(re.sub(r"0x[0-9a-f]+", "0x", text) for text in (out, err)))


@dataclass(frozen=True)
class Runner:
    """Scripts in one folder, and the two ways to run them. `command` is the file that an installer makes."""

    folder: Path
    command: str

    def write(self, name: str, text: str) -> str:
        """A file in the folder."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def python(self, *words: str, flags: Sequence[str] = (), stdin: str = "") -> Ended:
        """`python <flags> <words>`."""
        return end(start([sys.executable, *flags, *words], self.folder), stdin)

    def aerogel(self, *words: str, flags: Sequence[str] = (), stdin: str = "") -> Ended:
        """`aerogel run <words>`, with flags for python."""
        return end(start([sys.executable, *flags, self.command, "run", *words], self.folder), stdin)

    def both(self, *words: str, flags: Sequence[str] = (), stdin: str = "") -> Ended:
        """How both ended: the same status, output and errors, byte for byte."""
        plain = start([sys.executable, *flags, *words], self.folder)
        quiet = start([sys.executable, *flags, self.command, "run", "--quiet", *words], self.folder)
        wanted, got = end(plain, stdin), end(quiet, stdin)
        assert got == wanted
        return got


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A runner in an empty folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    command = tmp_path / "bin" / "aerogel"
    command.write_text("import sys\nfrom aerogel.cli import main\nsys.exit(main())\n")
    return Runner(tmp_path / "work", str(command))


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    """Makes sessions in this process, in which `jax.jit` is replaced until the test ends."""
    made: list[Session] = []

    def make(**options: Any) -> Session:
        one = Session(RunOptions(**options))
        one.install()
        made.append(one)
        return one

    yield make
    for one in reversed(made):
        one.uninstall()
