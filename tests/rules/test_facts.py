"""Facts in conditions: what the program says of an operand, wherever it was said, reaches the rule."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.known.assume import ENTRYWISE, OF_MATRICES, OF_ROWS, closed
from aerogel.compiler.rules.constants import facts_of
from aerogel.transform.rule_facts import conforming
from rules.rules_under_test import fired, made, normal, refusals

A, B, D = normal(0, 4, 4), normal(1, 4, 4), normal(2, 4)
UNIT = np.eye(4, dtype="float32")
assume = ag.assume


MADE: dict[str, Any] = {
    "diagonal": lambda: jnp.diag(D),
    "identity": lambda: jnp.eye(4),
    "one_hot": lambda: jax.nn.one_hot(jnp.argsort(D), 4),
    "broadcast": lambda: jnp.broadcast_to(D, (4, 4)),
    "kronecker": lambda: jnp.kron(A[:2, :2], B[:2, 2:]),
    "sorted": lambda: lax.broadcasted_iota(jnp.int32, (4, 4), 1) * 2 + 1,
    "symmetric": lambda: A @ A.T,
    "non_negative": lambda: jax.nn.sigmoid(assume(A, "finite")),
    "finite": lambda: jnp.tanh(assume(A, "finite")),
    "zero": lambda: jnp.where(jnp.arange(4) > 7, A, 0.0),
    "constant": lambda: jnp.asarray(UNIT),
    "spd": lambda: assume(A @ A.T + 4 * jnp.eye(4), "spd"),
    "upper_triangular": lambda: assume(jnp.tril(A), "lower_triangular").T,
    "positive": lambda: assume(jnp.abs(A) + 1, "positive"),
}


def scanned(x: Any, m: Any) -> Any:
    """A product in each step of a loop with what is made before it."""
    return lax.scan(lambda c, _: (jnp.tanh(m @ c), None), x, None, length=3)[0]


def repeated(x: Any, m: Any) -> Any:
    """The same, as often as an array says."""
    return lax.fori_loop(0, jnp.argmax(D), lambda i, c: jnp.tanh(m @ c), x)


def mapped(x: Any, m: Any) -> Any:
    """The first loop in each step of another."""
    return lax.map(lambda y: scanned(y, m), x[None])


PLACES: dict[str, Any] = {
    "at once": lambda x, make: make() @ x,
    "a scan's constant": lambda x, make: scanned(x, make()),
    "made in a scan": lambda x, make: lax.scan(lambda c, _: (jnp.tanh(make() @ c), None), x, None, length=3)[0],
    "a while's constant": lambda x, make: repeated(x, make()),
    "in a branch": lambda x, make: lax.cond(x[0, 0] > 0, lambda m, x: m @ x, lambda m, x: x, make(), x),
    "two loops deep": lambda x, make: mapped(x, make()),
    "batched": lambda x, make: jax.vmap(lambda y: make() @ y)(jnp.stack([x, x])),
}


FOUND: list[Any] = []
looking = made(lambda a, b: a @ b, lambda a, b: jnp.flip(a, -1) @ jnp.flip(b, -2))
looking.when(lambda a, b: FOUND.append(a) or "only looked at")


def heard(f: Any, *args: Any) -> list[Any]:
    """The first operand at each product, as a condition sees it."""
    FOUND.clear()
    jax.eval_shape(ag.optimize(f, rules=[looking], passes=()), *args)
    return FOUND[:]


@pytest.mark.parametrize("place", PLACES)
def test_conditions_hear_what_is_known(place: str) -> None:
    """A fact is known where it holds, in bodies and of each example too; and nowhere else."""
    for fact, make in MADE.items():
        *_, operand = heard(lambda x, m=make: PLACES[place](x, lambda: m().astype(jnp.float32)), B)
        assert fact in operand.facts, fact
    assert [operand.facts for operand in heard(lambda x: PLACES[place](x, lambda: A * D), B)] == [frozenset()]


def test_a_rule_fires_on_a_fact() -> None:
    """In a loop's body, of a value that is made outside; with the results that were there."""
    rule = made(lambda a, b: a @ b, lambda a, b: jnp.diagonal(a)[:, None] * b, "finite")
    rule.when(lambda a, b: (a.ndim == b.ndim == 2 and "diagonal" in a.facts) or "not known to be diagonal")
    assert fired(lambda x: scanned(x, jnp.diag(D)), rule, B) == 1
    assert refusals(lambda x: scanned(x, A), rule, B) == ["not known to be diagonal"]


