"""Types and values at their edges: dtypes, weak types, keys, x64, zero sizes, nan, overflow, forwarded results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

from ._programs import LENGTH, WIDTH, assert_equal_trees, assert_fires, assert_lowers_alike, assert_same, start

FLOATS = ["float16", "bfloat16", "float32"]
SMALL_FLOATS = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"]
INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]
NARROW = ["int4", "uint4", "int2", "uint2"]
WIDE = ["float64", "int64", "uint64", "complex128"]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool", "complex64"])
def test_every_dtype(dtype):
    """Arithmetic, comparison, selection and a reduction keep every dtype."""

    def f(x, y):
        return x + y, x * y, x == y, jnp.where(x == y, x, y), jnp.sum(x, dtype=x.dtype), jnp.zeros_like(x), x[::-1]

    assert_same(f, jnp.array([0, 1, 1, 0], dtype), jnp.array([1, 1, 0, 0], dtype))


@pytest.mark.parametrize("dtype", [*SMALL_FLOATS, *NARROW])
def test_dtypes_for_storage(dtype):
    """Types that are only stored and converted pass through with their bits."""
    x = jnp.array([0, 1, 1, 0], dtype)
    assert_same(lambda x: (x, x.astype(jnp.float32) + 1, x[1:], x.astype(jnp.float32).astype(x.dtype)), x)


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_dtypes(dtype):
    """64-bit programs stay 64-bit, in a context around the call."""
    with jax.enable_x64(True):
        x = jnp.array([1, 2, 3], dtype)
        assert_same(lambda x: (x * 2, x.sum(), x + 1, x == x), x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "uint8", "complex64"])
def test_a_rewritten_scan_of_every_dtype(dtype):
    """Where the loop that is rewritten itself has this dtype, the result has JAX's dtype and value."""

    def f(x):
        return lax.scan(lambda c, _: (c + 1, c + 1), x, None, length=LENGTH)[1].max()

    def g(x):
        return lax.scan(lambda c, _: (c + 1, c + 1), x, None, length=LENGTH)[1].sum()

    x = jnp.zeros(4 * WIDTH, dtype)
    which = g if dtype == "complex64" else f
    got, want = jax.jit(ag.optimize(which))(x), jax.jit(which)(x)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(np.asarray(got, np.complex128), np.asarray(want, np.complex128), rtol=1e-5)
    assert_fires(which, x, gone=(LENGTH, 4 * WIDTH))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_sums_are_no_worse(dtype):
    """A sum over time of halves is accumulated as well as JAX does it: in float32."""

    def f(x):
        return lax.scan(lambda c, _: (c, c), x, None, length=512)[1].sum(0)

    x = jnp.linspace(0.5, 1.0, WIDTH).astype(dtype)
    exact = 512 * np.asarray(x, np.float64)
    error = [np.max(np.abs(np.asarray(jax.jit(g)(x), np.float64) - exact) / exact) for g in (f, ag.optimize(f))]
    assert error[1] <= 1.1 * error[0] + 1e-12


def test_narrowing_casts_are_kept():
    """Rounding to a narrower type and back is a computation, not a no-op."""

    def f(x, i):
        return (
            x.astype(jnp.bfloat16).astype(jnp.float32),
            x.astype(jnp.float16).astype(jnp.float32),
            x.astype(jnp.int32).astype(jnp.float32),
            i.astype(jnp.int8).astype(jnp.int32),
            lax.reduce_precision(x, 5, 2),
        )

    x, i = jnp.array([1.001, -2.7, 1e-3, 65504.1]), jnp.array([300, -129, 127])
    assert_same(f, x, i)
    assert_lowers_alike(f, x, i)


def test_narrowing_casts_inside_a_rewritten_scan():
    """The stacked output is truncated before it is summed, also when it is never stacked: an exact sum."""

    def f(x):
        def body(c, _):
            return jnp.sin(c), (10 * c).astype(jnp.int8)

        return lax.scan(body, x, None, length=4 * LENGTH)[1].astype(jnp.float32).sum()

    x = start()
    assert_fires(f, x, gone=(4 * LENGTH, WIDTH))
    assert float(jax.jit(ag.optimize(f))(x)) == float(jax.jit(f)(x))


