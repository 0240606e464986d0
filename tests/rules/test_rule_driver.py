"""How rules are put to work: rounds, cycles, settings, reports, and rules that are not well formed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler import DEFAULT_PASSES, PassFailedWarning, RewriteCycle, RuleError, RuleSet, on_loop
from rules.rules_under_test import fired, log1p, made, normal, refusals, regular, report_of, scale_first

inverse_times = ag.rules.inverse_times
X = normal(0, 3)


def test_two_rules_that_undo_each_other_are_named() -> None:
    """Rewriting that would not end is an error with the rules' names and the user's line."""
    there = made(lambda x: jnp.exp(-x), lambda x: 1 / jnp.exp(x), name="there")
    back = made(lambda x: 1 / jnp.exp(x), lambda x: jnp.exp(-x), name="back")
    with pytest.raises(RewriteCycle, match="'there' and 'back' undo each other") as caught:
        jax.jit(ag.optimize(lambda x: jnp.exp(-x), rules=[log1p, there, back]))(X)
    assert caught.value.rules == ["there", "back"]
    assert "test_rule_driver.py" in str(caught.value.where)


def test_a_rule_that_fires_on_what_it_writes_is_named() -> None:
    """So is one rule that never comes to an end."""
    grows = made(lambda x: jnp.exp(x), lambda x: jnp.exp(x) * 2 - jnp.exp(x + 0.5) * 0, name="grows")
    with pytest.raises(RewriteCycle, match="'grows' still fires after"):
        jax.jit(ag.optimize(jnp.exp, rules=[grows]))(X)


def test_users_get_the_program_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of our tests a rule at fault is a warning, and a red line in the report."""
    monkeypatch.setenv("AEROGEL_STRICT", "0")
    wrong = made(lambda x: jnp.exp(x), lambda x: jnp.exp(x).astype("bfloat16"), name="wrong")
    reports: list[Any] = []
    with pytest.warns(PassFailedWarning, match="'wrong' changed the type"):
        got = jax.jit(ag.optimize(jnp.exp, rules=[wrong], on_report=reports.append))(X)
    np.testing.assert_array_equal(got, jnp.exp(X))
    assert [d.rule for d in reports[-1].failed] == ["rules"]


def test_rules_work_on_what_rules_wrote() -> None:
    """What one rule writes is a site for the others, in the next round."""
    first = made(lambda x: jnp.sqrt(x) * jnp.sqrt(x), lambda x: jnp.log(1 + x), "other_bits")
    f = ag.optimize(lambda x: jnp.sqrt(x) * jnp.sqrt(x), rules=[log1p, first], passes=())
    assert [eqn.primitive.name for eqn in jax.make_jaxpr(f)(X).eqns] == ["log1p"]


def test_the_first_rule_that_matches_fires() -> None:
    """At one site the order of the rules decides."""
    a = made(lambda x: jnp.exp(x) + 1, lambda x: jnp.full_like(x, 1), "other_bits", name="a")
    b = made(lambda x: jnp.exp(x), lambda x: jnp.full_like(x, 2), "other_bits", name="b")
    f = lambda x: jnp.exp(x) + 1  # noqa: E731
    assert float(ag.optimize(f, rules=[a, b])(X)[0]) == 1
    assert float(ag.optimize(f, rules=[b, a])(X)[0]) == 3


def test_the_same_program_each_time() -> None:
    """Rewriting is repeatable: the text of the program does not change between runs."""
    rules = [scale_first, inverse_times, log1p]
    f = lambda A, b: 2 * jnp.log(1 + jnp.linalg.inv(A) @ b).sum()  # noqa: E731
    texts = {str(jax.make_jaxpr(ag.optimize(f, rules=list(rules)))(regular(0), normal(1, 4))) for _ in range(3)}
    assert len(texts) == 1


def test_numerics_decides_which_rules_may_fire() -> None:
    """`strict` takes no rule that adds in another order; a promise of the user's is one that was named."""
    A, b = regular(0), normal(1, 4)
    f = lambda A, b: jnp.linalg.inv(A) @ b  # noqa: E731
    assert refusals(f, inverse_times, A, b, numerics="strict") == [
        "it is `reassociates`, which this setting of `numerics` does not allow"
    ]
    assert fired(lambda x: jnp.log(1 + x), log1p, abs(X), numerics="strict") == 1
    promised = made(f, lambda A, b: jnp.linalg.solve(A, b), "assumes")
    assert fired(f, promised, A, b) == 1


