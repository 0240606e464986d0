"""Rules: the decorators keep the types of the functions, and the options take rules."""

from dataclasses import dataclass
from typing import Any, assert_type

import jax
import jax.numpy as jnp
from values import X

import aerogel as ag
from aerogel.compiler import Context, Decision, Exactness, Program, Rule, RuleSet


@ag.rule(exactness="no_worse", reason="log(1 + x) loses small x")
def log_of_one_plus(x: jax.Array) -> jax.Array:
    return jnp.log(1 + x)


@log_of_one_plus.to
def _(x: jax.Array) -> jax.Array:
    return jnp.log1p(x)


assert_type(log_of_one_plus, Rule)
mine = [log_of_one_plus]
assert_type(ag.rules.default + mine, RuleSet)


def loss(x: jax.Array) -> jax.Array:
    return jnp.log(1 + x).sum()


assert_type(ag.optimize(loss, rules=[log_of_one_plus])(X), jax.Array)
ag.check_rule(log_of_one_plus, fires_on=[(loss, (X,))])
ag.rule(exactness=3, reason="no word")  # pyright: ignore[reportArgumentType]


assert_type(ag.assume(X, "spd"), Any)


@dataclass(frozen=True)
class Nothing:
    name: str = "nothing"
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        return program, []


ag.check_pass(Nothing(), fires_on=[], leaves_alone=[(loss, (X,))])
