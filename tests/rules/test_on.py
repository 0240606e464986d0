"""Rules of one primitive: where they are tried, what they are told, and when their function is called."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler import PrimitiveRule, RuleError, Site, on
from aerogel.compiler.normalize import normalize
from rules.rules_under_test import fired, normal, refusals, regular, report_of

X = normal(0, 3)


def sine(**options: Any) -> Any:
    """A rule that writes a cosine for a sine, and a list of the shapes at which it was called."""
    calls: list[Any] = []

    @on(lax.sin_p, name="sine", **options)
    def rule(x: Any, *, site: Site) -> Any:
        calls.append(x.shape)
        return jnp.cos(x - np.float32(np.pi / 2)).astype(x.dtype)

    return rule, calls


PLACES: dict[str, Any] = {
    "plain": jnp.sin,
    "vmap": lambda x: jax.vmap(jnp.sin)(x),
    "scan": lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0],
    "while": lambda x: lax.while_loop(lambda c: c.sum() > 3, jnp.sin, x),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: x, x),
    "gradient": jax.grad(lambda x: jnp.cos(x).sum()),
}


@pytest.mark.parametrize("name", PLACES)
def test_fires_wherever_the_primitive_stands(name: str) -> None:
    """In the program, the batched one, bodies of loops and branches, and what a derivative holds."""
    assert fired(PLACES[name], sine()[0], X) == 1


def test_is_called_once_for_each_type() -> None:
    """Sites of one type share what the function returned for the first; so do other programs."""
    rule, calls = sine()
    f = lambda x: jnp.sin(x) + jnp.sin(x + 1) * jnp.sin(x[:2]).sum()  # noqa: E731
    assert fired(f, rule, X) == 3
    assert sorted(calls) == [(2,), (3,)]
    assert fired(lambda x: jnp.sin(2 * x), rule, X) == 1
    assert len(calls) == 2


def test_is_called_again_where_the_site_answers_otherwise() -> None:
    """What a function asks its site decides, and nothing else: a loop matters to one that asks for it."""
    asked: list[bool] = []

    @on("sin")
    def outside(x: Any, *, site: Site) -> Any:
        asked.append(site.in_loop)
        return f"in {site.steps} steps" if site.in_loop else jnp.cos(x - np.float32(np.pi / 2))

    def f(x: Any) -> Any:
        return jnp.sin(x) + lax.scan(lambda c, _: (jnp.sin(c) + jnp.sin(c + 1), None), x, None, length=2)[0]

    report = report_of(f, [outside], X)
    assert (len(report.fired), [d.reason for d in report.refused]) == (1, ["in 2 steps"] * 2)
    assert asked == [False, True]


def test_what_a_site_tells() -> None:
    """Operands' constants and facts, who makes them, who reads the results, what stands around."""
    seen: list[Any] = []

    @on(lax.dot_general_p)
    def look(a: Any, b: Any, *, site: Site) -> Any:
        seen.append((site.value(1) is not None, "identity" in site.facts(1), site.maker(0), site.readers(), a.shape))
        seen.append([one.name for one in site.around])
        assert site.platform == site.machine.name == jax.default_backend()
        assert site.where.startswith("test_on.py")
        return "only looked at"

    unit = np.eye(4, dtype="float32")
    assert refusals(lambda A: jnp.exp(jnp.sin(A) @ unit), look, regular(0)) == ["only looked at"]
    f = lambda A: lax.scan(lambda c, _: (c @ c, None), A, None, length=2)[0]  # noqa: E731
    assert refusals(f, look, regular(0)) == ["only looked at"]
    assert seen == [(True, True, "sin", ("exp",), (4, 4)), [], (False, False, None, ("result",), (4, 4)), ["scan"]]


ENDS: dict[str, tuple[Callable[..., Any], str | None]] = {
    "read at once": (lambda x: jnp.sin(x).sum(), "reduce_sum"),
    "in a formula": (lambda x: jnp.max(x * jnp.sin(x) + 1), "reduce_max"),
    "twice in a formula": (lambda x: (lambda s: jnp.sum((s - 1) ** 2 / 3 - s))(jnp.sin(x)), "reduce_sum"),
    "the program's": (lambda x: jnp.sin(x) + 1, "result"),
    "moved": (lambda x: (2 * jnp.sin(x)).T.sum(), "transpose"),
    "read twice": (lambda x: jnp.sum(jnp.sin(x)) + jnp.max(jnp.sin(x)), None),
    "read twice later": (lambda x: (2 * jnp.sin(x), jnp.sum(2 * jnp.sin(x))), None),
}


