"""Running an equation's own primitive on blocks."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..._jax import JaxprEqn, bound_like

ParamsAt = Callable[[int], dict[str, Any]]


def rebind(eqn: JaxprEqn, params_at: ParamsAt | None = None) -> Callable[..., list[Any]]:
    """`block(start, size, *inputs)` that binds the equation's primitive again, with `params_at(size)` for its params.

    The equation's source line and context (precision of the PRNG layout, metadata, compute_on) go with it.
    """

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        return bind(eqn, inputs, eqn.params if params_at is None else params_at(size))

    return block


def bind(eqn: JaxprEqn, inputs: Any, params: dict[str, Any]) -> list[Any]:
    """Outputs of the equation's primitive at other inputs and params."""
    with bound_like(eqn):
        out = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(params))
    return list(out) if eqn.primitive.multiple_results else [out]


@lru_cache
def _name(dtype: Any) -> str:
    return getattr(dtype, "name", "")


def dtype_name(atom: Any) -> str:
    """The name of the type of an equation's input or output; "" for values that have none."""
    return _name(getattr(atom.aval, "dtype", None))


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of an equation's input or output; () for values that have none."""
    return getattr(atom.aval, "shape", ())
