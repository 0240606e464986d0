"""Random programs around a site: what a rule meets in the programs of others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

# Smooth, and no larger than what they are given: a difference of the last bit stays one.
BEFORE: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    lambda x: x / 2,
    jnp.sin,
    lambda x: x[::-1] if x.ndim else x,
    lambda x: x + lax.stop_gradient(x) / 4,
)
AFTER: tuple[Callable[[Any], Any], ...] = (
    lambda y: y,
    jnp.negative,
    jnp.tanh,
    lambda y: jnp.sum(y) if y.ndim else y,
    lambda y: jnp.stack([y, y / 2]),
)


def random_programs(seed: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A transformation: a function in some random programs, all of them together.

    Arguments and results are changed, or read elsewhere too; the function stands in loops, branches and calls.
    """
    rng = np.random.default_rng(seed)
    drawn = [(int(rng.integers(len(BEFORE))), int(rng.integers(len(AFTER))), place) for place in PLACES]

    def around(f: Callable[..., Any]) -> Callable[..., Any]:
        def programs(*args: Any) -> list[Any]:
            found = []
            for before, after, place in drawn:
                given = jax.tree.map(_on_floats(BEFORE[before]), args)
                out = place(f, given)
                found.append((jax.tree.map(_on_floats(AFTER[after]), out), given))
            return found

        return programs

    return around


def _on_floats(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: change(x) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


def _twice(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A function that is called from two places."""
    called = _jax.original_jit(f)
    return called(*args), called(*jax.tree.map(_on_floats(lambda x: x / 4), args))


def _scanned(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    def step(given: Any, _: Any) -> Any:
        return jax.tree.map(_on_floats(lambda x: x / 2), given), f(*given)

    return lax.scan(step, args, None, length=2)[1]


def _branch(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    leaves = [x for x in jax.tree.leaves(args) if jnp.issubdtype(jnp.result_type(x), jnp.number)]
    predicate = jnp.sum(leaves[0]).real > 0 if leaves else True
    return lax.cond(predicate, lambda: f(*args), lambda: f(*jax.tree.map(_on_floats(lambda x: -x), args)))


PLACES: tuple[Callable[[Callable[..., Any], tuple[Any, ...]], Any], ...] = (
    lambda f, args: f(*args),
    _twice,
    _scanned,
    _branch,
    lambda f, args: (f(*args), f(*args[::-1]) if _alike(args) else ()),
)


def _alike(args: tuple[Any, ...]) -> bool:
    """Whether arguments may be given in another order."""
    return len({(x.shape, x.dtype) if hasattr(x, "shape") else id(x) for x in args}) == 1
