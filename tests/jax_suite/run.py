"""Run JAX's own tests with every `jax.jit` replaced by `jax.jit(ag.optimize(...))`, and print what that breaks.

    python tests/jax_suite/run.py --jax PATH [--files api_test,pjit_test] [--mode on] [--shard i/n]

PATH is a checkout of JAX at the installed release (`tests`, `jax/_src`, `conftest.py`, `pyproject.toml` are enough).
Each test file runs in a process of its own, replaced; then those tests that did not pass run once more as they are
(once and for all: these outcomes are kept under --cache; --mode off makes the whole baseline). A crash costs the test
that it happened in: the file goes on behind it.

Exit status: 0 when every test that passed as it is passes replaced, or stands in `expected_differences.txt` with a
reason; 1 when one does not, or when a line of that file no longer comes true; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from jax_suite.plugin import MODES  # noqa: E402
from jax_suite.record import Difference, Result, append, by_error, read, read_expected  # noqa: E402

# In order of what they are likely to find. The rest of JAX's files run with --files all.
FILES = """
    api_test lax_control_flow_test pjit_test custom_api_test custom_root_test custom_linear_solve_test state_test
    mutable_array_test shard_map_test export_test python_callback_test debugging_primitives_test checkify_test
    jax_jit_test core_test aot_test lax_autodiff_test lax_vmap_test lax_vmap_op_test batching_test jaxpr_effects_test
    debug_nans_test debug_info_test hijax_test memories_test layout_test xla_metadata_test x64_context_test dtypes_test
    name_stack_test pickle_test multi_device_test errors_test tree_util_test key_reuse_test random_test nn_test
    stax_test optimizers_test shape_poly_test extend_test error_check_test buffer_callback_test custom_partitioning_test
    array_test traceback_test source_info_test stack_test stateful_rng_test metadata_test ode_test jet_test fft_test
    sparse_test sparsify_test lax_numpy_einsum_test lax_numpy_vectorize_test linalg_test lax_numpy_indexing_test
    lax_numpy_reducers_test lax_numpy_test lax_test lax_scipy_test scipy_stats_test
