"""Mutable arrays: reads and writes stay in their order, wherever the reference lives."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import aerogel as ag

from ._programs import LENGTH, assert_equal_trees, assert_fires, assert_same, beside_rewrite, stacked_sum, start


def assert_same_mutation(f, initial, *args) -> None:
    """`f(ref, *args)` leaves the reference with the same value, and returns the same, under `jit(optimize(f))`."""
    want_ref, got_ref, beside_ref = (jax.new_ref(initial) for _ in range(3))
    want = jax.jit(f)(want_ref, *args)
    got = jax.jit(ag.optimize(f))(got_ref, *args)
    _, beside = jax.jit(ag.optimize(beside_rewrite(f)))(start(), beside_ref, *args)
    for out, ref in ((got, got_ref), (beside, beside_ref)):
        assert_equal_trees(out, want)
        np.testing.assert_array_equal(ref[...], want_ref[...])


def test_refs_as_arguments():
    """Reads between writes see the writes before them, and equal reads are not merged."""

    def f(ref, x):
        before = ref[...]
        ref[...] = before + x
        middle = ref[...]
        ref[0] = 100.0
        return before, middle, ref[...], ref[0] + ref[1]

    assert_same_mutation(f, jnp.zeros(3), jnp.ones(3))


def test_writes_that_nobody_reads_are_kept():
    """A function without a result still changes its argument."""

    def f(ref, x):
        ref[...] = jnp.sin(x)
        ref[1] += 5.0

    assert_same_mutation(f, jnp.zeros(3), jnp.ones(3))


def test_refs_inside():
    """A reference made inside a function is local to it."""

    def f(x):
        ref = jax.new_ref(x)
        for i in range(3):
            ref[i] = ref[i] * 2 + i
        return ref[...], jax.freeze(ref)

    assert_same(f, jnp.arange(3.0))


def test_refs_closed_over():
    """A reference that the function closes over is read and written at every call."""

    def make(optimize):
        ref = jax.new_ref(jnp.zeros(3))

        def f(x):
            ref[...] += x
            return ref[...] * 2

        g = jax.jit(optimize(f))
        return [g(jnp.ones(3)), g(jnp.ones(3)), ref[...]]

    assert_equal_trees(make(ag.optimize), make(lambda f: f))


def test_refs_in_a_scan():
    """A loop's body reads and writes a reference: argument, local, closed over."""

    def f(ref, xs):
        local = jax.new_ref(jnp.zeros(()))

        def body(c, x):
            ref[...] += x
            local[...] += ref[0]
            return c + local[...], ref[...]

        last, ys = lax.scan(body, 0.0, xs)
        return last, ys, ys.sum(0), local[...]

    assert_same_mutation(f, jnp.zeros(2), jnp.arange(8.0).reshape(4, 2))


def test_a_loop_that_writes_a_ref_and_whose_outputs_are_summed():
    """The loop may be rewritten or not: the reference sees every step once."""

    def f(ref, x):
        def body(c, _):
            c = jnp.tanh(c)
            ref[...] += c[:4]
            return c, c

        return lax.scan(body, x, None, length=LENGTH)[1].sum(0)

    assert_same_mutation(f, jnp.zeros(4), start())


def test_a_rewritten_value_written_to_a_ref():
    """The result of a loop that is rewritten goes into the reference."""

    def f(ref, x):
        ref[...] += stacked_sum(x)
        return stacked_sum(2 * x)

    def summed(x):
        ref = jax.new_ref(jnp.zeros(()))
        f(ref, x)
        return ref[...]

    assert_fires(summed, start())
    want, got = jax.new_ref(jnp.float32(1)), jax.new_ref(jnp.float32(1))
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(got, start()), jax.jit(f)(want, start()), rtol=1e-5)
    np.testing.assert_allclose(got[...], want[...], rtol=1e-5)


def test_refs_in_cond_and_while():
    """Branches and loops that write a reference."""

    def f(ref, x):
        def up(x):
            ref[...] += x
            return x

        def down(x):
            ref[...] -= x
            return -x

        first = lax.cond(x[0] > 0, up, down, x)
        second = lax.fori_loop(0, 3, lambda i, c: c + up(x), first)
        return first, second

    assert_same_mutation(f, jnp.zeros(2), jnp.ones(2))
    assert_same_mutation(f, jnp.zeros(2), -jnp.ones(2))


def test_grad_through_a_local_ref():
    """Gradients flow through references that do not leave the function."""

    def f(x):
        ref = jax.new_ref(jnp.zeros_like(x))
        ref[...] = jnp.sin(x)
        ref[0] *= 2
        return (ref[...] ** 2).sum()

    x = jnp.arange(3.0)
    assert_same(jax.grad(f), x)
    assert_equal_trees(jax.jit(jax.grad(ag.optimize(f)))(x), jax.jit(jax.grad(f))(x))
