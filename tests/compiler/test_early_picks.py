"""What indices pick of entrywise values is computed of what they pick, and sums of rows of one entry are known."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.early_picks import EarlyPicks
from compiler.loop_patterns import normal

Z = normal(0, 6, 40)
T = jnp.array([3, 0, 39, 17, -1, 8])
FAR = jnp.array([3, 40, -41, 17, 1000, 8])
PASSES = (EarlyPicks(),)


def fired(f: Callable[..., Any], *args: Any) -> list[str]:
    """What the pass does."""
    reports: list[Any] = []
    jax.eval_shape(ag.optimize(f, passes=PASSES, on_report=reports.append), *args)
    return [d.what for d in reports[0].fired if d.rule == "early-picks"]


def judged(f: Callable[..., Any], *args: Any) -> None:
    """The numbers stay."""
    ours, theirs = jax.jit(ag.optimize(f, passes=PASSES))(*args), jax.jit(f)(*args)
    tol = 2e-2 if ours.dtype == jnp.bfloat16 else 1e-6
    np.testing.assert_allclose(np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=tol, atol=tol)


def in_scan(z: Any, t: Any) -> Any:
    """In each step, of values of its own."""
    return lax.scan(lambda c, t: (c + 1, jax.nn.log_softmax(z + c)[jnp.arange(6), t]), 0.5, jnp.stack([t, t[::-1]]))[1]


# fmt: off
PICKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "log_softmax": (lambda z, t: jax.nn.log_softmax(z)[jnp.arange(6), t], (Z, T)),
    "along an axis": (lambda z, t: jnp.take_along_axis(jax.nn.log_softmax(z), t[:, None], 1), (Z, T)),
    "along the first axis": (lambda z, t: jnp.take_along_axis(jnp.exp(z) / z.sum(0), t[None] % 8, 0),
                             (normal(3, 40, 6), T)),
    "several of each row": (lambda z, t: jnp.take_along_axis(jnp.sin(z) * z, jnp.stack([t, t + 1]).T, 1), (Z, T)),
    "under vmap": (jax.vmap(lambda z, t: jnp.log(jax.nn.softmax(z))[t]), (Z, T)),
    "of three dimensions": (lambda z, t: jnp.take_along_axis(z - z.max(-1, keepdims=True), t[..., None], 2),
                            (normal(1, 3, 6, 40), jnp.stack([T] * 3))),
    "of bfloat16": (lambda z, t: jax.nn.log_softmax(z)[jnp.arange(6), t], (Z.astype(jnp.bfloat16), T)),
    "of integers": (lambda z, t: (z * 3 + 1)[jnp.arange(6), t], ((10 * Z).astype(int), T)),
    "by a number of each column": (lambda z, t: (z * jnp.arange(40.0))[jnp.arange(6), t], (Z, T)),
    "out of bounds, nan": (lambda z, t: (2 * z).at[jnp.arange(6), t].get(mode="fill"), (Z, FAR)),
    "out of bounds, a number": (lambda z, t: (2 * z).at[jnp.arange(6), t].get(mode="fill", fill_value=7), (Z, FAR)),
    "out of bounds, integers": (lambda z, t: (2 * z).at[jnp.arange(6), t].get(mode="fill"),
                                ((10 * Z).astype(int), FAR)),
    "out of bounds, the nearest": (lambda z, t: (2 * z).at[jnp.arange(6), t].get(mode="clip"), (Z, FAR)),
    "in a scan": (in_scan, (Z, T)),
}
LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "as it is": (lambda z, t: z[jnp.arange(6), t], (Z, T)),
    "of two arrays": (lambda z, t: (z * z[::-1])[jnp.arange(6), t], (Z, T)),
    "most of the entries": (lambda z, t: jnp.take_along_axis(jnp.sin(z), jnp.argsort(z, 1), 1), (Z, T)),
    "whole rows": (lambda z, t: jnp.sin(z)[t % 6], (Z, T)),
    "of a sum so far": (lambda z, t: jnp.cumsum(z, 1)[jnp.arange(6), t], (Z, T)),
}
# fmt: on


@pytest.mark.parametrize("name", PICKS)
def test_entries_are_picked_first(name: str) -> None:
    """The entrywise work is done for what is picked; the same numbers, in any mode and type."""
    f, args = PICKS[name]
    if name != "by a number of each column":  # which are picked from, too
        assert "entries are picked before they are computed" in fired(f, *args)
    judged(f, *args)


@pytest.mark.parametrize("name", LEFT)
def test_near_misses(name: str) -> None:
    """What would pick from two arrays, or picks nearly all, or no single entries, stays."""
    f, args = LEFT[name]
    assert fired(f, *args) == []
    judged(f, *args)


def test_nothing_of_the_size_of_the_logits_is_stored() -> None:
    """A cross-entropy and its gradient hold no array of the logits' size beside their results."""
    z, t = normal(5, 64, 2000), jnp.arange(64) * 7

    def loss(z: Any, t: Any) -> Any:
        return -jnp.mean(jax.nn.log_softmax(z)[jnp.arange(64), t])

    for f in (loss, jax.value_and_grad(loss)):
        plain, ours = (jax.jit(g).lower(z, t).compile() for g in (f, ag.optimize(f)))
        temp = [one.memory_analysis().temp_size_in_bytes for one in (plain, ours)]
        assert temp[0] >= z.nbytes
        assert temp[1] < z.nbytes / 4
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), plain(z, t), ours(z, t))


