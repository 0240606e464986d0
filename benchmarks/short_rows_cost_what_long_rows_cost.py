"""Claim: work on the entries of arrays with short rows costs what it costs on one long row.

Both are the same bytes in memory. An expert keeps images as one long row outside of the compiled function: inside, XLA
moves a reshape back past such work. A loop's carry the expert makes one long row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

SIZE = (512, 28, 28)
FORM = "a branch that is always taken keeps the long row"
FASTER = Bounds(speedup=1.3, over_hand=1.1, memory_over_hand=None)


def apart(f):
    """f of the entries as one long row, in a branch."""

    def g(x):
        flat = x.reshape(-1)
        return jax.lax.cond(flat[0] <= jnp.inf, f, jnp.zeros_like, flat).reshape(x.shape)

    return g


def case(name, f, *size):
    return Case(name, f, {FORM: apart(f)}, lambda: (normal(0, *(size or SIZE)),), bounds=FASTER)


def carry(row):
    """A state that is all that a loop hands on."""

    def carried(x):
        return jax.lax.scan(lambda c, _: (1 / (1 + c * c), None), x, None, length=100)[0]

    return Case(
        f"carry of a loop, rows of {row}",
        carried,
        {"carried as one long row": lambda x: carried(x.reshape(-1)).reshape(x.shape)},
        lambda: (normal(0, (1 << 17) // row, row),),
        bounds=Bounds(memory_over_hand=None),
    )


def gelu_gradient(x):
    return jax.grad(lambda x: jnp.sum(jax.nn.gelu(x) * jax.nn.gelu(0.5 * x)))(x)


def convolutions_gradient(first, second, x):
    def convolve(x, w, stride):
        layout = ("NCHW", "OIHW", "NCHW")
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=layout)

    def loss(first, second):
        return jnp.mean(jax.nn.gelu(convolve(jax.nn.gelu(convolve(x, first, 1)), second, 2)) ** 2)

    return jax.grad(loss, (0, 1))(first, second)


def cell(row):
    """A recurrent cell: a product, of which short rows are made, beside a carry of them."""

    def run(x, w):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w + x), None), x, None, length=30)[0]

    def by_hand(x, w):
        def step(h, _):
            return jnp.tanh((h.reshape(x.shape) @ w).reshape(-1) + x.reshape(-1)), None

        return jax.lax.scan(step, x.reshape(-1), None, length=30)[0].reshape(x.shape)

    return Case(
        f"recurrent cell of {row}",
        run,
        {"carried as one long row": by_hand, "plain": run},
        lambda: (normal(0, 1024, row), normal(1, row, row) / row**0.5),
        bounds=Bounds(over_hand=1.1, memory_over_hand=None),
    )


def kicks(keys, x):
    """Random kicks for each key, drawn in the shape of what is kicked."""
    return x + jax.vmap(lambda key: jax.random.normal(key, x.shape))(keys)


def flat_kicks(keys, x):
    """The same numbers: each is made of its key and its place."""
    return x + jax.vmap(lambda key: jax.random.normal(key, (x.size,)))(keys).reshape(-1, *x.shape)


CASES = (
    case("quotient", lambda x: 1 / (1 + x * x)),
    case("exponential", lambda x: jnp.exp(-x * x)),
    case("gated", lambda x: x * jax.nn.sigmoid(x) + 0.5),
    case("quotient, rows of 16", lambda x: 1 / (1 + x * x), 25_000, 16),
    case("quotient, rows of 33", lambda x: 1 / (1 + x * x), 12_000, 33),
    Case(
        "an odd number of entries",
        gelu_gradient,
        {"plain": gelu_gradient},
        lambda: (normal(0, 3971, 33),),
        bounds=Bounds(over_hand=None, over_natural=1.03),
        notes="one row of all was four times slower than plain JAX",
    ),
    Case(
        "images of 32 x 32 beside convolutions",
        convolutions_gradient,
        {"plain": convolutions_gradient},
        lambda: (normal(1, 16, 3, 3, 3) / 5, normal(2, 16, 16, 3, 3) / 10, normal(0, 8, 3, 32, 32)),
        bounds=Bounds(over_hand=None, over_natural=1.03),
    ),
    Case(
        "random numbers in rows of 10 for 200 keys",
        kicks,
        {"drawn in one row": flat_kicks},
        lambda: (jax.random.split(jax.random.key(0), 200), normal(0, 40, 10)),
        bounds=Bounds(over_hand=1.1, memory_over_hand=None),
    ),
    carry(28),
    carry(48),
    cell(28),
    cell(48),
)
