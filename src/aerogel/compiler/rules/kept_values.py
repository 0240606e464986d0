"""What the derivative of a rule's pattern keeps, as a pattern of its own.

Where nothing reads the value of a formula but its derivative is taken, the last operations of the formula are nowhere.
What is there is what the derivative reads.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from ... import _jax
from ..._jax import ClosedJaxpr
from ..differentiated import Mode, differentiated
from ..program import depends_on, is_var
from .rule import Rule
from .traces import Pattern, arrays_of, as_pattern

MOST = 3  # results or arguments of which one alone is looked at


def kept_values(rule: Rule) -> Rule:
    """A rule that finds what the derivatives of another's pattern keep. Remembered."""
    known = rule.kept.get("kept values")
    if known is not None:
        return known
    modes = modes_of(rule)
    some: list[tuple[Mode, int | None, int | None]] = [(mode, None, None) for mode in modes]
    some += [(Mode.REVERSE, k, None) for k in range(MOST)] + [(mode, None, k) for mode in modes for k in range(MOST)]
    spelt = [_kept(before, *part) for before in rule.spellings for part in some]
    found = Rule(rule.name, spelt[0], rule.exactness, rule.reason, shapes=rule.shapes)
    found.spellings += spelt[1:]
    return rule.kept.put("kept values", found)


def modes_of(rule: Rule) -> tuple[Mode, ...]:
    """How what a rule writes can be differentiated."""
    only_reverse = rule.derivative is not None and rule.derivative.jvp is None
    return (Mode.REVERSE,) if only_reverse else (Mode.REVERSE, Mode.FORWARD)


def _kept(before: Callable[..., Any], mode: Mode, out: int | None, moved: int | None) -> Callable[..., Any]:
    """The values that the derivative of a function keeps, as a function; `__wrapped__` is what it is made of.

    Of all results that it has or of one, by all arguments that have derivatives or by one.
    """

    @functools.wraps(before)
    def kept(*arrays: Any, **parameters: Any) -> Any:
        inputs = [k for k, x in enumerate(arrays) if hasattr(x, "aval")]
        smooth = [k for k in inputs if jnp.issubdtype(arrays[k].dtype, jnp.inexact)]
        by = smooth if moved is None else [smooth[moved]]
        order = [*by, *(k for k in inputs if k not in by)]

        def flat(*given: Any) -> list[Any]:
            full = list(arrays)
            for k, x in zip(order, given, strict=True):
                full[k] = x
            results = arrays_of(before(*full, **parameters))
            return list(results) if out is None else [results[out]]

        names = _jax.argument_names(flat, (), {}, ()).with_unknown_names()
        pattern = as_pattern(_jax.trace_flat(flat, names, [arrays[k].aval for k in order]), tuple(order))
        return values_kept(pattern, len(by), mode)(*(arrays[k] for k in order))

    return kept


def values_kept(pattern: Pattern, count: int, mode: Mode) -> Callable[..., Sequence[Any]]:
    """What the derivative of a program by its first `count` arguments keeps, as a function of its arguments.

    Raises:
        ValueError: nothing.
    """
    jaxpr = pattern.jaxpr
    plain = ClosedJaxpr(_jax.new_jaxpr(jaxpr, jaxpr.invars, jaxpr.outvars, jaxpr.eqns), ())
    new = differentiated(plain, count, mode)
    program, late = new.program.jaxpr, depends_on(new.program.jaxpr, new.given)
    forward = [eqn for eqn in program.eqns if late.isdisjoint(eqn.outvars)]
    read = {x for eqn in program.eqns if not late.isdisjoint(eqn.outvars) for x in eqn.invars if is_var(x)}
    given = {v for v, x in zip(program.invars, new.inputs, strict=False) if x in jaxpr.invars or x in pattern.consts}
    needed = [v for v in (*program.invars, *(v for eqn in forward for v in eqn.outvars)) if v in read - given - late]
    if not needed:
        raise ValueError("its derivative keeps nothing")
    consts = [pattern.consts[v] for v in jaxpr.constvars]
    before = ClosedJaxpr(_jax.new_jaxpr(jaxpr, jaxpr.invars, new.inputs, jaxpr.eqns, jaxpr.constvars), consts)
    kept = ClosedJaxpr(_jax.new_jaxpr(program, program.invars[: len(new.inputs)], needed, forward), ())
    return lambda *arrays: tuple(_jax.jaxpr_as_fun(kept)(*_jax.jaxpr_as_fun(before)(*arrays)))
