"""Products over time of what is known around a mean only when the loop has ended: covariances.

`sum((y - c) (z - d)^T)` over time cannot be summed up in the loop as it stands when `c` and `d` are means over time.
As with a variance, what is summed around other centers gives it, for any `c` and `d` that do not vary along the sum:

    C + n * (mean_y - c) (mean_z - d)^T    with C = sum((y - mean_y) (z - mean_z)^T)
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Reduced
from ..program import Readers, is_var
from ..record import record
from .centered import Centered, center_of, wide_of
from .moments import COVARIANCES, merged, outer


@record
class Operand:
    """An operand of the product: a stacked value, less a `center` if there is one.

    Attributes:
        terms: the dimensions of the value that the product goes over.
    """

    value: Var
    center: Atom | None
    terms: tuple[int, ...]


def centered_product(
    eqn: JaxprEqn, index: int, centered: dict[Var, Centered], stacked: dict[Var, Any], readers: Readers
) -> tuple[Reduced, Sequence[Operand], tuple[int, ...]] | None:
    """How a product over time of differences from late centers accumulates; None if `eqn` is no such product.

    Returns:
        The answer, its operands, and the places of the equations that it stands for.
    """
    if eqn.primitive.name != "dot_general":
        return None
    contracted, (batch, _) = eqn.params["dimension_numbers"]
    links = [centered.get(x) if is_var(x) else None for x in eqn.invars]
    found = [_operand(x, link, dims) for x, link, dims in zip(eqn.invars, links, contracted, strict=True)]
    if batch or not any(links) or not all(x is not None and x.value in stacked for x in found):
        return None
    operands = [x for x in found if x is not None]
    one, two = (stacked[x.value] for x in operands)
    same_steps = one.window == two.window and (one.axis.outer, one.axis.inner) == (two.axis.outer, two.axis.inner)
    times = (one.axis.dim, two.axis.dim)
    if not same_steps or times not in zip(*(x.terms for x in operands), strict=True):
        return None
    return _product(eqn, operands), operands, _own(index, [x for x in links if x], centered, readers)


def _operand(x: Atom, link: Centered | None, terms: tuple[int, ...]) -> Operand | None:
    """The operand `x`; None where it is no difference, or its center varies along the sum.

    In which order a transpose has the dimensions that are left matters, in which it has the others does not.
    """
    if link is None:
        return Operand(x, None, terms) if is_var(x) else None
    if link.form != "difference" or link.factors:
        return None
    order = link.order or tuple(range(link.value.aval.ndim))
    left = [d for k, d in enumerate(order) if k not in terms]
    terms, shape = tuple(order[k] for k in terms), link.center.aval.shape
    if left != sorted(left) or (shape and any(shape[d] != 1 for d in terms)):
        return None
    return Operand(link.value, link.center, terms)


def _own(index: int, links: Sequence[Centered], centered: dict[Var, Centered], readers: Readers) -> tuple[int, ...]:
    """The places of the equations of differences that nothing reads but the product at `index`."""
    made: dict[int, Var] = {}
    for link in links:
        one: Centered | None = link
        while one is not None:
            made[one.chain[-1]] = one.var
            one = None if one.difference is None else centered[one.difference]
    own: set[int] = set()
    for place in sorted(made, reverse=True):  # what reads a difference stands after it
        if {*readers.get(made[place], ())} <= {index, *own}:
            own.add(place)
    return tuple(sorted(own))


def _product(eqn: JaxprEqn, operands: Sequence[Operand]) -> Reduced:
    """Accumulates `(n, base, mean - base, C)`, with a base and a mean of each of two values that differ."""
    dtype = eqn.outvars[0].aval.dtype
    wide = wide_of(dtype)
    first, second = operands
    count = 1 if (first.value, first.terms) == (second.value, second.terms) else 2

    def block(start: Any, size: int, *blocks: Any) -> list[Any]:
        blocks = tuple(lax.convert_element_type(x, wide) for x in blocks)
        n = prod(blocks[0].shape[d] for d in first.terms)
        means = [_mean(x, op.terms, n) for op, x in zip(operands, blocks, strict=True)]
        if n == 1:
            products = lax.full((*means[0].shape, *means[1].shape), 0, wide)
        else:
            a, b = (_around(x, mean, op.terms) for op, x, mean in zip(operands, blocks, means, strict=True))
            numbers = ((first.terms, second.terms), ((), ()))
            products = lax.dot_general(a, b, numbers, precision=eqn.params["precision"], preferred_element_type=wide)
        parts = [part for mean in means[:count] for part in (mean, lax.full_like(mean, 0))]
        return [lax.full((), n, wide), *parts, products]

    def finish(n: Any, *parts: Any) -> list[Any]:
        means, products, centers = parts[: 2 * count], parts[2 * count], list(parts[2 * count + 1 :])
        off = []
        for op, (base, rest) in zip(operands, (means[:2], means[-2:]), strict=True):
            if op.center is not None:
                center = lax.convert_element_type(centers.pop(0), wide)
                base = base - center_of(center, op.terms, base.shape)
            off.append(base + rest)
        return [lax.convert_element_type(products + n * outer(off[0], off[1]), dtype)]

    return Reduced((None, None), merged(COVARIANCES[count], outer), block, finish)


def _mean(x: Any, axes: Sequence[int], n: int) -> Any:
    return lax.squeeze(x, axes) if n == 1 else lax.reduce_sum(x, axes) / lax.full((), n, x.dtype)


def _around(x: Any, mean: Any, axes: Sequence[int]) -> Any:
    return x - lax.broadcast_in_dim(mean, x.shape, [d for d in range(x.ndim) if d not in axes])
