"""A property of the whole suite is judged for a few seconds, and a failure in them is never lost."""

import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from until import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which goes on only where a test says so."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_examples_that_begin_late_are_not_judged(clock: list[float]) -> None:
    """Four begin within three seconds, if each takes one; the others are drawn and passed over."""
    seen = []

    @settings(max_examples=40, database=None, deadline=None)
    @given(st.integers())
    def judge(x: int) -> None:
        seen.append(x)
        clock[0] += 1

    judge.hypothesis.inner_test = until(3, judge.hypothesis.inner_test)
    judge()
    assert len(seen) == 4


def test_a_failure_is_made_smaller_after_the_time(clock: list[float]) -> None:
    """Once one example has failed, all are judged: else the failure would look like chance."""

    @settings(max_examples=200, database=None, deadline=None)
    @given(st.integers())
    def judge(x: int) -> None:
        assume(x != 7)
        if x > 10:
            clock[0] += 1
            raise ValueError(x)

    judge.hypothesis.inner_test = until(0.5, judge.hypothesis.inner_test)
    with pytest.raises(ValueError, match=r"^11\b"):
        judge()
