"""Small functions of the compiler as programs, each traced once for the types at which it is used.

Passes make new equations by tracing functions like `lambda x: lax.transpose(x, order)`, for thousands of sites and a
few different `order`s. Tracing takes JAX a quarter of a millisecond; so what a function closes over is looked at, and
where that is plain data, the program of last time is taken.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, JaxprEqn

from .kept import Kept

_known = Kept[ClosedJaxpr](1024)


def traced(fun: Callable[..., Any], avals: Sequence[Any], like: JaxprEqn) -> ClosedJaxpr:
    """The program of `fun` (it returns an array or a flat sequence) at `avals`, in the context of `like`."""

    def flat(*args: Any) -> Sequence[Any]:
        out = fun(*args)
        return out if isinstance(out, (list, tuple)) else [out]

    with _jax.equation_context(like):
        said = plain_key(fun)
        if said is None:
            return _jax.trace_small(flat, avals)
        key = (said, tuple(avals), like.ctx, _jax.trace_key())
        found = _known.get(key)
        return _known.put(key, _jax.trace_small(flat, avals)) if found is None else found


def plain_key(x: Any) -> Hashable | None:
    """A key that two values share only if no function can tell them apart; None if the value is not plain data.

    Plain are numbers, strings, types, our own and JAX's functions that close over plain data, and tuples, lists and
    frozen dataclasses of it. The key of a value holds its type: 0, 0.0 and False are equal.
    """
    kind = type(x)
    if kind in _ATOMS:
        return (kind, x)
    if kind is float:
        return (kind, x.hex())  # 0.0 == -0.0
    if kind in (tuple, list):
        return _keys(kind, x)
    if kind is FunctionType:
        # Of others it is not known that the globals that they read stay as they are.
        if not x.__module__.startswith(_OWN):
            return None
        cells = [cell.cell_contents for cell in x.__closure__ or ()]
        said = [x.__module__, x.__qualname__, *cells, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
        return _keys(x.__code__, said)
    if kind is partial:
        return _keys(kind, [x.func, *x.args, *x.keywords, *x.keywords.values()])
    if isinstance(x, (type, np.dtype, _jax.ShapedArray)):
        return (kind, x)
    if isinstance(x, np.generic):
        return (kind, x.tobytes())
    if is_dataclass(x) and (kind.__dataclass_params__.frozen or kind.__hash__ not in (None, object.__hash__)):
        return _keys(kind, [getattr(x, f.name) for f in fields(x)])
    return None


_ATOMS = frozenset((int, bool, str, bytes, type(None)))
_OWN = ("aerogel.", "jax.", "numpy.")


def _keys(kind: Hashable, values: Sequence[Any]) -> Hashable | None:
    found = []
    for value in values:
        key = plain_key(value)
        if key is None:
            return None
        found.append(key)
    return (kind, *found)