@pytest.mark.parametrize("name", ENDS)
def test_where_a_result_ends(name: str) -> None:
    """What reads it, entry by entry looked past; nothing where there are several."""
    f, end = ENDS[name]
    look = on("sin", name="look")(lambda x, *, site: f"ends in {site.end()}")
    assert refusals(f, look, jnp.ones((4, 4))) == [f"ends in {end}"]


def test_numbers_are_given_as_they_are() -> None:
    """An operand that is a number in the program can be looked at; parameters go by their names."""

    @on(lax.pow_p)
    def root(x: Any, y: Any) -> Any:
        return jnp.sqrt(x) if not isinstance(y, jax.Array) and y == 0.5 else f"another power than {y}"

    @on(lax.integer_pow_p)
    def cube(x: Any, *, y: int) -> Any:
        return x * x * x if y == 3 else f"the power {y}"

    assert fired(lambda x: abs(x) ** 0.5, root, X) == 1
    assert refusals(lambda x: abs(x) ** 0.25, root, X) == ["another power than 0.25"]
    assert fired(lambda x: x**3, cube, X) == 1
    assert refusals(lambda x: x**5, cube, X) == ["the power 5"]


def test_several_results() -> None:
    """A primitive of several results is replaced by as many."""

    @on(lax.top_k_p, exactness="bitwise")
    def largest(x: Any, *, k: int, **_: Any) -> Any:
        if k != 1:
            return f"the largest {k}"
        place = jnp.argmax(x, -1, keepdims=True)
        return [jnp.take_along_axis(x, place, -1), place.astype("int32")]

    assert fired(lambda x: lax.top_k(x, 1), largest, X) == 1
    assert fired(lambda x: lax.top_k(x, 1)[0], largest, X) == 1
    assert refusals(lambda x: lax.top_k(x, 2), largest, X) == ["the largest 2"]


def test_does_not_look_at_what_it_wrote() -> None:
    """A rule may write the primitive that it is for, also in a loop."""

    @on(lax.exp_p)
    def halves(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, c: c * jnp.exp(x / 2), jnp.ones_like(x))

    assert fired(jnp.exp, halves, X) == 1


def test_a_constant_is_no_tracer() -> None:
    """What is asked of a known value is answered, also where the program holds JAX's array and is being traced."""

    @on(lax.pow_p)
    def squares(x: Any, y: Any, *, site: Any) -> Any:
        return x * x if site.value(1) == 2 and site.value(1) > 0 else "no square"

    @ag.rule(exactness="reassociates", reason="products are shorter")
    def cubes(x: Any, y: Any) -> Any:
        return lax.pow(x, y)

    @cubes.when
    def _(x: Any, y: Any) -> Any:
        return (y.value is not None and bool(y.value == 3)) or "no cube"

    @cubes.to
    def _(x: Any, y: Any) -> Any:
        return x * x * x

    for n, rule in ((2, squares), (3, cubes)):
        number = jnp.float32(n)
        assert fired(lambda x, number=number: lax.pow(x, number), rule, jnp.arange(8.0)) == 1
        many = jnp.arange(32_768.0) / 1000
        assert not ag.explain(lambda x, number=number: x**number)(many).failed  # by the default rules


def test_stages() -> None:
    """After differentiation means: not in what JAX differentiates outside; the last rules feed no other."""
    before, after, final = (sine(stage=stage)[0] for stage in ("before", "after", "final"))

    def derivative(rule: Any) -> set[str]:
        f = ag.optimize(jnp.sin, rules=[rule])
        program, _ = normalize(jax.jit(lambda x: jax.jvp(f, (x,), (x,))[1]).trace(X).jaxpr)
        return {eqn.primitive.name for eqn in program.jaxpr.eqns} & {"sin", "cos"}

    assert derivative(before) == {"sin"}  # that of a cosine
    assert derivative(after) == derivative(final) == {"cos"}

    def optimized(stage: str) -> list[str]:
        @on(lax.tanh_p, stage=stage)
        def tanh(x: Any) -> Any:
            return jnp.sin(x)

        f = ag.optimize(jnp.tanh, rules=[sine(stage=stage)[0], tanh], passes=())
        return [eqn.primitive.name for eqn in jax.make_jaxpr(f)(X).eqns]

    assert optimized("after") == ["sub", "cos"]
    assert optimized("final") == ["sin"]


