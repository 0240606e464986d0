"""Random programs around a site: what a rule meets in the programs of others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

from .rule_facts import Facts

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


def random_programs(seed: int, facts: Facts) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A transformation: a function in some random programs, all of them together.

    Arguments of which nothing is taken for granted, and results, are changed, or read elsewhere too; the function
    stands in loops, branches and calls.
    """
    rng = np.random.default_rng(seed)
    places = [place for place in PLACES if place is not _reversed or not any(facts)]
    drawn = [(int(rng.integers(len(BEFORE))), int(rng.integers(len(AFTER))), place) for place in places]

    def changed(change: Callable[[Any], Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        leaves, tree = jax.tree.flatten(args)
        return tree.unflatten([x if said else _on_float(change, x) for x, said in zip(leaves, facts, strict=True)])

    def around(f: Callable[..., Any]) -> Callable[..., Any]:
        def programs(*args: Any) -> list[Any]:
            found = []
            for before, after, place in drawn:
                given = changed(BEFORE[before], args)
                out = place(f, given, changed)
                found.append((jax.tree.map(lambda y, change=AFTER[after]: _on_float(change, y), out), given))
            return found

        return programs

    return around


def _on_float(change: Callable[[Any], Any], x: Any) -> Any:
    return change(x) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


Args = tuple[Any, ...]
Changed = Callable[[Callable[[Any], Any], Args], Args]


def _twice(f: Callable[..., Any], args: Args, changed: Changed) -> Any:
    """A function that is called from two places."""
    called = _jax.original_jit(f)
    return called(*args), called(*changed(lambda x: x / 4, args))


def _scanned(f: Callable[..., Any], args: Args, changed: Changed) -> Any:
    def step(given: Any, _: Any) -> Any:
        return changed(lambda x: x / 2, given), f(*given)

    return lax.scan(step, args, None, length=2)[1]


def _branch(f: Callable[..., Any], args: Args, changed: Changed) -> Any:
    leaves = [x for x in jax.tree.leaves(args) if jnp.issubdtype(jnp.result_type(x), jnp.number)]
    predicate = jnp.sum(leaves[0]).real > 0 if leaves else True
    return lax.cond(predicate, lambda: f(*args), lambda: f(*changed(lambda x: -x, args)))


def _reversed(f: Callable[..., Any], args: Args, changed: Changed) -> Any:
    """Arguments in another order too, where they are alike."""
    alike = len({(x.shape, x.dtype) if hasattr(x, "shape") else id(x) for x in args}) == 1
    return f(*args), f(*args[::-1]) if alike else ()


PLACES: tuple[Callable[[Callable[..., Any], Args, Changed], Any], ...] = (
    lambda f, args, changed: f(*args),
    _twice,
    _scanned,
    _branch,
    _reversed,
)
