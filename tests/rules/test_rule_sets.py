"""Rules in use, rules of other packages, and the command that lists, shows and checks rules."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel import cli
from aerogel.compiler import RuleSet, on
from rules.rules_under_test import log1p, made

TINY = jnp.float32(1e-9)


def plain(x: Any) -> Any:
    """A program that loses tiny numbers unless a rule is at work."""
    return jnp.log(1 + x)


def test_rules_in_use_apply_where_none_are_given() -> None:
    """Inside of `use` functions are traced anew, compiled ones too; outside they are what they were."""
    f, named = ag.jit(plain), ag.jit(plain, rules=[])
    g = jax.jit(ag.optimize(plain))
    assert f(TINY) == g(TINY) == 0
    with ag.rules.use(log1p) as used:
        assert used == RuleSet((log1p,)) == ag.rules.in_use()
        assert f(TINY) == g(TINY) == TINY
        assert named(TINY) == 0
        assert [d.rule for d in ag.explain(plain)(TINY).fired] == [log1p.name]
        with ag.rules.use([]):
            assert f(TINY) == 0
    assert f(TINY) == g(TINY) == 0
    assert ag.rules.in_use() == ag.rules.default


def test_rules_in_use_are_checked_first() -> None:
    """A rule that fails its claim is not put to work; `unchecked` says that this is known."""
    wrong = made(log1p.before, lambda x: jnp.log1p(x) * 1.001, name="wrong")
    with pytest.raises(ag.RuleCheckError, match="'wrong' is not `reassociates`"), ag.rules.use(wrong):
        pytest.fail("it is in use")
    with ag.rules.use(wrong, unchecked=True):
        assert ag.explain(plain)(TINY).fired

    @on("sin", exactness="bitwise")
    def odd(x: Any) -> Any:
        return -jnp.sin(-x)

    with pytest.raises(ag.UsageError, match="`fires_on`"), ag.rules.use(odd):
        pytest.fail("it is in use")
    odd.examples(fires_on=[jnp.sin], leaves_alone=[jnp.cos])
    with ag.rules.use(odd):
        assert ag.explain(jnp.sin)(TINY).fired


SOURCE = """
import aerogel as ag
import jax.numpy as jnp


@ag.rule(exactness="no_worse", reason="log(1 + x) loses x")
def log_of_one(x):
    return jnp.log(1 + x)


@log_of_one.to
def _(x):
    return {after}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a module of good rules and one of bad ones, both offered as a package would."""
    (tmp_path / "good_rules.py").write_text(SOURCE.format(after="jnp.log1p(x)"))
    (tmp_path / "bad_rules.py").write_text(SOURCE.format(after="1.1 * jnp.log1p(x)").replace("log_of_one", "bad_log"))
    (tmp_path / "some-1.0.dist-info").mkdir()
    (tmp_path / "some-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
    points = "[aerogel.rules]\nsome = good_rules:log_of_one\n"
    (tmp_path / "some-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_rules_of_installed_packages(package: Path) -> None:
    """They are found by their entry points, and change nothing until they are used."""
    (found,) = ag.rules.installed()["some"]
    assert found.name == "log-of-one"
    assert not ag.explain(plain)(TINY).fired
    with ag.rules.use(ag.rules.installed()["some"], unchecked=True):
        assert ag.explain(plain)(TINY).fired


@pytest.mark.parametrize("value", ["good_rules:missing", "no_rules:at_all", "good_rules:jnp"])
def test_an_entry_point_that_leads_nowhere(value: str, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the package and the entry point, in the shell too."""
    (package / "some-1.0.dist-info" / "entry_points.txt").write_text(f"[aerogel.rules]\nsome = {value}\n")
    with pytest.raises(ag.RuleError, match=f"entry point 'some' of some gives no rules.\n +where +some = '{value}'"):
        ag.rules.installed()
    status, text = command(capsys, "list")
    assert status == 2
    assert "entry point 'some' of some" in text


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    """The exit status of `aerogel rules`, and what it prints."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["rules", *words])
    printed = capsys.readouterr()
    return ended.value.code, printed.out + printed.err


def test_the_command(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`list` tells whence rules come, `show` their code, `check` fails with status 1; mistakes have status 2."""
    status, text = command(capsys, "list", "--from", "bad_rules")
    lines = [line.split() for line in text.splitlines()]
    assert status == 0
    assert {(line[0], line[1], line[4]) for line in lines} >= {
        ("inverse-times", "reassociates", "aerogel"),
        ("log-of-one", "no_worse", "some"),
        ("bad-log", "no_worse", "bad_rules"),
    }
    assert "return jnp.log1p(x)" in command(capsys, "show", "log-of-one")[1]
    status, text = command(capsys, "check", "log-of-one", "--from", "bad_rules", "bad-log")
    assert status == 1
    assert text.startswith("holds  log-of-one\nfails  bad-log\n[AG204] rule 'bad-log' is not `no_worse`")
    assert command(capsys, "check", "log-of-one") == (0, "holds  log-of-one\n")
    for words in (("show", "nothing"), ("list", "--from", "no_such_module"), ("list", "--from", "cli"), ("list", "-x")):
        assert command(capsys, *words)[0] == 2
