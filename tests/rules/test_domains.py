"""Rules as users of other fields write them with the tutorial alone, and what they are told when they go wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler import RuleError
from rules.rules_under_test import fired, made, normal

GATE, STATE = normal(0, 2, 2), normal(1, 8)
SEQUENCE, WEIGHTS = jnp.array([0, 1, 2, 3, 0, 1]), normal(2, 6, 4)
GRAPH, NODES = abs(normal(3, 6, 6)), normal(4, 6)
STRAIN, STIFFNESS, POINTS = normal(5, 8, 3, 6), normal(6, 3, 3), abs(normal(7, 8))
PLACES, BASIS = normal(8, 50), normal(9, 4)


def assembled(b: Any, d: Any, w: Any) -> Any:
    """The stiffness of a finite element: a sum over its points."""
    return jnp.sum(jnp.einsum("qki,kl,qlj->qij", b, d, b) * w[:, None, None], 0)


def diffused(a: Any, x: Any) -> Any:
    """Five steps of heat over a graph."""
    return lax.fori_loop(0, 5, lambda _, x: x - 0.1 * ((jnp.diag(a.sum(1)) - a) @ x), x)


RULES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a gate on the first qubits of a circuit": (
        made(
            lambda g, h, state: jnp.kron(g, h) @ state,
            lambda g, h, state: (g @ state.reshape(g.shape[1], -1) @ h.T).reshape(-1),
            name="gate", shapes=((2, 2), (4, 4), (8,)),
        ),
        [(lambda g, h, state: 2 * (jnp.kron(g, h) @ state), (GATE, normal(10, 4, 4), STATE))],
        [(lambda g, state: jnp.kron(g[0], jnp.ones(4)) * state, (GATE, STATE))],
    ),
    "a cubic between two knots": (
        made(
            lambda x, a, b, c, d: a + b * x + c * x**2 + d * x**3,
            lambda x, a, b, c, d: a + x * (b + x * (c + x * d)),
            name="horner",
        ),
        [(lambda x, c: c[0] + x * c[1] + x * x * c[2] + c[3] * x**3, (PLACES, BASIS))],
        [(lambda x, c: c[0] + c[1] * x + c[2] * x**2 + c[3] * x**4, (PLACES, BASIS))],
    ),
    "an element's stiffness": (
        made(
            assembled,
            lambda b, d, w: jnp.einsum("qki,qkj->ij", b, jnp.einsum("kl,qlj->qkj", d, b) * w[:, None, None]),
            name="stiffness",
        ),
        [(assembled, (STRAIN, STIFFNESS, POINTS))],
        [(lambda b, d, w: jnp.einsum("qki,kl,qlj->ij", b, d, b), (STRAIN, STIFFNESS, POINTS))],
    ),
    "a sequence under a weight matrix": (
        made(
            lambda letters, weights: jnp.sum(letters * weights),
            lambda letters, weights: jnp.sum(
                jnp.max(letters, 1) * jnp.take_along_axis(weights, jnp.argmax(letters, 1)[:, None], 1)[:, 0]
            ),
            "finite", name="letters",
        ),
        [(lambda s, w: jnp.sum(w * jax.nn.one_hot(s, 4)), (SEQUENCE, WEIGHTS))],
        [(lambda s, w: jnp.sum(w * w), (SEQUENCE, WEIGHTS))],
    ),
    "a graph's Laplacian": (
        made(
            lambda a, x: (jnp.diag(a.sum(1)) - a) @ x,
            lambda a, x: a.sum(1) * x - a @ x,
            name="laplacian",
        ),
        [(diffused, (GRAPH, NODES))],
        [(lambda a, x: (jnp.diag(a.sum(0)) - a) @ x, (GRAPH, NODES))],
    ),
}  # fmt: skip
RULES["a sequence under a weight matrix"][0].when(
    lambda letters, weights: "one_hot" in letters.facts or "not known to be one-hot"
)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_a_domain(name: str) -> None:
    """It fires where it should, leaves near misses alone, and holds what it claims."""
    rule, fires_on, leaves_alone = RULES[name]
    ag.check_rule(rule, fires_on=fires_on, leaves_alone=leaves_alone, under=[])


def test_what_goes_wrong_is_said() -> None:
    """A misspelt fact, arguments that are no tuple, a word for a set, too few shapes, an axis as an array."""

    def doubtful(x: Any) -> Any:
        return "one-hot" in x.facts

    doubts = made(jnp.exp, jnp.exp, name="doubts")
    doubts.when(doubtful)
    with pytest.raises(RuleError, match=r"test_domains.py:\d+\n(.*\n)*.*'one-hot' is not a value that `facts` takes"):
        fired(jnp.exp, doubts, NODES)
    with pytest.raises(ag.UsageError, match=r"`fires_on` takes(.*\n)*.*\(f, \(x,\)\)"):
        ag.check_rule(doubts, fires_on=[(jnp.exp, NODES)])
    word: Any = "laplacian"
    with pytest.raises(ag.UsageError, match="'laplacian' is not a value that `rules` takes"):
        ag.optimize(jnp.exp, rules=word)
    with pytest.raises(ag.UsageError, match="`rule` of `check_rule`"):
        ag.check_rule(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(ag.UsageError, match="2 shapes, of a, b"):
        ag.rule(exactness="bitwise", reason="it is", shapes=[(3,)], name="two")(lambda a, b: a * b)
    told = {
        "keyword-only": made(lambda x, axis: jnp.sum(x, axis), lambda x, axis: x, name="axis"),
        "shapes=": made(lambda g, x: g @ x.reshape(2, -1), lambda g, x: x, name="gate"),
    }
    for words, rule in told.items():
        (refusal,) = ag.explain(jnp.exp, rules=[rule])(NODES).refused
        assert words in refusal.reason
