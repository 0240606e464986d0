"""Programs are taken apart and put together: variables, literals, effects, and parameters that hold programs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax._src import core, literals
from jax._src.interpreters import partial_eval as pe
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params
from jax.extend.core.primitives import add_jaxvals_p


def new_var(aval: Any) -> Var:
    """A fresh variable."""
    return core.Var(aval)


def add_cotangents(x: Any, y: Any) -> Any:
    """The sum of two cotangents of one value, as JAX's reverse mode writes it."""
    return add_jaxvals_p.bind(x, y)


def literal(value: Any, aval: Any) -> Literal:
    """A literal that keeps its type also where x64 is off: a NumPy scalar of 64 bits would count as one of 32 there."""
    return Literal(literals.TypedNdArray(np.asarray(value, aval.dtype), aval), aval)


def host_array(value: Any) -> np.ndarray | None:
    """A constant that NumPy made, with its memory as it is; None of what JAX made."""
    value = value.val if isinstance(value, literals.TypedNdArray) else value
    return value if type(value) is np.ndarray else None


def constant(array: np.ndarray) -> Any:
    """An array of NumPy's as programs hold one."""
    return literals.TypedNdArray(array, core.shaped_abstractify(array))


def new_jaxpr(like: Jaxpr, invars: Any, outvars: Any, eqns: Any, constvars: Any = ()) -> Jaxpr:
    """A jaxpr with the argument and result names of `like` where their numbers still fit."""
    debug = like.debug_info
    if not (_fits(debug.arg_names, invars, like.invars) and _fits(debug.result_paths, outvars, like.outvars)):
        debug = debug.with_unknown_names()
    is_high = any(map(_is_high, eqns))
    new = core.Jaxpr(constvars, invars, outvars, eqns, join_effects(eqns), debug, is_high)
    # Since jax 0.11 a jaxpr is closed, and constvars without values are its first arguments.
    return new.with_consts(like.consts[: len(constvars)]) if constvars and ClosedJaxpr is Jaxpr else new


def _fits(names: Sequence[str] | None, new: Any, old: Any) -> bool:
    """Whether there is a name for each; a program that closes over values may have more arguments than names."""
    return len(new) == len(old) and (names is None or len(names) == len(new))


def result_name(jaxpr: Jaxpr, place: int) -> str:
    """What a result is called, as "result[0]['bias']"; its number where nothing is known."""
    paths = jaxpr.debug_info.result_paths
    return (paths[place] if paths is not None and place < len(paths) else "") or f"result {place}"


# What stands everywhere, and has no program among its parameters.
_SIMPLE = frozenset(
    "abs add add_any and broadcast_in_dim concatenate convert_element_type cos div dot_general dynamic_slice eq exp "
    "gather ge gt integer_pow iota le log logistic lt max min mul ne neg not or pad pow reduce_max reduce_min "
    "reduce_sum reshape rsqrt select_n sign sin slice sqrt squeeze stop_gradient sub tanh transpose".split()
)


def is_simple(primitive: Any) -> bool:
    """Whether a primitive of JAX's never holds a program, nor is left to lower: told without a look at parameters."""
    return primitive.name in _SIMPLE and "is_high" not in primitive.__dict__ and type(primitive) is core.Primitive


def _is_high(eqn: JaxprEqn) -> bool:
    if is_simple(eqn.primitive):
        return False
    return eqn.primitive.is_high(*(x.aval for x in eqn.invars), **eqn.params)


def holds_high_types(jaxpr: Jaxpr) -> bool:
    """Whether values of a program, or of one inside it, are of types that JAX has still to lower.

    An equation alone may be left to lower too: since jax 0.11 that is `jnp.searchsorted`, `nonzero`, `custom_root`.
    Such a one is written out (`high.py`), or like any that is unknown.
    """
    if not jaxpr.is_high:
        return False
    atoms = (*jaxpr.invars, *jaxpr.constvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars))
    inner = (jaxprs_in_params(eqn.params) for eqn in jaxpr.eqns)
    return any(x.aval.is_high for x in atoms) or any(holds_high_types(each) for found in inner for each in found)


def drop_dead(jaxpr: Jaxpr) -> Jaxpr:
    """JAX's own dead-code elimination; arguments stay."""
    return pe.dce_jaxpr(jaxpr, True, True)[0]


def convert_constvars(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr that takes its constants as its first arguments, for params that hold open jaxprs (remat2)."""
    return pe.convert_constvars_jaxpr(jaxpr)


def has_effects(eqn: JaxprEqn) -> bool:
    """JAX's own test for "must not be dropped" (reads of refs and axis names are droppable)."""
    return pe.has_effects(eqn)


def rename_effects(effects: Any, env: dict[Any, Any]) -> Any:
    """Effects on refs name variables; rename them with the variables."""
    if not effects:
        return effects
    return {
        e.replace(env.get(e.input, e.input)) if isinstance(e, core.effects.JaxprInputEffect) else e for e in effects
    }


def join_effects(eqns: Sequence[JaxprEqn]) -> Any:
    """The effects of a jaxpr from its equations' ones."""
    return core.join_effects(*(eqn.effects for eqn in eqns)) if any(eqn.effects for eqn in eqns) else core.no_effects


def same_effects(a: Jaxpr, b: Jaxpr) -> bool:
    """Whether two jaxprs have the same effects on the arguments in the same places."""
    return a.effects == b.effects == core.no_effects or core.positional_effects(a) == core.positional_effects(b)


def scan_counts(params: Any) -> tuple[int, int]:
    """How many of a `scan`'s arguments are constants and how many carries; its first results are as many carries.

    jax 0.10.2 has the two numbers as parameters; since 0.11 the groups of arguments and of results are trees.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def scan_params(params: Any, body: ClosedJaxpr, consts: int, carries: int) -> dict[str, Any]:
    """The parameters of a `scan` with another body: of constants, carries, inputs -> carries, outputs."""
    if "num_consts" in params:
        return {**params, "jaxpr": body, "num_consts": consts, "num_carry": carries}
    from jax._src import flattree  # not in jax 0.10.2

    inputs, outputs = len(body.in_avals) - consts - carries, len(body.out_avals) - carries
    ft_in, ft_out = (
        flattree.pack(tuple(map(flattree.nones, n))) for n in ((consts, carries, inputs), (carries, outputs))
    )
    return {**params, "jaxpr": body, "ft_in": ft_in, "ft_out": ft_out}


def is_kept_for_xla(eqn: JaxprEqn) -> bool:
    """Whether a `jit` asks that XLA sees its call: `inline=Inline.XLA_LATE`, say, which jax 0.10.2 does not have."""
    return getattr(eqn.params["inline"], "name", "").startswith("XLA_")
