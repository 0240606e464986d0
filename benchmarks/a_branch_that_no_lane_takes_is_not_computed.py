"""Claim: a dear branch of a `cond` under `vmap`, or of a `where`, costs nothing where it is not taken.

`vmap` of a `cond` computes both branches for all lanes and selects. An expert asks first whether any lane takes it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

N = 256


def dear(w, x):
    for _ in range(8):
        x = jnp.tanh(w @ x)
    return x


def one(w, taken, x):
    return lax.cond(taken, lambda x: dear(w, x), lambda x: 2 * x, x)


def guarded(w, taken, x):
    branch = lambda: jnp.where(taken[:, None], jax.vmap(dear, (None, 0))(w, x), 2 * x)  # noqa: E731
    return lax.cond(jnp.any(taken), branch, lambda: 2 * x)


def spectrum(taken, x):
    return jnp.where(taken, jnp.linalg.eigh(x)[0], jnp.diag(x))


def spectrum_guarded(taken, x):
    return lax.cond(taken, lambda: jnp.linalg.eigh(x)[0], lambda: jnp.diag(x))


def penalty(taken, x):
    return jnp.where(taken, jnp.sum(jnp.tanh(x @ x)), 0.0)


def penalty_guarded(taken, x):
    return lax.cond(taken, lambda: jnp.sum(jnp.tanh(x @ x)), lambda: 0.0)


def lanes(every):
    """Of N lanes one in `every` takes the branch."""
    return lambda: (normal(0, N, N) / 16, jnp.arange(1, N + 1) % every == 0, normal(1, N, N))


def flag(n):
    return lambda: (jnp.array(False), normal(0, n, n))


FORM = "a branch for all lanes"
FEW = Bounds(over_hand=None, speedup=5.0)  # what is left runs microseconds
CASES = (
    Case("a branch that none takes", jax.vmap(one, (None, 0, 0)), {FORM: guarded}, lanes(N + 1), bounds=FEW),
    Case("a branch that one in 20 takes", jax.vmap(one, (None, 0, 0)), {FORM: guarded}, lanes(20)),
    Case("where of a spectrum", spectrum, {FORM: spectrum_guarded}, flag(64), (1,), bounds=FEW, grad_bounds=FEW),
    Case("where of a product", penalty, {FORM: penalty_guarded}, flag(512), (1,), bounds=FEW, grad_bounds=FEW),
)
