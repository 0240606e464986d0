"""`jit`'s options and the ahead-of-time road work on `optimize(f)` as on `f`."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

from ._programs import (
    LENGTH,
    assert_equal_trees,
    assert_fires,
    assert_lowers_alike,
    left_alone,
    lowered_text,
    primitives,
    stacked_sum,
    start,
)


def carry_and_sum(x, y):
    """The last carry, as large as `x`, and the sum of the stacked outputs: `x` can be donated to the first."""
    last, ys = lax.scan(lambda c, _: (jnp.sin(c) + y, jnp.sin(c)), x, None, length=LENGTH)
    return last, ys.sum()


@pytest.mark.parametrize("options", [{"donate_argnums": 0}, {"donate_argnames": "x"}], ids=str)
def test_donation_donates(options):
    """A donated input is gone after the call, an undonated one is not; results are the same."""
    assert_fires(carry_and_sum, start(), start())
    want = jax.jit(carry_and_sum)(start(), start())
    x, y = start(), start()
    got = jax.jit(ag.optimize(carry_and_sum), **options)(x, y)
    assert x.is_deleted()
    assert not y.is_deleted()
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


def test_donated_buffers_are_the_same_ones():
    """The aliases of inputs and outputs in StableHLO are plain JAX's."""

    def f(state, x):
        return {"w": state["w"] - 0.1 * x, "n": state["n"] + 1}, x.sum()

    state, x = {"w": jnp.ones(5), "n": jnp.int32(0)}, jnp.arange(5.0)
    assert "tf.aliasing_output" in lowered_text(f, state, x, donate_argnums=0)
    assert_lowers_alike(f, state, x, donate_argnums=0)


def arguments_of(text: str) -> int:
    """How many arguments the main function of a StableHLO module takes."""
    (main,) = (line for line in text.splitlines() if "func.func public @main" in line)
    return main.split("->")[0].count("%arg")


@pytest.mark.parametrize("f", [lambda a, b, c: left_alone(b), lambda a, b, c: stacked_sum(b)], ids=["alone", "fires"])
def test_keep_unused(f):
    """Unused arguments are dropped, or kept if asked for: as many as with plain `jit`."""
    args = (jnp.ones(2), start(), jnp.arange(3))
    for keep, wanted in ((False, 1), (True, 3)):
        assert arguments_of(lowered_text(f, *args, keep_unused=keep)) == wanted
        assert arguments_of(lowered_text(ag.optimize(f), *args, keep_unused=keep)) == wanted


@pytest.mark.parametrize("inline", [True, False])
def test_inline(inline):
    """`inline=True` leaves no call in the end, `inline=False` leaves one; a traced program has as many as JAX's."""
    g, own = (jax.jit(f, inline=inline) for f in (ag.optimize(left_alone), left_alone))
    calls, wanted = (primitives(jax.make_jaxpr(lambda x, f=f: f(x) + 1)(1.0))["jit"] for f in (g, own))
    assert calls == wanted  # since jax 0.11 they go when the program is lowered
    assert lowered_text(lambda x: g(x) + 1, 1.0).count(" call @") == (0 if inline else 1)


def test_compiler_options_and_cost_analysis():
    """Options for XLA reach it; the compiled object answers the usual questions."""
    g = jax.jit(ag.optimize(left_alone), compiler_options={"xla_cpu_enable_fast_math": False})
    np.testing.assert_allclose(g(start()), jax.jit(left_alone)(start()), rtol=1e-6)
    compiled = g.lower(start()).compile()
    assert compiled.memory_analysis().argument_size_in_bytes == start().nbytes
    assert "bytes accessed" in compiled.cost_analysis()


