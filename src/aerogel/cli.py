"""The command `aerogel`. It parses and starts the script; the work is in `aerogel.audit`, in the script's process.

Exit status: the script's own; of `rules check`, 1 where a rule fails; 2 for a command line that cannot be understood.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from aerogel._launch import RunOptions, blocking_flag, interpreter_flags, launch

DESCRIPTION = "Run JAX programs faster, unchanged."
RUN_USAGE = """\
aerogel run [options] script.py [arguments]
       aerogel run [options] -m package.module [arguments]"""
RUN_DESCRIPTION = """\
Runs a script exactly as `python script.py` would - arguments, working
directory, exit status, tracebacks, signals - while everything that goes
through `jax.jit` is optimised, whoever calls it: plain JAX, Equinox, Flax,
Optax, Diffrax, NumPyro, BlackJAX ... At the end a table on stderr says what was
done to each function, and what was not.
"""
RUN_EPILOG = """\
Options of aerogel stand before the script; what follows it is the script's. A
script can also be a folder or a zip file with a __main__.py, `-` for standard
input, or `-c code`. Flags for Python go in front:
`python -O -m aerogel run script.py`.

examples:
  aerogel run train.py --epochs 3
  aerogel run --compare train.py
      measure every function in its natural and its optimised form
  aerogel run --report run.json train.py
      write what the table shows, and more, as data
"""
RULES_DESCRIPTION = """\
Rewrite rules: those that come with Aerogel, those that installed packages offer
by an entry point of the group `aerogel.rules`, and those in a module.
"""
CALIBRATE_DESCRIPTION = """\
Times a few small programs (some seconds), and keeps this machine's rates in the
user's cache directory, or in $AEROGEL_CACHE. From then on the cost model uses
them in the place of its table. Run it while the machine is idle.
"""
WITH_VALUE = {"--report", "--numerics"}


def parser() -> tuple[argparse.ArgumentParser, ...]:
    """The parser of the whole command, that of `run`, which gets its own options only, and that of `rules`."""
    whole = argparse.ArgumentParser("aerogel", description=DESCRIPTION, allow_abbrev=False)
    whole.add_argument("--version", action=ShowVersion, nargs=0, help="show the versions and exit")
    commands = whole.add_subparsers(dest="command", metavar="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a script with every jax.jit optimised",
        usage=RUN_USAGE,
        description=RUN_DESCRIPTION,
        epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument("--quiet", action="store_true", help="print no table at the end")
    run.add_argument("--report", metavar="FILE", type=report_path, help="write the report: .json or .txt")
    run.add_argument(
        "--compare",
        action="store_true",
        help="at exit, run each function's natural and optimised form alternately on copies of its arguments; "
        "copies take up to 1 GiB, calls beyond it are not measured",
    )
    run.add_argument(
        "--numerics",
        choices=["strict", "fast"],
        default="fast",
        help="fast (default) allows sums in another order and what differs only for inf and nan; "
        "strict only what is at least as accurate",
    )
    run.add_argument(
        "--tune",
        action="store_true",
        help="measure the forms of each function when it is traced, take the fastest, and remember it",
    )
    rules = commands.add_parser(
        "rules", help="list, show and check rewrite rules", description=RULES_DESCRIPTION, allow_abbrev=False
    )
    rules.add_argument("action", choices=["list", "show", "check"])
    rules.add_argument("names", nargs="*", metavar="rule", help="names of rules; `check` takes all unless given")
    rules.add_argument(
        "--from", dest="targets", action="append", default=[], metavar="MODULE[:NAME]", help="where more rules are"
    )
    calibrate = commands.add_parser(
        "calibrate", help="measure this machine for the cost model", description=CALIBRATE_DESCRIPTION
    )
    calibrate.add_argument("--forget", action="store_true", help="remove what was measured")
    return whole, run, rules


def report_path(text: str) -> str:
    """An absolute path that ends in .json or .txt and can be written: found out before the script runs."""
    if not text.endswith((".json", ".txt")):
        raise argparse.ArgumentTypeError(f"{text!r} ends in neither .json nor .txt")
    path = os.path.abspath(text)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"the folder of {text!r} does not exist")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path


class ShowVersion(argparse.Action):
    """`--version`: argparse's own action wants the text before it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        """Prints and exits."""
        print(version_line())
        parser.exit()


