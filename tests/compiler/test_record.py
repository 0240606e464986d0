"""Records behave as frozen dataclasses do, and what users hold is one."""

import dataclasses
from dataclasses import FrozenInstanceError, dataclass, field

import pytest

import aerogel.compiler as compiler
from aerogel.compiler.record import record


def _pair(decorator):
    """Two classes as `decorator` makes them: of two fields of several kinds, and one that adds a field to it."""

    @decorator
    class Pair:
        first: int
        second: tuple = ()
        note: str = field(default="", compare=False)
        table: dict = field(default_factory=dict, hash=False, repr=False)

    @decorator
    class Triple(Pair):
        third: float = 0.5

        def __repr__(self):
            return f"third {self.third}"

    return Pair, Triple


@pytest.mark.parametrize("kind", [0, 1])
def test_a_record_does_what_a_frozen_dataclass_does(kind):
    """Equality, hashes, words, patterns and replacements, with every kind of field and one class under another."""
    made, expected = _pair(record)[kind], _pair(dataclass(frozen=True))[kind]
    arguments = [((1,), {}), ((1, (2,)), {"note": "seen"}), ((1, (2,)), {"note": "other"}), ((1, (2,), "", {3: 4}), {})]
    ours, theirs = ([cls(*args, **kwargs) for args, kwargs in arguments] for cls in (made, expected))
    assert [[a == b for b in ours] for a in ours] == [[a == b for b in theirs] for a in theirs]
    assert [hash(x) == hash(ours[1]) for x in ours] == [hash(x) == hash(theirs[1]) for x in theirs]
    assert [repr(x) for x in ours] == [repr(x) for x in theirs]
    assert made.__match_args__ == expected.__match_args__
    assert dataclasses.replace(ours[0], first=5) == made(5) != ours[0]
    assert ours[0].table is not ours[1].table


def test_records_of_two_classes_are_never_equal():
    """Not even where one class comes from the other; without fields, all of one class are equal."""
    (pair, triple), nothing = _pair(record), record(type("Nothing", (), {}))
    assert pair(1) != triple(1)
    assert pair(1) != 1
    assert nothing() == nothing()
    assert hash(nothing()) == hash(nothing())


def test_a_record_keeps_an_equality_of_its_own():
    """What a class says itself is not written over."""

    @record
    class Rounded:
        value: float

        def __eq__(self, other):
            return round(self.value) == round(other.value)

        def __hash__(self):
            return round(self.value)

    assert len({Rounded(1.1), Rounded(0.9), Rounded(2.0)}) == 2


def test_what_users_hold_can_not_be_changed():
    """A report, a machine, a rule set: an assignment to them fails when it is made."""
    decision = compiler.Decision(**{f.name: "x" for f in dataclasses.fields(compiler.Decision)})
    with pytest.raises(FrozenInstanceError):
        decision.what = "y"  # pyright: ignore[reportAttributeAccessIssue]
    for cls in (compiler.Report, compiler.Machine, compiler.RuleSet, compiler.Edit, compiler.Context, compiler.Cost):
        assert cls.__setattr__ is not object.__setattr__
