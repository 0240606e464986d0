"""Small loops are compiled as one kernel, where that pays and XLA can."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import aerogel as ag
from aerogel._jax import KNOWS_KERNELS, jaxpr_as_fun
from aerogel.compiler.cost.machine import table
from aerogel.compiler.kernels import one_kernel
from aerogel.compiler.kernels.kernel_products import MOST_MULTIPLICATIONS
from aerogel.compiler.kernels.one_kernel import MOST_REDUCED, price, step_kernels
from aerogel.compiler.passes import loop_kernel
from compiler.loop_patterns import normal

pytestmark = pytest.mark.skipif(not KNOWS_KERNELS, reason="of this jaxlib it is not known what it makes of the mark")
MARK = "xla_cpu_small_call"
Case = tuple[Callable[..., Any], tuple[Any, ...]]


@pytest.fixture(autouse=True)
def none_is_one_kernel_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most loops here are so small that they would be left to XLA (tests/compiler/test_loop_contraction.py)."""
    monkeypatch.setattr(loop_kernel, "moves_few", lambda *_: False)


@contextmanager
def settings(**values: bool) -> Iterator[None]:
    """JAX's settings for a while."""
    before = {name: getattr(jax.config, name) for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def text(f: Callable[..., Any], *args: Any) -> str:
    """The lowered program: XLA's own small loops are not marked yet."""
    return jax.jit(f).lower(*args).as_text()


def kalman(model: Any, ys: Any) -> Any:
    """The means of a Kalman filter."""
    f, h, q = model

    def step(state: Any, y: Any) -> Any:
        mean, cov = f @ state[0], f @ state[1] @ f.T + q
        gain = cov @ h.T / ((h @ cov @ h.T)[0, 0] + 0.1)
        mean = mean + gain @ (y - h @ mean)
        return (mean, cov - gain @ h @ cov), mean

    size = len(f)
    return lax.scan(step, (jnp.zeros(size), jnp.eye(size)), ys)[1]


def forward(trans: Any, scores: Any) -> Any:
    """The log probability of a hidden Markov model."""
    alpha = lax.scan(lambda a, s: (jax.nn.logsumexp(a[:, None] + trans, 0) + s, None), scores[0], scores)[0]
    return jax.nn.logsumexp(alpha)


def trajectories(x: Any) -> Any:
    """Runge-Kutta steps of the Lorenz system."""

    def slope(x: Any) -> Any:
        return jnp.stack([10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]])

    def step(x: Any, _: Any) -> Any:
        a = slope(x)
        b = slope(x + 0.005 * a)
        c = slope(x + 0.005 * b)
        return x + 0.01 / 6 * (a + 2 * b + 2 * c + slope(x + 0.01 * c)), None

    return lax.scan(step, x, None, length=20)[0]


def newton(a: Any) -> Any:
    """Square roots, and how far they are off, in a `while`."""

    def step(s):
        return (0.5 * (s[0] + a / s[0]), jnp.max(jnp.abs(s[0] * s[0] - a)))

    return lax.while_loop(lambda s: s[1] > 1e-4, step, (a, jnp.float32(1)))[0]


def branches(x: Any) -> Any:
    """A branch in each step."""

    def step(_, x):
        return lax.cond(x[0] > 0, lambda x: 0.9 * x - 0.1, lambda x: 0.5 * jnp.roll(x, 1) + 0.3, x)

    return lax.fori_loop(0, 30, step, x)


def lookups(x: Any, i: Any) -> Any:
    """A gather, an integer carry and an update in place."""

    def step(k: Any, s: Any) -> Any:
        table, n = s
        return lax.dynamic_update_index_in_dim(table, table[i].sum() / 7 + k, n, 0), (n + 3) % len(table)

    return lax.fori_loop(0, 20, step, (x, jnp.int32(0)))[0]


