"""What XLA would compute for several arrays of a step is computed once, and compared values are the same everywhere."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import aerogel as ag
from aerogel.compiler.passes.loop_once import LoopOnce
from aerogel.compiler.program import is_var
from compiler.loop_patterns import normal

LENGTH, SHAPE = 24, (16, 512)
X = normal(0, *SHAPE)
Body = Callable[[Any], tuple[Any, Any]]


def same(f: Callable[[Any], Any]) -> Body:
    """A step whose output is its next state."""
    return lambda c: (f(c),) * 2


BODIES: dict[str, Body] = {
    "one operand, carried": same(lambda c: jnp.cos(c) + 0.1),
    "two operands, carried": same(lambda c: 0.9 * c + 0.3 * jnp.cos(c)),
    "beside the state": lambda c: (0.9 * c + 0.01, jnp.cos(c)),
    "before the state": lambda c: (lambda n: (0.5 * n, n))(0.9 * c + 0.3 * jnp.cos(c)),
    "a function with its own rule": same(lambda c: jax.nn.silu(jnp.sin(c)) + 0.1),
}
READS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda y: y.sum(0),
    "sum and maximum": lambda y: (y.sum(0), y.max(0)),
    "variance": lambda y: y.var(0),
    "logsumexp": lambda y: jax.nn.logsumexp(y, 0),
    "place of the maximum": lambda y: y.argmax(0),
    "differences": lambda y: (jnp.diff(y, axis=0) ** 2).sum(0),
    "sum beside all": lambda y: (y.sum(0), y),
}


def program(body: Body, read: Callable[[Any], Any], length: int = LENGTH) -> Callable[[Any], Any]:
    """A loop from a given state, and what is made of its outputs."""
    return lambda x: read(lax.scan(lambda c, _: body(c), x, None, length=length)[1])


def compiled(f: Callable[..., Any], like: Any, level: int) -> Callable[..., Any]:
    """The compiled function at a level of LLVM's optimisation; the suite has 0, which is quick."""
    options: dict[str, str | bool] = {"xla_backend_optimization_level": str(level)}
    return jax.jit(f).lower(like).compile(compiler_options=options)


def cosines(f: Callable[..., Any], *args: Any) -> int:
    """How many kernels of the compiled loop compute a cosine."""
    text = jax.jit(f).lower(*args).compile().as_text()
    assert text is not None
    return text.count(" cosine(")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("body", [b for b in BODIES if "rule" not in b])
def test_what_is_dear_is_computed_once(body: str, read: str) -> None:
    """XLA's program holds one cosine, however many arrays are made of it: in one kernel of the loop's step."""
    f = program(BODIES[body], READS[read])
    with jax.enable_x64(True):  # in float32 it is vector code in the end, which two kernels may well hold
        assert cosines(ag.optimize(f), jnp.asarray(X, jnp.float64)) == 1


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("body", BODIES)
def test_results_agree(body: str, read: str) -> None:
    """Values and gradients are those of plain JAX."""
    f = program(BODIES[body], READS[read])
    for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(X)), jax.tree.leaves(jax.jit(f)(X)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    if "place" in read:
        return
    g = jax.grad(lambda x: sum(jnp.sum(v) for v in jax.tree.leaves(f(x))))
    got, want = jax.jit(ag.optimize(g))(X), jax.jit(g)(X)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(jnp.abs(want).max()))


