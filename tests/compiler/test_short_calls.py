"""Programs that take less time than another thread takes to wake run in the thread that calls them."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.kernels.counted import NOT_SHORT, counted
from aerogel.compiler.passes.short_calls import MOST_COUNTED, NAME

pytestmark = pytest.mark.skipif(not _jax.KNOWS_KERNELS, reason="it is not known what this jaxlib makes of kernels")


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers of float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def decisions(f: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What the pass decided about a function."""
    return [d for d in ag.explain(f, **options)(*args).decisions if d.rule == NAME]


def counted_by_xla(f: Callable[..., Any], *args: Any) -> float:
    """The operations that XLA's cost analysis counts in a compiled function."""
    return jax.jit(f).lower(*args).compile().cost_analysis().get("flops", 0.0)


def logistic_loss(w: Any, x: Any, y: Any) -> Any:
    """Of a regression."""
    return jnp.mean(jnp.logaddexp(0.0, -y * (x @ w)))


def network_loss(weights: Any, x: Any, y: Any) -> Any:
    """Of a network with one hidden layer."""
    first, bias, second = weights
    return jnp.mean((jnp.tanh(x @ first + bias) @ second - y) ** 2)


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    """One step of the optimiser, entry by entry."""
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def rosenbrock(x: Any) -> Any:
    """A function of neighbours."""
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


positive = jnp.abs(normal(9, 1000))
SHORT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sum": (jnp.sum, (normal(0, 2000),)),
    "a prime number of entries": (jnp.sum, (normal(0, 4999),)),
    "entry by entry": (lambda x: x * x + 3 * x, (normal(1, 3000),)),
    "two results": (lambda x: (x + 1, jnp.max(x)), (normal(1, 3000),)),
    "softmax": (jax.nn.softmax, (normal(2, 480),)),
    "variance": (jnp.var, (normal(3, 1000),)),
    "standardised columns": (lambda x: (x - x.mean(0)) / x.std(0), (normal(4, 24, 8),)),
    "distances": (lambda x, y: jnp.sqrt(((x[:, None] - y) ** 2).sum(-1)), (normal(5, 20, 3), normal(6, 20, 3))),
    "matrix times vector": (jnp.matmul, (normal(7, 60, 60), normal(8, 60))),
    "covariance": (jnp.cov, (normal(9, 4, 100),)),
    "Adam": (adam, (normal(1, 1000), normal(2, 1000), normal(3, 1000), positive)),
    "integers": (lambda x: (x * 7 + 3) % 11, (jnp.arange(2000),)),
    "booleans": (lambda x: jnp.any((x > 0) & (x < 1e-3)), (normal(1, 3000),)),
    "gradient of a sum of sines": (jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x))), (normal(1, 1000),)),
    "gradient of a regression": (
        jax.value_and_grad(logistic_loss),
        (normal(0, 10), normal(1, 100, 10), jnp.sign(normal(2, 100))),
    ),
    "gradient of a network": (
        jax.value_and_grad(network_loss),
        ([normal(0, 3, 8), normal(1, 8), normal(2, 8)], normal(3, 50, 3), normal(4, 50)),
    ),
    "arrays of a tree": (
        lambda p, g: jax.tree.map(lambda x, y: x - 0.1 * y, p, g),
        ([normal(0, 30, 30), normal(1, 30)], [normal(2, 30, 30), normal(3, 30)]),
    ),
}


