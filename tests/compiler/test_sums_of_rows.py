"""Sums and extrema along an axis that is not the last are taken row by row where XLA would go entry by entry."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel._jax import jaxprs_in_params
from aerogel.compiler.passes.sums_of_rows import NAME, SumsOfRows


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers of float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How often the pass did something."""
    return sum(d.rule == NAME for d in ag.explain(f, **options)(*args).fired)


def agree(f: Callable[..., Any], *args: Any) -> None:
    """Value and gradient are those of the natural form."""

    def total(*args: Any) -> Any:
        return jnp.sum(jnp.sin(f(*args)))

    where = tuple(range(len(args)))
    forms = (f, jax.grad(total, where))
    for g in forms:
        for got, want in zip(*(jax.tree.leaves(jax.jit(h)(*args)) for h in (ag.optimize(g), g)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(want))))


x = normal(0, 24, 20, 48)
SLOW: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "weights between": (lambda w, x: jnp.sum(w[:, None] * x, 0), (normal(1, 24, 48), x)),
    "weights in front": (lambda w, x: jnp.sum(x * w, 1), (normal(1, 20, 48), x)),
    "of a function": (lambda w, x: jnp.sum(w[:, None] * jnp.exp(-x * x), 0), (normal(1, 24, 48), x)),
    "two functions": (lambda w, x: jnp.sum(jnp.tanh(w)[:, None] * jnp.abs(x), 0), (normal(1, 24, 48), x)),
    "four dimensions": (lambda w, x: jnp.sum(w[:, :, None] * x, 0), (normal(1, 24, 10, 8), normal(0, 24, 10, 16, 8))),
    "layers": (lambda w, x: jnp.sum(w[:, None, None] * x, 0), (normal(1, 40), normal(0, 40, 64, 128))),
    "in a loop": (
        lambda w, x: jax.lax.scan(lambda c, w: (c + jnp.sum(w[:, None] * x, 0), None), jnp.zeros((20, 48)), w)[0],
        (normal(1, 3, 24, 48), x),
    ),
    "of a batch": (jax.vmap(lambda w, x: jnp.sum(w[:, None] * x, 0)), (normal(1, 2, 24, 48), normal(0, 2, 24, 20, 48))),
    "the mean": (lambda w, x: jnp.mean(w[:, None] * x, 0), (normal(1, 24, 48), x)),
}


@pytest.mark.parametrize("name", SLOW)
def test_it_fires(name: str) -> None:
    """Wherever the weights stand, of what is computed on the way as well."""
    f, args = SLOW[name]
    assert fired(f, *args) == 1
    agree(f, *args)


