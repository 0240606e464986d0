"""Two processes train one model: what they bring to devices, what they keep, and how they go on when one was killed."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from module.test_files_processes import SOURCE, free_port

SCRIPT = Path(__file__).with_name("together.py")


def run(folder: Path, *options: str) -> tuple[list[int], dict[int, str]]:
    """Both processes' exit status, and the losses that both told of, which are the same."""
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"PYTHONPATH": SOURCE}
    port = str(free_port())
    both = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(me), port, str(folder), *options],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for me in range(2)
    ]
    try:
        last = both[1].communicate(timeout=240)
        if both[1].returncode == -signal.SIGKILL:
            both[0].kill()  # as a scheduler does with what is left of a job
        first = both[0].communicate(timeout=240)
    finally:
        for each in both:
            each.kill()
    status = [each.returncode for each in both]
    if status != [0, 0] and status[1] != -signal.SIGKILL:
        raise AssertionError(first[1][-3000:] + last[1][-3000:])
    told = [dict(re.findall(r"^(\d+) (\w+)$", text, re.MULTILINE)) for text, _ in (first, last)]
    assert all(told[0][step] == told[1][step] for step in told[0].keys() & told[1].keys())
    return status, {int(step): loss for step, loss in told[1].items()}


@cache
def uninterrupted(sharding: str) -> dict[int, str]:
    """The losses of a run that nobody stops."""
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), sharding, "files", "6", "0")[1]


@pytest.mark.parametrize(
    ("sharding", "backend"), [("divided", "files"), ("whole", "files"), ("divided", "orbax")], ids=str
)
def test_one_of_two_is_killed(sharding: str, backend: str, tmp_path: Path) -> None:
    """Killed while it writes, or where it stands: all steps that are done again, and all after, are as in a whole run.

    Keys, statistics, moments and averages are in the state, divided among the processes, or whole in each.
    """
    wanted = uninterrupted(sharding)
    assert sorted(wanted) == [1, 2, 3, 4, 5, 6]
    stopped = tmp_path / "stopped"
    status, before = run(stopped, sharding, backend, "6", "4")
    assert status[1] == -signal.SIGKILL
    assert sorted(before) == [1, 2, 3, 4]
    _, after = run(stopped, sharding, backend, "6", "0")
    assert 2 < min(after) <= 5
    assert before == {step: wanted[step] for step in before}
    assert after == {step: wanted[step] for step in after}
    assert max(after) == 6
    names = sorted(path.name for path in stopped.iterdir())
    assert len(names) == 2, names
    assert all("5" in name or "6" in name for name in names)
