"""The rules of custom derivatives as programs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import config as jax_config
from jax._src import core, dtypes
from jax._src.interpreters import ad
from jax.extend.core import ClosedJaxpr, JaxprEqn

from .trace import trace_flat

# What a user's function raises that is called with types which it was not made for.
FAULTS_OF_A_RULE = (ArithmeticError, AssertionError, LookupError, NotImplementedError, TypeError, ValueError)


def with_backward_rule(run: Callable[..., Any], forward: Any, backward: Any) -> Callable[..., Any]:
    """`run` as a `jax.custom_vjp` whose rules are told what is zero by type.

    It is of the older kind: that of `jax_custom_vjp3` has no such zeros in forward mode (jax 0.10.2, 0.12.0.1).
    """

    def call(*args: Any) -> Any:
        with jax_config.custom_vjp3(False):
            rule = jax.custom_vjp(run)
            rule.defvjp(forward, backward, symbolic_zeros=True)
            return rule(*args)

    return call


def forward_rule(eqn: JaxprEqn) -> tuple[ClosedJaxpr, list[int], list[bool]] | None:
    """The rule of a `custom_jvp_call` as a program of primals and of the tangents that are not zero by type.

    Returns the program, the positions of the inputs whose tangents it takes, and for each output whether its tangent
    is zero (and not among the results). None when the rule closes over values, distinguishes symbolic zeros, or cannot
    be traced: nobody may ever have asked for it (the rule of `det` fails for matrices of size 0).
    """
    if eqn.params["num_consts"] or eqn.params["symbolic_zeros"]:
        return None
    zeros = [x.aval.to_tangent_aval().dtype == jax.dtypes.float0 for x in eqn.invars]
    try:
        jaxpr, consts, still = eqn.params["jvp_jaxpr_fun"].call_wrapped(*zeros)
    except FAULTS_OF_A_RULE:
        return None
    return ClosedJaxpr(jaxpr, consts), [k for k, zero in enumerate(zeros) if not zero], list(still)


@dataclass(frozen=True)
class BackwardRule:
    """The rules of a `custom_vjp_call` as programs.

    Attributes:
        forward: primals -> `made` residuals, then the results.
        backward: all residuals, cotangents of the results -> cotangents of the inputs, those that are `zero` left out.
        made: how many residuals `forward` makes; the others are inputs.
        forwarded: for each residual, the input that it is, or None.
        zero: for each input, whether its cotangent is zero whatever happens.
    """

    forward: ClosedJaxpr
    backward: ClosedJaxpr
    made: int
    forwarded: list[int | None]
    zero: list[bool]


def backward_rule(eqn: JaxprEqn) -> BackwardRule | None:
    """The rules of a `custom_vjp_call`; None when they close over values or distinguish symbolic zeros."""
    p = eqn.params
    smooth = all(dtypes.issubdtype(v.aval.dtype, np.inexact) for v in eqn.outvars)
    if p["num_consts"] or p["symbolic_zeros"] or not smooth:
        return None
    try:
        forward, consts = p["fwd_jaxpr_thunk"].call_wrapped(*[True] * len(eqn.invars))
    except ad.CustomVJPException:  # the function closes over an array, which is one of the inputs here
        return None
    _, residuals, forwarded = p["out_trees"]()
    made = residuals.num_leaves - sum(k is not None for k in forwarded)
    made_avals = iter([v.aval for v in forward.outvars[:made]])
    kept = [next(made_avals) if k is None else eqn.invars[k].aval for k in forwarded]
    zero: list[bool] = []
    logs: list[Any] = []

    def run(*args: Any) -> list[Any]:
        found = p["bwd"].call_wrapped(*args)
        if len(found) == 2 and isinstance(found[0], list):  # since jax 0.11 with what the rule logs, or None
            found, logs[:] = found[0], [found[1]]
        zero[:] = [isinstance(x, ad.Zero) for x in found]
        return [x for x in found if not isinstance(x, ad.Zero)]

    avals = [*kept, *(v.aval.to_ct_aval() for v in eqn.outvars)]
    names = tuple(f"x{i}" for i in range(len(avals)))
    info = core.DebugInfo("custom_vjp bwd", p["bwd"].debug_info.func_src_info, names, None)
    backward = trace_flat(run, info, avals)
    if consts or backward.consts or any(entry is not None for entry in logs):
        return None
    return BackwardRule(ClosedJaxpr(forward, consts), backward, made, list(forwarded), zero)
