"""Rows on which a library works from what is read to a last sum: they are in no memory, and stay whole."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag

Formula = Callable[..., Any]


def soft_targets(z: Any, y: Any) -> Any:
    """A cross-entropy."""
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(z) * y, -1))


WHOLE: dict[str, Formula] = {
    "soft targets": soft_targets,
    "a divergence": lambda z, y: jnp.mean(jnp.sum(y * (jnp.log(y) - jax.nn.log_softmax(z)), -1)),
    "an entropy": lambda z, y: -jnp.mean(jnp.sum(jax.nn.softmax(z + y) * jax.nn.log_softmax(z + y), -1)),
    "a score": lambda z, y: jnp.sum((jax.nn.softmax(z) - y) ** 2),
    "of both, one by one": jax.vmap(lambda z, y: jnp.sum(jax.nn.softmax(z) * y)),
    "fields of all pairs": lambda z, y: jnp.sum((d := z[:, :1] - y[:, 0]) * jnp.exp(-d * d), 1),
}


def decisions(f: Formula, rows: int, entries: int, dtype: Any = np.float32) -> list[Any]:
    """Those of streaming, among all passes."""
    found: list[Any] = []
    one = jax.ShapeDtypeStruct((rows, entries), dtype)
    jax.eval_shape(ag.optimize(f, on_report=found.append), one, one)
    return [d for d in found[0].decisions if d.rule == "streaming"]


def is_whole(f: Formula, rows: int, entries: int, dtype: Any = np.float32) -> bool:
    """Whether rows are left for the reason that one call works on them."""
    found = decisions(f, rows, entries, dtype)
    return not any(d.fired for d in found) and any("the call that sums up what is made" in d.reason for d in found)


@pytest.mark.parametrize("name", WHOLE)
def test_what_one_call_makes_stays_whole(name: str) -> None:
    """From 4096 rows on."""
    assert is_whole(WHOLE[name], 8192, 1000)
    assert is_whole(WHOLE[name], 4500, 2001)
    with jax.enable_x64(True):
        assert is_whole(WHOLE[name], 5003, 900, np.float64)


@pytest.mark.parametrize("name", list(WHOLE)[:4])
def test_fewer_rows_go_in_blocks(name: str) -> None:
    """The library does not take their sums along: what is made of them is stored."""
    assert any(d.fired for d in decisions(WHOLE[name], 2000, 6000))


def test_near_misses_go_in_blocks() -> None:
    """What something else reads or works on, too, is stored, and what is made of short sums is slow in one call."""
    assert not is_whole(lambda z, y: jnp.where(y > 0, jax.nn.log_softmax(z), 0).sum(-1), 8192, 1000)
    assert not is_whole(lambda z, y: jnp.sum(jax.nn.log_softmax(z @ z.T)[:, :1000] * y), 8192, 1000)
    assert not is_whole(lambda z, y: jnp.argmax(jax.nn.log_softmax(z) * y, -1), 8192, 1000)

    def discrepancy(z: Any, y: Any) -> Any:
        return jnp.mean(jnp.exp(-jnp.sum((z[:, None] - y) ** 2, -1)))

    assert any(d.fired for d in decisions(discrepancy, 8192, 3))


def test_their_factors_stay_in_the_sum() -> None:
    """A softmax in a sum is no quotient of two sums, where one call makes it (`passes/full_sums.py`)."""
    rules = lambda f, rows, entries: {  # noqa: E731
        d.rule for d in ag.explain(f)(*(jnp.ones((rows, entries)) for _ in range(2))).fired
    }
    expectation = WHOLE["of both, one by one"]
    assert "full-sums" not in rules(expectation, 4100, 1100)
    assert "full-sums" in rules(expectation, 1100, 1100)  # fewer rows: what is summed is stored, for both sums
