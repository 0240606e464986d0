"""`EarlyStopping`: whether a quantity has stopped to improve."""

from typing import Any, Literal, TypeAlias

import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, field

Goal: TypeAlias = Literal["min", "max"]


def _number(value: Any) -> Any:
    return jnp.asarray(value, jnp.float32)


def _checked_patience(patience: int) -> int:
    if patience < 1:
        raise UsageError(argument="patience", got=patience, wanted="one or more", function="EarlyStopping")
    return patience


def _checked_goal(goal: Goal) -> Goal:
    if goal not in ("min", "max"):
        raise UsageError(argument="goal", got=goal, wanted=["min", "max"], function="EarlyStopping")
    return goal


class EarlyStopping(Module):
    """A watch over a quantity that should improve, such as the loss on held-out data.

    An array inside, so that it works under `jit` and belongs into the state that is saved.

    Attributes:
        patience: how many values in a row may be no improvement before it says to stop.
        least: how much better a value must be to count.
        goal: "min" or "max".
        best: the best value so far.
        stale: how many values came since.

    Raises:
        UsageError: `patience` is less than one, or `goal` another word.

    >>> import aerogel as ag
    >>> watch = ag.EarlyStopping(patience=2)
    >>> for loss in (3.0, 2.0, 2.5, float("nan")):
    ...     watch = watch.update(loss)
    >>> float(watch.best), bool(watch.has_improved), bool(watch.should_stop)
    (2.0, False, True)
    """

    patience: int = field(default=10, converter=_checked_patience)
    least: float = 0.0
    goal: Goal = field(default="min", converter=_checked_goal)
    best: Any = field(default=float("nan"), converter=_number)
    stale: Any = field(default=0, converter=lambda n: jnp.asarray(n, jnp.int32))

    def update(self, value: Any) -> "EarlyStopping":
        """The watch after one more value. NaN is no improvement.

        Raises:
            UsageError: it is not one number.
        """
        value = _number(value)
        if value.shape:
            raise UsageError(
                argument="value",
                got=f"an array of shape {value.shape}",
                wanted="one number",
                function="EarlyStopping.update",
                to_fix="results of `ag.loop` are stacked: losses.mean()",
            )
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
