"""Where a rule fires, and where it does not, and why."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules.loose import _Search
from rules.rules_under_test import fired, log1p, made, normal, refusals, regular, report_of, scale_first

inverse_times = ag.rules.inverse_times
POSITIVE = jnp.arange(1.0, 7.0).reshape(2, 3)

SPELLINGS: dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...]]] = {
    "the other order": (log1p, lambda x: jnp.log(x + 1), (POSITIVE,)),
    "a scalar": (log1p, lambda x: jnp.log(x + 1), (2.0,)),
    "five dimensions": (log1p, lambda x: jnp.log(x + 1), (jnp.ones((1, 2, 1, 3, 1)),)),
    "no entries": (log1p, lambda x: jnp.log(x + 1), (jnp.ones((2, 0)),)),
    "bfloat16": (log1p, lambda x: jnp.log(x + 1), (POSITIVE.astype("bfloat16"),)),
    "float16": (log1p, lambda x: jnp.log(x + 1), (POSITIVE.astype("float16"),)),
    "complex": (log1p, lambda x: jnp.log(x + 1), (POSITIVE + 1j,)),
    "a strong one": (log1p, lambda x: jnp.log(x + jnp.float32(1)), (POSITIVE,)),
    "a helper": (log1p, lambda x: jnp.log(jax.jit(lambda y: y + 1)(x)), (POSITIVE,)),
    "a result of a weak type": (log1p, lambda x: jnp.log(1 + lax.add(x, 0)), (1,)),
    "@": (inverse_times, lambda A, b: jnp.linalg.inv(A) @ b, (regular(0), normal(1, 4))),
    "dot": (inverse_times, lambda A, b: jnp.dot(jnp.linalg.inv(A), b), (regular(0), normal(1, 4, 2))),
    "einsum": (
        inverse_times,
        lambda A, b: jnp.einsum("ij,jk->ik", jnp.linalg.inv(A), b),
        (regular(0), normal(1, 4, 2)),
    ),
    "matmul of stacks": (inverse_times, lambda A, b: jnp.linalg.inv(A) @ b, (regular(0, 3), normal(1, 3, 4, 2))),
    "no columns": (inverse_times, lambda A, b: jnp.linalg.inv(A) @ b, (regular(0), normal(1, 4, 0))),
    "the last axis": (scale_first, lambda x: 2 * x.sum(-1), (normal(0, 2, 3),)),
    "the first axis, another number": (scale_first, lambda x: 3.5 * jnp.sum(x, 0), (normal(0, 2, 3),)),
    "the middle axis": (scale_first, lambda x: x.sum(1) * jnp.float32(0.1), (normal(0, 2, 3, 4),)),
    "an axis of a half": (scale_first, lambda x: x.sum(1) * 0.5, (normal(0, 2, 3, 4, dtype="bfloat16"),)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_fires_on_every_spelling(name: str) -> None:
    """One pattern stands for all axes, ranks, constants, dtypes and operand orders; results keep their types."""
    rule, f, args = SPELLINGS[name]
    assert fired(f, rule, *args) == 1


sq = made(lambda x, y: jnp.where(x > y, x * x, y), lambda x, y: lax.select(x > y, lax.square(x), y))
WRITINGS = [
    lambda x, y: jnp.where(x > y, x * x, y),
    lambda x, y: jnp.where(y < x, x**2, y),
    lambda x, y: jnp.where(lax.gt(x, y), lax.integer_pow(x, 2), y),
]


@pytest.mark.parametrize("f", WRITINGS)
def test_fires_on_other_operations_that_are_the_same(f: Callable[..., Any]) -> None:
    """`a > b` is `b < a`, and a square is a product."""
    assert fired(f, sq, normal(0, 3), normal(1, 3)) == 1


def test_does_not_fire_on_what_it_writes() -> None:
    """A square is written for a product once; the square that stands there then is left alone."""
    square = made(lambda x: x * x, lax.square, "bitwise")
    assert fired(lambda x: x * x, square, normal(0, 3)) == 1
    assert refusals(lax.square, square, normal(0, 3)) == ["it has the form that the rule writes"]


NEAR_MISSES: dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...], str]] = {
    "another number": (log1p, lambda x: jnp.log(2 + x), (POSITIVE,), "expected the number 1.0, found the number 2.0"),
    "another operation": (log1p, lambda x: jnp.log(1 - x), (-POSITIVE,), "expected `add`, found `sub`"),
    "another base": (log1p, lambda x: jnp.log(x), (POSITIVE,), "expected `add`, found an argument or a constant"),
    "from the right": (
        inverse_times, lambda A, b: b @ jnp.linalg.inv(A), (regular(0), normal(1, 4)),
        "expected `custom_linear_solve`, found an argument or a constant",
    ),
    "the transpose": (
        inverse_times, lambda A, b: jnp.linalg.inv(A).T @ b, (regular(0), normal(1, 4)),
        "expected `custom_linear_solve`, found `transpose`",
    ),
    "no product": (
        inverse_times, lambda A: jnp.linalg.inv(A) + 1, (regular(0),), "expected `dot_general`, found `add`",
    ),
    "a solve": (
        inverse_times, lambda A, b: jnp.linalg.solve(A, b) @ b, (regular(0), normal(1, 4)),
        "expected `dot_general` of f32[4], found f32[]",
    ),
    "another precision": (
        inverse_times, lambda A, b: jnp.matmul(jnp.linalg.inv(A), b, precision="highest"), (regular(0), normal(1, 4)),
        "`dot_general` has another `precision`",
    ),
    "two operands for one": (
        made(lambda x, y: (x + y) * x, lambda x, y: x * x + x * y), lambda x, y, z: (x + y) * z,
        (normal(0, 3), normal(1, 3), normal(2, 3)),
        "one argument stands in two places, and two values were found there",
    ),
    "all axes": (scale_first, lambda x: 2 * x.sum(), (normal(0, 2, 3),), "expected `mul` of f32[3], found f32[]"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_says_what_did_not_fit(name: str) -> None:
    """A site where the rule does not fire has a decision that names the first thing that is different."""
    rule, f, args, reason = NEAR_MISSES[name]
    assert reason in refusals(f, rule, *args)


def test_no_site_no_decision() -> None:
    """A program without a rule's first operation is not mentioned."""
    assert refusals(jnp.sin, log1p, POSITIVE) == []


