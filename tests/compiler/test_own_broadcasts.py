"""What several sums repeat along their axes, each repeats for itself, and computes the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import aerogel as ag
from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler.cost.machine import table
from aerogel.compiler.level import Level
from aerogel.compiler.normalize import drop_dead
from aerogel.compiler.passes.own_broadcasts import NAME
from aerogel.compiler.readers import own_broadcasts

SHAPE = (528, 1024)


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How many values were set apart."""
    return sum(d.rule == NAME for d in ag.explain(f, **options)(*args).fired)


def temporary(f: Callable[..., Any], *args: Any) -> int:
    """Bytes of temporary memory of the compiled program."""
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


def agree(f: Callable[..., Any], *args: Any, rtol: float = 1e-5) -> None:
    """Values and gradients are those of the natural form; what they are summed by keeps the digits of large sums."""

    def total(*args: Any) -> Any:
        return sum(jnp.sum(jax.nn.soft_sign(v.astype("float32"))) for v in jax.tree.leaves(f(*args)))

    for g in (f, jax.grad(total, tuple(range(len(args))))):
        for got, want in zip(*(jax.tree.leaves(jax.jit(h)(*args)) for h in (ag.optimize(g), g)), strict=True):
            scale = float(jnp.max(jnp.abs(want), initial=0.0, where=jnp.isfinite(want)))
            np.testing.assert_allclose(
                np.asarray(got, "float64"), np.asarray(want, "float64"), rtol=rtol, atol=rtol * scale
            )


def centered(x: Any, axis: Any) -> Any:
    """x without its mean."""
    return x - x.mean(axis, keepdims=True)


def normalised(x: Any) -> Any:
    """x as a normalising layer has it."""
    d = centered(x, 1)
    return d * lax.rsqrt(jnp.mean(d * d, 1, keepdims=True) + 1e-5)