def nested(x: Any) -> Any:
    """A loop in a loop."""

    def inner(x):
        return lax.fori_loop(0, 5, lambda _, y: 0.9 * y + 0.1 * jnp.roll(y, 1), x)

    return lax.fori_loop(0, 8, lambda _, x: inner(x) / (1 + jnp.max(jnp.abs(x))), x)


def recurrent(w: Any, xs: Any) -> Any:
    """A recurrent network of one sequence."""
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, jnp.zeros(len(w)), xs)[1]


MODEL = (jnp.eye(4) + 0.01 * normal(0, 4, 4), normal(1, 1, 4), 0.01 * jnp.eye(4))
CASES: dict[str, Case] = {
    "Kalman filter": (kalman, (MODEL, normal(2, 20, 1))),
    "hidden Markov model": (forward, (normal(0, 8, 8), normal(1, 20, 8))),
    "Runge-Kutta": (trajectories, (normal(0, 3, 1000),)),
    "Newton": (newton, (1 + normal(0, 50) ** 2,)),
    "branches": (branches, (normal(0, 64),)),
    "lookups": (lookups, (normal(0, 30), jnp.array([3, 1, 29, 4]))),
    "nested": (nested, (normal(0, 40),)),
    "recurrent": (recurrent, (0.3 * normal(0, 8, 8), normal(1, 30, 8))),
}


@pytest.mark.parametrize("name", CASES)
def test_small_loops_are_one_kernel(name: str) -> None:
    """The program asks XLA for it, which does it; results are plain JAX's but for the order of sums."""
    f, args = CASES[name]
    optimised = ag.optimize(f)
    assert MARK in text(optimised, *args)
    np.testing.assert_allclose(jax.jit(optimised)(*args), jax.jit(f)(*args), rtol=2e-4, atol=2e-5)
    fired = [d for d in ag.explain(f)(*args).fired if d.rule == "loop-kernel"]
    assert fired
    assert "one core" in fired[0].reason


# There is no gradient backwards through the `while` of Newton's.
@pytest.mark.parametrize("name", [name for name in CASES if name != "Newton"])
def test_gradients_are_one_kernel_too(name: str) -> None:
    """Where the gradient is taken inside; taken from outside, the derivative of the call is that of what it calls."""
    f, args = CASES[name]

    def loss(*args):
        return jnp.sum(f(*args) ** 2)

    want = jax.jit(jax.grad(loss))(*args)
    inside, outside = jax.jit(ag.optimize(jax.grad(loss))), jax.jit(jax.grad(ag.optimize(loss)))
    for got in (inside(*args), outside(*args)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3 * np.abs(b).max()), got, want)
    assert MARK in text(inside, *args)


def test_under_other_transformations_it_is_what_it_calls() -> None:
    """A call that is batched or differentiated from outside brings other operations: no mark is left."""
    w, xs = CASES["recurrent"][1]
    f = ag.optimize(recurrent)
    # A trace of the optimised function by itself, whose program is then transformed: nothing of ours sees that.
    program = jax.jit(f).trace(w, xs).jaxpr
    call = jaxpr_as_fun(program)
    assert MARK in text(lambda *a: call(*a)[0], w, xs)
    forms = {
        "vmap": lambda g: jax.vmap(g, (None, 0)),
        "jvp": lambda g: lambda w, xs: jax.jvp(g, (w, xs[0]), (w, xs[1]))[1],
        "grad": lambda g: lambda w, xs: jax.grad(lambda w: g(w, xs[0]).sum())(w),
        "checkpoint": lambda g: lambda w, xs: jax.grad(lambda w: jax.checkpoint(g)(w, xs[0]).sum())(w),
        "hessian": lambda g: lambda w, xs: jax.hessian(lambda s: g(s * w, xs[0]).sum())(1.0),
    }
    both = jnp.stack([xs, xs[::-1]])
    for name, form in forms.items():
        got, want = form(lambda *a: call(*a)[0]), form(recurrent)
        np.testing.assert_allclose(jax.jit(got)(w, both), jax.jit(want)(w, both), rtol=1e-3, atol=1e-3, err_msg=name)
        assert name == "checkpoint" or MARK not in text(got, w, both), name


