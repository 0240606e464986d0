"""Loop hoisting: what leaves a loop, what stays and why, and that the numbers stay the same."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel._jax import JaxprEqn, jaxpr_as_fun, jaxprs_in_params
from aerogel.compiler import DEFAULT_PASSES
from aerogel.compiler.passes.loop_hoist import LoopHoist
from aerogel.compiler.report import Report

T, D, H = 100, 64, 128


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    """Normal numbers from a seed."""
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def hoisted(f: Callable, *, numerics: str = "fast", reports: list[Report] | None = None) -> Callable:
    """`f` with this pass alone."""
    on_report = None if reports is None else reports.append
    return ag.optimize(f, numerics=numerics, passes=(LoopHoist(),), on_report=on_report)


def planned_bytes(f: Callable, *args: Any) -> int:
    """What XLA plans as temporary memory."""
    plan: Any = jax.jit(f).lower(*args).compile().memory_analysis()
    return plan.temp_size_in_bytes


def equations(f: Callable, *args: Any) -> Iterator[tuple[JaxprEqn, int]]:
    """All equations of a function's program with the number of loops that they stand in."""

    def walk(jaxpr: Any, depth: int) -> Iterator[tuple[JaxprEqn, int]]:
        for eqn in jaxpr.eqns:
            yield eqn, depth
            for inner in jaxprs_in_params(eqn.params):
                yield from walk(getattr(inner, "jaxpr", inner), depth + (eqn.primitive.name == "scan"))

    return walk(jax.make_jaxpr(f)(*args).jaxpr, 0)


def count(f: Callable, name: str, args: Any, *, inside: bool) -> int:
    """How often a primitive stands inside (or outside) of loops."""
    return sum(eqn.primitive.name == name and (depth > 0) == inside for eqn, depth in equations(f, *args))


def decisions(f: Callable, args: Any, **options: Any) -> list[Any]:
    """What the pass decided about a function."""
    reports: list[Report] = []
    jax.make_jaxpr(hoisted(f, reports=reports, **options))(*args)
    return list(reports[-1].decisions)


def fired(f: Callable, args: Any, **options: Any) -> list[str]:
    """What the pass did."""
    return [d.what for d in decisions(f, args, **options) if d.fired]


def refusals(f: Callable, args: Any, **options: Any) -> str:
    """Why the pass did not, one reason a line."""
    return "\n".join(d.reason for d in decisions(f, args, **options) if not d.fired)


def assert_same(f: Callable, args: Any, *, bits: bool = False, rtol: float = 2e-5) -> None:
    """Values of the hoisted program are those of the plain one."""
    for got, want in zip(jax.tree.leaves(jax.jit(hoisted(f))(*args)), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        if bits:
            np.testing.assert_array_equal(got, want)
        else:
            got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * (np.abs(want).max() if want.size else 1))


def assert_same_gradients(f: Callable, args: Any, argnums: Any) -> None:
    """Gradients of the hoisted program, and hoisted gradients of the program, are those of the plain one."""

    def scalar(g: Callable) -> Callable:
        return lambda *a: sum(jnp.mean(y * (1 + 0.1 * y)) for y in jax.tree.leaves(g(*a)))

    want = jax.jit(jax.grad(scalar(f), argnums))(*args)
    before = jax.jit(jax.grad(hoisted(scalar(f)), argnums))(*args)
    after = jax.jit(hoisted(jax.grad(scalar(f), argnums)))(*args)
    for got in (before, after):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


def rnn(wi: jax.Array, wh: jax.Array, xs: jax.Array, h: jax.Array) -> jax.Array:
    """A recurrent network: one product with the input, one with the carry."""

    def body(h: jax.Array, x: jax.Array) -> Any:
        h = jnp.tanh(x @ wi + h @ wh)
        return h, h

    return lax.scan(body, h, xs)[1]


def rnn_args(batch: int = 0, dtype: Any = jnp.float32) -> tuple:
    """Weights, inputs and state of `rnn`."""
    lead = (batch,) if batch else ()
    weights = normal(0, 512, H, dtype=dtype) / 23, normal(1, H, H, dtype=dtype) / 12
    return *weights, normal(2, T, *lead, 512, dtype=dtype), jnp.zeros((*lead, H), dtype)


def noisy(keys: jax.Array, x: jax.Array) -> jax.Array:
    """A walk with a key for each step."""

    def body(x: jax.Array, key: jax.Array) -> Any:
        x = 0.9 * x + jax.random.normal(key, x.shape)
        return x, x

    return lax.scan(body, x, keys)[1]


def threaded(key: jax.Array, x: jax.Array) -> Any:
    """A walk with the key in the carry."""

    def body(state: Any, _: None) -> Any:
        key, x = state
        key, now = jax.random.split(key)
        bits = jax.random.bits(now, x.shape, np.uint32)
        return (key, x ^ bits), bits

    return lax.scan(body, (key, x), None, length=T)