def sums(f: Callable[..., Any], *args: Any) -> int:
    """How many sums of the large array there are."""
    program = jax.make_jaxpr(f)(*args)
    return sum(eqn.primitive.name == "reduce_sum" and eqn.invars[0].aval.size == Z.size for eqn in program.eqns)


@pytest.mark.parametrize("t", [T, FAR], ids=["in bounds", "out of bounds"])
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_sums_of_one_entry_are_known(t: Any, mode: str) -> None:
    """Rows of zeros to which one number was added are not summed up; what is out of bounds is in no sum."""

    def f(v: Any, t: Any) -> Any:
        return jnp.zeros((6, 40)).at[jnp.arange(6), t].add(v, mode=mode).sum(1)

    v = normal(7, 6)
    assert sums(f, v, t) == 1
    assert sums(ag.optimize(f, passes=PASSES), v, t) == 0
    np.testing.assert_array_equal(jax.jit(ag.optimize(f, passes=PASSES))(v, t), f(v, t))
    both = lambda v, t: jnp.zeros((6, 40)).at[jnp.arange(6), t].add(v, mode=mode).at[jnp.arange(6), 3].add(v).sum(1)  # noqa: E731
    np.testing.assert_allclose(jax.jit(ag.optimize(both, passes=PASSES))(v, t), both(v, t), rtol=1e-6)


def test_sums_of_one_entry_are_known_under_vmap() -> None:
    """Under `vmap` the derivative of a pick adds windows of one entry, clipped to what is in bounds."""
    for t in (T, FAR):
        f = jax.grad(lambda z, t: jax.vmap(lambda z, t: (z - jnp.log(jnp.exp(z).sum()))[t])(z, t).sum())
        assert sums(f, Z, t) == 2
        assert sums(ag.optimize(f, passes=PASSES), Z, t) == 1
        judged(f, Z, t)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_sums_of_one_hot_rows_are_known(dtype: str) -> None:
    """The sum of a one-hot row is 1, and 0 where its index is out of bounds, along any axis."""
    for axis in (0, 1, -1):
        f = lambda t, axis=axis: jax.nn.one_hot(t, 40, dtype=dtype, axis=axis).sum(axis)  # noqa: E731
        t = jnp.stack([FAR, T]) if axis else FAR
        ours = ag.optimize(f)
        np.testing.assert_array_equal(jax.jit(ours)(t), f(t))
    program = jax.make_jaxpr(ag.optimize(lambda t: jax.nn.one_hot(t, 40).sum(1)))(FAR)
    assert not any(eqn.primitive.name == "reduce_sum" for eqn in program.eqns)


def test_strict_and_no_entries() -> None:
    """It is done in strict mode, too; and where there is nothing to pick."""
    f, args = PICKS["log_softmax"]
    ours = jax.jit(ag.optimize(f, numerics="strict"))(*args)
    np.testing.assert_allclose(ours, f(*args), rtol=1e-6)
    z, t = jnp.zeros((0, 40)), jnp.zeros((0,), int)
    g = lambda z, t: jnp.take_along_axis(jnp.sin(z), t[:, None], 1)  # noqa: E731
    assert jax.jit(ag.optimize(g))(z, t).shape == (0, 1)
