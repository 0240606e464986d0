"""A Jacobian that is only multiplied is not made: its products are pushes and pulls of a derivative."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import JaxprEqn, scan_counts
from aerogel.compiler.passes.basis_products import NAME, BasisProducts

N = 256
W = jax.random.normal(jax.random.key(0), (N, 40)) / 10
U = jax.random.normal(jax.random.key(1), (40, N)) / 6
X, T = (jax.random.normal(jax.random.key(k), (N,)) for k in (2, 3))
MANY = jax.random.normal(jax.random.key(4), (N, 3))


def loss(x: jax.Array) -> jax.Array:
    """A smooth function with a full Hessian."""
    return jnp.sum(jnp.tanh(x @ W) ** 2) + jnp.sum(jnp.cos(x) * x)


def kinked(x: jax.Array) -> jax.Array:
    """A function with choices and normalised exponentials."""
    return jax.nn.logsumexp(jax.nn.relu(x @ W)) + jax.nn.softmax(x)[0]


def layers(x: jax.Array) -> jax.Array:
    """Two layers, narrower between them."""
    return jnp.tanh(jnp.tanh(x @ W) @ U) + x**2


def stencil(x: jax.Array) -> jax.Array:
    """Shifts, sums and products of neighbours."""
    return jnp.convolve(x, jnp.arange(5.0), mode="same") * jnp.sin(x) + jnp.cumsum(x) + jnp.roll(x, 3)


def few(x: jax.Array) -> jax.Array:
    """Three results."""
    return jnp.tanh(layers(x)[:3] * x[5])


def rosenbrock(x: jax.Array) -> jax.Array:
    """A function of neighbours."""
    return 0.01 * jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def flow(x: jax.Array) -> jax.Array:
    """Steps of an integrator."""
    return lax.scan(lambda c, _: (c + 0.1 * jnp.tanh(c @ W @ U), None), x, None, length=7)[0]


def newton(x: jax.Array, t: jax.Array) -> jax.Array:
    """Steps each of which multiply with a Hessian."""

    def step(x: jax.Array, _: None) -> Any:
        return x - 0.1 * (jax.hessian(loss)(x) @ jax.grad(loss)(x)), None

    return lax.scan(step, x + t, None, length=3)[0]


def of_parts(x: jax.Array, t: jax.Array) -> jax.Array:
    """A Hessian of a tree, of which one block is multiplied."""
    blocks = jax.hessian(lambda p: loss(jnp.concatenate([p["a"], p["b"]])))({"a": x[:30], "b": x[30:]})
    return blocks["a"]["b"] @ t[30:]


def normal_equations(x: jax.Array, t: jax.Array) -> jax.Array:
    """Both products of one Jacobian."""
    jacobian = jax.jacrev(layers)(x)
    return jacobian.T @ (jacobian @ t)


PRODUCTS = {
    "hessian": lambda x, t: jax.hessian(loss)(x) @ t,
    "from the left": lambda x, t: t @ jax.hessian(loss)(x),
    "on both sides": lambda x, t: t @ jax.hessian(loss)(x) @ t,
    "of a kinked function": lambda x, t: jax.hessian(kinked)(x) @ t,
    "of many": lambda x, t: jax.hessian(rosenbrock)(x) @ MANY,
    "jacfwd": lambda x, t: jax.jacfwd(layers)(x) @ t,
    "jacfwd, from the left": lambda x, t: t @ jax.jacfwd(layers)(x),
    "jacrev": lambda x, t: jax.jacrev(layers)(x) @ t,
    "jacrev, turned": lambda x, t: jax.jacrev(layers)(x).T @ t,
    "einsum": lambda x, t: jnp.einsum("ij,jk->ki", jax.jacfwd(stencil)(x), MANY),
    "summed up": lambda x, t: jax.jacfwd(stencil)(x).sum(1) + jax.jacrev(stencil)(x).sum(0),
    "normal equations": normal_equations,
    "gradient by jacfwd": lambda x, t: jax.jacfwd(loss)(x) * t,
    "few results": lambda x, t: jax.jacfwd(few)(x),
    "of a loop": lambda x, t: jax.jacfwd(flow)(x) @ t,
    "of a loop, backwards": lambda x, t: t @ jax.jacrev(flow)(x),
    "of a loop, turned": lambda x, t: jax.jacrev(flow)(x) @ t,
    "of a loop, from the left": lambda x, t: t @ jax.jacfwd(flow)(x),
    "in a loop": newton,
    "of a tree": of_parts,
    "by entries": lambda x, t: jnp.sum(jax.hessian(loss)(x) * t, axis=1),
    "by entries, along columns": lambda x, t: jnp.sum(t[:, None] * jax.jacrev(layers)(x), axis=0),
    "with an outer product": lambda x, t: jnp.sum(jax.hessian(loss)(x) * jnp.outer(t, jnp.sin(t))) * t,
    "with a matrix of small rank": lambda x, t: jax.jacfwd(layers)(x) @ (W @ U) @ t,
    "by vmap": lambda x, t: jax.vmap(lambda x: jax.hessian(loss)(x) @ t)(jnp.stack([x, 2 * x])),
    "by vmap of both": lambda x, t: jax.vmap(lambda x, t: jax.hessian(loss)(x) @ t)(x[None] * MANY.T, MANY.T),
}


A = W @ U / 4
MATRICES = jax.random.normal(jax.random.key(5), (6, N, N)) / N**0.5


def stepped(step: Any, start: jax.Array) -> Any:
    """Nine steps of a loop over a matrix."""
    return lax.fori_loop(0, 9, lambda i, m: step(m), start)


LOOPS = {
    "powers": lambda a, t: stepped(lambda m: a @ m, jnp.eye(N)) @ t,
    "powers, from the other side": lambda a, t: t @ stepped(lambda m: m @ a, jnp.eye(N)),
    "powers, begun with the matrix": lambda a, t: stepped(lambda m: a @ m, a) @ t,
    "powers, begun with the matrix, from the left": lambda a, t: t @ stepped(lambda m: m @ a, a),
    "powers times a few columns": lambda a, t: stepped(lambda m: m @ a, jnp.eye(N)).T @ (MANY * t[:, None]),
    "a polynomial": lambda a, t: stepped(lambda m: 0.5 * m + a @ m - m / 3, a) @ t,
    "products of many": lambda a, t: lax.scan(lambda m, b: (b @ m, None), a, MATRICES)[0] @ t,
}


def carries_of(loop: JaxprEqn) -> list[Any]:
    """What a loop starts from."""
    consts, carries = scan_counts(loop.params)
    return loop.invars[consts : consts + carries]


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_a_matrix_is_one_over_a_vector(name: str) -> None:
    """What multiplies a matrix in each step multiplies what the matrix is multiplied with in the end."""
    f = LOOPS[name]
    assert fired(f, A, T)
    assert_same(f, A, T)
    (loop,) = (eqn for eqn in jax.make_jaxpr(ag.optimize(f))(A, T).jaxpr.eqns if eqn.primitive.name == "scan")
    assert max(x.aval.size for x in carries_of(loop)) <= 3 * N


@pytest.mark.parametrize("wrt", [0, 1])
@pytest.mark.parametrize("name", LOOPS)
def test_gradients_of_loops_over_a_matrix(name: str, wrt: int) -> None:
    """By the vector it is a loop over a vector again; by the matrix an outer product at each step."""
    gradient = jax.grad(lambda a, t: jnp.sum(jnp.sin(LOOPS[name](a, t))), wrt)
    assert_same(gradient, A, T, rtol=1e-3)
    if wrt == 1:
        loops = [e for e in jax.make_jaxpr(ag.optimize(gradient))(A, T).jaxpr.eqns if e.primitive.name == "scan"]
        assert max(x.aval.size for loop in loops for x in carries_of(loop)) <= 3 * N


def shifted(a: jax.Array, t: jax.Array) -> jax.Array:
    """Each step adds what is no multiple of the matrix."""
    return stepped(lambda m: a @ m + jnp.cos(a), a) @ t


def squared_again(a: jax.Array, t: jax.Array) -> jax.Array:
    """Each step multiplies the matrix with itself."""
    return lax.fori_loop(0, 4, lambda i, m: m @ m, a) @ t


@pytest.mark.parametrize("f", [shifted, squared_again, lambda a, t: stepped(lambda m: a @ m, a) @ (a @ t)[:, None] * t])
def test_other_loops(f: Any) -> None:
    """Loops that are no linear map of what they start from give the numbers of plain JAX too."""
    assert_same(f, A, T)


def fired(f: Any, *args: Any) -> bool:
    """Whether the pass did anything."""
    return any(d.rule == NAME for d in ag.explain(f)(*args).fired)


def assert_same(f: Any, *args: Any, rtol: float = 2e-4) -> None:
    """Fails unless the optimised program gives the numbers of plain JAX, beside the largest of them."""
    got, want = (jax.jit(g)(*args) for g in (ag.optimize(f), f))
    assert got.dtype == want.dtype
    scale = float(jnp.max(jnp.abs(want.astype("float32")))) if want.size else 1.0
    np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_the_jacobian(name: str) -> None:
    """Values and gradients, taken around the optimised program and inside of it."""
    f = PRODUCTS[name]
    assert fired(f, X, T)
    assert_same(f, X, T)
    total = lambda g: lambda x, t: jnp.sum(jnp.sin(g(x, t)))  # noqa: E731
    want = jax.jit(jax.grad(total(f)))(X, T)
    for got in (jax.grad(total(ag.optimize(f))), ag.optimize(jax.grad(total(f)))):
        scale = float(jnp.max(jnp.abs(want)))
        np.testing.assert_allclose(jax.jit(got)(X, T), want, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("name", ["hessian", "jacfwd", "jacrev", "few results", "of a loop", "on both sides"])
def test_nothing_of_two_axes_is_left(name: str) -> None:
    """No value that holds a basis, or a row for each of its vectors."""
    jaxpr = jax.make_jaxpr(ag.optimize(PRODUCTS[name]))(X, T).jaxpr
    sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
    assert max(sizes) <= 3 * N


GRADIENTS = [
    "hessian",
    "from the left",
    "jacfwd",
    "jacrev",
    "jacfwd, from the left",
    "normal equations",
    "of a loop",
    "of a loop, backwards",
    "of a loop, turned",
    "of a loop, from the left",
    "by entries",
    "on both sides",
]


@pytest.mark.parametrize("name", GRADIENTS)
def test_nothing_of_two_axes_is_left_in_gradients(name: str) -> None:
    """The product's cotangent comes back as an outer product, whose sums over rows are pushes too."""
    gradient = jax.grad(lambda x, t: jnp.sum(jnp.sin(PRODUCTS[name](x, t))), (0, 1))
    jaxpr = jax.make_jaxpr(ag.optimize(gradient))(X, T).jaxpr
    assert max(v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars) < N * N / 2
    for got, want in zip(jax.jit(ag.optimize(gradient))(X, T), jax.jit(gradient)(X, T), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * float(jnp.max(jnp.abs(want))))


