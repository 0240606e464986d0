"""Sums of what is linear: the linear part is done once after the loop, in gradients and by itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.scipy.linalg import solve_triangular

import aerogel as ag
from aerogel._jax import jaxprs_in_params, scan_counts
from aerogel.compiler.passes.loop_linear import LoopLinear
from compiler.loop_patterns import normal

T, N = 48, 64
A = jnp.asarray(normal(0, N, N)) / 4
SPD = A @ A.T + jnp.eye(N)
XS = jnp.asarray(normal(1, T, N))
SMALL = SPD[:12, :12], XS[:, :12]  # for what is dear enough


def alone(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(LoopLinear(),), **options)


def in_loops(f: Callable[..., Any], *args: Any) -> list[str]:
    """The names of all primitives in bodies of loops, those of calls included."""

    def walk(jaxpr: Any, inside: bool) -> list[str]:
        names = []
        for eqn in jaxpr.eqns:
            names += [eqn.primitive.name] if inside else []
            for inner in jaxprs_in_params(eqn.params):
                names += walk(getattr(inner, "jaxpr", inner), inside or eqn.primitive.name == "scan")
        return names

    return walk(jax.make_jaxpr(f)(*args).jaxpr, False)


def steps(make: Callable[[Any], Any], use: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The gradient, with respect to A, of a loop that makes the same of A in every step."""

    def loss(a: Any, xs: Any) -> Any:
        h, ys = lax.scan(lambda h, x: (use(make(a), h) + x,) * 2, xs[0], xs)
        return (h * ys).sum()

    return jax.grad(loss)


def applied(m: Any, h: Any) -> Any:
    """The next state."""
    return jnp.tanh(m @ h)


def weight_norm(a: Any) -> Any:
    """Rows of length one."""
    return a / jnp.linalg.norm(a, axis=1, keepdims=True)


GRADIENTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "inverse": (steps(jnp.linalg.inv, applied), "custom_linear_solve"),
    "Cholesky factor": (steps(jnp.linalg.cholesky, applied), "triangular_solve"),
    "square": (steps(lambda a: a @ a @ a, applied), "dot_general"),
    "softmax": (steps(lambda a: jax.nn.softmax(a, -1), lambda m, h: jnp.sin(h @ m)), "reduce_sum"),
    "unit rows": (steps(weight_norm, applied), "reduce_sum"),
    "triangular solve": (
        steps(lambda a: solve_triangular(SPD[: len(a), : len(a)], a, lower=True), applied),
        "triangular_solve",
    ),
    "running sum": (steps(lambda a: jnp.cumsum(a, 0), applied), "cumsum"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_derivative_of_what_is_the_same_in_every_step_is_taken_once(name: str) -> None:
    """What a backward loop did to every cotangent is done to their sum; the gradients agree."""
    f, primitive = GRADIENTS[name]
    a, xs = SMALL if primitive in ("custom_linear_solve", "triangular_solve") else (SPD, XS)
    before, after = (in_loops(g, a, xs).count(primitive) for g in (f, alone(f)))
    assert before > after
    if primitive not in ("reduce_sum", "dot_general"):  # a step has some of its own
        assert after == 0
    got, want = (jax.jit(g)(a, xs) for g in (alone(f), f))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * float(jnp.abs(want).max()))


def test_by_default_a_gradient_holds_no_sum_of_matrices() -> None:
    """What is summed first is a sum of outer products, which leaves the loop as one product (`loop-hoist`)."""
    f, _ = GRADIENTS["inverse"]
    fired = [d.rule for d in ag.explain(f)(SPD, XS).fired]
    assert fired.index("loop-linear") < fired.index("loop-hoist")
    got, want = (jax.jit(g)(SPD, XS) for g in (ag.optimize(f), f))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * float(jnp.abs(want).max()))


