"""How layers draw their first parameters."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Required, TypeAlias, TypedDict

import jax
import jax.numpy as jnp

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
    if init is None:
        return uniform(fan_in)(key, shape, dtype)
    if features < 2:
        return jnp.asarray(init(key, tuple(shape), dtype), dtype)
    asked = (*shape[features:], *reversed(shape[:features]))
    back = (*reversed(range(len(shape) - features, len(shape))), *range(len(shape) - features))
    return jnp.transpose(jnp.asarray(init(key, asked, dtype), dtype), back)