wide = normal(2, 6, 130, 130)
WIDE: dict[str, tuple[Callable[..., Any], Any]] = {
    "sum": (lambda x: jnp.sum(x, 0), wide),
    "mean": (lambda x: jnp.mean(x, 0), wide),
    "maximum": (lambda x: jnp.max(x, 0), wide),
    "minimum": (lambda x: jnp.min(jnp.abs(x), 0), wide),
    "of a function": (lambda x: jnp.sum(jnp.exp(-x * x), 0), wide),
    "of differences": (lambda x: jnp.sum((x - x[:, :1]) ** 2, 0), wide),
    "over a middle axis": (lambda x: jnp.sum(jnp.sin(x), 1), normal(2, 3, 5, 16_400)),
    "over two axes": (lambda x: jnp.sum(jnp.sin(x), (0, 1)), normal(2, 3, 5, 16_400)),
    "over two axes apart": (lambda x: jnp.sum(jnp.sin(x), (0, 2)), normal(2, 3, 5, 2, 16_400)),
    "in a batch": (jax.vmap(lambda x: jnp.sum(jnp.sin(x), 0)), normal(2, 2, 3, 16_400)),
    "in a loop": (
        lambda x: jax.lax.scan(lambda c, _: (c + jnp.sum(jnp.sin(x + c), 0), None), jnp.zeros((130, 130)), None, 3)[0],
        wide,
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_rows(name: str) -> None:
    """Rows of more entries than the library takes at once: sums, extrema, and what is computed before them."""
    f, x = WIDE[name]
    assert fired(f, x) == 1
    agree(f, x)


def test_wide_rows_of_half_precision_are_added_in_float32() -> None:
    """As JAX adds them: what is rounded is the total."""
    x = wide.astype("bfloat16")
    assert fired(lambda x: jnp.sum(x, 0), x) == 1
    got = jax.jit(ag.optimize(lambda x: jnp.sum(x, 0)))(x)
    assert got.dtype == "bfloat16"
    np.testing.assert_allclose(got.astype("float32"), np.sum(np.asarray(x, "float64"), 0), rtol=2**-8, atol=1e-6)


def test_float64_and_half_precision_weights() -> None:
    """Rows are wide from 64 KiB on; what is multiplied in half precision is added up in float32."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8200)))
        w, y = x[:, :48], jnp.asarray(np.random.default_rng(1).standard_normal((3, 200, 48)))
        assert fired(lambda x: jnp.sum(jnp.sin(x), 0), x) == 1
        assert fired(lambda x: jnp.max(x, 0), x) == 1
        assert fired(lambda w, y: jnp.sum(w[:, None] * y, 0), w, y) == 1
        for f, args in ((lambda x: jnp.sum(jnp.sin(x), 0), (x,)), (lambda w, y: jnp.sum(w[:, None] * y, 0), (w, y))):
            np.testing.assert_allclose(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args), rtol=1e-12, atol=1e-14)
    f, (w, z) = SLOW["weights between"]
    w, z = w.astype("bfloat16"), z.astype("bfloat16")
    assert fired(f, w, z) == 1
    want = np.sum(np.asarray(w, "float64")[:, None] * np.asarray(z, "float64"), 0)
    got = jax.jit(ag.optimize(f))(w, z)
    assert got.dtype == "bfloat16"
    np.testing.assert_allclose(got.astype("float32"), want, rtol=2**-6, atol=0.1)


def test_variance_reads_wide_rows() -> None:
    """A mean and a sum of what differs from it."""
    assert fired(lambda x: jnp.var(x, 0), wide) == 2
    agree(lambda x: jnp.var(x, 0), wide)


def test_strict_takes_extrema_by_rows() -> None:
    """They are the same in any order, not a number among them too; sums are not."""
    bad = wide.at[2, 3, 4].set(jnp.nan).at[0, 0, 0].set(jnp.inf).at[1].set(-jnp.inf)
    for name, count in (("maximum", 1), ("minimum", 1), ("sum", 0)):
        f, _ = WIDE[name]
        assert fired(f, bad, numerics="strict") == count
        if count:  # XLA's library forgets that there was no number; NumPy does not
            values = np.asarray(bad)
            want = values.max(0) if name == "maximum" else np.abs(values).min(0)
            np.testing.assert_array_equal(jax.jit(ag.optimize(f, numerics="strict"))(bad), want)


def test_rows_over_devices_stay() -> None:
    """A loop over rows that lie on other devices would send each of them around; the report says so."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(wide, jax.NamedSharding(mesh, jax.P("rows")))

    def f(x: Any) -> Any:
        return jnp.sum(jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P("rows"))), 0)

    (decision,) = [d for d in ag.explain(f)(x).decisions if d.rule == NAME]
    assert not decision.fired
    assert "devices" in decision.reason
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jnp.sum(wide, 0), rtol=1e-5, atol=1e-5)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "over the last axis": (lambda w, x: jnp.sum(w[:, None] * x, 2), (normal(1, 24, 48), x)),
    "repeated along the last axis": (lambda w, x: jnp.sum(w[..., None] * x, 0), (normal(1, 24, 20), x)),
    "repeated along the axis itself": (lambda w, x: jnp.sum(w * x, 0), (normal(1, 20, 48), x)),
    "no factor repeats": (lambda w, x: jnp.sum(w * x, 0), (normal(1, 24, 20, 48), x)),
    "few entries": (lambda w, x: jnp.sum(w[:, None] * x, 0), (normal(1, 24, 8), x[:, :10, :8])),
    "rows of 8,192 in float64": (lambda x: jnp.sum(x, 0), (jax.ShapeDtypeStruct((3, 8192), "float64"),)),
    "a product of matrices in half precision": (
        lambda x, w: (x[..., None] * w).sum(-2),
        (jax.ShapeDtypeStruct((256, 128), "bfloat16"), jax.ShapeDtypeStruct((128, 256), "bfloat16")),
    ),
    "a maximum of half precision": (lambda x: jnp.max(x, 0), (jax.ShapeDtypeStruct((3, 99_999), "bfloat16"),)),
    "integers": (lambda x: jnp.sum(x, 0), (jax.ShapeDtypeStruct((3, 99_999), "int32"),)),
    "read by others": (lambda w, x: (lambda y: (jnp.sum(y, 0), y))(w[:, None] * x), (normal(1, 24, 48), x)),
    "a difference": (lambda w, x: jnp.sum(jnp.abs(w[:, None] - x), 0), (normal(1, 24, 48), x)),
    "an extremum": (lambda w, x: jnp.max(w[:, None] * x, 0), (normal(1, 24, 48), x)),
    "rows of 16,384": (lambda w, x: jnp.sum(w * x, 0), (normal(1, 3, 16_384), normal(0, 3, 16_384))),
    "one row": (lambda w, x: jnp.sum(w * x, 0), (normal(1, 1, 16_400), normal(0, 1, 16_400))),
    "columns of wide rows": (lambda w, x: jnp.sum(w * x, 1), (normal(1, 3, 16_400), normal(0, 3, 16_400))),
    "all entries": (lambda w, x: jnp.sum(w * x), (normal(1, 3, 16_400), normal(0, 3, 16_400))),
    "very many wide rows": (lambda x: jnp.sum(x, 0), (jax.ShapeDtypeStruct((4097, 16_400), "float32"),)),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    """What XLA is fast at, and what it stores anyway."""
    f, args = LEFT[name]
    with jax.enable_x64("float64" in name):
        assert fired(f, *args) == 0


