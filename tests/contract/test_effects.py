"""What a program does besides computing: it happens as often, and in the same order, as without `optimize`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback

import aerogel as ag

from ._programs import (
    LENGTH,
    assert_equal_trees,
    assert_fires,
    assert_same,
    beside_rewrite,
    primitives,
    stacked_sum,
    start,
)


def events(f, *args, optimize=ag.optimize) -> tuple[list, object]:
    """What `jit(optimize(f(log)))` notes, and its result. `f` takes the function that notes."""
    noted: list = []

    def note(*values):
        noted.append(tuple(np.asarray(v).item() for v in values))

    out = jax.jit(optimize(f(note)))(*args)
    jax.block_until_ready(out)
    jax.effects_barrier()
    return noted, out


def assert_same_events(f, *args, ordered: bool) -> None:
    """Same notes as plain JAX, alone and beside a rewrite; in the same order where the program fixes one."""
    want, out = events(f, *args, optimize=lambda g: g)
    assert want, "nothing happens in this program"
    got, optimised_out = events(f, *args)
    beside, (_, beside_out) = events(lambda note: beside_rewrite(f(note)), start(), *args)
    assert_fires(beside_rewrite(f(lambda *_: None)), start(), *args)
    for noted, result in ((got, optimised_out), (beside, beside_out)):
        assert (noted if ordered else sorted(noted)) == (want if ordered else sorted(want))
        assert_equal_trees(result, out)


@pytest.mark.parametrize("ordered", [True, False])
def test_debug_callbacks(ordered):
    """Callbacks are not merged (two are equal), not dropped (their values are dead), not duplicated."""

    def f(note):
        def g(x):
            jax.debug.callback(note, x, ordered=ordered)
            jax.debug.callback(note, x, ordered=ordered)
            jax.debug.callback(note, jnp.sin(x) * 3, ordered=ordered)
            y = x + 1
            jax.debug.callback(note, y, ordered=ordered)
            return 2 * x

        return g

    assert_same_events(f, jnp.float32(1), ordered=ordered)


def test_debug_print(capfd):
    """`jax.debug.print` prints the same lines."""

    def f(x):
        jax.debug.print("first {x}", x=x, ordered=True)
        jax.debug.print("first {x}", x=x, ordered=True)
        jax.debug.print("then {y}", y=x * 2, ordered=True)
        return x

    jax.block_until_ready(jax.jit(f)(1.0))
    jax.effects_barrier()
    want = capfd.readouterr().out
    jax.block_until_ready(jax.jit(ag.optimize(f))(1.0))
    jax.effects_barrier()
    assert want.count("first") == 2
    assert capfd.readouterr().out == want


@pytest.mark.parametrize("ordered", [True, False])
def test_io_callbacks(ordered):
    """`io_callback` runs as often as written, also when its results are not used or equal."""

    def f(note):
        def count(x):
            note(x)
            return np.float32(x) + 1

        def g(x):
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            a = io_callback(count, shape, x, ordered=ordered)
            b = io_callback(count, shape, x, ordered=ordered)
            io_callback(count, shape, a * 10, ordered=ordered)
            return a + b

        return g

    assert_same_events(f, jnp.float32(1), ordered=ordered)


def test_ordered_effects_of_two_kinds_stay_interleaved():
    """Ordered prints and ordered callbacks, in a loop and around it, keep their place."""

    def f(note):
        def count(c):
            note(c)
            return np.float32(c + 1)

        def body(i, c):
            jax.debug.callback(note, i, c, ordered=True)
            return io_callback(count, jax.ShapeDtypeStruct((), jnp.float32), c, ordered=True)

        def g(x):
            jax.debug.callback(note, x, ordered=True)
            y = lax.fori_loop(0, 3, body, x)
            jax.debug.callback(note, y, ordered=True)
            return y

        return g

    assert_same_events(f, jnp.float32(1), ordered=True)


def test_callbacks_in_the_body_of_a_loop_that_could_be_rewritten():
    """A loop with a callback in its body runs it once per step, in order, whatever becomes of its outputs."""

    def f(note):
        def body(c, _):
            c = jnp.tanh(c)
            jax.debug.callback(note, c[0], ordered=True)
            return c, c

        return lambda x: lax.scan(body, x, None, length=2 * LENGTH)[1].sum(0)

    assert_same_events(f, start(), ordered=True)


def test_callbacks_keep_their_place_between_two_loops():
    """A callback between two loops of one length is a wall to those that would run them as one."""

    def f(note):
        def g(x):
            total = lax.scan(lambda c, _: (c + 1, c), x, None, length=4)[0]
            jax.debug.callback(note, total, ordered=True)

            def body(c, _):
                jax.debug.callback(note, c, ordered=True)
                return c * 2, c

            return lax.scan(body, x, None, length=4)[0] + total

        return g

    assert_same_events(f, jnp.float32(1), ordered=True)


def test_pure_callback():
    """A pure callback gives its values, in programs and in bodies of loops that are rewritten; also under vmap."""

    def host(x):
        return np.asarray(x) * 2

    def f(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential") + 1

    assert_same(f, jnp.arange(3.0))
    assert_same(jax.vmap(f), jnp.arange(3.0))
    assert_same(lambda x: lax.scan(lambda c, _: (c * 0.5, f(c)), x, None, length=4)[1].sum(0), jnp.arange(3.0))


def test_pure_callback_is_called_as_often():
    """A used pure callback is called once per call and step: not copied to the places that use its value."""
    calls = []

    def f(x):
        y = jax.pure_callback(lambda x: (calls.append(1), x)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return y + 1, y * 2, lax.scan(lambda c, _: (c + y, c * y), x, None, length=3)

    x = jnp.ones(2)
    for g, args in ((f, (x,)), (ag.optimize(f), (x,)), (ag.optimize(beside_rewrite(f)), (start(), x))):
        calls.clear()
        jax.block_until_ready(jax.jit(g)(*args))
        assert len(calls) == 1


def test_cond_runs_one_branch():
    """`cond` and `switch` run the branch that is taken, and only that one."""

    def branch(note, k):
        def run(x):
            jax.debug.callback(note, k, ordered=True)
            return x * k

        return run

    def two(note):
        return lambda p, x: lax.cond(p, branch(note, 1), branch(note, 2), x)

    def three(note):
        return lambda i, x: lax.switch(i, [branch(note, k) for k in range(3)], x)

    for p in (True, False):
        assert_same_events(two, p, jnp.float32(3), ordered=True)
    for i in (-1, 0, 1, 2, 5):
        assert_same_events(three, i, jnp.float32(3), ordered=True)


def test_cond_stays_a_cond():
    """A branch with a loop that is rewritten stays behind its predicate: no select of both results."""

    def f(p, x):
        return lax.cond(p, stacked_sum, lambda x: x[0], x)

    assert_fires(f, True, start())
    assert primitives(jax.make_jaxpr(ag.optimize(f))(True, start()))["cond"] == 1
    for p in (True, False):
        np.testing.assert_allclose(jax.jit(ag.optimize(f))(p, start()), jax.jit(f)(p, start()), rtol=1e-5)


def test_while_is_neither_unrolled_nor_entered():
    """A `while` whose condition is false at once runs nothing; one that runs three times runs its body three times."""

    def f(note):
        def body(c):
            jax.debug.callback(note, c, ordered=True)
            return c + 1

        def g(x, stop):
            jax.debug.callback(note, stop, ordered=True)
            return lax.while_loop(lambda c: c < stop, body, x)

        return g

    for stop in (0.0, 3.0):
        assert_same_events(f, jnp.float32(0), jnp.float32(stop), ordered=True)
    natural, optimised = (primitives(jax.make_jaxpr(g)(0.0, 3.0)) for g in (f(print), ag.optimize(f(print))))
    assert natural["while"] == 1
    assert optimised == natural


def test_a_division_behind_a_predicate_stays_there():
    """What a loop or branch guards is not moved out in front of the guard, where it would give nan or fail."""

    def f(n, x):
        def body(c):
            i, total = c
            return i + 1, total + jnp.sqrt(x) / n

        return lax.while_loop(lambda c: c[0] < n, body, (jnp.float32(0), jnp.float32(0)))[1]

    with jax.debug_nans(True):
        for n, x in ((0.0, -1.0), (3.0, 2.0)):
            assert_equal_trees(jax.jit(ag.optimize(f))(n, x), jax.jit(f)(n, x))


def checked(x):
    """A user's check, an index and a division that `checkify` can see."""
    checkify.check(x.sum() < 100.0, "the sum {s} is too large", s=x.sum())
    return jnp.log(x)[jnp.int32(x[0])]


