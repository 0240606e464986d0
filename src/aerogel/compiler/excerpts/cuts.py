"""Cuts and paddings of several dimensions, `c[3, 5:9]`, as one after the other.

What is cut off in one dimension need not be made (`excerpts.py`), and then what is left of it in the next one; what is
zero around a part in one dimension need not be multiplied (`paddings.py`), and then what is around it in the next one.
"""

from collections.abc import Callable
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn

from ..known.picks import is_zeros
from ..level import Level
from ..program import Builder, is_var, with_equations

# One dimension of an equation, done to what the others have left.
Step = Callable[[Builder, JaxprEqn, Atom, int], Atom]


def cut_apart(jaxpr: Jaxpr) -> Jaxpr:
    """One level with each `slice` and `dynamic_slice` cutting one dimension; the same object if they all do."""
    return _with(jaxpr, [_cuts(eqn) for eqn in jaxpr.eqns])


def padded_apart(jaxpr: Jaxpr) -> Jaxpr:
    """One level where a part of an array of zeros is put there dimension by dimension."""
    level = Level(jaxpr)
    return _with(jaxpr, [_paddings(level, eqn) for eqn in jaxpr.eqns])


def _with(jaxpr: Jaxpr, made: list[list[JaxprEqn]]) -> Jaxpr:
    eqns = [eqn for some in made for eqn in some]
    return jaxpr if len(eqns) == len(jaxpr.eqns) else with_equations(jaxpr, eqns, jaxpr.outvars)


def _cuts(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The cut that leaves least comes first, those with strides last."""
    if eqn.primitive.name not in ("slice", "dynamic_slice") or not is_var(eqn.invars[0]):
        return [eqn]
    shape, strides = eqn.invars[0].aval.shape, eqn.params.get("strides")
    sizes = eqn.outvars[0].aval.shape

    def rank(d: int) -> tuple[bool, float]:
        return strides is not None and strides[d] != 1, sizes[d] / shape[d]

    step = _sliced if eqn.primitive.name == "slice" else _dynamically_sliced
    return _one_by_one(eqn, eqn.invars[0], rank, step)


def _paddings(level: Level, eqn: JaxprEqn) -> list[JaxprEqn]:
    """The padding that adds most comes last, those between the entries first."""
    name, between = eqn.primitive.name, set[int]()
    if name == "pad" and not any(min(one) < 0 for one in eqn.params["padding_config"]):
        between = {d for d, one in enumerate(eqn.params["padding_config"]) if one[2]}
        part, step = eqn.invars[0], _padded
    elif name == "dynamic_update_slice" and is_zeros(level, eqn.invars[0]):
        part, step = eqn.invars[1], _put
    else:
        return [eqn]
    sizes, shape = part.aval.shape, eqn.outvars[0].aval.shape
    return _one_by_one(eqn, part, lambda d: (d not in between, shape[d] / max(sizes[d], 1)), step)


def _one_by_one(eqn: JaxprEqn, x: Atom, rank: Callable[[int], Any], step: Step) -> list[JaxprEqn]:
    (out,) = eqn.outvars
    dims = [d for d, (n, m) in enumerate(zip(x.aval.shape, out.aval.shape, strict=True)) if n != m]
    if len(dims) < 2 or not is_var(x) or not x.aval.size or not out.aval.size:
        return [eqn]
    builder = Builder(eqn)
    for d in sorted(dims, key=rank):
        x = step(builder, eqn, x, d)
    *others, last = builder.eqns
    return [*others, last.replace(outvars=[out])] if x.aval == out.aval else [eqn]


def _sliced(builder: Builder, eqn: JaxprEqn, x: Atom, d: int) -> Atom:
    p = eqn.params
    stride = 1 if p["strides"] is None else p["strides"][d]
    return builder.call(lambda x: lax.slice_in_dim(x, p["start_indices"][d], p["limit_indices"][d], stride, axis=d), x)[
        0
    ]


def _dynamically_sliced(builder: Builder, eqn: JaxprEqn, x: Atom, d: int) -> Atom:
    sizes = tuple(eqn.params["slice_sizes"][d] if k == d else n for k, n in enumerate(x.aval.shape))
    return builder.call(lambda x, at: lax.dynamic_slice(x, _starts(at, d, x.ndim), sizes), x, eqn.invars[1 + d])[0]


def _padded(builder: Builder, eqn: JaxprEqn, x: Atom, d: int) -> Atom:
    sides = [one if k == d else (0, 0, 0) for k, one in enumerate(eqn.params["padding_config"])]
    return builder.call(lambda x, value: lax.pad(x, value, sides), x, eqn.invars[1])[0]


def _put(builder: Builder, eqn: JaxprEqn, x: Atom, d: int) -> Atom:
    wide = tuple(eqn.outvars[0].aval.shape[k] if k == d else n for k, n in enumerate(x.aval.shape))

    def put(x: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(lax.full(wide, 0, x.dtype), x, _starts(at, d, x.ndim))

    return builder.call(put, x, eqn.invars[2 + d])[0]


def _starts(at: Any, d: int, rank: int) -> list[Any]:
    zero = _jax.convert_element_type(0, at.dtype, False)
    return [at if k == d else zero for k in range(rank)]