def version_line() -> str:
    """`aerogel 0.1.0 (jax 0.10.2, python 3.11.7)`."""
    from importlib.metadata import PackageNotFoundError, version  # 50 ms that every run of a script would pay

    found = {}
    for name in ("aerogel", "jax"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"aerogel {found['aerogel']} (jax {found['jax']}, python {python})"


def split_target(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of `run`, and the script with its arguments, as Python itself takes them."""
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        if word == "-" or not word.startswith("-") or word[:2] in ("-m", "-c"):
            break
        index += 2 if word in WITH_VALUE else 1
    return list(arguments[:index]), list(arguments[index:])


def rules_command(options: argparse.Namespace) -> int:
    """`aerogel rules`: prints, and returns the exit status."""
    from aerogel._errors import UsageError  # JAX takes seconds that a run of a script does not pay here
    from aerogel.compiler import RuleError
    from aerogel.transform import rules_command as command

    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = command.sources(options.targets)
        chosen = command.named(found, options.names)
    except (UsageError, RuleError, ImportError, AttributeError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.action == "list":
        print(command.listed({where: tuple(r for r in rules if r in chosen) for where, rules in found.items()}))
    elif options.action == "show":
        print("\n\n\n".join(map(command.shown, chosen)))
    else:
        wrong = 0
        for rule, fault in command.checked(chosen):
            wrong += bool(fault)
            print(f"{'fails' if fault else 'holds'}  {rule.name}" + (f"\n{fault}" if fault else ""))
        return int(wrong > 0)
    return 0


def calibrate_command(options: argparse.Namespace) -> int:
    """`aerogel calibrate`: prints what was measured beside the table's rates, and returns the exit status."""
    import jax  # as above

    from aerogel.audit._calibrate import calibrate
    from aerogel.compiler.cost.calibrated import calibration_file, forget
    from aerogel.compiler.cost.machine import table

    platform = jax.default_backend()
    if options.forget:
        path = calibration_file(platform)
        print(f"{path} is gone" if forget(path) else "nothing was measured")
        return 0
    rates, path = calibrate()
    for name, rate in rates.items():
        print(f"{name:26} {rate:10.3g}   table {getattr(table(platform), name):10.3g}")
    print(path)
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command. Returns only by `SystemExit`, or not at all: the script takes the process over."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    whole, run, rules = parser()
    if given[:1] == ["rules"]:
        raise SystemExit(rules_command(rules.parse_intermixed_args(given[1:])))
    if given[:1] == ["calibrate"]:
        raise SystemExit(calibrate_command(whole.parse_args(given)))
    if given[:1] != ["run"]:
        if given and not given[0].startswith("-") and os.path.exists(given[0]):
            whole.error(f"to run a script: aerogel run {shlex.join(given)}")
        whole.parse_args(given)
    before, target = split_target(given[1:])
    options, unknown = run.parse_known_args(before)
    if unknown:
        name = unknown[0].partition("=")[0]
        near = get_close_matches(name, [*WITH_VALUE, "--quiet", "--compare", "--tune"], n=1)
        run.error(f"there is no option {name}" + (f"; {near[0]} is meant?" if near else ""))
    if not target:
        run.error("which script? give a file, or -m and a module")
    if target[0] in ("-m", "-c") and len(target) == 1:
        run.error(f"argument expected for the {target[0]} option")
    as_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    flags = interpreter_flags(sys.orig_argv, len(sys.argv) - 1, as_module) if arguments is None else []
    blocking = blocking_flag()
    if blocking is not None:
        run.error(f"python's {blocking} keeps aerogel out of the interpreter that runs the script: leave it away")
    report, command = options.report or "", shlex.join(target)
    launch(RunOptions(options.quiet, report, options.compare, options.numerics, command, options.tune), flags, target)
