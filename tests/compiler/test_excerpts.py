"""Of what only a part is read only that part is made, and of what is zero around a part, too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.cost import program_cost
from aerogel.compiler.passes.excerpts import Excerpts
from compiler.loop_patterns import normal

A, B = normal(0, 96, 96), normal(1, 96, 96)
X, W, U = normal(2, 4, 48, 64), normal(3, 64, 256) / 8, normal(4, 256, 300) / 16
LONG = normal(7, 400, 300)
AT, LATE = jnp.int32(7), jnp.int32(94)


def block(x: Any, w: Any, u: Any) -> Any:
    """Attention, a normalisation, two layers: what ends a language model."""
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", x, x @ w[:, :64]) / 8)
    h = x + jnp.einsum("bts,bsd->btd", weights, x)
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
    return jax.nn.gelu(jax.nn.relu(h @ w)) @ u


# fmt: off
PARTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a row": (lambda a, b: (a @ b)[17], (A, B)),
    "the last column": (lambda a, b: (a @ b)[:, -1], (A, B)),
    "a traced column": (lambda a, b, i: (a @ b)[:, i], (A, B, AT)),
    "out of bounds": (lambda a, b, i: lax.dynamic_slice_in_dim(a @ b, i, 5, 0), (A, B, LATE)),
    "one entry": (lambda a, b: (a @ b)[17, 5], (A, B)),
    "a block": (lambda a, b: (a @ b)[2:10, 5:9], (A, B)),
    "a block, every second": (lambda a, b: (a @ b)[2:10, 5:31:2], (A, B)),
    "a traced block": (lambda a, b, i: lax.dynamic_slice(a @ b, (i, 3), (4, 6)), (A, B, AT)),
    "a block beyond the end": (lambda a, b, i: lax.dynamic_slice(a @ b, (i, i), (4, 6)), (A, B, LATE)),
    "a block of each matrix": (lambda x, w: jax.vmap(lambda x: (x @ w)[5, 7:9])(x), (X, W)),
    "an entry of two layers": (lambda a, b: (jnp.tanh(a @ b) @ b)[3, 4], (A, B)),
    "rows side by side": (lambda a, b: (lambda c: c[3] * c[5])(a @ b), (A, B)),
    "the last token": (lambda x, w, u: block(x, w, u)[:, -1], (X, W, U)),
    "the first token, vmap": (lambda x, w, u: jax.vmap(lambda x: block(x[None], w, u)[0, 0])(x), (X, W, U)),
    "positions in one dimension": (lambda x, w: (x.reshape(-1, 64) @ w).reshape(4, 48, 256)[:, 0], (X, W)),
    "one image": (lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME")[0],
                  (normal(5, 8, 4, 16, 16), normal(6, 8, 4, 3, 3))),
}
ENDS: dict[str, Callable[..., Any]] = {
    "the end of a walk": lambda a: (1 + lax.cumsum(a, 0))[-1],
    "the end of rows": lambda a: jnp.exp(lax.cumsum(a, 1) / 20)[:, -1],
    "under vmap": jax.vmap(lambda a: jnp.tanh(lax.cumsum(a))[-1]),
    "in the middle": lambda a: jnp.exp(lax.cumsum(a, 0) / 20)[40],
    "at the beginning": lambda a: jnp.exp(lax.cumsum(a, 0))[0],
    "a product": lambda a: (lax.cumprod(1 + a / 100, 0) - 1)[-1],
    "from behind": lambda a: jnp.sin(lax.cumsum(a, 1, reverse=True))[:, 7],
    "of whole numbers": lambda a: 2 * lax.cumsum((9 * a).astype(jnp.int16), 0)[-1],
}
LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "read whole, too": (lambda a, b: (lambda c: (c[17], c.sum()))(a @ b), (A, B)),
    "a result, too": (lambda a, b: (lambda c: (c[17], c))(a @ b), (A, B)),
    "nearly all": (lambda a, b: (a @ b)[1:], (A, B)),
    "both ends": (lambda a, b: (lambda c: c[0] * c[-1])(a @ b), (A, B)),
    "every second": (lambda a, b: (a @ b)[::2], (A, B)),
    "two traced rows": (lambda a, b, i: (lambda c: c[i] * c[i + 1])(a @ b), (A, B, AT)),
    "an extremum up to it": (lambda a: jnp.exp(lax.cummax(a, 0))[17], (LONG,)),
    "sums up to two of it": (lambda a: jnp.exp(jnp.cumsum(a, 0))[96:98].mean(), (LONG,)),
    "a traced sum": (lambda a, i: 2 * jnp.cumsum(a, 0)[i], (LONG, AT)),
    "elementwise": (lambda a: jnp.tanh(a)[17], (A,)),
    "cheap, at a traced row": (lambda a, i: (2 * a + 1)[i], (LONG, AT)),
    "dear, of a few numbers": (lambda a, i: jnp.tanh(a[:3])[i], (A, AT)),
    "dear, nearly all": (lambda a, i: lax.dynamic_slice_in_dim(jnp.tanh(a), i, 390, 0), (LONG, AT)),
    "dear, read whole, too": (lambda a, i: (lambda c: (c[i], c.sum()))(jnp.tanh(a)), (LONG, AT)),
}
DEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a traced row": (lambda a, i: jnp.tanh(a)[i] * 2, (LONG, AT)),
    "a traced column": (lambda a, i: jnp.logaddexp(a, 1.0)[:, i], (LONG, AT)),
    "a traced block": (lambda a, i: lax.dynamic_slice(jnp.sin(a) * a, (i, 3), (4, 6)), (LONG, AT)),
    "beyond the end": (lambda a, i: lax.dynamic_slice_in_dim(jnp.exp(a), i, 5, 0), (LONG, jnp.int32(399))),
    "of two arrays": (lambda a, b, i: jnp.arctan2(a, b.T[:, :1])[i], (LONG, LONG.T[:, :400], AT)),
}
# fmt: on


def flops(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Operations of a program."""
    return program_cost(jax.make_jaxpr(f)(*args)).flops


