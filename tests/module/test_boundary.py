"""Modules at the boundary of a compiled function: one node there, a tree everywhere else, and nothing to disturb."""

import _thread
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel._jax import dispatch_flatten
from aerogel.module import Module


class Linear(Module):
    weight: Any
    scale: float = 1.0


class Model(Module):
    layers: list[Linear]


def model(n: int = 3, scale: float = 1.0) -> Model:
    """A new model of `n` layers."""
    return Model([Linear(jnp.full((2,), float(i)), scale) for i in range(n)])


def step(m: Model, x: Any) -> Any:
    """A new model and a sum, from inside, where all is as usual."""
    assert all(type(layer) is Linear for layer in m.layers)
    return jax.tree.map(lambda w: w + x, m), sum(layer.weight.sum() for layer in m.layers)


def test_a_module_is_one_node_at_the_boundary() -> None:
    """However deep a module is, JAX's C++ code asks Python once."""
    leaves, structure = dispatch_flatten(model(20))
    assert len(leaves) == 20
    assert structure.num_nodes == 22  # the module, the tuple in it, and the leaves


def test_a_training_loop_traces_once() -> None:
    """Results go in again without another trace, whether or not somebody looked at them, also inside other pytrees."""
    traces = []

    @jax.jit
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
def test_errors_leave_nothing_behind(error: type[BaseException]) -> None:
    """Whatever a traced function raises, the next call and the next tree_map are as if it had not been."""

    @jax.jit
    def fail(m: Model, x: Any) -> Any:
        if x is not None:
            raise error
        return jax.tree.map(lambda w: w + 1, m)

    m = model()
    with pytest.raises(error):
        fail(m, 1.0)
    assert len(jax.tree.structure(m).children()) == 1
    np.testing.assert_array_equal(fail(m, None).layers[2].weight, [3.0, 3.0])


def test_interrupts_leave_nothing_behind() -> None:
    """Signals that arrive at random times while modules cross change neither trees nor later calls."""
    f, m = jax.jit(step), model()
    f(m, 1.0)
    structure, interrupted = jax.tree.structure(m), 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background processes
    for i in range(100):
        timer = threading.Timer(i * 4e-6, _thread.interrupt_main, (signal.SIGINT,))
        try:
            timer.start()
            for _ in range(30):
                f(m, 1.0)
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        assert jax.tree.structure(f(m, 1.0)[0]) == jax.tree.structure(m) == structure
    signal.signal(signal.SIGINT, before)
    assert interrupted > 50


def test_threads_trace_and_call_at_once() -> None:
    """Sixteen threads with models of their own, half of them crossing, half mapping trees, do not see each other."""
    start = threading.Barrier(16)

    def work(i: int) -> None:
        m = model(i % 5 + 1, scale=float(i))
        structure = jax.tree.structure(m)
        f = jax.jit(step)
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
        result, _ = jax.jit(step)(model(20), 1.0)
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda _, r=result: float(r.layers[19].weight[0]), range(8)))
        assert got == [20.0] * 8


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns of what this is about
def test_a_fork_goes_on() -> None:
    """A child process maps trees of, and builds, the modules that its parent's compiled functions returned."""
    result, _ = jax.jit(step)(model(), 1.0)
    child = os.fork()
    if child == 0:
        fine = len(result.layers) == 3 and len(jax.tree.leaves(dispatch_flatten(result)[0])) == 3
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_nested_jits() -> None:
    """A jit inside a jit inside a jit, with modules into and out of each."""
    inner = jax.jit(step)
    middle = jax.jit(lambda m, x: inner(jax.tree.map(lambda w: 2 * w, m), x))
    outer = jax.jit(lambda m, x: middle(m, x)[0].layers[1])
    got = outer(model(), 1.0)
    assert type(got) is Linear
    np.testing.assert_array_equal(got.weight, [3.0, 3.0])


def test_compiled_ahead_of_time() -> None:
    """What `lower` and `compile` make takes modules, and those that came out of it."""
    compiled = jax.jit(step).lower(model(), 1.0).compile()
    m = model()
    for _ in range(3):
        m, _ = compiled(m, 1.0)
    np.testing.assert_array_equal(m.layers[2].weight, [5.0, 5.0])


def test_keys_cross() -> None:
    """Typed PRNG keys are leaves of a module, and taken apart at the boundary like anywhere else."""

    class Noisy(Module):
        key: Any

    f = jax.jit(lambda m: jax.tree.map(lambda k: jax.random.fold_in(k, 1), m))
    m = Noisy(jax.random.key(0))
    for _ in range(3):
        m = f(m)
    assert jax.dtypes.issubdtype(m.key.dtype, jax.dtypes.prng_key)
    assert jax.random.key_data(m.key).shape == (2,)


def test_class_attributes_and_defaults_survive_crossing() -> None:
    """A class that crossed still shows its defaults, takes subclasses, and builds new instances."""
    f = jax.jit(lambda m: m)
    f(Linear(jnp.ones(2)))
    result = f(Linear(jnp.ones(2)))
    assert Linear.scale == 1.0
    assert not hasattr(Linear, "weight")

    class Sub(Linear):
        extra: int = 3

    assert (result.scale, Sub(jnp.ones(1)).scale, Sub(jnp.ones(1)).extra) == (1.0, 1.0, 3)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        result.nothing  # noqa: B018