def test_a_linear_one_is_transposed() -> None:
    """Programs that hold the call can be transposed as what it calls can."""

    def f(x):
        return lax.scan(lambda c, s: (0.9 * c + jnp.roll(c, 1) + s, c), x[0], x)[1]

    x, ct = normal(0, 20, 40), normal(1, 20, 40)
    call = jaxpr_as_fun(jax.jit(ag.optimize(f)).trace(x).jaxpr)
    assert MARK in text(call, x)
    (want,) = jax.linear_transpose(f, x)(ct)
    np.testing.assert_allclose(jax.linear_transpose(call, x)([ct])[0], want, rtol=1e-4, atol=1e-4)


def test_checkify_looks_into_it() -> None:
    """A division by zero in a step is found as without us."""

    def f(x):
        return lax.fori_loop(0, 10, lambda i, c: c / (5.0 - i) + jnp.roll(c, 1), x)

    for form in (f, ag.optimize(f)):
        error, _ = checkify.checkify(jax.jit(form), errors=checkify.div_checks)(normal(0, 40))
        assert "division by zero" in str(error.get())
    assert MARK in text(ag.optimize(f), normal(0, 40))


def loop(step: Callable[[Any], Any], steps: int = 10) -> Callable[[Any], Any]:
    """A loop of one carry, of which two arrays are stacked: several kernels."""
    return lambda x: lax.scan(lambda c, _: (step(c), (jnp.roll(c, 1), c + 1)), x, None, length=steps)


SQUARE = normal(0, 1 + round(MOST_MULTIPLICATIONS ** (1 / 3)), 1 + round(MOST_MULTIPLICATIONS ** (1 / 3)))
MISSES: dict[str, tuple[Case, str]] = {
    "products of matrices": ((loop(lambda x: jnp.tanh(x @ x)), (SQUARE,)), "product"),
    "factors": ((loop(lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(4))), (normal(0, 4, 4),)), "cholesky"),
    "sorted": ((loop(jnp.sort), (normal(0, 30),)), "sort"),
    "half precision": ((loop(lambda x: jnp.tanh(x) + 1), (normal(0, 30).astype("bfloat16"),)), "bfloat16"),
    "complex": ((loop(lambda x: x * x), (normal(0, 30) + 1j,)), "complex64"),
    "scattered": ((loop(lambda x: x.at[jnp.array([0, 3, 0])].add(x[:3])), (normal(0, 30),)), "scatter"),
    "without elements": ((loop(lambda x: x + 1), (jnp.zeros((0, 3)),)), "without elements"),
    "a running maximum": (
        (lambda x: lax.fori_loop(0, 9, lambda i, c: (c[0] * 0.9, jnp.maximum(*c)), (x, x)), (normal(0, 60),)),
        "last bit",
    ),
    "many sums": ((loop(lambda x: sum((x - (x**k).sum() for k in range(9)), x)), (normal(0, 100),)), "too much"),
    "chosen algorithms": (
        (loop(partial(jnp.matmul, normal(1, 9, 9), precision=lax.DotAlgorithmPreset.F32_F32_F32)), (normal(0, 9, 9),)),
        "algorithm",
    ),
    "effects": ((loop(lambda x: (jax.debug.callback(lambda _: None, x[0]), x * 2)[1]), (normal(0, 30),)), "effects"),
    "large sums": ((loop(lambda x: x - x.sum()), (normal(0, MOST_REDUCED + 1),)), "library"),
}


