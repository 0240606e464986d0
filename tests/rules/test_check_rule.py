"""`check_rule` passes good rules, and says of each bad one what is wrong with it."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel.compiler import Site, on
from rules.rules_under_test import log1p, made, normal, regular

RuleCheckError = ag.RuleCheckError
LOGS = [lambda x: jnp.log(1 + x), lambda x: jnp.log(x + 1) * 2]
NEAR_LOGS = [lambda x: jnp.log(2 + x), lambda x: jnp.log(1 - x), lambda x: jnp.log2(1 - x)]


def test_good_rules_pass() -> None:
    """A rule that does what it says, with near misses; under transformations that the user names too."""
    ag.check_rule(log1p, fires_on=LOGS, leaves_alone=NEAR_LOGS, under=[jax.grad, jax.vmap, jax.checkpoint])


def test_shipped_rules_pass() -> None:
    """Each rule of `ag.rules` keeps its claim, and has two near misses."""
    args = regular(0), normal(1, 4)
    ag.check_rule(
        ag.rules.inverse_times,
        fires_on=[
            (lambda A, b: jnp.linalg.inv(A) @ b, args),
            (lambda A, b: jnp.dot(jnp.linalg.inv(A), b) + 1, (args[0], normal(1, 4, 2))),
        ],
        leaves_alone=[
            (lambda A, b: b @ jnp.linalg.inv(A), args),
            (lambda A, b: jnp.linalg.pinv(A) @ b, args),
            (lambda A, b: jnp.linalg.inv(A).T @ b, args),
        ],
    )


@jax.custom_jvp
def _wrong_slope(x: Any) -> Any:
    return jnp.log1p(x)


_wrong_slope.defjvp(lambda primals, tangents: (_wrong_slope(*primals), 2 * tangents[0]))


def length(x: Any) -> Any:
    """A pattern that overflows for no number."""
    return jnp.hypot(x, 0.5 * x)


def beside_an_overflow(x: Any) -> Any:
    """The pattern in a program another part of which overflows at large numbers."""
    return jnp.stack([length(x), x * x / (1 + x * x)])


overflows = made(length, lambda x: jnp.sqrt(x * x + 0.25 * x * x))
exact = made(length, lambda x: jnp.hypot(0.5 * x, x))


def test_overflow_is_judged_entry_by_entry() -> None:
    """What overflows without the rule as well is no fault of it, and no excuse for another entry."""
    ag.check_rule(exact, fires_on=[length, beside_an_overflow], under=[])
    for example in (length, beside_an_overflow):
        with pytest.raises(RuleCheckError, match=r"argument 0 2.65846e\+36\n.*got +inf"):
            ag.check_rule(overflows, fires_on=[example], under=[])


def test_random_programs_around_the_site() -> None:
    """A rule that is right where it stands alone, and wrong in a loop, does not pass."""

    @on("exp", exactness="bitwise")
    def wrong_in_loops(x: Any, *, site: Site) -> Any:
        return jnp.exp(x) * 1.5 if site.in_loop else jnp.exp(1 * x)

    with pytest.raises(RuleCheckError, match="in a random program"):
        ag.check_rule(wrong_in_loops, fires_on=[lambda x: jnp.exp(x) + 1], under=[])


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "other numbers": (made(log1p.before, lambda x: jnp.log1p(x) * 1.001), {}, "is not `reassociates`"),
    "less exact than it says": (made(log1p.before, jnp.log1p, "bitwise"), {}, "is not `bitwise`"),
    "less exact at small numbers": (made(jnp.log1p, lambda x: jnp.log(1 + x), "no_worse"), {}, "is not `no_worse`"),
    "nan is lost": (made(lambda x: 2 * jnp.abs(x), lambda x: jnp.abs(2 * jnp.nan_to_num(x))), {}, "argument 0 nan"),
    "another gradient": (made(log1p.before, _wrong_slope), {}, "under `gradient`"),
    "a near miss": (log1p, {"leaves_alone": LOGS}, "fires on what it should leave alone"),
    "no site": (log1p, {"fires_on": [jnp.sin]}, "holds no first operation"),
    "another site": (log1p, {"fires_on": NEAR_LOGS[:1]}, "expected the number 1.0, found the number 2.0"),
    "no arguments": (log1p, {"fires_on": [lambda x: x["a"]]}, "cannot be tried"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_rules_do_not_pass(name: str) -> None:
    """The error says which claim does not hold, for which program and arguments."""
    rule, examples, text = BAD[name]
    with pytest.raises(RuleCheckError, match=text) as caught:
        ag.check_rule(rule, under=[jax.grad], **examples)
    assert rule.name in str(caught.value)
