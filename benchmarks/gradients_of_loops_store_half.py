"""Claim: the gradient of a loop stores half of what plain JAX stores for it, or less, and takes no longer.

Value and gradient of recurrent cells, integrators, stencils, a selective state space model and a Kalman filter, as
users write them. Half is asked where a choice of what to store of that size exists (issue 5). The expert's forms are
the step under `jax.checkpoint`, and what depends on no state made of all steps before the loop (issue 2), which takes
less time and more memory. Where steps are large and cheap, storing every step loses to storing some and running the
others again: the bounds are those of the rows 18 to 21 of the issue's table.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

N = 100_000
STEP = 0.05


def split(projected, gates):
    """The gates' inputs: hoisted by hand they are arrays of their own, which XLA reads faster than slices of one."""
    return projected if isinstance(projected, list) else jnp.split(projected, gates, axis=-1)


def rnn(h, projected, w):
    return jnp.tanh(projected + h @ w["h"])


def lstm(state, projected, w):
    h, c = state
    hidden = h @ w["h"]
    if isinstance(projected, list):
        i, f, g, o = (x + y for x, y in zip(projected, jnp.split(hidden, 4, axis=-1), strict=True))
    else:
        i, f, g, o = jnp.split(projected + hidden, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru(h, projected, w):
    xr, xz, xn = split(projected, 3)
    hr, hz, hn = jnp.split(h @ w["h"], 3, axis=-1)
    z = jax.nn.sigmoid(xz + hz)
    return (1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h


def weights(gates, hidden):
    w = {k: normal(seed, hidden, gates * hidden) / hidden**0.5 for seed, k in enumerate("xh")}
    return {**w, "b": jnp.zeros(gates * hidden)}


def recurrent(cell, gates, steps, batch, hidden, has_memory=False):
    """A mean square over all outputs, by the weights, the inputs and the first state; and with hoisted projections."""

    def of(projected, w, xs, state, checkpoint):
        def step(state, x):
            state = cell(state, projected(x), w)
            return state, state[0] if has_memory else state

        return jnp.mean(lax.scan(checkpoint(step), state, xs)[1] ** 2)

    def project(w, x):
        return x @ w["x"] + w["b"]

    def natural(w, xs, state, checkpoint=lambda f: f):
        return of(lambda x: project(w, x), w, xs, state, checkpoint)

    def hoisted(w, xs, state):
        projected = project(w, xs)
        return of(lambda x: x, w, projected if gates == 1 else split(projected, gates), state, lambda f: f)

    def args():
        zeros = jnp.zeros((batch, hidden))
        return weights(gates, hidden), normal(2, steps, batch, hidden), (zeros, zeros) if has_memory else zeros

    return natural, args, (0, 1, 2), hoisted


def in_halves(program):
    """The same with bfloat16 numbers, and its mean square in float32."""
    natural, args, grad, _ = program
    return natural, lambda: jax.tree.map(lambda x: x.astype(jnp.bfloat16), args()), grad


def min_gru(w, xs, h, checkpoint=lambda f: f):
    """A gate and a candidate of the input alone, made in the step."""

    def step(h, x):
        gate = jax.nn.sigmoid(x @ w["gate"])
        h = (1 - gate) * h + gate * (x @ w["new"])
        return h, h

    return jnp.mean(lax.scan(checkpoint(step), h, xs)[1] ** 2)


def min_gru_hoisted(w, xs, h):
    """The same with gates and candidates of all steps made before the loop."""

    def step(h, x):
        gate, new = x
        h = (1 - gate) * h + gate * new
        return h, h

    return jnp.mean(lax.scan(step, h, (jax.nn.sigmoid(xs @ w["gate"]), xs @ w["new"]))[1] ** 2)


def rwkv(w, xs, state, checkpoint=lambda f: f):
    """Time mixing of RWKV, with the largest exponent carried along."""

    def step(state, x):
        a, b, m = state
        k, v, r = x @ w["k"], x @ w["v"], jax.nn.sigmoid(x @ w["r"])
        top = jnp.maximum(m, w["bonus"] + k)
        old, new = jnp.exp(m - top), jnp.exp(w["bonus"] + k - top)
        y = r * (old * a + new * v) / (old * b + new)
        top = jnp.maximum(m - w["decay"], k)
        old, new = jnp.exp(m - w["decay"] - top), jnp.exp(k - top)
        return (old * a + new * v, old * b + new, top), y @ w["out"]

    return jnp.mean(lax.scan(checkpoint(step), state, xs)[1] ** 2)


def products(*names, steps, batch=32, width=128):
    w = {name: normal(seed, width, width) / width**0.5 for seed, name in enumerate(names)}
    return w, normal(8, steps, batch, width), jnp.zeros((batch, width))


def rwkv_args():
    w, xs, zeros = products("k", "v", "r", "out", steps=100)
    w |= {"decay": jnp.exp(jnp.linspace(-2, 1, 128)), "bonus": jnp.linspace(-1, 1, 128)}
    return w, xs, (zeros, zeros, jnp.full_like(zeros, -1e30))


def repeated(advance, steps, state):
    """A sum of squares over all states, by the first one."""

    def natural(x, checkpoint=lambda f: f):
        def step(x, _):
            x = advance(x)
            return x, sum(jnp.sum(one**2) for one in jax.tree.leaves(x))

        return jnp.mean(lax.scan(checkpoint(step), x, None, length=steps)[1])

    return natural, lambda: (state(),), (0,)


def leapfrog(state):
    q, p = state
    p = p - STEP / 2 * jnp.sin(q)
    q = q + STEP * p
    return q, p - STEP / 2 * jnp.sin(q)


def quartic(state):
    q, p = state
    p = p - STEP / 2 * q * q * q
    q = q + STEP * p
    return q, p - STEP / 2 * q * q * q


def runge_kutta(f):
    def step(y):
        def ahead(dt, k):
            return jax.tree.map(lambda y, k: y + dt * k, y, k)

        k1 = f(y)
        k2 = f(ahead(STEP / 2, k1))
        k3 = f(ahead(STEP / 2, k2))
        k4 = f(ahead(STEP, k3))
        return ahead(STEP / 6, jax.tree.map(lambda a, b, c, d: a + 2 * b + 2 * c + d, k1, k2, k3, k4))

    return step


def pendulum(state):
    return state[1], -jnp.sin(state[0])


def logistic(y):
    return y * (1 - y)


def heat(u):
    return u + 0.2 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1))