def test_strict_keeps_the_order_of_sums() -> None:
    """Row after row is another order than a library's."""
    f, args = SLOW["weights between"]
    assert fired(f, *args, numerics="strict") == 0


@given(
    shape=st.lists(st.integers(1, 40), min_size=2, max_size=4).map(lambda sizes: (*sizes, 24)),
    data=st.data(),
)
def test_any_axes_and_sizes(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Any axis, any repeated dimensions: the sums are the same."""
    if np.prod(shape) > 200_000:
        shape = shape[-3:]
    axis = data.draw(st.integers(0, len(shape) - 1))
    repeated = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    weights = normal(1, *(1 if d in repeated else size for d, size in enumerate(shape)))
    values = normal(2, *shape)

    def f(w: Any, x: Any) -> Any:
        return jnp.sum(w * x, axis)

    np.testing.assert_allclose(
        jax.jit(ag.optimize(f))(weights, values), jax.jit(f)(weights, values), rtol=1e-4, atol=1e-3
    )


def test_zero_sizes_and_nan() -> None:
    """No rows, no columns, and numbers that are none."""
    f, (w, x) = SLOW["weights between"]
    bad = x.at[3, 4, 5].set(jnp.nan).at[0, 0, 0].set(jnp.inf)
    np.testing.assert_array_equal(jnp.isnan(jax.jit(ag.optimize(f))(w, bad)), jnp.isnan(f(w, bad)))
    for size in ((0, 20, 48), (24, 0, 48), (24, 20, 0)):
        empty = jnp.zeros(size)
        got = jax.jit(ag.optimize(f))(jnp.zeros((size[0], size[2])), empty)
        assert got.shape == size[1:]
        assert not got.any()


@pytest.mark.parametrize("how", [jnp.sum, jnp.min, jnp.max], ids=["sum", "min", "max"])
def test_rows_that_are_put_together_for_it_alone_stay(how: Callable[..., Any]) -> None:
    """They are in no memory, and XLA makes one kernel of all: in a loop 1.3 to 38 times as long."""
    x = normal(0, 20_020)
    windows = lambda x: [x[k : k + 20_000] for k in range(20)]  # noqa: E731
    stacked = lambda x: how(jnp.stack(windows(x)), 0)  # noqa: E731
    assert fired(stacked, x) == 0
    assert fired(lambda x: how(jnp.concatenate([w[None] ** 2 for w in windows(x)]), 0), x) == 0
    agree(stacked, x)
    other_axis = lambda x: how(jnp.stack([jnp.stack(windows(x)), jnp.stack(windows(x))]), 1)  # noqa: E731
    agree(other_axis, x)
    assert fired(lambda x: how(x.reshape(20, 20_000), 0), normal(0, 400_000)) == 1


def test_rows_that_others_read_too_are_taken_row_by_row() -> None:
    """They are in memory then."""
    x, y = normal(0, 10, 20_000), normal(1, 10, 20_000)

    def both(x: Any, y: Any) -> Any:
        rows = jnp.concatenate([x, y])
        return rows, jnp.min(rows, 0)

    assert fired(both, x, y) == 1
    assert fired(lambda x, y: both(x, y)[1], x, y) == 1  # not single rows: XLA would search for each entry


def masks(indices: Any, weights: Any) -> tuple[Any, Any]:
    """Where each of two experts puts a row, and with what weight, as mixtures of experts have it."""
    taken = jax.nn.one_hot(indices, 8)[..., None] * jax.nn.one_hot(indices * 3 % 64, 64)[:, :, None]
    return (taken * weights[:, :, None, None]).sum(0), taken


def steps_at_once(f: Callable[..., Any], *args: Any) -> int:
    """How many rows a step of the only loop adds up."""

    def found(jaxpr: Any) -> list[int]:
        inner = [one for eqn in jaxpr.eqns for held in jaxprs_in_params(eqn.params) for one in found(held)]
        return inner + [eqn.params["unroll"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]

    only = ag.optimize(f, passes=(SumsOfRows(),), rules=())
    (unroll,) = found(jax.make_jaxpr(only)(*args).jaxpr)
    return unroll


ROUTES = jnp.asarray(np.random.default_rng(0).integers(0, 8, (2, 256)))


def test_what_others_read_is_in_memory_for_few_rows() -> None:
    """Without a loop, XLA would compute the masks number by number again."""
    args = ROUTES, normal(1, 2, 256)
    assert fired(masks, *args) == 1
    assert steps_at_once(masks, *args) == 1
    for got, want in zip(jax.jit(ag.optimize(masks))(*args), masks(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [2, 24])
def test_arguments_and_rows_of_a_loop_are_in_memory(count: int) -> None:
    """Near misses: nothing is computed of an argument, and a loop reads what is stored."""
    x, w = normal(0, count, 200, 48), normal(1, count, 48)
    given = x, w
    f = (lambda x, w: jnp.sum(w[:, None] * x, 0)) if count == 2 else (lambda x, w: both(jnp.exp(x), w))

    def both(y: Any, w: Any) -> Any:
        return jnp.sum(w[:, None] * y, 0), y

    assert fired(f, *given) == 1
    assert steps_at_once(f, *given) == min(count, 4)


def test_what_nobody_else_reads_is_computed_with_the_rows() -> None:
    """Near miss: it is in no memory."""
    x, w = normal(0, 3, 200, 48), normal(1, 3, 48)

    def f(x: Any, w: Any) -> Any:
        return jnp.sum(w[:, None] * jnp.exp(x), 0)

    assert fired(f, x, w) == 1
    assert steps_at_once(f, x, w) == 3