@pytest.mark.parametrize("name", SHORT)
def test_few_operations_are_counted(name: str) -> None:
    """The compiled program counts as short, the natural one did not, and their results agree."""
    f, args = SHORT[name]
    (decision,) = decisions(f, *args)
    assert decision.fired, decision.reason
    assert counted_by_xla(f, *args) >= NOT_SHORT > counted_by_xla(ag.optimize(f), *args)
    for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(*args)), jax.tree.leaves(f(*args)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def huber(x: Any, y: Any) -> Any:
    """A mean of losses."""
    off = jnp.abs(x - y)
    return jnp.mean(jnp.where(off < 1, 0.5 * off**2, off - 0.5))


def summed(f: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradient of a sum, of so many operations for each entry that few fit in a step."""
    return jax.value_and_grad(lambda r: jnp.sum(f(r)))


many = normal(0, 128, 1, 28, 28), normal(1, 128, 1, 28, 28)
LANES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sum of squares of images": (jax.value_and_grad(lambda x: jnp.sum(x**2)), many[:1]),
    "gradient of a mean of losses": (jax.value_and_grad(huber), (normal(0, 25600), normal(1, 25600))),
    "several results": (lambda x, y: (x + y, x * y - 1, jnp.sum(x), jnp.mean(y * y)), many),
    "numbers beside arrays": (lambda x, a, b: (jnp.sum(a * x + b[0]), a + x), (many[0], jnp.float32(3), normal(2, 1))),
    "another shape": (lambda x: (x.reshape(320, 80) * 2, jnp.sum(x + 1)), (normal(0, 25600),)),
    "a sum read by numbers": (lambda x: jnp.sqrt(jnp.sum(x * x) + 1), many[:1]),
    "integers": (lambda x: (jnp.sum(x * 7 + 3), x > 12800), (jnp.arange(25600),)),
    "exponentials in wide steps": (jax.value_and_grad(lambda x: jnp.sum(jnp.exp(-x) + x)), (normal(0, 25600),)),
    "a constant result": (lambda x: (x * 2 + 1, jnp.sum(x), jnp.ones((160, 160))), (normal(0, 160, 160),)),
}


@pytest.mark.parametrize("name", LANES)
def test_work_on_many_entries_is_one_kernel(name: str) -> None:
    """Few operations are counted in a hundred thousand entries' work, and results and their types agree."""
    f, args = LANES[name]
    (decision,) = decisions(f, *args)
    assert decision.fired, decision.reason
    assert "entries" in decision.reason
    assert counted_by_xla(f, *args) >= MOST_COUNTED > NOT_SHORT > counted_by_xla(ag.optimize(f), *args)
    ours, theirs = (jax.tree.leaves(jax.jit(form)(*args)) for form in (ag.optimize(f), f))
    for got, want in zip(ours, theirs, strict=True):
        assert got.aval == want.aval
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_in_double_precision() -> None:
    """So it is of float64, and sums end as near to the truth."""
    with jax.enable_x64(True):
        x = np.random.default_rng(0).standard_normal(100_000)
        f = jax.value_and_grad(lambda x: jnp.sum(x * x))
        assert [d.fired for d in decisions(f, x)] == [True]
        value, slope = jax.jit(ag.optimize(f))(x)
        np.testing.assert_allclose(value, np.sum(x * x), rtol=1e-13)
        np.testing.assert_array_equal(slope, 2 * x)


def test_what_is_given_away() -> None:
    """A kernel writes its results over what it reads where that was donated, and reads nothing that it wrote."""
    x = normal(0, 128, 1, 28, 28)
    want = 2 * x + 1, jnp.sum(x)
    step = jax.jit(ag.optimize(lambda x: (2 * x + 1, jnp.sum(x))), donate_argnums=0)
    assert decisions(lambda x: (2 * x + 1, jnp.sum(x)), x)[0].fired
    got = step(jnp.copy(x))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-2)


distances = jnp.linspace(0.7, 2.0, 40_000)
NOT_LANES: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "two passes": (lambda x: x / jnp.sum(x), many[0], "more than work on the entries"),
    "two passes by way of a number": (lambda x: x * (1 / jnp.sum(x)), many[0], "more than work on the entries"),
    "no equal blocks": (lambda x: 2 * x + 1, normal(0, 25601), "not so many equal blocks"),
    "much to do": (lambda x: functools.reduce(lambda y, k: y * x + k, range(24), x), normal(0, 128, 100), "of lanes"),
    "what is dear in a kernel": (lambda x: jnp.tanh(x) * 2 + 1, normal(0, 200, 512), "takes 41 us longer"),
    "large arrays": (lambda x: 2 * x + 1, normal(0, 512, 520), "waits for memory"),
    "many narrow steps": (lambda x: adam(x, x + 1, x - 1, x * x), normal(0, 128, 784), "so few entries in a step"),
    "exponentials in narrow steps": (summed(lambda r: jnp.exp(-r) * r**3), distances, "so few entries in a step"),
    "logarithms in narrow steps": (summed(lambda r: jnp.log(r) * r**3 + r * r), distances, "so few entries in a step"),
    "quotients in narrow steps": (summed(lambda r: 1 / r + (r + 1) ** -2), distances, "so few entries in a step"),
    "no sum": (lambda x: adam(x, x + 1, x - 1, x * x), normal(0, 64, 80), "nothing is summed up"),
    "rows": (lambda x: 2 * x + jnp.sum(x, 1, keepdims=True), normal(0, 320, 80), "more than work on the entries"),
    "neighbours": (lambda x: x[1:] - x[:-1], normal(0, 25601), "together with what is done to other shapes"),
    "what is turned": (lambda x: (2 * x + 1).T, normal(0, 320, 80), "together with what is done to other shapes"),
}