BATCHED = {
    "both": (lambda f: jax.vmap(f), regular(0, 3), normal(1, 3, 4)),
    "one": (lambda f: jax.vmap(f, in_axes=(None, 0)), regular(0), normal(1, 3, 4)),
    "the other": (lambda f: jax.vmap(f, in_axes=(0, None)), regular(0, 3), normal(1, 4)),
    "the last axis": (lambda f: jax.vmap(f, in_axes=(0, 1), out_axes=1), regular(0, 3), normal(1, 4, 3)),
    "twice": (lambda f: jax.vmap(jax.vmap(f)), regular(0, 2, 3), normal(1, 2, 3, 4)),
    "twice, one each": (
        lambda f: jax.vmap(jax.vmap(f, in_axes=(None, 0))), regular(0, 2), normal(1, 2, 3, 4),
    ),
    "as many as there are rows": (lambda f: jax.vmap(f), regular(0, 4), normal(1, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHED)
def test_fires_on_the_batched_form(name: str) -> None:
    """A rule for one example fires under `vmap`, and its condition sees one example."""
    rule = made(inverse_times.before, jnp.linalg.solve)
    seen: list[tuple[int, int]] = []

    @rule.when
    def _(A: Any, b: Any) -> Any:
        seen.append((A.ndim, b.ndim))
        return True

    transform, A, b = BATCHED[name]
    assert fired(transform(rule.before), rule, A, b) == 1
    assert seen == [(2, 1)]


def test_fires_on_batched_axes_of_a_parameter() -> None:
    """The axis that a match binds is that of one example."""
    f = jax.vmap(lambda x: 2 * jnp.sum(x, 0), in_axes=1, out_axes=1)
    assert fired(f, scale_first, normal(0, 2, 3, 4)) == 1


def looped(x: Any) -> Any:
    """A pattern in a `scan`."""
    return lax.scan(lambda c, _: (jnp.log(1 + c), c), x, None, length=3)


SURROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "scan": looped,
    "while": lambda x: lax.while_loop(lambda c: c.sum() > 3, lambda c: jnp.log(1 + c), x),
    "fori": lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.log(1 + c), x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda: jnp.log(1 + x), lambda: x),
    "scan in scan": lambda x: lax.scan(lambda c, _: (looped(c)[0], None), x, None, length=2)[0],
    "vmap of scan": jax.vmap(looped),
    "checkpoint": jax.checkpoint(lambda x: jnp.log(1 + x)),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_fires_in_loops_and_branches(name: str) -> None:
    """A pattern is found in every body."""
    assert fired(SURROUNDINGS[name], log1p, POSITIVE) == 1


@jax.jit
def long_helper(a: Any) -> Any:
    """A function that is not inlined where it is called twice."""
    for _ in range(20):
        a = jnp.sin(a) + jnp.cos(a)
    return jnp.linalg.inv(a / 8 + 2 * jnp.eye(4))


def test_looks_into_calls() -> None:
    """A pattern may begin in a function that is called from several places, or lie in it as a whole."""
    b = normal(1, 4)
    assert fired(lambda A: long_helper(A) @ b + long_helper(A + 1) @ b, inverse_times, regular(0)) == 2
    inside = jax.jit(lambda A: long_helper(A) @ b)
    assert fired(lambda A: inside(A) + inside(A + 1), inverse_times, regular(0)) >= 1


def test_leaves_alone_what_is_read_elsewhere() -> None:
    """A value from the middle of the pattern that something else reads would be computed twice: refused by default."""
    assert refusals(
        lambda A, b: (jnp.linalg.inv(A) @ b, jnp.linalg.inv(A)), inverse_times, regular(0), normal(1, 4)
    ) == ["what `custom_linear_solve` makes, in the middle of the pattern, is a result of its own"]
    f = lambda x: jnp.log(1 + x) * jnp.sin(1 + x)  # noqa: E731
    assert refusals(f, log1p, POSITIVE) == ["what `add` makes, in the middle of the pattern, is read by `sin` too"]
    assert fired(f, made(log1p.before, jnp.log1p, shared=True), POSITIVE) == 1


def test_shares_constants_and_copies_of_operands() -> None:
    """Two inverses share the unit matrix, and an operand may be read as often as one likes."""
    f = lambda A, b: jnp.linalg.inv(A) @ b + jnp.linalg.inv(A + 1) @ b + A[0]  # noqa: E731
    assert fired(f, inverse_times, regular(0), normal(1, 4)) == 2


def relu_plus(x: Any) -> Any:
    """A pattern with a function that brings its derivative."""
    return jax.nn.relu(x) + x


doubled = made(relu_plus, lambda x: jnp.where(x > 0, 2 * x, x))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    """A function whose gradient is clipped."""
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g, -1, 1),))


