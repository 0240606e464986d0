"""Claim: a Gaussian kernel times a vector, written with broadcasting, takes no longer than PyKeOps takes for it.

PyKeOps compiles such formulas to loops over all pairs that store none of them; this is its own example, in dimension 3,
on its CPU backend. Value, and gradient by the points. Both compute in float32 from the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag

from ._finding import Finding
from ._timing import Quartiles

FORMULA = "Exp(-g*SqDist(x,y))*b"
TYPES = ["g=Pm(1)", "x=Vi(3)", "y=Vj(3)", "b=Vj(1)"]


def product(x: jax.Array, y: jax.Array, b: jax.Array) -> jax.Array:
    """As anybody writes it."""
    return jnp.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)) @ b


def gradient(x: jax.Array, y: jax.Array, b: jax.Array, e: jax.Array) -> jax.Array:
    """The cotangent of the points."""
    return jax.vjp(lambda x: product(x, y, b), x)[1](e)[0]


def findings(quick: bool = False) -> list[Finding]:
    """Times of ours over those of PyKeOps, call by call in turns."""
    names = [f"{what}, {n} points" for n in (2048, 8192) for what in ("value", "gradient")]
    try:
        from pykeops.numpy import Genred  # type: ignore[import-not-found]
    except ImportError as error:
        return [Finding(name, "over PyKeOps", None, 1.0, str(error)) for name in names]
    keops_value = Genred(FORMULA, TYPES, reduction_op="Sum", axis=1)
    keops_gradient = Genred(f"Grad({FORMULA},x,e)", [*TYPES, "e=Vi(1)"], reduction_op="Sum", axis=1)
    found = []
    for n in (2048, 8192):
        rng = np.random.default_rng(n)
        x, y, b, e = (rng.normal(size=(n, k)).astype(np.float32) for k in (3, 3, 1, 1))
        g, ours = np.array([0.5], np.float32), [jnp.asarray(a) for a in (x, y, b, e)]
        pairs = [
            (ag.jit(product), ours[:3], lambda g=g, x=x, y=y, b=b: keops_value(g, x, y, b)),
            (ag.jit(gradient), ours, lambda g=g, x=x, y=y, b=b, e=e: keops_gradient(g, x, y, b, e)),
        ]
        for what, (f, args, theirs) in zip(("value", "gradient"), pairs, strict=True):
            mine, other = seconds(lambda f=f, args=args: f(*args), theirs, 3 if quick else 15)
            difference = np.abs(np.asarray(f(*args)) - theirs()).max() / np.abs(theirs()).max()
            times = f"{np.median(mine) * 1e3:.1f} and {np.median(other) * 1e3:.1f} ms"
            details = f"{times}; largest difference {difference:.0e} of the largest entry"
            found.append(Finding(f"{what}, {n} points", "over PyKeOps", Quartiles.of(mine / other), 1.0, details))
    return found


def seconds(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each call, in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for warm in (True, *(False,) * rounds):
        for times, call in zip(found, (ours, theirs), strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            if not warm:
                times.append(time.perf_counter() - start)
    return np.array(found[0]), np.array(found[1])
