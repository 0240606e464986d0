"""What is timed beside each other is timed fairly."""

import functools
import itertools
import time

import pytest

from benchmarks._timing import alternate


def test_each_form_runs_behind_each_other_one() -> None:
    """What one form leaves behind (threads that spin, pages that were freed) does not always meet the same other."""
    ran: list[str] = []

    def run(name: str) -> None:
        ran.append(name)
        time.sleep(0.003)  # longer than the shortest sample: one call for each

    calls = {name: functools.partial(run, name) for name in "abc"}
    times = alternate(calls, min_rounds=30, max_rounds=30)
    assert {name: len(each) for name, each in times.items()} == dict.fromkeys("abc", 30)
    rounds = ran[-90:]
    assert all(set(rounds[i : i + 3]) == set("abc") for i in range(0, 90, 3))
    behind = {pair for i, pair in enumerate(itertools.pairwise(rounds)) if i % 3 != 2}
    assert behind == set(itertools.permutations("abc", 2))


def test_a_slow_first_call_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms that take as long are called as often per sample, though one of them was the first to be called."""
    calls, now = {"first": 0, "second": 0}, 0.0  # a clock of its own: a sleep takes what a busy machine makes of it

    def run(name: str) -> None:
        nonlocal now
        calls[name] += 1
        now += 0.02 if calls == {"first": 1, "second": 0} else 0.0005

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    alternate({name: functools.partial(run, name) for name in calls}, min_rounds=30, max_rounds=30)
    assert calls["first"] == calls["second"] > 90