@pytest.mark.parametrize("f", [left_alone, stacked_sum])
def test_ahead_of_time(f):
    """`trace`, `lower`, `compile`, `eval_shape`, from arrays and from shapes."""
    x, plain, g = start(), jax.jit(f), jax.jit(ag.optimize(f))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    assert g.eval_shape(x) == plain.eval_shape(x) == jax.eval_shape(ag.optimize(f), shape)
    assert g.trace(x).out_info == plain.trace(x).out_info
    for argument in (x, shape):
        lowered = g.lower(argument)
        assert lowered.args_info == plain.lower(argument).args_info
        assert lowered.out_info == plain.lower(argument).out_info
        np.testing.assert_allclose(lowered.compile()(x), plain(x), rtol=1e-5)


def test_ahead_of_time_checks_its_arguments():
    """A compiled function refuses other types with JAX's own message."""
    messages = []
    for f in (left_alone, ag.optimize(left_alone)):
        with pytest.raises(TypeError) as error:
            jax.jit(f).lower(start()).compile()(start()[:3])
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_where_nothing_fires_nothing_changes():
    """StableHLO of a program that is left alone is plain JAX's to the letter: names, attributes, order."""

    def f(x, tree):
        y = lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) + i, x)
        z = lax.cond(x[0] > 0, jnp.sin, jnp.cos, y)
        return {"out": z @ tree["w"], "rest": (tree["b"], jnp.argmax(z))}

    assert_lowers_alike(f, jnp.ones(4), {"w": jnp.ones((4, 2)), "b": jnp.arange(3)})
    assert_lowers_alike(left_alone, start())


@pytest.mark.parametrize("f", [left_alone, stacked_sum])
def test_export(f):
    """An exported function, serialised and read again, computes the same."""
    exported = jax.export.export(jax.jit(ag.optimize(f)))(start())
    again = jax.export.deserialize(exported.serialize())
    assert again.fun_name == f.__name__
    np.testing.assert_allclose(again.call(start()), jax.jit(f)(start()), rtol=1e-5)


def test_export_with_symbolic_shapes():
    """One exported program answers for every size, also where a rewrite would have to compare sizes."""

    def f(x, w):
        last, ys = lax.scan(lambda c, _: (jnp.tanh(c @ w), jnp.tanh(c @ w)), x, None, length=LENGTH)
        return last, ys.sum(), ys.mean((0, 1)), x.reshape(-1)

    batch, features = jax.export.symbolic_shape("b, n")
    shapes = jax.ShapeDtypeStruct((batch, features), jnp.float32), jax.ShapeDtypeStruct((features,) * 2, jnp.float32)
    exported = jax.export.export(jax.jit(ag.optimize(f)))(*shapes)
    for b, n in ((3, 4), (8, 2), (1, 5)):
        args = jnp.linspace(0.1, 1.0, b * n).reshape(b, n), jnp.full((n, n), 1 / n)
        want = jax.jit(f)(*args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), exported.call(*args), want)


def test_export_with_a_symbolic_length():
    """The number of steps may be symbolic too."""

    def f(xs):
        return lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(()), xs)[1].sum()

    (length,) = jax.export.symbolic_shape("t")
    exported = jax.export.export(jax.jit(ag.optimize(f)))(jax.ShapeDtypeStruct((length,), jnp.float32))
    for t in (1, 7):
        xs = jnp.arange(t, dtype=jnp.float32)
        np.testing.assert_allclose(exported.call(xs), jax.jit(f)(xs), rtol=1e-6)


def test_a_jit_within_keeps_its_own_options():
    """An inner jit with static arguments and donation works inside an optimised function."""
    inner = jax.jit(lambda x, n: x * n, static_argnums=1, donate_argnums=0)
    assert_equal_trees(jax.jit(ag.optimize(lambda x: inner(x, 3) + 1))(jnp.ones(3)), jnp.ones(3) * 3 + 1)


def test_ensure_compile_time_eval():
    """Concrete computation while tracing stays possible inside an optimised function."""

    def f(x):
        with jax.ensure_compile_time_eval():
            n = int(jnp.arange(4).sum())
        return x * n

    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(jnp.ones(2)), 6.0)
