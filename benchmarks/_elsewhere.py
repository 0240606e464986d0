"""A form that another process compiles: under flags of XLA that hold for a whole process.

XLA reads `XLA_FLAGS` once, and some options are no options of a compilation (`compiler_options` refuses
`xla_backend_extra_options`, jaxlib 0.10.2). An executable can be sent, so that it is timed beside the others.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental import serialize_executable

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class UnderFlags:
    """The natural form of `case` of the claim `claim`, for `mode` (see `Case.modes`), compiled under `flags`."""

    claim: str
    case: str
    mode: str
    flags: str

    def compile(self) -> jax.stages.Compiled:
        """The executable, which the other process made."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "executable"
            command = [sys.executable, "-m", f"{__package__}._elsewhere", self.claim, self.case, self.mode, str(path)]
            python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            subprocess.run(
                command, env={**os.environ, "XLA_FLAGS": self.flags, "PYTHONPATH": python_path}, check=True, cwd=ROOT
            )
            return serialize_executable.deserialize_and_load(*pickle.loads(path.read_bytes()))


def main(claim: str, name: str, mode: str, path: str) -> None:
    """What the other process does."""
    case = next(case for case in importlib.import_module(f".{claim}", __package__).CASES if case.name == name)
    natural, _, _ = case.modes()[mode]
    compiled = jax.jit(natural).lower(*case.args()).compile()
    Path(path).write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))


if __name__ == "__main__":
    main(*sys.argv[1:])
