"""`EarlyStopping`: whether a quantity has stopped to improve."""

from typing import Any, Literal

import jax.numpy as jnp

from aerogel.module import Module, field


def _number(value: Any) -> Any:
    return jnp.asarray(value, jnp.float32)


class EarlyStopping(Module):
    """A watch over a quantity that should improve, such as the loss on held-out data.

    An array inside, so that it works under `jit` and belongs into the state that is saved.

    Attributes:
        patience: how many values in a row may be no improvement before it says to stop.
        least: how much better a value must be to count.
        goal: "min" or "max".
        best: the best value so far.
        stale: how many values came since.

    >>> import aerogel as ag
    >>> watch = ag.EarlyStopping(patience=2)
    >>> for loss in (3.0, 2.0, 2.5, float("nan")):
    ...     watch = watch.update(loss)
    >>> float(watch.best), bool(watch.has_improved), bool(watch.should_stop)
    (2.0, False, True)
    """

    patience: int = 10
    least: float = 0.0
    goal: Literal["min", "max"] = "min"
    best: Any = field(default=float("nan"), converter=_number)
    stale: Any = field(default=0, converter=lambda n: jnp.asarray(n, jnp.int32))

    def update(self, value: Any) -> "EarlyStopping":
        """The watch after one more value. NaN is no improvement."""
        value = _number(value)
        gain = self.best - value if self.goal == "min" else value - self.best
        is_better = (gain > self.least) | (jnp.isnan(self.best) & ~jnp.isnan(value))
        best, stale = jnp.where(is_better, value, self.best), jnp.where(is_better, 0, self.stale + 1)
        return EarlyStopping(self.patience, self.least, self.goal, best, stale)

    @property
    def has_improved(self) -> Any:
        """Whether the last value is the best."""
        return (self.stale == 0) & ~jnp.isnan(self.best)

    @property
    def should_stop(self) -> Any:
        """Whether `patience` values in a row were no improvement."""
        return self.stale >= self.patience