def reaction(u):
    return heat(u) + STEP * u * (1 - u)


def burgers(u):
    before, after = jnp.roll(u, 1), jnp.roll(u, -1)
    return u + STEP * (0.1 * (before - 2 * u + after) - u * (after - before) / 2)


def upwind(u):
    return u - STEP * u * jnp.where(u > 0, u - jnp.roll(u, 1), jnp.roll(u, -1) - u)


def wave(state):
    """Between walls, slower where it is high."""
    u, v = state
    p = jnp.pad(u, 1)
    v = v + STEP * jnp.exp(-u * u) * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u)
    return u + STEP * v, v


def total_variation(u):
    x, y = jnp.roll(u, -1, 1) - u, jnp.roll(u, -1, 0) - u
    size = jnp.sqrt(x * x + y * y + 0.1)
    x, y = x / size, y / size
    return u + STEP * (x - jnp.roll(x, 1, 1) + y - jnp.roll(y, 1, 0))


def selected(w, x):
    """How fast the state forgets, and what it reads and shows."""
    return jax.nn.softplus(x @ w["delta"])[..., None], (x @ w["b"])[..., None, :], (x @ w["c"])[..., None, :]


def advanced(w, h, x, delta, b, c):
    h = jnp.exp(delta * w["a"]) * h + delta * b * x[..., None]
    return h, jnp.sum(h * c, -1)


def state_space(w, xs, h, checkpoint=lambda f: f):
    """Mamba's recurrence: what is selected depends on the input."""

    def step(h, x):
        return advanced(w, h, x, *selected(w, x))

    return jnp.mean(lax.scan(checkpoint(step), h, xs)[1] ** 2)


def state_space_hoisted(w, xs, h):
    return jnp.mean(lax.scan(lambda h, x: advanced(w, h, *x), h, (xs, *selected(w, xs)))[1] ** 2)


def state_space_args(steps=64, batch=8, width=128, states=16):
    w = {"delta": 0.1 * normal(0, width, width), "b": normal(1, width, states), "c": normal(2, width, states)}
    w["a"] = -jnp.exp(normal(3, width, states))
    return w, normal(4, steps, batch, width), jnp.zeros((batch, width, states))


