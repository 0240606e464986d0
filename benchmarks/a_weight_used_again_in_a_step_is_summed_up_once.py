"""Claim: the gradient of a weight that a step uses several times is made after the loop, as an expert makes it.

A network that a Runge-Kutta method evaluates four times a step, a recurrent cell that uses one matrix three times, two
cells that share their weights. JAX's gradient adds a product for each use to a matrix that it carries through the
steps; by hand the factors of all steps are kept, and the sum is one product of tall matrices for each use.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Case, normal

STEP = 0.05


def stages(w, y):
    """A step of Runge-Kutta's method, what its stages read and what their hidden layers hold."""

    def slope(y):
        h = jnp.tanh(y @ w["in"] + w["b"])
        return h @ w["out"], (y, h)

    a, of_a = slope(y)
    b, of_b = slope(y + STEP / 2 * a)
    c, of_c = slope(y + STEP / 2 * b)
    d, of_d = slope(y + STEP * c)
    return y + STEP / 6 * (a + 2 * b + 2 * c + d), (of_a, of_b, of_c, of_d)


def neural_ode(steps):
    def natural(w, y):
        def loss(w):
            def step(y, _):
                y = stages(w, y)[0]
                return y, y

            return jnp.mean(lax.scan(step, y, None, length=steps)[1] ** 2)

        return jax.value_and_grad(loss)(w)

    def by_hand(w, y):
        def step(y, _):
            y, read = stages(w, y)
            return y, (y, read)

        _, (ys, read) = lax.scan(step, y, None, length=steps)

        def back(c, kept):
            dy, hidden = kept
            c = c + dy

            def through(h, d):
                z = (d @ w["out"].T) * (1 - h * h)
                return z @ w["in"].T, (z, d)

            d, of_d = through(hidden[3], STEP / 6 * c)
            e, of_c = through(hidden[2], STEP / 3 * c + STEP * d)
            f, of_b = through(hidden[1], STEP / 3 * c + STEP / 2 * e)
            g, of_a = through(hidden[0], STEP / 6 * c + STEP / 2 * f)
            return c + d + e + f + g, (of_a, of_b, of_c, of_d)

        hidden = tuple(h for _, h in read)
        _, cotangents = lax.scan(back, jnp.zeros_like(y), (2 * ys / ys.size, hidden), reverse=True)

        def summed(x, z):
            return jnp.einsum("tbi,tbj->ij", x, z)

        pairs = list(zip(read, cotangents, strict=True))
        grads = {
            "in": sum(summed(x, z) for (x, _), (z, _) in pairs),
            "b": sum(z.sum((0, 1)) for _, (z, _) in pairs),
            "out": sum(summed(h, d) for (_, h), (_, d) in pairs),
        }
        return jnp.mean(ys**2), grads

    return natural, by_hand


def network(size, hidden, batch):
    def args():
        first, last = normal(0, size, hidden) / size**0.5, normal(1, hidden, size) / hidden**0.5
        return {"in": first, "b": jnp.zeros(hidden), "out": last}, normal(2, batch, size)

    return args


def thrice(w, xs):
    """A cell that reads its input through the matrix that its state goes through."""

    def loss(w):
        def step(h, x):
            h = jnp.tanh(h @ w + jnp.tanh(x @ w) @ w)
            return h, h

        return jnp.mean(lax.scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)

    return jax.value_and_grad(loss)(w)


def thrice_by_hand(w, xs):
    first = jnp.tanh(xs @ w)

    def step(h, u):
        h = jnp.tanh(h @ w + u)
        return h, h

    start = jnp.zeros_like(xs[0])
    _, hs = lax.scan(step, start, first @ w)

    def back(c, kept):
        h, dh = kept
        z = (c + dh) * (1 - h * h)
        return z @ w.T, z

    _, zs = lax.scan(back, start, (hs, 2 * hs / hs.size), reverse=True)
    before = jnp.concatenate([start[None], hs[:-1]])
    inner = (zs @ w.T) * (1 - first * first)

    def summed(x, z):
        return jnp.einsum("tbi,tbj->ij", x, z)

    return jnp.mean(hs**2), summed(before + first, zs) + summed(xs, inner)


def two_layers(w, xs):
    """Two layers that share both of their matrices."""

    def loss(w):
        def step(state, x):
            a, b = state
            a = jnp.tanh(a @ w["u"] + b @ w["v"] + x)
            b = jnp.tanh(a @ w["v"] + b @ w["u"])
            return (a, b), b

        start = jnp.zeros_like(xs[0])
        return jnp.mean(lax.scan(step, (start, start), xs)[1] ** 2)

    return jax.value_and_grad(loss)(w)


def two_layers_by_hand(w, xs):
    start = jnp.zeros_like(xs[0])

    def step(state, x):
        a, b = state
        a = jnp.tanh(a @ w["u"] + b @ w["v"] + x)
        b = jnp.tanh(a @ w["v"] + b @ w["u"])
        return (a, b), (a, b)

    _, (a, b) = lax.scan(step, (start, start), xs)

    def back(state, kept):
        da, db = state
        a, b, dy = kept
        zb = (db + dy) * (1 - b * b)
        za = (da + zb @ w["v"].T) * (1 - a * a)
        return (za @ w["u"].T, za @ w["v"].T + zb @ w["u"].T), (za, zb)

    _, (za, zb) = lax.scan(back, (start, start), (a, b, 2 * b / b.size), reverse=True)
    a_before, b_before = (jnp.concatenate([start[None], x[:-1]]) for x in (a, b))

    def summed(x, z):
        return jnp.einsum("tbi,tbj->ij", x, z)

    grads = {"u": summed(a_before, za) + summed(b_before, zb), "v": summed(b_before, za) + summed(a, zb)}
    return jnp.mean(b**2), grads


def sequences(steps, batch, size, shared=False):
    def args():
        w = normal(0, size, size) / size**0.5
        return {"u": w, "v": normal(2, size, size) / size**0.5} if shared else w, normal(1, steps, batch, size)

    return args


def case(name, natural, by_hand, args):
    return Case(name, natural, {"after the loop": by_hand}, args)


CASES = (
    case("neural ODE, batch 1", *neural_ode(100), network(64, 256, 1)),
    case("neural ODE, batch 4", *neural_ode(100), network(64, 256, 4)),
    case("neural ODE, batch 8", *neural_ode(60), network(32, 128, 8)),
    case("neural ODE, batch 32", *neural_ode(50), network(16, 64, 32)),
    case("one matrix three times, batch 1", thrice, thrice_by_hand, sequences(100, 1, 64)),
    case("one matrix three times, batch 4", thrice, thrice_by_hand, sequences(80, 4, 128)),
    case("one matrix three times, batch 16", thrice, thrice_by_hand, sequences(60, 16, 64)),
    case("two layers that share", two_layers, two_layers_by_hand, sequences(80, 4, 128, shared=True)),
    case("two layers that share, batch 1", two_layers, two_layers_by_hand, sequences(100, 1, 64, shared=True)),
)
