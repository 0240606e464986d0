"""The examples are plain scripts. Those without Aerogel print the same numbers under it; the others reach a target."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\b(?:nan|inf)\b")


@dataclass(frozen=True)
class Tiny:
    """Arguments that make a script small, and how far its numbers may move when sums run in another order."""

    arguments: str
    relative: float = 0.0
    absolute: float = 0.0


TINY = {
    "ode_ensemble.py": Tiny("--members 200 --steps 60 --rho 28", relative=1e-3, absolute=1e-3),
    "sunspots_lstm.py": Tiny("--hidden 4 --history 22 --steps 3", relative=1e-3, absolute=0.02),
    "byte_language_model.py": Tiny(
        "--hidden 16 --embed 8 --time 16 --batch 4 --steps 3 --bytes 100000", relative=1e-3, absolute=2e-3
    ),
    # A sampler turns a last digit into another random walk: draws agree in distribution, and a deviation of the
    # posterior is about 0.03 here.
    "numpyro_regression.py": Tiny("--warmup 100 --samples 100 --people 1000", absolute=0.1),
}


@dataclass(frozen=True)
class Target:
    """Arguments that make a script as small as its target allows, and the target, of the numbers that it prints."""

    arguments: str
    is_met: Callable[[list[float]], bool]


TARGETS = {
    "digits_lenet.py": Target("", lambda numbers: numbers[-1] > 98),  # per cent of the test set
    "sunspots_forecast.py": Target("", lambda numbers: numbers[-1] > 20),  # per cent better than the naive forecast
    # Nats per image, and those of a model that knows no digits.
    "digits_vae.py": Target("", lambda numbers: numbers[-2] < 0.6 * numbers[-1]),
    # Log-likelihood of held-out flowers, and that of the best normal distribution.
    "neural_ode.py": Target("", lambda numbers: numbers[-2] > numbers[-1] + 0.5),
    # Bits per byte; 4.5 are what the frequencies of the bytes alone would need. In ten minutes it is below lzma.
    "byte_transformer.py": Target(
        "--steps 200 --size 32 --depth 1 --table 4096 --longest 4 --window 64 --held-out 20000",
        lambda numbers: numbers[-3] < 4.0,
    ),
}


def run(*command: str, **variables: str) -> str:
    """What a script prints, with these environment variables; a failure shows what it wrote to stderr."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def numbers_in(text: str) -> list[float]:
    """All numbers, in the order in which they stand."""
    return [float(number) for number in NUMBER.findall(text)]


def words_in(text: str) -> list[str]:
    """All words, with a sign in place of each number."""
    return NUMBER.sub("#", text).split()


# Examples with a test of their own.
OWN = {"sharded_transformer.py": "test_sharded_example.py"}


def test_every_example_is_tested() -> None:
    """No script in `examples/` is left out here, or lacks a test of its own."""
    assert {*TINY, *TARGETS, *OWN} == {path.name for path in EXAMPLES.glob("*.py")}
    assert all((ROOT / "tests" / name).exists() for name in OWN.values())


@pytest.mark.parametrize("script", TINY)
def test_example_does_not_import_aerogel(script: str) -> None:
    """A script that `aerogel run` makes faster is an ordinary user's: no import in it, at any depth, names Aerogel."""
    tree = ast.parse((EXAMPLES / script).read_text())
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "jax" in imported
    assert not [name for name in imported if name.split(".")[0] == "aerogel"]


@pytest.mark.parametrize("script", TINY)
def test_example_prints_the_same_numbers_under_aerogel(script: str) -> None:
    """`aerogel run` changes no word of what an example prints, and its numbers only as reordered sums do."""
    tiny = TINY[script]
    command = [str(EXAMPLES / script), *tiny.arguments.split()]
    plain = run(*command)
    optimised = run("-m", "aerogel", "run", "--quiet", *command)
    assert words_in(optimised) == words_in(plain)
    assert len(numbers_in(plain)) >= 6
    assert numbers_in(optimised) == pytest.approx(numbers_in(plain), rel=tiny.relative, abs=tiny.absolute)


@pytest.mark.parametrize("script", TARGETS)
def test_example_reaches_its_target(script: str) -> None:
    """What an example trains is as good as it says."""
    # Compiled as for users: training is longer than compiling.
    numbers = numbers_in(run(str(EXAMPLES / script), *TARGETS[script].arguments.split(), XLA_FLAGS=""))
    assert TARGETS[script].is_met(numbers), numbers[-5:]