def folded(key: jax.Array, x: jax.Array) -> jax.Array:
    """A walk that folds the step into one key."""
    return lax.fori_loop(3, 3 + T, lambda i, x: x ^ jax.random.bits(jax.random.fold_in(key, i), x.shape, np.uint32), x)


KEY = jax.random.key(0)
BITS = jnp.zeros(64, jnp.uint32)


def test_input_projection_of_one_sequence_is_one_product() -> None:
    """`x_t @ W` leaves the loop as one product of all rows; the product with the carry stays."""
    args = rnn_args()
    assert count(rnn, "dot_general", args, inside=True) == 2
    assert count(hoisted(rnn), "dot_general", args, inside=True) == 1
    found = equations(hoisted(rnn), *args)
    products = [(e.outvars[0].aval.shape, d) for e, d in found if e.primitive.name == "dot_general"]
    assert products == [((T, H), 0), ((H,), 1)]
    assert_same(rnn, args)
    assert_same_gradients(rnn, args, (0, 1, 2))


def test_large_batches_stay() -> None:
    """With 512 rows a step's product is shared among cores itself: one of all rows gains nothing and stacks much.

    With 64 it is not (a network of width 128 took 0.77 of the time, hoisted).
    """
    args = rnn_args(512)
    assert count(hoisted(rnn), "dot_general", args, inside=True) == 2
    assert "too little" in refusals(rnn, args)
    assert count(hoisted(rnn), "dot_general", rnn_args(64), inside=True) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_projections_stay_in_a_gradient_that_they_would_fill(dtype: Any) -> None:
    """Neither the forward nor the backward loop of a gradient runs a projection at once that fills its memory again."""

    def loss(w: Any, u: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ w + h @ u, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zeros = jnp.zeros((32, H), dtype)
        return jnp.sum(lax.scan(step, (zeros, zeros), xs)[0][0].astype(jnp.float32))

    args = tuple(normal(k, *s, dtype=dtype) for k, s in enumerate([(H, 4 * H), (H, 4 * H), (T, 32, H)]))
    gradient = jax.grad(loss, (0, 1, 2))

    def products_outside(f: Callable) -> int:
        return sum(eqn.primitive.name == "dot_general" and not depth for eqn, depth in equations(f, *args))

    assert products_outside(hoisted(loss)) == 1
    assert products_outside(hoisted(gradient)) == 0
    passes = tuple(one for one in DEFAULT_PASSES if one.name != "block-sums")  # which takes a megabyte for its blocks
    # Plain JAX keeps bfloat16 as float32, too, until jaxlib 0.11.1.
    part = 0.55 if dtype == jnp.float32 or _jax.WIDENS_BFLOAT16_STACKS else 0.62
    assert planned_bytes(ag.optimize(gradient, passes=passes), *args) < part * planned_bytes(gradient, *args)


def minimal_unit(w: Any, xs: Any) -> Any:
    """A recurrent unit of one gate, which stores much for its gradient and needs little of it."""

    def step(h: Any, x: Any) -> Any:
        f = jax.nn.sigmoid(x @ w["wf"] + h @ w["uf"])
        h = (1 - f) * h + f * jnp.tanh(x @ w["wh"] + (f * h) @ w["uh"])
        return h, h

    return jnp.mean(lax.scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)


def minimal_args(dtype: Any = jnp.float32) -> Any:
    """Its weights and an input of 100 steps and 32 rows."""
    return {k: normal(i, H, H, dtype=dtype) / 11 for i, k in enumerate(("wf", "uf", "wh", "uh"))}, normal(
        4, T, 32, H, dtype=dtype
    )


def test_projections_leave_half_of_what_a_gradient_stores() -> None:
    """Two projections of all steps would fill what the choice of residuals empties; of the value alone they leave."""
    gradient, args = jax.value_and_grad(minimal_unit), minimal_args()
    assert count(hoisted(minimal_unit), "dot_general", args, inside=True) == 2
    assert "half of what the loops of a gradient store" in refusals(gradient, args)
    assert planned_bytes(ag.optimize(gradient), *args) < 0.4 * planned_bytes(gradient, *args)
    assert_same_gradients(minimal_unit, args, (0, 1))


def test_a_projection_leaves_where_half_stays_free() -> None:
    """A plain recurrent unit stores its states alone: with a projection as large that is half of plain JAX's."""

    def loss(w: Any, u: Any, xs: Any) -> Any:
        step = lambda h, x: ((h := jnp.tanh(x @ w + h @ u)), h)  # noqa: E731
        return jnp.mean(lax.scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)

    args = normal(0, H, H) / 11, normal(1, H, H) / 11, normal(2, 2 * T, 32, H)
    gradient = jax.value_and_grad(loss, (0, 1, 2))
    assert "`dot_general` runs before the loop, for all steps at once" in [
        d.what for d in ag.explain(gradient)(*args).fired
    ]
    assert planned_bytes(ag.optimize(gradient), *args) < 0.52 * planned_bytes(gradient, *args)  # 0.49 with jaxlib 0.10


def time_mixing(w: Any, xs: Any) -> Any:
    """RWKV's recurrence, with a head in each step: what it reads is a few operations away from the state."""

    def step(state: Any, x: Any) -> Any:
        a, b, m = state
        k, v, r = x @ w["k"], x @ w["v"], jax.nn.sigmoid(x @ w["r"])
        top = jnp.maximum(m, 0.5 + k)
        old, new = jnp.exp(m - top), jnp.exp(0.5 + k - top)
        y = r * (old * a + new * v) / (old * b + new)
        top = jnp.maximum(m - 0.3, k)
        old, new = jnp.exp(m - 0.3 - top), jnp.exp(k - top)
        return (old * a + new * v, old * b + new, top), y @ w["head"]

    zeros = jnp.zeros_like(xs[0])
    return jnp.mean(lax.scan(step, (zeros, zeros, zeros - 9), xs)[1] ** 2)


def test_a_sum_stays_whose_factor_the_steps_may_make_again() -> None:
    """Stacked for one product of all steps, what the head reads could not be made of the states any more."""
    w = {key: normal(k, H, H) / 11 for k, key in enumerate(("k", "v", "r", "head"))}
    gradient = jax.value_and_grad(time_mixing)

    def sums_outside(steps: int) -> int:
        found = decisions(gradient, (w, normal(4, steps, 32, H)))
        return sum(d.fired and "the sum of `dot_general`" in d.what for d in found)

    assert sums_outside(T) == 0
    assert sums_outside(20) > 0  # 330 kB
    args = w, normal(4, T, 32, H)
    assert planned_bytes(ag.optimize(gradient), *args) < 0.55 * planned_bytes(gradient, *args)
    assert_same_gradients(time_mixing, args, (0, 1))


def test_weight_gradients_leave_the_backward_loop() -> None:
    """In a gradient that JAX built, no product with a weight's shape is left in a loop."""
    args = rnn_args()
    gradient = jax.grad(lambda *a: rnn(*a).sum(), (0, 1))

    def outer(f: Callable) -> int:
        shapes = {(512, H), (H, 512), (H, H)}
        return sum(
            e.primitive.name == "dot_general" and d > 0 and e.outvars[0].aval.shape in shapes
            for e, d in equations(f, *args)
        )

    assert outer(gradient) == 2
    assert outer(hoisted(gradient)) == 0


def test_sums_of_many_terms_leave_while_their_factors_stay_in_the_cache() -> None:
    """A batch of 16 rows: the gradient's products leave the loop if all their factors take less than 1 MB."""

    def inside(steps: int) -> int:
        args = normal(0, H, H) / 12, normal(1, steps, 16, H)

        def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
            return lax.scan(lambda h, x: (jnp.tanh(x + h @ w), None), jnp.zeros_like(xs[0]), xs)[0].sum()

        gradient = hoisted(jax.grad(loss))
        return sum(
            e.primitive.name == "dot_general" and d > 0 and e.outvars[0].aval.shape == (H, H)
            for e, d in equations(gradient, *args)
        )

    assert inside(50) == 0  # 410 kB of cotangents
    assert inside(400) == 1  # 3.3 MB


def test_what_left_the_backward_loop_does_not_come_back() -> None:
    """Of small steps, too, the products with their inputs are summed up by one product: no pass undoes another."""

    def loss(a: jax.Array, us: jax.Array) -> jax.Array:
        def step(c: jax.Array, u: jax.Array) -> Any:
            c = 0.2 * (a @ c) + u
            return c, c

        return jnp.mean(lax.scan(step, jnp.zeros(12), us)[1] ** 2)

    args = normal(0, 12, 12), normal(1, 500, 12)
    assert count(ag.optimize(jax.grad(loss)), "dot_general", args, inside=False) == 1
    assert_same_gradients(loss, args, (0, 1))


@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0)], ids=["typed", "raw"])
def test_random_numbers_are_drawn_at_once(key: jax.Array) -> None:
    """Keys that are inputs of the steps draw the same bits outside the loop."""
    args = jax.random.split(key, T), jnp.zeros(64)
    assert count(noisy, "random_bits", args, inside=True) == 1
    assert count(hoisted(noisy), "random_bits", args, inside=True) == 0
    assert count(hoisted(noisy), "random_bits", args, inside=False) == 1
    assert_same(noisy, args)
    assert_same_gradients(lambda x, k: noisy(k, x), (args[1], args[0]), 0)


