"""Claim: every operand order and vmap position of the matvec of JAX issue 19327 costs what the best `einsum` costs.

The issue maps `w @ x` over the two batch axes of `x`: vmap puts `w` first, the batch ends up last in the product, and
a transpose follows. Eight programs: which operand comes first, which batch axis is mapped outermost, how the weight
is stored.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.03)
OUT, IN = 600, 821  # the sizes
BATCH = (32, 100)


def over_both_batch_axes(f, outer_axis):
    """`f(w, x)` for one vector, mapped over both batch axes of `x`; the outer vmap takes `outer_axis`."""
    return jax.vmap(jax.vmap(f, (None, 0)), (None, outer_axis), outer_axis)


def weight_first(stored):
    return (lambda w, x: w @ x) if stored == "out, in" else (lambda w, x: w.T @ x)


def vector_first(stored):
    return (lambda w, x: x @ w.T) if stored == "out, in" else (lambda w, x: x @ w)


def einsums(stored):
    """Both operand orders; XLA's CPU backend does not treat them alike, which is what the issue is about."""
    w = "oi" if stored == "out, in" else "io"
    return {
        "einsum, vectors first": lambda weight, x: jnp.einsum(f"abi,{w}->abo", x, weight),
        "einsum, weight first": lambda weight, x: jnp.einsum(f"{w},abi->abo", weight, x),
    }


def case(first, outer_axis, stored):
    f = (weight_first if first == "weight" else vector_first)(stored)
    shape = (OUT, IN) if stored == "out, in" else (IN, OUT)
    return Case(
        f"{first} first, outer vmap over axis {outer_axis}, weight stored ({stored})",
        over_both_batch_axes(f, outer_axis),
        einsums(stored),
        lambda: (normal(0, *shape) / IN**0.5, normal(1, *BATCH, IN)),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
        notes="jax-ml/jax#19327",
    )


def mlp(weights, x):
    for w in weights:
        x = jax.nn.relu(w @ x)
    return x


def mlp_by_hand(weights, xs):
    for w in weights:
        xs = jax.nn.relu(xs @ w.T)
    return xs


def heads(inner, outer, out=0):
    """A function of one head, mapped over heads (`inner`) and then over the batch."""
    return lambda f: jax.vmap(jax.vmap(f, inner, out), outer)


LAYOUTS = {"b t h d": ((4, 128, 8, 64), 1), "b h t d": ((4, 8, 128, 64), 0)}


def scores(name):
    shape, head = LAYOUTS[name]
    letters = name.replace(" ", "")
    hand = f"{letters},{letters.replace('t', 's')}->bhts"
    return Case(
        f"attention scores, heads at ({name})",
        heads((head, head), (0, 0))(lambda q, k: q @ k.T),
        {"einsum": lambda q, k: jnp.einsum(hand, q, k)},
        lambda: (normal(0, *shape), normal(1, *shape)),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    )


def weighted_values(name):
    shape, head = LAYOUTS[name]
    letters = name.replace(" ", "")
    hand = f"bhts,{letters.replace('t', 's')}->{letters}"
    return Case(
        f"attention values, heads at ({name})",
        heads((0, head), (0, 0), head)(lambda a, v: a @ v),
        {"einsum": lambda a, v: jnp.einsum(hand, a, v)},
        lambda: (normal(0, 4, 8, 128, 128), normal(1, *shape)),
        bounds=BOUNDS,
    )


def gram(x):
    return jax.vmap(lambda a: jax.vmap(lambda b: a @ b)(x))(x)


def one_bottleneck(down, up, x):
    return up.T @ jnp.tanh(down @ x)


CASES = (
    *(scores(name) for name in LAYOUTS),
    *(weighted_values(name) for name in LAYOUTS),
    Case(
        "gram matrix by two vmaps of a dot product",
        gram,
        {"x x^T": lambda x: x @ x.T},
        lambda: (normal(0, 600, 300),),
        bounds=BOUNDS,
    ),
    Case(
        "a chain of two products under vmap",
        jax.vmap(one_bottleneck, (None, None, 0)),
        {"batch first": lambda down, up, xs: jnp.einsum("bh,ho->bo", jnp.tanh(jnp.einsum("bi,hi->bh", xs, down)), up)},
        lambda: (normal(0, 256, 192) / 14, normal(1, 256, 192) / 16, normal(2, 2048, 192)),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    *(case(*c) for c in itertools.product(("weight", "vector"), (0, 1), ("out, in", "in, out"))),
    Case(
        "vmap of a four-layer network, as Equinox users write it",
        jax.vmap(mlp, (None, 0)),
        {"batch first": mlp_by_hand},
        lambda: ([normal(i, 256, 256) / 16 for i in range(4)], normal(9, 512, 256)),
        grad=(0,),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
)
