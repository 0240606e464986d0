"""Rules that bring a derivative: where it is used, and what is said where one cannot be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

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


def softened_by(count: int) -> Any:
    """The same at another size."""
    return lambda x: jnp.sum(jnp.sin(x * 3) * jnp.arange(float(count)))


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


def marked_log_sum() -> Any:
    """A rule for reverse mode whose derivative is 100 for each entry."""

    @ag.rule(exactness="reassociates", reason="its derivative is known")
    def log_sum(x):
        return jnp.log(jnp.sum(jnp.exp(x), axis=-1))

    log_sum.defvjp(lambda x: (jax.nn.logsumexp(x, axis=-1), x), lambda x, g: (100 * g[..., None] * jnp.ones_like(x),))
    return log_sum


def marked_ratio() -> Any:
    """A rule of two arguments, by which its derivatives are 100 and 1000."""

    @ag.rule(exactness="reassociates", reason="its derivative is known")
    def ratio(x, y):
        return x * y / (x * x + y * y)

    @ratio.defjvp
    def _(primals, tangents):
        x, y = primals
        return x * y / (x * x + y * y), 100 * tangents[0] + 1000 * tangents[1]

    return ratio


def marked_polar() -> Any:
    """A rule with two results."""

    @ag.rule(exactness="reassociates", reason="its derivative is known")
    def polar(x, y):
        return jnp.sqrt(x * x + y * y), jnp.arctan2(y, x)

    @polar.defjvp
    def _(primals, tangents):
        x, y = primals
        return (jnp.sqrt(x * x + y * y), jnp.arctan2(y, x)), (100 * tangents[0], 1000 * tangents[1])

    return polar


def log_sum(x: jax.Array, axis: int = -1) -> jax.Array:
    """As it is written by hand."""
    return jnp.log(jnp.sum(jnp.exp(x), axis=axis))


Y, ROWS = jnp.arange(2.0, 6.0), jnp.cos(jnp.arange(12.0)).reshape(3, 4)
# Programs that hold the pattern, at their arguments.
FORMS: dict[str, tuple[Any, Any, tuple[jax.Array, ...]]] = {
    "weighted": (marked_sine, softened, (X,)),
    "value read, too": (marked_sine, lambda x: jnp.sum(jnp.sin(x * 3) ** 2 * X), (X,)),
    "cotangent of ones": (marked_sine, lambda x: jnp.sum(jnp.sin(x * 3)), (X,)),
    "in a jit": (marked_sine, jax.jit(softened), (X,)),
    "in a checkpoint": (marked_sine, jax.checkpoint(softened), (X,)),
    "a number": (marked_sine, lambda x: jnp.sin(x * 3.0), (jnp.float32(1),)),
    "in a scan": (marked_sine, lambda x: lax.scan(lambda c, _: (jnp.sin(c * 3), None), x, None, 5)[0].sum(), (X,)),
    "entries of a scan": (marked_sine, lambda x: lax.scan(lambda c, a: (c * jnp.sin(a * 3), None), x[0], x)[0], (X,)),
    "in a vmap": (marked_sine, lambda x: jax.vmap(lambda a: jnp.sin(a * 3) * 2)(x).sum(), (X,)),
    "two sums": (marked_sine, lambda x: jnp.sum(jnp.sin(x * 3) * X) + jnp.sum(jnp.sin(x * 5)), (X,)),
    "one in the other": (marked_sine, lambda x: jnp.sum(jnp.sin(3 * jnp.sin(x * 3))), (X,)),
    "bfloat16": (
        marked_sine,
        lambda x: jnp.sum(jnp.sin(x * 3) * X.astype(jnp.bfloat16)),
        (X.astype(jnp.bfloat16),),
    ),
    "a part": (marked_sine, lambda x: jnp.sin(x[1:] * 3).sum() * 2, (X,)),
    "rows": (marked_log_sum, lambda x: log_sum(x).sum(), (ROWS,)),
    "squares of rows": (marked_log_sum, lambda x: (log_sum(x) ** 2).sum(), (ROWS,)),
    "columns": (marked_log_sum, lambda x: (log_sum(x, 0) ** 2).sum(), (ROWS,)),
    "columns alone": (marked_log_sum, lambda x: log_sum(x, 0).sum(), (ROWS,)),
    "mapped rows": (marked_log_sum, lambda x: jax.vmap(lambda r: log_sum(r) * 2)(x).sum(), (ROWS,)),
    "two arguments": (marked_ratio, lambda x, y: (x * y / (x * x + y * y)).sum(), (X, Y)),
    "one of two": (marked_ratio, lambda y: (X * y / (X * X + y * y)).sum(), (Y,)),
    "beside others": (marked_ratio, lambda x, y: (Y * (x * y / (x * x + y * y)) ** 2).sum() + x.sum(), (X, Y)),
    "two results": (
        marked_polar,
        lambda x, y: (jnp.sqrt(x * x + y * y) * 2 + jnp.arctan2(y, x) * X).sum(),
        (X, Y),
    ),
    "one result": (
        marked_polar,
        lambda x, y: (jnp.sqrt(x * x + y * y) * 2 + 0 * lax.stop_gradient(jnp.arctan2(y, x))).sum(),
        (X, Y),
    ),
    "no entries": (marked_sine, softened_by(0), (jnp.zeros(0),)),
}


def both(f: Any, how: str, args: Any) -> tuple[Any, Any]:
    """A derivative by Aerogel and by JAX."""
    by = tuple(range(len(args)))
    along = tuple(jnp.cos(7 * k + x).astype(x.dtype) for k, x in enumerate(args))
    ours, theirs = {
        "grad": (lambda: ag.grad(f, argnums=by), lambda: jax.grad(f, argnums=by)),
        "value and grad": (lambda: ag.value_and_grad(f, argnums=by), lambda: jax.value_and_grad(f, argnums=by)),
        "jvp": (lambda: lambda *xs: ag.jvp(f, xs, along), lambda: lambda *xs: jax.jvp(f, xs, along)),
        "linearize": (
            lambda: lambda *xs: ag.jvp(f, xs, along)[1],
            lambda: lambda *xs: jax.linearize(f, *xs)[1](*along),
        ),
        "jacfwd": (lambda: ag.jacfwd(f, argnums=by), lambda: jax.jacfwd(f, argnums=by)),
        "jacrev": (lambda: ag.jacrev(f, argnums=by), lambda: jax.jacrev(f, argnums=by)),
        "vmap of grad": (
            lambda: lambda *xs: jax.vmap(ag.grad(f, argnums=by))(*(jnp.stack([x, x]) for x in xs)),
            lambda: lambda *xs: jax.vmap(jax.grad(f, argnums=by))(*(jnp.stack([x, x]) for x in xs)),
        ),
    }[how]
    return ours(), theirs()


FORWARD = ("jvp", "linearize", "jacfwd")
ALL = ("grad", "value and grad", *FORWARD, "jacrev", "vmap of grad")
SOME = ("weighted", "one in the other", "in a scan", "columns", "beside others")
PAIRS = [(form, "grad") for form in FORMS] + [(form, how) for form in SOME for how in ALL[1:]]
PAIRS += [("one of two", "linearize"), ("one result", "jacrev"), ("a number", "vmap of grad"), ("in a vmap", "jacfwd")]


@pytest.mark.parametrize(("form", "how"), [(f, h) for f, h in PAIRS if not (f == "columns" and h in FORWARD)])
def test_a_derivative_that_jax_took_becomes_the_rule_s(form: str, how: str) -> None:
    """`jax.grad` and its kin inside of what is optimised: what JAX wrote is found, and is as `ag.grad` has it."""
    rule, f, args = FORMS[form]
    rules = [rule()]
    ours, theirs = both(f, how, args)
    got, wanted = ag.jit(theirs, rules=rules)(*args), ag.jit(ours, rules=rules)(*args)
    exact = 2e-2 if form == "bfloat16" else 1e-4
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=exact)
    if form != "no entries":
        plain = [np.asarray(x, np.float32) for x in jax.tree.leaves(jax.jit(theirs)(*args))]
        assert any(not np.allclose(x, y, rtol=exact) for x, y in zip(plain, jax.tree.leaves(got), strict=True))


def safe_log_sum() -> Any:
    """A rule without a derivative: large numbers do not overflow in what it writes, nor in the derivative of that."""

    @ag.rule(exactness="finite", reason="its largest term is 1")
    def safe(x):
        return jnp.log(jnp.sum(jnp.exp(x), axis=-1))

    @safe.to
    def _(x):
        return jax.nn.logsumexp(x, axis=-1)

    return safe


def solved() -> Any:
    """A rule for a product with an inverse."""

    @ag.rule(exactness="reassociates", reason="one factorisation is enough")
    def inverse_product(a, b):
        return jnp.linalg.inv(a) @ b

    @inverse_product.to
    def _(a, b):
        return jnp.linalg.solve(a, b)

    return inverse_product


LARGE = jnp.array([[100.0, 0.0], [1.0, 2.0]])
PLAIN: dict[str, tuple[Any, Any, tuple[jax.Array, ...]]] = {
    "nobody reads its value": (safe_log_sum, lambda x: log_sum(x).sum(), (LARGE,)),
    "its value is read": (safe_log_sum, lambda x: (log_sum(x) ** 2).sum(), (LARGE,)),
    "in a scan": (
        safe_log_sum,
        lambda x: lax.scan(lambda c, _: (c * 0.5 + log_sum(c)[:, None], None), x, None, length=3)[0].sum(),
        (LARGE,),
    ),
    "inverse": (solved, lambda a, b: ((jnp.linalg.inv(a) @ b) ** 2).sum(), (jnp.eye(3) * 3 + 0.5, jnp.arange(3.0))),
}


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("how", ["grad", "value and grad", "jacfwd"])
def test_a_rule_without_a_derivative_is_found_in_one(form: str, how: str) -> None:
    """What stands where JAX's derivative was is the derivative of what the rule writes."""
    rule, f, args = PLAIN[form]
    _, theirs = both(f, how, args)
    said = ag.explain(theirs, rules=[rule()])(*args)
    assert any("derivative of" in d.what for d in said.fired)
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda x: x.astype(jnp.float64), args)
        _, wanted = both(f, how, exact)
        wanted = wanted(*exact)
    for x, y in zip(*map(jax.tree.leaves, (ag.jit(theirs, rules=[rule()])(*args), wanted)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-30)


def test_many_rules_are_looked_for_where_their_value_is() -> None:
    """What the derivatives of many rules keep is not found out: that would take longer than to trace the program."""
    rule, f, (x,) = PLAIN["nobody reads its value"]
    others = [
        ag.rule(exactness="bitwise", reason="one of many", name=f"{k}")(lambda x: jnp.sin(x) * 3) for k in range(9)
    ]
    for other in others:
        other.to(lambda x: 3 * jnp.sin(x))
    for how, found in ((jax.grad, False), (jax.value_and_grad, True)):
        said = ag.explain(how(f), rules=[rule(), *others])(x)
        assert any("derivative of" in d.what for d in said.fired) is found


NEAR_MISSES = {
    "its middle is read elsewhere": lambda x: jnp.sum(jnp.sin(x * 3) * X * jnp.cos(x * 3)),
    "no derivative": lambda x: jnp.cos(x * 3) * 3 * X,
    "another formula": lambda x: jax.grad(lambda x: jnp.sum(jnp.cos(x * 3) * X))(x),
}


@pytest.mark.parametrize("what", ["no derivative", "another formula"])
def test_what_is_no_derivative_of_the_pattern_stays(what: str) -> None:
    """What a derivative would be made of is not one."""
    f = NEAR_MISSES[what]
    np.testing.assert_allclose(ag.jit(f, rules=[marked_sine()])(X), jax.jit(f)(X), rtol=1e-6)
    assert not [d for d in ag.explain(f, rules=[marked_sine()])(X).fired if "derivative of" in d.what]


def test_a_derivative_stays_whose_values_are_read_elsewhere() -> None:
    """What JAX's derivative reads would be computed besides the rule's: the report says so, and a rule may allow it."""
    f, rule = NEAR_MISSES["its middle is read elsewhere"], marked_sine()
    np.testing.assert_allclose(ag.jit(jax.grad(f), rules=[rule])(X), jax.jit(jax.grad(f))(X), rtol=1e-4)
    refused = [d for d in ag.explain(jax.grad(f), rules=[rule])(X).decisions if "derivative of" in d.what]
    assert [(d.fired, d.reason) for d in refused] == [(False, "what it computes on the way is read elsewhere, too")]
    rule.shared = True
    got = ag.jit(jax.grad(f), rules=[rule])(X)
    np.testing.assert_allclose(got, ag.jit(ag.grad(f), rules=[rule])(X), rtol=1e-4)


def test_a_loop_stores_no_more_than_the_operands() -> None:
    """The derivative of a rule in the steps of a loop: what JAX's own reads is not stored for it."""

    def f(x):
        return lax.scan(lambda c, _: (jnp.sin(c * 3), None), x, None, length=50)[0].sum()

    x = jnp.ones(1000)
    said = ag.explain(jax.grad(f), rules=[marked_sine()])(x)
    assert any("derivative of" in d.what for d in said.fired)
    plain = jax.jit(jax.grad(f)).lower(x).compile().memory_analysis().temp_size_in_bytes
    ours = ag.jit(jax.grad(f), rules=[marked_sine()]).lower(x).compile().memory_analysis().temp_size_in_bytes
    assert ours <= plain


def test_the_condition_of_a_rule_holds_for_its_derivative() -> None:
    """What `when` refuses keeps JAX's derivative, and the report gives the reason."""
    rule = marked_sine()

    @rule.when
    def _(x, *, scale):
        return scale < 2 or "its scale is large"

    np.testing.assert_allclose(ag.jit(jax.grad(softened), rules=[rule])(X), jax.jit(jax.grad(softened))(X), rtol=1e-6)
    decisions = ag.explain(jax.grad(softened), rules=[rule])(X).decisions
    assert "its scale is large" in [d.reason for d in decisions if "derivative of" in d.what]


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