@jax.custom_vjp
def free(x: Any) -> Any:
    """The same function with another gradient."""
    return jnp.sin(x)


free.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g,))


def test_matches_through_custom_derivatives() -> None:
    """`relu` is found wherever it is traced; a function with the same values and another derivative is another one."""
    assert fired(relu_plus, doubled, normal(0, 3)) == 1
    assert (
        fired(lambda x: lax.scan(lambda c, _: (relu_plus(c), None), x, None, length=2)[0], doubled, normal(0, 3)) == 1
    )
    assert fired(jax.vmap(relu_plus), doubled, normal(0, 2, 3)) == 1
    pair = made(lambda x: clipped(x) * 2, lambda x: clipped(x) + clipped(x))
    assert fired(lambda x: 2 * clipped(x + 1), pair, normal(0, 3)) == 1
    assert refusals(lambda x: 2 * free(x + 1), pair, normal(0, 3)) == [
        "`custom_vjp_call` has another `derivative rule`"
    ]


@pytest.mark.parametrize("function", [jax.nn.softmax, jax.nn.logsumexp, jax.nn.gelu, jnp.var, jax.nn.log_softmax])
def test_matches_library_functions(function: Callable[..., Any]) -> None:
    """Functions of many operations are found as one, batched or not."""
    marked = made(lambda x: jnp.sin(function(x)), lambda x: jnp.full_like(function(x), 7))
    for f in (lambda x: jnp.sin(function(x + 1)), jax.vmap(lambda x: jnp.sin(function(2 * x)))):
        assert np.all(jax.jit(ag.optimize(f, rules=[marked]))(normal(0, 2, 3)) == 7)


def test_transformations_of_what_was_written_agree() -> None:
    """After a rule has fired, `grad`, `jvp` and `vmap` of the program are those of the other form."""
    f, A, b = (
        ag.optimize(lambda A, b: jnp.sin(jnp.linalg.inv(A) @ b).sum(), rules=[inverse_times]),
        regular(0),
        normal(1, 4),
    )
    g = lambda A, b: jnp.sin(jnp.linalg.inv(A) @ b).sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(f)(A, b), jax.grad(g)(A, b), 1e-4, 1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(f, 1))(A, b), jax.grad(g, 1)(A, b), 1e-4, 1e-5)
    np.testing.assert_allclose(jax.jacfwd(f, 1)(A, b), jax.jacfwd(g, 1)(A, b), 1e-4, 1e-5)
    B = normal(2, 3, 4)
    np.testing.assert_allclose(jax.vmap(f, (None, 0))(A, B), jax.vmap(g, (None, 0))(A, B), 1e-4, 1e-5)


