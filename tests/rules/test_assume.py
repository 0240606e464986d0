"""What users say about values: rules hear it, numbers and derivatives do not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler import assume
from rules.rules_under_test import fired, made, normal, refusals, regular, report_of

inverse_times = ag.rules.inverse_times


def cholesky_rule() -> Any:
    """A rule that needs a promise."""
    rule = made(
        inverse_times.before, lambda A, b: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(A), True), b), "assumes"
    )
    rule.when(lambda A, b: "spd" in A.facts or f"known of it: {sorted(A.facts)}")
    return rule


def positive_definite(*batch: int) -> Any:
    """Matrices of which it holds."""
    A = regular(0, *batch)
    return A @ jnp.swapaxes(A, -1, -2)


def said(A: Any, b: Any) -> Any:
    """The pattern, of a matrix that something is assumed of."""
    return jnp.linalg.inv(assume(A, "spd")) @ b


def test_rules_hear_what_is_assumed() -> None:
    """At the operand, by any of its names, under `vmap` and in a function that is called twice."""
    rule, A, b = cholesky_rule(), positive_definite(), normal(1, 4)
    assert refusals(inverse_times.before, rule, A, b) == ["known of it: []"]
    assert fired(said, rule, A, b) == 1
    assert fired(lambda A, b: (assume(A, "identity").sum(), jnp.linalg.inv(A) @ b), rule, 0 * A + jnp.eye(4), b) == 1
    assert fired(jax.vmap(said), rule, positive_definite(3), normal(1, 3, 4)) == 1
    assert fired(jax.vmap(said, in_axes=(2, None)), rule, jnp.moveaxis(positive_definite(3), 0, 2), b) == 1
    twice = jax.jit(said)
    assert fired(lambda A, b: twice(A, b) + twice(2 * A, b), rule, A, b) == 1  # in the one function


def test_a_pattern_is_found_through_it() -> None:
    """In the middle of a pattern it is no operation."""
    A, b = positive_definite(), normal(1, 4)
    assert fired(lambda A, b: assume(jnp.linalg.inv(A), "spd", "finite") @ b, inverse_times, A, b) == 1


def test_facts_of_constants() -> None:
    """What an array of the program says itself needs no assumption."""
    facts: list[Any] = []
    rule = made(lambda A, b: A @ b, lambda A, b: b @ A.T)
    rule.when(lambda A, b: facts.append((A.facts, b.facts)) or "only looked at")
    unit = np.eye(3, dtype="float32")
    report_of(lambda b: jnp.asarray(unit) @ b, [rule], normal(0, 3))
    assert {"constant", "identity", "spd", "diagonal", "symmetric", "finite"} <= facts[0][0]
    assert facts[0][1] == frozenset()


def test_numbers_and_derivatives_are_as_without() -> None:
    """It is the identity, costs nothing, and lets loops and batches through."""
    A, b = positive_definite(), normal(1, 4)
    f = lambda A, b: inverse_times.before(A, b)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(said)(A, b), jax.jit(f)(A, b))
    for transform in (jax.jacfwd, jax.jacrev, lambda f: jax.hessian(lambda A, b: f(A, b).sum())):
        np.testing.assert_allclose(transform(said)(A, b), transform(f)(A, b), 1e-5, 1e-5)

    def looped(x: Any) -> Any:
        _, xs = jax.lax.scan(lambda c, _: (0.99 * c, c), x, None, length=100)
        return assume(xs, "finite").sum()

    assert [d.rule for d in ag.explain(looped)(jnp.ones(1000)).fired] == ["loop-fusion"]


def test_of_a_batch_it_is_said_of_each() -> None:
    """The dimensions of the matrix stay the last two, wherever the batch was."""
    f = jax.vmap(lambda A: assume(A, "spd"), in_axes=1, out_axes=1)
    (eqn,) = [one for one in jax.make_jaxpr(f)(jnp.ones((4, 3, 4))).eqns if one.primitive.name == "assume"]
    assert eqn.invars[0].aval.shape == (3, 4, 4)


def test_words_that_say_nothing() -> None:
    """Facts have names; those of matrices are about matrices."""
    for facts, argument in ((("smooth",), "facts"), ((), "facts"), (("spd",), "x")):
        with pytest.raises(ag.UsageError, match=f"`{argument}`"):
            assume(jnp.ones(3), *facts)
