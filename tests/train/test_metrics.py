"""Metrics are found from parts: of a batch, a loop, several devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag

VALUES = st.lists(st.floats(-100, 100, width=32), max_size=12)


def collected(metric: Any, values: list[float]) -> Any:
    """The metric after these values, one after the other."""
    for value in values:
        metric = metric.update(value)
    return metric


@pytest.mark.parametrize("metric", [ag.Mean(), ag.RunningMean(0.75)], ids=lambda m: type(m).__name__)
@given(VALUES, VALUES)
def test_laws(metric: Any, one: list[float], other: list[float]) -> None:
    """Parts merge to the whole, in their order, and a new metric is neutral."""
    whole = collected(metric, [*one, *other])
    parts = collected(metric, one).merge(collected(metric, other))
    for merged in (parts, whole.merge(metric), metric.merge(whole)):
        np.testing.assert_allclose(merged.value(), whole.value(), rtol=1e-4, atol=1e-3)
    assert bool(jnp.isnan(metric.value()))


def test_numbers() -> None:
    """What NumPy says of all values at once; padding without weight counts for nothing, even if it is NaN."""
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(5, 8)), rng.integers(0, 2, size=(5, 8))
    padded = np.where(weights == 0, np.nan, values)
    mean = jax.lax.scan(lambda m, x: (m.update(*x), None), ag.Mean(), (jnp.asarray(padded), jnp.asarray(weights)))[0]
    np.testing.assert_allclose(mean.value(), np.average(values, weights=weights), rtol=1e-5)
    scores, labels = rng.normal(size=(64, 10)), rng.integers(0, 10, size=64)
    accuracy = jax.jit(lambda *batch: ag.Accuracy().update(*batch))(scores, labels)
    assert float(accuracy.value()) == np.mean(scores.argmax(-1) == labels)
    running = collected(ag.RunningMean(0.5), [1.0, 2.0, 4.0])
    np.testing.assert_allclose(running.value(), (1 / 4 + 2 / 2 + 4) / (1 / 4 + 1 / 2 + 1), rtol=1e-6)


def test_counts_in_half_precision() -> None:
    """Sums are in float32, whatever comes: a mean over 10,000 values of bfloat16 is right."""
    mean = ag.Mean().update(jnp.full(10_000, 1.0, jnp.bfloat16)).update(jnp.zeros(10_000, jnp.bfloat16))
    assert float(mean.value()) == 0.5


def test_counting_does_not_end() -> None:
    """Beyond 2**24, where a float32 plus 1 is itself, each further value still counts."""
    start = ag.Mean(jnp.float32(2**24), jnp.float32(2**24))
    for numerics in ("strict", "fast"):
        many = ag.jit(
            lambda mean: jax.lax.fori_loop(0, 2**18, lambda _, m: m.update(jnp.float32(65.0)), mean), numerics=numerics
        )
        mean = many(start)
        assert float(mean.weight) == 2**24 + 2**18
        assert float(mean.value()) == np.float32(129 / 65)
    assert float(ag.Mean().update(jnp.inf).value()) == jnp.inf


def test_early_stopping() -> None:
    """It counts values that are no improvement by more than `least`, goes both ways, and crosses `jit`."""
    update = jax.jit(lambda watch, value: watch.update(value))
    watch = ag.EarlyStopping(patience=2, least=0.1, goal="max")
    seen = []
    for value in (float("nan"), 1.0, 1.05, 1.2, 1.0, float("inf"), float("nan"), 2.0):
        watch = update(watch, value)
        seen.append((bool(watch.has_improved), bool(watch.should_stop)))
    is_better = [False, True, False, True, False, True, False, False]
    assert seen == [(better, i == 7) for i, better in enumerate(is_better)]
    assert float(watch.best) == float("inf")
    assert bool(ag.EarlyStopping(patience=1).update(float("nan")).should_stop)


@pytest.mark.parametrize(
    "labels", [jnp.zeros((8, 1), int), jnp.eye(8), jnp.zeros(7, int)], ids=["column", "one-hot", "7"]
)
def test_labels_of_another_shape_are_refused(labels: Any) -> None:
    """They would broadcast, and each row of scores be compared with all labels."""
    with pytest.raises(ag.UsageError, match=r"an array of shape \(8,\)"):
        ag.Accuracy().update(jnp.eye(8), labels)
