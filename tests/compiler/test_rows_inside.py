"""A Jacobian made before a loop that multiplies with it is made in the loop, where each product is a push or a pull."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import jaxprs_in_params
from aerogel.compiler.loops.trips import most_trips
from aerogel.compiler.passes.basis_products import NAME

N = 256
X, T = (jax.random.normal(jax.random.key(k), (N,)) for k in (2, 3))


def step(y: jax.Array, c: Any) -> Any:
    """A step of an integrator of a chain of springs."""
    return y + 0.02 * (jnp.sin(jnp.roll(y, 1)) - 0.3 * y**3 + c * jnp.roll(y, -1)), None


def flow(x: jax.Array) -> jax.Array:
    """Many steps of it."""
    return lax.scan(step, x, jnp.linspace(0.5, 1, 30, dtype=x.dtype))[0]


def layered(x: jax.Array) -> jax.Array:
    """A loop of loops."""
    springs = jnp.linspace(0.5, 1, 9, dtype=x.dtype)
    return lax.fori_loop(0, 3, lambda _, y: lax.scan(step, jnp.tanh(y), springs)[0] + x, x)


def loss(x: jax.Array) -> jax.Array:
    """A function whose Hessian is multiplied."""
    return 0.5 * jnp.sum(flow(x) ** 2) + jnp.sum(x**2)


def conjugate(product: Any, b: jax.Array, steps: int = 8) -> jax.Array:
    """Steps of conjugate gradients."""

    def one(state: Any, _: None) -> Any:
        x, r, p, rr = state
        ap = product(p)
        a = rr / (p @ ap)
        r = r - a * ap
        return (x + a * p, r, r + (r @ r / rr) * p, r @ r), None

    return lax.scan(one, (jnp.zeros_like(b), b, b, b @ b), None, length=steps)[0][0]


def gauss_newton(jacobian: Any) -> Any:
    """A step of Gauss and Newton."""

    def f(x: jax.Array, t: jax.Array) -> jax.Array:
        j = jacobian(flow)(x)
        return x - conjugate(lambda p: j.T @ (j @ p) + 0.5 * p, j.T @ (flow(x) - t))

    return f


def by_library(x: jax.Array, t: jax.Array) -> jax.Array:
    """JAX's own solver."""
    j = jax.jacrev(flow)(x)
    return jax.scipy.sparse.linalg.cg(lambda p: j.T @ (j @ p) + 0.5 * p, t, maxiter=8)[0]


def power(x: jax.Array, t: jax.Array) -> jax.Array:
    """A norm by power iteration."""
    j = jax.jacfwd(flow)(x)

    def again(_: int, v: jax.Array) -> jax.Array:
        w = j.T @ (j @ v)
        return w / jnp.linalg.norm(w)

    return jnp.linalg.norm(j @ lax.fori_loop(0, 12, again, t)) * t


def counted(x: jax.Array, t: jax.Array) -> jax.Array:
    """A loop that ends by itself, or after so many steps."""
    j = jax.jacfwd(flow)(x)
    wide = lambda s: (jnp.max(jnp.abs(s[1])) > 1e-6) & (s[0] < 20)  # noqa: E731
    return lax.while_loop(wide, lambda s: (s[0] + 1, 0.1 * (j @ s[1]), s[2] + s[1]), (0, t, t))[2]


def krylov(x: jax.Array, t: jax.Array) -> jax.Array:
    """All vectors of a Krylov space."""
    j = jax.jacfwd(layered)(x)

    def one(v: jax.Array, _: None) -> Any:
        w = j @ v
        w = w / jnp.linalg.norm(w)
        return w, w

    return lax.scan(one, t, None, length=6)[1]


def newton(x: jax.Array, t: jax.Array) -> jax.Array:
    """Steps of Newton, each with a Hessian and a loop that multiplies with it."""

    def one(x: jax.Array, _: None) -> Any:
        h = jax.hessian(loss)(x)
        return x - conjugate(lambda p: h @ p, jax.grad(loss)(x) - t, 4), None

    return lax.scan(one, x, None, length=2)[0]


def two(x: jax.Array, t: jax.Array) -> jax.Array:
    """Two Jacobians in one loop, and one of them in another."""
    a, b = jax.jacrev(flow)(x), jax.jacfwd(flow)(t)
    v = lax.fori_loop(0, 5, lambda _, v: jnp.tanh(a @ (v @ b)), t)
    return lax.fori_loop(0, 3, lambda _, v: jnp.sin(v @ a), v)


LOOPS = {
    "jacrev": gauss_newton(jax.jacrev),
    "jacfwd": gauss_newton(jax.jacfwd),
    "by the library": by_library,
    "power iteration": power,
    "counted": counted,
    "krylov": krylov,
    "newton": newton,
    "two": two,
}


def fired(f: Any, *args: Any) -> bool:
    """Whether the pass did anything."""
    return any(d.rule == NAME for d in ag.explain(f)(*args).fired)


def is_square(jaxpr: Any) -> bool:
    """Whether a value of N x N, or of as many for each step, is made in a program or in its steps."""
    inner = [getattr(p, "jaxpr", p) for eqn in jaxpr.eqns for p in jaxprs_in_params(eqn.params)]
    return any(v.aval.shape.count(N) > 1 for eqn in jaxpr.eqns for v in eqn.outvars) or any(map(is_square, inner))


