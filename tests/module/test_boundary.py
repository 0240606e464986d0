"""The switch: the thread's own, and as it was before, however a call ends."""

import _thread
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel.module import Module
from aerogel.module._boundary import crossing, inside, is_crossing


class Linear(Module):
    weight: Any
    scale: float = 1.0


class Model(Module):
    layers: list[Linear]


def model(n: int = 3, scale: float = 1.0) -> Model:
    """A new model of `n` layers."""
    return Model([Linear(jnp.full((2,), float(i)), scale) for i in range(n)])


def jitted(function: Any) -> Any:
    """What `ag.jit` will do with the switch."""
    return crossing(jax.jit(inside(function)))


def step(m: Model, x: Any) -> Any:
    """A new model and a sum, from inside, where all is as usual."""
    assert not is_crossing()
    assert all(type(layer) is Linear for layer in m.layers)
    return jax.tree.map(lambda w: w + x, m), sum(layer.weight.sum() for layer in m.layers)


def test_a_training_loop_traces_once() -> None:
    """Results go in again without another trace, whether or not somebody looked at them, also inside other pytrees."""
    traces = []

    @jitted
    def update(state: Any, x: Any) -> Any:
        traces.append(1)
        return {"model": step(state["model"], x)[0], "n": state["n"] + 1}

    state = {"model": model(), "n": jnp.zeros(())}
    for i in range(4):
        state = update(state, 1.0)
        if i == 2:
            assert state["model"].layers[0].weight[0] == 3.0
    assert len(traces) == 1
    assert state["n"] == 4


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_errors_leave_the_switch_as_it_was(error: type[BaseException]) -> None:
    """Whatever the traced function raises, outside the switch is off, and on again inside an outer crossing."""

    def fail(m: Model) -> None:
        raise error

    with pytest.raises(error):
        jitted(fail)(model())
    assert not is_crossing()

    @crossing
    def outer() -> None:
        with pytest.raises(error):
            jitted(fail)(model())
        assert is_crossing()

    outer()


def test_an_interrupt_at_any_moment_leaves_the_switch_off() -> None:
    """Signals that arrive at random times while calls cross never leave it on."""
    f, m = jitted(step), model()
    f(m, 1.0)
    interrupted = 0
    for i in range(200):
        timer = threading.Timer(i * 2e-6, _thread.interrupt_main, (signal.SIGINT,))
        try:
            timer.start()
            for _ in range(30):
                f(m, 1.0)
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        assert not is_crossing()
    assert interrupted > 100


def test_threads_trace_and_call_at_once() -> None:
    """Sixteen threads with models of their own, half of them crossing, half mapping trees, do not see each other."""
    start = threading.Barrier(16)

    def work(i: int) -> None:
        m = model(i % 5 + 1, scale=float(i))
        structure = jax.tree.structure(m)
        f = jitted(step)
        start.wait()
        for _ in range(20):
            if i % 2:
                m, total = f(m, 1.0)
                assert total.shape == ()
            else:
                m = jax.tree.map(lambda w: w + 1, m)
                layers = jax.tree.leaves(m, is_leaf=lambda x: isinstance(x, Linear))
                assert [type(layer) for layer in layers] == [Linear] * (i % 5 + 1)
        assert jax.tree.structure(m) == structure
        np.testing.assert_array_equal(m.layers[0].weight, np.full(2, 20.0))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


def test_threads_build_attributes_of_one_result() -> None:
    """Many first reads at once all see equal values."""
    for _ in range(20):
        result, _ = jitted(step)(model(20), 1.0)
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda _, r=result: float(r.layers[19].weight[0]), range(8)))
        assert got == [20.0] * 8


def test_nested_jits() -> None:
    """A crossing jit inside a plain one inside a crossing one, with modules into and out of each."""
    inner = jitted(step)
    middle = jax.jit(lambda m, x: inner(jax.tree.map(lambda w: 2 * w, m), x))
    outer = jitted(lambda m, x: middle(m, x)[0].layers[1])
    got = outer(model(), 1.0)
    assert type(got) is Linear
    np.testing.assert_array_equal(got.weight, [3.0, 3.0])


def test_transformations_of_crossing_functions() -> None:
    """`grad`, `vmap`, `scan` and `eval_shape` of a function that crosses see modules as they are."""
    f = jitted(lambda m, x: step(m, x)[1])
    grads = jax.grad(f)(model(), 1.0)
    np.testing.assert_array_equal(grads.layers[2].weight, [1.0, 1.0])
    assert jax.tree.structure(grads) == jax.tree.structure(model())
    np.testing.assert_array_equal(jax.vmap(f, in_axes=(None, 0))(model(), jnp.ones(2)), [6.0, 6.0])
    shapes, _ = jax.eval_shape(jitted(step), model(), 1.0)
    assert isinstance(shapes.layers[0].weight, jax.ShapeDtypeStruct)
    assert jax.tree.structure(shapes) == jax.tree.structure(model())
    last, _ = jax.lax.scan(lambda m, x: jitted(step)(m, x), model(), jnp.ones(3))
    np.testing.assert_array_equal(last.layers[0].weight, [3.0, 3.0])


def test_generators_keep_out_of_it() -> None:
    """A generator that calls crossing functions between its steps finds the switch as its caller has it."""

    def steps() -> Any:
        m = model()
        while True:
            m, total = jitted(step)(m, 1.0)
            yield total, is_crossing()

    running = steps()
    assert not any(next(running)[1] for _ in range(3))


def test_class_attributes_and_defaults_survive_crossing() -> None:
    """A class that crossed still shows its defaults, takes subclasses, and builds new instances."""
    result = jitted(lambda m: m)(Linear(jnp.ones(2)))
    assert Linear.scale == 1.0
    assert not hasattr(Linear, "weight")

    class Sub(Linear):
        extra: int = 3

    assert (result.scale, Sub(jnp.ones(1)).scale, Sub(jnp.ones(1)).extra) == (1.0, 1.0, 3)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        result.nothing  # noqa: B018