@pytest.mark.parametrize("name", MISSES)
def test_what_xla_cannot_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near misses stay as they are, whatever it would save, and the report says why."""
    from aerogel.compiler.kernels.one_kernel import Price
    from aerogel.compiler.passes import loop_kernel

    monkeypatch.setattr(loop_kernel, "price", lambda *_: Price(1.0, 0.0))
    (f, args), reason = MISSES[name]
    assert MARK not in text(ag.optimize(f), *args)
    refused = [d.reason for d in ag.explain(f)(*args).refused if d.rule == "loop-kernel"]
    assert any(reason in said for said in refused), refused


def test_a_buffer_that_calls_of_its_steps_write_into_is_not_copied() -> None:
    """The outputs that a thinned loop keeps for its gradient: each of 50 kernels had a copy of all of them."""

    def thinned(x: Any) -> Any:
        ys = lax.scan(lambda c, _: (c - 0.05 * c * c, jnp.tanh(2.0 * c + 1.0)), x, None, length=500)[1]
        return jnp.mean(ys[9::10] ** 2)

    refused = [d.reason for d in ag.explain(jax.grad(thinned))(normal(0, 20_000)).refused if d.rule == "loop-kernel"]
    assert any("would have a copy" in reason for reason in refused), refused


def test_products_that_a_library_would_take_are_sums() -> None:
    """Batched, of several terms and of integers; XLA would not compile the kernel with one that it hands on."""
    a, b = normal(0, 2, 8, 9), normal(1, 2, 9, 10)
    whole = jnp.arange(90, dtype=jnp.int32).reshape(9, 10)
    b8 = whole.astype("int8")
    products: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        "matrices": (jnp.matmul, a[0], b[0]),
        "batch": (jnp.matmul, a, b),
        "transposed": (lambda a, b: b.T @ a.T, a[0], b[0]),
        "two terms": (lambda a, b: jnp.einsum("bik,bkj->ij", a, b), a, b),
        "batch inside": (lambda a, b: jnp.einsum("bik,bkj->ibj", a, b), a, b),
        "integers": (jnp.matmul, whole[:8, :9], whole),
        "of a larger type": (
            partial(jnp.matmul, preferred_element_type="int32"),
            100 + whole[:8, :9].astype("int8"),
            b8,
        ),
        "of a stated precision": (partial(jnp.matmul, precision="highest"), a[0], b[0]),
    }
    for name, (product, a, b) in products.items():
        f = lambda a, b, product=product: lax.scan(  # noqa: E731
            lambda c, _: (c + 1, product(a + c.astype(a.dtype), b)), jnp.int32(0), None, length=5
        )[1]
        form = jax.jit(ag.optimize(f))
        assert MARK in form.lower(a, b).as_text(), name
        np.testing.assert_allclose(form(a, b), jax.jit(f)(a, b), rtol=1e-4, atol=1e-4, err_msg=name)


KNOWN = np.linspace(0, 1, 8, dtype="float32")
CLOSED: dict[str, Callable[[Any], Any]] = {
    "in a step": loop(lambda c: c * KNOWN + jnp.roll(c, 1)),
    "in a branch": loop(lambda c: lax.cond(c[0] > 0, lambda c: c * KNOWN, lambda c: c + KNOWN, c)),
    "as inputs and state": lambda x: lax.scan(lambda c, k: (c * k, c + 1), KNOWN, np.tile(KNOWN, (6, 1)))[0] + x,
    "in a loop in a step": loop(lambda c: lax.fori_loop(0, 3, lambda i, d: d * KNOWN + c[i], jnp.zeros(8))),
}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("simplified", [False, True])
def test_constants_stand_in_the_kernel(name: str, simplified: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its arguments or stand in it, whichever JAX makes of them."""
    from aerogel.compiler.kernels.one_kernel import Price
    from aerogel.compiler.passes import loop_kernel

    monkeypatch.setattr(loop_kernel, "price", lambda *_: Price(1.0, 0.0))
    f, x = CLOSED[name], normal(0, 8)
    with settings(jax_use_simplified_jaxpr_constants=simplified):
        got, want = jax.jit(ag.optimize(lambda x: f(x)))(x), jax.jit(lambda x: f(x))(x)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), got, want)
        assert MARK in text(ag.optimize(lambda x: f(x)), x)


