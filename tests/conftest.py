"""How every test runs: on eight CPU devices, with faults of passes as errors, and with a seed that is printed."""

import ctypes
import gc
import inspect
import json
import math
import os
import random
import time
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from until import until

HERE = Path(__file__).parent

# All of this is read when JAX is imported or starts its first computation, and is inherited by the processes that
# tests start, so it must stand here and not in a fixture.
FLAGS = {
    "--xla_force_host_platform_device_count": "8",  # so that shardings can be told apart
    "--xla_cpu_multi_thread_eigen": "false",  # every worker of xdist has one core
    "--xla_cpu_parallel_codegen_split_count": "1",  # nor has LLVM more: a fifth of the compile time is the split
}
# The suite compiles some 15,000 programs and runs each once: code of LLVM's lowest level, without the emitters of
# fusions, takes half the time to make. XLA then fuses less than for users, so no test may count its fusions; the
# temporaries it plans had the same size on 34 programs of test_cost and test_loop_fusion. `make differential` sets
# this variable and compiles as users do.
if os.environ.get("AEROGEL_OPTIMISED_CODE") != "1":
    FLAGS |= {"--xla_backend_optimization_level": "0"}
    # A flag that XLA does not know ends the process without a word. jaxlib 0.11 has no other emitters any more.
    if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
        FLAGS |= {"--xla_cpu_use_fusion_emitters": "false"}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([_given, *(f"{k}={v}" for k, v in FLAGS.items() if k not in _given)]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("AEROGEL_STRICT", "1")  # a pass that fails raises; users get a warning
os.environ["AEROGEL_CACHE"] = str(HERE / "no-such-folder")  # decisions hang on the tables, not on the machine

# One seed for a whole run: workers of xdist start after this and inherit it.
SEED = int(os.environ.setdefault("AEROGEL_SEED", str(random.SystemRandom().randrange(2**32))))

# Cases that take turns and tests with this mark come behind all others, mixed. They are left out when a run of the
# whole suite has taken so long: a slow machine judges as many of them as it has time for, and says how many it left.
WHILE_THERE_IS_TIME = "while_there_is_time"
STARTED = float(os.environ.setdefault("AEROGEL_STARTED", str(time.time())))
MOST_SECONDS = 600


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites the golden files that do not fit, for a diff to be read."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_report_header() -> str:
    """The line that makes a random failure repeatable."""
    return f"random seed: {SEED} (AEROGEL_SEED={SEED} repeats it)"


# Of the cases of one test, the whole suite takes one in so many, by file or folder; which ones, the seed decides, so
# that each has its turn. All of them take two cores longer than the 15 minutes that a run may. `make test-all` takes
# them, and so does a run that names files.
SHARES = {
    "test_docs": 2,
    "test_examples": 4,
    "audit": 15,
    "compat": 18,
    "compiler": 135,
    "contract": 60,
    "laws": 45,
    "module": 30,
    "nn": 48,
    "rules": 60,
    "train": 4,
    "transform": 48,
}
FEWEST_CASES = 4
# Of the examples that one property draws, the whole suite takes those that begin within so many seconds.
PROPERTY_SECONDS = 5
# A test whose cases took more than so many seconds together, as seconds.json has it, takes turns too: on average none
# takes longer. `--junitxml` of a run says what is to be added there.
MOST_OF_ONE = 2
SECONDS: dict[str, float] = json.loads((HERE / "seconds.json").read_text("utf-8"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases that have their turn in another run, and puts what may be cut short last."""
    if not is_whole_suite(config):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    taken, take_turns = set[pytest.Item](), list[pytest.Item]()
    for name, found in cases.items():
        path = found[0].path
        share = SHARES.get(path.stem, SHARES.get(path.parent.name, 1)) if len(found) >= FEWEST_CASES else 1
        seconds = SECONDS.get(f"{path.stem}::{name.rpartition('::')[2]}")
        share = share if seconds is None else math.ceil(seconds / MOST_OF_ONE)
        first = SEED + zlib.crc32(name.encode())  # else all that have a turn would have it in the same run
        chosen = [item for k, item in enumerate(found) if (k + first) % share == 0]
        taken.update(chosen)
        take_turns += chosen if share > 1 else []
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    marked = [item for item in items if item in taken and item.get_closest_marker(WHILE_THERE_IS_TIME)]
    always = [item for item in items if item in taken and item not in {*marked, *take_turns}]
    for item in take_turns:
        item.add_marker(pytest.mark.while_there_is_time("test-all"))
    # else a slow machine would judge the same ones in every run; those of a file stay together, as they share fixtures,
    # but for the random programs, of which as many are to be seen as of the rest
    chance = random.Random(SEED)
    places = {path: chance.random() for path in sorted({item.path for item in take_turns})}
    later = {item: places[item.path] for item in take_turns} | {item: chance.random() for item in marked}
    while_there_is_time = sorted(later, key=lambda item: later[item])
    # xdist gives each worker a stretch of the list to begin with: what may be cut short is to be last in each
    workers, parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), (always, while_there_is_time)
    items[:] = [item for k in range(workers) for part in parts for item in stretch(part, k, workers)]


def stretch(items: list[pytest.Item], k: int, count: int) -> list[pytest.Item]:
    """The `k`-th of so many parts of a list."""
    return items[k * len(items) // count : (k + 1) * len(items) // count]


@pytest.fixture(autouse=True)
def bounded_property(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the whole suite, examples of a property that begin too late pass unseen."""
    from hypothesis import is_hypothesis_test

    if not is_hypothesis_test(request.function) or not is_whole_suite(request.config):
        yield
        return
    handle = request.function.hypothesis
    if "data" in inspect.signature(handle.inner_test).parameters:  # what draws inside has to draw as much each time
        yield
        return
    test = handle.inner_test
    handle.inner_test = until(PROPERTY_SECONDS, test)
    yield
    handle.inner_test = test


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ends a run in time."""
    mark = item.get_closest_marker(WHILE_THERE_IS_TIME)
    if mark and is_whole_suite(item.config) and time.time() - STARTED > MOST_SECONDS:
        pytest.skip(f"{MOST_SECONDS // 60} minutes of this run are over; `make {mark.args[0]}` runs all of them")


def is_whole_suite(config: pytest.Config) -> bool:
    """Whether no file was named and not all cases were asked for: the run that has to end within 15 minutes."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and os.environ.get("AEROGEL_ALL") != "1"


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not look at it, nor after every 700 new objects.

    JAX makes so many, and hooks a collection of its own into each of Python's, that this is a tenth of the time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Random programs take long to compile: no deadline; a failure prints how to repeat it."""
    config.addinivalue_line("markers", f"{WHILE_THERE_IS_TIME}(target): may be cut short; `make target` runs all")
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "aerogel", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=50
    )
    settings.load_profile("aerogel")


most_resident = 1000 << 20  # what a process may hold after a test before its caches are emptied
ROOM = 200 << 20  # and how much more than what is left then
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


def resident_bytes() -> int:
    """The memory that this process holds at present; 0 where /proc is not there to say it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """After a test that leaves the process above the limit, JAX's caches are emptied and freed memory is given back.

    Two workers then fit into 3 GB. Without the last step the allocator keeps nearly all that compiling took. What all
    libraries take together comes near the limit in the end: it moves with what cannot be freed, or each test would pay
    for emptied caches, which costs more than most tests.
    """
    global most_resident
    yield
    if resident_bytes() > most_resident:
        import jax

        jax.clear_caches()
        gc.collect()
        if _trim is not None:
            _trim(0)
        most_resident = max(most_resident, resident_bytes() + ROOM)


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


@pytest.fixture
def widens_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with jaxlib until 0.11.1: `loop-words` acts on bfloat16."""
    from aerogel import _jax

    monkeypatch.setattr(_jax, "WIDENS_BFLOAT16_STACKS", True)
