"""A prepared program holds the less of two orders, and computes the same."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.transform import schedules
from compiler.loop_patterns import normal

LEAST = {schedules.NAME: schedules.LEAST_MEMORY}


def two_sided(x: Any) -> Any:
    """A softmax along either axis: breadth first, both are held at once."""
    return jnp.trace(jax.nn.log_softmax(x, -1)) + jnp.trace(jax.nn.log_softmax(x, 0))


def branches(x: Any) -> Any:
    """Sums of products that need not be held together."""
    return [jnp.sum(jnp.tanh(x @ jnp.roll(x, k, 0)), 0) for k in range(6)]


def ensemble(x: Any) -> Any:
    """Running sums of waves."""
    return jax.vmap(lambda k: jnp.sum(jnp.cumsum(jnp.sin(k * x), 0) ** 2, 0))(jnp.arange(3.0))


PROGRAMS = {"two_sided": two_sided, "branches": branches, "ensemble": ensemble}


def held(f: Any, x: Any, **options: Any) -> int:
    """What the optimised program holds in the order that these options ask for."""
    plan = jax.jit(ag.optimize(f), **options).lower(x).compile().memory_analysis()
    assert plan is not None
    return plan.temp_size_in_bytes


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("derivative", [False, True])
def test_the_less_is_held(name: str, derivative: bool) -> None:
    """As much as the better one of both orders, with the same bits."""
    f = PROGRAMS[name]
    g = jax.value_and_grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(f(x))))) if derivative else f
    x = normal(0, 600, 600)
    prepared = ag.prepare(g, x)
    both = [held(g, x), held(g, x, compiler_options=LEAST)]
    assert prepared.cost.temp_bytes == min(both)
    for got, want in zip(*map(jax.tree.leaves, (prepared(x), jax.jit(ag.optimize(g))(x))), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_one_order_holds_less() -> None:
    """Of the usual order both softmaxes are held."""
    x = normal(0, 600, 600)
    assert ag.prepare(two_sided, x).cost.temp_bytes < 0.7 * held(two_sided, x)


def test_results_in_the_memory_of_earlier_ones() -> None:
    """What takes an earlier result's memory is in the better order, too."""
    x = normal(0, 600, 600)
    prepared = ag.prepare(ag.value_and_grad(two_sided), x)
    value, gradient = prepared(x)
    copy = np.asarray(gradient).copy()
    again, second = prepared(x, out=gradient)
    assert gradient.is_deleted()
    assert float(again) == float(value)
    np.testing.assert_array_equal(np.asarray(second), copy)


def compilations(monkeypatch: pytest.MonkeyPatch, f: Any, *args: Any) -> int:
    """How often preparing `f` compiles it for another order than the usual one."""
    counted: list[bool] = []
    original = jax.stages.Lowered.compile

    def compile_(self: Any, *given: Any, **options: Any) -> Any:
        counted.append((options.get("compiler_options") or {}).get(schedules.NAME) == schedules.LEAST_MEMORY)
        return original(self, *given, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_)
    ag.prepare(f, *args)
    return sum(counted)


def test_small_programs_are_compiled_for_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what takes the place of earlier results in that which was found."""
    assert compilations(monkeypatch, two_sided, normal(0, 600, 600)) == 2
    assert compilations(monkeypatch, two_sided, normal(0, 100, 100)) == 0


def test_who_chose_an_order_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the user's stay, and win."""
    x = normal(0, 600, 600)
    usual = ag.jit(two_sided, compiler_options={schedules.NAME: "CPU_SCHEDULER_TYPE_DEFAULT"})
    other = ag.jit(two_sided, compiler_options={"xla_cpu_prefer_vector_width": 256})
    assert ag.prepare(usual, x).cost.temp_bytes == held(two_sided, x)
    assert ag.prepare(other, x).cost.temp_bytes < 0.7 * held(two_sided, x)
    assert compilations(monkeypatch, usual, x) == 0


def test_an_option_that_xla_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual order stays."""
    monkeypatch.setattr(schedules, "NAME", "xla_cpu_no_such_option")
    x = normal(0, 600, 600)
    assert ag.prepare(two_sided, x).cost.temp_bytes == held(two_sided, x)
