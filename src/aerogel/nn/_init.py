"""How layers draw their first parameters."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Required, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from aerogel._errors import UsageError

Initializer: TypeAlias = Callable[..., jax.Array]  # of a key, a shape and a dtype: jax.nn.initializers


class Options(TypedDict, total=False):
    """The arguments of layers that concern how parameters are drawn."""

    dtype: Any
    init: Initializer | None
    bias_init: Initializer | None
    key: Required[jax.Array]


def default_dtype(dtype: Any) -> Any:
    """A dtype; for None the floating-point one that JAX takes by default, 64 bits wide where x64 is on."""
    return jnp.result_type(float) if dtype is None else jnp.dtype(dtype)


def axes_of(sizes: int | Sequence[int]) -> tuple[int, ...]:
    """Sizes of several axes, where one may be given as a number."""
    return tuple(map(operator.index, sizes if isinstance(sizes, Sequence) else (sizes,)))


def uniform(fan_in: int) -> Initializer:
    """Uniform in ±1 / sqrt(fan_in), which is PyTorch's and Equinox's default for weights and biases."""
    bound = 1 / math.sqrt(max(fan_in, 1))

    def init(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
        if not jnp.issubdtype(dtype, jnp.complexfloating):
            return jax.random.uniform(key, shape, dtype, -bound, bound)
        real = jnp.finfo(dtype).dtype
        parts = (jax.random.uniform(k, shape, real, -bound, bound) for k in jax.random.split(key))
        return jax.lax.complex(*parts)

    return init


def drawn(
    init: Initializer | None, key: jax.Array, shape: Sequence[int], dtype: Any, *, fan_in: int, features: int = 0
) -> jax.Array:
    """A parameter of a shape that begins with `features` axes: [out, in, *kernel] for 2 of them.

    JAX's initializers count what comes in and goes out along the last two axes, [*kernel, in, out]. So that `init` may
    be one of these, it is asked for that shape, and the axes are moved.
    """
    if not all(isinstance(size, int | np.integer) and size >= 0 for size in shape):
        raise UsageError(
            argument="shape", got=tuple(shape), wanted="sizes of a layer that are whole numbers, 0 or more"
        )
    if init is None:
        return uniform(fan_in)(key, shape, dtype)
    if features < 2:
        return _made(init, key, tuple(shape), dtype)
    asked = (*shape[features:], *reversed(shape[:features]))
    back = (*reversed(range(len(shape) - features, len(shape))), *range(len(shape) - features))
    return jnp.transpose(_made(init, key, asked, dtype), back)


def _made(init: Initializer, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if not callable(init):
        wanted = "a function of a key, a shape and a dtype: jax.nn.initializers.he_normal()"
        raise UsageError(argument="init", got=init, wanted=wanted)
    made = jnp.asarray(init(key, shape, dtype), dtype)
    if made.shape != shape:
        raise UsageError(
            argument="init", got=made, wanted=f"a function that returns the shape it is asked for, {shape}"
        )
    return made