def test_weak_types_in_and_out():
    """A weakly typed argument promotes weakly inside, and a weak result stays weak."""

    def f(x):
        return x, x + 1, x * jnp.ones(2, jnp.bfloat16), jnp.sin(x), lax.convert_element_type(x, jnp.float32)

    assert_same(f, 2.0)
    assert_same(f, jnp.asarray(2.0))
    assert_same(lambda i: (i * 2, i + jnp.int8(1)), 3)


def test_weakly_typed_carries():
    """A loop's weak carry keeps its weak type."""
    assert_same(lambda x: lax.fori_loop(0, 5, lambda i, c: c * 1.5, x), 2.0)
    assert_same(lambda x: lax.scan(lambda c, _: (c + 1, c), x, None, length=3), 2.0)
    assert_same(lambda x: lax.while_loop(lambda c: c < 100, lambda c: c * 2, x), 3)


def test_forwarded_duplicated_and_constant_results():
    """Arguments handed back, one value returned twice, and values that depend on nothing."""

    def f(x, y):
        z = x + y
        return x, z, z, y, x, jnp.ones(3), 2.5, np.float32(1.5), True, jnp.arange(2), z

    assert_same(f, jnp.ones(3), jnp.arange(3.0))
    assert_lowers_alike(f, jnp.ones(3), jnp.arange(3.0))


def test_identity_and_empty_results():
    """`x -> x` and `x -> None` are programs."""
    assert_same(lambda x: x, jnp.ones(3))
    assert_same(lambda x: None, jnp.ones(3))
    assert_same(lambda x: (), jnp.ones(3))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys(impl):
    """Keys go in and out, are split, folded, indexed, carried through a loop and drawn from: the same bits."""

    def f(key, x):
        a, b = jax.random.split(key)
        last, drawn = lax.scan(lambda k, _: (jax.random.fold_in(k, 1), jax.random.uniform(k, (3,))), a, None, length=4)
        return key, a, jax.random.split(b, 3)[1:], last, drawn, jax.random.normal(b, (3,)) + x, jax.random.key_data(b)

    assert_same(f, jax.random.key(7, impl=impl), jnp.ones(3))


def test_a_rewritten_scan_that_carries_a_key():
    """Random numbers drawn in a loop that is rewritten are the natural form's."""

    def f(key, x):
        def body(carry, _):
            key, x = carry
            key, now = jax.random.split(key)
            x = 0.9 * x + jax.random.normal(now, x.shape)
            return (key, x), jnp.square(x)

        (key, _), squares = lax.scan(body, (key, x), None, length=LENGTH)
        return key, squares.mean()

    key, x = jax.random.key(0), start()
    assert_fires(f, key, x)
    got, want = jax.jit(ag.optimize(f))(key, x), jax.jit(f)(key, x)
    assert jax.random.key_data(got[0]).tolist() == jax.random.key_data(want[0]).tolist()
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


def test_raw_keys():
    """Old-style uint32 keys draw the same bits."""
    assert_same(lambda key: jax.random.normal(jax.random.split(key)[1], (5,)), jax.random.PRNGKey(3))


def test_x64_around():
    """One function under both settings: each gives its own types, in whatever order they are called."""

    def f(x):
        return x * 2.5, jnp.arange(3) + 1, jnp.sum(x), jnp.zeros_like(x)

    g = jax.jit(ag.optimize(f))
    for wide in (True, False, True):
        with jax.enable_x64(wide):
            x = jnp.arange(3.0)
            assert_equal_trees(g(x), jax.jit(f)(x))
            assert_same(f, x)


def test_x64_inside():
    """A stretch of a function in 64 bits keeps its types, though the call around it is 32-bit."""

    def f(x):
        with jax.enable_x64(True):
            y = x.astype(jnp.float64)
            z = (y + 1e-9) - y
        return z.astype(jnp.float32)

    assert_same(f, jnp.ones(3))


def test_a_rewritten_scan_in_x64():
    """In a 64-bit context the rewritten loop sums in float64."""

    def f(x):
        return lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=LENGTH)[1].sum()

    with jax.enable_x64(True):
        x = start(jnp.float64)
        assert_fires(f, x)
        got = jax.jit(ag.optimize(f))(x)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, jax.jit(f)(x), rtol=1e-13)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0)], ids=str)