@pytest.mark.parametrize("name", ["inverse", "softmax", "unit rows"])
def test_by_default_steps_are_those_of_the_form_by_hand(name: str) -> None:
    """In a step a product with an outer product is best taken vector by vector; then nothing of it could leave."""
    make = {"inverse": jnp.linalg.inv, "softmax": lambda a: jax.nn.softmax(a, -1), "unit rows": weight_norm}[name]

    def loss(make: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        step = lambda a, c, x: (jnp.tanh(make(a) @ c + x), None)  # noqa: E731
        return lambda a, xs: lax.scan(lambda c, x: step(a, c, x), jnp.zeros(a.shape[0]), xs)[0].sum()

    f = jax.grad(loss(make))
    by_hand = jax.grad(lambda a, xs: loss(lambda m: m)(make(a), xs))
    a, xs = SPD[:60, :60], jnp.asarray(normal(2, 2 * T, 60))
    ours, theirs = (in_loops(ag.optimize(g), a, xs) for g in (f, by_hand))
    for primitive in ("custom_linear_solve", "dot_general", "reduce_sum"):
        assert ours.count(primitive) == theirs.count(primitive)
    got, want = (jax.jit(g)(a, xs) for g in (ag.optimize(f), f))
    np.testing.assert_allclose(got, want, rtol=5e-4, atol=5e-4 * float(jnp.abs(want).max()))


FEW: dict[str, tuple[int, int]] = {"few steps": (3, 160), "two steps": (2, 96)}


@pytest.mark.parametrize("name", FEW)
def test_a_few_solves_for_vectors_are_left(name: str) -> None:
    """One solve for all columns takes longer than a few for one: products are taken apart, as they were."""
    steps_, n = FEW[name]
    a = jnp.asarray(normal(3, n, n)) / 9
    a, xs = a @ a.T + jnp.eye(n), jnp.asarray(normal(4, steps_, n))
    f, _ = GRADIENTS["inverse"]
    early = ag.optimize(f, passes=(LoopLinear(before_products=True),))
    assert str(jax.make_jaxpr(early)(a, xs)) == str(jax.make_jaxpr(ag.optimize(f, passes=()))(a, xs))
    got, want = (jax.jit(g)(a, xs) for g in (ag.optimize(f), f))
    np.testing.assert_allclose(got, want, rtol=5e-4, atol=5e-4 * float(jnp.abs(want).max()))


def total(term: Callable[[Any, Any], Any], **options: Any) -> Callable[[Any, Any], Any]:
    """The sum of a term over all steps."""

    def f(a: Any, xs: Any) -> Any:
        start = jnp.zeros_like(term(a, xs[0]))
        return lax.scan(lambda s, x: (s + term(a, x), None), start, xs, **options)[0]

    return f


TERMS: dict[str, Callable[[Any, Any], Any]] = {
    "a product": lambda a, x: a @ jnp.sin(x),
    "a product of a sum": lambda a, x: (jnp.sin(x) + 2 * x[::-1]) @ (a @ a),
    "chosen": lambda a, x: jnp.where(a[0] > 0, a @ jnp.sin(x), -x),
    "divided": lambda a, x: (jnp.outer(x, jnp.cos(x)) / (1 + a * a)) @ a,
    "joined": lambda a, x: a @ jnp.concatenate([x[:3], jnp.exp(x[3:])]),
    "transformed": lambda a, x: jnp.fft.ifft(jnp.fft.fft(jnp.sin(x)) * jnp.exp(a[0])).real,
}


@pytest.mark.parametrize("name", TERMS)
def test_sums_of_a_users_own(name: str) -> None:
    """Whatever is linear in what differs between the steps is done after the loop."""
    f = total(TERMS[name], reverse=len(name) % 2 == 0)
    heavy = {"dot_general", "fft"}
    assert heavy & set(in_loops(f, A, XS))
    assert not heavy & set(in_loops(alone(f), A, XS))
    grad, inside = (jax.grad(lambda a, xs, g=g: g(a, xs).sum()) for g in (f, alone(f)))
    for g, want in ((alone(f), f), (alone(grad), grad), (inside, grad)):
        got, want = (jax.jit(h)(A, XS) for h in (g, want))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.abs(want).max()))


def read_in_steps(a: Any, xs: Any) -> Any:
    """The sum is what the next step starts from."""
    return lax.scan(lambda s, x: (s + a @ jnp.tanh(s + x), None), xs[0], xs)[0]


def stacked_too(a: Any, xs: Any) -> Any:
    """Each term is an output too."""
    return lax.scan(lambda s, x: (lambda t: (s + t, t))(a @ jnp.sin(x)), xs[0], xs)


LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "another matrix in each step": total(lambda a, x: (a * x) @ jnp.sin(x)),
    "not linear": total(lambda a, x: jnp.tanh(a @ x)),
    "two factors": total(lambda a, x: (a @ x) * x),
    "affine": total(lambda a, x: jnp.maximum(a @ x, 0.0)),
    "read in the steps": read_in_steps,
    "stacked too": stacked_too,
    "what is summed is larger": total(lambda a, x: jnp.exp(jnp.outer(x, jnp.repeat(x, 64))).sum(1)),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_sums_are_left(name: str) -> None:
    """The same program."""
    f = LEFT[name]
    assert str(jax.make_jaxpr(alone(f))(A, XS)) == str(jax.make_jaxpr(f)(A, XS))


def test_what_blocks_would_do_without_is_not_summed() -> None:
    """The gradient by the points of what each step makes of their distances: no sum of all distances is carried."""

    def loss(x: Any, y: Any) -> Any:
        def step(h: Any, _: Any) -> Any:
            return jax.nn.logsumexp(h - 0.1 * jnp.sum((x[:, None] - y) ** 2, -1), 1), None

        return lax.scan(step, jnp.zeros(len(y)), None, length=4)[0].mean()

    points = [jax.ShapeDtypeStruct((2048, 2), jnp.float32)] * 2
    program = jax.make_jaxpr(alone(jax.grad(loss)))(*points)
    loops = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(loops) == 2
    assert all(v.aval.size <= 2 * 2048 for eqn in loops for v in eqn.outvars[: scan_counts(eqn.params)[1]])


def test_a_turned_product_of_a_step_is_left() -> None:
    """The gradient of a weight is the transpose of a product: one product after the loop makes it as it is wanted."""

    def turned(xs: Any, ys: Any) -> Any:
        add = lambda total, xy: (total + (xy[1].T @ xy[0]).T, None)  # noqa: E731
        return lax.scan(add, jnp.zeros((xs.shape[2], ys.shape[2])), (xs, ys))[0]

    xs, ys = normal(0, 10, 64, 256), normal(1, 10, 64, 1024)
    assert not [d for d in ag.explain(turned)(xs, ys).decisions if d.rule == "loop-linear"]
    np.testing.assert_allclose(ag.optimize(turned)(xs, ys), turned(xs, ys), rtol=1e-4, atol=1e-3)


def test_strict_numerics_and_small_sums() -> None:
    """Sums in another order are for fast numerics; what saves next to nothing is refused, with the reason."""
    f = total(TERMS["a product"])
    assert "dot_general" in in_loops(alone(f, numerics="strict"), A, XS)
    (refused,) = (d for d in ag.explain(f)(A[:2, :2], XS[:2, :2]).refused if d.rule == "loop-linear")
    assert "too little" in refused.reason


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.complex64])
def test_types(dtype: Any) -> None:
    """Integers wrap alike and come out the same, complex numbers are conjugated, and types are kept."""
    f = total(lambda a, x: jnp.conj(a @ (x * x)))
    a, xs = (1000 * A).astype(dtype), (1000 * XS).astype(dtype)
    assert "dot_general" not in in_loops(alone(f), a, xs)
    got, want = (jax.jit(g)(a, xs) for g in (alone(f), f))
    assert got.dtype == want.dtype
    if dtype == jnp.int32:
        np.testing.assert_array_equal(got, want)
    else:
        got, want = np.asarray(got, np.complex64), np.asarray(want, np.complex64)
        np.testing.assert_allclose(got, want, rtol=3e-2, atol=2e-2 * np.abs(want).max())