CHECKS = {
    "user": (checkify.user_checks, [1.0, 200.0]),
    "float": (checkify.float_checks, [0.0, -1.0]),
    "index": (checkify.index_checks, [7.0, 1.0]),
    "none": (checkify.all_checks, [1.0, 2.0]),
}


@pytest.mark.parametrize("name", CHECKS)
def test_checkify(name):
    """Errors found by `checkify` are the same, with `optimize` inside and outside of it."""
    errors, values = CHECKS[name]
    x = jnp.array(values)
    want, out = jax.jit(checkify.checkify(checked, errors=errors))(x)
    assert (want.get() is None) == (name == "none")
    for g in (
        checkify.checkify(ag.optimize(checked), errors=errors),
        ag.optimize(checkify.checkify(checked, errors=errors)),
    ):
        error, got = jax.jit(g)(x)
        assert _first_line(error.get()) == _first_line(want.get())
        assert_equal_trees(got, out)


def _first_line(text: str | None) -> str | None:
    return None if text is None else text.split(". ")[0].splitlines()[0]


def test_checkify_in_a_loop_that_is_rewritten():
    """A check in a loop's body fails at the same step, and passes where it passes."""

    def f(x, limit):
        def body(c, _):
            c = c + 1
            checkify.check(c[0] < limit, "step {c}", c=c[0])
            return c, c

        return lax.scan(body, x, None, length=LENGTH)[1].sum(0)

    for limit in (10.0, 1000.0):
        want, _ = jax.jit(checkify.checkify(f))(start(), limit)
        for g in (checkify.checkify(ag.optimize(f)), ag.optimize(checkify.checkify(f))):
            assert _first_line(jax.jit(g)(start(), limit)[0].get()) == _first_line(want.get())


def test_debug_nans():
    """With `debug_nans` a nan raises where it raises, and a finite program runs."""

    def f(x):
        return jnp.log(x) + 1

    with jax.debug_nans(True):
        assert_same(f, jnp.ones(3))
        with pytest.raises(FloatingPointError) as plain:
            jax.jit(f)(-jnp.ones(3))
        with pytest.raises(FloatingPointError) as optimised:
            jax.jit(ag.optimize(f))(-jnp.ones(3))
        with pytest.raises(FloatingPointError):
            ag.optimize(f)(-jnp.ones(3))
        with pytest.raises(FloatingPointError):
            jax.jit(ag.optimize(beside_rewrite(f)))(start(), -jnp.ones(3))
    assert str(optimised.value) == str(plain.value)


def test_debug_infs():
    """`debug_infs` likewise."""
    with jax.debug_infs(True):
        with pytest.raises(FloatingPointError):
            jax.jit(ag.optimize(lambda x: 1 / x))(jnp.zeros(3))
        assert_same(lambda x: 1 / x, jnp.ones(3))