def test_zero_sizes(shape):
    """Empty arrays go through elementwise work, reductions, contractions, loops and concatenation."""

    def f(x):
        y = x.reshape(shape[0], -1) if x.size else x
        return (
            y + 1,
            x.sum(),
            x.sum(0),
            jnp.prod(x),
            x.T @ x if x.ndim == 2 else x @ x,
            jnp.concatenate([x, x]),
            lax.scan(lambda c, row: (c + row.sum(), row), 0.0, x),
            lax.map(jnp.sin, x),
        )

    assert_same(f, jnp.ones(shape))


def test_loops_of_no_steps():
    """`length=0`: the carry comes back, the stacked outputs are empty, their sum is zero and their maximum -inf."""

    def f(x):
        last, ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=0)
        return last, ys, ys.sum(), ys.sum(0), jnp.max(ys, axis=0, initial=-jnp.inf), ys.max(initial=2.0)

    assert_same(f, jnp.ones(4))
    assert_same(lambda x: lax.scan(lambda c, _: (c, c), x, None, length=0)[1].sum(), jnp.ones(WIDTH))


SPECIAL = [0.0, -0.0, jnp.nan, jnp.inf, -jnp.inf, 1e-40, -1e-40, 3.4e38, -3.4e38, 1e-8, 1.0]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x + 0.0, x * 1.0, x - x, x * 0.0, 0.0 - x, -x, x / 1.0, x / x),
        lambda x: (jnp.abs(x), jnp.sign(x), jnp.sqrt(x), jnp.exp(x), jnp.log(x), jnp.log1p(x), jnp.tanh(x)),
        lambda x: (jnp.isnan(x), x == x, x > 0, x <= 0, jnp.copysign(1.0, x), 1 / x),
        lambda x: (jnp.where(x > 0, x, 0.0), jnp.maximum(x, 0.0), jnp.minimum(x, 0.0), jnp.clip(x, -1, 1)),
        lambda x: (x.sum(), x.max(), x.min(), jnp.nanmax(x), jnp.argmax(x), jnp.cumsum(x), jnp.sort(x)),
        lambda x: (x + x, 2 * x, (x + 1) - 1, x * x, x**2, x**0.5, x**-1),
    ],
    ids=["identities", "functions", "predicates", "selections", "reductions", "powers"],
)
def test_nan_infinity_and_signed_zero(f):
    """Special values come out as from plain JAX: nan where it gives nan, and zeros with their sign."""
    assert_same(f, jnp.array(SPECIAL, jnp.float32))


@pytest.mark.parametrize("name", ["sum", "max", "min", "mean"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf], ids=str)
def test_special_values_in_a_rewritten_scan(name, special):
    """A nan or infinity in one element reaches exactly the result that it should reach.

    NumPy is the judge: plain JAX's own `max` and `min` lose a nan here (jaxlib 0.10.2, CPU).
    """

    def f(x):
        return getattr(jnp, name)(lax.scan(lambda c, _: (c * 0.5, c * 0.5), x, None, length=LENGTH)[1], axis=0)

    x = start().at[5].set(special)
    assert_fires(f, x)
    stacked = np.asarray(x, np.float64) * 0.5 ** np.arange(1, LENGTH + 1)[:, None]
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), getattr(np, name)(stacked, axis=0), rtol=1e-5)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_overflow_wraps(dtype):
    """Integers wrap around, whatever order they are combined in."""
    info = jnp.iinfo(dtype)

    def f(x, y):
        return (
            x + y,
            x * y,
            x - y,
            -x,
            x << 1,
            jnp.sum(x, dtype=x.dtype),
            (x + y) - y,
            (x * 2) // 2,
            jnp.abs(x),
            x // 3,
            x % 3,
        )

    assert_same(f, jnp.array([info.max, info.min, 1, 0], dtype), jnp.array([info.max, info.max, 2, 3], dtype))


def test_integer_overflow_in_a_rewritten_scan():
    """Sums of integers over a fused loop wrap as the stacked sum wraps: to the bit."""

    def f(x):
        return lax.scan(lambda c, _: (c * 3, c * 3), x, None, length=LENGTH)[1].sum()

    x = jnp.arange(WIDTH, dtype=jnp.int32) * 1_000_003
    assert_fires(f, x)
    assert int(jax.jit(ag.optimize(f))(x)) == int(jax.jit(f)(x))
