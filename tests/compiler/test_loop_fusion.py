"""Loop fusion: every pattern of stacked outputs, in every place, is recovered from its natural form."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.fusion import site_seconds
from aerogel.compiler.judging.agree import compare, float64_reference
from compiler.loop_patterns import (
    INTEGER,
    LANGUAGE,
    LENGTH,
    PATTERNS,
    REDUCED,
    SMALL_STATE,
    SURROUNDINGS,
    Pattern,
    made,
    normal,
    stacked,
    with_gradient,
)


@pytest.fixture(autouse=True)
def threads_that_wake_at_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Patterns are recovered whatever their size; what threads cost a step with a product has a test of its own."""
    if request.node.originalname != "test_small_heads_are_multiplied_at_once":
        monkeypatch.setattr(site_seconds, "WAKING_SECONDS", 0.0)


# Loops that are written without a direction (`lax.map`, `fori_loop`) run in their own.
DIRECTIONS = {pattern.name: (False,) if pattern.name in ("lax.map", "filled buffer") else (False, True)
              for pattern in PATTERNS}  # fmt: skip


def variants(pattern: Pattern) -> list[tuple[bool, bool]]:
    """With and without inputs of the steps, forward and reversed."""
    return list(itertools.product((False, True), DIRECTIONS[pattern.name]))


def program(f: Callable[..., Any], args: Any) -> Any:
    """The jaxpr of a function, which JAX finds well-typed."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    _jax.check_jaxpr(jaxpr)
    return jaxpr


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_the_stacked_array_is_never_made(pattern: Pattern, surrounding: str) -> None:
    """The natural program makes an array over all steps; the optimised one makes none of that size anywhere."""
    for with_xs, reverse in variants(pattern):
        f, args = SURROUNDINGS[surrounding](pattern.function(reverse)), pattern.args(with_xs)
        assert made(program(f, args), pattern.size)
        assert made(program(ag.optimize(f), args), pattern.size) == []


@pytest.mark.skipif(_jax.usable_cores() < 2, reason="one core wakes no other")
def test_small_heads_are_multiplied_at_once() -> None:
    """A head's logits are made step by step where they are larger than what waking threads in each step takes."""

    def loss(w: Any, h: Any, xs: Any, labels: Any) -> Any:
        states = lax.scan(lambda h, x: (new := jnp.tanh(h + x), new), h, xs)[1]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(states @ w), labels[..., None], -1))

    def args(steps: int, batch: int, words: int) -> Any:
        xs = normal(0, steps, batch, 64)
        return normal(1, 64, words), xs[0], xs, jnp.zeros((steps, batch), int)

    for steps, batch, words, whole in ((32, 16, 2048, True), (256, 32, 2048, False)):
        optimised = program(ag.optimize(loss), args(steps, batch, words))
        assert bool(made(optimised, steps * batch * words)) == whole


def grown(pattern: Pattern) -> int:
    """How many arrays over all steps a value and its gradient need: what the derivative of a step reads.

    That is `sin` of each state; what is not linear in the outputs reads those too. Cross-entropies make logits again.
    """
    if pattern in LANGUAGE:
        return 0
    return 1 if pattern.name in LINEAR else 2


LINEAR = (
    "sum, sum of all, mean, mean over time and columns, weighted sum, tensordot, einsum, einsum of two, last, "
    "last three, every eighth, every eighth but the first, one returned"
).split(", ")


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
@pytest.mark.parametrize("pattern", [*REDUCED, *LANGUAGE], ids=lambda p: p.name)
def test_under_value_and_grad(pattern: Pattern, surrounding: str) -> None:
    """A value and its gradient stack what the backward steps need, and no outputs or cotangents besides."""
    for with_xs, reverse in variants(pattern):
        f = SURROUNDINGS[surrounding](with_gradient(pattern.function(reverse)))
        args = pattern.args(with_xs)
        natural, optimised = program(f, args), program(ag.optimize(f), args)
        calls = 2 if surrounding == "jit" else 1
        assert len(stacked(optimised, pattern.size)) <= calls * grown(pattern)
        if pattern.name == "lax.map":
            # A map without carries leaves the loop (LoopHoist): what its equations make XLA fuses, and plans no memory.
            before, after = temporary_bytes(f, args), temporary_bytes(ag.optimize(f), args)
            assert after <= (0.6 * before if with_xs else before)
        else:
            assert len(made(optimised, pattern.size)) < len(made(natural, pattern.size))


def temporary_bytes(f: Callable[..., Any], args: Any) -> int:
    """What XLA plans besides arguments and results."""
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


PRODUCTS = "tensordot, einsum, einsum of two".split(", ")