@pytest.mark.parametrize("name", NOT_LANES)
def test_other_work_is_no_lanes(name: str) -> None:
    """What is not the same for each entry, or does not pay, says why."""
    f, x, why = NOT_LANES[name]
    (decision,) = decisions(f, x)
    assert not decision.fired
    assert why in decision.reason, decision.reason
    ours, theirs = (jax.tree.leaves(jax.jit(form)(x)) for form in (ag.optimize(f), f))
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_strict_adds_up_in_order() -> None:
    """With numerics "strict" nothing is summed in lanes."""
    assert not any(d.fired for d in decisions(lambda x: jnp.sum(x * x), many[0], numerics="strict"))


@given(
    rows=st.integers(1, 900),
    width=st.sampled_from([31, 32, 40, 128]),
    dtype=st.sampled_from(["float32", "int32", "uint8"]),
    f=st.sampled_from(
        [
            lambda x: jnp.sum(x) + x,
            lambda x: (x - 3, jnp.sum(x * 2), x.ravel() + 1),
            lambda x: jnp.where(x > 2, x, x + 5),
            lambda x: jnp.sum(x * (x > 4)),
            lambda x: x.T * 2 + 1,
            lambda x: (jnp.sum(x), jnp.max(x), x + x),
        ]
    ),
)
def test_any_program_of_many_entries_keeps_its_results(rows: int, width: int, dtype: str, f: Any) -> None:
    """Whatever is done to a program with large arrays, types and numbers stay."""
    x = jnp.asarray(np.random.default_rng(rows).integers(0, 9, (rows, width)), dtype)
    got, want = jax.jit(ag.optimize(f))(x), jax.jit(f)(x)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.aval == other.aval
        np.testing.assert_array_equal(one, other)


