"""What a rule writes at a site, as equations of the level."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from ... import _jax
from ..._jax import Atom, Jaxpr
from ..program import Builder
from .errors import RuleError
from .on import PrimitiveRule
from .place import place_of
from .rule import Rule

LARGEST_CONSTANT = 64  # elements of an array that `after` may close over


def fitted(builder: Builder, out: Atom, aval: Any) -> Atom:
    """A value of a type that gives way to others where one was, or none where none was."""
    if _jax.same_type(out.aval, aval):
        return out
    weak = bool(getattr(aval, "weak_type", False))
    return builder.call(lambda x: _jax.convert_element_type(x, aval.dtype, weak), out)[0]


def inlined(
    builder: Builder, rule: Rule | PrimitiveRule, jaxpr: Jaxpr, consts: Sequence[Any], atoms: Sequence[Atom]
) -> list[Atom]:
    """Results of a program at `atoms`, with the small arrays that it closes over written out.

    Raises:
        RuleError: one is large, or no array of numbers.
    """
    spelt = [_constant(builder, rule, v.aval, value) for v, value in zip(jaxpr.constvars, consts, strict=True)]
    whole = _jax.convert_constvars(jaxpr) if spelt else jaxpr
    return builder.inline(whole, [*spelt, *atoms], like=builder.like)


def _constant(builder: Builder, rule: Rule | PrimitiveRule, aval: Any, value: Any) -> Atom:
    if aval.size > LARGEST_CONSTANT or not isinstance(aval.dtype, np.dtype):
        raise RuleError(
            rule=rule.name,
            what="closes over an array in `after`.",
            where=rule.line if isinstance(rule, PrimitiveRule) else place_of(rule.after or rule.before),
            got=aval.str_short(True),
            wanted=f"at most {LARGEST_CONSTANT} elements",
            to_fix="make it inside of `after`, from jnp.arange or jnp.eye say, or take it as an argument",
        )
    return builder.call(partial(_spelt, np.asarray(value)))[0]


def _spelt(value: np.ndarray) -> Any:
    parts = [lax.full((1,), one, value.dtype) for one in value.reshape(-1)]
    flat = lax.concatenate(parts, 0) if parts else lax.full((0,), 0, value.dtype)
    return lax.reshape(flat, value.shape)