def test_condition_and_its_reason() -> None:
    """A condition sees types and constants; a string that it returns is the reason in the report."""
    seen: list[Any] = []
    rule = made(lambda x, y: jnp.power(x, y), lambda x, y: jnp.exp(y * jnp.log(x)))

    @rule.when
    def _(x: Any, y: Any) -> bool | str:
        seen.append((x.shape, x.dtype, x.ndim, x.size, x.value, y.value))
        return y.value is None or f"a constant exponent, {y.value}"

    assert fired(lambda x, y: x**y, rule, jnp.ones(3), jnp.ones(3)) == 1
    assert seen == [((3,), jnp.float32, 1, 3, None, None)]
    assert refusals(lambda x: x**2.5, rule, jnp.ones(3)) == ["a constant exponent, 2.5"]
    never = made(lambda x: jnp.exp(x), lambda x: jnp.exp(x) + 0)
    never.when(lambda x: False)
    assert refusals(jnp.exp, never, X) == ["its condition does not hold"]


def test_decisions_in_reports() -> None:
    """`explain` shows what fired, by what, why, and on which line; and what did not."""
    f = lambda x: jnp.log(1 + x) + jnp.log(2 + x)  # noqa: E731
    report = ag.explain(f, rules=[log1p])(abs(X))
    (yes,) = report.fired
    assert (yes.rule, yes.what, yes.reason) == (log1p.name, "`add`, `log` becomes `log1p`", "a test says so")
    assert (yes.exactness, yes.where.split(":")[0]) == ("no_worse", "test_rule_driver.py")
    (no,) = report.refused
    assert (no.rule, no.what, no.where) == (log1p.name, "a site of `log`", yes.where)
    assert "log-of-one-plus refused" in str(report)
    ag.verify(f, rules=[log1p])(abs(X))


def test_every_door_takes_rules() -> None:
    """`jit` and `optimize` alike, alone and with other passes; without rules nothing is looked for."""
    f = lambda x: jnp.log(1 + x)  # noqa: E731
    tiny = jnp.float32(1e-9)
    assert ag.jit(f, rules=[log1p])(tiny) == jax.jit(ag.optimize(f, rules=RuleSet((log1p,))))(tiny) == tiny
    assert ag.optimize(f, rules=[log1p], passes=DEFAULT_PASSES)(tiny) == tiny
    assert ag.jit(f)(tiny) == ag.jit(f, rules=[])(tiny) == 0
    assert ag.optimize(f, rules=[log1p]) is ag.optimize(f, rules=(log1p,)) is not ag.optimize(f)


def test_programs_whose_derivative_is_taken_outside() -> None:
    """`grad(optimize(f))` differentiates what the rule writes."""
    rule = made(lambda x: jnp.sqrt(x * x), jnp.abs)
    f = ag.optimize(lambda x: jnp.sqrt(x * x), rules=[rule])
    assert np.isnan(jax.grad(lambda x: jnp.sqrt(x * x))(0.0))
    assert jax.grad(f)(0.0) == jax.grad(jnp.abs)(0.0)


MALFORMED: dict[str, tuple[Any, str]] = {
    "no default": (lambda: ag.rule(exactness="bitwise", reason="r")(_without_default), "needs a default for its"),
    "a default": (lambda: ag.rule(exactness="bitwise", reason="r", name="r")(lambda x, y=1: x), "neither an array nor"),
    "a star": (lambda: ag.rule(exactness="bitwise", reason="r", name="r")(lambda *x: x), "neither an array nor"),
    "another count": (lambda: made(lambda x: x, lambda x, y: x), "takes other arguments in `after`"),
    "another parameter": (lambda: made(lambda x, *, k=1: x, lambda x, *, j: x), "takes other arguments in `after`"),
    "no after": (lambda: RuleSet((ag.rule(exactness="bitwise", reason="r", name="r")(jnp.sin),)), "does not say what"),
    "two names": (lambda: RuleSet((log1p, made(jnp.sin, jnp.cos, name=log1p.name))), "has the name of another"),
}  # fmt: skip


def _without_default(x: Any, *, axis: int) -> Any:
    return x.sum(axis)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_rules_are_refused_at_once(name: str) -> None:
    """A rule that cannot work says so where it is written."""
    make, text = MALFORMED[name]
    with pytest.raises(RuleError, match=text):
        make()


def test_a_condition_that_raises_is_named() -> None:
    """A mistake in a condition is the rule's, and stands in the user's line."""
    rule = made(lambda x: jnp.exp(x), lambda x: jnp.exp2(x), name="unsure")
    rule.when(lambda x: x > 3)
    with pytest.raises(
        RuleError, match=r"'unsure' has a condition that raises TypeError.\n +where +test_rule_driver.py"
    ):
        jax.jit(ag.optimize(jnp.exp, rules=[rule]))(X)


