"""Dynamic loss scaling: gradients that float16 can hold."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, field


def _number(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


def _checked(period: int) -> int:
    if period < 1:
        raise UsageError(argument="period", got=period, wanted="one or more", function="LossScale")
    return period


class LossScale(Module):
    """A factor that the loss is multiplied with, so that gradients in float16 do not vanish.

    It doubles after `period` steps with finite gradients, and halves when a gradient is not finite. It is never below
    1 nor above 2^24. Give it to an `Optimizer`, which divides by it and skips the steps that are not finite.

    Attributes:
        scale: the factor.
        period: how many finite steps it takes to double.
        steps: how many there were since the factor changed.

    Raises:
        UsageError: `period` is less than one.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> scale = ag.LossScale(1024.0, period=2)
    >>> [float((scale := scale.adjusted(is_finite)).scale) for is_finite in (True, True, True, False)]
    [1024.0, 2048.0, 2048.0, 1024.0]
    """

    scale: Any = field(default=2.0**15, converter=_number)
    period: int = field(default=2000, converter=_checked)
    steps: Any = field(default=0, converter=lambda steps: jnp.asarray(steps, jnp.int32))

    def adjusted(self, is_finite: Any) -> "LossScale":
        """The next one, after a step whose gradients were finite or not."""
        is_due = self.steps + 1 >= self.period
        grown = jnp.where(is_due, jnp.minimum(2 * self.scale, 2.0**24), self.scale)
        scale = jnp.where(is_finite, grown, jnp.maximum(self.scale / 2, 1.0))
        return LossScale(scale, self.period, jnp.where(is_finite & ~is_due, self.steps + 1, 0))
