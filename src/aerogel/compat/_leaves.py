"""What Equinox takes for data: arrays, and no numbers of Python's, which stay what they are everywhere.

That is narrower than what JAX, and so Aerogel, takes for data. Here numbers are hidden as all else that is no array is.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from aerogel import _jax
from aerogel.module._methods import with_methods
from aerogel.transform._static import Static, reveal

_jax.exclude_from_tracebacks(__file__)


def is_array(element: Any) -> bool:
    """Whether it is an array of JAX's or NumPy's, or one that is being traced."""
    return isinstance(element, jax.Array | np.ndarray | np.generic)


def is_array_like(element: Any) -> bool:
    """Whether it is an array, a number of Python's, or can become an array."""
    return is_array(element) or isinstance(element, bool | int | float | complex) or hasattr(element, "__jax_array__")


def is_inexact_array(element: Any) -> bool:
    """Whether it is an array of real or complex floating-point numbers."""
    return is_array(element) and jax.dtypes.issubdtype(element.dtype, np.inexact)


def is_inexact_array_like(element: Any) -> bool:
    """Whether it is such an array, or a float or complex number of Python's."""
    if hasattr(element, "__jax_array__"):
        element = element.__jax_array__()
    return is_inexact_array(element) or isinstance(element, float | complex)


def is_shaped(element: Any) -> bool:
    """Whether it is an array, or stands for one."""
    return is_array(element) or isinstance(element, jax.ShapeDtypeStruct)


def held(tree: Any) -> Any:
    """The tree with all that is no array hidden from JAX; the tree itself where there is nothing to hide."""
    if all(map(is_shaped, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(lambda leaf: leaf if is_shaped(leaf) else Static(leaf), with_methods(tree))


def holding(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` on arguments that are held; its result is held too."""
    _jax.check_callable(f)

    @_jax.like(f)
    def on_held(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = reveal((args, kwargs))
        return held(f(*args, **kwargs))

    return on_held


def without_held(tree: Any) -> Any:
    """A tree of tangents, with None for what had none."""
    return jax.tree.map(lambda x: None if type(x) is Static else x, tree, is_leaf=lambda x: type(x) is Static)
