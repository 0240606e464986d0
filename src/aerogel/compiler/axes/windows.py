"""Primitives that mix neighbours along given dimensions: windows, running totals, sorting."""

from ..._jax import JaxprEqn
from .entry import Entry
from .labels import Labels, labelled
from .rebind import shape_of


def _window(eqn: JaxprEqn) -> Labels:
    params, rank = eqn.params, len(shape_of(eqn.outvars[0]))
    ones = (1,) * rank
    shapes = zip(
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params.get("base_dilation") or ones,
        params.get("window_dilation") or ones,
        strict=True,
    )
    alone = (1, 1, (0, 0), 1, 1)
    mixed = {d for d, (w, s, p, b, e) in enumerate(shapes) if (w, s, tuple(p), b, e) != alone}
    return _all_alike(eqn, mixed)


def _along_one(param: str):
    def labels(eqn: JaxprEqn) -> Labels:
        return _all_alike(eqn, {eqn.params[param] % len(shape_of(eqn.invars[0]))})

    return labels


def _all_alike(eqn: JaxprEqn, mixed: set[int]) -> Labels:
    """Inputs and outputs have the same dimensions; initial values have none."""
    dims = tuple(None if d in mixed else d for d in range(len(shape_of(eqn.outvars[0]))))
    return Labels(tuple(dims if shape_of(v) else () for v in eqn.invars), (dims,) * len(eqn.outvars))


WINDOWED = (
    "reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_scatter_add select_and_gather_add"
).split()
CUMULATIVE = "cumsum cumprod cummax cummin cumlogsumexp".split()
ENTRIES: dict[str, Entry] = {
    **dict.fromkeys(WINDOWED, labelled(_window)),
    **dict.fromkeys(CUMULATIVE, labelled(_along_one("axis"))),
    "sort": labelled(_along_one("dimension")),
    "top_k": labelled(_along_one("axis")),
    "approx_top_k": labelled(_along_one("reduction_dimension")),
}