def judged(f: Callable[..., Any], args: Any, *, by_float64: bool = True) -> None:
    """Fails unless the results of the optimised and the natural program agree, judged against float64 or each other."""
    inputs = jax.tree.leaves(args)
    natural = jax.jit(f).trace(*args)
    optimised = jax.jit(ag.optimize(f)).trace(*args)
    _jax.check_jaxpr(optimised.jaxpr.jaxpr)
    got, want = (jax.tree.leaves(traced.lower().compile()(*args)) for traced in (optimised, natural))
    # One unit from the natural result is within every bound, and the reference is dearer than all else here.
    if compare(got, want, exactness=Exactness.NO_WORSE, inputs=inputs) == []:
        return
    closed = natural.jaxpr
    reference = float64_reference(closed.jaxpr, closed.consts, inputs) if by_float64 else None
    differences = compare(got, want, reference, inputs=inputs)
    # 64 steps of rounding differ element by element with how XLA compiles a step: then the worst element counts.
    assert differences == [] or compare(got, want, reference, exactness=Exactness.NO_WORSE, inputs=inputs) == []


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_memory_shrinks_with_the_length(pattern: Pattern) -> None:
    """Temp memory of a value is at least a quarter of the length smaller (the issue's factor)."""
    with_xs, reverse = variants(pattern)[PATTERNS.index(pattern) % len(variants(pattern))]
    f, args = pattern.function(reverse), pattern.args(with_xs)
    plans = [jax.jit(g).lower(*args).compile().memory_analysis() for g in (f, ag.optimize(f))]
    before, after = (plan.temp_size_in_bytes for plan in plans)
    # Logits are made some steps at a time: a sixteenth of them is the largest block.
    factor = LENGTH / 8 if pattern in LANGUAGE else LENGTH / 4
    assert before >= 4 * pattern.size
    # What is kept of the outputs may be put together from parts: that is the size of the result.
    assert after <= before / factor + plans[1].output_size_in_bytes


def everywhere() -> list[Any]:
    """Each pattern in each surrounding once; inputs, direction and gradient vary."""
    chosen = []
    for (i, pattern), (k, surrounding) in itertools.product(enumerate(PATTERNS), enumerate(SURROUNDINGS)):
        if (i + k) % 2:
            continue
        grad = (i // 2 + k // 2) % 2 == 0 and pattern not in INTEGER
        with_xs, reverse = variants(pattern)[(i + k // 2) % len(variants(pattern))]
        words = [pattern.name, surrounding, "gradient" if grad else "value", *["xs"] * with_xs, *["reverse"] * reverse]
        chosen.append(pytest.param(pattern, surrounding, grad, with_xs, reverse, id="-".join(words)))
    return chosen


@pytest.mark.parametrize(("pattern", "surrounding", "grad", "with_xs", "reverse"), everywhere())
def test_results_agree_everywhere(pattern: Pattern, surrounding: str, grad: bool, with_xs: bool, reverse: bool) -> None:
    """Values and gradients are as near to float64 as those of plain jit, wherever the loop stands."""
    f = pattern.function(reverse)
    f = SURROUNDINGS[surrounding](with_gradient(f) if grad else f)
    # Products are fused where the whole of them is large: too large for the judge's runs at float64.
    large = pattern in LANGUAGE or pattern.name in PRODUCTS
    args = pattern.args(with_xs, () if large else SMALL_STATE)
    assert ag.explain(f)(*args).fired
    judged(f, args, by_float64=not large)


def test_a_barrier_with_other_values_stays_outside() -> None:
    """A barrier after a loop that also holds back what is no output of it is not moved into the steps."""

    def f(c: Any, xs: Any, other: Any) -> Any:
        _, ys = lax.scan(lambda c, x: (c + x, jnp.tanh(c)), c, xs)
        ys, other = lax.optimization_barrier((ys, other))
        return jnp.sum(ys, 0) + jnp.sum(other)

    args = normal(0, 8), normal(1, 16, 8), normal(2, 3)
    assert [eqn for eqn in jax.make_jaxpr(ag.optimize(f))(*args).eqns if eqn.primitive.name == "optimization_barrier"]
    ag.verify(f)(*args)


def test_no_carry_has_a_dimension_of_the_length_one() -> None:
    """The sum over time and batch adds up rows; each step would copy a row that it sees as a matrix."""

    def f(x: Any, targets: Any) -> Any:
        ys = lax.scan(lambda c, _: (c - c * c, c - c * c), x, None, length=64)[1]
        return jnp.mean(jnp.square(ys - targets))

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((100_000,), (64, 100_000))]
    (scan,) = (eqn for eqn in program(ag.optimize(f), args).eqns if eqn.primitive.name == "scan")
    carries = scan.outvars[: _jax.scan_counts(scan.params)[1]]
    assert [v.aval.shape for v in carries] == [(100_000,), (100_000,)]


@pytest.mark.parametrize(
    ("steps", "size", "moves"), [(5000, 1, False), (5000, 16, False), (5000, 17, True), (500, 1, True)]
)
def test_a_few_numbers_of_many_steps_are_summed_after_the_loop(steps: int, size: int, moves: bool) -> None:
    """One added to the other, 5,000 losses have the rounding errors of 5,000 sums; few steps, or many numbers, move."""

    def f(xs: Any) -> Any:
        def step(c: Any, x: Any) -> tuple[Any, Any]:
            c = 0.9 * c + x
            return c, jnp.log1p(c * c)

        return jnp.mean(lax.scan(step, 0 * xs[0], xs)[1], 0)

    xs = normal(0, steps, size) if size > 1 else normal(0, steps)
    decided = [d.fired for d in ag.explain(f)(xs).decisions if d.rule == "loop-fusion" and "reduce_sum" in d.what]
    assert decided == [moves]


@pytest.mark.parametrize("read", ["[:2, :2]", "[-2:, :5]", "[::10, 0]", "[40:50, ::2]", "[3, 5]", "[-1, :3]"])
def test_some_entries_of_some_steps_beside_a_mean(read: str) -> None:
    """What is read of both dimensions at once needs no more than those entries."""

    def f(x: Any) -> Any:
        ys = lax.scan(lambda c, _: (jnp.cos(c), c), x, None, length=100)[1]
        return eval(f"ys{read}", {"ys": ys}), ys.mean()

    args = (normal(0, 10_000),)
    assert temporary_bytes(f, args) > 4_000_000
    assert temporary_bytes(ag.optimize(f), args) < 400_000
    judged(f, args)