def test_large_loops_are_left() -> None:
    """Work that two cores share, or that one kernel does anyway."""
    for size, step in ((100_000, lambda x: jnp.tanh(x) + 1), (16_000, lambda x: jnp.exp(-x * x))):
        assert MARK not in text(
            ag.optimize(partial(lax.fori_loop, 0, 10, lambda _, c, step=step: step(c))), normal(0, size)
        )


def test_what_cores_would_share_is_priced() -> None:
    """One core takes longer for what XLA would share; only that hangs on the number of cores."""
    for size, shared in ((30, False), (3000, True)):
        loop = jax.make_jaxpr(trajectories)(jnp.ones((3, size))).eqns[-1]
        one, many = (price(loop, replace(table("cpu"), cores=cores)) for cores in (1, 8))
        assert (many.inside > one.inside) == shared


def test_strict_numerics_keep_the_order_of_sums() -> None:
    """What is only arithmetic by entries is one kernel there too."""
    f, args = CASES["hidden Markov model"]
    assert MARK not in text(ag.optimize(f, numerics="strict"), *args)
    f, args = CASES["Runge-Kutta"]
    assert MARK in text(ag.optimize(f, numerics="strict"), *args)


def test_on_several_devices_it_is_what_it_calls() -> None:
    """Partitioning happens to a program that has no calls in it."""
    f, args = CASES["Runge-Kutta"]
    mesh = Mesh(np.array(jax.devices()[:2]), ("lanes",))
    lanes = NamedSharding(mesh, P(None, "lanes"))
    program = jaxpr_as_fun(jax.jit(ag.optimize(f)).trace(*args).jaxpr)
    assert MARK in text(program, *args)
    spread = jax.jit(program, in_shardings=lanes)
    assert MARK not in spread.lower(*args).as_text()
    np.testing.assert_allclose(spread(*args)[0], f(*args), rtol=1e-5)


UNREAD = """
import sys, jax, jax.numpy as jnp
from jax import lax
import aerogel as ag
from aerogel.compiler.kernels.one_kernel import Price
from aerogel.compiler.passes import loop_kernel
loop_kernel.price = lambda *_: Price(1.0, 0.0)
loop_kernel.moves_few = lambda *_: False

def scan(x, y):
    return lax.scan(lambda c, z: (c * 2, c), x, (y,))[1]
def carry(x, y):
    return lax.while_loop(lambda c: c[0] < 9.0, lambda c: (c[0] + 1, c[1]), (x, y))[0]
def times_zero(x, table):
    return lax.fori_loop(0, 10, lambda i, c: c + 0 * table[i % 2, 0], x)

TABLE = jnp.ones((2, 2), jnp.int32)
f, *given = {
    "inputs of a loop": (scan, jnp.ones(3), jnp.ones((6, 2))),
    "a carry": (carry, 1.0, jnp.ones(7)),
    "a number times zero": (times_zero, jnp.ones(4), TABLE),
    "a constant": (lambda x: times_zero(x, TABLE), jnp.ones(4)),
}[sys.argv[1]]
g = jax.jit(ag.optimize(f))
assert "xla_cpu_small_call" in g.lower(*given).as_text()
assert all(bool(jnp.all(a == b)) for a, b in zip(jax.tree.leaves(g(*given)), jax.tree.leaves(f(*given))))
print("compiled")
"""


@pytest.mark.parametrize("name", ["inputs of a loop", "a carry", "a number times zero", "a constant"])
def test_arguments_that_xla_finds_unused_do_not_abort_the_process(name: str) -> None:
    """XLA ends the process (a failed check) where such a call has an argument that nothing in it reads."""
    run = subprocess.run([sys.executable, "-c", UNREAD, name], capture_output=True, text=True, check=False)
    assert run.stdout == "compiled\n", run.stderr[-2000:]


