"""`argmax-by-blocks` and `argmin-by-blocks` give the place that JAX gives, and know where they do not apply."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler.rules.extrema import arg_extremum
from rules.rules_under_test import normal
from rules.specials import SPECIAL, bits_with, integers, reasons, rules_fired, specials

RULES = [ag.rules.argmax_by_blocks, ag.rules.argmin_by_blocks]

SPELLINGS: dict[str, tuple[Any, Any]] = {
    "argmax": (jnp.argmax, normal(0, 5000)),
    "with nan": (jnp.argmax, specials(1, 5000)),
    "rows": (lambda x: jnp.argmin(x, -1), normal(2, 30, 300)),
    "columns": (lambda x: jnp.argmax(x, 0), specials(3, 97, 60)),
    "in the middle": (lambda x: jnp.argmin(x, 1, keepdims=True), normal(4, 5, 200, 7)),
    "of bfloat16": (jnp.argmax, normal(5, 4096, dtype="bfloat16")),
    "of ties": (jnp.argmin, jnp.zeros(4099).at[2000:].set(-0.0)),
    "of infinities": (jnp.argmax, jnp.full(4096, -jnp.inf).at[7].set(jnp.inf)),
    "vmap": (jax.vmap(jnp.argmax, 1), normal(6, 100, 50)),
    "gradient": (jax.grad(lambda x: x[jnp.argmax(x * x)] ** 2), normal(7, 5000)),
    "scan": (lambda x: lax.scan(lambda c, row: (c + jnp.argmax(row), c), 0, x), normal(8, 3, 4097)),
    "sampling": (lambda x: jax.random.categorical(jax.random.key(0), x), normal(9, 4, 2000)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_same_place(name: str) -> None:
    """Fires, and gives the same place: the first of equals, the first nan."""
    f, x = SPELLINGS[name]
    assert len(rules_fired(bits_with(f, RULES, x))) == 1


@jax.jit
def _places(x: Any) -> Any:
    ours = [arg_extremum(x, axis, np.int32, largest) for axis in (0, 1) for largest in (True, False)]
    return ours, [f(x, axis, np.int32) for axis in (0, 1) for f in (lax.argmax, lax.argmin)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 67 * 71 - 1), st.sampled_from(SPECIAL)), max_size=12), st.sampled_from(SPECIAL)
)
def test_any_numbers(changed: list[tuple[int, float]], fill: float) -> None:
    """Whatever the numbers and the length: 67 rows of 71 leave a remainder in both directions."""
    flat = np.full(67 * 71, fill, np.float32)
    for at, value in changed:
        flat[at] = value
    ours, natural = _places(flat.reshape(67, 71))
    for got, want in zip(ours, natural, strict=True):
        np.testing.assert_array_equal(got, want)


NEAR_MISSES: dict[str, tuple[Any, Any, str]] = {
    "integers": (jnp.argmax, integers(0, 5000), "integers with vector instructions"),
    "bools": (jnp.argmax, integers(0, 5000, dtype="bool"), "integers with vector instructions"),
    "small": (jnp.argmin, normal(0, 4095), "4095 elements, fewer than 4096"),
    "short": (lambda x: jnp.argmax(x, -1), normal(0, 500, 63), "63 elements along the axis"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """Leaves alone what it would make slower, and says why."""
    f, x, reason = NEAR_MISSES[name]
    found = reasons(bits_with(f, RULES, x))
    assert found
    assert all(reason in one for one in found)


def test_before_differentiation() -> None:
    """A program whose derivative is still to be taken stays as it is."""
    reports: list[Any] = []
    f = ag.optimize(lambda x: x[jnp.argmax(x)] ** 2, rules=RULES, passes=(), on_report=reports.append)
    jax.jit(jax.grad(jax.checkpoint(f)))(normal(0, 5000))
    assert not reports[-1].fired
    assert "after differentiation" in reports[-1].refused[0].reason


def test_claim() -> None:
    """`check_rule`: nan, -0 and the largest numbers, gradients and `vmap`."""
    ag.check_rule(
        RULES[0],
        fires_on=[(lambda x: jnp.argmax(x, 1), (normal(0, 3, 1400),))],
        leaves_alone=[(lambda x: jnp.argmax(x, 1), (normal(0, 3, 5),)), (jnp.argmin, (normal(0, 4096),))],
    )
