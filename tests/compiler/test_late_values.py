"""What a gradient's backward part makes again of a forward part without loops."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.normalize import drop_dead, normalize
from aerogel.compiler.passes.late_values import NAME
from aerogel.compiler.residuals import late_values
from aerogel.compiler.residuals.scattered import scattered_onto

WITHOUT = tuple(p for p in ag.compiler.DEFAULT_PASSES if p.name != NAME)


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def fired(f: Callable[..., Any], *args: Any) -> int:
    """In how many levels something is made again."""
    return sum(d.rule == NAME for d in ag.explain(f)(*args).fired)


def temporary(f: Callable[..., Any], *args: Any) -> int:
    """Bytes of temporary memory of the compiled program."""
    plan: Any = jax.jit(f).lower(*args).compile().memory_analysis()
    return plan.temp_size_in_bytes


def silu(x: Any) -> Any:
    """As JAX's own, written out."""
    return x * jax.nn.sigmoid(x)


def layers(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    """The loss of a network of normalised layers."""

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
            x = x + activation(y @ w)
        return jnp.mean(x**2)

    return loss


def convolutions(kernels: Any, x: Any) -> Any:
    """The loss of convolutions, each normalised over the batch."""
    for kernel in kernels:
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
        x = x + silu(y)
    return jnp.mean(x**2)


WEIGHTS = [normal(k, 256, 256) / 16 for k in range(4)]
X = normal(9, 1024, 256)
GELU = jax.value_and_grad(layers(jax.nn.gelu))
FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]] = {
    "gelu": (GELU, (WEIGHTS, X), 0.92),
    "silu": (jax.value_and_grad(layers(silu)), (WEIGHTS, X), 0.92),
    "error function": (jax.grad(layers(lambda x: 0.5 * x * (1 + lax.erf(x / 2**0.5)))), (WEIGHTS, X), 0.92),
    "convolutions": (
        jax.grad(convolutions),
        ([normal(k, 3, 3, 16, 16) / 12 for k in range(3)], normal(5, 16, 32, 32, 16)),
        0.95,
    ),
    "many narrow layers": (GELU, ([normal(k, 64, 64) / 8 for k in range(40)], normal(9, 256, 64)), 0.6),
    "mapped": (lambda ws, x: jax.vmap(GELU, (None, 0))(ws, x), (WEIGHTS, X.reshape(2, 512, 256)), 0.92),
    "in a loop": (
        lambda ws, xs: lax.scan(lambda ws, x: (jax.tree.map(jnp.subtract, ws, GELU(ws, x)[1]), 0), ws, xs)[0],
        (WEIGHTS, X[None]),
        0.85,
    ),
}


@pytest.mark.parametrize("name", FIRES)
def test_same_numbers_in_less_memory(name: str) -> None:
    """The gradient is the same, and XLA plans less for it than without the pass."""
    f, args, share = FIRES[name]
    assert fired(f, *args) >= 1
    without = ag.optimize(f, passes=WITHOUT, rules=ag.rules.default)
    assert temporary(ag.optimize(f), *args) <= share * temporary(without, *args)
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(abs(want).max()))


