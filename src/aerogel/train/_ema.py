"""`EMA`: a moving average of a model's parameters."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import combine, partition, trainable

from ._gradient import wide

M = TypeVar("M")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EMA:
    """An exponential moving average of the parameters of a model, which often does better than the model itself.

    It begins with the parameters that `init` is given, and is kept in float32 at least: in bfloat16, what one step
    adds would be rounded away.

    Attributes:
        decay: how much of the average stays at each step.
        average: the average; None before `init`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ema = ag.EMA(0.75).init({"w": jnp.zeros(2), "steps": 3})
    >>> ema = ema.update({"w": jnp.ones(2), "steps": 4})
    >>> ema.model({"w": jnp.ones(2), "steps": 4})
    {'steps': 4, 'w': Array([0.25, 0.25], dtype=float32)}
    """

    decay: float = field(default=0.999, metadata={"static": True})
    average: Any = None

    def init(self, model: Any) -> "EMA":
        """An average that begins with the parameters of `model`, in memory of its own.

        Raises:
            UsageError: `decay` is not from 0 to 1.
        """
        if not 0 <= self.decay <= 1:
            raise UsageError(argument="decay", got=self.decay, wanted="a number from 0 to 1", function="EMA")
        return replace(self, average=jax.tree.map(lambda p: jnp.array(wide(p)), partition(model, trainable)[0]))

    def update(self, model: Any) -> "EMA":
        """The average after one more step, which led to `model`.

        Raises:
            UsageError: `init` was not called, or for a model in which other arrays are trained.
        """
        params = self._params(model)
        return replace(self, average=jax.tree.map(lambda a, p: a + (1 - self.decay) * (p - a), self.average, params))

    def model(self, model: M) -> M:
        """The model with averages for parameters, in their dtypes; all else is that of `model`."""
        params = self._params(model)
        return combine(jax.tree.map(lambda a, p: a.astype(p.dtype), self.average, params), model)

    def _params(self, model: Any) -> Any:
        params = partition(model, trainable)[0]
        if jax.tree.structure(params) != jax.tree.structure(self.average):
            raise UsageError(
                argument="model",
                got=model,
                wanted="the model for which `init` was called, with the same arrays trained",
                function="EMA",
                to_fix="ema = ema.init(model), once, before the first step; also after freezing and unfreezing",
            )
        return params
