"""Claim: formulas over all pairs of N = M = 65,536 things, and their gradients, take less than 1 GB of memory.

Plain JAX makes arrays of 17 GB. As compiled: nothing is run.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

import aerogel as ag

from . import formulas_over_all_pairs_take_no_memory as smaller
from ._case import value_and_grad
from ._finding import Finding
from ._timing import Quartiles

N = 65_536
GB = 1e9


def warping(x, y, v):
    """Soft dynamic time warping of two series, entry by entry."""

    def row(above, a):
        def entry(left, inputs):
            b, up, corner = inputs
            now = (a - b) ** 2 - jax.nn.logsumexp(-jnp.stack([left, up, corner]))
            return now, now

        entries = lax.scan(entry, 1e9, (y, above[1:], above[:-1]))[1]
        return jnp.concatenate([jnp.full(1, 1e9), entries]), None

    first = jnp.full(len(y) + 1, 1e9).at[0].set(0.0)
    return lax.scan(row, first, x)[0][-1]


FORMULAS = (
    *((case.name, case.natural, case.args, case.grad) for case in smaller.CASES),
    ("soft time warping", warping, smaller.coordinates, (0, 1)),
)


def findings(quick: bool = False) -> list[Finding]:
    """Temporary memory in GB, of the value and of value and gradient."""
    return [found for formula in FORMULAS[: 1 if quick else None] for found in findings_of(*formula)]


def findings_of(name, f, args, grad) -> list[Finding]:
    """Those of one formula."""
    make = args.func if isinstance(args, partial) else args
    types = jax.eval_shape(lambda: make(N))
    forms = {"value": f} | ({"value and gradient": value_and_grad(f, grad)} if grad else {})
    return [Finding(name, f"GB of the {what}", _gigabytes(g, types), 1.0) for what, g in forms.items()]


def _gigabytes(f, types) -> Quartiles:
    found = jax.jit(ag.optimize(f)).lower(*types).compile().memory_analysis()
    return Quartiles(*(3 * [found.temp_size_in_bytes / GB]))
