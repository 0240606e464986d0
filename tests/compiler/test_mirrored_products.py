"""A sum of what becomes of a product takes the product of its weights, where the program holds that anyway."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel._jax import jaxprs_in_params
from aerogel.compiler.networks import mirrored_products
from compiler.loop_patterns import normal

NAME = "mirrored-products"
D, WIDTH = 24, 48
W1, W2, W3 = normal(0, D, WIDTH) / 4, normal(1, WIDTH, WIDTH) / 7, normal(2, WIDTH, 36) / 7
X = jnp.asarray(normal(3, 96, D))
Scalar = Callable[[Any], Any]


def products(f: Callable[..., Any], *args: Any) -> int:
    """How many products a program holds."""

    def count(jaxpr: Any) -> int:
        inner = (getattr(one, "jaxpr", one) for eqn in jaxpr.eqns for one in jaxprs_in_params(eqn.params))
        return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) + sum(map(count, inner))

    return count(jax.make_jaxpr(f)(*args).jaxpr)


def fired(f: Callable[..., Any], *args: Any) -> int:
    """How often the pass acts on a program."""
    return [decision.rule for decision in ag.explain(f)(*args).fired].count(NAME)


NETS: dict[str, tuple[Scalar, int]] = {
    "two layers": (lambda x: jnp.sum(jnp.tanh(jnp.tanh(x @ W1) @ W2)), 1),
    "three layers": (lambda x: jnp.sum(jnp.sin(jnp.tanh(jnp.tanh(x @ W1) @ W2) @ W3)), 2),
    "biases and a square": (lambda x: jnp.sum(jax.nn.softplus(jax.nn.softplus(x @ W1 + 1) @ W2 - 2) ** 2), 1),
    "weights on the left": (lambda x: jnp.sum(jnp.tanh(W2 @ jnp.tanh(W1.T @ x))), 1),
    "a layer beside it": (lambda x: (lambda z: jnp.sum(jnp.tanh(jnp.tanh(z) @ W2) + jnp.cos(z)))(x @ W1), 1),
}
SPELLINGS: dict[str, Callable[[Scalar], Scalar]] = {
    "trace of the Hessian": lambda f: lambda x: jnp.trace(jax.hessian(f)(x)),
    "its diagonal": lambda f: lambda x: jnp.sum(jnp.diag(jax.hessian(f)(x))),
    "pushes of a gradient": lambda f: (
        lambda x: jnp.sum(jax.vmap(lambda v: jax.jvp(jax.grad(f), (x,), (v,))[1] @ v)(jnp.eye(D)))
    ),
    "jacfwd of grad": lambda f: lambda x: jnp.einsum("ii", jax.jacfwd(jax.grad(f))(x)),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_laplacian_multiplies_its_tangents_once(net: str, spelling: str) -> None:
    """One product less for each layer behind the first, however it is spelt; the numbers are the same."""
    f, layers = NETS[net]
    laplacian = jax.vmap(SPELLINGS[spelling](f))
    assert fired(laplacian, X) == layers
    got, want = (jax.jit(g)(X) for g in (ag.optimize(laplacian), laplacian))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(jnp.abs(want).max()))


def test_as_many_products_as_forward_over_forward() -> None:
    """The tangents of a layer are multiplied once, it was twice, and no array of them all is summed up for a result."""
    f = NETS["three layers"][0]
    natural = jax.vmap(SPELLINGS["trace of the Hessian"](f))
    passes = tuple(one for one in ag.compiler.DEFAULT_PASSES if one.name != NAME)
    assert products(ag.optimize(natural), X) <= products(ag.optimize(natural, passes=passes), X) - 2
    sums = [eqn for eqn in jax.make_jaxpr(ag.optimize(natural))(X).jaxpr.eqns if eqn.primitive.name == "reduce_sum"]
    assert all(len(eqn.params["axes"]) == 1 for eqn in sums if len(eqn.invars[0].aval.shape) == 3)


def weighted(a: Any, b: Any, x: Any) -> Any:
    """A sum with weights, and the product of the weights."""
    return jnp.sum(a * (x @ b.T)) + jnp.sum(jnp.sin(a @ b))


A, B, Y = normal(4, 200, 150), normal(5, 150, 120), normal(6, 200, 120)


def both(a: Any, b: Any, x: Any) -> Any:
    """Factors and signs between the product and its sum, and terms beside it."""
    t = jnp.sin(a)
    u = t - ((x @ b.T) * t + a) * 3.0
    return jnp.einsum("ij,ij->i", a, u - t), (t * a) @ b


def turned(a: Any, b: Any, x: Any) -> Any:
    """The image is a product of transposes."""
    return jnp.sum((x @ b.T).T * a.T, 0), b.T @ a.T


def of_examples(a: Any, b: Any, x: Any) -> Any:
    """A matrix for each example."""
    return jax.vmap(weighted)(*(jnp.stack([z, 2 * z, jnp.cos(z)]) for z in (a, b, x)))


def repeated(a: Any, b: Any, x: Any) -> Any:
    """Terms that do not vary along all that is summed."""
    p, row, column = x @ b.T, a[0], jnp.cos(a[:, :1])
    return jnp.sum(a * (p + row * row) + row * row * column + column * column * 2.0), jnp.sin(a @ b)


@pytest.mark.parametrize("f", [weighted, both, turned, of_examples, repeated])
def test_other_sums(f: Callable[..., Any]) -> None:
    """By hand, turned, and with a matrix for each example."""
    args = (A, B, Y)
    assert fired(f, *args) == 1
    got, want = (jax.jit(g)(*args) for g in (ag.optimize(f), f))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * float(jnp.abs(other).max()))


LEFT: dict[str, Callable[..., Any]] = {
    "no image": lambda a, b, x: jnp.sum(a * jnp.tanh(b[0, 0]) * (x @ b.T), 1) + jnp.sum(a, 1),
    "an image of other weights": lambda a, b, x: (jnp.sum(a * a * (x @ b.T), 1), a @ b),
    "of another sign in part": lambda a, b, x: (jnp.sum((a - 1) * (x @ b.T), 1), (a + 1) @ b),
    "the product is read, too": lambda a, b, x: (lambda p: (jnp.sum(a * p, 1), p, a @ b))(x @ b.T),
    "not linear": lambda a, b, x: (jnp.sum(a * jnp.tanh(x @ b.T), 1), a @ b),
    "its square": lambda a, b, x: (lambda p: (jnp.sum(a * p * p, 1), a @ b))(x @ b.T),
    "summed over the other dimension": lambda a, b, x: (jnp.sum(a * (x @ b.T), 0), a @ b),
    # Not summed over the repetition itself: XLA's library adds some of that up twice in one run of two (jaxlib 0.10.2).
    "of a repetition": lambda a, b, x: (jnp.sum(jnp.broadcast_to(a * (x @ b.T), (5, 200, 150)), 2), a @ b),
    "a function of the sum": lambda a, b, x: (jnp.max(a * (x @ b.T), 1), a @ b),
    "small": lambda a, b, x: (jnp.sum((a * (x @ b.T))[:4, :4], 1), a[:4, :4] @ b[:4, :4]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    """The numbers are the same there, too."""
    f = LEFT[name]
    assert fired(f, A, B, Y) == 0
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(A, B, Y)) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.abs(want).max()))


def test_strict_numerics() -> None:
    """Nothing is done."""
    f = jax.vmap(SPELLINGS["trace of the Hessian"](NETS["two layers"][0]))
    assert NAME not in [d.rule for d in ag.explain(f, numerics="strict")(X).fired]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_types(dtype: str) -> None:
    """Results keep their type, and are as near to float64 as those of the program as it stands."""
    with jax.enable_x64(True):
        f = jax.vmap(SPELLINGS["trace of the Hessian"](lambda x: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ v))))
        w, v, x = (z.astype(dtype) for z in (W1, W2, X))
        got, plain = jax.jit(ag.optimize(f))(x), jax.jit(f)(x)
        assert got.dtype == plain.dtype == dtype
        w, v = w.astype("float64"), v.astype("float64")
        exact = jax.jit(f)(x.astype("float64"))
        error, of_plain = (float(jnp.abs(z.astype("float64") - exact).max()) for z in (got, plain))
        assert error <= 1.5 * of_plain + 1e-12


def test_gradients_and_loops() -> None:
    """A gradient of it taken inside, under `vmap`, and in the steps of a loop."""
    f = SPELLINGS["trace of the Hessian"](NETS["two layers"][0])
    loss = lambda x: jnp.mean(jax.vmap(f)(x) ** 2)  # noqa: E731
    loop = lambda x: jax.lax.scan(lambda c, _: (c + 0.01 * loss(c) * c, loss(c)), x, None, length=3)[1]  # noqa: E731
    for g in (loss, jax.grad(loss), ag.grad(loss), loop):
        got, want = jax.jit(ag.optimize(g))(X), jax.jit(jax.grad(loss) if g is not loss and g is not loop else g)(X)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(jnp.abs(want).max()))


def test_empty_and_single_dimensions() -> None:
    """Nothing breaks."""
    for a, b, x in ((A[:0], B, Y[:0]), (A[:1], B, Y[:1]), (A[:, :1], B[:1], Y), (A, B[:, :1], Y[:, :1])):
        for f in (weighted, both):
            for got, want in zip(*(jax.tree.leaves(jax.jit(g)(a, b, x)) for g in (ag.optimize(f), f)), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seed", range(24))
def test_drawn_sums_keep_their_numbers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands between a product and its sum, whatever it costs, in float64."""
    monkeypatch.setattr(mirrored_products, "pays", lambda before, after: True)
    rng = np.random.default_rng(seed)
    weights, between, beside = rng.integers(0, 5, 3), rng.integers(0, 6, 4), rng.integers(0, 4, 2)

    def f(a: Any, b: Any, x: Any) -> Any:
        factors = [jnp.sin(a), a[:, :1], a[:1] * a[1:2], 2.0 - a[:1], jnp.float64(0.5)]
        w = factors[weights[0]] * factors[weights[1]] + 0 * a
        p = x @ b.T
        for step in between:
            p = [
                lambda p: p * factors[weights[2]],
                lambda p: p + a[:, :1] * a,
                lambda p: -p,
                lambda p: jnp.cos(a) - p * 3.0,
                lambda p: p * jnp.sin(a[:1]) + p,
                lambda p: p[:, None].reshape(p.shape),
            ][step](p)
        total = jnp.einsum("ij,ij->i", w, p) if beside[0] % 2 else jnp.sum(w * p, 1 if beside[0] else None)
        return total, (w if beside[1] else 2.0 * w * factors[weights[2]]) @ b

    with jax.enable_x64(True):
        args = [jnp.asarray(z, "float64") for z in (A[:9, :7], B[:7, :8], Y[:9, :8])]
        for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ag.optimize(f), f)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