def test_an_after_of_another_type_is_an_error() -> None:
    """A rule never changes the type of a result; weak types are made to fit."""
    wrong = made(lambda x: jnp.exp(x), lambda x: jnp.exp(x)[0], name="wrong")
    with pytest.raises(
        RuleError, match=r"'wrong' changed the type of a result.\n(.*\n)*.*got +f32\[\]   \(wanted f32\[3\]\)"
    ):
        jax.jit(ag.optimize(jnp.exp, rules=[wrong]))(X)
    several = made(lambda x: jnp.exp(x), lambda x: (x, x), name="several")
    with pytest.raises(RuleError, match=r"got +f32\[3\], f32\[3\]   \(wanted f32\[3\]\)"):
        jax.jit(ag.optimize(jnp.exp, rules=[several]))(X)
    named = made(lambda x: jnp.exp(x), lambda x: {"x": x}, name="named")
    with pytest.raises(RuleError, match=r"cannot trace `after` at f32\[3\](.*\n)*.*returns dict, not an array"):
        jax.jit(ag.optimize(jnp.exp, rules=[named]))(X)
    large = np.ones(1000, "float32")
    closing = made(lambda x: jnp.exp(x), lambda x: x + jnp.asarray(large)[:3].sum() + large.sum(), name="closing")
    with pytest.raises(RuleError, match="closes over an array"):
        jax.jit(ag.optimize(jnp.exp, rules=[closing]))(X)


def test_a_before_that_cannot_be_traced_is_told() -> None:
    """A pattern that no example fits is not silent."""

    def strange(x: Any) -> Any:
        raise ValueError("no")

    report = report_of(jnp.exp, [made(strange, jnp.exp), made(lambda x: x, jnp.exp, name="nothing")], X)
    untraceable = "`before` cannot be traced at small arrays: ValueError: no (name others: ag.rule(..., shapes=...))"
    told = [untraceable, "`before` returns what it is given"]
    assert [d.reason for d in report.refused] == told


def test_mistakes_of_a_rule_are_not_hidden() -> None:
    """An attribute that is misspelt and an assertion that fails are errors with their line; a number has no shape."""
    misspelt = made(lambda x: jnp.exp(x.shaped), jnp.exp, name="misspelt")
    with pytest.raises(RuleError, match=r"'misspelt' has a function that raises AttributeError.*\n.*driver.py:\d+"):
        jax.jit(ag.optimize(jnp.exp, rules=[misspelt]))(X)

    def asserting(x: Any) -> Any:
        assert x.dtype == "int8"
        return jnp.exp(x)

    with pytest.raises(RuleError, match="raises AssertionError"):
        jax.jit(ag.optimize(jnp.exp, rules=[made(asserting, jnp.exp)]))(X)
    shaped = made(lambda x, y: (x + y) * x.shape[0], lambda x, y: x.shape[0] * (x + y))
    assert fired(lambda x: (2.0 + x) * 3, shaped, X) == 1  # the number was tried for `x` first


def test_decorators_without_parentheses_say_how() -> None:
    """`@ag.rule` and `@on_loop` alone name the function, its line and what to write; an empty claim is an error too."""
    bare: Any = ag.rule
    with pytest.raises(RuleError, match=r"'log-of' has no exactness(.*\n)*.*driver.py:\d+\n.*@ag.rule\(exactness="):

        @bare
        def log_of(x: Any) -> Any:
            return jnp.log(x)

    loops: Any = on_loop
    with pytest.raises(RuleError, match=r"'unrolled' (.*\n)*.*write @on_loop\(\) above it"):

        @loops
        def unrolled(loop: Any) -> Any:
            return loop.init, ()

    for words in ({}, {"exactness": "bitwise"}, {"reason": "it is"}):
        with pytest.raises(ag.UsageError, match="`exactness`" if "exactness" not in words else "`reason`"):
            bare(**words)
    with pytest.raises(ag.UsageError, match="a name, since the function has none"):
        bare(exactness="bitwise", reason="it is")(lambda x: x)


def test_sets_are_values() -> None:
    """`+` and `-` make new sets; a rule stands in a set once, in the order of the first time."""
    both = RuleSet() + log1p + [scale_first, log1p]
    assert list(both) == [log1p, scale_first]
    assert both - log1p == RuleSet((scale_first,)) == RuleSet() + scale_first
    assert both - both == RuleSet()
    assert log1p in both
    assert len(both) == 2
    assert hash(both) == hash(RuleSet((log1p, scale_first)))
    no_rule: Any = jnp.exp
    with pytest.raises(ag.UsageError, match="`rules`"):
        ag.optimize(jnp.exp, rules=[no_rule])
    with pytest.raises(ag.UsageError, match="'exact'"):
        ag.rule(exactness="exact", reason="it is")


def test_fingerprint() -> None:
    """Rules that say the same have one fingerprint; another number, name, order or exactness makes another."""

    def one(k: float, name: str = "r", exactness: str = "bitwise") -> Any:
        return made(lambda x: x * k, lambda x: k * x, exactness, name=name)

    same = [RuleSet((one(2.0),)).fingerprint for _ in range(2)]
    others = [RuleSet(r).fingerprint for r in ((one(3.0),), (one(2.0, "s"),), (one(2.0, exactness="finite"),), ())]
    assert same[0] == same[1]
    assert len({same[0], *others}) == 5