@given(
    length=st.integers(300, 6000),
    width=st.sampled_from([None, 1, 2, 7]),
    dtype=st.sampled_from(["float32", "int32", "uint8"]),
    f=st.sampled_from(
        [
            lambda x: jnp.sum(x, 0),
            lambda x: (x - jnp.min(x)) * 3,
            lambda x: jnp.cumsum(x, 0)[-1] + x,
            lambda x: jnp.where(x > 2, x, -x).max(),
            lambda x: jnp.argmax(x, 0),
            lambda x: x[::-1] * x,
            lambda x: jnp.concatenate([x, x + 1]),
            lambda x: x.T @ x,
            lambda x: x[1:] - x[:-1],
        ]
    ),
)
def test_any_small_program_keeps_its_results(length: int, width: int | None, dtype: str, f: Any) -> None:
    """Whatever is done to a small program, types and numbers stay."""
    shape = (length,) if width is None else (length // width, width)
    x = jnp.asarray(np.random.default_rng(length).integers(0, 9, shape), dtype)
    got, want = jax.jit(ag.optimize(f))(x), jax.jit(f)(x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)  # sums of small integers are exact in any order


def test_strict_keeps_the_order_of_sums() -> None:
    """With numerics "strict" entries and extrema are computed in blocks, and no sum is."""
    x = normal(0, 3000)
    assert decisions(lambda x: jnp.maximum(x, 0) * 2, x, numerics="strict")[0].fired
    assert decisions(jnp.max, x, numerics="strict")[0].fired
    (decision,) = decisions(jnp.sum, x, numerics="strict")
    assert not decision.fired
    assert "reduce_sum" in decision.reason
    strict = jax.jit(ag.optimize(jnp.sum, numerics="strict"))(x)
    assert strict == jax.jit(jnp.sum)(x)


def double(x: Any) -> Any:
    """Two operations for each entry."""
    return x * 2 + 1


LEFT: dict[str, tuple[Callable[..., Any], Any]] = {
    "short already": (double, normal(0, 400)),
    "sines of any number": (jnp.sin, normal(0, 8000)),
    "long": (double, normal(0, 3000, 1000)),
    "half precision": (double, normal(0, 2000).astype("bfloat16")),
    "complex": (double, normal(0, 2000) + 1j),
    "effects": (lambda x: (jax.debug.callback(lambda y: None, x[0]), double(x))[1], normal(0, 2000)),
    "a solver": (lambda x: double(jnp.linalg.inv(x)), normal(0, 40, 40)),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    """What gains nothing, and what is not known to, stays as it is without a word."""
    f, x = LEFT[name]
    assert not decisions(f, x)


def test_arrays_are_not_turned_for_it() -> None:
    """Blocks along an inner axis would be copied out of arrays of which a row is read."""
    f = jax.value_and_grad(lambda a, b: jnp.sin((a @ b)[5, 9]), (0, 1))
    (refused,) = decisions(f, normal(0, 350, 300), normal(1, 300, 350))
    assert not refused.fired
    assert "us longer than it takes" in refused.reason


def test_arrays_that_are_turned_would_be_made_first() -> None:
    """XLA reads them where they are, in the one kernel that the program is."""
    (refused,) = decisions(lambda x: sum(x[k] * jnp.flip(x[k : k + 1000]) for k in range(8)), normal(0, 1007))
    assert not refused.fired
    assert refused.reason == "8 arrays that its loops read would be made first"


def test_inside_other_programs() -> None:
    """A function that another program holds is left as it is: that program is short, or not."""
    found: list[Any] = []
    inner = ag.optimize(double, on_report=found.append)
    x = normal(0, 2000)
    jax.jit(lambda x: jax.jit(inner)(x) + 1)(x)
    jax.jit(lambda x: jax.lax.scan(lambda c, _: (inner(c), None), x, None, length=3)[0])(x)
    jax.jit(jax.vmap(inner))(x[None])
    jax.jit(jax.grad(lambda x: inner(x).sum()))(x)
    assert len(found) >= 4
    assert not any(d.rule == NAME for report in found for d in report.decisions)
    jax.jit(inner)(normal(0, 2500))  # of another length: JAX keeps what was traced inside
    assert [d.fired for d in found[-1].decisions if d.rule == NAME] == [True]


def test_said_why_not() -> None:
    """What no axis runs through is named, and how long loops would be."""
    (decision,) = decisions(lambda x: x @ x, normal(0, 20, 20))
    assert not decision.fired
    assert "too many operations" in decision.reason
    (decision,) = decisions(lambda *xs: [double(x) for x in xs], *(normal(0, 600 + k) for k in range(5)))
    assert not decision.fired
    assert "5 loops" in decision.reason
    (decision,) = decisions(lambda x: jnp.histogram(x, 50)[0], normal(0, 500))
    assert not decision.fired
    assert "steps" in decision.reason


MERGED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a polynomial": (lambda x: x * x + 3 * x, (normal(1, 3000),)),
    "Adam": (adam, (normal(1, 1000), normal(2, 1000), normal(3, 1000), positive)),
    "a loss of labels": (
        lambda logits, labels: -jnp.sum(jax.nn.log_softmax(logits) * labels, 1).mean(),
        (normal(0, 32, 10), normal(1, 32, 10)),
    ),
    "a function of neighbours": (lambda x: jnp.sum((x[1:] - x[:-1] ** 2) ** 2), (normal(5, 800),)),
}


@pytest.mark.parametrize("name", MERGED)
def test_one_loop_for_values_of_one_shape(name: str) -> None:
    """What is made of entries of one shape is one loop, of few steps: a step takes longer than its entries do."""
    f, args = MERGED[name]
    (decision,) = decisions(f, *args)
    assert decision.fired, decision.reason
    steps = int(re.findall(r"in (\d+) steps", decision.reason)[0])
    assert steps <= 25 + 15 * (name == "a function of neighbours"), decision.reason
    for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(*args)), jax.tree.leaves(f(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_a_user_s_setting() -> None:
    """Nothing is handed over where the user says so, and nothing needs to be done about it."""
    x = normal(0, 2000)
    assert decisions(double, x)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        assert not decisions(double, x)
    finally:
        jax.config.update("jax_cpu_enable_async_dispatch", True)


COUNTED = [
    (double, normal(0, 700)),
    (jnp.tanh, normal(0, 5000)),
    (jnp.sum, normal(0, 900)),
    (lambda x: x @ x, normal(0, 12, 12)),
    (lambda x: jax.lax.fori_loop(0, 9, lambda _, c: c * x, x), normal(0, 300)),
    (lambda x: jax.lax.cond(x[0] > 0, lambda x: x + 1, lambda x: x * x * x, x), normal(0, 600)),
    (lambda x: x[::-1].reshape(30, -1).T, normal(0, 900)),
    (lambda x: (x / 3 > 1).astype("float32"), normal(0, 800)),
    (jax.nn.softmax, normal(0, 200)),
]


@pytest.mark.parametrize(("f", "x"), COUNTED, ids=[str(k) for k in range(len(COUNTED))])
def test_the_count_is_xla_s(f: Any, x: Any) -> None:
    """About as many operations are counted as XLA counts in what it compiled, which has less to do if anything."""
    here, there = counted(jax.make_jaxpr(f)(x).jaxpr), counted_by_xla(f, x)
    assert 0.95 * there - 40 <= here <= 1.7 * there + 60, (here, there)


@pytest.mark.parametrize(("steps", "fires"), [(50, False), (1, True)])
def test_each_block_takes_all_steps_of_a_loop(steps: int, fires: bool) -> None:
    """50 steps of Newton's method in 20 blocks took 1.4 times as long as they are."""

    def newton(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c - (c**3 - 2) / (3 * c**2), None), x, None, length=steps)[0]

    assert any(d.fired for d in decisions(newton, 1 + normal(0, 1001) ** 2)) == fires


def test_rows_that_are_put_together_are_not_written_for_a_loop() -> None:
    """XLA makes shifted rows in the kernel that adds them up: 20 kernels before a loop took 3.8 times as long."""

    def added(x: Any) -> Any:
        return jnp.stack([jnp.roll(x, k) for k in range(20)]).sum(0)

    x = normal(0, 700)
    (decision,) = decisions(added, x)
    assert not decision.fired
    assert "arrays that its loops read would be made first" in decision.reason
    np.testing.assert_allclose(jax.jit(ag.optimize(added))(x), jax.jit(added)(x), rtol=1e-5, atol=1e-5)


FIELD, AT = normal(0, 300, 300), jnp.array([3, 50, 7, 99, 2])
PARTS: dict[str, Callable[[Any], Any]] = {
    "a diagonal": lambda x: jnp.diagonal(jnp.tanh(x), 2),
    "rows that are picked": lambda x: jnp.sum(jnp.tanh(x)[AT]),
    "every seventh row": lambda x: jnp.sum(jnp.tanh(x)[::7]),
}
PLACES = jnp.asarray(np.random.default_rng(1).integers(0, 300, 1200))
WHOLE: dict[str, Callable[[Any], Any]] = {
    "of an argument": lambda x: jnp.sum(x[::40]),
    "few numbers": lambda x: jnp.sum(jnp.tanh(x[0])[PLACES] * 2),
    "what is transposed": lambda x: jnp.sum(jnp.exp(x[:10]).T.reshape(10, 300) * 3),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_read_in_parts_is_not_made_for_a_loop(name: str) -> None:
    """XLA computes the entries that are read; a loop would read them from memory (a diagonal: 2.3 of the time)."""
    f = PARTS[name]
    (decision,) = decisions(f, FIELD)
    assert not decision.fired
    assert "made as a whole first" in decision.reason
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(FIELD), jax.jit(f)(FIELD), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_what_takes_no_time_to_make_may_be_read_in_parts(name: str) -> None:
    """What exists already, is small or is read as a whole is no reason against a loop."""
    f = WHOLE[name]
    assert any(d.fired for d in decisions(f, FIELD))
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(FIELD), jax.jit(f)(FIELD), rtol=1e-5, atol=1e-5)
