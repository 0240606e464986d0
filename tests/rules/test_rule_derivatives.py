"""Rules that bring a derivative: where it is used, and what is said where one cannot be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag

X = jnp.arange(1.0, 5.0)


def marked_sine() -> Any:
    """A rule that finds sin(scale * x), leaves it, and says that its derivative is 100."""

    @ag.rule(exactness="no_worse", reason="its derivative is known")
    def sine(x, *, scale=2.0):
        return jnp.sin(x * scale)

    @sine.defjvp
    def _(primals, tangents, *, scale):
        return jnp.sin(primals[0] * scale), 100 * scale * tangents[0]

    return sine


def softened(x: jax.Array) -> jax.Array:
    """A program that holds the pattern of `marked_sine`, with a scale of 3."""
    return jnp.sum(jnp.sin(x * 3) * X)


WANTED = 300 * X
DIFFERENTIATED = {
    "grad of optimize": lambda f, rules: jax.grad(ag.optimize(f, rules=rules)),
    "jit of grad": lambda f, rules: ag.jit(ag.grad(f), rules=rules),
    "strict": lambda f, rules: ag.jit(ag.grad(f), rules=rules, numerics="strict"),
    "value_and_grad with anything beside it": lambda f, rules: ag.jit(
        lambda x: ag.value_and_grad(lambda x: (f(x), {"name": "aux"}), has_aux=True)(x)[1], rules=rules
    ),
    "jvp": lambda f, rules: ag.jit(lambda x: jax.vmap(lambda e: ag.jvp(f, (x,), (e,))[1])(jnp.eye(4)), rules=rules),
    "vjp": lambda f, rules: ag.jit(lambda x: ag.vjp(f, x)[1](1.0)[0], rules=rules),
    "jacfwd": lambda f, rules: ag.jit(ag.jacfwd(f), rules=rules),
    "vmap": lambda f, rules: ag.jit(lambda x: jax.vmap(ag.grad(f))(x[None])[0], rules=rules),
    "in a scan": lambda f, rules: ag.jit(
        lambda x: jax.lax.scan(lambda c, _: (ag.grad(f)(x), None), x, None, length=2)[0], rules=rules
    ),
    "a jit inside": lambda f, rules: ag.jit(ag.grad(jax.jit(f)), rules=rules),
}


@pytest.mark.parametrize("how", DIFFERENTIATED)
def test_the_rule_s_derivative_is_used(how: str) -> None:
    """Whichever way the gradient is taken; and without the rule, JAX's own is."""
    made = DIFFERENTIATED[how]
    np.testing.assert_allclose(made(softened, [marked_sine()])(X), WANTED, rtol=1e-6)
    np.testing.assert_allclose(made(softened, [])(X), 3 * X * jnp.cos(3 * X), rtol=1e-5)


def test_the_value_is_what_it_was() -> None:
    """A rule with a derivative only changes no number; the optimised program holds the function with it."""
    program = jax.make_jaxpr(ag.optimize(softened, rules=[marked_sine()]))(X)
    assert [e.primitive.name for e in program.eqns].count("custom_jvp_call") == 1
    assert float(ag.jit(softened, rules=[marked_sine()])(X)) == float(jax.jit(softened)(X))


def test_a_gradient_that_jax_took_keeps_its_derivative() -> None:
    """`jax.grad` inside of what is optimised comes before the rule, which then finds nothing."""
    got = ag.jit(jax.grad(softened), rules=[marked_sine()])(X)
    np.testing.assert_allclose(got, jax.grad(softened)(X), rtol=1e-6)


def test_rules_in_use_bring_theirs() -> None:
    """`ag.rules.use` counts where a program is optimised, also for a function that was compiled before."""
    gradient, plain = ag.jit(ag.grad(softened)), jax.jit(ag.grad(softened))
    before = gradient(X)
    with ag.rules.use(ag.rules.default + marked_sine(), unchecked=True):
        np.testing.assert_allclose(gradient(X), WANTED)
        np.testing.assert_array_equal(plain(X), before)
    np.testing.assert_array_equal(gradient(X), before)


def test_what_a_setting_forbids_is_not_written() -> None:
    """A rule that reassociates brings no derivative under `numerics="strict"`."""
    rule = marked_sine()
    rule.exactness = ag.compiler.Exactness.REASSOCIATES
    np.testing.assert_allclose(ag.jit(ag.grad(softened), rules=[rule])(X), WANTED)
    strict = ag.jit(ag.grad(softened), rules=[rule], numerics="strict")(X)
    np.testing.assert_allclose(strict, jax.grad(softened)(X), rtol=1e-6)


def test_the_report_tells_of_it() -> None:
    """What is written before differentiation stands in the report of the whole program."""
    report = ag.explain(ag.grad(softened), rules=[marked_sine()])(X)
    assert [(d.rule, d.what) for d in report.fired] == [("sine", "`mul`, `sin` becomes `custom_jvp_call`")]


def stable_norm(gradient: Any) -> Any:
    """A rule that writes another form, with a derivative for reverse mode."""

    @ag.rule(exactness="reassociates", reason="its gradient at 0 is 0")
    def norm(x):
        return jnp.sqrt(jnp.sum(x * x))

    @norm.to
    def _(x):
        return jnp.linalg.norm(x)

    norm.defvjp(lambda x: (jnp.linalg.norm(x), x), gradient)
    norm.examples(fires_on=[lambda x: 2 * jnp.sqrt(jnp.sum(x * x))])
    return norm


def safe(x, g):
    """The gradient of a norm, 0 at 0."""
    norm = jnp.linalg.norm(x)
    return (jnp.where(norm > 0, g * x / jnp.where(norm > 0, norm, 1), 0),)


def test_a_rule_for_reverse_mode() -> None:
    """It writes its other form, whose gradient is finite where JAX's own of the first form is not."""
    gradient = ag.jit(ag.grad(lambda x: jnp.sqrt(jnp.sum(x * x))), rules=[stable_norm(safe)])
    assert np.isnan(jax.grad(lambda x: jnp.sqrt(jnp.sum(x * x)))(jnp.zeros(3))).all()
    np.testing.assert_array_equal(gradient(jnp.zeros(3)), np.zeros(3))
    np.testing.assert_allclose(gradient(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)


def test_a_wrong_derivative_is_found() -> None:
    """`check_rule` looks at gradients, so the derivative of a rule must be one."""
    ag.check_rule(stable_norm(safe))
    with pytest.raises(ag.RuleCheckError, match="gradient"):
        ag.check_rule(stable_norm(lambda x, g: (2 * safe(x, g)[0],)))


def test_a_rule_says_why_it_takes_no_derivative() -> None:
    """There is one already, or nobody differentiates after its stage."""
    rule = marked_sine()
    with pytest.raises(ag.RuleError, match="has two derivatives"):
        rule.defvjp(lambda x: (x, x), lambda x, g: (g,))

    @ag.rule(exactness="bitwise", reason="late", stage="after")
    def late(x):
        return x + 1

    with pytest.raises(ag.RuleError, match="runs after differentiation"):
        late.defjvp(lambda primals, tangents: (primals[0], tangents[0]))


def test_a_derivative_is_part_of_a_fingerprint() -> None:
    """Two sets that differ in a derivative alone are told apart."""
    one, other = (ag.compiler.RuleSet((stable_norm(g),)) for g in (safe, lambda x, g: (g * x,)))
    assert one.fingerprint != other.fingerprint