""".split()


@dataclass(frozen=True)
class Run:
    """One way to run the tests. `stall_seconds`: with no test finished for so long, the process is taken for hung."""

    jax: Path
    mode: str
    shard: str
    stall_seconds: float
    source: Path

    def command(self, target: str) -> list[str]:
        """-P: without it, the checkout's `jax` would stand before the installed one."""
        options = "-P -m pytest -p jax_suite.plugin -p no:cacheprovider -q --no-header --tb=long"
        return [sys.executable, *options.split(), target]

    def environment(self) -> dict[str, str]:
        paths = [str(HERE.parent), str(self.source), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "AEROGEL_SUITE": self.mode,
            "AEROGEL_SUITE_SHARD": self.shard,
            "AEROGEL_STRICT": "1",  # a pass that fails is an error, not a warning
            "JAX_PLATFORMS": "cpu",
        }

    def file(self, name: str, record: Path, only: list[str] | None = None) -> None:
        """Run one test file to its end, restarting behind each test that takes the process down."""
        record.parent.mkdir(parents=True, exist_ok=True)
        environment = self.environment() | {"AEROGEL_SUITE_RECORD": str(record)}
        with tempfile.TemporaryDirectory() as scratch:
            if only is not None:
                (chosen := Path(scratch, "only")).write_text("\n".join(only))
                environment["AEROGEL_SUITE_ONLY"] = str(chosen)
            while (ended := self.process(name, record, environment)) != "finished":
                last_words = record.with_suffix(".log").read_text()[-4000:]
                in_flight = [result.test for result in read(record).values() if result.outcome == "started"]
                for test in in_flight or [f"tests/{name}.py"]:
                    append(record, Result(test, ended, error=last_words))
                if not in_flight:  # no test had started: the module itself takes the process down
                    return

    def process(self, name: str, record: Path, environment: dict[str, str]) -> str:
        """One process of the tests that are left: finished, crashed or hung."""
        with record.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(
                self.command(f"tests/{name}.py"), cwd=self.jax, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            last = time.time()
            while process.poll() is None:
                time.sleep(0.2)
                if record.exists():
                    last = max(last, record.stat().st_mtime)
                if time.time() - last > self.stall_seconds:
                    process.kill()
                    process.wait()
                    return "hung"
        # 0: all passed, 1: some failed, 2: the module could not be imported (recorded), 5: nothing left to run
        return "finished" if process.returncode in (0, 1, 2, 5) else "crashed"

    def rerun(self, test: str) -> str:
        """A shell command that runs one test."""
        variables = (
            f"AEROGEL_SUITE={self.mode} AEROGEL_STRICT=1 JAX_PLATFORMS=cpu PYTHONPATH={HERE.parent}:{self.source}"
        )
        return f"cd {self.jax} && {variables} {' '.join(self.command(repr(test)))}"


def compare_file(name: str, plain: Run, replaced: Run, cache: Path) -> Difference:
    """Run one file replaced, and as it is those of its tests that did not pass; these outcomes are kept."""
    file = f"{name}-{plain.shard.replace('/', 'of')}.jsonl"
    before, after = cache / plain.mode / file, cache / replaced.mode / file
    if replaced.mode == plain.mode:
        plain.file(name, before)
        return Difference.between(read(before), read(before))
    after.unlink(missing_ok=True)
    replaced.file(name, after)
    results = read(after)
    if suspects := [test for test, result in results.items() if result.outcome != "passed"]:
        plain.file(name, before, only=suspects)
    return Difference.between(read(before), results)


def report(name: str, found: Difference, expected: dict[str, str], replaced: Run) -> tuple[int, list[str]]:
    """Print one file's difference; the number of unexpected regressions, and the expected ones that did not come."""
    unexpected = [result for result in found.regressed if result.test not in expected]
    known = len(found.regressed) - len(unexpected)
    print(f"{name}: {found.passed} passed, {len(unexpected)} regressed, {known} differ as expected, ", end="")
    print(f"{found.bad_either_way} fail either way", flush=True)
    for headline, results in by_error(unexpected):
        print(f"  {len(results):4d} x {headline}")
        for result in results[:5]:
            print(f"         {result.test} ({result.outcome})")
        if len(results) > 5:
            print(f"         and {len(results) - 5} more")
        print(f"         {replaced.rerun(results[0].test)}", flush=True)
    return len(unexpected), [result.test for result in found.regressed if result.test in expected]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jax", type=Path, required=True, help="a checkout of JAX at the installed release")
    parser.add_argument("--files", default=",".join(FILES), help="names without .py, comma separated, or all")
    parser.add_argument(
        "--mode", choices=MODES, default="on", help="off: all tests as they are; for the others see plugin.py"
    )
    parser.add_argument("--shard", default="0/1", help="i/n: only every n-th test, beginning with number i")
    parser.add_argument("--stall-seconds", type=float, default=300.0, help="no test finished for so long: hung")
    parser.add_argument("--source", type=Path, default=HERE.parents[1] / "src", help="the folder that holds aerogel")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "aerogel-jax-suite"))
    options = parser.parse_args()
    jax = options.jax.resolve()
    if not (jax / "tests" / "api_test.py").exists():
        parser.error(f"{jax} holds no tests/api_test.py: give a checkout of JAX")
    names = (
        sorted(path.stem for path in (jax / "tests").glob("*_test.py"))
        if options.files == "all"
        else options.files.split(",")
    )
    if missing := [name for name in names if not (jax / "tests" / f"{name}.py").exists()]:
        parser.error(f"no such test files: {', '.join(missing)}")

    cache = options.cache / hashlib.sha1(f"{jax} {version('jax')}".encode()).hexdigest()[:8]
    source = options.source.resolve()
    plain = Run(jax, "off", options.shard, options.stall_seconds, source)
    replaced = Run(jax, options.mode, options.shard, options.stall_seconds, source)
    expected = read_expected(HERE / "expected_differences.txt", options.mode)
    regressed, came_true, ran = 0, set[str](), set[str]()
    for name in names:
        found = compare_file(name, plain, replaced, cache)
        unexpected, differing = report(name, found, expected, replaced)
        regressed += unexpected
        came_true |= set(differing)
        ran |= read(cache / replaced.mode / f"{name}-{options.shard.replace('/', 'of')}.jsonl").keys()
    stale = sorted(test for test in expected if test in ran and test not in came_true)
    for test in stale:
        print(f"expected_differences.txt: {test} does not differ any more: remove the line")
    print(f"{regressed} regressions in {len(names)} files, {len(came_true)} expected differences, {len(stale)} stale")
    return 1 if regressed or stale else 0


if __name__ == "__main__":
    sys.exit(main())