@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0)], ids=["typed", "raw"])
@pytest.mark.parametrize("size", [3, 64])
def test_keys_in_the_carry_are_advanced_by_a_loop_of_their_own(key: jax.Array, size: int) -> None:
    """A key that is split in every step becomes a small loop; bits, states and the last key are the same."""
    args = key, jnp.zeros(size, jnp.uint32)
    assert count(threaded, "random_bits", args, inside=True) == 1
    assert count(hoisted(threaded), "random_bits", args, inside=True) == 0
    assert count(hoisted(threaded), "random_split", args, inside=True) == 1
    assert_same(threaded, args, bits=True)


def test_counters_need_no_loop() -> None:
    """`fold_in(key, i)` of a `fori_loop`'s index leaves the loop, which does not count any more."""
    assert count(folded, "random_fold_in", (KEY, BITS), inside=True) == 1
    assert count(hoisted(folded), "random_fold_in", (KEY, BITS), inside=True) == 0
    (loop,) = [e for e, _ in equations(hoisted(folded), KEY, BITS) if e.primitive.name == "scan"]
    assert _jax.scan_counts(loop.params)[1] == 1
    assert_same(folded, (KEY, BITS), bits=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_value_of_a_counter_is_kept(reverse: bool) -> None:
    """A counter that is read after the loop has its last value, in loops that run either way."""

    def f(key: jax.Array, x: jax.Array) -> Any:
        def body(state: Any, k: jax.Array) -> Any:
            i, x = state
            return (i + 3, x ^ jax.random.bits(jax.random.fold_in(k, i), x.shape)), i

        return lax.scan(body, (jnp.int32(5), x), jax.random.split(key, T), reverse=reverse)

    g = lambda key, x: f(key, x)  # noqa: E731
    assert fired(g, (KEY, BITS))
    assert_same(g, (KEY, BITS), bits=True)


def test_a_constant_key_draws_once() -> None:
    """Random numbers from a constant key are the same in every step: they are drawn once."""

    def f(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (x ^ jax.random.bits(KEY, x.shape), None), x, None, length=T)[0]

    assert count(f, "random_bits", (BITS,), inside=True) == 1
    assert count(hoisted(f), "random_bits", (BITS,), inside=True) == 0
    (drawn,) = [e.outvars[0].aval.shape for e, _ in equations(hoisted(f), BITS) if e.primitive.name == "random_bits"]
    assert drawn == BITS.shape
    assert_same(f, (BITS,), bits=True)


def test_constant_work_leaves_loops_that_will_be_differentiated() -> None:
    """XLA hoists `A @ A` itself, but not its derivative in a loop: before differentiation it leaves."""

    def f(a: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (jnp.tanh((a @ a) @ x), None), x, None, length=T)[0]

    args = normal(0, D, D) / 8, normal(1, D)
    assert not fired(f, args)
    assert count(lambda *a: jax.jvp(f, a, a), "dot_general", args, inside=True) == 6
    assert count(lambda *a: jax.jvp(hoisted(f), a, a), "dot_general", args, inside=True) == 3
    assert_same_gradients(f, args, (0, 1))


def test_an_output_head_runs_after_the_loop() -> None:
    """A product that only an output reads is made of all steps' states at once."""

    def f(wh: jax.Array, wo: jax.Array, xs: jax.Array, h: jax.Array) -> jax.Array:
        def body(h: jax.Array, x: jax.Array) -> Any:
            h = jnp.tanh(x + h @ wh)
            return h, h @ wo

        return lax.scan(body, h, xs)[1]

    args = normal(0, H, H) / 12, normal(1, H, 500), normal(2, T, H), jnp.zeros(H)
    assert count(f, "dot_general", args, inside=True) == 2
    assert count(hoisted(f), "dot_general", args, inside=True) == 1
    assert_same(f, args)
    assert_same_gradients(f, args, (0, 1, 2))


@pytest.mark.parametrize(("after", "left"), [(jax.nn.softmax, 0), (lambda y: y, 1)])
def test_a_small_head_runs_after_the_loop_with_what_is_done_to_it(after: Callable, left: int) -> None:
    """Ten classes are no large product, but a softmax of them is three kernels of a step."""

    def f(wh: jax.Array, wo: jax.Array, xs: jax.Array, h: jax.Array) -> jax.Array:
        def body(h: jax.Array, x: jax.Array) -> Any:
            h = jnp.tanh(x + h @ wh)
            return h, after(h @ wo)

        return lax.scan(body, h, xs)[1]

    args = normal(0, 96, 96) / 10, normal(1, 96, 10), normal(2, 400, 1, 96), jnp.zeros((1, 96))
    assert count(hoisted(f), "dot_general", args, inside=True) == 1 + left
    assert_same(f, args)
    assert_same_gradients(f, args, (0, 1, 2))


def outer_sum(ks: jax.Array, vs: jax.Array) -> jax.Array:
    """A sum of outer products."""
    start = jnp.ones((ks.shape[1], vs.shape[1]), ks.dtype)
    return lax.scan(lambda s, kv: (s + jnp.outer(*kv), None), start, (ks, vs))[0]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_sum_of_outer_products_is_one_product(dtype: Any) -> None:
    """`S += outer(k, v)` over a loop is `K^T V`, added to where S began."""
    args = normal(0, T, 160, dtype=dtype), normal(1, T, D, dtype=dtype)
    assert count(outer_sum, "scan", args, inside=False) == 1
    assert count(hoisted(outer_sum), "scan", args, inside=False) == 0
    assert_same(outer_sum, args, rtol=2e-5 if dtype == jnp.float32 else 0.1)
    if dtype == jnp.float32:
        assert_same_gradients(outer_sum, args, (0, 1))


def test_a_sum_that_a_step_reads_stays() -> None:
    """A carry that is read besides being added to is no sum."""

    def f(ks: jax.Array, vs: jax.Array) -> Any:
        def body(s: jax.Array, kv: Any) -> Any:
            return s + jnp.outer(*kv), s[0, 0]

        return lax.scan(body, jnp.zeros((160, D)), (ks, vs))

    args = normal(0, T, 160), normal(1, T, D)
    assert not fired(f, args)
    assert_same(f, args, bits=True)


def test_a_sum_of_steps_that_depend_on_no_other_needs_no_loop() -> None:
    """`s += sum(tanh(W x)**2)`, differentiated: neither loop is left, and the sums are sums."""

    def f(w: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.scan(lambda s, x: (s + jnp.sum(jnp.tanh(w @ x) ** 2), None), 0.0, xs)[0]

    args = normal(0, D, D) / 8, normal(1, 1000, D)
    gradient = jax.value_and_grad(f)
    assert count(gradient, "scan", args, inside=False) == 2
    assert count(hoisted(gradient), "dot_general", args, inside=True) == 0
    assert_same(gradient, args)
    assert_same_gradients(f, args, (0, 1))


def test_an_elementwise_map_needs_no_loop() -> None:
    """`lax.map` of elementwise work is that work on the whole array, alone and in its gradient."""

    def f(x: jax.Array) -> jax.Array:
        return lax.map(lambda r: jnp.tanh(r) * r + 1, x)

    args = (normal(0, T, 1000),)
    assert count(f, "scan", args, inside=False) == 1
    assert count(hoisted(f), "scan", args, inside=False) == 0
    assert count(hoisted(jax.grad(lambda x: f(x).sum())), "scan", args, inside=False) == 0
    assert_same(f, args)
    assert_same_gradients(f, args, 0)


def test_a_map_that_bounds_memory_stays() -> None:
    """A step that makes more than it reads and hands over is mapped so that only one of it exists: it stays so."""

    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.map(lambda r: jnp.exp(-((r[None] - y) ** 2).sum(-1)).sum(), x)

    args = normal(0, T, 3), normal(1, 5000, 3)
    assert count(hoisted(f), "scan", args, inside=False) == 1
    assert "larger than what it reads" in refusals(f, args)


def test_a_map_averaged_over_its_steps_stays() -> None:
    """Where only the steps are summed over, loop fusion's carry is better than no loop."""

    def f(x: jax.Array) -> jax.Array:
        return lax.map(lambda r: jnp.tanh(r) * r, x).mean(0)

    args = (normal(0, T, 1000),)
    assert count(hoisted(f), "scan", args, inside=False) == 1
    assert "carry does faster" in refusals(f, args)


def test_much_memory_is_not_spent_on_little_time() -> None:
    """Products that would stack 40 MB to save less than a third of the loop's time are left in the steps."""

    def f(xs: jax.Array, w: jax.Array, v: jax.Array, h: jax.Array) -> jax.Array:
        return lax.scan(lambda h, x: (jnp.tanh((x @ w + h) @ v @ v @ v @ v), None), h, xs)[0]

    shapes = (20_000, 512), (512, 512), (512, 512), (512,)
    args = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    assert not fired(f, args)
    assert "MB more" in refusals(f, args)
    args[0] = jax.ShapeDtypeStruct((200, 512), np.float32)
    assert fired(f, args)


@pytest.mark.parametrize("generator", ["rbg", "unsafe_rbg"])
def test_refuses_keys_that_draw_other_bits_together(generator: str) -> None:
    """Many `rbg` keys at once draw other bits than each alone: they stay, and the report says why."""
    args = jax.random.split(jax.random.key(0, impl=generator), T), jnp.zeros(64)
    assert not fired(noisy, args)
    assert "other bits" in refusals(noisy, args)
    assert_same(noisy, args, bits=True)


def test_strict_numerics_move_draws_but_no_products() -> None:
    """A product of more rows may round in another order; random bits are the same bits."""
    assert not fired(rnn, rnn_args(), numerics="strict")
    assert "strict" in refusals(rnn, rnn_args(), numerics="strict")
    assert fired(noisy, (jax.random.split(KEY, T), jnp.zeros(64)), numerics="strict")


def printing(xs: jax.Array, w: jax.Array) -> jax.Array:
    """A loop with an effect."""

    def body(h: jax.Array, x: jax.Array) -> Any:
        y = x @ w
        jax.debug.callback(lambda _: None, y[0])
        return h + y, None

    return lax.scan(body, jnp.zeros(w.shape[1]), xs)[0]


def carried(xs: jax.Array, w: jax.Array) -> jax.Array:
    """A loop in which all hangs on the carry."""
    return lax.scan(lambda h, x: (jnp.tanh((h + x) @ w), None), jnp.zeros(D), xs)[0]


def one_step(xs: jax.Array, w: jax.Array) -> jax.Array:
    """A loop of one step."""
    return lax.scan(lambda h, x: (jnp.tanh(h + x @ w), None), jnp.zeros(D), xs[:1])[0]


def no_step(xs: jax.Array, w: jax.Array) -> jax.Array:
    """A loop of no step."""
    return lax.scan(lambda h, x: (jnp.tanh(h + x @ w), None), jnp.zeros(D), xs[:0])[0]


@pytest.mark.parametrize("f", [printing, carried, one_step, no_step])
def test_leaves_alone(f: Callable) -> None:
    """Loops with effects, products with the carry, loops of one step and of none stay as they are."""
    args = normal(0, T, D), normal(1, D, D) / 8
    assert not fired(f, args)
    assert_same(f, args, bits=True)


def test_integers_give_the_same_bits() -> None:
    """Products of integers wrap around alike in and outside of the loop."""

    def f(xs: jax.Array, w: jax.Array) -> Any:
        return lax.scan(lambda h, x: (h ^ (x @ w), h), jnp.zeros(H, jnp.int32), xs)

    draw = np.random.default_rng(0).integers(-(2**31), 2**31 - 1, (T, 512)).astype(np.int32)
    args = jnp.asarray(draw), jnp.asarray(draw[:, :H].repeat(6, 0)[:512])
    assert fired(f, args)
    assert_same(f, args, bits=True)


def test_low_precision_keeps_its_type() -> None:
    """bf16 stays bf16."""
    args = rnn_args(dtype=jnp.bfloat16)
    assert fired(rnn, args)
    assert_same(rnn, args, rtol=0.05)


def test_x64_keeps_its_types() -> None:
    """Under x64 values are float64 and counters int64, in and after the loop."""
    with jax.enable_x64(True):
        args = rnn_args(dtype=jnp.float64)
        assert fired(rnn, args)
        assert_same(rnn, args, rtol=1e-12)
        assert_same(folded, (KEY, BITS), bits=True)
        assert_same(threaded, (KEY, BITS), bits=True)


def scanned(f: Callable) -> Callable:
    """`f` in a loop."""

    def g(*args: Any) -> Any:
        return lax.scan(lambda c, _: (c + 1, f(*args)), 0, None, length=2)

    return g


SURROUNDINGS: dict[str, Callable[[Callable], Callable]] = {
    "vmap": lambda f: lambda wi, wh, xs, h: jax.vmap(f, (None, None, 0, None))(wi, wh, jnp.stack([xs, xs + 1]), h),
    "cond": lambda f: lambda *a: lax.cond(a[0][0, 0] > -100, f, lambda *a: a[2][..., :H] * 0, *a),
    "scan": scanned,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_in_its_surroundings(name: str) -> None:
    """Loops inside of other constructs are hoisted from as well; numbers stay."""
    f, args = SURROUNDINGS[name](rnn), rnn_args()
    assert fired(f, args)
    assert_same(f, args)


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 4}, {"reverse": True, "unroll": 2}], ids=str)
def test_directions_and_unrolling_are_kept(options: dict) -> None:
    """Backward and unrolled loops are hoisted from, and stay backward and unrolled."""

    def f(wi: jax.Array, wh: jax.Array, xs: jax.Array, h: jax.Array) -> Any:
        return lax.scan(lambda h, x: (jnp.tanh(x @ wi + h @ wh),) * 2, h, xs, **options)

    args = rnn_args()
    assert count(hoisted(f), "dot_general", args, inside=True) == 1
    (loop,) = [e for e, _ in equations(hoisted(f), *args) if e.primitive.name == "scan"]
    assert {k: loop.params[k] for k in options} == options
    assert_same(f, args)
    assert_same_gradients(f, args, (0, 1))