def assert_same(f: Any, *args: Any, rtol: float = 1e-3) -> None:
    """Fails unless the optimised program gives the numbers of plain JAX, beside the largest of them."""
    got, want = (jax.jit(g)(*args) for g in (ag.optimize(f), f))
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    scale = float(jnp.max(jnp.abs(want.astype("float32")))) if want.size else 1.0
    np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("name", LOOPS)
def test_the_matrix_is_not_made(name: str) -> None:
    """Nothing of N x N is left, outside and in the steps; the numbers are the same."""
    f = LOOPS[name]
    assert is_square(jax.make_jaxpr(f)(X, T).jaxpr)
    assert not is_square(jax.make_jaxpr(ag.optimize(f))(X, T).jaxpr)
    assert_same(f, X, T)


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "power iteration", "krylov", "two"])
def test_the_gradient_makes_no_matrix(name: str) -> None:
    """A gradient that JAX took adds outer products to the matrix's cotangent in each step: none is made."""
    gradient = jax.grad(lambda x, t: jnp.sum(jnp.sin(LOOPS[name](x, t))), (0, 1))
    assert is_square(jax.make_jaxpr(gradient)(X, T).jaxpr)
    assert not is_square(jax.make_jaxpr(ag.optimize(gradient))(X, T).jaxpr)


@pytest.mark.parametrize("name", ["jacrev", "power iteration", "krylov", "two"])
def test_in_float64_and_gradients(name: str) -> None:
    """To the last digits in float64; gradients, taken around the optimised program and inside of it."""
    f = LOOPS[name]
    total = lambda g: jax.grad(lambda x, t: jnp.sum(jnp.sin(g(x, t))), (0, 1))  # noqa: E731
    with jax.enable_x64(True):
        x, t = X.astype("float64"), T.astype("float64")
        assert_same(f, x, t, rtol=1e-11)
        want = jax.jit(total(f))(x, t)
        for g in (total(ag.optimize(f)), ag.optimize(total(f))):
            for got, one in zip(jax.jit(g)(x, t), want, strict=True):
                np.testing.assert_allclose(got, one, rtol=1e-8, atol=1e-8 * float(jnp.max(jnp.abs(one))))


@pytest.mark.parametrize("name", ["jacfwd", "by the library", "counted"])
def test_under_vmap(name: str) -> None:
    """Of several points at once."""
    xs, ts = jnp.stack([X, T, X + T]), jnp.stack([T, X, X - T])
    assert_same(jax.vmap(LOOPS[name]), xs, ts)


def also_returned(x: jax.Array, t: jax.Array) -> jax.Array:
    """The matrix itself is wanted."""
    j = jax.jacrev(flow)(x)
    return lax.fori_loop(0, 9, lambda _, v: jnp.tanh(j @ v), t)[:, None] + j


def entrywise(x: jax.Array, t: jax.Array) -> jax.Array:
    """The steps square its entries."""
    j = jax.jacrev(flow)(x)
    return lax.fori_loop(0, 9, lambda _, v: jnp.tanh(j**2 @ v), t)


def endless(x: jax.Array, t: jax.Array) -> jax.Array:
    """Nothing says how many steps there are, and a push takes longer than a product with a matrix of this size."""
    j = jax.jacfwd(flow)(x[:32])
    return lax.while_loop(lambda v: jnp.max(jnp.abs(v)) > 1e-3, lambda v: 0.5 * (j @ v), t[:32])


def carried(x: jax.Array, t: jax.Array) -> jax.Array:
    """The steps change the matrix."""
    return lax.fori_loop(0, 9, lambda _, s: (s[0] * 0.9, jnp.tanh(s[0] @ s[1])), (jax.jacrev(flow)(x), t))[1]


@pytest.mark.parametrize("f", [also_returned, entrywise, endless, carried])
def test_other_loops_are_left(f: Any) -> None:
    """What must be made once is made once: its steps get it."""
    assert_same(f, X, T)
    assert not fired(f, X, T)


@pytest.mark.parametrize(("dtype", "rtol"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_in_halves(dtype: str, rtol: float) -> None:
    """Types of few digits."""
    assert_same(LOOPS["krylov"], X.astype(dtype), T.astype(dtype), rtol=rtol)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_entries(n: int) -> None:
    """Nothing to gain, nothing to lose."""
    for name in ("jacrev", "counted"):
        assert_same(LOOPS[name], X[:n], T[:n]) if n or name != "counted" else None


WHILES = [
    (lambda i: i < 20, 0, 1, 20),
    (lambda i: i <= 20, 0, 1, 21),
    (lambda i: lax.gt(20, i), 5, 1, 15),
    (lambda i: (i < 20) & (i < 12), 0, 5, 3),
    (lambda i: (i < 20) | (i > 30), 0, 1, None),
    (lambda i: i < 20, 0, -1, None),
    (lambda i: i != 20, 0, 1, None),
    (lambda i: jnp.float32(i) < 20, 0, 1, None),
]


@pytest.mark.parametrize(("condition", "start", "added", "most"), WHILES)
def test_how_often_a_loop_runs_at_most(condition: Any, start: int, added: int, most: int | None) -> None:
    """What its condition says of a counter."""

    def f(x: jax.Array) -> Any:
        going = lambda s: condition(s[0]) & (s[1] > 0.1)  # noqa: E731
        return lax.while_loop(going, lambda s: (s[0] + added, s[1] * 0.5), (start, x))

    (loop,) = [eqn for eqn in jax.make_jaxpr(f)(1.0).eqns if eqn.primitive.name == "while"]
    assert most_trips(loop) == most
