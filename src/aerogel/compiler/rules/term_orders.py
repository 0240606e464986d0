"""Products summed over several axes, which are named in the order in which they are stored."""

from collections.abc import Sequence
from typing import Any

from jax import lax

from .on import on
from .site import Site


@on(
    "dot_general",
    stage="before",
    platforms=("cpu",),
    exactness="reassociates",
    reason="XLA's CPU backend would copy both operands, so that the axes which are summed over lie as they are named",
)
def terms_as_stored(a: Any, b: Any, *, site: Site, dimension_numbers: Any, **params: Any) -> Any:
    """The product, summed over the same axes in the order of the larger operand.

    `jnp.einsum` names them by their letters: of "bthd,hdo->bto" first d, then h. XLA (jaxlib 0.10.2) takes them in that
    order, and copies what lies in another. Numbers of 16 bits are copied anyway, to have 32.
    """
    (ca, cb), batch = dimension_numbers
    long = [k for k, axis in enumerate(ca) if a.shape[axis] > 1]
    ordered = [_is_sorted([axes[k] for k in long]) for axes in (ca, cb)]
    of_larger = a.size < b.size
    if len(long) < 2:
        return "it is summed over one axis"
    if ordered[of_larger]:
        return "the axes are named in the order in which the larger operand is stored"
    if a.dtype.itemsize < 4 or b.dtype.itemsize < 4:
        return f"{a.dtype.name} numbers are copied to be converted"
    if max(a.ndim - len(ca), b.ndim - len(cb)) == len(batch[0]):
        return "it is a sum of products: XLA reads them as they are stored"
    if params.get("out_sharding") is not None or site.over_devices:
        return "its values may be spread over devices"
    order = sorted(range(len(ca)), key=lambda k: (ca, cb)[of_larger][k])
    contracted = tuple(ca[k] for k in order), tuple(cb[k] for k in order)
    return lax.dot_general(a, b, (contracted, batch), **params)


def _is_sorted(axes: Sequence[int]) -> bool:
    return list(axes) == sorted(axes)
