"""What a program takes for granted of its arguments, and arguments of which it is so."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel.compiler.known.words import words_of
from aerogel.compiler.normalize import normalize
from aerogel.compiler.rules.knowledge import Knowledge

_jax.exclude_from_tracebacks(__file__)

Facts = tuple[frozenset[str], ...]
_OF_VALUES: dict[str, Callable[[float], Any]] = {
    "finite": np.isfinite,
    "non_negative": lambda value: value >= 0,
    "positive": lambda value: value > 0,
}


def assumed(f: Callable[..., Any], args: tuple[Any, ...]) -> Facts:
    """What `f` says by `ag.assume` of each array in its arguments."""
    program, _ = normalize(_jax.original_jit(f).trace(*args).jaxpr)
    knowledge = Knowledge(program)
    shapes = [tuple(v.aval.shape) for v in program.jaxpr.invars]
    found = (knowledge.of(v) for v in program.jaxpr.invars)
    return tuple(words_of(known, range(len(shape)), shape) for known, shape in zip(found, shapes, strict=True))


def conforming(args: Any, facts: Facts) -> Any:
    """Arguments made of the given ones, of which the facts hold."""
    leaves, tree = jax.tree.flatten(args)
    return jax.tree.unflatten(tree, [_conforming(x, said) for x, said in zip(leaves, facts, strict=True)])


def may_be(value: float, facts: frozenset[str]) -> bool:
    """Whether an entry of an array of which the facts hold may be set to a value; never, if they relate entries."""
    return all(fact in _OF_VALUES and _OF_VALUES[fact](value) for fact in facts)


def _conforming(x: Any, facts: frozenset[str]) -> Any:
    if facts <= {"finite"}:
        return x
    a = np.asarray(x, np.float64)
    if "zero" in facts or "ones" in facts:
        a = np.full(a.shape, float("ones" in facts))
    elif "positive" in facts:
        a = np.abs(a) + (a == 0)
    elif "non_negative" in facts:
        a = np.abs(a)
    if a.ndim >= 2:
        a = _matrices(a, facts)
    return jnp.asarray(np.sort(a) if "sorted" in facts else a, jnp.result_type(x))


def _matrices(a: np.ndarray, facts: frozenset[str]) -> np.ndarray:
    """Matrices of the kind that the facts say, of entries of the size of the given ones."""
    unit, turned = np.eye(*a.shape[-2:]), np.swapaxes(a, -1, -2)
    if "identity" in facts:
        return np.broadcast_to(unit, a.shape)
    if "orthogonal" in facts:
        return np.linalg.qr(a + unit)[0]
    if "spd" in facts:
        size = np.sqrt(np.mean(np.square(a))) or 1.0
        a = a @ turned / (size * a.shape[-1]) + size * unit
    elif "symmetric" in facts:
        a = (a + turned) / 2
    if "lower_triangular" in facts:
        a = np.tril(a)
    return np.triu(a) if "upper_triangular" in facts else a