def test_facts_are_those_of_an_example() -> None:
    """Wherever the mapped axis stands: rows of a stack that are mapped are no rows of the example."""
    stack = normal(3, 4, 4, 4)
    for axis, diagonal in ((0, (1, 2)), (1, (0, 2)), (2, (0, 1))):
        batched = jax.vmap(jnp.matmul, in_axes=(axis, 0))
        for dims in ((0, 1), (0, 2), (1, 2)):
            (rest,) = {0, 1, 2} - {*dims}
            (operand,) = heard(lambda s, d=rest, f=batched: f(jnp.expand_dims(jnp.eye(4), d) * s, s), stack)
            assert ("diagonal" in operand.facts) == (dims == diagonal)


def test_a_body_that_stands_in_two_places_hears_of_neither() -> None:
    """What is so of the arguments of one call need not be of those of the other."""
    called = jax.jit(lambda m, x: scanned(x, m))
    assert heard(lambda x: called(jnp.eye(4), x), B)[0].facts >= {"identity"}
    for operand in heard(lambda x: called(jnp.eye(4), x) + called(A, x), B):
        assert "identity" not in operand.facts


def test_a_carry_is_not_what_it_starts_as() -> None:
    """Only what stays the same in each step is known in it; an entry of what is stacked is as the stack is."""
    f = lambda x: lax.scan(lambda c, y: (c @ x, y @ x), jnp.eye(4), jnp.zeros((3, 4, 4)))  # noqa: E731
    assert sorted(sorted(operand.facts & {"identity", "zero"}) for operand in heard(f, B)) == [[], ["zero"]]


def test_operands_tell_constants_of_bodies() -> None:
    """A loop's constant that is an array of the program has a value there; a mapped one has none."""
    assert np.array_equal(heard(lambda x: scanned(x, jnp.asarray(UNIT)), B)[0].value, UNIT)
    units = jnp.asarray(np.stack([UNIT, 2 * UNIT], 1))
    (operand,) = heard(lambda x: jax.vmap(jnp.matmul, in_axes=(1, 0))(units, x), normal(5, 2, 4, 4))
    assert operand.value is None
    assert "diagonal" in operand.facts
    assert "constant" not in operand.facts


def test_arguments_are_drawn_as_assumed() -> None:
    """Whatever is assumed of an argument holds for what `check_rule` draws, of every rank."""
    for fact in (*ENTRYWISE, *OF_ROWS, *OF_MATRICES):
        for shape in ((3, 3), (2, 4, 4)):
            x = np.asarray(conforming((normal(5, *shape),), (closed(frozenset((fact,))),))[0])
            turned = np.swapaxes(x, -1, -2)
            if fact == "orthogonal":
                np.testing.assert_allclose(x @ turned, np.broadcast_to(np.eye(shape[-1]), shape), 0, 1e-5)
            elif fact == "spd":
                assert np.linalg.eigvalsh(x).min() > 0
                assert np.array_equal(x, turned)
            else:
                assert fact in facts_of(x), fact


def test_check_rule_keeps_promises() -> None:
    """A rule that holds by a promise passes on programs that make it, and is found out on others."""
    sorts = made(lambda x: jnp.sort(x, -1), lambda x: x + 0, "assumes")
    program = lambda x: 2 * jnp.sort(assume(x, "sorted"), -1)  # noqa: E731
    with pytest.raises(ag.compiler.RuleCheckError, match="is not `assumes`"):
        ag.check_rule(sorts, fires_on=[sorts.before], under=[])
    sorts.when(lambda x: "sorted" in x.facts or "nobody says so")
    ag.check_rule(sorts, fires_on=[program], leaves_alone=[sorts.before], under=[jax.vmap])
