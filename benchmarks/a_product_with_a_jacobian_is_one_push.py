"""Claim: a product with a Jacobian that `jax.hessian`, `jacfwd` or `jacrev` wrote costs one push or pull of vectors."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)


def loss(w, x):
    """A network's loss, with a full Hessian."""
    return jnp.sum(jnp.tanh(x @ w) ** 2) + jnp.sum(jnp.cos(x) * x)


def layers(w, x):
    """Two layers of a network."""
    return jnp.tanh(jnp.tanh(x @ w) @ w.T) + x**2


def flow(w, x):
    """Steps of an integrator."""
    return lax.scan(lambda c, _: (c + 0.01 * jnp.tanh(jnp.tanh(c @ w) @ w.T), None), x, None, length=50)[0]


def stencil(w, x):
    """A step of a wave on a ring, with shifts."""
    return jnp.tanh(w[:, 0] * jnp.roll(x, 1)) + x * jnp.sin(x)


def curvature(w, x, v):
    return jax.hessian(partial(loss, w))(x) @ v


def curvature_by_hand(w, x, v):
    return jax.jvp(jax.grad(partial(loss, w)), (x,), (v,))[1]


def forwards(f):
    return lambda w, x, v: jax.jacfwd(partial(f, w))(x) @ v


def backwards(f):
    return lambda w, x, v: jax.jacrev(partial(f, w))(x) @ v


def from_the_left(f):
    return lambda w, x, v: jnp.einsum("i,ij->j", v, jax.jacfwd(partial(f, w))(x))


def push(f):
    return lambda w, x, v: jax.jvp(partial(f, w), (x,), (v,))[1]


def pull(f):
    return lambda w, x, v: jax.vjp(partial(f, w), x)[1](v)[0]


def gauss_newton(w, x, v):
    jacobian = jax.jacrev(partial(layers, w))(x)
    return jacobian.T @ (jacobian @ v)


def gauss_newton_by_hand(w, x, v):
    _, pushed = jax.jvp(partial(layers, w), (x,), (v,))
    return jax.vjp(partial(layers, w), x)[1](pushed)[0]


def by_entries(w, x, v):
    return jnp.sum(jax.hessian(partial(loss, w))(x) * v, axis=1)


def deep(w, x):
    """Many layers, written out."""
    for k in range(40):
        x = jnp.sin(x) + 0.01 * k * jnp.roll(x, 1)
    return x


def few(w, x, v):
    return jax.jacfwd(lambda x: layers(w, x)[:4] * v[:4])(x)


def few_by_hand(w, x, v):
    return jax.jacrev(lambda x: layers(w, x)[:4] * v[:4])(x)


def power(w, x, v):
    """A matrix multiplied again and again, and then with a vector."""
    matrix = w @ w.T
    return lax.fori_loop(0, 20, lambda _, m: matrix @ m, matrix) @ (x * v)


def power_by_hand(w, x, v):
    matrix = w @ w.T
    return lax.fori_loop(0, 21, lambda _, y: matrix @ y, x * v)


def conjugate(product, b):
    """Ten steps of conjugate gradients."""

    def step(state, _):
        x, r, p, rr = state
        ap = product(p)
        a = rr / (p @ ap)
        r = r - a * ap
        return (x + a * p, r, r + (r @ r / rr) * p, r @ r), None

    return lax.scan(step, (jnp.zeros_like(b), b, b, b @ b), None, length=10)[0][0]


def solved(made, solve):
    """A step of Gauss and Newton, whose matrix is made before the loop that multiplies with it."""

    def step(w, x, v):
        j = made(partial(flow, w))(x)
        return x - solve(lambda p: j.T @ (j @ p) + p, j.T @ (flow(w, x) - v))

    return step


def solved_by_hand(solve):
    def step(w, x, v):
        y, push = jax.linearize(partial(flow, w), x)
        pull = jax.linear_transpose(push, x)
        return x - solve(lambda p: pull(push(p))[0] + p, pull(y - v)[0])

    return step


def by_library(product, b):
    return jax.scipy.sparse.linalg.cg(product, b, maxiter=10, tol=0.0)[0]


def krylov(w, x, v):
    """Ten products, each with the one before."""
    j = jax.jacfwd(partial(flow, w))(x)
    return lax.scan(lambda c, _: ((y := j @ c), y), v, None, length=10)[1]


def krylov_by_hand(w, x, v):
    _, push = jax.linearize(partial(flow, w), x)
    return lax.scan(lambda c, _: ((y := push(c)), y), v, None, length=10)[1]


def case(name, natural, hand, n=1000, width=64, grad=(1,)):
    args = lambda: (normal(0, n, width) / n**0.5, normal(1, n), normal(2, n))  # noqa: E731
    return Case(name, natural, {"a push or a pull": hand}, args, grad=grad, bounds=BOUNDS, grad_bounds=BOUNDS)


CASES = [
    case("Hessian times a vector", curvature, curvature_by_hand),
    case("jacfwd times a vector", forwards(layers), push(layers)),
    case("jacrev times a vector", backwards(layers), push(layers)),
    case("a vector times jacfwd", from_the_left(layers), pull(layers)),
    case("jacfwd of a stencil times a vector", forwards(stencil), push(stencil), 4000, 1),
    case("jacfwd of a loop times a vector", forwards(flow), push(flow), 400),
    case("jacrev of a loop times a vector", backwards(flow), push(flow), 400),
    case("Gauss-Newton matrix times a vector", gauss_newton, gauss_newton_by_hand),
    case("Hessian times a vector, by entries", by_entries, curvature_by_hand),
    case("jacfwd of many layers times a vector", forwards(deep), push(deep), 400, 1),
    case("a power in a loop times a vector", power, power_by_hand, 400),
    case("jacfwd of four results", few, few_by_hand),
    case("jacrev, then conjugate gradients", solved(jax.jacrev, conjugate), solved_by_hand(conjugate), 400),
    case("jacfwd, then conjugate gradients", solved(jax.jacfwd, conjugate), solved_by_hand(conjugate), 400),
    case("jacrev, then JAX's solver", solved(jax.jacrev, by_library), solved_by_hand(by_library), 400, grad=()),
    case("jacfwd, then ten products in a loop", krylov, krylov_by_hand, 400),
]