def test_a_users_own_loop_is_looked_at_too() -> None:
    """The state is accumulated by hand; XLA would compute the cosine for the state and for the sum."""

    def f(x: Any) -> Any:
        def body(s: Any, _: Any) -> Any:
            c, total = s
            c = jnp.cos(c) + 0.1
            return (c, total + c), None

        return lax.scan(body, (x, jnp.zeros_like(x)), None, length=LENGTH)[0]

    assert cosines(f, X) == 2
    assert cosines(ag.optimize(f), X) == 1
    (decision,) = ag.explain(f)(X).fired
    assert decision.rule == "loop-once"
    assert "for 2 arrays" in decision.what
    for got, want in zip(jax.jit(ag.optimize(f))(X), jax.jit(f)(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_what_xla_computes_once_is_left() -> None:
    """Two operands and a carry: XLA reads what it has written. A small state: nothing to gain. Cheap work: the same."""
    mean = partial(jnp.mean, axis=0)
    for body, x in (
        (BODIES["two operands, carried"], X),
        (BODIES["one operand, carried"], X[:1, :8]),
        (same(lambda c: 0.9 * c + 0.1), X),
    ):
        fired = ag.explain(program(body, mean))(x).fired
        assert all(d.rule != "loop-once" for d in fired)


MAXIMA: dict[str, Callable[[Any], Any]] = {
    "maximum": lambda y: y.max(0),
    "of absolute values": lambda y: jnp.abs(y).max(0),
    "and minimum": lambda y: y.max(0) - y.min(0),
    "of differences": lambda y: jnp.diff(y, axis=0).max(0),
    "of pairs": lambda y: (y[::2] - y[1::2]).max(0),
    "of a polynomial": lambda y: (0.7 * y + 0.1 * y * y).max(0),
    "beside the sum": lambda y: y.max(0) * y.sum(0),
}
STEPS: dict[str, Body] = {
    "affine": same(lambda c: 0.9 * c + 0.1),
    "quadratic": same(lambda c: 0.9 * c - 0.02 * c * c + 0.1),
    "beside the state": lambda c: (0.98 * c + 0.01, 0.3 * c - 0.05 * c * c + 0.1),
    "exponential": same(lambda c: 0.9 * c + 0.1 * jnp.exp(-c * c) + 0.01),
}


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("read", MAXIMA)
@pytest.mark.parametrize("step", STEPS)
def test_the_gradient_of_a_maximum_meets_the_maximum(step: str, read: str, level: int) -> None:
    """The value that was largest is found again by its bits, at every level of LLVM: its gradient does not vanish."""
    f = program(STEPS[step], MAXIMA[read], 32)
    g = jax.grad(lambda x: jnp.sum(jnp.sin(f(x)) * jnp.cos(x[0])))
    got, want = (compiled(h, X, level)(X) for h in (ag.optimize(g), g))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(jnp.abs(want).max()))


def test_a_maximum_behind_a_product_compares_no_operand() -> None:
    """What a product makes exists once: its operands may be computed as often as XLA likes (steps of SGD, softmax)."""

    def loss(p: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x @ p[0] + p[1])
        return jax.nn.logsumexp(hidden @ p[2], -1).mean()

    def f(p: Any, xs: Any) -> Any:
        def step(p: Any, x: Any) -> tuple[Any, Any]:
            value, slope = jax.value_and_grad(loss)(p, x)
            return jax.tree.map(lambda a, b: a - 0.1 * b, p, slope), value

        return lax.scan(step, p, xs)

    args = (normal(0, 8, 64), normal(1, 64), normal(2, 64, 3)), normal(3, 4, 32, 8)
    assert any(eqn.primitive.name == "scan" for eqn in jax.make_jaxpr(f)(*args).eqns)
    assert all(d.rule != "loop-once" for d in ag.explain(f)(*args).fired)


def test_what_is_compared_is_stored_for_the_gradient() -> None:
    """The backward loop compares states with their maximum: it reads them, and does not compute them again."""
    f = program(STEPS["exponential"], MAXIMA["of absolute values"], 64)
    g = jax.grad(lambda x: jnp.sum(jnp.sin(f(x)) * jnp.cos(x[0])))
    x = jnp.tile(X, (2, 1))
    assert any(d.rule == "residual-choice" for d in ag.explain(g)(x).fired)  # of other values
    loops = [eqn for eqn in jax.make_jaxpr(ag.optimize(g))(x).eqns if eqn.primitive.name == "scan"]
    (body,) = [eqn.params["jaxpr"].jaxpr for eqn in loops if eqn.params["reverse"]]
    makers = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    made: set[str] = set()
    waiting = [x for eqn in body.eqns if eqn.primitive.name == "eq" for x in eqn.invars]
    assert waiting
    while waiting:
        eqn = makers.get(x) if is_var(x := waiting.pop()) else None
        if eqn is not None:
            made.add(eqn.primitive.name)
            waiting += eqn.invars
    assert made <= {"abs", "broadcast_in_dim", "reshape", "squeeze"}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64])
