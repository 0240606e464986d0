"""Arrays that a program holds and that have a pattern are made by it, of counters: passes then see what they are.

`np.eye(n) @ a` is `a`, whether the identity is made inside of the function or outside. What no pass has taken for
another form is put back behind them, so that a program never computes what it held.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ... import _jax
from ..._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..program import Builder, Program, is_var, rename, substitute
from ..record import record
from .array_patterns import FEWEST_COUNTED, MOST, Pattern, pattern_of
from .closed_over import without_closures
from .computed import Computed

# Written out, one number is as good as an array of it; but a library's operand is an array.
LIBRARY = frozenset("dot_general conv_general_dilated".split())


@record
class Held:
    """A constant that is written out.

    Attributes:
        var: its variable, which the program has no more.
        value: as the program held it.
        array: the same for NumPy.
        is_filled: all its entries are one number.
    """

    var: Var
    value: Any
    array: np.ndarray
    is_filled: bool


def with_constants_written(program: Program) -> tuple[Program, list[Held]]:
    """A program that makes those of its constants that have a pattern, and these; itself and none if none has."""
    program = without_closures(program)
    jaxpr = program.jaxpr
    constants: dict[Var, Any] = {}
    held: list[Held] = []
    made: list[JaxprEqn] = []
    env: dict[Var, Any] = {}
    for var, value in zip(jaxpr.constvars, program.consts, strict=True):
        array = _readable(value) if FEWEST_COUNTED <= getattr(var.aval, "size", 0) <= MOST else None
        reader = None if array is None else next((eqn for eqn in jaxpr.eqns if var in eqn.invars), None)
        pattern = None if array is None or reader is None else pattern_of(array)
        made_of = None if pattern is None or reader is None else _made(pattern, var, reader)
        if made_of is None or pattern is None or array is None:
            constants[var] = value
            continue
        eqns, env[var], parts = made_of
        made += eqns
        constants.update(parts)
        held.append(Held(var, value, array, pattern.is_filled))
    if not held:
        return program, []
    eqns = [*made, *(rename(eqn, env) for eqn in jaxpr.eqns)]
    outs = [substitute(x, env) for x in jaxpr.outvars]
    return _closed(jaxpr, eqns, outs, constants), held


def _readable(value: Any) -> np.ndarray | None:
    """The entries of a constant that lies in this process's memory."""
    host = _jax.host_array(value)
    if host is not None or not _jax.is_known_array(value) or not isinstance(value.dtype, np.dtype):
        return host
    devices = value.devices() if hasattr(value, "devices") else ()
    return np.asarray(value) if all(d.platform == "cpu" for d in devices) and len(devices) == 1 else None


def _made(pattern: Pattern, var: Var, reader: JaxprEqn) -> tuple[list[JaxprEqn], Any, dict[Var, Any]] | None:
    """Equations that make a constant, its new atom, and the smaller constants that it is made of."""
    builder = Builder(reader)
    parts = {_jax.new_var(_jax.shaped_abstractify(part)): part for part in pattern.parts}
    (out,) = builder.call(pattern.make, *parts)
    if not is_var(out) or out.aval != var.aval:
        return None
    return builder.eqns, out, {v: _jax.constant(part) for v, part in parts.items()}


def with_constants_back(program: Program, held: list[Held]) -> Program:
    """A program with the constants again that it still makes; itself if it makes none."""
    jaxpr = program.jaxpr
    values: Mapping[Var, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    computed = Computed(jaxpr, values)
    at_library = {x for eqn in jaxpr.eqns if eqn.primitive.name in LIBRARY for x in eqn.invars if is_var(x)}
    by_type: dict[Any, list[Held]] = {}
    for one in held:
        by_type.setdefault(one.var.aval, []).append(one)
    env: dict[Var, Any] = {}
    for eqn in jaxpr.eqns:
        for v in eqn.outvars:
            candidates = [one for one in by_type.get(v.aval, ()) if not one.is_filled or v in at_library]
            found = computed.value(v) if candidates else None
            same = None if found is None else next((one for one in candidates if _equal(one.array, found)), None)
            if same is not None:
                env[v] = same.var
    read = {x for eqn in jaxpr.eqns for x in eqn.invars if is_var(x)} | {x for x in jaxpr.outvars if is_var(x)}
    back = {one.var: one.value for one in held if one.var in env.values()}
    constants = {v: x for v, x in values.items() if v in read} | back
    if not env and len(constants) == len(values):
        return program
    eqns = [rename(eqn, env) for eqn in jaxpr.eqns]
    outs = [substitute(x, env) for x in jaxpr.outvars]
    new = _closed(jaxpr, eqns, outs, constants)
    return _with_constants_read(rewrite_levels(new, drop_dead))


def _closed(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], outs: Sequence[Atom], constants: Mapping[Var, Any]) -> Program:
    """A program like `jaxpr` with other equations, results and constants."""
    new = _jax.new_jaxpr(jaxpr, jaxpr.invars, outs, eqns, list(constants))
    return ClosedJaxpr(new, list(constants.values()))


def _with_constants_read(program: Program) -> Program:
    """A program without the constants that nobody reads."""
    jaxpr = program.jaxpr
    constants = dict(zip(jaxpr.constvars, program.consts, strict=True))
    read = {x for eqn in jaxpr.eqns for x in eqn.invars if is_var(x)} | {x for x in jaxpr.outvars if is_var(x)}
    kept = {v: x for v, x in constants.items() if v in read}
    return program if len(kept) == len(constants) else _closed(jaxpr, jaxpr.eqns, jaxpr.outvars, kept)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
