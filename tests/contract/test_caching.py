"""Tracing once, sharing, the fast path of a warm call, and that nothing is kept alive."""

import functools
import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag

from ._programs import assert_fires, left_alone, lowered_text, stacked_sum, start

PROGRAMS = {"left alone": left_alone, "rewritten": stacked_sum}


def counted(f):
    """`f`, and the list that grows by one each time that it is traced."""
    traces: list[int] = []

    def g(x):
        traces.append(1)
        return f(x)

    return g, traces


@pytest.mark.parametrize("kind", PROGRAMS)
def test_traced_once_per_signature(kind):
    """One trace for each shape, dtype and weak type, none for other values: like plain `jit`."""
    counts = []
    for optimize in (lambda f: f, ag.optimize):
        f, traces = counted(PROGRAMS[kind])
        g = jax.jit(optimize(f))
        for x in (start(), 2 * start(), start()[:64], start().reshape(2, -1), start(jnp.bfloat16), 1.0, 2.0):
            g(x)
        counts.append(len(traces))
    assert counts == [5, 5]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_two_jits_of_one_function_share(kind):
    """`jit(optimize(f))` written twice traces and compiles once."""
    f, traces = counted(PROGRAMS[kind])
    for _ in range(3):
        jax.jit(ag.optimize(f))(start())
    assert len(traces) == 1


def test_aot_and_jit_share_their_trace():
    """`lower`, `eval_shape`, `trace` and a call of the same signature trace once together, as with plain `jit`."""
    counts = []
    for optimize in (lambda f: f, ag.optimize):
        f, traces = counted(stacked_sum)
        g = jax.jit(optimize(f))
        g.lower(start()).compile()
        g.eval_shape(start())
        g.trace(start())
        g(start())
        counts.append(len(traces))
    assert counts[0] == counts[1]


def test_an_optimised_function_called_twice_in_a_program_is_traced_as_often_as_written():
    """Inside one jit, each call of `optimize(f)` is a call of `f`; under an inner jit there is one trace."""
    f, traces = counted(stacked_sum)
    g = jax.jit(ag.optimize(f))
    jax.jit(lambda x: g(x) + g(2 * x) + g(3 * x))(start())
    assert len(traces) == 1


def test_other_numerics_are_another_program():
    """The strict and the fast form of one function do not answer for each other."""
    f, x = stacked_sum, start()
    texts = [lowered_text(ag.optimize(f, numerics=numerics), x) for numerics in ("fast", "strict", "fast", "strict")]
    assert texts[0] == texts[2]
    assert texts[1] == texts[3]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_warm_call_runs_no_python(kind):
    """After the first call `jit`'s C++ path answers: no Python function of `f`, aerogel or JAX is entered."""
    g, x = jax.jit(ag.optimize(PROGRAMS[kind])), start()
    g(x)
    g(x)
    called = []

    def profiler(frame, event, _):
        if event == "call":
            called.append(frame.f_code.co_qualname)

    sys.setprofile(profiler)
    g(x)
    sys.setprofile(None)
    assert called == []


def test_jit_cache_size_and_clearing():
    """`_cache_size`, `clear_cache` and `jax.clear_caches` of the jitted function behave as on plain `jit`."""
    f, traces = counted(left_alone)
    g = jax.jit(ag.optimize(f))
    g(start())
    g(start())
    assert g._cache_size() == 1
    g.clear_cache()
    assert g._cache_size() == 0
    g(start())
    jax.clear_caches()
    g(start())
    assert len(traces) >= 2


class Held:
    """Something that a function closes over and that can be watched dying."""

    def __init__(self):
        self.array = np.ones(4, np.float32)

    def method(self, x):
        return x + self.array.sum()


def _use_directly(f):
    ag.optimize(f)(start())


def _use_jitted(f):
    jax.jit(ag.optimize(f))(start())


def _use_grad(f):
    jax.jit(jax.grad(lambda x: ag.optimize(f)(x).sum()))(start())


def _use_explain(f):
    ag.explain(f)(start())


USES = {"directly": _use_directly, "jitted": _use_jitted, "grad": _use_grad, "explain": _use_explain}


