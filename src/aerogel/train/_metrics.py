"""Metrics: numbers that are collected over batches, inside of `jit` and `scan` too."""

from abc import abstractmethod
from typing import Any, Self

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, field


def _number(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a + b`, and what rounding took from it (Knuth, TAOCP 2, 4.2.2); nothing is lost of what is not finite."""
    total = a + b
    of_b = total - a
    lost = (a - (total - of_b)) + (b - of_b)
    return total, jnp.where(jnp.isfinite(total), lost, 0)


class AbstractMetric(Module):
    """A quantity of many values that is found from a few numbers.

    Laws (tests/train/test_metrics.py):
    1. `a.merge(b).value()` is the value of what went into `a` followed by what went into `b`.
    2. A new metric merged with another one, on either side, is that one.
    """

    @abstractmethod
    def merge(self, other: Any) -> Self:
        """The metric of what went into this one, then into the other: of another batch, process or device."""

    @abstractmethod
    def value(self) -> jax.Array:
        """The quantity; NaN before there was anything."""


class AbstractMean(AbstractMetric):
    """A mean with weights: two sums.

    Attributes:
        total: the sum of values times weights.
        weight: the sum of weights.
        lost: what rounding took from the two, so that counting does not end at 2**24.
    """

    total: Any = field(default=0, converter=_number)
    weight: Any = field(default=0, converter=_number)
    lost: Any = field(default=(0, 0), converter=_number)

    def merge(self, other: Any) -> Self:
        sums, others = jnp.stack([self.total, self.weight]), jnp.stack([other.total, other.weight])
        sums, lost = _two_sum(sums, others)
        (total, weight), lost = _two_sum(sums, lost + self.lost + other.lost)
        return type(self)(total, weight, lost)

    def value(self) -> jax.Array:
        return self.total / self.weight  # what is lost is less than half a unit in their last place

    def _with(self, values: Any, weights: Any) -> Self:
        values = _number(values)
        weights = jnp.broadcast_to(_number(weights), values.shape)
        # A value without weight counts for nothing, whatever stands in the padding.
        total = jnp.where(weights == 0, 0, values * weights).sum()
        return self.merge(type(self)(total, weights.sum()))


class Mean(AbstractMean):
    """The mean of values.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> mean = ag.Mean().update(jnp.array([1.0, 2.0])).update(6.0)
    >>> float(mean.value())
    3.0
    """

    def update(self, values: Any, weights: Any = 1.0) -> "Mean":
        """The mean with further values. `weights` broadcast to them: zeros where there is padding."""
        return self._with(values, weights)


class Accuracy(AbstractMean):
    """The share of labels that have the highest score.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> scores = jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    >>> float(ag.Accuracy().update(scores, jnp.array([1, 0, 1, 1])).value())
    0.75
    """

    def update(self, scores: Any, labels: Any, weights: Any = 1.0) -> "Accuracy":
        """The accuracy with further scores `[..., classes]` and labels `[...]`; `weights` as for `Mean`.

        Raises:
            UsageError: labels have another shape.
        """
        best = jnp.argmax(scores, -1)
        if jnp.shape(labels) != best.shape:
            raise UsageError(
                argument="labels",
                got=f"an array of shape {jnp.shape(labels)}",
                wanted=f"one label for each row of scores, an array of shape {best.shape}",
                function="Accuracy.update",
                to_fix="one-hot labels: labels.argmax(-1); [batch, 1]: labels[:, 0]",
            )
        return self._with(best == labels, weights)


class RunningMean(AbstractMetric):
    """A mean in which each value counts `decay` times as much as the next one: what a loss is at present.

    Attributes:
        decay: nearer to 1 for a mean over more values, of which it spans about `1 / (1 - decay)`.
        total: the sum of values by their weights.
        weight: the sum of weights.
        age: the factor by which what came before has lost weight.

    >>> import aerogel as ag
    >>> mean = ag.RunningMean(0.5).update(4.0).update(1.0)
    >>> float(mean.value())
    2.0
    """

    decay: float = 0.98
    total: Any = field(default=0, converter=_number)
    weight: Any = field(default=0, converter=_number)
    age: Any = field(default=1, converter=_number)

    def update(self, value: Any) -> "RunningMean":
        """The mean after one more value."""
        return self.merge(RunningMean(self.decay, value, 1, self.decay))

    def merge(self, other: Any) -> "RunningMean":
        total, weight = (self.total * other.age + other.total, self.weight * other.age + other.weight)
        return RunningMean(self.decay, total, weight, self.age * other.age)

    def value(self) -> jax.Array:
        return self.total / self.weight
