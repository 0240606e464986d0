"""Where a search for a shipped rule begins is known before the rule is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.normalize import normalize
from aerogel.compiler.rules.rule import Rule
from aerogel.compiler.rules.skeleton import skeletons
from aerogel.compiler.rules.spelling import operation
from rules.rules_under_test import made, normal, refusals, report_of


def normal_form(f: Any, *args: Any) -> list[Any]:
    """The equations of a program, its calls inlined."""
    return list(normalize(jax.make_jaxpr(f)(*args))[0].jaxpr.eqns)


SHIPPED = [rule for rule in ag.rules.default if isinstance(rule, Rule)]
X = normal(0, 6)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.name)
def test_shipped_rules_begin_where_they_say(rule: Rule, x64: bool) -> None:
    """The operations, and what is said of the equations, are what tracing finds, also where numbers are of 64 bits."""
    assert rule.begins is not None, "say where it begins, or every process traces it for its first program"
    rule.kept.clear()
    with jax.enable_x64(x64):
        found = skeletons(rule)
    rule.kept.clear()
    assert {operation(one.path[0]) for one in found} == set(rule.begins)
    for one in found:
        is_likely = rule.begins[operation(one.path[0])]
        assert is_likely is None or is_likely(one.path[0])


def test_a_rule_is_not_traced_before_there_is_a_place_for_it() -> None:
    """A program without the operation takes no look at what the rule says; one with it does."""
    looked: list[Any] = []

    def before(x: Any) -> Any:
        looked.append(x)
        return jnp.log(jnp.exp(x))

    rule = made(before, lambda x: x, "finite", name="back-again")
    rule.begins = {"exp": None}
    assert not report_of(lambda x: jnp.sin(x) + 1, [rule], X).fired
    assert not looked
    assert [d.rule for d in report_of(lambda x: jnp.log(jnp.exp(x)), [rule], X).fired] == ["back-again"]
    assert looked


def test_another_spelling_is_looked_for_where_that_begins() -> None:
    """`also` makes what was said of the first spelling void."""
    rule = made(lambda x: jnp.log(jnp.exp(x)), lambda x: x, "finite", name="back-again")
    rule.begins = {"exp": None}
    rule.also(lambda x: jnp.tan(jnp.arctan(x)))
    assert [d.rule for d in report_of(lambda x: jnp.tan(jnp.arctan(x)), [rule], X).fired] == ["back-again"]


@pytest.mark.parametrize("name", ["searched-short", "searched-evenly", "searched-at-once"])
def test_loops_that_are_no_search_are_refused_without_a_trace(name: str) -> None:
    """A loop with other operands is no site, and `before` is not traced at its types."""
    (rule,) = (one for one in SHIPPED if one.name == name)
    programs = [
        lambda x: jax.lax.scan(lambda c, _: (c * x, c.sum()), x, None, length=5),
        lambda x: jax.lax.scan(lambda c, y: ((c[0] * x + y, c[1] + 1), None), (x, x), jnp.ones(5))[0],
        lambda x: jax.lax.scan(lambda c, y: (c * y, None), x.sum(), x)[0],
    ]
    rule.kept.clear()
    quick = [refusals(f, rule, X) for f in programs]
    assert all(reason.startswith(("expected `scan` of ", "a `scan` of another kind")) for (reason,) in quick), quick
    assert rule.kept.get("skeletons") is None
    begins, rule.begins = rule.begins, None
    try:
        assert [len(refusals(f, rule, X)) for f in programs] == [1, 1, 1]
    finally:
        rule.begins = begins


@pytest.mark.parametrize("name", ["searched-short", "searched-evenly", "searched-at-once"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "complex64", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 2), (0,)])
@pytest.mark.parametrize("x64", [False, True])
def test_each_search_is_a_likely_one(name: str, dtype: str, shape: tuple[int, ...], x64: bool) -> None:
    """Whatever is looked up, from either side, by itself or for several tables: its loop is looked at."""
    (rule,) = (one for one in SHIPPED if one.name == name)
    is_likely = (rule.begins or {})["scan"]
    assert is_likely is not None
    with jax.enable_x64(x64):
        table, x = jnp.zeros(7, dtype), jnp.zeros(shape, dtype)
        for side in ("left", "right"):
            one = lambda t, x, side=side: jnp.searchsorted(t, x, side=side)  # noqa: E731
            searches = [(one, table), (jax.vmap(one, (0, None)), jnp.stack([table] * 2))]
            for f, tables in searches:
                loops = [eqn for eqn in normal_form(f, tables, x) if eqn.primitive.name == "scan"]
                assert loops
                assert all(map(is_likely, loops))


def test_a_search_is_found_after_programs_without_one() -> None:
    """A rule that was not traced for one program is for the next."""
    (rule,) = (one for one in SHIPPED if one.name == "last-of-cumsum")
    rule.kept.clear()
    assert not report_of(jnp.sin, [rule], X).decisions
    report = report_of(lambda x: jnp.cumsum(x)[-1], [rule], X)
    assert [d.rule for d in report.fired] == ["last-of-cumsum"]
    np.testing.assert_allclose(ag.optimize(lambda x: jnp.cumsum(x)[-1])(X), X.sum(), rtol=1e-6)
