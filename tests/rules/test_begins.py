"""Where a search for a shipped rule begins is known before the rule is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler import RuleSet
from aerogel.compiler.rules.rule import Rule
from aerogel.compiler.rules.skeleton import skeletons
from aerogel.compiler.rules.spelling import operation
from rules.rules_under_test import made, normal, report_of

SHIPPED = [rule for rule in ag.rules.default if isinstance(rule, Rule)]
X = normal(0, 6)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.name)
def test_shipped_rules_begin_where_they_say(rule: Rule, x64: bool) -> None:
    """The operations, and the numbers of operands where those are said, are what tracing finds, whatever the dtypes."""
    assert rule.begins is not None, "say where it begins, or every process traces it for its first program"
    rule.kept.clear()
    with jax.enable_x64(x64):
        found = skeletons(rule)
    rule.kept.clear()
    assert {operation(one.path[0]) for one in found} == set(rule.begins)
    for one in found:
        taken = rule.begins[operation(one.path[0])]
        # nothing else is looked at before the operands are counted: the reason against a site stays the same
        assert taken is None or (taken == len(one.operands(one.path[0])) and len(one.path) == 1 and not one.under)


def test_a_rule_is_not_traced_before_there_is_a_place_for_it() -> None:
    """A program without the operation takes no look at what the rule says; one with it does."""
    looked: list[Any] = []

    def before(x: Any) -> Any:
        looked.append(x)
        return jnp.log(jnp.exp(x))

    rule = made(before, lambda x: x, "finite", name="back-again")
    rule.begins = {"exp": None}
    assert not report_of(lambda x: jnp.sin(x) + 1, [rule], X).fired and not looked
    assert [d.rule for d in report_of(lambda x: jnp.log(jnp.exp(x)), [rule], X).fired] == ["back-again"] and looked


def test_another_spelling_is_looked_for_where_that_begins() -> None:
    """`also` makes what was said of the first spelling void."""
    rule = made(lambda x: jnp.log(jnp.exp(x)), lambda x: x, "finite", name="back-again")
    rule.begins = {"exp": None}
    rule.also(lambda x: jnp.tan(jnp.arctan(x)))
    assert [d.rule for d in report_of(lambda x: jnp.tan(jnp.arctan(x)), [rule], X).fired] == ["back-again"]


@pytest.mark.parametrize("name", ["searched-short", "searched-at-once"])
def test_reasons_against_a_site_are_those_of_a_search(name: str) -> None:
    """A loop with more operands, or as many, is refused with the words that the search would find."""
    (rule,) = (one for one in SHIPPED if one.name == name)
    programs = [
        lambda x: jax.lax.scan(lambda c, _: (c * x, c.sum()), x, None, length=5),
        lambda x: jax.lax.scan(lambda c, y: ((c[0] * x + y, c[1] + 1), None), (x, x), jnp.ones(5))[0],
        lambda x: jnp.searchsorted(x, x),
        lambda x: jax.lax.scan(lambda c, y: (c * y, None), x.sum(), x)[0],
    ]

    def said(f: Any) -> list[tuple[str, bool, str]]:
        found = [(d.what, d.fired, d.reason) for d in report_of(f, RuleSet((rule,)), X).decisions if d.rule == name]
        assert any("scan" in what for what, _, _ in found)
        return found

    quick = [said(f) for f in programs]
    begins, rule.begins = rule.begins, None
    try:
        assert quick == [said(f) for f in programs]
    finally:
        rule.begins = begins


def test_a_search_is_found_after_programs_without_one() -> None:
    """A rule that was not traced for one program is for the next."""
    (rule,) = (one for one in SHIPPED if one.name == "last-of-cumsum")
    rule.kept.clear()
    assert not report_of(jnp.sin, [rule], X).decisions
    report = report_of(lambda x: jnp.cumsum(x)[-1], [rule], X)
    assert [d.rule for d in report.fired] == ["last-of-cumsum"]
    np.testing.assert_allclose(ag.optimize(lambda x: jnp.cumsum(x)[-1])(X), X.sum(), rtol=1e-6)