def test_custom_rules_stay_with_their_functions() -> None:
    """A function with a derivative rule that moves with what surrounds it keeps the rule."""

    @jax.custom_jvp
    def act(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    act.defjvp(lambda p, t: (act(*p), 3.0 * t[0]))

    def f(w: jax.Array, v: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.scan(lambda h, x: (0.5 * h + act(x @ w) @ v, None), jnp.zeros(D), xs)[0]

    args = normal(0, 512, D) / 23, normal(1, D, D) / 8, normal(2, T, 512)
    assert len(fired(f, args)) == 2
    assert count(hoisted(f), "custom_jvp_call", args, inside=False) == 1
    assert_same_gradients(f, args, (0, 1, 2))


RESTS = {"rnn": (rnn, rnn_args()), "threaded": (threaded, (KEY, BITS)), "folded": (folded, (KEY, BITS))}


@pytest.mark.parametrize(("f", "args"), RESTS.values(), ids=RESTS)
def test_rests(f: Callable, args: tuple) -> None:
    """The pass finds nothing to do in its own result."""
    assert fired(f, args)
    once = jax.make_jaxpr(hoisted(f))(*args)
    again = [d.what for d in decisions(jaxpr_as_fun(once), args) if d.fired]
    assert again == []


def test_every_loop_of_a_level_is_looked_at() -> None:
    """Loops right behind one another: one that stays, two that go, one that stays."""

    def f(xs: Any) -> Any:
        recurrence = lambda c, x: (jnp.tanh(c + x), c)  # noqa: E731
        first, _ = lax.scan(recurrence, jnp.zeros(H), xs)
        second, third = lax.map(jnp.sin, xs), lax.map(jnp.cos, xs)
        last, _ = lax.scan(recurrence, jnp.ones(H), xs)
        return first, second, third, last

    args = (normal(0, T, H),)
    assert [eqn.primitive.name for eqn, depth in equations(f, *args) if not depth].count("scan") == 4
    assert len(fired(f, args)) == 2
    assert [eqn.primitive.name for eqn, depth in equations(hoisted(f), *args) if not depth].count("scan") == 2
    assert_same(f, args)


def test_sums_whose_factors_would_be_large_stacks_stay() -> None:
    """Under a head in a `lax.map`, the gradients of all logits would be stacked for the gradient of its weights."""
    xs, labels, w = normal(0, 64, 4, 16), jnp.zeros((64, 4), int), normal(1, 16, 8192)

    def loss(w: jax.Array) -> jax.Array:
        def one(a: Any) -> jax.Array:
            logits = jax.nn.log_softmax(a[0] @ w)
            return -jnp.take_along_axis(logits, a[1][:, None], -1).mean()

        return lax.map(one, (xs, labels)).mean()

    assert "more than half of all that the steps read" in refusals(jax.grad(loss), (w,))
    natural, optimised = (
        jax.jit(f).lower(w).compile().memory_analysis() for f in (jax.grad(loss), ag.optimize(jax.grad(loss)))
    )
    assert optimised.temp_size_in_bytes <= 1.01 * natural.temp_size_in_bytes


@pytest.mark.parametrize("reverse", [False, True])
def test_constant_outputs_are_repeated(reverse: bool) -> None:
    """What every step hands over alike is no array of the loop: numbers of all types, constants, keys."""

    def f(x: Any, key: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return jnp.sin(c + x), (c, w, 1.0, jnp.int8(2), key)

        return lax.scan(step, 0.0, x, reverse=reverse)

    args = jnp.arange(40.0), jax.random.key(3), jnp.ones((3, 2), "bfloat16")
    jaxpr = jax.make_jaxpr(ag.optimize(f))(*args).jaxpr
    (loop,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    assert [v.aval.shape for v in loop.outvars] == [(), (40,)]
    got, want = jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.aval, x.aval.weak_type) == (y.aval, y.aval.weak_type)
        assert jnp.array_equal(*((x, y) if x.dtype != key_type() else (jax.random.key_data(x), jax.random.key_data(y))))


def key_type() -> Any:
    """That of random keys."""
    return jax.random.key(0).dtype


def test_the_gradient_of_a_sum_in_a_loop_needs_no_loop() -> None:
    """Its backward loop stacked a thousand ones, and took longer than plain JAX's two loops."""
    total = jax.value_and_grad(lambda x: lax.scan(lambda c, x: (c + x, None), 0.0, x)[0])
    x = jnp.arange(80_000.0) / 80_000  # so many that the forward loop goes as well
    passes = [one for one in DEFAULT_PASSES if one.name != "short-calls"]  # which adds up in lanes
    ours = ag.optimize(total, passes=passes)
    assert "scan" not in str(jax.make_jaxpr(ours)(x))
    for got, want in zip(ours(x), total(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize(
    ("f", "steps", "stays"),
    [
        (jnp.sin, 5_000, True),
        (jnp.sin, 80_000, False),
        (jnp.square, 150, True),
        (jnp.square, 3_000, False),
        (lambda x: jnp.tanh(x) * jnp.exp(-x * x), 1_000, False),
        (lambda x: x**1.3, 5_000, True),
    ],
)
def test_short_loops_over_numbers_stay(f: Any, steps: int, stays: bool) -> None:
    """One kernel is done before several have started, and few sines and powers are calls outside as well."""

    def total(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, steps, lambda i, c: c + f(x[i]), 0.0)

    for one in (total, jax.value_and_grad(total)):
        x = jnp.linspace(0.1, 1.0, steps)
        decisions = [d for d in ag.explain(one)(x).decisions if d.rule == "loop-hoist" and " no loop" in d.what]
        assert decisions
        assert any(d.fired for d in decisions) != stays
        for got, want in zip(*(jax.tree.leaves(jax.jit(g)(x)) for g in (ag.optimize(one), one)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4)


def blocks(q: jax.Array, k: jax.Array, v: jax.Array, size: int = 128) -> jax.Array:
    """Attention over blocks of queries."""
    rows = q.reshape(-1, size, q.shape[-1])
    return lax.map(lambda r: jax.nn.softmax(r @ k.T / 8) @ v, rows).reshape(q.shape)


def counted_blocks(q: jax.Array, k: jax.Array, v: jax.Array, size: int = 32) -> jax.Array:
    """Blocks of queries that see the keys up to them: where each begins is carried on."""

    def block(first: Any, rows: jax.Array) -> Any:
        seen = first + jnp.arange(size)[:, None] >= jnp.arange(len(k))
        return first + size, jax.nn.softmax(jnp.where(seen, rows @ k.T / 8, -jnp.inf)) @ v

    return lax.scan(block, 0, q.reshape(-1, size, q.shape[-1]))[1].reshape(q.shape)


def temporary_bytes(f: Any, args: Any) -> int:
    """What XLA takes besides arguments and results."""
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


def test_a_counter_that_is_carried_makes_no_recurrence() -> None:
    """All scores of blocks of queries would be kept, though their steps depend on none but a counter."""
    args = tuple(normal(i, 2048, 64) for i in range(3))
    assert "of what the steps make and use up" in refusals(counted_blocks, args)
    assert count(hoisted(counted_blocks), "dot_general", args, inside=False) == 0
    assert temporary_bytes(ag.optimize(counted_blocks), args) < 3 << 20
    assert_same(counted_blocks, args)


@pytest.mark.parametrize("f", [blocks, counted_blocks], ids=["mapped", "counted"])
def test_a_gradient_of_blocks_stores_no_more(f: Any) -> None:
    """A map of wide steps and its gradient stay two loops, of which the second makes again what the first had."""
    args = tuple(normal(i, 2048, 64) for i in range(3))
    gradient = jax.grad(lambda *args: jnp.sum(f(*args) ** 2), (0, 1, 2))
    assert temporary_bytes(ag.optimize(gradient), args) <= 0.7 * temporary_bytes(gradient, args)
    got, want = (jax.jit(one)(*args) for one in (ag.optimize(gradient), gradient))
    for x, y in zip(got, want, strict=True):
        assert jnp.allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_narrow_rows_is_taken_at_once() -> None:
    """A map of a small network gains by products of all rows, for which all is stored."""
    x, w, u = normal(0, 32, 128, 64), normal(1, 64, 512) / 8, normal(2, 512, 64) / 20

    def loss(x: jax.Array, w: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.sum(lax.map(lambda rows: jnp.tanh(jnp.tanh(rows @ w) @ u), x) ** 2)

    gradient = jax.grad(loss, (0, 1, 2))
    assert count(hoisted(gradient), "scan", (x, w, u), inside=False) == 0
    assert_same_gradients(loss, (x, w, u), (0, 1, 2))


@pytest.mark.parametrize(
    ("f", "rows", "columns", "stays"),
    [
        (lambda v: jnp.sin(v).sum(), 200, 64, True),
        (lambda v: jnp.cos(v) * jnp.sin(v[0]), 100, 64, True),
        (jnp.sin, 200, 64, False),
        (lambda v: jnp.sin(v).sum(), 1000, 200, False),
        (jax.nn.softmax, 200, 64, False),
        (lambda v: jnp.exp(v).sum(), 200, 64, False),  # that becomes short again in blocks
        (lambda v: v * v + 2 * v, 500, 64, True),
        (lambda v: v * v + 2 * v, 5000, 64, False),
        (jax.nn.softmax, 100, 32, True),
        (lambda v: jnp.exp(v).sum(), 500, 64, True),
    ],
)
def test_a_short_program_stays_short(f: Any, rows: int, columns: int, stays: bool) -> None:
    """A loop counts as one step: where little is saved besides, its steps at once are not worth waking a thread for."""
    mapped = lambda x: jax.lax.map(f, x)  # noqa: E731
    x = jax.random.normal(jax.random.key(0), (rows, columns))
    made = [d for d in ag.explain(mapped)(x).decisions if d.rule == "loop-hoist"]
    assert [d.fired for d in made] == [not stays]
    assert not stays or "wake another thread" in made[0].reason
    np.testing.assert_allclose(jax.jit(ag.optimize(mapped))(x), jax.jit(mapped)(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("particles", "steps", "stays"), [(32, 5, True), (24, 6, True), (500, 40, False), (32, 60, False)]
)
def test_draws_that_save_less_than_waking_a_thread_stay_in_a_short_loop(
    particles: int, steps: int, stays: bool
) -> None:
    """A filter of few particles in few steps took 1.5 of the time with its draws before the loop."""
    observed = normal(0, steps)

    def step(x: jax.Array, given: Any) -> tuple[jax.Array, jax.Array]:
        y, key = given
        one, other = jax.random.split(key)
        x = 0.9 * x + 0.4 * jax.random.normal(one, (particles,))
        weights = jnp.exp(-0.5 * x - 0.5 * y**2 * jnp.exp(-x))
        places = (jnp.arange(particles) + jax.random.uniform(other)) / particles
        found = jnp.searchsorted(jnp.cumsum(weights / weights.sum()), places)
        return x[jnp.clip(found, 0, particles - 1)], jnp.log(weights.mean())

    def f(key: jax.Array) -> jax.Array:
        return lax.scan(step, jnp.zeros(particles), (observed, jax.random.split(key, steps)))[1].sum()

    key = jax.random.key(3)
    found = [d for d in ag.explain(f)(key).decisions if d.rule == "loop-hoist" and "random_bits" in d.what]
    assert found
    assert [d.fired for d in found] == [not stays] * len(found)
    assert not stays or "wake a thread" in found[0].reason
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(key), jax.jit(f)(key), rtol=1e-5)
