"""Arguments at which a rule is tried: random ones, and those at which rewrites go wrong."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel.compiler.rules.traces import MOST_EXAMPLES, SIZE, dtype_of, ranks_tried

from .draws import normal
from .rule_facts import Facts, conforming, may_be

DRAWS = 3


@dataclass(frozen=True)
class Probe:
    """Arguments, and what is special about them."""

    what: str
    args: tuple[Any, ...]


def draws(args: tuple[Any, ...], facts: Facts, seed: int) -> list[Probe]:
    """Random numbers of the arguments' types, of which the facts hold; the first are the arguments themselves."""
    rng = np.random.default_rng(seed)
    found = [Probe("", args)]
    for scale in (1.0, 1e-2, 1e2)[:DRAWS]:
        drawn = jax.tree.map(lambda x, s=scale: normal(rng, jnp.shape(x), jnp.result_type(x), s), args)
        found.append(Probe(f", normal numbers times {scale:g}", conforming(drawn, facts)))
    return found


def probes_of(args: tuple[Any, ...], facts: Facts, seed: int) -> list[Probe]:
    """Random numbers, and those at which rewrites go wrong, in each argument in one entry and in all."""
    found = draws(args, facts, seed)
    leaves, tree = jax.tree.flatten(args)
    most = max((jnp.size(x) for x in leaves), default=1)
    for k, x in enumerate(leaves):
        for name, value in _special(jnp.result_type(x), most).items():
            if not may_be(value, facts[k]):
                continue
            whole = jnp.full(jnp.shape(x), value, jnp.result_type(x))
            some = (
                [whole] if not jnp.ndim(x) or not jnp.size(x) else [whole, jnp.asarray(x).reshape(-1).at[-1].set(value)]
            )
            for one in some:
                new = [*leaves[:k], one.reshape(jnp.shape(x)), *leaves[k + 1 :]]
                said = "all" if one is whole else "the last entry"
                found.append(Probe(f", {said} of argument {k} {name}", jax.tree.unflatten(tree, new)))
    return found


def _special(dtype: Any, most: int) -> dict[str, Any]:
    """The numbers at which rewrites go wrong; the largest is such that the type holds sums of `most` of them.

    What only moves the place at which a sum overflows is no other result.
    """
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return {}
    if dtype == np.bool_:
        return {"True": True, "False": False}
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return {"0": 0, "1": 1, str(info.max): info.max, str(info.min): info.min}
    info = jnp.finfo(dtype)
    large = float(info.max) / 4 / (1 << most.bit_length())
    values = [
        0.0,
        -0.0,
        float(info.smallest_subnormal),
        1e-8,
        1.0,
        large,
        np.inf,
        -np.inf,
        np.nan,
    ]
    return {f"{v:g}": v for v in values}


def example_arguments(f: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Small arrays of several ranks, of floats or of what an argument is annotated with."""
    required = [p for p in inspect.signature(f).parameters.values() if p.default is p.empty]
    dtypes = [dtype_of(p.annotation) or np.dtype(np.float32) for p in required]
    rng = np.random.default_rng(0)
    for ranks in itertools.islice(ranks_tried(len(required)), MOST_EXAMPLES):
        shapes = ((SIZE,) * rank if isinstance(d, np.dtype) else () for rank, d in zip(ranks, dtypes, strict=True))
        yield tuple(normal(rng, shape, d, 1.0) for shape, d in zip(shapes, dtypes, strict=True))