def test_in_its_surroundings() -> None:
    """Under `vmap`, in another loop, in a branch, with two sums that share what is summed."""

    def pair(a: Any, xs: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            y = jnp.sin(x)
            return (s[0] + a @ y, s[1] + a.T @ y), None

        return lax.scan(step, (xs[0], 2 * xs[0]), xs)[0]

    forms: dict[str, Callable[[Any, Any], Any]] = {
        "pair": pair,
        "vmap": jax.vmap(pair, (None, 2)),
        "branch": lambda a, xs: lax.cond(a[0, 0] > 9, lambda: (xs[0], xs[1]), lambda: pair(a, xs)),
        "loop": lambda a, xs: lax.map(lambda k: pair(k * a, xs), jnp.arange(3.0)),
    }
    for name, f in forms.items():
        xs = XS[..., None] * jnp.arange(3.0) if name == "vmap" else XS
        assert str(jax.make_jaxpr(alone(f))(A, xs)) != str(jax.make_jaxpr(ag.optimize(f, passes=()))(A, xs)), name
        for got, want in zip(*(jax.jit(g)(A, xs) for g in (alone(f), f)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.abs(want).max()))


LINEAR: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, v: a @ v, lambda a, v: v[::-1], lambda a, v: v * a[1], lambda a, v: v - jnp.roll(v, 3),
    lambda a, v: jnp.where(a[2] > 0, v, -2.0), lambda a, v: jnp.cumsum(v), lambda a, v: v.at[2].set(0.0),
    lambda a, v: jnp.pad(v[2:], (0, 2)), lambda a, v: v + a[0], lambda a, v: v / (2 + a[3] ** 2),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(range(len(LINEAR))), min_size=1, max_size=5))
def test_any_linear_steps(chosen: list[int]) -> None:
    """Linear and affine functions one after the other: whatever is taken out, the sum is the same."""

    def term(a: Any, x: Any) -> Any:
        v = jnp.sin(x)
        for k in chosen:
            v = LINEAR[k](a, v)
        return a @ v

    got, want = (jax.jit(g)(A, XS) for g in (alone(total(term)), total(term)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.abs(want).max() + 1))


@pytest.mark.parametrize("early", [False, True])
def test_loops_of_no_or_one_step_and_empty_values(early: bool) -> None:
    """Nothing is done, and nothing breaks."""
    own = (LoopLinear(before_products=early),)
    for a, xs in ((A, XS[:0]), (A, XS[:1]), (A[:0, :0], XS[:, :0])):
        f = lambda a, xs: lax.scan(lambda s, x: (s + a @ jnp.sin(x), None), jnp.zeros(a.shape[0]), xs)[0]  # noqa: E731
        g = jax.jit(ag.optimize(f, passes=own))
        np.testing.assert_allclose(g(a, xs), jax.jit(f)(a, xs), rtol=1e-5, atol=1e-5)
    empty = lambda w, xs: lax.scan(lambda s, x: (s + w * x, None), jnp.zeros_like(w), xs)[0]  # noqa: E731
    assert jax.jit(ag.optimize(empty, passes=own))(jnp.ones(0), jnp.ones((3, 0))).shape == (0,)


MIXED: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x,
    "squares": lambda x: x * x,
    "rows turned": lambda x: -x[::-1],
    "repeated": lambda x: jnp.broadcast_to(x[:, None], (N, 3)),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize(
    ("short", "long"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("int8", "int32"), ("int8", "float32")],
)
def test_who_adds_up_in_a_longer_type_gets_its_digits(name: str, short: str, long: str) -> None:
    """A conversion to a type of more digits stays in the steps, and so does what reads it: sums there round less."""
    with jax.enable_x64(long == "float64"):
        x = jnp.abs(normal(5, 800, N)) + 1
        xs = (9 * x if short == "int8" else x).astype(short)

        def loop(total: Any) -> Any:
            def f(xs: Any) -> Any:
                def step(c: Any, x: Any) -> tuple[Any, None]:
                    return c + total(MIXED[name](x).astype(long)), None

                start = jax.eval_shape(lambda x: total(MIXED[name](x).astype(long)), xs[0])
                return lax.scan(step, jnp.zeros(start.shape, start.dtype), xs)[0]

            return f

        product = jnp.ones((N, 4), long)
        for total in (lambda x: x, lambda x: jnp.sum(x, dtype=long), lambda x: x.T @ product):
            f = loop(total)
            got, want = jax.jit(ag.optimize(f))(xs), jax.jit(f)(xs)
            eps = 0.0 if long == "int32" else 200 * float(jnp.finfo(long).eps)
            np.testing.assert_allclose(got, want, rtol=eps, atol=0)
