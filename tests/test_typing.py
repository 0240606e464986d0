"""What checkers know of the public functions: the files of `tests/typing` are a user's code, checked in strict mode.

A line that must be an error says so (`# pyright: ignore[...]`), and a comment that hides no error is an error itself.
`make lint` checks Aerogel's own code; this is the one place that checks a user's.
"""

import json
import subprocess
import sys
from pathlib import Path

import aerogel

FOLDER = Path(__file__).parent / "typing"
FILES = sorted(FOLDER.glob("*.py"))


def test_a_user_s_code_passes_strict_mode() -> None:
    """Every file is checked, and what checkers say of it is what it says itself."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(FOLDER)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(ended.stdout)
    found = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]
    assert not found, "\n".join(found)
    assert report["summary"]["filesAnalyzed"] == len(FILES) > 5


def test_every_public_function_is_used() -> None:
    """A function that no file of the folder calls would have types that nobody checks."""
    text = "".join(file.read_text(encoding="utf-8") for file in FILES)
    functions = [name for name in aerogel.__all__ if name[0].islower()]
    assert [name for name in functions if f"ag.{name}" not in text] == []


def test_every_file_has_lines_that_must_fail() -> None:
    """Types that accept everything would pass the rest of each file."""
    files = [file for file in FILES if file.name != "values.py"]
    assert [file.name for file in files if "# pyright: ignore[" not in file.read_text(encoding="utf-8")] == []