@pytest.mark.parametrize("name", ["tanh", "erf", "expm1", "log1p"])
def test_functions_that_are_slow_in_one_kernel_are_counted(name: str) -> None:
    """200 of them a step cost more there than their kernel's start; as many of another function do not."""
    xs = jnp.zeros((20, 200))

    def priced(function: Any) -> Any:
        loop = jax.make_jaxpr(lambda xs: lax.scan(lambda c, x: (c + function(x), None), xs[0], xs)[0])(xs)
        return price(loop.jaxpr.eqns[-1], table("cpu"))

    slow, quick = priced({"erf": lax.erf}.get(name) or getattr(jnp, name)), priced(jnp.exp)
    assert slow.inside > slow.kernels
    assert quick.inside < quick.kernels


@pytest.mark.parametrize("search", [jnp.argmax, jnp.argmin])
def test_searches_across_rows_are_counted(search: Any) -> None:
    """Across the rows of 12 x 12, as Viterbi's, one costs more than a start; along them, and maxima, do not."""
    a, xs = normal(0, 12, 12), jnp.zeros((199, 12))

    def viterbi(a: Any, xs: Any, axis: int) -> Any:
        def step(c: Any, x: Any) -> Any:
            scores = c[:, None] + a if axis == 0 else c + a
            return scores.max(axis) + x, search(scores, axis)

        return lax.scan(step, xs[0], xs)

    def made(f: Callable[..., Any]) -> bool:
        return MARK in text(ag.optimize(f), a, xs)

    assert not made(partial(viterbi, axis=0))
    assert made(partial(viterbi, axis=1))
    assert made(lambda a, xs: lax.scan(lambda c, x: ((c[:, None] + a).max(0) + x, c.sum()), xs[0], xs))


@pytest.mark.parametrize(
    ("shape", "pieces", "is_dear"),
    [((99, 99), 3, True), ((99, 99), 2, True), ((1, 9801), 3, True), ((9801,), 3, True), ((9801,), 2, False)],
)
def test_seams_along_rows_are_counted(shape: tuple[int, ...], pieces: int, is_dear: bool) -> None:
    """Burgers' equation on a ring of 8,000 took 3 times as long in one kernel, heat in 40 x 40 entries 1.5."""

    def inside(joined: bool) -> float:
        def join(c: Any) -> Any:
            return jnp.concatenate(jnp.split(c, [33, 66][: pieces - 1], -1)[::-1], -1) if joined else c[..., ::-1]

        loop = jax.make_jaxpr(lambda x: lax.fori_loop(0, 10, lambda _, c: c + jnp.sin(join(c)), x))(jnp.ones(shape))
        return price(loop.jaxpr.eqns[-1], table("cpu")).inside

    assert (inside(True) > inside(False)) == is_dear


@pytest.mark.parametrize(("free", "fires"), [(False, False), (True, True)])
def test_rolls_that_are_sums_of_paddings_have_their_price(
    free: bool, fires: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of diffusion on a ring of 500 took 1.2 of its time as one kernel, of 2,000 1.4."""
    if free:
        monkeypatch.setattr(one_kernel, "SECONDS_MORE_ROLLED", 0.0)

    def ring(x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x + 0.1 * (jnp.roll(x, 1) + jnp.roll(x, -1) - 2 * x), None

        return jnp.sum(lax.scan(step, x, None, length=40)[0] ** 2)

    assert (text(ag.optimize(jax.grad(ring)), normal(0, 500)).count(MARK) > 1) == fires


def test_what_is_written_once_is_a_kernel_of_its_own() -> None:
    """Taken for one kernel, a step was taken for work to share: 3,000 entries of a ring took 1.5 of their time."""

    def ring(x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x + 0.1 * (jnp.roll(x, 1) + jnp.roll(x, -1)) - 0.2 * x, None

        return lax.scan(step, x, None, length=40)[0]

    optimised = jax.make_jaxpr(ag.optimize(ring))(normal(0, 3000))
    (loop,) = [eqn for eqn in optimised.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(step_kernels(loop)) == 2
    assert MARK not in text(ag.optimize(ring), normal(0, 3000))
