"""An operation that does nothing: it says something about its argument."""

from typing import Any

from jax._src import core
from jax._src.interpreters import ad, batching, mlir
from jax.extend.core import Primitive


def marker_primitive(name: str) -> Primitive:
    """An operation that returns its argument, and does no more: `p.bind(x, **params)` says something about `x`.

    Derivatives pass it by; of a batch it is said in front of the batched dimension. XLA never sees it.
    """
    marker = core.Primitive(name)

    def batched(args: Any, dims: Any, **params: Any) -> Any:
        return marker.bind(batching.moveaxis(args[0], dims[0], 0), **params), 0

    marker.def_impl(lambda x, **params: x)
    marker.def_abstract_eval(lambda x, **params: x)
    ad.primitive_jvps[marker] = lambda primals, tangents, **params: (marker.bind(*primals, **params), tangents[0])
    batching.primitive_batchers[marker] = batched
    mlir.register_lowering(marker, lambda ctx, x, **params: [x])
    return marker
