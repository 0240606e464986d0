"""Claims about the reading and comparing of records; JAX's tests themselves run through `run.py`."""

from pathlib import Path

import pytest

from jax_suite.record import Difference, Result, append, by_error, read, read_expected
from jax_suite.run import HERE


def test_worst_report_of_a_test_is_its_outcome(tmp_path: Path) -> None:
    """A failed subtest makes its test fail though the test itself ends well; without an end it stays started."""
    record = tmp_path / "record.jsonl"
    for test, outcome in [
        ("a", "started"),
        ("a", "failed"),
        ("a", "passed"),
        ("b", "started"),
        ("b", "passed"),
        ("c", "started"),
    ]:
        append(record, Result(test, outcome))
    assert {test: result.outcome for test, result in read(record).items()} == {
        "a": "failed",
        "b": "passed",
        "c": "started",
    }


def test_only_what_passes_as_it_is_can_regress() -> None:
    """A crash counts, and a test that skips itself; one that fails or is skipped either way does not."""
    plain = {
        test: Result(test, outcome)
        for test, outcome in zip("bcdef", ["passed"] * 3 + ["failed", "skipped"], strict=True)
    }
    outcomes = ["passed", "crashed", "failed", "skipped", "failed", "skipped"]
    found = Difference.between(
        plain, {test: Result(test, outcome) for test, outcome in zip("abcdef", outcomes, strict=True)}
    )
    assert [result.test for result in found.regressed] == ["b", "c", "d"]
    assert (found.passed, found.bad_either_way) == (1, 1)


def test_like_errors_are_one_group() -> None:
    """Numbers, addresses and quoted names do not split a group; the larger group comes first."""
    errors = [
        "E   ValueError: no",
        "E   TypeError: 3 of 'x' at 0x1f",
        "E   some context\nE   TypeError: 4 of 'y' at 0x2e",
    ]
    groups = by_error(Result(str(number), "failed", error=error) for number, error in enumerate(errors))
    assert [(text, len(results)) for text, results in groups] == [
        ("TypeError: # of '..' at #", 2),
        ("ValueError: no", 1),
    ]


def test_expected_difference_needs_a_reason(tmp_path: Path) -> None:
    """A name alone is refused with its line number."""
    listed = tmp_path / "expected.txt"
    listed.write_text("# heading\n\ntests/a.py::T::f  # counts traces\ntests/a.py::T::g\n")
    with pytest.raises(ValueError, match=r"expected\.txt:4: give a reason"):
        read_expected(listed, "on")


def test_list_of_expected_differences_is_well_formed() -> None:
    """Every line of the repository's list parses; what only the forced normal form changes is expected only there."""
    listed = HERE / "expected_differences.txt"
    assert 0 < len(read_expected(listed, "on")) < len(read_expected(listed, "forced"))
