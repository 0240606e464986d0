"""Values with rows that are all the same: what is repeated along the axis of the rows, in loops too."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var, scan_counts

from ..axes import Axis
from ..axes.rebind import shape_of
from ..level import Level
from ..program import is_var

Asked = Callable[[Var, Axis], bool]


def is_repeated(level: Level, x: Atom, axis: Axis, outside: Asked | None = None) -> bool:
    """Whether a value is the same at each index of a plain axis; `outside` tells it of what comes from there."""
    if not is_var(x) or not axis.is_plain:
        return False
    eqn = level.maker(x)
    if eqn is None:
        return outside is not None and outside(x, axis)
    if eqn.primitive.name == "scan":
        return _is_repeated_in(level, eqn, eqn.outvars.index(x), axis, outside)
    if eqn.primitive.name != "broadcast_in_dim":
        return False
    inner, dims = shape_of(eqn.invars[0]), eqn.params["broadcast_dimensions"]
    return axis.dim not in dims or inner[list(dims).index(axis.dim)] == 1


def _is_repeated_in(level: Level, eqn: JaxprEqn, k: int, axis: Axis, outside: Asked | None) -> bool:
    """Whether each step of a loop makes a repeated value, of which the result `k` is the stack."""
    body, carries = eqn.params["jaxpr"].jaxpr, scan_counts(eqn.params)[1]
    if k < carries or axis.dim == 0:
        return False
    asked = asked_outside(eqn, lambda x, axis: is_repeated(level, x, axis, outside))
    return is_repeated(Level(body), body.outvars[k], axis.moved(-1), asked)


def asked_outside(eqn: JaxprEqn, is_same: Callable[[Atom, Axis], bool]) -> Asked:
    """What `is_same` tells of a loop's operands, asked of its body's: constants and inputs of its steps."""
    consts, carries = scan_counts(eqn.params)
    at = {v: k for k, v in enumerate(eqn.params["jaxpr"].jaxpr.invars)}

    def asked(x: Var, axis: Axis) -> bool:
        k = at.get(x, consts)
        if consts <= k < consts + carries:
            return False
        return is_same(eqn.invars[k], axis if k < consts else axis.moved(1))

    return asked


def operands(
    eqn: JaxprEqn, known: Container[int], ins: Sequence[Axis | None], env: Mapping[Var, Any], size: int
) -> list[Any]:
    """The operands of an equation for `size` rows: at `known` they have rows, at other `ins` each row is the same."""
    found = values_of(eqn.invars, env)
    for k, axis in enumerate(ins):
        if axis is not None and k not in known:
            one = lax.slice_in_dim(found[k], 0, 1, axis=axis.dim)
            found[k] = lax.broadcast_in_dim(one, axis.resize(found[k].shape, size), range(found[k].ndim))
    return found


def values_of(atoms: Iterable[Atom], env: Mapping[Var, Any]) -> list[Any]:
    """What stands for atoms."""
    return [x.val if isinstance(x, Literal) else env[x] for x in atoms]
