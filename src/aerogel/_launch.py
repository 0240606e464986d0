"""How `aerogel run` starts the script: an interpreter of its own, which is told to optimise.

The process is replaced, not forked: the script has the process id, the terminal and the signals of the command.
Standard library only: a script that never imports JAX does not wait for it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PACKAGE = os.path.dirname(os.path.abspath(__file__))
BOOT = os.path.join(PACKAGE, "_boot")
ROOT = os.path.dirname(PACKAGE)
PREFIX = "AEROGEL_RUN_"
SCHEMA = 1  # of the report as JSON
NOTHING_COMPILED = "aerogel: nothing was compiled with jax.jit"


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for. `report` is an absolute path, or "" for none."""

    quiet: bool = False
    report: str = ""
    compare: bool = False
    numerics: str = "fast"
    command: str = ""
    tune: bool = False

    def to_strings(self) -> dict[str, str]:
        """As environment variables hold them."""
        return {
            "quiet": "1" if self.quiet else "",
            "report": self.report,
            "compare": "1" if self.compare else "",
            "numerics": self.numerics,
            "command": self.command,
            "tune": "1" if self.tune else "",
        }

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> "RunOptions":
        """The inverse of `to_strings`."""
        return cls(
            quiet=bool(strings["quiet"]),
            report=strings["report"],
            compare=bool(strings["compare"]),
            numerics=strings["numerics"],
            command=strings["command"],
            tune=bool(strings["tune"]),
        )


def empty_report(options: RunOptions) -> str:
    """What `--report` writes of a script that never imports JAX: what `aerogel.audit` would write of no functions."""
    if not options.report.endswith(".json"):
        return NOTHING_COMPILED + "\n"
    data = {
        "kind": "aerogel run",
        "command": options.command,
        "numerics": options.numerics,
        "compared": options.compare,
        "backend": "",
        "jax_version": "",
        "schema": SCHEMA,
        "notes": [],
        "functions": [],
    }
    return json.dumps(data, indent=2) + "\n"


def interpreter_flags(original: Sequence[str], arguments: int, as_module: bool) -> list[str]:
    """The flags in front of the program in a command line: `-O -X dev` of `python -O -X dev -m aerogel run s.py`.

    Args:
        original: the whole command line, as in `sys.orig_argv`.
        arguments: how many arguments at its end are the program's own.
        as_module: whether the program was given as `-m name`, and not as a file.
    """
    head = list(original[1 : len(original) - arguments])
    if not as_module:
        return head[:-1]
    *flags, last = head
    if flags and flags[-1].startswith("-") and flags[-1].endswith("m"):  # `-m name`, `-Om name`
        joined = flags.pop()[:-1]
        return flags if joined == "-" else [*flags, joined]
    joined = last.partition("m")[0]  # `-mname`
    return flags if joined == "-" else [*flags, joined]


def blocking_flag() -> str | None:
    """The flag of this interpreter, if there is one, under which the next would not import `sitecustomize`."""
    if sys.flags.isolated:
        return "-I"
    if sys.flags.ignore_environment:
        return "-E"
    return "-S" if sys.flags.no_site else None


def environment(options: RunOptions, outer: Mapping[str, str]) -> dict[str, str]:
    """The environment to start the script in; `_boot/sitecustomize.py` undoes the changes before the script runs."""
    env = dict(outer)
    if "PYTHONPATH" in env:
        env[PREFIX + "PYTHONPATH"] = env["PYTHONPATH"]
    env["PYTHONPATH"] = os.pathsep.join([BOOT, *([env["PYTHONPATH"]] if env.get("PYTHONPATH") else [])])
    given = {"root": ROOT, "nothing": NOTHING_COMPILED, "empty": empty_report(options), **options.to_strings()}
    env.update({PREFIX + name.upper(): value for name, value in given.items()})
    return env


def launch(options: RunOptions, flags: Sequence[str], target: Sequence[str]) -> None:
    """Becomes `python <flags> <target>`, optimised. Does not return."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # `>&-` closed it
            stream.flush()
    os.execve(sys.executable, [sys.executable, *flags, *target], environment(options, os.environ))
