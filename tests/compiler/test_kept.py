"""Answers that are kept."""

from aerogel.compiler.kept import Kept


def test_no_more_than_asked_for() -> None:
    """The newest answer is there, and never more than so many; a false one is an answer."""
    kept = Kept[int](3)
    for k in range(10):
        assert kept.get(k) is None
        assert kept.put(k, k) == k == kept.get(k)
        assert sum(kept.get(old) is not None for old in range(10)) <= 3
    assert kept.put("none", 0) == kept.get("none") == 0