def test_beside_float64() -> None:
    """It is as far from float64 as plain JAX is."""
    slope = jax.grad(layers(jax.nn.gelu))
    with jax.enable_x64(True):
        args = jax.tree.map(lambda v: jnp.asarray(np.asarray(v, "float64")), (WEIGHTS, X))
        exact = [np.asarray(v) for v in slope(*args)]
    plain, got = (jax.jit(f)(WEIGHTS, X) for f in (slope, ag.optimize(slope)))

    def error(found: Any) -> float:
        return max(float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()) for a, b in zip(found, exact, strict=True))

    assert error(got) <= 2 * error(plain) + 1e-7


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_floats(dtype: str) -> None:
    """Their words are short, too."""
    weights, x = [w.astype(dtype) for w in WEIGHTS], normal(9, 8192, 256, dtype=dtype)
    f = jax.grad(layers(silu))
    assert fired(f, weights, x) >= 1
    for got, want in zip(*(jax.jit(g)(weights, x) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(*(np.asarray(v, "float32") for v in (got, want)), rtol=0.1, atol=0.02)


def test_infinities_and_nan() -> None:
    """A wall keeps every bit."""
    behind = lambda x, wait: late_values.behind_a_wall(x, late_values.is_never(wait))  # noqa: E731
    x = jnp.array([0.0, -0.0, jnp.inf, -jnp.inf, jnp.nan, 1e-40, 3.0])
    for wait in (jnp.nan, 0.0, jnp.inf, 5.0):
        got = jax.jit(behind)(x, jnp.full((2, 2), wait))
        assert np.array_equal(np.asarray(got).view("int32"), np.asarray(x).view("int32"))
    mask = jnp.array([True, False])
    assert np.array_equal(jax.jit(behind)(mask, jnp.ones(3)), mask)


def test_derivatives_of_the_optimised() -> None:
    """What has no derivative is written last, so that second derivatives are there."""
    slope = lambda x: ag.optimize(jax.grad(layers(silu), 1))(WEIGHTS, x)  # noqa: E731
    want = jax.jvp(lambda x: jax.grad(layers(silu), 1)(WEIGHTS, x), (X,), (X,))[1]
    got = jax.jit(lambda x: jax.jvp(slope, (x,), (x,))[1])(X)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(abs(want).max()))


def chosen(x: Any, w: Any) -> Any:
    """The largest of each pair of what a product makes: which one it is must not hang on rounding."""
    y = jnp.exp(0.1 * (x @ w)) * 0.3 + 0.7 * x
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")
    return jnp.sum(jnp.sin(y @ w[:128]))


def kernels(x: Any, c: Any) -> Any:
    """A list of sums of what is made of one array: no layer stands between them and their derivatives."""
    return jnp.sum(jnp.sin(jnp.stack([jnp.exp(-((x - c[k]) ** 2)).mean() for k in range(20)])))


def experts(weights: Any, x: Any) -> Any:
    """A single layer of experts: its backward part begins where its activation is wanted."""
    inner, outer, gate = weights
    h = silu(jnp.einsum("td,edf->etf", x, inner))
    return jnp.mean(jnp.einsum("etf,efd,te->td", h, outer, jax.nn.softmax(x @ gate)) ** 2)


EXPERTS = normal(1, 8, 128, 128) / 11, normal(2, 8, 128, 128) / 11, normal(3, 128, 8)


LEAVES_ALONE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a value": (layers(jax.nn.gelu), (WEIGHTS, X)),
    "little": (GELU, (WEIGHTS, X[:64])),
    "what XLA fuses": (jax.grad(lambda ws, x: jnp.sum(jnp.tanh(x @ ws[0]) * 3.0 + 1.0)), (WEIGHTS, X)),
    "a single layer": (jax.grad(experts), (EXPERTS, normal(4, 4096, 128))),
    "a list of sums": (jax.grad(kernels, (0, 1)), (normal(1, 100_000), jnp.linspace(0.0, 1.0, 20))),
    "what is compared": (jax.grad(chosen), (normal(1, 2048, 256), WEIGHTS[0])),
}


@pytest.mark.parametrize("name", LEAVES_ALONE)
def test_leaves_alone(name: str) -> None:
    """Nothing is late, or too little, or nothing may be made again."""
    f, args = LEAVES_ALONE[name]
    assert fired(f, *args) == 0


def test_says_why_not() -> None:
    """What would be kept less is no less memory where the backward part holds as much again."""
    decisions = ag.explain(jax.grad(experts))(EXPERTS, normal(4, 4096, 128)).decisions
    reasons = [decision.reason for decision in decisions if decision.rule == NAME]
    assert [reason.partition(" MB less would be kept, but only ")[1] != "" for reason in reasons] == [True]


