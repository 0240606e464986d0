"""`check_pass` says which law a pass breaks."""

from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler import Builder, Context, Decision, Edit, Exactness, Program, apply_edits, rewrite_levels


class Negated:
    """Writes something in the place of each negation."""

    name = "negated"
    exactness = Exactness.BITWISE

    def __init__(self, write: Any):
        self.write = write

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        decisions: list[Decision] = []

        def level(jaxpr: Any) -> Any:
            edits = []
            for place, eqn in enumerate(jaxpr.eqns):
                if eqn.primitive.name == "neg":
                    builder, here = Builder(eqn), frozenset((place,))
                    (out,) = builder.call(self.write, *eqn.invars)
                    edits.append(Edit(place, here, builder.eqns, {eqn.outvars[0]: out}, here))
                    decisions.append(Decision(self.name, "a negation", "", True, "a test says so"))
            return apply_edits(jaxpr, edits)[0] if edits else jaxpr

        return rewrite_levels(program, level), decisions


EXAMPLES: Any = {"fires_on": [lambda x: jnp.cos(-x)], "leaves_alone": [jnp.cos]}


def test_a_good_pass_holds() -> None:
    """What keeps all laws passes."""
    ag.check_pass(Negated(lambda x: lax.mul(x, jnp.asarray(-1, x.dtype))), **EXAMPLES)


BROKEN: dict[str, tuple[Any, dict[str, Any], str]] = {
    "numbers": (lambda x: lax.mul(x, jnp.asarray(-1.5, x.dtype)), EXAMPLES, "pass 'negated' is not `bitwise`"),
    "rest": (lambda x: lax.neg(lax.neg(lax.neg(x))), EXAMPLES, "changes what it wrote itself"),
    "a near miss": (lax.abs, {**EXAMPLES, "leaves_alone": [jnp.negative]}, "fires on what it should leave alone"),
    "no site": (lax.abs, {"fires_on": [jnp.cos]}, "it found nothing"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_bad_passes_do_not_hold(name: str) -> None:
    """The error names the law."""
    write, examples, text = BROKEN[name]
    with pytest.raises(ag.RuleCheckError, match=text):
        ag.check_pass(Negated(write), under=[], **examples)
