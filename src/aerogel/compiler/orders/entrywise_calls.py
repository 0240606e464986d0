"""Functions with a forward derivative rule of their own (`relu`, `silu`, ...) that work entry by entry.

On values stored in another order they are the same function of other shapes: it holds nothing but entrywise
equations and scalars that are broadcast. So does its rule, or else the rule is applied to transposed values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from ..program import is_var
from .aligned import ELEMENTWISE
from .orders import Order, natural, permute, step


def is_entrywise_call(eqn: JaxprEqn) -> bool:
    """Whether the call can be done in any order of dimensions."""
    p = eqn.params
    if eqn.primitive.name != "custom_jvp_call" or p["num_consts"] or p["symbolic_zeros"]:
        return False
    return _entrywise(p["call_jaxpr"], len(getattr(eqn.outvars[0].aval, "shape", ())))


def _entrywise(program: ClosedJaxpr, rank: int) -> bool:
    jaxpr = program.jaxpr
    values = [*jaxpr.invars, *jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    if program.consts or any(len(getattr(v.aval, "shape", ())) not in (0, rank) for v in values):
        return False
    return all(_entrywise_equation(eqn, rank) for eqn in jaxpr.eqns)


def _entrywise_equation(eqn: JaxprEqn, rank: int) -> bool:
    name = eqn.primitive.name
    if eqn.effects or eqn.params.get("sharding") is not None:
        return False
    if name == "jit":
        return _entrywise(eqn.params["jaxpr"], rank)
    if name == "custom_jvp_call":
        return is_entrywise_call(eqn)
    if name == "broadcast_in_dim":
        return not eqn.invars[0].aval.shape
    return name in ELEMENTWISE


def reordered_call(eqn: JaxprEqn, order: Order) -> Callable[..., Sequence[Any]]:
    """The call as a function of operands stored in `order`; its results are too."""

    def function(*xs: Any) -> tuple[Any, ...]:
        return tuple(_evaluate(eqn.params["call_jaxpr"].jaxpr, order, xs))

    function.__name__ = eqn.params["call_jaxpr"].jaxpr.debug_info.func_name
    call = jax.custom_jvp(function)

    @call.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        found = _jax.forward_rule(eqn)
        assert found is not None, "the rule was there when the call was looked at"
        program, moving, still = found
        inputs = (*primals, *(tangents[k] for k in moving))
        if _entrywise(program, len(order)):  # that of a function under `vmap` has transposes in it
            results = _evaluate(program.jaxpr, order, inputs)
        else:
            back = step(order, natural(len(order)))
            results = _jax.evaluate(program, [_turned(x, back) for x in inputs])
            results = [_turned(x, order) for x in results]
        rest = iter(results[len(still) :])
        outs = results[: len(still)]
        return tuple(outs), tuple(_zero(x) if zero else next(rest) for x, zero in zip(outs, still, strict=True))

    return call


def _evaluate(jaxpr: Jaxpr, order: Order, args: Sequence[Any]) -> list[Any]:
    env: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))

    def read(x: Any) -> Any:
        if is_var(x):
            return env[x]
        assert isinstance(x, Literal)
        return _jax.convert_element_type(x.val, x.aval.dtype, x.aval.weak_type)

    for eqn in jaxpr.eqns:
        ins, name, params = [read(x) for x in eqn.invars], eqn.primitive.name, eqn.params
        if name == "jit":
            outs = _evaluate(params["jaxpr"].jaxpr, order, ins)
        elif name == "custom_jvp_call":
            outs = list(reordered_call(eqn, order)(*ins))
        else:
            if name == "broadcast_in_dim" and params["shape"]:
                params = {**params, "shape": permute(params["shape"], order)}
            found = eqn.primitive.bind(*ins, **params)
            outs = list(found) if eqn.primitive.multiple_results else [found]
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _turned(x: Any, permutation: Order) -> Any:
    return jnp.transpose(x, permutation) if jnp.ndim(x) else x


def _zero(value: Any) -> Any:
    inexact = jnp.issubdtype(value.dtype, jnp.inexact)
    return jnp.zeros(value.shape, value.dtype) if inexact else np.zeros(value.shape, jax.dtypes.float0)
