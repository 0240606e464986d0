"""What the front doors open to is what the reference documents."""

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOORS = ["aerogel", "aerogel.nn", "aerogel.compiler", "aerogel.audit"]
REFERENCE = ROOT / "docs" / "reference"


def init_of(door: str) -> Path:
    """The `__init__.py` of a door."""
    return ROOT.joinpath("src", *door.split("."), "__init__.py")


def public_names(door: str) -> set[str]:
    """Names that the door imports, without those that begin with an underscore and the other doors."""
    tree = ast.parse(init_of(door).read_text(encoding="utf-8"))
    names = [
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    return {name for name in names if not name.startswith("_") and f"{door}.{name}" not in DOORS}


def documented_names(door: str) -> set[str]:
    """Names with an entry in the reference, which is a line `::: aerogel.optimize`."""
    pages = [page.read_text(encoding="utf-8") for page in REFERENCE.rglob("*.md")]
    entries = [name for text in pages for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)]
    return {name.rpartition(".")[2] for name in entries if name.rpartition(".")[0] == door}


EXISTING = [door for door in DOORS if init_of(door).exists()]


@pytest.mark.parametrize("door", EXISTING)
def test_public_names_are_the_documented_ones(door: str) -> None:
    """Nothing public is left out of the reference, and the reference names nothing that is not there."""
    public, documented = public_names(door), documented_names(door)
    missing = "".join(f"\n::: {door}.{name}" for name in sorted(public - documented))
    assert not missing, f"add to docs/reference:{missing}"
    assert not documented - public, f"{door} has no {sorted(documented - public)}"


def test_the_package_does_not_import_jax() -> None:
    """`import aerogel` is quick, its doors and names are there when asked for, and all of them are listed."""
    code = (
        "import sys, aerogel, aerogel.cli\n"
        "assert not {'jax', 'numpy'} & set(sys.modules)\n"
        "assert {'optimize', 'compiler', 'UsageError'} <= set(dir(aerogel)) and not hasattr(aerogel, 'nothing')\n"
        "assert aerogel.compiler.Program is sys.modules['aerogel.compiler'].Program\n"
        "assert aerogel.optimize is aerogel.optimize is sys.modules['aerogel.transform'].optimize\n"
        "from aerogel import *\n"
        "assert explain is aerogel.explain and verify is aerogel.verify\n"
    )
    path = str(ROOT / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("door", EXISTING)
def test_public_names_can_be_imported(door: str) -> None:
    """A name that stands in a door is there at run time, and `__all__`, where there is one, agrees."""
    module = import_module(door)
    names = public_names(door)
    assert names <= set(dir(module))
    assert set(getattr(module, "__all__", names)) == names
