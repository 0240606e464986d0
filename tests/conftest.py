"""How every test runs: on eight CPU devices, with faults of passes as errors, and with a seed that is printed."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent

# All of this is read when JAX is imported or starts its first computation, and is inherited by the processes that
# tests start, so it must stand here and not in a fixture.
FLAGS = {
    "--xla_force_host_platform_device_count": "8",  # so that shardings can be told apart
    "--xla_cpu_multi_thread_eigen": "false",  # every worker of xdist has one core
}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([_given, *(f"{k}={v}" for k, v in FLAGS.items() if k not in _given)]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_CHECKS", "true")  # JAX checks the types of every program that it traces
os.environ.setdefault("AEROGEL_STRICT", "1")  # a pass that fails raises; users get a warning

# One seed for a whole run: workers of xdist start after this and inherit it.
SEED = int(os.environ.setdefault("AEROGEL_SEED", str(random.SystemRandom().randrange(2**32))))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites the golden files that do not fit, for a diff to be read."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_report_header() -> str:
    """The line that makes a random failure repeatable."""
    return f"random seed: {SEED} (AEROGEL_SEED={SEED} repeats it)"


def pytest_configure() -> None:
    """Random programs take long to compile: no deadline; a failure prints how to repeat it."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "aerogel", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=50
    )
    settings.load_profile("aerogel")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of the run's seed, other ones in each test, the same whatever tests ran before."""
    return np.random.default_rng([SEED, *request.node.nodeid.encode()])


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("errors/AG001.txt", text)` holds `text` to the file of that name in tests/golden."""

    def compare(name: str, text: str) -> None:
        path = HERE / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        assert path.exists(), f"no {path}: look at the text, then write it with --update-golden\n\n{text}"
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare
