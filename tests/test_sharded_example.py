"""`examples/sharded_transformer.py`: one device, eight, and two processes one of which dies have the same losses."""

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from module.test_files_processes import SOURCE, free_port

SCRIPT = Path(__file__).parents[1] / "examples" / "sharded_transformer.py"
STEPS = 5
SMALL = ["--layers", "2", "--size", "32", "--time", "16", "--batch", "8"]


def losses_here(*given: str) -> list[float]:
    """The losses of a run in this process, which has eight devices."""
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    return script["main"](script["arguments"]([*SMALL, "--steps", str(STEPS), *given]))


def start_two(checkpoint: Path) -> list[subprocess.Popen[str]]:
    """Two processes with four devices each."""
    options = ["--simulate", "4", "--mesh", "2", "4", "--processes", "2", "--address", f"localhost:{free_port()}"]
    command = [sys.executable, str(SCRIPT), *SMALL, "--steps", str(STEPS), *options, "--checkpoint", str(checkpoint)]
    flags = " ".join(one for one in os.environ["XLA_FLAGS"].split() if "device_count" not in one)
    env = {**os.environ, "PYTHONPATH": SOURCE, "XLA_FLAGS": flags}
    return [
        subprocess.Popen(
            [*command, "--process", str(me)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for me in range(2)
    ]


def steps_in(text: str) -> dict[int, float]:
    """The loss of each step that a process told of."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): ([\d.]+) bits", text)}


def test_one_device_eight_and_two_processes(tmp_path: Path) -> None:
    """Losses agree within the order of sums. A process is killed; both start again, and no finished step is done twice.

    The checkpoint that the processes wrote is then read onto one device: its run is over, all parts are there.
    """
    wanted = losses_here()
    assert len(wanted) == STEPS
    assert losses_here("--mesh", "2", "4") == pytest.approx(wanted, rel=1e-5)

    checkpoint = tmp_path / "run.safetensors"
    processes = start_two(checkpoint)
    try:
        told = ""
        for line in processes[1].stdout or ():
            told += line
            if line.startswith("step 2"):  # it is being saved
                processes[1].send_signal(signal.SIGKILL)
                break
        assert processes[1].wait(60) == -signal.SIGKILL, processes[1].communicate()[1]
    finally:
        for each in processes:
            each.kill()  # as a scheduler does with what is left of a job
            each.communicate()
    assert checkpoint.exists()

    again = start_two(checkpoint)
    try:
        outputs = [each.communicate(timeout=240) for each in again]
    finally:
        for each in again:
            each.kill()
    assert [each.returncode for each in again] == [0, 0], outputs[0][1]
    before, after = steps_in(told), [steps_in(out) for out, _ in outputs]
    assert after[0] == after[1]
    # Step 1 was saved before step 2 was told of; step 2 is done again unless its file was whole in time.
    assert min(after[0]) in (2, 3)
    both = before | after[0]
    assert [both[k] for k in range(STEPS)] == pytest.approx(wanted, rel=1e-5)
    if 2 in after[0]:
        assert after[0][2] == before[2], "a step that is done again is the same to the last digit"

    assert losses_here("--checkpoint", str(checkpoint)) == []
    jax.clear_caches()