def test_what_is_read_once_is_in_no_memory() -> None:
    """A gated layer by itself hands nothing on: its gate is computed where it is multiplied."""

    def gated(a: Any, b: Any, c: Any, x: Any) -> Any:
        return jnp.mean((x + (silu(x @ a) * (x @ b)) @ c) ** 2)

    args = normal(0, 256, 1024), normal(1, 256, 1024), normal(2, 1024, 256), normal(3, 2048, 256)
    assert fired(gated, *args) == 0
    assert fired(jax.grad(gated, (0, 1, 2)), *args) == 1
    assert fired(jax.grad(gated), *args) == 0  # would hold more: the gate and its derivative at once


def test_a_cross_entropy_holds_no_zeros() -> None:
    """Nothing waits for what is scattered into zeros, as XLA scatters it into what it is added to."""
    z, t = normal(0, 500, 3000), jnp.arange(500) * 5
    loss = lambda z, t: optax.softmax_cross_entropy_with_integer_labels(z, t).mean()  # noqa: E731
    assert temporary(ag.optimize(jax.value_and_grad(loss)), z, t) < 1 << 20


AT = jnp.array([3, 3, 0, 9, -1])
ADDED: dict[str, tuple[Callable[..., Any], bool]] = {
    "behind": (lambda x, u: x + jnp.zeros_like(x).at[AT].add(u), True),
    "in front": (lambda x, u: jnp.zeros_like(x).at[AT].add(u) + x, True),
    "twice": (lambda x, u: x + jnp.zeros_like(x).at[AT].add(u) + jnp.zeros_like(x).at[AT + 1].add(u), True),
    "with itself": (lambda x, u: (y := jnp.zeros_like(x).at[AT].add(u)) + y, False),
    "both scattered": (lambda x, u: jnp.zeros_like(x).at[AT].add(u) + jnp.zeros_like(x).at[AT + 1].add(u), True),
    "read elsewhere": (lambda x, u: (x + (y := jnp.zeros_like(x).at[AT].add(u)), y), False),
    "into ones": (lambda x, u: x + jnp.ones_like(x).at[AT].add(u), False),
    "set": (lambda x, u: x + jnp.zeros_like(x).at[AT].set(u), False),
    "subtracted": (lambda x, u: x - jnp.zeros_like(x).at[AT].add(u), False),
    "repeated": (lambda x, u: x[:1] + jnp.zeros_like(x).at[AT].add(u), False),
    "a number": (lambda x, u: 2.0 + jnp.zeros_like(x).at[AT].add(u), False),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_scattered_into_zeros_and_added(name: str) -> None:
    """Places that are named twice, from the end, and out of the array, included."""
    f, changes = ADDED[name]
    x, u = normal(0, 8, 3), normal(1, 5, 3)
    closed: Any = jax.make_jaxpr(f)(x, u)
    closed = normalize(closed)[0]
    new = drop_dead(scattered_onto(closed.jaxpr))
    count = lambda jaxpr, name: sum(eqn.primitive.name == name for eqn in jaxpr.eqns)  # noqa: E731
    assert (count(new, "add") + count(new, "add_any") < count(closed.jaxpr, "add")) == changes
    for got, want in zip(jax.core.eval_jaxpr(new, closed.consts, x, u), jax.tree.leaves(f(x, u)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(("width", "times"), [(3, 0), (7, 0), (16, 1)])
def test_rows_of_few_entries_are_kept(width: int, times: int) -> None:
    """A mean that is spread over points is subtracted point by point: what is less its mean is made once."""

    def aligned(p: Any, q: Any) -> Any:
        p, q = (x - x.mean(1, keepdims=True) for x in (p, q))
        u, _, v = jnp.linalg.svd(jnp.einsum("bni,bnj->bij", p, q))
        return jnp.mean((p @ (u @ v) - q) ** 2, (1, 2))

    points = jax.ShapeDtypeStruct((40_000 // width, 64, width), "float32")
    assert fired(aligned, points, points) == times
