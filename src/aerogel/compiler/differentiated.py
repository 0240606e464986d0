"""Derivatives of small programs, as JAX writes them."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Var

from .kept import Kept
from .normalize import normalize
from .program import depends_on, is_var
from .record import record
from .same import Body

_known = Kept[ClosedJaxpr](128)  # layers are alike


class Mode(StrEnum):
    """How a function is differentiated: cotangents are taken back, or tangents along."""

    REVERSE = "reverse"
    FORWARD = "forward"


@record
class Differentiated:
    """The derivative of a function by its first `count` inputs.

    Attributes:
        program: a program of `inputs`, and of the cotangents of its results or the tangents of these inputs.
    """

    program: ClosedJaxpr
    inputs: list[Var]
    count: int

    @property
    def given(self) -> Sequence[Var]:
        """The cotangents or tangents that the program takes."""
        return self.program.jaxpr.invars[len(self.inputs) :]


def differentiated(
    plain: ClosedJaxpr, count: int, mode: Mode = Mode.REVERSE, of_ones: bool = False, many: int = 0
) -> Differentiated:
    """The derivative of what a function makes of its first `count` arguments, as JAX writes it.

    What it makes without them, masks say, comes from outside: JAX would compute that at once.

    Args:
        of_ones: whether the cotangents or tangents are ones, as that of a loss is: nothing multiplies by them.
        many: how many of them there are, on a leading axis, as for a Jacobian; 0 for one without an axis.
    """
    jaxpr = plain.jaxpr
    moved = depends_on(jaxpr, jaxpr.invars[:count])
    inside = [eqn for eqn in jaxpr.eqns if any(v in moved for v in eqn.outvars)]
    read = [x for eqn in inside for x in eqn.invars if is_var(x) and x not in moved]
    inputs = [*jaxpr.invars[:count], *dict.fromkeys(read)]
    function = ClosedJaxpr(_jax.new_jaxpr(jaxpr, inputs, jaxpr.outvars, inside), ())
    like = inside[-1]
    key = (Body(function), count, mode, of_ones, many, like.ctx, _jax.trace_key())
    program = _known.get(key)
    if program is None:
        with _jax.equation_context(like):
            program = _known.put(key, _derivative(function, count, mode, of_ones, many))
    return Differentiated(program, inputs, count)


def _derivative(function: ClosedJaxpr, count: int, mode: Mode, of_ones: bool, many: int) -> ClosedJaxpr:
    run, inputs = _jax.jaxpr_as_fun(function), len(function.in_avals)
    avals = function.out_avals if mode is Mode.REVERSE else function.in_avals[:count]

    def new(*all_given: Any) -> Sequence[Any]:
        args, given = all_given[:inputs], all_given[inputs:]

        def of_some(*some: Any) -> tuple[Any, ...]:
            return tuple(run(*some, *args[count:]))

        if mode is Mode.FORWARD:
            return jax.jvp(of_some, args[:count], given)[1]
        return jax.vjp(of_some, *args[:count])[1](given)

    if of_ones:
        return _normal(lambda *args: new(*args, *(jnp.ones(x.shape, x.dtype) for x in avals)), function.in_avals)
    if many:
        new = jax.vmap(new, in_axes=(*([None] * inputs), *([0] * len(avals))))
        avals = [_jax.ShapedArray((many, *x.shape), x.dtype) for x in avals]
    return _normal(new, [*function.in_avals, *avals])


def _normal(function: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> ClosedJaxpr:
    return normalize(_jax.trace_small(function, avals))[0]