def kalman(model, ys, state, checkpoint=lambda f: f):
    """Minus the log-likelihood of many series that one linear model explains, one observed number at a time."""

    def step(state, y):
        m, p = state
        m = m @ model["f"].T
        p = model["f"] @ p @ model["f"].T + jnp.diag(jnp.exp(model["q"]))
        ph = p @ model["h"]
        s = ph @ model["h"] + jnp.exp(model["r"])
        error = y - m @ model["h"]
        gain = ph / s[..., None]
        p = p - gain[..., :, None] * ph[..., None, :]
        return (m + gain * error[..., None], p), 0.5 * (jnp.log(s) + error**2 / s)

    return jnp.mean(lax.scan(checkpoint(step), state, ys)[1])


def kalman_args(steps=100, series=512, size=8):
    model = {"f": 0.9 * jnp.eye(size) + 0.02 * normal(0, size, size), "q": -jnp.ones(size), "h": normal(1, size)}
    state = jnp.zeros((series, size)), jnp.broadcast_to(jnp.eye(size), (series, size, size))
    return {**model, "r": jnp.zeros(())}, normal(2, steps, series), state


def linear(a, us, c, checkpoint=lambda f: f):
    """A small linear system that is driven: a mean square of its states."""

    def step(c, u):
        c = 0.2 * (a @ c) + u
        return c, c

    return jnp.mean(lax.scan(checkpoint(step), c, us)[1] ** 2)


def linear_args(steps=500, size=12):
    return normal(0, size, size), normal(1, steps, size), jnp.zeros(size)


def pair():
    return normal(0, N), 0.1 * normal(1, N)


def unit():
    return jax.nn.sigmoid(normal(0, N))


def case(name, program, saving=2.0, over_natural=1.02):
    natural, args, grad, *hoisted = program
    hand = {"plain": natural, "checkpoint": lambda *args: natural(*args, jax.checkpoint)}
    hand |= dict(zip(["hoisted"], hoisted, strict=False))
    bounds = Bounds(over_hand=None, over_natural=over_natural, memory_over_hand=None, memory_saving=saving)
    return Case(name, natural, hand, args, grad, grad_bounds=bounds)


CASES = (
    case("LSTM, batch 32", recurrent(lstm, 4, 100, 32, 128, True), 23 / 13.2, 0.93),
    case("LSTM, batch 64", recurrent(lstm, 4, 10, 64, 256, True), None),
    case("LSTM, 30 steps", recurrent(lstm, 4, 30, 32, 64, True), None),
    case("GRU, batch 32", recurrent(gru, 3, 100, 32, 128)),
    case("tanh RNN, batch 32", recurrent(rnn, 1, 200, 32, 128), None),
    case("LSTM, batch 32, bfloat16", in_halves(recurrent(lstm, 4, 100, 32, 128, True))),
    case("minGRU", (min_gru, lambda: products("gate", "new", steps=200), (0, 1), min_gru_hoisted)),
    case("RWKV", (rwkv, rwkv_args, (0, 1)), 1.9),
    case("LSTM, batch 1", recurrent(lstm, 4, 200, 1, 256, True), None, 0.67),
    case("GRU, batch 4", recurrent(gru, 3, 200, 4, 256), None, 0.56),
    case("tanh RNN, batch 1", recurrent(rnn, 1, 500, 1, 256), None, 0.59),
    case("leapfrog, pendulums", repeated(leapfrog, 100, pair), 8, 0.10),
    case("leapfrog, quartic", repeated(quartic, 100, pair)),
    case("RK4, pendulums", repeated(runge_kutta(pendulum), 100, pair), 3.8, 0.12),
    case("RK4, logistic growth", repeated(runge_kutta(logistic), 100, unit)),
    case("heat", repeated(heat, 200, unit), 82 / 14, 0.85),
    case("heat and u (1 - u)", repeated(reaction, 200, unit), 242 / 14, 0.36),
    case("Burgers' equation", repeated(burgers, 200, lambda: 0.1 * normal(0, 4096)), 2.5),
    case("upwind differences", repeated(upwind, 150, lambda: 0.3 * normal(0, 8192)), 2.5),
    case("wave between walls", repeated(wave, 80, lambda: (0.1 * normal(0, 64, 64), 0.1 * normal(1, 64, 64))), 2.5),
    case("total variation flow", repeated(total_variation, 50, lambda: normal(0, 96, 96))),
    case("selective state space", (state_space, state_space_args, (0, 1), state_space_hoisted)),
    case("Kalman filter", (kalman, kalman_args, (0,))),
    case("driven linear system", (linear, linear_args, (0,)), None, 1.05),
)
