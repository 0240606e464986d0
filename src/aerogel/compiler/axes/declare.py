"""`declare`: what users say about primitives of their own."""

from collections.abc import Callable, Sequence
from typing import Any

from ..._jax import JaxprEqn, Primitive
from .accumulate import exactly
from .answer import No, Reduced
from .elementwise import ELEMENTWISE
from .entry import Entry, not_backwards
from .labels import Axes, Labels, labelled
from .linear import declare_linear
from .monoid import Monoid, single
from .rebind import shape_of
from .table import AlongFunction, AlongOutputFunction, register


def declare(
    primitive: Primitive,
    *,
    elementwise: bool = False,
    reduces: str | None = None,
    monoid: Monoid | tuple[Callable[[Any, Any], Any], Any] | None = None,
    linear_in: Sequence[int] = (),
    along: AlongFunction | None = None,
    along_output: AlongOutputFunction | None = None,
) -> None:
    """Tell the compiler what a primitive is along the axes of its inputs; later declarations replace earlier ones.

    Say one of three things (a primitive about which none is said stays unknown), and `linear_in` if it holds:

    Args:
        primitive: a primitive whose params hold no sizes of its inputs, except with `along`.
        elementwise: it works entry by entry on inputs of equal shape (or rank 0).
        reduces: the name of the param with the dimensions (a sequence of ints, or one int) that it reduces over; all
            inputs have the same shape, and outputs have the other dimensions.
        monoid: with `reduces`: how outputs of two parts of a reduced dimension combine: one of `MONOIDS`, a `Monoid`,
            or, for a primitive of one result, (combine, identity), where `combine(a, b)` takes arrays in any order and
            grouping, and `identity` is a number, or a function of the dtype that returns one. Without it, an axis can
            only be one of the other dimensions.
        linear_in: positions of the inputs in each of which it is linear while the others are fixed.
        along: `along(eqn, ins, length) -> Mapped | Reduced | No`, for all other cases.
        along_output: the same from the outputs; only with `along`, and optional.

    Raises:
        ValueError: more than one thing was said, or an option without the one it belongs to.

    >>> from jax import lax, numpy as jnp
    >>> from jax.extend.core import Primitive
    >>> declare(Primitive("sum_of_powers"), reduces="axes", monoid=(jnp.logaddexp, -jnp.inf))
    """
    if sum([elementwise, reduces is not None, along is not None]) > 1:
        raise ValueError(f"`declare` of `{primitive.name}`: say one of `elementwise`, `reduces` and `along`")
    if monoid is not None and reduces is None:
        raise ValueError(f"`declare` of `{primitive.name}`: `monoid` belongs to `reduces`")
    if along_output is not None and along is None:
        raise ValueError(f"`declare` of `{primitive.name}`: `along_output` belongs to `along`")
    if elementwise:
        register(primitive, ELEMENTWISE)
    elif reduces is not None:
        register(primitive, _reduction(reduces, _monoid(primitive, monoid)))
    elif along is not None:
        register(primitive, Entry(along, along_output or not_backwards))
    if linear_in:
        declare_linear(primitive, linear_in)


def _monoid(primitive: Primitive, said: Monoid | tuple[Callable[[Any, Any], Any], Any] | None) -> Monoid | None:
    """What was said as a monoid on tuples."""
    if said is None or isinstance(said, Monoid):
        return said
    if primitive.multiple_results:
        raise ValueError(f"`declare` of `{primitive.name}`: it has several results; give `monoid` as a `Monoid`")
    combine, identity = said
    value = identity if callable(identity) else lambda dtype: identity
    return single(f"the monoid of {primitive.name}", combine, value, True)


def _reduction(param: str, monoid: Monoid | None) -> Entry:
    def labels(eqn: JaxprEqn) -> Labels:
        rank, said = len(shape_of(eqn.invars[0])), eqn.params[param]
        gone = {d % rank for d in ([said] if isinstance(said, int) else said)}
        kept = tuple(d for d in range(rank) if d not in gone)
        dims = tuple(d if d not in gone or monoid is not None else None for d in range(rank))
        return Labels(tuple(dims if shape_of(v) else () for v in eqn.invars), (kept,) * len(eqn.outvars))

    def reduced(eqn: JaxprEqn, ins: Axes) -> Reduced | No:
        assert monoid is not None, "without a monoid, reduced dimensions have no label"
        return exactly(eqn, ins, monoid)

    return labelled(labels, reduced=reduced)
