"""Low-rank changes of weights, and weights of few bits: two adapters."""

import math
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from aerogel._errors import UsageError
from aerogel.module import at, field

from ._adapter import AbstractAdapter, Parameter, value_of
from ._layer_norm import widened

T = TypeVar("T")


class LoRA(AbstractAdapter):
    """A weight plus a trained matrix of low rank: `base + scale * b @ a` (Hu et al. 2021), at first the weight itself.

    Put it where the weight is: `ag.at(model).head.weight.apply(lambda w: nn.LoRA(w, 8, key=key))`. The base is a
    constant for every gradient, and `ag.trainable` leaves it out. `merged` adds both up again.

    Attributes:
        base: the weight, [out, ...]: an array, or another adapter such as `Quantized`.
        a: [rank, product of the other axes], drawn as the weight of a linear layer.
        b: [out, rank], zeros.

    Args:
        base: a weight with two axes or more.
        rank: of the change.
        scale: of the change.
        key: for `a`.

    Raises:
        UsageError: the weight has less than two axes, or is no array but its layer; `rank` is no number from 1 on.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.Linear(6, 4, key=jax.random.key(0))
    >>> tuned = ag.at(layer).weight.apply(lambda w: ag.nn.LoRA(w, 2, key=jax.random.key(1)))
    >>> bool((tuned(jnp.ones(6)) == layer(jnp.ones(6))).all())
    True
    >>> ag.count_params(ag.partition(tuned, ag.trainable)[0])
    24
    """

    _constant_fields: ClassVar = ("base",)

    base: Parameter
    a: jax.Array = field(axes=("rank", "in"))
    b: jax.Array = field(axes=("out", "rank"))
    scale: float

    def __init__(self, base: Any, rank: int, scale: float = 1.0, *, key: jax.Array) -> None:
        if getattr(base, "ndim", 0) < 2:
            raise UsageError(
                argument="base",
                got=base,
                wanted="a weight with two axes or more, the array and not its layer",
                function="LoRA",
                to_fix="put it where the weight is: ag.at(model).head.weight.apply(lambda w: nn.LoRA(w, 8, key=key))",
            )
        if not isinstance(rank, int | np.integer) or rank < 1:
            raise UsageError(argument="rank", got=rank, wanted="a whole number, 1 or more", function="LoRA")
        columns = math.prod(base.shape[1:])
        bound = 1 / math.sqrt(max(columns, 1))
        self.base = base
        self.a = jax.random.uniform(key, (rank, columns), base.dtype, -bound, bound)
        self.b = jnp.zeros((base.shape[0], rank), base.dtype)
        self.scale = scale

    def get(self) -> jax.Array:
        """The weight with the change."""
        base = value_of(self.base)
        return base + (self.scale * self.b @ self.a).reshape(base.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        return self.base.shape

    @property
    def dtype(self) -> Any:
        """Of the weight."""
        return self.base.dtype

    @property
    def ndim(self) -> int:
        """Of the weight."""
        return self.base.ndim


class Quantized(AbstractAdapter):
    """A weight in 8 bits, with a scale for each row: `values * scales`, the nearest to the weight that there is.

    It is a constant for every gradient.

    Attributes:
        values: [out, ...] in the narrow dtype.
        scales: [out, 1, ...] in the weight's dtype.

    Args:
        weight: an array.
        dtype: `jnp.int8`, or a narrow floating-point one: `jnp.float8_e4m3fn`.

    Raises:
        UsageError: `dtype` is neither a signed integer nor a floating-point one; the weight is no array, but its layer.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.Linear(64, 4, key=jax.random.key(0))
    >>> small = ag.at(layer).weight.apply(ag.nn.Quantized)
    >>> bool(abs(small.weight.get() - layer.weight).max() <= layer.weight.max() / 127)
    True
    """

    _constant_fields: ClassVar = ("values", "scales")

    values: jax.Array
    scales: jax.Array = field(axes=("out", ...))

    def __init__(self, weight: Any, dtype: Any = jnp.int8) -> None:
        is_integer = jnp.issubdtype(dtype, jnp.signedinteger)
        if not is_integer and not jnp.issubdtype(dtype, jnp.floating):
            wanted = "a signed integer or a floating-point dtype: jnp.int8, jnp.float8_e4m3fn"
            raise UsageError(argument="dtype", got=dtype, wanted=wanted, function="Quantized")
        if not hasattr(weight, "ndim"):
            raise UsageError(
                argument="weight",
                got=weight,
                wanted="an array, the weight and not its layer",
                function="Quantized",
                to_fix="put it where the weight is: ag.at(model).head.weight.apply(nn.Quantized)",
            )
        weight = value_of(weight)
        wide = widened(weight)
        largest = jnp.iinfo(dtype).max if is_integer else float(jnp.finfo(dtype).max)
        top = jnp.max(jnp.abs(wide), axis=range(1, weight.ndim), keepdims=True, initial=0)
        self.scales = _rounded_up(jnp.where(top > 0, top, 1) / largest, weight.dtype)
        scaled = wide / self.scales.astype(wide.dtype)
        self.values = (jnp.round(scaled) if is_integer else scaled).astype(dtype)

    def get(self) -> jax.Array:
        """The weight, as near as it is kept."""
        return self.values.astype(self.scales.dtype) * self.scales

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        return self.values.shape

    @property
    def dtype(self) -> Any:
        """Of the weight."""
        return self.scales.dtype

    @property
    def ndim(self) -> int:
        """Of the weight."""
        return self.values.ndim


def _rounded_up(x: jax.Array, dtype: Any) -> jax.Array:
    """Not below `x`, so that nothing that is divided by it leaves the range; in float16 it may be tiny, but not 0."""
    near = x.astype(dtype)
    return jnp.where(near.astype(x.dtype) < x, jnp.nextafter(near, jnp.asarray(jnp.inf, dtype)), near)


def merged(model: T) -> T:
    """The model with an array in the place of each adapter: what layers computed with.

    >>> import jax, aerogel as ag
    >>> layer = ag.nn.Linear(6, 4, key=jax.random.key(0))
    >>> ag.nn.merged(ag.at(layer).weight.apply(ag.nn.Quantized))
    Linear(weight=f32[4,6], bias=f32[4], in_features=6, out_features=4)
    """
    return at(model, AbstractAdapter).apply(value_of)