x, y, s = normal(0, *SHAPE), normal(1, *SHAPE), jnp.float32(1.5)
# With the number of values that are set apart.
SHARED: dict[str, tuple[Callable[..., Any], int]] = {
    "a scale": (lambda x, y, s: jnp.exp(x * s).sum() + jnp.exp(y * s).sum(), 1),
    "a divisor": (lambda x, y, s: jnp.exp(-x / s).sum() + jnp.exp(-y / s).sum(), 1),
    "a constant": (lambda x, y, s: jnp.exp(0.3 * x).sum() + jnp.exp(0.3 * y).sum(), 1),
    "a row": (lambda x, y, s: jnp.abs(x - y[0]).sum(1) + jnp.exp(y - y[0]).sum(1), 1),
    "a column": (lambda x, y, s: jnp.abs(x - y[:, :1]).sum(1) + jnp.exp(y - y[:, :1]).sum(1), 1),
    "by maxima": (lambda x, y, s: (jnp.max(x * s, 1), jnp.min(y * s, 0)), 1),
    "by three": (lambda x, y, s: (jnp.exp(x * s).sum(), jnp.exp(y * s).sum(), jnp.tanh(x * y * s).sum()), 1),
    "by a sum and a result": (lambda x, y, s: (jnp.exp(x * s).sum(1), jnp.tanh(y * s)), 1),
    "a difference": (lambda x, y, s: (lambda d: (jnp.exp(d).sum(1), jnp.abs(d).sum(1)))(x - y[0]), 1),
    "moments": (lambda x, y, s: (lambda d: ((d**3).mean(), (d**4).mean(), jnp.abs(d).mean()))(centered(x, None)), 1),
    "a normalising layer": (lambda x, y, s: normalised(x), 1),
    "a standardised array": (lambda x, y, s: centered(x, 0) / x.std(0), 1),
    "two sums of differences to maxima": (
        lambda x, y, s: (lambda d: (jnp.exp(d).sum(1), jnp.abs(d).sum(1)))(x - x.max(1, keepdims=True)),
        1,
    ),
    "a sum that needs a softmax's": (lambda x, y, s: (jax.nn.log_softmax(x) * y).sum(1), 1),
    "in a loop": (
        lambda x, y, s: lax.scan(
            lambda c, _: (jnp.tanh(jnp.exp(x * c).max() + jnp.exp(y * c).max()), None), s, None, 3
        )[0],
        1,
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_it_is_not_written_out(name: str) -> None:
    """Less temporary memory, and the same numbers."""
    f, count = SHARED[name]
    assert fired(f, x, y, s) == count
    if name not in ("a normalising layer", "a standardised array"):  # XLA has room for these in the result
        assert temporary(f, x, y, s) >= x.nbytes
    assert temporary(ag.optimize(f), x, y, s) < x.nbytes // 16
    agree(f, x, y, s)


ALONE: dict[str, Callable[..., Any]] = {
    "read by one sum twice": lambda x, y, s: (jnp.exp(x * s) + y * s).sum(1),
    "read by no sum": lambda x, y, s: (jnp.exp(x * s), jnp.tanh(y * s)),
    "a softmax": lambda x, y, s: jax.nn.softmax(x, 1),
    "differences to maxima": lambda x, y, s: (jax.nn.log_softmax(x / s) * y).sum(1),
    "differences to maxima of sums": lambda x, y, s: jax.nn.log_softmax(x + y),
    "means of many rows": lambda x, y, s: normalised((x - y).reshape(-1, 128)),
    "logarithms of many sums": jax.grad(
        lambda x, y, s: (lambda v: jax.nn.softmax(v) * jax.nn.log_softmax(v))(x.reshape(-1, 128)).sum()
    ),
    "constant factors, which XLA takes along": lambda x, y, s: jax.value_and_grad(
        lambda a, b, c: ((a[:, None] * b - c[:, None]) ** 2).sum(), (0, 1, 2)
    )(x[:, 0], y[0], y[:, 1]),
    "before a selection": lambda x, y, s: (jnp.where(x > s, x, s).sum(), jnp.where(y > s, y, s).sum()),
    "a product of two arrays": lambda x, y, s: (lambda d: (jnp.exp(d).sum(1), jnp.abs(d).sum(1)))(x * y),
    "a result": lambda x, y, s: (lambda d: (d, jnp.abs(d).sum(1)))(x - y[0]),
    "dear": lambda x, y, s: (lambda d: ((d * d).sum(1), jnp.abs(d).sum(1)))(jnp.exp(x)),
    "of integers": lambda x, y, s: (lambda a, b: ((a * 3).sum(1), (b * 3).sum(1)))(x.astype(int), y.astype(int)),
    "short rows": lambda x, y, s: (
        jnp.abs(x.reshape(-1, 8) - y[0, :8]).sum(0),
        jnp.exp(y.reshape(-1, 8) - y[0, :8]).sum(0),
    ),
    "sums of short rows": lambda x, y, s: (
        jnp.exp(x.reshape(-1, 32) * s).sum(1),
        jnp.exp(y.reshape(-1, 32) * s).max(1),
    ),
    "pairs of points": lambda x, y, s: (lambda d: (jnp.abs(d).sum((0, 1)), jnp.exp(d).sum((0, 1))))(
        x[:, None, :3] - y[None, :, :3]
    ),
    "small": lambda x, y, s: jnp.exp(x[:20] * s).sum() + jnp.exp(y[:20] * s).sum(),
}


@pytest.mark.parametrize("look", [jax.grad, lambda f: lambda y, s: jax.grad(f, 1)(y, s)[None]], ids=["array", "scalar"])
@pytest.mark.parametrize("of", [jnp.max, jnp.min])
def test_an_extremum_is_found_where_it_is_looked_for(of: Callable[..., Any], look: Callable[..., Any]) -> None:
    """The quotient that it is compared with has the same last bit: no row loses its derivative."""

    def f(y: Any, s: Any) -> Any:
        return of(y / s, 1).sum() + jnp.exp(-y / s).sum() * 1e-9

    got, want = (jax.jit(h)(y, s + 1.2) for h in (ag.optimize(look(f)), look(f)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ALONE)
def test_what_it_leaves_alone(name: str) -> None:
    """Where XLA writes nothing out, or has to."""
    assert fired(ALONE[name], x, y, s) == 0


def test_strict_keeps_quotients() -> None:
    """By a divisor of its own XLA would multiply with the reciprocal; the rest is set apart, with the same bits."""
    assert fired(SHARED["a divisor"][0], x, y, s, numerics="strict") == 0
    for name in ("a scale", "a row", "by maxima", "a difference"):
        f, _ = SHARED[name]
        assert fired(f, x, y, s, numerics="strict") == 1
        for got, want in zip(
            *(jax.tree.leaves(jax.jit(h)(x, y, s)) for h in (ag.optimize(f, numerics="strict"), f)), strict=True
        ):
            np.testing.assert_array_equal(got, want)


def test_a_derivative_that_is_taken_of_it() -> None:
    """Outside and inside, forwards and twice, and in a batch."""
    f = SHARED["a scale"][0]
    for g in (jax.grad(f, (0, 2)), jax.grad(lambda *a: jax.jvp(f, a, a)[1], 2), jax.hessian(f, 2)):
        for got, want in zip(*(jax.tree.leaves(jax.jit(h)(x, y, s)) for h in (ag.optimize(g), g)), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4)
    outside = jax.jit(jax.grad(ag.optimize(f), 2))(x, y, s)
    np.testing.assert_allclose(outside, jax.grad(f, 2)(x, y, s), rtol=2e-4)
    batched = jax.vmap(ag.optimize(f), (None, None, 0))(x, y, jnp.arange(3.0))
    np.testing.assert_allclose(batched, jax.vmap(f, (None, None, 0))(x, y, jnp.arange(3.0)), rtol=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_over_devices_it_adds_no_words_between_them(kind: AxisType) -> None:
    """The same collectives, shardings and numbers."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        spread = jax.device_put((x, y), NamedSharding(mesh, P("d")))

        def f(x: Any, y: Any) -> Any:
            d = x - x.mean(0)
            return jnp.exp(x * s).sum(0), jnp.exp(y * s).sum(), (d * d).sum(0), jnp.abs(d).sum(0)

        assert fired(f, *spread) == 2
        forms = [jax.jit(f), jax.jit(ag.optimize(f))]
        texts = [form.lower(*spread).compile().as_text() for form in forms]
        words = [sum(text.count(f" {name}(") for name in ("all-reduce", "all-gather")) for text in texts]
        assert words[0] == words[1] > 0
        for want, got in zip(*(form(*spread) for form in forms), strict=True):
            assert got.sharding == want.sharding
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(want))))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_types(dtype: str) -> None:
    """float64 and bfloat16 are set apart too; what the library does not take is not."""
    with jax.enable_x64(True):
        args = x.astype(dtype), y.astype(dtype), s.astype(dtype)
        f = SHARED["by maxima"][0]
        assert fired(f, *args) == (dtype != "float16")
        for got, want in zip(*(jax.jit(h)(*args) for h in (ag.optimize(f), f)), strict=True):
            np.testing.assert_array_equal(np.asarray(got, "float64"), np.asarray(want, "float64"))


def test_what_nobody_reads_is_no_hindrance() -> None:
    """Equations that a pass before has left, and copies of which all readers read others: these go."""

    def f(x: Any, y: Any, s: Any) -> Any:
        _ = lax.broadcast_in_dim(s, SHAPE, ()), x - s
        d = x - lax.broadcast_in_dim(s, SHAPE, ())
        return jnp.exp(d).sum(1), jnp.abs(d).sum(1), jnp.exp(y * s).sum()

    program = jax.make_jaxpr(f)(x, y, s)
    sums = own_broadcasts.Sums(Level(program.jaxpr), table("cpu"))
    new = own_broadcasts.set_apart(sums, sums.shared)
    assert drop_dead(new) is new
    for got, want in zip(evaluate(ClosedJaxpr(new, program.consts), [x, y, s]), f(x, y, s), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@given(
    rows=st.integers(0, 5),
    columns=st.integers(0, 5),
    uses=st.lists(st.sampled_from("sum rows columns max result where".split()), min_size=2, max_size=4),
    what=st.sampled_from(("scalar", "row", "column", "constant", "difference", "quotient", "chain")),
)
def test_any_sizes_and_uses(rows: int, columns: int, uses: list[str], what: str) -> None:
    """At no price: everything that may be set apart is."""
    x, y = normal(2, rows, columns), normal(3, rows, columns)
    s = normal(4, rows, 1) if what == "column" else normal(4, columns) if what == "row" else jnp.float32(0.7)
    make: dict[str, Callable[..., Any]] = {
        "constant": lambda x, s: x * 0.3,
        "difference": lambda x, s: jnp.abs(x - s),
        "quotient": lambda x, s: x / (s + 2),
        "chain": lambda x, s: ((x - s) * 2.5 - s) ** 2,
    }
    take: dict[str, Callable[..., Any]] = {
        "sum": lambda v: jnp.exp(-v).sum(),
        "rows": lambda v: (v * v).sum(0),
        "columns": lambda v: jnp.abs(v).sum(1),
        "max": lambda v: jnp.max(v, 1, initial=-9.0),
        "result": jnp.tanh,
        "where": lambda v: jnp.where(v > 0, v, 0).sum(),
    }

    def f(x: Any, y: Any, s: Any) -> Any:
        value = make.get(what, lambda x, s: x * s)
        return [take[use](value((x, y)[k % 2] if k else x, s)) for k, use in enumerate(uses)]

    with pytest.MonkeyPatch.context() as at_no_price:
        for name in ("LEAST_SECONDS", "LEAST_ROW", "LONG_ROW"):
            at_no_price.setattr(own_broadcasts, name, -1)
        at_no_price.setattr(own_broadcasts.Sums, "_seconds", lambda *_: 1.0)
        agree(f, x, y, s)
