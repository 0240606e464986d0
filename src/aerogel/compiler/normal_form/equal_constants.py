"""Constants that are equal, once: two `W.T` of one NumPy array are two arrays, and two constants of a trace.

What reads them is the same then, and the passes see it: `((x @ W.T) * (x @ W.T)).sum()` is a sum of squares.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np

from ... import _jax
from ..._jax import ClosedJaxpr, Var
from ..program import Program, rename, substitute

# Host arrays of up to so many bytes are compared; beyond, two are equal if they are the same memory.
COMPARED_BYTES = 1 << 20
# Two that differ do so at the start, as a rule.
START = 16


def equal_constants_once(program: Program) -> Program:
    """The program with each of its constants once; the same object if no two are equal."""
    jaxpr = program.jaxpr
    if len(program.consts) < 2:
        return program
    known: dict[Hashable, tuple[Var, Any]] = {}
    alike: dict[Hashable, list[tuple[Var, np.ndarray]]] = {}
    kept: dict[Var, Any] = {}
    same: dict[Var, Any] = {}
    for var, value in zip(jaxpr.constvars, program.consts, strict=True):
        array = _jax.host_array(value)
        key = (var.aval, id(value) if array is None else _memory(array))
        found = known[key][0] if key in known else None
        if found is None and array is not None and array.nbytes <= COMPARED_BYTES:
            others = alike.setdefault((var.aval, array.flat[:START].tobytes()), [])
            found = next((v for v, other in others if other.tobytes() == array.tobytes()), None)
            others.append((var, array))
        if found is None:
            kept[var] = value
        else:
            same[var] = found
        known.setdefault(key, (found or var, array))
    if not same:
        return program
    eqns = [rename(eqn, same) for eqn in jaxpr.eqns]
    outs = [substitute(x, same) for x in jaxpr.outvars]
    return ClosedJaxpr(_jax.new_jaxpr(jaxpr, jaxpr.invars, outs, eqns, list(kept)), list(kept.values()))


def _memory(x: np.ndarray) -> Hashable:
    """Where an array lies, and how."""
    return x.__array_interface__["data"][0], x.strides, x.dtype.str