@pytest.mark.parametrize("use", USES)
def test_functions_are_collected(use):
    """When the user drops a function, it and what it closes over die: nothing of ours holds them."""

    def make():
        held = Held()

        def f(x):
            return stacked_sum(x) + held.array.sum()

        USES[use](f)
        return weakref.ref(held), weakref.ref(f)

    held, f = make()
    gc.collect()
    assert f() is None
    assert held() is None


@pytest.mark.parametrize("use", USES)
def test_objects_of_bound_methods_and_partials_are_collected(use):
    """The same for the object of a bound method, a callable object's state, and the arguments of a partial."""

    def make():
        held, other = Held(), Held()
        USES[use](held.method)
        USES[use](functools.partial(lambda held, x: held.method(x), other))
        return weakref.ref(held), weakref.ref(other)

    held, other = make()
    gc.collect()
    assert held() is None
    assert other() is None


def test_inputs_and_results_are_not_kept():
    """No array that went in or came out is held by the optimised function."""
    g = jax.jit(ag.optimize(stacked_sum))

    def make():
        x = 2 * start()
        y = g(x)
        return weakref.ref(x), weakref.ref(y)

    refs = make()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_no_tracer_leaks(kind):
    """`jax.checking_leaks` finds nothing, under jit, grad, vmap and without any."""
    f, x = PROGRAMS[kind], start().reshape(2, -1)
    with jax.checking_leaks():
        jax.jit(ag.optimize(f))(x)
        ag.optimize(f)(x)
        jax.jit(jax.vmap(ag.optimize(f)))(x)
        jax.jit(jax.grad(lambda x: ag.optimize(f)(x).sum()))(x)
        jax.jit(ag.optimize(jax.grad(lambda x: f(x).sum())))(x)


def test_a_leaked_tracer_is_still_reported():
    """A leak of the user's own is found by JAX, with JAX's error."""
    leaked = []

    def f(x):
        leaked.append(x)
        return x + 1

    with jax.checking_leaks(), pytest.raises(Exception, match="Leaked"):
        jax.jit(ag.optimize(f))(start())
    leaked.clear()
    jax.jit(ag.optimize(f))(start())
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jnp.sin(leaked[0])


def functions_in(text: str) -> int:
    """How many functions a StableHLO module defines."""
    return text.count("func.func ")


@pytest.mark.parametrize("kind", PROGRAMS)
def test_an_inner_jit_called_often_is_lowered_once(kind):
    """Ten calls of one inner jit are ten calls of one function in StableHLO, rewritten or not."""
    counting, traces = counted(PROGRAMS[kind])
    counted_inner = jax.jit(counting)

    def repeated(n, inner=counted_inner):
        def f(x):
            for _ in range(n):
                x = x + inner(x) * (0.1 / n)
            return x

        return f

    text = lowered_text(ag.optimize(repeated(10)), start())
    assert len(traces) == 1
    assert functions_in(text) <= functions_in(lowered_text(repeated(10, jax.jit(PROGRAMS[kind])), start()))
    if kind == "rewritten":
        assert_fires(repeated(3), start())


def test_a_shared_body_is_lowered_once():
    """Two scans over one body function share what they share in plain JAX."""

    @jax.jit
    def step(c):
        return jnp.tanh(c) * 0.5

    def f(x):
        a = jax.lax.scan(lambda c, _: (step(c), None), x, None, length=3)[0]
        b = jax.lax.scan(lambda c, _: (step(c), None), x + 1, None, length=4)[0]
        return a + b + step(x)

    x = jnp.ones(3)
    assert functions_in(lowered_text(ag.optimize(f), x)) == functions_in(lowered_text(f, x))


def test_threads():
    """Many threads that call, trace and optimise at once get their own results."""
    results = {}

    def work(k):
        def f(x):
            return stacked_sum(x * k)

        results[k] = float(jax.jit(ag.optimize(f))(start()))

    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, got in results.items():
        np.testing.assert_allclose(got, float(jax.jit(stacked_sum)(start() * k)), rtol=1e-5)
    assert len(results) == 5


def test_a_disabled_jit_computes_the_same():
    """Under `jax.disable_jit`, too, the results are plain JAX's."""

    def f(x):
        return jax.lax.scan(lambda c, _: (c + 1, c), x, None, length=3)[1].sum(0)

    with jax.disable_jit():
        got = jax.jit(ag.optimize(f))(jnp.ones(3))
        want = jax.jit(f)(jnp.ones(3))
    np.testing.assert_array_equal(got, want)