def two_carries(x: jax.Array) -> jax.Array:
    """A loop with a second carry, which starts as zeros, and with results of each step."""

    def step(c: Any, k: jax.Array) -> Any:
        position, moment = c
        moment = 0.9 * moment + jnp.sin(k * position)
        return (position - 0.1 * moment * jnp.roll(position, 1), moment), position

    (position, moment), path = lax.scan(step, (x, jnp.zeros_like(x)), jnp.linspace(0, 1, 5))
    return position + moment + path.sum(0)


def nested(x: jax.Array) -> jax.Array:
    """A loop in a loop, with a choice."""
    inner = lambda c, _: (c + 0.1 * jnp.where(c > 0, jnp.tanh(c @ W @ U), c), None)  # noqa: E731
    return lax.scan(lambda c, _: (lax.scan(inner, jnp.cos(c), None, length=3)[0], None), x, None, length=2)[0]


@pytest.mark.parametrize("taken", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("f", [two_carries, nested, flow])
def test_gradients_through_loops(f: Any, taken: Any) -> None:
    """Sums over rows within the steps of a loop, of a Jacobian that is taken forwards or backwards."""
    for g in (
        lambda x, t: jnp.sum(jnp.sin(taken(f)(x) @ t)),
        lambda x, t: jnp.sum(jnp.sin(t @ taken(f)(x)) * t),
        lambda x, t: jnp.sum((taken(f)(x) @ MANY) ** 2),
    ):
        gradient = jax.grad(g, (0, 1))
        assert fired(gradient, X, T)
        for got, want in zip(jax.jit(ag.optimize(gradient))(X, T), jax.jit(gradient)(X, T), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * float(jnp.max(jnp.abs(want))))


TWICE = {
    "two products": lambda h, t: jnp.sum(jnp.sin(h @ t)) + jnp.sum(jnp.cos(h @ jnp.flip(t))),
    "from both sides": lambda h, t: jnp.sum(jnp.sin(h @ t)) + jnp.sum(jnp.cos(jnp.flip(t) @ h)),
    "and its entries": lambda h, t: jnp.sum(jnp.sin(h @ t)) + jnp.sum(h**2),
    "of a product": lambda h, t: jnp.sum(jnp.sin(h @ (h @ t))),
    "of other weights": lambda h, t: jnp.sum(jnp.sin(h @ t) * t) + t @ h @ jnp.flip(t),
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("made", [jax.hessian(loss), jax.jacrev(stencil)], ids=["hessian", "jacrev"])
def test_gradients_of_several_products(name: str, made: Any) -> None:
    """Cotangents of several products are sums of outer products: what is no product of one is left."""
    gradient = jax.grad(lambda x, t: TWICE[name](made(x), t), (0, 1))
    for got, want in zip(jax.jit(ag.optimize(gradient))(X, T), jax.jit(gradient)(X, T), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * float(jnp.max(jnp.abs(want))))


def outer_rows(x: jax.Array, t: jax.Array) -> jax.Array:
    """Rows of an outer product of what is itself linear in the rows of an identity."""
    jacobian = jax.jacrev(stencil)(x)
    rows = lax.dot_general(jacobian @ t, jnp.sin(t), (((), ()), ((), ())))
    return jnp.sum(rows * jnp.cos(x), 0) + jnp.sum(jacobian**2, 0)


def quadratic(x: jax.Array, t: jax.Array) -> jax.Array:
    """Its cotangent is linear in the rows of the identity, too."""
    return jax.grad(lambda x: jnp.sum((jax.jacrev(stencil)(x) @ t) ** 2))(x)


@pytest.mark.parametrize("f", [outer_rows, quadratic])
def test_weights_that_are_rows_themselves_weight_once(f: Any) -> None:
    """What is linear in the rows of an identity already is not weighted with them again."""
    assert_same(f, X, T)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_halves(dtype: str) -> None:
    """Half the digits, and the numbers of plain JAX within them."""
    f = lambda x, t: jax.hessian(lambda x: jnp.sum(jnp.sin(x) ** 2))(x) @ t  # noqa: E731
    x, t = X.astype(dtype), T.astype(dtype)
    assert fired(f, x, t)
    assert_same(f, x, t, rtol=0.03)


def squared(x: jax.Array, t: jax.Array) -> jax.Array:
    """The squares of all entries."""
    return jnp.sum(jax.jacfwd(stencil)(x) ** 2, 1) + t


def scaled_rows(x: jax.Array, t: jax.Array) -> jax.Array:
    """Each row of an identity times another number is not one map of all rows."""
    return jnp.tanh(x)[:, None] * jnp.eye(N) @ (t[:, None] * W)


NEAR = {
    "the matrix is wanted": lambda x, t: jax.jacfwd(stencil)(x),
    "its squares are summed up": squared,
    "it is inverted": lambda x, t: jnp.linalg.solve(jax.jacfwd(stencil)(x) + 9 * jnp.eye(N), t),
    "its diagonal is read": lambda x, t: jnp.diag(jax.jacfwd(stencil)(x)) * t,
    "it is small": lambda x, t: jax.hessian(rosenbrock)(x[:8]) @ t[:8],
    "as many weights as rows": lambda x, t: jax.jacfwd(stencil)(x) @ jnp.sin(W @ U),
    "other weights": lambda x, t: jax.jacfwd(stencil)(x.astype("bfloat16")) @ t,
}


@pytest.mark.parametrize("name", NEAR)
def test_other_uses_are_left(name: str) -> None:
    """Where the whole matrix is needed, or a product is no cheaper without it."""
    assert not fired(NEAR[name], X, T)
    assert_same(NEAR[name], X, T, rtol=0.05 if name == "other weights" else 1e-3)


def test_rows_that_differ_are_no_map() -> None:
    """What multiplies row b by a number of its own is followed no further."""
    assert_same(scaled_rows, X, T)


@pytest.mark.parametrize("n", [0, 1])
def test_no_entries(n: int) -> None:
    """A Jacobian of nothing, or of one number."""
    f = lambda x, t: jax.jacfwd(jnp.sin)(x[:n]) @ t[:n]  # noqa: E731
    assert_same(f, X, T)


def deep(x: jax.Array, layers: int) -> jax.Array:
    """A chain of layers."""
    for k in range(layers):
        x = jnp.sin(x) + 0.001 * k * jnp.roll(x, 1)
    return x


def test_a_deep_function() -> None:
    """Twice the layers are twice the equations: the sums of a gradient share what they are made of."""

    def equations(layers: int) -> int:
        gradient = jax.grad(lambda x, t: jnp.sum(jnp.sin(jax.jacfwd(deep)(x, layers) @ t)))
        ours = ag.optimize(gradient, passes=(BasisProducts(),), rules=())
        assert fired(gradient, X, T)
        return len(jax.make_jaxpr(ours)(X, T).jaxpr.eqns)

    assert equations(160) < 2.5 * equations(80)


def test_many_pulls_are_left() -> None:
    """Results of few entries at each of many layers are pulled back each alone."""

    def each(x: jax.Array) -> list[jax.Array]:
        found = []
        for k in range(60):
            x = jnp.sin(x) + 0.001 * k * jnp.roll(x, 1)
            found.append(jnp.sum(x))
        return found

    refused = [d for d in ag.explain(jax.jacfwd(each))(X).refused if d.rule == NAME]
    assert "pulls would be" in refused[0].reason
    assert_same(lambda x: jnp.stack(jax.jacfwd(each)(x)), X)


def test_strict_numbers_are_left() -> None:
    """A sum of rows rounds in another order."""
    f = PRODUCTS["hessian"]
    assert not any(d.rule == NAME for d in ag.explain(f, numerics="strict")(X, T).fired)


def test_a_long_loop_is_not_pulled_back() -> None:
    """Of few results a pull is faster, but stores each step of a loop that a push needs not store."""

    def end(x: jax.Array) -> jax.Array:
        step = lambda c, _: (c + 0.01 * jnp.sin(c) * jnp.roll(c, 1), None)  # noqa: E731
        return jnp.sum(lax.scan(step, x, None, length=20_000)[0])

    f = jax.jacfwd(end)
    plain, ours = (temporary_bytes(g) for g in (f, ag.optimize(f)))
    assert ours <= max(1 << 20, 1.1 * plain)


def temporary_bytes(f: Any) -> int:
    """What XLA takes besides arguments and results."""
    found = jax.jit(f).lower(X).compile().memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes


SMALL = 40
MIXED = jax.random.normal(jax.random.key(7), (SMALL, SMALL)) / SMALL**0.5
STEPS: list[Any] = [
    lambda x: jnp.tanh(MIXED @ x),
    lambda x: x * jnp.roll(x, 1) + jnp.sin(x),
    lambda x: jnp.where(x > 0.1, x, jnp.cos(x)),
    lambda x: jnp.cumsum(x) / SMALL + x,
    lambda x: jnp.concatenate([x[5:], jnp.tanh(x[:5])]),
    lambda x: jax.nn.softmax(x) * x.sum() + x,
    lambda x: lax.scan(lambda c, k: (jnp.tanh(MIXED @ c) + k * c, None), x, jnp.arange(3.0))[0],
    lambda x: lax.scan(lambda c, k: (c * 0.9 + 0.1 * jax.nn.relu(c - k), c), x, jnp.arange(4.0))[1].mean(0),
    lambda x: lax.fori_loop(0, 3, lambda i, c: c + 0.1 * jnp.sin(c) * jnp.flip(c), x),
    lambda x: lax.scan(lambda c, _: ((c[0] + 0.1 * c[1], 0.9 * c[1] - 0.1 * c[0]), None), (x, x * 0), None, 3)[0][0],
    lambda x: jnp.linalg.solve(MIXED + 3 * jnp.eye(SMALL), x),
]
USES: list[Any] = [
    lambda j, t: j @ t,
    lambda j, t: t @ j,
    lambda j, t: j.T @ (j @ t),
    lambda j, t: jnp.sum(j * t, 1),
    lambda j, t: jnp.sum(t[:, None] * j, 0) + j @ t,
    lambda j, t: j @ jnp.stack([t, t**2], 1),
    lambda j, t: (j + j.T) @ t,
    lambda j, t: j @ (j @ t) + jnp.trace(j),
    lambda j, t: jnp.sum(j * jnp.outer(t, jnp.cos(t))) * t,
]


@pytest.mark.parametrize("seed", range(60))
def test_random_products(seed: int) -> None:
    """Products with Jacobians of random chains of layers and loops, and gradients of them, are those of plain JAX."""
    rng = np.random.default_rng(seed)
    steps = [STEPS[k] for k in rng.integers(len(STEPS), size=rng.integers(1, 5))]
    use, taken = USES[rng.integers(len(USES))], (jax.jacfwd, jax.jacrev, jax.hessian)[rng.integers(3)]

    def chain(x: jax.Array) -> jax.Array:
        for step in steps:
            x = step(x)
        return jnp.sum(jnp.sin(x) * x) if taken is jax.hessian else x

    value = lambda x, t: use(taken(chain)(x), t)  # noqa: E731
    total = lambda x, t: jnp.sum(jnp.sin(value(x, t)))  # noqa: E731
    args = X[:SMALL] / 2, T[:SMALL]
    for f in (value, jax.grad(total), jax.grad(total, 1)):
        assert_same(f, *args, rtol=2e-3)
    assert_same(jax.vmap(jax.grad(total), (0, None)), jnp.stack([args[0], 2 * args[0]]), args[1], rtol=2e-3)
