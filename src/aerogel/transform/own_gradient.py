"""The gradient of an optimised function, where it is taken from outside: optimised too.

What JAX differentiates after us it differentiates by its own means: a loop stores what JAX chooses, and no pass sees
the way back. So reverse mode gets another way through the program: that of the function and its gradient, which the
passes have seen as a whole, in two halves.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel._jax import ClosedJaxpr
from aerogel.compiler.program import Program
from aerogel.compiler.residuals.halves import Halves, halves

from ._static import Static
from .better import Better, has_other_values
from .improver import Improver
from .steps import is_smooth
from .way_back import filled, only

_jax.exclude_from_tracebacks(__file__)


def evaluate(program: Program, args: Sequence[Any], improve: Improver) -> list[Any]:
    """The results of a program that is made better as a whole, with its gradient if one is taken."""
    if not _jax.reverse_mode_is_next() or has_other_values(program):
        return improve.differentiable(program).evaluate(args)
    opened = ClosedJaxpr(_jax.convert_constvars(program.jaxpr), ())  # constants may be tracers
    run = lambda *values: _jax.evaluate(opened, values)  # noqa: E731
    anew = lambda program: _with_gradient(program, improve)  # noqa: E731
    return _jax.with_reverse(run, anew(opened), *program.consts, *args, anew=anew, better=improve)


def _with_gradient(program: ClosedJaxpr, improve: Improver) -> Callable[..., list[Any]]:
    """The function of flat arrays that a program is, for reverse mode to go through."""
    found: dict[tuple[bool, ...], tuple[Better, Halves] | None] = {}

    def halves_for(moved: tuple[bool, ...]) -> tuple[Better, Halves] | None:
        if moved not in found:
            found[moved] = _halves(program, moved, improve)
        return found[moved]

    def run(*args: Any) -> list[Any]:
        return _jax.evaluate(program, args)

    def forward(*given: Any) -> Any:
        moved = tuple(x.perturbed and is_smooth(x.value) for x in given)
        known, values = halves_for(moved), [x.value for x in given]
        assert known is not None, "it was asked for before"
        whole, parts = known
        outs = whole.evaluate_part(parts.first, values)
        to = len(program.out_avals)
        return outs[:to], (values, outs[to:], Static(moved))

    def backward(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        values, kept, moved = residuals
        known = halves_for(moved.value)
        assert known is not None, "it was asked for before"
        whole, parts = known
        cts = [ct for ct, aval in zip(cotangents, program.out_avals, strict=True) if is_smooth(aval)]
        given = [not isinstance(ct, jax.custom_derivatives.SymbolicZero) for ct in cts]
        second = parts.second if all(given) else _second_of(parts.second, given)
        some = map(jnp.asarray, only(cts, given))  # a user may have given a number
        found = iter(whole.evaluate_part(second, [*values, *kept, *some]))
        return tuple(next(found) if yes else None for yes in moved.value)

    rule = _jax.with_backward_rule(run, forward, backward)

    def differentiated(*args: Any) -> list[Any]:
        moved = tuple(_jax.is_moved(x) and is_smooth(x) for x in args)
        if halves_for(moved) is None:
            return improve.differentiable(program).evaluate(args)
        return rule(*args)

    return differentiated


def _halves(program: ClosedJaxpr, moved: tuple[bool, ...], improve: Improver) -> tuple[Better, Halves] | None:
    """The gradient by the arguments that are moved, whole and in halves; None where it cannot be divided."""
    outs = [aval for aval in program.out_avals if is_smooth(aval)]
    first = improve.first(program)

    def both(*args: Any) -> list[Any]:
        values, given = args[: len(moved)], iter(args[len(moved) :])

        def of_moved(*some: Any) -> list[Any]:
            return _jax.evaluate(first.after, filled(values, moved, some))

        results, back = jax.vjp(of_moved, *only(values, moved))
        cts = [next(given) if is_smooth(x) else np.zeros(x.shape, jax.dtypes.float0) for x in results]
        return [*results, *back(cts)]

    with _jax.inside_optimize(True):
        joint = _jax.traced(both, [*program.in_avals, *(aval.to_ct_aval() for aval in outs)])
    if joint.jaxpr.effects:  # which half they belong to is not known
        return None
    named = _jax.without_derivative_scopes(joint)
    whole = improve.gradient(named, first.decisions)
    parts = halves(whole.program, len(outs), len(program.out_avals))
    return None if parts is None else (whole, parts)


def _second_of(second: ClosedJaxpr, given: Sequence[bool]) -> ClosedJaxpr:
    """The second half for those cotangents that are given; nothing is computed of the others, which are zero.

    It is linear in them, so it is its own derivative, and derivatives know by type what is zero.
    """
    avals, first = second.in_avals, len(second.in_avals) - len(given)

    def of_given(*args: Any) -> list[Any]:
        def of_some(*some: Any) -> list[Any]:
            zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in avals[first:]]
            return _jax.evaluate(second, [*args[:first], *filled(zeros, given, some)])

        return jax.jvp(of_some, args[first:], args[first:])[1]

    program = _jax.traced(of_given, [*avals[:first], *only(avals[first:], given)])
    return ClosedJaxpr(_jax.drop_dead(program.jaxpr), program.consts)
