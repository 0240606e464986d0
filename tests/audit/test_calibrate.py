"""`aerogel calibrate`: what is measured is kept, and the cost model uses it."""

import json
import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from aerogel import cli
from aerogel.audit import _calibrate
from aerogel.compiler.cost import calibrated, machine
from aerogel.compiler.cost.machine import table, uncalibrated

PLATFORM = jax.default_backend()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cache of its own."""
    monkeypatch.setenv("AEROGEL_CACHE", str(tmp_path / "cache"))
    machine.cache_clear()
    yield tmp_path / "cache"
    machine.cache_clear()


def test_what_is_measured_is_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command stores rates, `machine` takes them until they are forgotten."""
    monkeypatch.setattr(_calibrate, "SECONDS", 0.0)
    monkeypatch.setattr(_calibrate.calibrate, "__defaults__", (0.0,))
    assert machine(PLATFORM) == uncalibrated(PLATFORM)
    with pytest.raises(SystemExit) as ended:
        cli.main(["calibrate"])
    assert ended.value.code == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    stored = json.loads(path.read_text())
    assert stored
    assert {name: getattr(machine(PLATFORM), name) for name in stored} == stored
    with pytest.raises(SystemExit):
        cli.main(["calibrate", "--forget"])
    assert not path.exists()
    machine.cache_clear()  # other processes look anew
    assert machine(PLATFORM) == uncalibrated(PLATFORM)


@pytest.mark.parametrize("text", ["", "[1]", '{"bytes_per_second": "much"}', '{"bytes_per_second": 1e30}', '{"x": 1}'])
def test_a_damaged_file_is_none(text: str, cache: Path) -> None:
    """What is no rate, or cannot be one, is not used."""
    path = calibrated.calibration_file(PLATFORM)
    path.parent.mkdir()
    path.write_text(text)
    assert machine(PLATFORM) == uncalibrated(PLATFORM)


def test_several_processes_may_write(cache: Path) -> None:
    """Who reads meanwhile sees one file or the other, never a part of one."""
    path, known = calibrated.calibration_file(PLATFORM), table(PLATFORM)
    rates: list[dict[str, float]] = [
        {"bytes_per_second": k * known.bytes_per_second, "flops_per_second": k * known.flops_per_second} for k in (1, 2)
    ]

    def keep_writing(one: dict[str, float]) -> None:
        for _ in range(50):
            calibrated.write(path, one)

    calibrated.write(path, rates[0])
    threads = [threading.Thread(target=keep_writing, args=(one,)) for one in rates]
    for thread in threads:
        thread.start()
    assert all(calibrated.read(path, known) in rates for _ in range(200))
    for thread in threads:
        thread.join()
    assert [one.name for one in cache.iterdir()] == [path.name]
