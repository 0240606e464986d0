"""What is measured: a step that can be called again and again, and what it holds in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax


@dataclass(frozen=True)
class Trainer:
    """One library's training of one model.

    Attributes:
        step: does a step from where the last one ended, and returns the loss.
        peak_bytes: the most that a step holds at once: parameters, state of the optimiser, batch, what it computes.
        compile_seconds: what tracing and compiling took; 0 where that happens in the first steps.
    """

    step: Callable[[], Any]
    peak_bytes: Callable[[], int]
    compile_seconds: float = 0.0


def compiled_trainer(step: Any, batch: tuple[jax.Array, jax.Array], *state: Any) -> Trainer:
    """Calls a jitted `step(batch, *state)`, which returns a loss and the next state."""
    peak_bytes, seconds = planned(step, batch, *state)

    def call() -> Any:
        nonlocal state
        loss, *after = step(batch, *state)
        state = tuple(after)
        return loss

    return Trainer(call, lambda: peak_bytes, seconds)


def planned(step: Any, *args: Any) -> tuple[int, float]:
    """What XLA's plan for a jitted function holds at once, and the seconds that it took to trace and compile.

    Held are arguments, results that do not take the memory of arguments, and temporaries.
    """
    start = time.perf_counter()
    compiled = step.lower(*args).compile()
    seconds = time.perf_counter() - start
    plan = getattr(compiled, "compiled", compiled).memory_analysis()  # Equinox wraps what JAX returns
    own_results = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes + own_results + plan.temp_size_in_bytes, seconds


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