def scalar(f: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """The gradient of a sum of what a function makes, by all floating-point arguments."""
    floats = tuple(k for k, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating))
    return jax.value_and_grad(lambda *xs: sum(jnp.sin(y).sum() for y in jax.tree.leaves(f(*xs))), floats)


def assert_near(f: Callable[..., Any], g: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Equal types, and values up to rounding."""
    for a, b in zip(jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(jax.jit(g)(*args)), strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * max(1, np.abs(a).max()))


@pytest.mark.parametrize("name", PARTS)
def test_only_the_part_is_made(name: str) -> None:
    """The work is that of the part, in the value and in its gradient as JAX wrote it."""
    f, args = PARTS[name]
    g = scalar(f, args)
    for h in (f, g) if name != "rows side by side" else (f,):  # whose gradient is a sum of two padded rows
        made = ag.optimize(h, passes=(Excerpts(),))
        assert flops(made, args) < flops(h, args) / 2.5
        assert_near(made, h, args)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_read_otherwise_is_left(name: str) -> None:
    """Values that someone reads whole, or in parts that are not known to be near each other."""
    f, args = LEFT[name]
    reports: list[Any] = []
    jax.eval_shape(ag.optimize(f, passes=(Excerpts(),), on_report=reports.append), *args)
    assert not reports[0].fired


@pytest.mark.parametrize("name", ENDS)
def test_one_entry_of_a_cumulative_sum_is_a_sum(name: str) -> None:
    """Work entry by entry may lie between it and who reads it."""
    f = ENDS[name]
    accumulates = lambda f: any(e.primitive.name.startswith("cum") for e in jax.make_jaxpr(f)(LONG).eqns)  # noqa: E731
    optimised = ag.optimize(f, rules=[], passes=(Excerpts(),))
    assert accumulates(f)
    assert not accumulates(optimised)
    assert_near(optimised, f, (LONG,))
    assert_near(jax.vmap(optimised), jax.vmap(f), (LONG[None],))
    for dtype in ("bfloat16", "float16"):
        got, want = (np.asarray(g(LONG.astype(dtype) / 8), np.float32) for g in (optimised, f))
        np.testing.assert_allclose(got, want, 0.1, 0.25)


@pytest.mark.parametrize("name", DEAR)
def test_what_is_dear_is_computed_at_the_place_that_is_read(name: str) -> None:
    """XLA computes all of it where the place is known only when the program runs."""
    f, args = DEAR[name]
    made = ag.optimize(f, passes=(Excerpts(),))
    assert flops(made, args) < flops(f, args) / 20
    assert_near(made, f, args)
    for dtype in ("bfloat16", "float16"):
        less = tuple(x.astype(dtype) if x.dtype == jnp.float32 else x for x in args)
        assert_near(made, f, less)


def test_what_is_no_number_is_read_as_it_is() -> None:
    """The logarithm of a negative number, of nan and of infinity."""
    f = lambda a, i: jnp.log(a)[i]  # noqa: E731
    x = jnp.asarray(LONG).at[7, :3].set(jnp.array([jnp.nan, jnp.inf, -1.0]))
    np.testing.assert_array_equal(jax.jit(ag.optimize(f, passes=(Excerpts(),)))(x, AT), jax.jit(f)(x, AT))


def test_in_loops_and_types() -> None:
    """In the body of a loop; bfloat16 and complex numbers keep their types."""

    def f(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh((c @ w)[-1]) + c, None), x, None, length=3)[0]

    for dtype in ("float32", "bfloat16", "complex64"):
        args = A.astype(dtype) / 10, B.astype(dtype) / 10
        made = ag.optimize(f, passes=(Excerpts(),))
        assert flops(made, args) < flops(f, args) / 20
        got, want = jax.jit(made)(*args), jax.jit(f)(*args)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype("complex64"), want.astype("complex64"), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("read", [slice(0, 1), slice(3, 4), slice(1, 3)])
def test_products_of_what_is_not_zero_keep_their_type(read: slice) -> None:
    """Heads joined by a product of bfloat16: jaxlib 0.10.2 does not run every form of one whose sums are float32."""

    def loss(w: Any, v: Any, x: Any) -> Any:
        heads = jnp.tanh(jnp.einsum("btd,dhk->bthk", x, w))
        joined = lax.dot_general(heads, v, (((2, 3), (0, 1)), ((), ())))
        return (joined[:, read].astype(jnp.float32) ** 2).sum()

    f = jax.grad(loss, (0, 1))
    args = normal(5, 64, 4, 16) / 8, normal(6, 4, 16, 64) / 8, normal(7, 4, 40, 64)
    short = tuple(a.astype("bfloat16") for a in args)
    assert flops(ag.optimize(f, passes=(Excerpts(),)), short) < flops(f, short)
    for made in (ag.optimize(f, passes=(Excerpts(),)), ag.optimize(f)):
        for got, want, exact in zip(jax.jit(made)(*short), jax.jit(f)(*short), jax.jit(f)(*args), strict=True):
            assert got.dtype == want.dtype == jnp.bfloat16
            errors = [float(jnp.abs(one.astype("float32") - exact).max()) for one in (got, want)]
            assert errors[0] <= 1.5 * errors[1]


def test_a_guarded_start_stays_guarded() -> None:
    """A start beyond the end is moved back, as `dynamic_slice` and its gradient do."""
    f, args = PARTS["out of bounds"]
    for i in (-3, 0, 91, 200):
        at = (*args[:2], jnp.int32(i))
        assert_near(ag.optimize(f, passes=(Excerpts(),)), f, at)
        assert_near(ag.optimize(scalar(f, at), passes=(Excerpts(),)), scalar(f, at), at)


def test_settings() -> None:
    """Under `strict` nothing is done: a product of fewer rows may be added up in another order."""
    f, args = PARTS["a row"]
    assert flops(ag.optimize(f, numerics="strict"), args) == flops(f, args)


def test_a_function_with_rules_may_close_over_an_array() -> None:
    """Of its own, and in a call: what such a call makes is made whole."""
    weight = np.arange(49.0, dtype=np.float32).reshape(7, 7) / 50

    @jax.custom_vjp
    def settled(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ weight)), (0, x))[1]

    settled.defvjp(lambda x: (settled(x), x), lambda x, ct: (ct * x,))
    in_a_call = jax.jit(lambda x: (settled(x), jnp.sin(settled(x))))
    x = jnp.ones((200, 7))
    for f in (
        lambda x: jax.vmap(settled)(x)[-1],
        lambda x: jax.vmap(in_a_call)(x)[0][1:2],
        jax.grad(lambda x: jax.vmap(settled)(x)[-1].sum()),
    ):
        assert not ag.explain(f)(x).failed
        np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), f(x), rtol=1e-6)