def test_types(dtype: Any) -> None:
    """Other types of floats, and keys beside them, are carried on as they are."""

    def f(x: Any, key: Any) -> Any:
        def body(s: Any, _: Any) -> Any:
            c, key, total = s
            c = jnp.cos(c) + jnp.asarray(0.1, dtype)
            return (c, jax.random.split(key, 1)[0], total + c), None

        return lax.scan(body, (x, key, jnp.zeros_like(x)), None, length=LENGTH)[0]

    x, key = jnp.tile(X, (8, 1)).astype(dtype), jax.random.key(0)
    assert any(d.rule == "loop-once" for d in ag.explain(f)(x, key).fired)
    got, want = jax.jit(ag.optimize(f))(x, key), jax.jit(f)(x, key)
    assert [v.dtype for v in got] == [v.dtype for v in want]
    np.testing.assert_array_equal(jax.random.key_data(got[1]), jax.random.key_data(want[1]))
    for a, b in ((got[0], want[0]), (got[2], want[2])):
        np.testing.assert_allclose(np.asarray(a, np.complex64), np.asarray(b, np.complex64), rtol=2e-2)


def test_under_shard_map_vmap_and_in_a_cond() -> None:
    """In the bodies of other transformations; in shard_map the new carry varies over the mesh as the value does."""
    f = program(BODIES["beside the state"], READS["sum and maximum"])
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    chosen = lambda x: lax.cond(x[0, 0] > 9, lambda x: (x, x), f, x)  # noqa: E731
    for g, x in ((placed, X), (jax.vmap(f), X[None]), (chosen, X)):
        for got, want in zip(jax.jit(ag.optimize(g))(x), jax.jit(g)(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("size", [1 << 14, 1 << 18])
def test_what_becomes_a_branch_is_in_memory_anyway(size: int) -> None:
    """The sine of many numbers is one, in a loop beside whose state one array more is little."""

    def f(x: Any) -> Any:
        def step(c: Any, _: Any) -> tuple[Any, Any]:
            c, d = c
            force = jnp.sin(c)
            return (0.9 * c + force, d - force), None

        return lax.scan(step, (x, x), None, length=10)[0]

    fired = [d.rule for d in ag.explain(f)(jax.ShapeDtypeStruct((size,), jnp.float32)).fired]
    assert ("loop-once" in fired) == (size < 1 << 15)


def stencil(flux: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Steps of a conservation law: differences of what flows, to both sides along both axes."""

    def f(u: Any) -> Any:
        def step(u: Any, _: Any) -> tuple[Any, Any]:
            flows = flux(u)
            around = sum(jnp.roll(flows, shift, axis) for shift in (1, -1) for axis in (0, 1))
            return u + 0.01 * (around - 4 * flows), None

        return lax.scan(step, u, None, length=5)[0]

    return f


def fired_alone(f: Callable[..., Any], *args: Any) -> list[Any]:
    """What the pass does where no other has seen to shifts before."""
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(f, passes=(LoopOnce(),), on_report=reports.append))(*args)
    return [d for d in reports[-1].fired if d.rule == "loop-once"]


@pytest.mark.parametrize(
    ("flux", "fires"),
    [
        (lambda u: (u**3 - u) * (1 - u * u) + 0.5 * u, True),
        (lambda u: 2 * u, False),  # twice the numbers is little to do for each shift
        (lambda u: -(0.3 * (0.1 * -u)), False),  # constant factors are one
    ],
)
def test_what_shifts_read_is_computed_once(flux: Callable[[Any], Any], fires: bool) -> None:
    """XLA computes what is rolled for each of its rolls; the same bits are computed once."""
    u = jax.random.normal(jax.random.key(0), (128, 128)) / 4
    f = stencil(flux)
    fired = fired_alone(f, u)
    assert bool(fired) == fires
    assert all("8 arrays" in d.what for d in fired)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(u), jax.jit(f)(u), rtol=1e-6, atol=1e-6)


def test_entries_that_are_read_one_by_one_are_no_shifts() -> None:
    """Every sixth number of a row, six times, is each number once: nothing is computed twice (346 kB were held)."""

    def f(x: Any) -> Any:
        def step(x: Any, _: Any) -> tuple[Any, Any]:
            apart = (jnp.exp(x)[:, None] - x[None] ** 3 * 0.1).reshape(60, 360)
            return x + 1e-3 * jnp.sum(sum(apart[:, k::6] ** 2 for k in range(6)), 1)[:, None], None

        return lax.scan(step, x, None, length=5)[0]

    x = jax.random.normal(jax.random.key(0), (60, 6)) / 4
    assert not fired_alone(f, x)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), rtol=1e-5, atol=1e-5)


def test_cotangents_that_shifts_read_are_computed_once() -> None:
    """The gradient of a stencil reads its cotangents at all places of the stencil."""
    u = jax.random.normal(jax.random.key(0), (128, 128)) / 4
    gradient = jax.grad(lambda u: jnp.sum(stencil(lambda u: u)(u) ** 2 * u))
    reacting = jax.grad(lambda u: jnp.sum(stencil(lambda u: jnp.tanh(u) * u)(u) ** 2))
    assert fired_alone(reacting, u)
    for g in (gradient, reacting):
        np.testing.assert_allclose(jax.jit(ag.optimize(g))(u), jax.jit(g)(u), rtol=1e-4, atol=1e-6)


def pendulums(state: Any, _: Any) -> tuple[Any, Any]:
    """A step of a midpoint rule: what the first evaluation gives is read by the second, and by a velocity."""
    y, v = state
    first = -jnp.cos(y) - 0.1 * v
    middle = v + 0.05 * first
    return (y + 0.1 * middle, v + 0.02 * first - 0.1 * jnp.cos(y + 0.05 * middle)), None


def test_what_several_read_is_kept_not_what_one_of_them_makes() -> None:
    """`first` is computed for `middle`, and for the velocity too: with `middle` alone kept it would be again."""
    f = lambda x: lax.scan(pendulums, (x, x), None, length=LENGTH)[0]  # noqa: E731
    with jax.enable_x64(True):
        x = jnp.asarray(X, jnp.float64)
        assert cosines(f, x) == 3
        assert cosines(ag.optimize(f), x) == 2
        for got, want in zip(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("extra", [0, 24])
def test_what_several_cores_compute_twice_is_left(extra: int) -> None:
    """XLA shares kernels of much work among cores: with the cosine before them, one core alone would compute it."""

    def f(x: Any, y: Any) -> Any:
        def step(state: Any, _: Any) -> tuple[Any, Any]:
            first = second = jnp.cos(state[0] + state[1])
            for k in range(extra):
                first, second = first * (state[0] + 0.1 * k), second * (state[1] - 0.1 * k)
            return (first, second + state[1]), None

        return lax.scan(step, (x, y), None, length=LENGTH)[0]

    x = jnp.zeros(5000)
    assert cosines(f, x, x) == 2
    assert cosines(ag.optimize(f, rules=(), passes=(LoopOnce(),)), x, x) == (2 if extra else 1)
