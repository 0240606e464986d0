"""Patterns of several results, of several spellings, and with keys among the operands."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler import RuleError
from rules.rules_under_test import fired, made, normal, refusals, report_of

X, Y = normal(0, 5), normal(1, 5)

polar = made(
    lambda x, y: (jnp.exp(x) * jnp.cos(y), jnp.exp(x) * jnp.sin(y)),
    lambda x, y: (jnp.real(z := jnp.exp(lax.complex(x, y))), jnp.imag(z)),
    name="polar",
)
moments = made(
    lambda x: (jnp.mean(x), jnp.mean(jnp.square(x))),
    lambda x: tuple(jnp.mean(jnp.stack([x, x * x]).reshape(2, -1), 1)),
    name="moments",
)

PAIRS: dict[str, Any] = {
    "plain": (polar, lambda x, y: (jnp.exp(x) * jnp.cos(y), jnp.exp(x) * jnp.sin(y)), (X, Y)),
    "in another order": (polar, lambda x, y: jnp.sin(y) * jnp.exp(x) + 2 * (jnp.cos(y) * jnp.exp(x)), (X, Y)),
    "batched": (moments, jax.vmap(lambda x: (jnp.mean(x), jnp.mean(jnp.square(x)))), (normal(0, 3, 5),)),
    "batched along another axis": (
        polar, jax.vmap(polar.before, in_axes=1, out_axes=1), (normal(0, 2, 3), normal(1, 2, 3)),
    ),
    "an operand alone in common": (moments, lambda x: jnp.mean(x) - jnp.mean(jnp.square(x)), (X,)),
    "in a loop": (
        polar, lambda x, y: lax.scan(lambda c, _: (polar.before(*c), None), (x, y), None, length=2)[0], (X, Y),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_several_results_are_found_together(name: str) -> None:
    """All results are replaced at once, whatever reads them."""
    rule, f, args = PAIRS[name]
    assert fired(f, rule, *args) == 1


def test_one_of_several_results_is_not_enough() -> None:
    """Where one result is missing, or belongs to other operands, the pattern is not there."""
    assert refusals(lambda x, y: jnp.exp(x) * jnp.cos(y), polar, X, Y) == ["expected `sin`, found `cos`"]
    crossed = lambda x, y: (jnp.exp(x) * jnp.cos(y), jnp.exp(x + 1) * jnp.sin(y))  # noqa: E731
    assert refusals(crossed, polar, X, Y)
    assert refusals(lambda x: jnp.mean(x) + jnp.mean(jnp.square(x + 1)), moments, X)


def test_an_operand_made_of_a_result() -> None:
    """What is needed for one result cannot be computed from another."""
    both = made(lambda x, y: (jnp.exp(x), jnp.exp(x) * jnp.tanh(y)), lambda x, y: (jnp.exp(x), jnp.exp(x) * y))
    f = lambda x: jnp.exp(x) * jnp.tanh(jnp.exp(x) + 1)  # noqa: E731
    assert "an argument is computed from one of the results" in refusals(f, both, X)


def test_one_result_read_in_the_middle_of_the_other() -> None:
    """A result may be what another one is made of."""
    both = made(lambda x: (jnp.exp(x), jnp.log(1 + jnp.exp(x))), lambda x: (jnp.exp(x), jnp.logaddexp(x, 0.0)))
    assert fired(lambda x: jnp.log(1 + jnp.exp(x)) * jnp.exp(x), both, X) == 1


def test_spellings() -> None:
    """One rule may look for several forms; each of them has the site's decision."""
    rule = made(lambda x: jnp.exp(x) - 1, jnp.expm1, "no_worse")
    f = lambda x: -(1 - jnp.exp(x))  # noqa: E731
    assert not fired(f, rule, X / 10)
    rule.also(lambda x: -(1 - jnp.exp(x)))
    assert fired(f, rule, X / 10) == fired(lambda x: jnp.exp(x) - 1, rule, X / 10) == 1
    ag.check_rule(rule, leaves_alone=[lambda x: jnp.exp(x) - 2, lambda x: 1 - jnp.exp(x)])
    with pytest.raises(RuleError, match="takes other arguments in `also`"):
        rule.also(lambda x, y: x)


def test_conditions_may_ask_the_site() -> None:
    """`when` is given the site, if it has an argument of that name."""
    rule = made(lambda x: jnp.log(1 + x), jnp.log1p)
    rule.when(lambda x, *, site: not site.in_loop or f"in a {site.around[-1].name}")
    assert fired(lambda x: jnp.log(1 + x), rule, abs(X)) == 1
    looped = lambda x: lax.scan(lambda c, _: (jnp.log(1 + c), None), x, None, length=2)[0]  # noqa: E731
    assert refusals(looped, rule, abs(X)) == ["in a scan"]


def test_keys_are_operands() -> None:
    """An argument that is annotated as a key is one; another draw is a matter of `other_bits`."""

    def signs(key: jax.dtypes.prng_key, p: Any) -> Any:
        drawn = jax.random.uniform(key, p.shape)  # pyright: ignore[reportArgumentType]
        return jnp.where(drawn < p, 1.0, 0.0)

    rule = made(signs, lambda key, p: jax.random.bernoulli(key, p).astype(p.dtype), "other_bits")
    f = lambda key, p: 2 * jnp.where(p > jax.random.uniform(key, p.shape), 1.0, 0.0)  # noqa: E731
    p = jnp.asarray(np.linspace(0, 1, 4), "float32")
    assert fired(f, rule, jax.random.key(0), p) == 1


def test_matches_that_wait_for_each_other() -> None:
    """Of two matches each of which would need a result of the other, one fires, and one is reported."""
    rule = made(
        lambda x, y: (jnp.exp(x), jnp.exp(x) * jnp.cos(y)),
        lambda x, y: ((z := jnp.exp2(np.float32(np.log2(np.e)) * x)) + 0 * y, z * jnp.cos(y)),
        "finite",
    )

    def crossed(x: Any, y: Any) -> Any:
        a, b = jnp.exp(x), jnp.exp(y)
        return a, a * jnp.cos(b), b, b * jnp.cos(a)

    report = report_of(crossed, [rule], X, Y)
    assert len(report.fired) == 1
    assert [d.reason for d in report.refused] == ["an argument is computed from one of the results"]