def test_matches_a_gradient_that_jax_wrote() -> None:
    """A pattern may be what a derivative looks like."""
    rule = made(lambda x, g: g * jnp.cos(x), lambda x, g: g * jnp.sin(x + np.float32(np.pi / 2)))
    assert fired(jax.grad(lambda x: (3 * jnp.sin(x)).sum()), rule, normal(0, 4)) == 1


def test_arrays_that_a_pattern_closes_over() -> None:
    """A stencil's coefficients are compared by value, and written into the program."""
    weights = np.array([1.0, -2.0, 1.0], "float32")
    rule = made(lambda u: jnp.dot(u, jnp.asarray(weights)), lambda u: (u * jnp.asarray(weights)).sum())
    same, other = np.array([1.0, -2.0, 1.0], "float32"), np.array([1.0, -2.0, 2.0], "float32")
    assert fired(lambda u: jnp.dot(u, same), rule, normal(0, 3)) == 1
    assert "constant" in refusals(lambda u: jnp.dot(u, other), rule, normal(0, 3))[0]


def test_operands_of_other_kinds() -> None:
    """Arguments annotated with `int` or `bool` are such arrays."""

    def chosen(mask: bool, x: Any, y: Any) -> Any:
        return jnp.where(mask, jnp.exp(x), jnp.exp(y))

    rule = made(chosen, lambda mask, x, y: jnp.exp(jnp.where(mask, x, y)), "bitwise")
    assert (
        fired(lambda m, x: jnp.where(m, jnp.exp(x), jnp.exp(x + 1)), rule, jnp.array([True, False]), normal(0, 2)) == 1
    )

    bits = made(lambda i, j: jnp.left_shift(i, j) | i, lambda i, j: (i << j) + i - ((i << j) & i), "bitwise")
    assert fired(lambda i: 2 * (i | jnp.left_shift(i, 1)), bits, jnp.arange(3)) == 1
    keyed = lambda key, x: (jax.random.split(key), jnp.log(1 + x))  # noqa: E731
    assert fired(keyed, log1p, jax.random.key(0), POSITIVE) == 1


def test_sharded_by_type_is_left_alone() -> None:
    """Values whose types name a mesh are not rewritten; those that XLA spreads by itself are."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.device_put(jnp.ones((4, 3)), jax.NamedSharding(mesh, jax.P("i")))
    with jax.set_mesh(mesh):
        assert refusals(lambda x: jnp.log(1 + x), log1p, x) == ["its values are sharded by their types"]
    assert report_of(lambda x: jnp.log(1 + x), [log1p], jnp.ones((4, 3))).fired


def test_what_stands_around_an_operation_refuses_a_rule_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most rules of a set fail by what reads or makes their first operation, or by a number: no search is begun."""
    run, begun = _Search._with_others, list[str]()

    def counted(search: _Search, *args: Any) -> Any:
        begun.append(search.skeleton.rule.name)
        return run(search, *args)

    monkeypatch.setattr(_Search, "_with_others", counted)
    read_by = made(lambda x: jnp.exp(jnp.tanh(x)), jnp.tanh, "other_bits", name="read-by")
    made_of = made(lambda x: jnp.arctan(jnp.sin(x)), jnp.sin, "other_bits", name="made-of")
    number = made(lambda x: jnp.tanh(x) * 1.75, jnp.tanh, "other_bits", name="number")
    f = lambda x: jnp.arctan(jnp.cos(x)) + jnp.tanh(x) * 1.5  # noqa: E731
    for rule, reason in (
        (read_by, "expected `exp`, found `mul`"),
        (made_of, "expected `sin`, found `cos`"),
        (number, "expected the number 1.75, found the number 1.5"),
    ):
        assert reason in [d.reason for d in ag.explain(f, rules=[rule])(POSITIVE).refused if d.rule == rule.name]
        assert rule.name not in begun
        fires = lambda x, rule=rule: rule.before(x)  # noqa: E731
        assert ag.explain(fires, rules=[rule])(POSITIVE).fired
        assert rule.name in begun
