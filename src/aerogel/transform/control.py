"""`cond` and `switch`: JAX's, with operands and results that hold anything."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple

import jax

from aerogel import _jax

from ._static import between, hide, reveal

_jax.exclude_from_tracebacks(__file__)

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


def cond(pred: Any, true_fun: Callable[[*Ts], R], false_fun: Callable[[*Ts], R], *operands: *Ts) -> R:
    """`true_fun(*operands)` or `false_fun(*operands)`: `jax.lax.cond`.

    Modules need no help in `jax.lax.cond`. What this adds: values that are no arrays may stand in the operands and in
    the results, where both branches must return the same ones.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.cond(True, lambda x, f: (f(x), "same"), lambda x, f: (x, "same"), 2.0, jnp.square)
    (Array(4., dtype=float32, weak_type=True), 'same')
    """
    return reveal(jax.lax.cond(pred, between(true_fun), between(false_fun), *hide(operands)))


def switch(index: Any, branches: Sequence[Callable[[*Ts], R]], *operands: *Ts) -> R:
    """`branches[index](*operands)`, with the index clamped to those that there are: `jax.lax.switch`, as in `cond`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> float(ag.switch(1, [lambda x, f: x, lambda x, f: f(x)], 2.0, jnp.square))
    4.0
    """
    return reveal(jax.lax.switch(index, list(map(between, branches)), *hide(operands)))