def test_platforms() -> None:
    """A rule of other platforms says so at its sites; a pair too."""
    assert refusals(jnp.sin, sine(platforms=("tpu", "gpu"))[0], X) == [
        f"it is for gpu and tpu, and this program runs on {jax.default_backend()}"
    ]


def test_faults_are_the_rules() -> None:
    """A function that raises, or returns another type, is named with the site's types; nothing is hidden."""

    @on(lax.sin_p)
    def attribute(x: Any) -> Any:
        return x.no_such

    @on(lax.sin_p)
    def types(x: Any) -> Any:
        return x[:1]

    @on(lax.sin_p)
    def forgotten(x: Any) -> Any:
        x + 1  # and no `return`

    with pytest.raises(RuleError, match=r"'forgotten' raised TypeError(.*\n)*.*None is returned"):
        jax.jit(ag.optimize(jnp.sin, rules=[forgotten]))(X)
    with pytest.raises(RuleError, match=r"'attribute' raised AttributeError in the place of `sin` of f32\[3\]"):
        jax.jit(ag.optimize(jnp.sin, rules=[attribute]))(X)
    with pytest.raises(RuleError, match=r"got +f32\[1\]   \(wanted f32\[3\]\)"):
        jax.jit(ag.optimize(jnp.sin, rules=[types]))(X)
    for wrong in ({"primitive": 3}, {"stage": "late"}, {"platforms": "cpu"}, {"exactness": "so"}, {"profit": "much"}):
        with pytest.raises(ag.UsageError, match=f"`{next(iter(wrong))}`"):
            on(**{"primitive": "sin", **wrong})


def test_stands_in_sets_and_is_checked() -> None:
    """It is a rule among others: in sets, fingerprints and `check_rule`."""
    rule, other = sine()[0], sine(exactness="finite")[0]
    both = ag.rules.default + rule + ag.rules.inverse_times
    assert rule in both
    assert isinstance(rule, PrimitiveRule)
    assert (both - rule).fingerprint != both.fingerprint != (both - rule + other).fingerprint

    @on(lax.sin_p, exactness="bitwise")
    def odd(x: Any) -> Any:
        return -jnp.sin(-x)

    ag.check_rule(odd, fires_on=[lambda x: 2 * jnp.sin(x)], leaves_alone=[jnp.cos, jnp.tanh])

    @on(lax.sin_p)
    def wrong(x: Any) -> Any:
        return x

    with pytest.raises(ag.RuleCheckError, match="is not `reassociates`"):
        ag.check_rule(wrong, fires_on=[jnp.sin])


def test_profit() -> None:
    """A rule that loses by the model of the machine says what it costs and saves; or what its own function says."""

    def twice(profit: Any) -> Any:
        @on(lax.sin_p, name="twice", profit=profit)
        def rule(x: Any) -> Any:
            return (jnp.cos(x - np.float32(np.pi / 2)) + jnp.sin(x)) / 2

        return rule

    x = normal(0, 1000)
    (reason,) = refusals(jnp.sin, twice("model"), x)
    costs, saves = (float(part.split()[1]) for part in reason.split(", "))
    assert reason.startswith("costs")
    assert costs > saves > 0
    assert fired(jnp.sin, twice(None), x) == fired(jnp.sin, twice(lambda site: site.platform != ""), x) == 1
    assert refusals(jnp.sin, twice(lambda site: f"read by {site.readers()[0]}"), x) == ["read by result"]

    @ag.rule(exactness="reassociates", reason="shorter", profit="model")
    def product(A: Any, B: Any, v: Any) -> Any:
        return (A @ B) @ v

    product.to(lambda A, B, v: A @ (B @ v))
    A, B, v = normal(0, 64, 64), normal(1, 64, 64), normal(2, 64)
    assert fired(product.before, product, A, B, v) == 1
    back = ag.rule(exactness="reassociates", reason="shorter", profit="model", name="back")(lambda A, B, v: A @ (B @ v))
    back.to(product.before)
    assert refusals(back.before, back, A, B, v)[0].startswith("costs")
